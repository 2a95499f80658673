"""Rules for errors inside shard_map: axis names, specs, varying values.

`Rule` documents the fields.
"""

from ..read import innermost
from .rule import Rule

JIT = "02_jit_sharding"
MODES = "05_three_modes"


def _calls(names: str) -> str:
    """A pattern for the innermost line of the reader's: it calls one of `names`.

    A line that begins with assert is the reader's own assertion.
    """
    return innermost(rf":[\w<>]+: (?!assert\b)[^\n]*\b(?P<op>{names})\(")


SUBJECT = "Writing code for shard_map"
RULES = (
    # Axis names and collectives.
    Rule(
        code="axis-index-under-jit",
        raised=("NameError",),
        patterns=(
            r"^Found an unbound axis name: (?P<axis>.+?)\. To fix this, please call"
            r" axis_index under",
        ),
        says="Found an unbound axis name: AXIS. To fix this, please call axis_index"
        " under jax.shard_map",
        means="No axis named {axis!r} exists where this runs. Under jit the program is"
        " written for the global array, and no device has an index.",
        instead="i = jnp.arange(x.shape[0])  # under jit: the index in the global"
        " array\n"
        "jax.shard_map(f, mesh=mesh, ...)  # axis_index inside f",
        chapter=JIT,
    ),
    Rule(
        code="unbound-axis",
        raised=("NameError",),
        patterns=(
            r"^Found an unbound axis name: (?P<axis>.+?)\. To fix this, please call",
            r"^unbound axis name: (?P<axis>\S+)",
        ),
        says="Found an unbound axis name: AXIS. To fix this, please call psum under"
        " jax.shard_map",
        means="No axis named {axis!r} exists where this runs. jit and set_mesh bind"
        " none: under jit an array is the global array, and its mean needs no"
        " collective.",
        instead="loss = x.mean()  # under jit: the mean over all devices\n"
        "jax.pmap(step, axis_name={axis!r})  # under pmap; in shard_map, the mesh's"
        " name",
        chapter=JIT,
    ),
    Rule(
        code="wrong-axis-in-shard-map",
        raised=("AssertionError",),
        patterns=(r"^$",),
        where=_calls("psum|pmean|pmax|pmin|ppermute|pshuffle|all_to_all|pcast"),
        says="(no message), on a line that calls a collective",
        means="Inside shard_map, {op} names an axis that the mesh does not have."
        " JAX has no words for it.",
        instead="lax.{op}(x, mesh.axis_names[0])  # one of the mesh's own names",
        chapter=JIT,
    ),
    Rule(
        code="collective-over-mixed-axes",
        raised=("ValueError",),
        patterns=(
            r"^jax\.lax\.(?P<op>\w+) can only accept axis_name which corresponds to one"
            r" of varying.*Got input type: (?P<type>\S+), axes: (?P<axes>\(.*?\)) and",
        ),
        says="jax.lax.OP can only accept axis_name which corresponds to one of"
        " varying, unreduced, reduced or invarying state. Got TYPE, axes: AXES",
        means="{op} sums over {axes}, and {type} differs along some of them only"
        " (V: names those).",
        instead="lax.{op}(x, 'data')  # the axes along which x differs\n"
        "x = lax.pcast(x, 'model', to='varying')  # or make it differ along all",
        chapter=MODES,
    ),
    Rule(
        code="all-to-all-size",
        raised=("ValueError",),
        patterns=(
            r"^all_to_all requires the size of the mapped axis axis_name to equal"
            r" x\.shape\[split_axis\], but they are (?P<parts>\d+) and (?P<size>\d+)",
            r"^The size of all_to_all split_axis \((?P<size>\d+)\) has to be divisible"
            r" by the size of the named axis \S+ \((?P<parts>\d+)\)",
        ),
        says="all_to_all requires the size of the mapped axis to equal"
        " x.shape[split_axis], but they are PARTS and SIZE",
        means="all_to_all splits one dimension of each shard into {parts} pieces, one"
        " per device, and that dimension has size {size}.",
        instead="y = lax.all_to_all(x, 'x', split_axis, concat_axis, tiled=True)  #"
        " {parts} must divide x.shape[split_axis]",
        chapter=MODES,
    ),
    Rule(
        code="scatter-size",
        raised=("ValueError",),
        patterns=(
            r"reduce_scatter operand scatter dimension size (?P<size>\d+) must"
            r" (?:be divisible by shard_count|match shard count) (?P<parts>\d+)",
        ),
        says="reduce_scatter operand scatter dimension size SIZE must be divisible"
        " by PARTS",
        means="psum_scatter leaves each of {parts} devices its part of the sum, and"
        " the dimension of {size} does not divide so.",
        instead="y = lax.psum_scatter(x, 'x', scatter_dimension=d, tiled=True)  #"
        " {parts} must divide x.shape[d]",
        chapter=MODES,
    ),
    Rule(
        code="ppermute-pairs",
        raised=("ValueError",),
        patterns=(r"^ppermute sources and destinations must be unique",),
        says="ppermute sources and destinations must be unique",
        means="ppermute sends each device's shard to one other device, and in its"
        " pairs a device appears twice as source or as destination.",
        instead="n = lax.axis_size('x')\n"
        "y = lax.ppermute(x, 'x', [(i, (i + 1) % n) for i in range(n)])",
        chapter=MODES,
    ),
    Rule(
        code="ppermute-numbers",
        raised=("IndexError",),
        patterns=(r"^(?:list|tuple) index out of range",),
        where=_calls("ppermute"),
        says="list (or tuple) index out of range, on a line that calls ppermute",
        means="A pair names a device that the axis does not have: devices count"
        " from 0 along the axis.",
        instead="n = lax.axis_size('x')  # numbers 0 to n - 1\n"
        "y = lax.ppermute(x, 'x', [(i, (i + 1) % n) for i in range(n)])",
        chapter=MODES,
    ),
    # Calling shard_map.
    Rule(
        code="shard-map-old-keyword",
        raised=("TypeError",),
        patterns=(
            r"^shard_map\(\) got an unexpected keyword argument"
            r" '(?P<name>check_rep|auto)'",
        ),
        says="shard_map() got an unexpected keyword argument 'NAME'",
        means="{name} was an argument of jax.experimental.shard_map. Today"
        " check_rep is check_vma, and auto= is axis_names=, the axes that are manual.",
        instead="jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=...,"
        " check_vma=True, axis_names={{'data'}})",
        chapter=MODES,
    ),
    Rule(
        code="shard-map-call",
        raised=("TypeError",),
        patterns=(
            r"^shard_map\(\) takes from 0 to 1 positional arguments",
            r"^shard_map\(\) missing \d required keyword-only argument",
        ),
        says="shard_map() takes from 0 to 1 positional arguments, or is missing a"
        " keyword-only argument",
        means="jax.shard_map takes the function first and the rest by name;"
        " out_specs is always needed.",
        instead="jax.shard_map(f, mesh=mesh, in_specs=P('x'), out_specs=P('x'))",
        chapter=MODES,
    ),
    Rule(
        code="shard-map-keyword-arguments",
        raised=("TypeError",),
        patterns=(
            r"^_shard_map\.<locals>\.wrapped\(\) got an unexpected keyword argument"
            r" '(?P<name>\w+)'",
        ),
        says="_shard_map.<locals>.wrapped() got an unexpected keyword argument 'NAME'",
        means="in_specs belong to positions, so what shard_map makes is called by"
        " position.",
        instead="f({name})  # in place of f({name}={name})",
        chapter=MODES,
    ),
    Rule(
        code="shard-map-without-mesh",
        raised=("ValueError",),
        patterns=(r"^The context mesh cannot be empty\. Use 'jax\.set_mesh",),
        says="The context mesh cannot be empty",
        means="shard_map has no mesh: none was given, and none is set.",
        instead="jax.shard_map(f, mesh=mesh, in_specs=..., out_specs=...)",
        chapter=MODES,
    ),
    Rule(
        code="axis-names-argument",
        raised=("TypeError", "ValueError"),
        patterns=(
            r"^jax\.shard_map requires axis_names=(?P<axes>frozenset\(.*?\)) to be a"
            r" subset",
            r"^'axis_names' argument of shard_map should be of type .* Got type:"
            r" (?P<axes><class '.*?'>)",
        ),
        says="shard_map requires axis_names to be a subset of mesh.axis_names, or"
        " to be a set",
        means="axis_names is a set of the mesh's own names, those over which the"
        " function gets a shard. Here it is {axes}.",
        instead="jax.shard_map(f, mesh=mesh, axis_names={{'data'}}, in_specs=...,"
        " out_specs=...)",
        chapter=MODES,
    ),
    Rule(
        code="spec-axis-is-not-manual",
        raised=("ValueError",),
        patterns=(
            r"^shard_map (?P<argument>in_specs|out_specs) argument must refer to an"
            r" axis"
            r" marked as manual \((?P<axes>frozenset\(.*?\))\), but: .*? refers to"
            r" '(?P<axis>.+?)'",
        ),
        says="shard_map ARGUMENT must refer to an axis marked as manual (AXES), but"
        " refers to AXIS",
        means="{argument} names {axis!r}, and this shard_map is manual along {axes}"
        " only: the mesh has no such axis, or axis_names leaves it out. {near}",
        instead="P({first!r})  # in {argument}: an axis of the mesh and of axis_names",
        chapter=MODES,
    ),
    Rule(
        code="specs-are-not-P",
        raised=("TypeError",),
        patterns=(
            r"^shard_map (?P<argument>\w+) argument must be a pytree of"
            r" 'jax\.sharding\.PartitionSpec' instances, but: \S+ is (?P<value>.*?) of"
            r" type",
            r"^(?P<argument>\w+) leaf specifications are expected to be PartitionSpec"
            r" instances or None, but got (?P<value>.{1,200})",
        ),
        says="ARGUMENT must be a pytree of PartitionSpec instances, but got VALUE",
        means="In {argument} stands {value}, which is no PartitionSpec. Names"
        " become one inside P(...); shard_map takes the spec without its mesh.",
        instead="P('data')  # in place of {value}",
        chapter=MODES,
    ),
    Rule(
        code="output-has-too-few-dimensions",
        raised=("ValueError",),
        patterns=(
            r"given an out_specs entry which is too long .*? out_specs\S* is"
            r" (?P<spec>P\(.*?\)) which has length \d+, but (?P<what>.{1,80}?) has"
            r" shape"
            r" (?P<type>\S+), which has rank (?P<rank>\d+)",
        ),
        says="out_specs entry SPEC is too long to be compatible with an output of"
        " rank RANK",
        means="The function gives {type}, which has {rank} dimensions, and {spec}"
        " concatenates shards along a dimension that does not exist.",
        instead="return v.sum()[None]  # one number a device, glued by P('x')\n"
        "return lax.psum(v.sum(), 'x')  # or one sum, with out_specs=P()",
        chapter=MODES,
    ),
    Rule(
        code="output-may-differ",
        raised=("ValueError",),
        patterns=(
            r"given out_specs which require replication .*? out_specs\S* is"
            r" (?P<spec>P\(.*?\)) which implies .*? replicated across mesh ax[ie]s"
            r" (?P<axes>.*?), but could not infer",
        ),
        says="out_specs SPEC requires replication across mesh axis AXES, which"
        " can't be statically inferred",
        means="{spec} promises that all devices along {axes} give the same value,"
        " and nothing in the function makes them so. check_vma=False would hide that"
        " and return one device's value.",
        instead="return lax.psum(v.sum(), {axes_code})  # makes it the same\n"
        "out_specs=...  # or name {axes} in it: the shards are concatenated",
        chapter=MODES,
    ),
    Rule(
        code="inputs-differ-from-in-specs",
        raised=("ValueError",),
        patterns=(
            r"^in_specs passed to shard_map: (?P<spec>P\(.*?\)) does not match the"
            r" specs"
            r" of the input: (?P<spec_have>P\(.*?\)) for arg: (?P<type>.*?)\. ",
        ),
        says="in_specs passed to shard_map: SPEC does not match the specs of the"
        " input: SPEC HAVE",
        means="On Explicit axes shard_map reshards nothing implicitly: the array is"
        " sharded as {spec_have}, and in_specs has {spec}.",
        instead="f(jax.reshard(x, {spec}))  # or leave in_specs out",
        chapter=MODES,
    ),
    Rule(
        code="closed-over-explicit-array",
        raised=("NotImplementedError",),
        patterns=(
            r"^Closing over inputs to shard_map where the input is sharded on"
            r" 'Explicit'"
            r" axes .* Got input with shape (?P<type>\S+?\[.*?\])",
        ),
        says="Closing over inputs to shard_map where the input is sharded on"
        " Explicit axes is not implemented",
        means="The function uses an array from outside, {type}, that is no argument:"
        " no spec states which shard of it a device gets.",
        instead="f = jax.shard_map(lambda v, w: v + w, in_specs=(P('x'), {type_spec}),"
        " out_specs=P('x'))  # w: that array\n"
        "y = f(v, w)",
        chapter=MODES,
    ),
    Rule(
        code="constraint-on-a-free-explicit-axis",
        raised=("ValueError",),
        patterns=(
            r"can only refer to Auto axes of the mesh\. Got spec=(?P<spec>P\(.*?\)) and"
            r" mesh=(?P<mesh>AbstractMesh\(.*?axis_types=\([^)]*\))",
        ),
        check="free explicit axes",
        says="The spec passed to with_sharding_constraint can only refer to Auto axes"
        " of"
        " the mesh. Got SPEC and MESH, with Manual and Explicit axes",
        means="Of {mesh}, this shard_map takes only some axes; the others stay Explicit"
        " inside. A sharding along those is changed by jax.reshard, as outside.",
        instead="y = jax.reshard(y, {spec})  # inside, in place of the constraint",
        chapter=MODES,
    ),
    Rule(
        code="auto-axis-in-a-manual-type",
        raised=("ValueError",),
        patterns=(
            r"^Axes mentioned in 'manual_axis_type' field .* with axis: (?P<axis>\S+)"
            r" of"
            r" type",
            r"^pvary is a invariant->variant collective.* Got axes=\('(?P<axis>\w+)'",
        ),
        says="Axes mentioned in manual_axis_type … with axis: AXIS of type Auto",
        means="Two causes: inside shard_map a sharding names the axis {axis!r}, which"
        " the"
        " shard_map takes; or jax.vmap(spmd_axis_name={axis!r}) maps a shard_map, in"
        " which a value from outside is closed over or replicated.",
        instead="y = f(x)  # a constraint: outside of shard_map\n"
        "y = jax.vmap(f)(x)  # a vmap: without spmd_axis_name",
        chapter=MODES,
    ),
    Rule(
        code="constraint-on-a-manual-axis",
        raised=("ValueError",),
        patterns=(
            r"can only refer to Auto axes of the mesh\. Got spec=(?P<spec>P\(.*?\)) and"
            r" mesh=.*?axis_types=\([^)]*Manual",
            r"^pspec (?P<spec>P\(.*?\)) contains a manual axes",
        ),
        says="The spec passed to with_sharding_constraint can only refer to Auto"
        " axes of the mesh; its axes are Manual",
        means="Inside shard_map (and pmap) an axis is manual: the function works on"
        " one shard, and a sharding that names the axis has no meaning there ({spec}).",
        instead="y = f(x)  # constrain outside of shard_map, or\n"
        "jax.shard_map(f, axis_names={{'data'}}, ...)  # leaves 'model' free inside",
        chapter=MODES,
    ),
)
