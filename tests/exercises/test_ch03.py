"""Chapter 3: its checks, judged by right and wrong answers."""

import numpy as np
from jax.sharding import AxisType, Mesh

from spmd_exercises._setting import devices

from .judging import YES, Answers, AnswersAreJudged, imports


class TestChapter3(AnswersAreJudged):
    pass


def given():
    """What the chapter's cells have made where its answers stand."""

    def make_mesh(sizes, names):
        auto = (AxisType.Auto,) * len(names)
        return Mesh(np.array(devices(8)).reshape(sizes), names, axis_types=auto)

    return imports() | {
        "Mesh": Mesh,
        "devices": devices(8),
        "make_mesh": make_mesh,
        "mesh": make_mesh((4, 2), ("data", "model")),
    }


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
                "Entry 0 of the spec shards dimension 0",
            ),
            (
                "shard_shape = (5, 3)\nrows_of_3 = (0, 5)\ncolumns_of_3 = (9, 12)",
                "rows_of_3 is (0, 5). Look for device 3",
            ),
            (
                "shard_shape = (5, 3)\nrows_of_3 = (5, 10)\ncolumns_of_3 = (9, 12)",
                "columns_of_3 is (9, 12). Look for device 3",
            ),
            (
                "shard_shape = (10, 12)\nrows_of_3 = (0, 10)\ncolumns_of_3 = (0, 12)",
                "shard_shape is (10, 12)",
            ),
            (
                "shard_shape = (5, 3)\nrows_of_3 = (5, 9)\ncolumns_of_3 = (3, 5)",
                "rows_of_3 is (5, 9)",
            ),
            (
                YES + "shard_shape = rows_of_3 = columns_of_3 = Yes()",
                "has to be two numbers",
            ),
            (
                YES + "shard_shape = rows_of_3 = columns_of_3 = (Yes(), Yes())",
                "is not a number",
            ),
            (
                "shard_shape = (5.5, 3.9)\nrows_of_3 = (5, 10)\ncolumns_of_3 = (3, 6)",
                "shard_shape is (5.5, 3.9)",
            ),
            (  # the last row and column, in place of the end of the range
                "shard_shape, rows_of_3, columns_of_3 = (5, 3), (5, 9), (3, 5)",
                "rows_of_3 is (5, 9)",
            ),
            ('shard_shape = rows_of_3 = columns_of_3 = "53"', "two numbers"),
            ("shard_shape = rows_of_3 = columns_of_3 = None", "None, but has to be"),
            (
                "shard_shape = (5, 3)\nrows_of_3 = columns_of_3 = (True, 3)",
                "not a number",
            ),
            (
                "shard_shape = (5, 3)\n"
                "rows_of_3, columns_of_3 = range(5, 10), range(3, 6)",
                "range(5, 10), but has to be two numbers",
            ),
            (
                "shard_shape = (5, float('nan'))\n"
                "rows_of_3, columns_of_3 = (5, 10), (3, 6)",
                "(5, nan)",
            ),
            (  # the shard of device 3 with the two axes swapped
                "shard_shape, rows_of_3, columns_of_3 = (5, 3), (0, 5), (3, 6)",
                "rows_of_3 is (0, 5)",
            ),
        ],
    ),
    "3.2": Answers(
        right=[
            'column_spec = P("model", None)',
            'column_spec = P(("model",))',
            "column_spec = jax.P(mesh.axis_names[1])",
            'column_spec = NamedSharding(mesh, P("model")).spec',
            # an entry without an axis
            "column_spec = P('model', ())",
        ],
        wrong=[
            ('column_spec = P("data")', "have the same shard"),
            ("column_spec = P()", "have the same shard"),
            ('column_spec = P(None, "model")', "half of the rows"),
            ('column_spec = P(("data", "model"))', "do not divide"),
            ('column_spec = ("model", None)', "is not a P(...)"),
            ('column_spec = NamedSharding(mesh, P("model"))', "is not a P(...)"),
            ('column_spec = P("column")', "has no axis"),
            ('column_spec = P("model", None, None)', "3 entries"),
            ('column_spec = P("model", "data")', "have the same shard"),
            ("column_spec = P(P.UNCONSTRAINED)", "UNCONSTRAINED leaves"),
            # parts of a sum are not the same shard
            (
                'column_spec = P("model", unreduced={"data"})',
                "would have a partial sum",
            ),
            (YES + "column_spec = Yes()", "is not a P(...)"),
        ],
    ),
    "3.3": Answers(
        right=[
            "holders = [7, 5]",
            "holders = jnp.array([5, 7])",
            "holders = (d for d in (5.0, np.int64(7)))",
            "holders = {devices[5], devices[7]}",
            "holders = {d.id for d, i in NamedSharding("
            'make_mesh((2, 2, 2), ("a", "b", "c")), P(("c", "a"))'
            ").devices_indices_map((16,)).items() if i[0].start <= 13 < i[0].stop}",
        ],
        wrong=[
            ("holders = {7}", "too few"),
            ("holders = {6, 7}", "not all of these have row 13"),
            ("holders = {3, 7}", "not all of these have row 13"),
            ("holders = {1, 3}", "not all of these have row 13"),
            ("holders = {1, 3, 5, 7}", "too many"),
            ("holders = set(range(8))", "too many"),
            ("holders = {13}", "too few"),
            ("holders = 5", "a set of device numbers"),
            ('holders = "57"', "a set of device numbers"),
            ('holders = {"5", "7"}', "is not a number"),
            (  # the devices of a block as one thing
                "seen = spmd.sharding((16,), P(('c', 'a')),"
                " mesh={'a': 2, 'b': 2, 'c': 2})\n"
                "holders = [who for block, who in seen.owners.items()"
                " if block == (3,)]",
                "(5, 7) is not a number",
            ),
            ("holders = {(1, 0, 1), (1, 1, 1)}", "is not a number"),
            ("holders = {5: True, 7: True}", "a set of device numbers"),
            ("holders = np.array([[5, 7]])", "holders has shape (1, 2)"),
            ("holders = None", "None, but has to be"),
            ("holders = [5, float('nan')]", "not all of these"),
            (YES + "holders = [Yes(), Yes()]", "is not a number"),
            ("holders = set()", "too few"),
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
            ('cache_spec = P("data", None, "model")', "the spec not use"),
            ("cache_spec = P()", "the spec not use"),
            ('cache_spec = P("data")', "the spec not use"),
            ('cache_spec = P(None, ("data", "seq", "model"))', "64 of 512 positions"),
            ('cache_spec = P(("data", "seq", "model"))', "do not divide"),
            ('cache_spec = P("data", None, "data")', "can shard only one"),
            (
                'cache_spec = P("data", None, "model", unreduced={"seq"})',
                "would have a partial sum",
            ),
            ('cache_spec = P("data", None, "heads")', "has no axis"),
            ('cache_spec = P("data", None, ("model", "seq"))', "do not divide"),
            ("cache_spec = None", "cache_spec: None is not a P(...)"),
            ('cache_spec = ("data", None, "model", "seq")', "is not a P(...)"),
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
            # a callable object
            "class Largest:\n"
            "    def __call__(self, shape, axis, mesh):\n"
            "        n = mesh.devices.shape[mesh.axis_names.index(axis)]\n"
            "        sizes = np.array([s * (s % n == 0) for s in shape])\n"
            "        if not sizes.any():\n"
            "            return P()\n"
            "        return P(*[None] * int(sizes.argmax()), axis)\n"
            "spec_for = Largest()",
        ],
        wrong=[
            (  # a dimension of 8 or more only
                RULE + "    n = mesh.shape[axis]\n"
                "    fits = [s if s % n == 0 and s >= 8 else 0 for s in shape]\n"
                "    return P(*[None] * fits.index(max(fits)), axis) if any(fits) else"
                " P()",
                "which of these is the largest",
            ),
            (  # the names of one mesh, whatever the argument
                RULE + "    n = mesh.shape[axis]\n"
                "    fits = [s if s % n == 0 else 0 for s in shape]\n"
                "    name = 'data' if axis == mesh.axis_names[0] else 'model'\n"
                "    d = fits.index(max(fits)) if any(fits) else None\n"
                "    return P() if d is None else P(*[None] * d, name)",
                "which of these is the largest|has no axis",
            ),
            (  # a lookup of the chapter's two axes
                RULE + "    n = mesh.shape.get('data' if axis == 'data' else 'model')\n"
                "    fits = [s if s % n == 0 else 0 for s in shape]\n"
                "    d = fits.index(max(fits)) if any(fits) else None\n"
                "    return P() if d is None else P(*[None] * d, axis)",
                "TypeError",
            ),
            (  # the chapter's mesh, whatever the argument
                RULE + "    n = globals()['mesh'].shape.get(axis, 2)\n"
                "    fits = [s if s % n == 0 else 0 for s in shape]\n"
                "    d = fits.index(max(fits)) if any(fits) else None\n"
                "    return P() if d is None else P(*[None] * d, axis)",
                "which of these is the largest|do not divide",
            ),
            (  # a power of two divides by an axis of 3 in no way
                RULE + "    n = mesh.shape[axis]\n"
                "    fits = [0 if s & (n - 1) else s for s in shape]\n"
                "    d = fits.index(max(fits)) if any(fits) else None\n"
                "    return P() if d is None else P(*[None] * d, axis)",
                "which of these is the largest|do not divide",
            ),
            (RULE + "    return None", "the mesh {'data': 4, 'model': 2}: None is not"),
            ('spec_for = P("data")', "has to be a function"),
            (RULE + "    return [None] * len(shape)", "is not a P(...)"),
            (RULE + "    return P()", "which of these is the largest"),
            (RULE + "    return P(axis)", "which of these is the largest"),
            (  # the first that divides, not the largest
                RULE + "    for d, size in enumerate(shape):\n"
                "        if size % mesh.shape[axis] == 0:\n"
                "            return P(*[None] * d, axis)\n"
                "    return P()",
                "which of these is the largest",
            ),
            (  # the largest, which need not divide
                RULE + "    d = shape.index(max(shape)) if shape else 0\n"
                "    ok = shape and shape[d] % mesh.shape[axis] == 0\n"
                "    return P(*[None] * d, axis) if ok else P()",
                "which of these is the largest",
            ),
            (  # eight devices in place of the axis
                RULE + "    fits = [s if s % 8 == 0 else 0 for s in shape]\n"
                "    if not any(fits):\n"
                "        return P()\n"
                "    return P(*[None] * fits.index(max(fits)), axis)",
                "which of these is the largest",
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
                "is not a P(...)",
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
                "do not divide|which of these is the largest",
            ),
            (  # a scalar has no dimension to take the largest of
                RULE + "    n = mesh.shape[axis]\n"
                "    best = max(s for s in shape if s % n == 0)\n"
                "    return P(*[None] * shape.index(best), axis)",
                "ValueError",
            ),
            (  # the largest dimension or none
                "def spec_for(shape, axis, mesh):\n"
                "    d = int(np.argmax(shape)) if shape else 0\n"
                "    return P(*[None] * d, axis) if shape and shape[d] % "
                "mesh.shape[axis] == 0 else P()",
                "(12, 14)",
            ),
        ],
    ),
}
