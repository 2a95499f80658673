"""Rules for errors of devices and meshes.

`Rule` documents the fields.
"""

from ..read import innermost
from .rule import Rule

MESH = "03_mesh_and_partitionspec"

SUBJECT = "Starting devices, making a mesh"
RULES = (
    # Devices.
    Rule(
        code="too-late-for-devices",
        raised=("RuntimeError",),
        patterns=(r"^jax_num_cpu_devices config should be updated before",),
        says="jax_num_cpu_devices config should be updated before backends are"
        " initialized",
        means="JAX already runs, and the number of its devices is fixed from its"
        " first use on.",
        instead="spmd.use_devices(8)  # restart the kernel, then call it first",
        chapter="01_pmap_mnist",
    ),
    Rule(
        code="no-such-backend",
        raised=("RuntimeError",),
        patterns=(
            r"^Unknown backend: '(?P<backend>\w+)' requested, .*present are: "
            r"(?P<there>[\w, ]+)",
            r"^Unknown backend (?P<backend>\w+)\. Available backends are "
            r"\[(?P<there>[^\]]*)\]",
        ),
        says="Unknown backend BACKEND requested; available are THERE",
        means="This machine, or the JAX installed on it, has no {backend}; it has"
        " {there}. Tests of shardings need none: CPU devices do.",
        instead="devices = spmd.use_devices(8)  # accelerators, or 8 CPU devices",
        chapter="01_pmap_mnist",
    ),
    Rule(
        code="devices-do-not-fill-the-shape",
        raised=("ValueError",),
        patterns=(
            r"^cannot reshape array of size (?P<count>\d+) into shape"
            r" (?P<shape>\(.*\))",
        ),
        where=innermost(r":[\w<>]+: [^\n]*\bdevices\b"),
        says="cannot reshape array of size COUNT into shape SHAPE, of jax.devices()",
        means="There are {count} devices here, and a mesh of shape {shape} has"
        " another number of places.",
        instead="devices = spmd.use_devices(8)  # first, in a fresh kernel\n"
        "mesh = jax.make_mesh((4, 2), ('data', 'model'))  # a product of {count}",
        chapter=MESH,
    ),
    Rule(
        code="mesh-too-large",
        raised=("ValueError",),
        patterns=(
            r"^Number of devices (?P<count>\d+) must (?:be >=|equal) the product of"
            r" mesh_shape (?P<shape>\(.*\))",
        ),
        says="Number of devices COUNT must be >= the product of mesh_shape SHAPE",
        means="A mesh has one device per position: {shape} needs as many devices as"
        " the product, and there are {count}.",
        instead="devices = spmd.use_devices(8)  # first, in a fresh kernel\n"
        "mesh = jax.make_mesh(sizes, names)  # sizes whose product is {count}",
        chapter=MESH,
    ),
    # Meshes.
    Rule(
        code="mesh-rank",
        raised=("ValueError",),
        patterns=(
            r"^Mesh requires the ndim of its first argument .* got devices\.ndim =="
            r" (?P<rank>\d+) and len\(axis_names\) == (?P<names>\d+)",
        ),
        says="Mesh requires the ndim of devices to equal the number of axis names,"
        " but got RANK and NAMES",
        means="A mesh needs one name for each dimension of its array of devices."
        " The array has {rank}, and there are {names} names.",
        instead="mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ('data',"
        " 'model'))\n"
        "mesh = jax.make_mesh((4, 2), ('data', 'model'))  # puts devices well",
        chapter=MESH,
    ),
    Rule(
        code="axis-types-count",
        raised=("ValueError",),
        patterns=(
            r"^Number of axis names should match the number of axis_types\. Got"
            r" axis_names=(?P<axes>\(.*?\)) and axis_types=(?P<types>\(.*\))",
        ),
        says="Number of axis names should match the number of axis_types",
        means="Each axis of a mesh has its own type. The axes are {axes}, the types"
        " {types}.",
        instead="jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))",
        chapter="05_three_modes",
    ),
    Rule(
        code="axis-types-kind",
        raised=("TypeError",),
        patterns=(
            r"^axis_types passed to Mesh must be of type .*AxisType'\. Got"
            r" (?P<types>.*?) of type",
        ),
        says="axis_types passed to Mesh must be of type jax.sharding.AxisType",
        means="An axis is Auto, Explicit or Manual: members of AxisType, not {types}.",
        instead="from jax.sharding import AxisType\n"
        "mesh = jax.make_mesh((8,), ('data',), axis_types=(AxisType.Auto,))",
        chapter="05_three_modes",
    ),
    Rule(
        code="make-mesh-arguments",
        raised=("TypeError",),
        patterns=(
            r"^make_mesh\(\) missing \d required positional arguments?: '?axis_",
        ),
        says="make_mesh() missing 1 required positional argument: 'axis_names'",
        means="A mesh is made from two tuples of one length: sizes, then names.",
        instead="mesh = jax.make_mesh((4, 2), ('data', 'model'))",
        chapter=MESH,
    ),
    Rule(
        code="mesh-from-a-number",
        raised=("TypeError",),
        patterns=(r"^'int' object is not iterable",),
        where=r"_canonicalize_axis_sizes",
        says="'int' object is not iterable, in make_mesh",
        means="A mesh's sizes are a tuple, for one axis too.",
        instead="mesh = jax.make_mesh((8,), ('data',))",
        chapter=MESH,
    ),
    Rule(
        code="abstract-mesh-has-no-devices",
        raised=("ValueError",),
        patterns=(r"^(?P<name>\w+) is not implemented for 'jax\.sharding\.Abstract",),
        says="NAME is not implemented for jax.sharding.AbstractMesh",
        means="An AbstractMesh has names and sizes and no devices, so no array can be"
        " placed on it.",
        instead="x = jax.device_put(x, NamedSharding(mesh, spec))  # mesh: a Mesh",
        chapter=MESH,
    ),
    Rule(
        code="set-mesh-argument",
        raised=("ValueError",),
        patterns=(
            r"^Expected mesh of type 'jax\.sharding\.(?P<want>\w+)'\. Got(?: type:)?"
            r" (?P<kind><class '.*?'>)",
        ),
        says="Expected mesh of type jax.sharding.WANT. Got KIND",
        means="Here belongs the {want} itself, and what was given is of type"
        " {kind}. A sharding's own mesh is its attribute `mesh`.",
        instead="with jax.set_mesh(x.sharding.mesh):\n    y = f(x)",
        chapter=MESH,
    ),
    Rule(
        code="set-mesh-inside-jit",
        raised=("ValueError",),
        patterns=(r"^'set_mesh' can only be used outside of 'jax\.jit'",),
        says="`set_mesh` can only be used outside of `jax.jit`",
        means="A mesh is part of how a function is compiled, so it is set before"
        " the function is called.",
        instead="with jax.set_mesh(mesh):\n"
        "    y = step(x)  # step is the jitted function",
        chapter=MESH,
    ),
)
