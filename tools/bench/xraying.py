"""What an X-ray adds to compiling, which it can't do without."""

from typing import Any

from tools.bench.clock import Part, duration, in_another_python, median_seconds, ratio


def xraying() -> Part:
    rows = [("program", "compile", "xray", "xray / compile", "text")]
    for timings in in_another_python("xraying", 8):
        compile_, xray = timings["compile"], timings["xray"]
        rows.append(
            (timings["name"], duration(compile_), duration(xray))
            + (ratio(xray, compile_), f"{timings['size'] / 1000:.0f} kB")
        )
    return "x-raying on eight CPU devices, seconds", rows, (1, 2, 3, 4), []


def measure() -> list[dict[str, Any]]:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from spmd_helpers import xray

    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))

    def on(shape: tuple[int, ...], *spec: Any) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    def layer(h: Any, w: Any) -> tuple[Any, None]:
        return h + jax.nn.relu(h @ w[0]) @ w[1], None

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.mean(jax.lax.scan(jax.checkpoint(layer), x, w)[0] ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))

    def unrolled(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            h = x
            for up, down in w:
                h = h + jax.nn.gelu(h @ up) @ down
            return jnp.mean(h**2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))

    x = on((64, 256), "data")
    layers = [(on((256, 256), None, "model"), on((256, 256), "model"))] * 100
    w = (
        on((8, 256, 1024), None, "data", "model"),
        on((8, 1024, 256), None, "model", "data"),
    )
    programs = {
        "one product": (lambda x, w: x @ w[0][0], (x, w)),
        "scanned FSDP × TP step": (step, (w, x)),
        "100 unrolled layers": (unrolled, (layers, x)),
    }
    results = []
    for name, (f, arguments) in programs.items():

        def compiled(f: Any = f, arguments: Any = arguments) -> str:
            jax.clear_caches()
            return jax.jit(f).lower(*arguments).compile().as_text()

        def xrayed(f: Any = f, arguments: Any = arguments) -> Any:
            jax.clear_caches()
            return xray(f, *arguments)

        results.append(
            {
                "name": name,
                "compile": median_seconds(compiled, seconds=8),
                "xray": median_seconds(xrayed, seconds=8),
                "size": len(compiled()),
            }
        )
    return results
