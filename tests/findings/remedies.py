"""For each code a program that follows the remedy of a bad one, and what that saves.

`remedy` in `findings_programs` says how they are written. Those of a new finding may
stand there too, beside its bad programs.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from .findings_programs import (
    BAD,
    B,
    D,
    F,
    V,
    attend,
    ids,
    key,
    like,
    loss,
    mapped,
    mapped_step,
    mlp,
    on,
    pin,
    pinned_loss,
    remedy,
    same_as,
    sgd,
    stack,
    to,
)

S = 16


same_as("gradients-each-iteration", "accumulated_gradients",
        "accumulated_in_a_shard_map", "sent")  # fmt: skip
same_as("replicated-state", "adam_state_replicated", "adam_state_sharded", "peak")
same_as("annotated-only", "annotated_and_replicated", "annotated_and_placed", "peak")


# --- Wrong numbers --------------------------------------------------------------------


@remedy("summed-twice", "pmean_of_summed_gradients")
def gradients_of_varying_weights(mesh):
    def gradients(params, x):
        own = jax.tree.map(lambda p: lax.pcast(p, "data", to="varying"), params)
        value, grads = jax.value_and_grad(loss)(own, x)
        return value, lax.pmean(grads, "data")

    return mapped_step(mesh, gradients)


@remedy("summed-twice", "psum_of_what_is_alike", "sent")
def summed_once(mesh):
    f = mapped(
        mesh, lambda x, w: lax.psum(x @ w, "data"), (P(None, "data"), P("data")), P()
    )
    return f, (on(mesh, (B, D), None, "data"), on(mesh, (D, F), "data"))


@remedy("unchecked-output", "block_sum_unchecked")
def block_sum_summed(mesh):
    f = mapped(mesh, lambda x: lax.psum(x.sum(0), "data"), P("data"), P())
    return f, (on(mesh, (B, F), "data"),)


@remedy("same-randomness", "same_noise_in_each_block")
def own_noise_in_each_block(mesh):
    def f(key):
        key = jax.random.fold_in(key, lax.axis_index("data"))
        return jax.random.normal(key, (B, F))

    return mapped(mesh, f, P(), P("data")), (key(mesh),)


# --- Where arrays are -----------------------------------------------------------------


@remedy("closed-over", "weights_closed_over", "peak")
def weights_as_arguments(mesh):
    args = on(mesh, (D, F), None, "model"), on(mesh, (F, D), "model")
    f = lambda w1, w2, x: jnp.tanh(x @ w1) @ w2  # noqa: E731
    return f, (*args, on(mesh, (B, D), "data"))


@remedy("padded-constraint", "ten_rows_for_eight")
def sixteen_rows(mesh):
    def f(x):
        real = jnp.arange(16) < 10
        return jnp.where(real[:, None], pin(x * 2, mesh, "data") ** 2, 0).sum()

    return f, (on(mesh, (16, F)),)


@remedy("dropped-constraint", "nine_rows_returned", "peak")
def sixteen_rows_returned(mesh):
    return lambda x: pin(x, mesh, "data"), (on(mesh, (16, F)),)


@remedy("dropped-constraint", "device_put_in_jit")
def constraint_in_jit(mesh):
    return lambda x: pin(x * 2, mesh, None, "data") + 1, (on(mesh, (B, F), "data"),)


@remedy("single-device-output", "zeros_like_on_one_device")
def zeros_like_as_asked(mesh):
    jit = {"out_shardings": to(mesh, "data", "model")}
    return jnp.zeros_like, (on(mesh, (D, F), "data", "model"),), {"jit": jit}


@remedy("replicated-output", "fsdp_gradients_with_activations_pinned_only", "results")
@remedy("resharded-output", "fsdp_gradients_not_asked_for", "moved")
def gradients_as_asked(mesh):
    params = mlp(mesh, ("data",), ("data",))
    args = params, on(mesh, (B, D), "data")
    f = jax.grad(pinned_loss(mesh, "data"))
    return f, args, {"jit": {"out_shardings": like(params)}}


@remedy("unrequested-reshard", "fsdp_step_without_constraints", "moved")
def step_with_constraints(mesh):
    params = mlp(mesh, ("data",), ("data",))
    jit = {"out_shardings": (like(params), to(mesh))}
    args = params, on(mesh, (B, D), "data")
    return sgd(pinned_loss(mesh, "data")), args, {"carry": 1, "jit": jit}


# --- Gathers --------------------------------------------------------------------------


@remedy("communicated-operand", "rows_sorted", "sent")
def rows_sorted_with_sharded_columns(mesh):
    jit = {"out_shardings": to(mesh, None, "data")}
    return lambda x: jnp.sort(x, 0), (on(mesh, (8 * B, D), None, "data"),), {"jit": jit}


@remedy("communicated-operand", "rows_joined", "sent")
def rows_stacked(mesh):
    args = on(mesh, (8 * B, D), "data"), on(mesh, (8 * B, D), "data")
    return lambda x, y: jnp.stack([x, y * 2], 1), args


@remedy("communicated-operand", "rows_permuted", "sent")
def rows_permuted_by_each_device(mesh):
    def f(key, x):
        key = jax.random.fold_in(key, lax.axis_index("data"))
        return jax.random.permutation(key, x)

    f = mapped(mesh, f, (P(), P("data")), P("data"))
    return f, (key(mesh), on(mesh, (8 * B, D), "data"))


@remedy("gathered-operand", "qr_of_a_sharded_matrix", "sent")
def qr_of_a_sharded_batch(mesh):
    jit = {"out_shardings": to(mesh, "data")}
    f = lambda x: jnp.linalg.qr(x)[0]  # noqa: E731
    return f, (on(mesh, (8, F, F // 8), "data"),), {"jit": jit}


@remedy("gathered-operand", "callback_with_a_sharded_array", "sent")
def callback_on_each_device(mesh):
    def f(x):
        same = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(np.sin, same, x * 2)

    return mapped(mesh, f, P("data"), P("data")), (on(mesh, (B, F), "data"),)


@remedy("gathered-operand", "whole_in_a_shard_map", "peak")
def sharded_in_a_shard_map(mesh):
    def f(x, w):
        return lax.psum_scatter(
            lax.all_gather(x, "data", tiled=True)[
                :, lax.axis_index("data") * 8 + jnp.arange(8)
            ]
            @ w,
            "data",
            tiled=True,
        )

    f = mapped(mesh, f, (P("data"), P("data")), P("data"))
    return f, (on(mesh, (B, D), "data"), on(mesh, (D, F), "data"))


@remedy("gathered-operand", "cumsum_along_the_cut", "sent")
def cumsum_of_sharded_columns(mesh):
    return lambda x: jnp.cumsum(x, 0), (on(mesh, (B, F), None, "data"),)


@remedy("gathered-output", "last_row_cut_off", "peak")
def all_rows_kept(mesh):
    return lambda x: x * 1.0, (on(mesh, (B, F), "data"),)


@remedy("gathered-reshard", "constraint_by_way_of_the_whole", "sent")
def sharded_as_needed(mesh):
    def f(x, y):
        return y + pin(x * 2, mesh, None, ("data", "model"), None)

    args = on(mesh, (B, B, B), None, ("data", "model")), None
    return f, (args[0], on(mesh, (B, B, B), None, ("data", "model")))


@remedy("gathered-reshape", "heads_that_do_not_divide_inside", "sent")
def heads_that_divide(mesh):
    def f(x, w):
        q = (x @ w).reshape(B, S, 8, -1)
        return attend(q, q, q).sum()

    return f, (on(mesh, (B, S, D), "data"), on(mesh, (D, 96), None, "model"))


@remedy("gathered-stack", "scan_over_cut_layers", "peak")
def scan_over_layers_cut_inside(mesh):
    f, (x, _), *options = BAD["scan_over_cut_layers"].build(mesh)
    return f, (x, stack(mesh, (None, "data"), (None, "data"))), *options


@remedy("gathered-embedding", "one_word_of_a_table", "sent")
def one_word_of_sharded_features(mesh):
    f = lambda table, word: lax.dynamic_index_in_dim(table, word)  # noqa: E731
    return f, (on(mesh, (V, D), None, "model"), ids(mesh, ()))


# --- Loops and work -------------------------------------------------------------------


@remedy("loop-collective", "loop_until_all_are_done", "sent")
def loop_of_each_device(mesh):
    def f(x):
        return lax.while_loop(lambda x: (x < 2).any(), lambda x: x + 0.1, x)

    return mapped(mesh, f, P("data"), P("data")), (on(mesh, (8 * F, 2), "data"),)


@remedy("idle-axis", "batch_over_one_of_two_axes", "flops")
def batch_over_both_axes(mesh):
    args = mlp(mesh, (), ()), on(mesh, (B, D), ("data", "model"))
    return sgd(loss), args, {"carry": 1}


@remedy("idle-axis", "batch_over_one_of_two_axes", "flops")
def weights_over_the_idle_axis(mesh):
    args = mlp(mesh, (None, "model"), ("model",)), on(mesh, (B, D), "data")
    return sgd(loss), args, {"carry": 1}


@remedy("idle-axis", "rows_of_a_weight_over_the_batch_axis", "flops")
def batch_over_the_idle_axis_alone(mesh):
    args = on(mesh, (B, D), "data"), on(mesh, (D, F), None, "model")
    return lambda x, w: x @ w, args


@remedy("redundant-work", "half_of_the_products_cut", "flops")
def both_products_sharded(mesh):
    f = BAD["half_of_the_products_cut"].build(mesh)[0]
    w = on(mesh, (D, F), None, "model")
    return f, (on(mesh, (B, D), "data"), w, w)


@remedy("sharding-drift", "state_never_placed")
def state_placed(mesh):
    return sgd(loss), (mlp(mesh, (), ()), on(mesh, (B, D), "data")), {"carry": 1}


@remedy("sharding-drift", "dtype_changed_by_the_step")
def dtype_given_from_the_start(mesh):
    f = lambda w, x: w - x.T @ x  # noqa: E731
    return f, (on(mesh, (D, D)), on(mesh, (B, D), "data")), {"carry": {0: 0}}


@remedy("sharding-drift", "state_left_on_the_device")
def state_back_on_the_host(mesh):
    f, (state,), options = BAD["state_left_on_the_device"].build(mesh)
    options["jit"] = {"out_shardings": state.sharding}
    device = to(mesh, "data")
    f = lambda x: jax.device_put(  # noqa: E731
        jax.device_put(x, device) * 2, state.sharding
    )
    return f, (state,), options


@remedy("donation-ignored", "donated_batch")
def batch_not_donated(mesh):
    args = mlp(mesh, (), ()), on(mesh, (8 * B, D), "data")
    return sgd(loss), args, {"carry": 1, "jit": {"donate_argnums": 0}}


@remedy("donation-ignored", "donated_for_another_sharding", "peak")
def donated_for_the_same_sharding(mesh):
    jit = {"donate_argnums": 0, "out_shardings": to(mesh, "data")}
    return lambda x: x + 1, (on(mesh, (B, 2 * F), "data"),), {"jit": jit}


@remedy("donated-twice", "an_average_that_starts_as_the_parameters")
def average_with_memory_of_its_own(mesh):
    f, (state,), options = BAD["an_average_that_starts_as_the_parameters"].build(mesh)
    return f, ({**state, "ema": jnp.copy(state["ema"])},), options
