"""A pipeline of stages, 1F1B or interleaved: the step's gradients, tick by tick.

`PipelineSchedule` says what each stage does in each tick: the forward pass of a
microbatch through one of its chunks of layers, the backward pass, or nothing. A forward
pass keeps the input of each layer, in a slot that is free again after the backward
pass. Results go to the next stage, gradients to the one before it, after each tick.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from spmd_helpers._figures.pipeline import PipelineSchedule

F32 = jnp.float32


class Slots:
    """Numbers for what waits: the smallest that nothing else has."""

    def __init__(self):
        self.taken, self.count = {}, 0

    def put(self, key):
        number = next(n for n in range(10**6) if n not in self.taken.values())
        self.taken[key] = number
        self.count = max(self.count, number + 1)
        return number


def tables(stages, microbatches, chunks):
    """What each stage does in each tick, as an array [ticks, stages, 8], and slots.

    The eight: what it does (0 nothing, 1 forward, 2 backward), microbatch, chunk; the
    slot of the kept inputs, and of what it reads; where, after the tick, it puts what
    comes from the stage before and from the one after; whether it is the first or the
    last of all chunks (1, 2).
    """
    kind = "interleaved" if chunks > 1 else "1f1b"
    schedule = PipelineSchedule(stages, microbatches, kind, chunks=chunks)
    kept = [Slots() for _ in range(stages)]
    waiting = {way: [Slots() for _ in range(stages)] for way in (False, True)}
    rows = np.zeros((schedule.steps, stages, 8), np.int32)
    rows[:, :, 5:7] = -1
    last = stages * chunks - 1
    for one in sorted(schedule.work, key=lambda one: one.step):
        stage, back = one.stage, one.is_backward
        key = one.microbatch, one.chunk
        place = one.chunk * stages + stage
        row = rows[one.step, stage]
        row[:3] = 1 + back, one.microbatch, one.chunk
        row[3] = kept[stage].taken.pop(key) if back else kept[stage].put(key)
        row[7] = (1 if place == 0 else 0) + (2 if place == last else 0)
        if place != (last if back else 0):
            row[4] = waiting[back][stage].taken.pop(key)
        after = place + (-1 if back else 1)
        if 0 <= after <= last:
            there = one.microbatch, after // stages
            slot = waiting[back][after % stages].put(there)
            rows[one.step, after % stages, 6 if back else 5] = slot
    return (
        rows,
        max(one.count for one in kept),
        [max(1, *(one.count for one in waiting[way])) for way in (False, True)],
    )


def gradients(net, params, tokens):
    """(loss, gradients) of all microbatches [count, sequences, tokens + 1]."""
    program = net.program
    steps, slots, inboxes = tables(program.stage, len(tokens), program.interleave)
    over = jax.tree.map(lambda _: P(), params) | {
        "layers": jax.tree.map(lambda _: P("stage"), params["layers"])
    }
    run = functools.partial(_run, net, slots, inboxes)
    return jax.shard_map(
        run,
        mesh=net.mesh,
        in_specs=(over, P(), P()),
        out_specs=(P(), over),
        axis_names={"stage"},
        check_vma=False,
    )(params, tokens, jnp.asarray(steps))


def _run(net, slots, inboxes, params, tokens, steps):
    stage, chunks = lax.axis_index("stage"), net.program.interleave
    stages, model = net.program.stage, net.model
    layers = jax.tree.map(
        lambda w: w.reshape(chunks, -1, *w.shape[1:]), params["layers"]
    )
    ends = {name: one for name, one in params.items() if name != "layers"}
    each = model.layers // (stages * chunks)
    shape = (*tokens.shape[1:-1], tokens.shape[-1] - 1, model.d_model)
    stream = jnp.zeros(shape, net.dtype)
    first_chunk = jax.tree.map(lambda w: w[0], layers)
    nothing = _zeros(net, ends, 0), _zeros(net, first_chunk, 1)

    def forward(weights, x, part, place):
        x = lax.cond(place % 2 == 1, lambda: net.embedded(ends, part), lambda: x)
        y, inputs = lax.scan(lambda x, w: (net.layer(x, w), x), x, weights)
        return y, inputs, stream, nothing, jnp.zeros((), F32)

    def backward(weights, inputs, change, part, place):
        def with_loss():
            last = jax.tree.map(lambda w: w[-1], weights)
            y = net.layer(inputs[-1], last)
            loss, back = jax.vjp(
                lambda e, y: net.scored(e, y, part) / len(tokens), ends, y
            )
            return loss, *back(jnp.ones((), F32))

        def without():
            return jnp.zeros((), F32), nothing[0], change

        def one(change, both):
            w, x = both
            _, back = jax.vjp(net.layer, x, w)
            return back(change)

        loss, more, change = lax.cond(place // 2 == 1, with_loss, without)
        change, grads = lax.scan(one, change, (weights, inputs), reverse=True)
        grads = _constrained(net, grads, 1)

        def first():
            _, back = jax.vjp(lambda ends: net.embedded(ends, part), ends)
            return jax.tree.map(jnp.add, more, back(change)[0])

        more = lax.cond(place % 2 == 1, first, lambda: more)
        return stream, jnp.zeros_like(inputs), change, (more, grads), loss

    def idle():
        zeros = jnp.zeros((each, *shape), net.dtype)
        return stream, zeros, stream, nothing, jnp.zeros((), F32)

    def tick(carry, step):
        kept, there, back, grads, loss = carry
        what, part, chunk, slot, read, put, put_back, place = step[stage]
        weights = jax.tree.map(lambda w: w[chunk], layers)
        sequences = tokens[part]
        y, inputs, change, more, new = lax.switch(
            what,
            [
                lambda: idle(),
                lambda: forward(weights, there[read], sequences, place),
                lambda: backward(weights, kept[slot], back[read], sequences, place),
            ],
        )
        kept = _put(kept, inputs, jnp.where(what == 1, slot, -1))
        ends, own = grads
        ends = jax.tree.map(jnp.add, ends, more[0])
        own = jax.tree.map(lambda a, b: a.at[chunk].add(b), own, more[1])
        ends, own = _constrained(net, ends, 0), _constrained(net, own, 2)
        up = [(i, (i + 1) % stages) for i in range(stages)]
        down = [(j, i) for i, j in up]
        there = _put(there, lax.ppermute(y, "stage", up), put)
        back = _put(back, lax.ppermute(change, "stage", down), put_back)
        return (kept, there, back, (ends, own), loss + new), None

    start = (
        jnp.zeros((slots, each, *shape), net.dtype),
        *(jnp.zeros((count, *shape), net.dtype) for count in inboxes),
        (_zeros(net, ends, 0), _zeros(net, layers, 2)),
        jnp.zeros((), F32),
    )
    (*_, (ends, own), loss), _ = lax.scan(tick, start, steps)
    own = jax.tree.map(lambda g: g.reshape(-1, *g.shape[2:]), own)
    ends, loss = lax.psum((ends, loss), "stage")
    return loss, ends | {"layers": own}


def _zeros(net, weights, stacked):
    """Gradients of zero, sharded as gradients are."""
    return _constrained(net, jax.tree.map(jnp.zeros_like, weights), stacked)


def _constrained(net, grads, stacked):
    """Gradients by name with their shardings; `stacked` dimensions are before these."""
    specs = net.grad_specs
    if not stacked:
        return {name: net.constrain(one, specs[name]) for name, one in grads.items()}
    return {
        name: net.constrain(one, P(*(None,) * stacked, *specs[f"layers/{name}"][1:]))
        for name, one in grads.items()
    }


def _put(buffer, value, slot):
    """A buffer with a value in one slot; as it was, where the slot is -1."""
    at = jnp.maximum(slot, 0)
    value = jnp.where(slot >= 0, value, buffer[at])
    return lax.dynamic_update_index_in_dim(buffer, value, at, 0)
