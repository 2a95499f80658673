"""Chapter 03: right and wrong answers."""

from . import Answers
from .ch01 import YES

RULE = "def spec_for(shape, axis, mesh):\n"

ANSWERS = {
    "3.1": Answers(
        right=[
            "shard_shape, rows_of_3, columns_of_3 = (5, 3), (5, 10), (3, 6)",
            "shard_shape = [10 // 2, 12 // 4]\n"
            "rows_of_3, columns_of_3 = [5, 10], np.array([3, 6])",
            "shard_shape = jnp.array([5, 3])\n"
            "rows_of_3, columns_of_3 = (5.0, 10.0), (np.int64(3), 6)",
            "index = turned.devices_indices_map((10, 12))[devices[3]]\n"
            "rows_of_3, columns_of_3 = [(i.start, i.stop) for i in index]\n"
            "shard_shape = turned.shard_shape((10, 12))".replace(
                "turned", 'NamedSharding(mesh, P("model", "data"))'
            ),
        ],
        wrong=[
            (
                "shard_shape = (2, 6)\nrows_of_3 = (2, 4)\ncolumns_of_3 = (6, 12)",
                "entry 0 of the spec cuts dimension 0",
            ),
            (
                "shard_shape = (5, 3)\nrows_of_3 = (0, 5)\ncolumns_of_3 = (9, 12)",
                "rows (0, 5): find device 3",
            ),
            (
                "shard_shape = (5, 3)\nrows_of_3 = (5, 10)\ncolumns_of_3 = (9, 12)",
                "columns (9, 12): find device 3",
            ),
            (
                "shard_shape = (10, 12)\nrows_of_3 = (0, 10)\ncolumns_of_3 = (0, 12)",
                "is not what a device holds",
            ),
            (
                "shard_shape = (5, 3)\nrows_of_3 = (5, 9)\ncolumns_of_3 = (3, 5)",
                "rows (5, 9)",
            ),
            (
                YES + "shard_shape = rows_of_3 = columns_of_3 = Yes()",
                "each is two numbers",
            ),
            (
                YES + "shard_shape = rows_of_3 = columns_of_3 = (Yes(), Yes())",
                "is not a number",
            ),
            (
                "shard_shape = (5.5, 3.9)\nrows_of_3 = (5, 10)\ncolumns_of_3 = (3, 6)",
                "is not what a device holds",
            ),
        ],
    ),
    "3.2": Answers(
        right=[
            'column_spec = P("model", None)',
            'column_spec = P(("model",))',
        ],
        wrong=[
            ('column_spec = P("data")', "hold the same block"),
            ("column_spec = P()", "hold the same block"),
            ('column_spec = P(None, "model")', "half of the rows"),
            ('column_spec = P(("data", "model"))', "do not divide"),
            ('column_spec = ("model", None)', "is not a PartitionSpec"),
            ('column_spec = NamedSharding(mesh, P("model"))', "is not a PartitionSpec"),
            ('column_spec = P("column")', "has no axis"),
        ],
    ),
    "3.3": Answers(
        right=[
            "holders = [7, 5]",
            "holders = jnp.array([5, 7])",
            "holders = {devices[5], devices[7]}",
            "holders = {d.id for d, i in NamedSharding("
            'make_mesh((2, 2, 2), ("a", "b", "c")), P(("c", "a"))'
            ").devices_indices_map((16,)).items() if i[0].start <= 13 < i[0].stop}",
        ],
        wrong=[
            ("holders = {7}", "holds copies"),
            ("holders = {6, 7}", "do not hold row 13"),
            ("holders = {3, 7}", "do not hold row 13"),
            ("holders = {1, 3}", "do not hold row 13"),
            ("holders = {1, 3, 5, 7}", "too many"),
            ("holders = set(range(8))", "too many"),
            ("holders = {13}", "holds copies"),
            ("holders = 5", "give a set"),
            ('holders = "57"', "give a set"),
            ('holders = {"5", "7"}', "give a set"),
            (  # the devices of a block as one thing
                "seen = spmd.sharding((16,), P(('c', 'a')),"
                " mesh={'a': 2, 'b': 2, 'c': 2})\n"
                "holders = [who for block, who in seen.owners.items()"
                " if block == (3,)]",
                "[(5, 7)]: give a set",
            ),
            ("holders = {(1, 0, 1), (1, 1, 1)}", "give a set"),
        ],
    ),
    "3.4": Answers(
        right=[
            'cache_spec = P(("seq", "data"), None, "model")',
            'cache_spec = P("data", None, "model", "seq")',
            'cache_spec = P("model", None, "data", "seq")',
            'cache_spec = P(None, None, "model", ("data", "seq"))',
            'cache_spec = P(None, None, None, ("data", "seq", "model"))',
        ],
        wrong=[
            ('cache_spec = P("data", "seq", "model")', "256 of 512 positions"),
            ('cache_spec = P("data", None, "model")', "saves nothing"),
            ("cache_spec = P()", "saves nothing"),
            ('cache_spec = P("data")', "saves nothing"),
            ('cache_spec = P(None, ("data", "seq", "model"))', "64 of 512 positions"),
            ('cache_spec = P(("data", "seq", "model"))', "do not divide"),
            ('cache_spec = P("data", None, "data")', "only once"),
            ('cache_spec = ("data", None, "model", "seq")', "is not a PartitionSpec"),
        ],
    ),
    "3.5": Answers(
        right=[
            RULE + "    n = mesh.shape[axis]\n"
            "    best = None\n"
            "    for d, size in enumerate(shape):\n"
            "        if size % n == 0 and (best is None or size > shape[best]):\n"
            "            best = d\n"
            "    if best is None:\n"
            "        return P()\n"
            "    return P(*[axis if d == best else None for d in range(len(shape))])",
            RULE + "    n = dict(mesh.shape)[axis]\n"
            "    good = [d for d in range(len(shape)) if shape[d] % n == 0]\n"
            "    spec = [None] * len(shape)\n"
            "    if good:\n"
            "        spec[max(good, key=lambda d: shape[d])] = (axis,)\n"
            "    return P(*spec)",
            RULE + "    for d in sorted(range(len(shape)), key=lambda d: -shape[d]):\n"
            "        spec = jax.P(*[None] * d, axis)\n"
            "        try:\n"
            "            spmd.sharding(shape, spec, mesh=mesh)\n"
            "            return spec\n"
            "        except spmd.NotDivisible:\n"
            "            continue\n"
            "    return jax.P(*[None] * len(shape))",
        ],
        wrong=[
            (RULE + "    return P()", "does not cut the largest"),
            (RULE + "    return P(axis)", "does not cut the largest"),
            (  # the first that divides, not the largest
                RULE + "    for d, size in enumerate(shape):\n"
                "        if size % mesh.shape[axis] == 0:\n"
                "            return P(*[None] * d, axis)\n"
                "    return P()",
                "does not cut the largest",
            ),
            (  # the largest, which need not divide
                RULE + "    d = shape.index(max(shape)) if shape else 0\n"
                "    ok = shape and shape[d] % mesh.shape[axis] == 0\n"
                "    return P(*[None] * d, axis) if ok else P()",
                "does not cut the largest",
            ),
            (  # eight devices in place of the axis
                RULE + "    fits = [s if s % 8 == 0 else 0 for s in shape]\n"
                "    if not any(fits):\n"
                "        return P()\n"
                "    return P(*[None] * fits.index(max(fits)), axis)",
                "does not cut the largest",
            ),
            (  # the last of several
                RULE + "    n, best = mesh.shape[axis], None\n"
                "    for d, size in enumerate(shape):\n"
                "        if size % n == 0 and (best is None or size >= shape[best]):\n"
                "            best = d\n"
                "    return P() if best is None else P(*[None] * best, axis)",
                "the first of them",
            ),
            (
                RULE + "    return NamedSharding(mesh, P(axis))",
                "is not a PartitionSpec",
            ),
            (  # the sizes of one mesh
                RULE + "    n = {'data': 4, 'model': 2}[axis]\n"
                "    fits = [s if s % n == 0 else 0 for s in shape]\n"
                "    if not any(fits):\n"
                "        return P()\n"
                "    return P(*[None] * fits.index(max(fits)), axis)",
                "do not divide",
            ),
            (  # the axis's place in one mesh
                RULE + "    n = 4 if axis == mesh.axis_names[0] else 2\n"
                "    fits = [s if s % n == 0 else 0 for s in shape]\n"
                "    if not any(fits):\n"
                "        return P()\n"
                "    return P(*[None] * fits.index(max(fits)), axis)",
                "do not divide|does not cut",
            ),
            (  # a scalar has no dimension to take the largest of
                RULE + "    n = mesh.shape[axis]\n"
                "    best = max(s for s in shape if s % n == 0)\n"
                "    return P(*[None] * shape.index(best), axis)",
                "ValueError",
            ),
        ],
    ),
}
