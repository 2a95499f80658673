"""Rules for errors of placing arrays: specs, sizes, what device_put takes.

`Rule` documents the fields.
"""

from .rule import Rule

MESH = "03_mesh_and_partitionspec"

SUBJECT = "Writing a spec, placing an array"
RULES = (
    # Specs.
    Rule(
        code="spec-where-no-mesh-is",
        raised=("ValueError",),
        patterns=(
            r"^Resource axis: .+? of (?P<spec>P\(.*\)) is not found in mesh: \(\)",
        ),
        says="Resource axis: AXIS of SPEC is not found in mesh: ()",
        means="{spec} is used with an empty mesh. Either no mesh is set where the code"
        " looks for one, or, on Explicit axes, a function of JAX loses the mesh"
        " inside (jax.scipy.special.hyp1f1, for one).",
        instead="NamedSharding(mesh, {spec})  # or under jax.set_mesh(mesh)\n"
        "y = jax.sharding.auto_axes(f, out_sharding={spec})(x)  # f: JAX's function",
        chapter=MESH,
    ),
    Rule(
        code="unknown-axis",
        raised=("ValueError",),
        patterns=(
            r"^Resource axis: (?P<axis>.+?) of (?P<spec>P\(.*\)) is not found in mesh:"
            r" (?P<axes>\(.*?\))",
        ),
        says="Resource axis: AXIS of SPEC is not found in mesh: AXES",
        means="{spec} names the mesh axis {axis!r}, and the mesh has {axes}. {near}",
        instead="NamedSharding(mesh, P({first!r}))  # a name from mesh.axis_names",
        chapter=MESH,
    ),
    Rule(
        code="axis-used-twice",
        raised=("DuplicateSpecError", "ValueError"),
        patterns=(
            r"can map every mesh axis to at most one positional dimension, but"
            r" (?P<spec>P\(.*\)) has duplicate entries for '(?P<axis>.+?)'",
        ),
        says="can map every mesh axis to at most one positional dimension, but SPEC"
        " has duplicate entries for AXIS",
        means="{spec} uses the axis {axis!r} twice. An axis can shard only one"
        " dimension.",
        instead="P({axis!r}, None)  # or another axis of the mesh for the second",
        chapter=MESH,
    ),
    Rule(
        code="forgot-P",
        raised=("AttributeError",),
        patterns=(r"^'(?P<kind>tuple|str|list|dict)' object has no attribute 'partit",),
        where=r"named_sharding\.py|NamedSharding\(",
        alone=True,
        says="'KIND' object has no attribute 'partitions'",
        means="NamedSharding takes a mesh and a PartitionSpec, and got a {kind} as"
        " its spec.",
        instead="NamedSharding(mesh, P('data', None))",
        chapter=MESH,
    ),
    Rule(
        code="named-sharding-arguments",
        raised=("AttributeError", "TypeError"),
        patterns=(
            r"^'P' object has no attribute 'size'",
            r"^__init__\(\): incompatible function arguments.*Invoked with types:"
            r" jax\.sharding\.NamedSharding",
        ),
        where=r"NamedSharding\(",
        alone=True,
        says="'P' object has no attribute 'size', or incompatible function"
        " arguments, of NamedSharding",
        means="NamedSharding takes two things in this order: a mesh, then a"
        " PartitionSpec. No spec at all is not P().",
        instead="NamedSharding(mesh, P('data'))\n"
        "NamedSharding(mesh, P())  # replicated on every device",
        chapter=MESH,
    ),
    Rule(
        code="spec-without-mesh",
        raised=("RuntimeError", "TypeError", "ValueError"),
        patterns=(
            r"^(?P<name>\w+) requires a non-empty mesh in context if you are passing"
            r" 'PartitionSpec's",
            r"^Please set a mesh via 'jax\.set_mesh' if a PartitionSpec is passed to"
            r" (?P<name>\w+)",
            r"^Using (?P<name>PartitionSpec) when you are not under a mesh context is"
            r" not allowed",
            r"^When specifying PartitionSpec to '(?P<name>ShapeDtypeStruct)', the"
            r" context mesh cannot be empty",
        ),
        says="NAME requires a non-empty mesh in context if you are passing"
        " PartitionSpecs, or: Please set a mesh via jax.set_mesh",
        means="A PartitionSpec alone has axis names and no devices. It needs a mesh:"
        " one beside it, or one that is set.",
        instead="NamedSharding(mesh, P('data'))  # in place of P('data'), or\n"
        "with jax.set_mesh(mesh): ...",
        chapter=MESH,
    ),
    Rule(
        code="spec-is-no-sharding",
        raised=("AttributeError", "TypeError"),
        patterns=(
            r"^'(?P<kind>P|str|tuple)' object has no attribute '_is_concrete'",
            r"^sharding should be an instance of 'jax\.sharding'\. Got .* of type"
            r" <class '(?P<kind>.*?)'>",
        ),
        says="sharding should be an instance of jax.sharding. Got a value of type KIND",
        means="Here belongs a sharding, and a {kind} is none, with or without a"
        " mesh that is set.",
        instead="x = jnp.zeros((16, 6), device=NamedSharding(mesh, P('data')))",
        chapter=MESH,
    ),
    Rule(
        code="device-put-target",
        raised=("ValueError",),
        patterns=(
            r"^'jax\.device_put' only accepts .* Received invalid value:"
            r" (?P<value>.{1,200})",
        ),
        says="jax.device_put only accepts a Sharding, a Device … Received invalid"
        " value: VALUE",
        means="device_put takes a sharding or a device, and {value} is neither: it"
        " does not state the sharding.",
        instead="x = jax.device_put(x, NamedSharding(mesh, P('data')))\n"
        "x = jax.device_put(x, jax.devices()[0])  # on one device",
        chapter=MESH,
    ),
    Rule(
        code="device-put-tree",
        raised=("ValueError",),
        patterns=(
            r"^device_put device specification must be a tree prefix of the"
            r" corresponding value;.*?subtree of type <class '(?P<kind>\w+)'>",
        ),
        says="device_put device specification must be a tree prefix of the"
        " corresponding value",
        means="The second argument is one sharding, or a tree of shardings built"
        " like the first. A {kind} is read as a tree, and the trees differ.",
        instead="x = jax.device_put(x, NamedSharding(mesh, P('data')))\n"
        "tree = jax.device_put(tree, {{'w': by_rows, 'b': replicated}})  # the same "
        "keys",
        chapter=MESH,
    ),
    Rule(
        code="too-many-entries",
        raised=("ValueError", "AssertionError"),
        patterns=(
            r"incompatible with its sharding annotation .*?spec=(?P<spec>P\(.*?\))"
            r"(?:, memory_kind=\w+)?\): Sharding .* rank at least \d+, but was applied"
            r" to a value of rank (?P<rank>\d+)",
            r"given an in_specs entry which is too long .*? in_specs\S* is"
            r" (?P<spec>P\(.*?\)) which has length \d+, .*?has rank (?P<rank>\d+)",
            r"^Length of sharding\.spec \(\d+\) must be equal to aval's ndim"
            r" \((?P<rank>\d+)\)\. Got sharding\.spec (?P<spec>P\(.*?\)), aval",
            r"^\((?P<rank>\d+), (?P<spec>P\(.*\))\)$",
        ),
        says="SPEC is only valid for values of rank at least N, but was applied to"
        " a value of rank RANK",
        means="{spec} has more entries than an array of rank {rank} has dimensions."
        " A spec for a whole tree must fit every leaf, biases and labels too.",
        instead="NamedSharding(mesh, {shorter})  # at most {entries}\n"
        "{{'w': P(None, 'model'), 'b': P('model')}}  # in a tree, one spec a leaf",
        chapter=MESH,
    ),
    Rule(
        code="spec-longer-than-shape",
        raised=("IndexError",),
        patterns=(r"^list index out of range",),
        where=r"named_sharding_to_xla_hlo_sharding",
        says="list index out of range, in named_sharding_to_xla_hlo_sharding",
        means="The sharding's spec has more entries than the array has dimensions.",
        instead="x = jnp.zeros(8, device=NamedSharding(mesh, P('data')))  # one each",
        chapter=MESH,
    ),
    Rule(
        code="unconstrained-not-here",
        raised=("KeyError", "ValueError"),
        patterns=(
            r"^Unconstrained dims are not allowed when passed to (?P<name>\w+)",
            r"^'?(?P<name>UNCONSTRAINED)'?$",
        ),
        says="Unconstrained dims are not allowed when passed to NAME",
        means="P.UNCONSTRAINED leaves a dimension to the compiler. It is for"
        " with_sharding_constraint; where an array is placed, every dimension must be"
        " stated.",
        instead="P('data', None)  # here\n"
        "y = lax.with_sharding_constraint(y, NamedSharding(mesh, P('data',"
        " P.UNCONSTRAINED)))",
        chapter="04_computation_follows_data",
    ),
    # Sizes.
    Rule(
        code="not-divisible",
        raised=("IndivisibleError", "ValueError"),
        patterns=(
            r"spec=(?P<spec>P\((?!'_internal_pmap).*?\))(?:, memory_kind=\w+)?\)"
            r" implies"
            r" that array axis (?P<dim>\d+) is partitioned (?P<parts>\d+) times, but"
            r" the dimension size is (?P<size>\d+) \(full shape: (?P<shape>\(.*?\))",
            r"spec=(?P<spec>P\(.*?\))(?:, memory_kind=\w+)?\), which implies that the"
            r" global size of its dimension (?P<dim>\d+) should be divisible by"
            r" (?P<parts>\d+), but it is equal to (?P<size>\d+) \(full shape:"
            r" (?P<shape>\(.*?\))",
            r"^Sharding spec (?P<spec>\(.*?\)) implies that array axis (?P<dim>\d+) is"
            r" partitioned (?P<parts>\d+) times, but does not evenly divide the"
            r" dimension size (?P<size>\d+)\. Got shape: (?P<shape>\(.*?\))",
            r"of shape \w+(?P<shape>\[[\d,]*\]), .*? in_specs\S* of value"
            r" (?P<spec>P\(.*?\)), which maps array axis (?P<dim>\d+) \(of size"
            r" (?P<size>\d+)\) to mesh .*?size (?P<parts>\d+)\), but",
        ),
        says="SPEC implies that array axis DIM is partitioned PARTS times, but the"
        " dimension size is SIZE",
        means="{spec} splits dimension {dim} of the shape {shape} into {parts} equal"
        " shards, and {size} is not divisible by {parts}.",
        instead="x = jnp.pad(x, {pads})  # to {more}; mask what is padding\n"
        "sharding = NamedSharding(mesh, P())  # or replicate this one",
        chapter=MESH,
    ),
    Rule(
        code="result-does-not-fit-the-mesh",
        raised=("IndivisibleError", "ValueError"),
        patterns=(
            r"^shape=(?P<blocks>\[[\d, ]*\]) is incompatible with"
            r" mesh_shape=OrderedDict\((?P<mesh>.*?)\): dim_size=\d+ is not divisible"
            r" by",
        ),
        says="shape=BLOCKS is incompatible with mesh_shape=MESH",
        means="The sharding that the compiler chose for a result can't be written on"
        " the mesh {mesh}. Either a constraint inside shards a dimension that is not"
        " divisible, or the arrays are on another mesh than the one that jax.set_mesh"
        " has set.",
        instead="x = jnp.pad(x, ...)  # so that the constrained dimension divides\n"
        "with jax.set_mesh(x.sharding.mesh): ...  # or: one mesh for all",
        chapter="08_it_ran_but",
    ),
    # Looking.
    # Building a global array.
    Rule(
        code="shard-of-another-shape",
        raised=("ValueError",),
        patterns=(
            r"^Expected shard shape (?P<shape>\(.*?\)) doesn't match the single device"
            r" array shape (?P<shape_have>\(.*?\))",
        ),
        says="Expected shard shape SHAPE doesn't match the single device array shape"
        " SHAPE HAVE",
        means="Each device's shard has the shape {shape} here, and one of"
        " {shape_have} was given. A callback returns the part that its index names.",
        instead="x = jax.make_array_from_callback(shape, sharding, lambda i: data[i])",
        chapter=MESH,
    ),
    Rule(
        code="shards-for-the-devices",
        raised=("TypeError", "ValueError"),
        patterns=(
            r"^Unsupported type for elements in 'arrays': <class '(?P<what>.*?)'>",
            r"^Expected \d+ per-device arrays .*?, but (?P<what>got \d+)",
            r"input arrays must be from distinct devices, but got"
            r" (?P<what>device IDs \[[\d, ]*\])",
            r"input arrays must have one shard each\. An argument array had"
            r" (?P<what>\d+ shard\(s\))",
        ),
        says="Unsupported type for elements in arrays: WHAT, or: Expected N per-device"
        " arrays, but WHAT",
        means="make_array_from_single_device_arrays takes one jax.Array for each"
        " device of this process, and each is placed on its own device. Here: {what}.",
        instead="shards = [jax.device_put(data[i], d) for d, i in"
        " sharding.addressable_devices_indices_map(shape).items()]\n"
        "x = jax.make_array_from_single_device_arrays(shape, sharding, shards)",
        chapter="16_many_hosts",
    ),
    Rule(
        code="process-local-data-shape",
        raised=("ValueError",),
        patterns=(
            r"^When calling 'make_array_from_process_local_data' on a single process,"
            r" .*? global_shape=(?P<shape>\(.*?\)) and",
            r"^Invalid host data, each dimension should match either global or process"
            r" shape\. .*? global_shape=(?P<shape>\(.*?\))",
        ),
        says="Invalid host data, each dimension should match either global or process"
        " shape … global_shape=SHAPE",
        means="global_shape={shape} does not fit what this process gives: the global"
        " shape is that of all processes' parts together. Left out, it follows from"
        " the part and the sharding.",
        instead="x = jax.make_array_from_process_local_data(sharding, mine)",
        chapter="16_many_hosts",
    ),
    Rule(
        code="visualize-rank",
        raised=("ValueError",),
        patterns=(r"^'visualize_sharding' only works for shapes with 1 and 2 dim",),
        says="`visualize_sharding` only works for shapes with 1 and 2 dimensions",
        means="JAX draws shardings of one and two dimensions only.",
        instead="spmd.draw(x)  # any rank",
        chapter="01_pmap_mnist",
    ),
    Rule(
        code="has-no-sharding",
        raised=("AttributeError",),
        patterns=(
            r"^'(?P<kind>numpy\.ndarray|ndarray|TypedNdArray)' object has no attribute"
            r" 'sharding'",
        ),
        says="'KIND' object has no attribute 'sharding'",
        means="A NumPy array is in the host's memory, on no device: it has no"
        " sharding.",
        instead="x = jax.device_put(x, NamedSharding(mesh, P('data')))",
        chapter=MESH,
    ),
)
