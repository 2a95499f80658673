"""The training step of chapter 14: layers of an MLP under FSDP or tensor parallelism.

The functions are those of the chapter's cells, so that the lines that a stored program
names are lines of the chapter.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def make_loss(mesh=None):
    def constrain(h, *entries):
        if mesh is None:  # the reference, on one device
            return h
        sharding = NamedSharding(mesh, P("data", *entries))
        return lax.with_sharding_constraint(h, sharding)

    def layer(h, w):
        hidden = jax.nn.relu(h @ w["w1"].astype(h.dtype))
        hidden = constrain(hidden, "model")
        out = hidden @ w["w2"].astype(h.dtype)
        return constrain(h + out), None

    def loss(params, x):
        h = lax.scan(layer, x, params)[0]
        return (h.astype(jnp.float32) ** 2).mean()

    return loss


def make_step(mesh=None):
    def adam(p, m, v, g):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        return p - 1e-4 * m / (jnp.sqrt(v) + 1e-8), m, v

    def step(params, m, v, x):
        grads = jax.grad(make_loss(mesh))(params, x)
        new = {name: adam(params[name], m[name], v[name], grads[name])
               for name in params}  # fmt: skip
        return tuple({name: new[name][i] for name in new} for i in range(3))

    return step


def two_axes(devices, data, model):
    return jax.make_mesh(
        (data, model),
        ("data", "model"),
        devices=devices[: data * model],
        axis_types=(AxisType.Auto,) * 2,
    )


def shardings(mesh, fsdp=True):
    d = "data" if fsdp else None
    return {"w1": NamedSharding(mesh, P(None, d, "model")),
            "w2": NamedSharding(mesh, P(None, "model", d))}  # fmt: skip


def shapes(mesh, fsdp=True, L=8, D=4096, F=16384, B=4096):
    put = shardings(mesh, fsdp)
    size = {"w1": (L, D, F), "w2": (L, F, D)}
    params = {
        name: jax.ShapeDtypeStruct(size[name], jnp.float32, sharding=put[name])
        for name in size
    }
    rows = NamedSharding(mesh, P("data"))
    return params, jax.ShapeDtypeStruct((B, D), jnp.bfloat16, sharding=rows)


def jitted_step(mesh, fsdp=True):
    return jax.jit(
        make_step(mesh),
        donate_argnums=(0, 1, 2),
        out_shardings=(shardings(mesh, fsdp),) * 3,
    )
