"""Rules for errors of Explicit axes, where a sharding is part of the type.

`Rule` documents the fields.
"""

from ..read import innermost
from .rule import Rule
from .varying import NO_LOOP

MODES = "05_three_modes"
TYPE = ("ShardingTypeError",)

_CARRY = (
    r"^(?P<loop>scan|while_loop) body function carry .*?[Tt]he input carry"
    r"(?: component)? (?P<name>\S+) has type (?P<type>\S+\[\S*\]) but the"
    r" corresponding output carry component has type (?P<type_out>\S+\[\S*\])"
)

SUBJECT = "Computing on Explicit axes"
RULES = (
    Rule(
        code="contraction-is-ambiguous",
        raised=TYPE,
        patterns=(
            r"^Contracting dimensions are sharded .* Got lhs_contracting_spec="
            r"(?P<left>\(.*?\)) and rhs_contracting_spec=(?P<right>\(.*\))",
            r"^dot_general requires contracting dimensions to have consistent sharding,"
            r" got (?P<left>\(.*?\)) and (?P<right>\(.*?\))\.",
        ),
        says="Contracting dimensions are sharded and it is ambiguous how the output"
        " should be sharded: LEFT and RIGHT",
        means="The contracted dimension is sharded, {left} on the left and {right} on"
        " the right. The result can be replicated (all-reduce) or sharded"
        " (reduce-scatter): state which.",
        instead="jnp.matmul(x, w, out_sharding=P('data', None))  # under"
        " jax.set_mesh\n"
        "mesh = jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * 2)  # or"
        " leave it to XLA",
        chapter=MODES,
    ),
    Rule(
        code="axis-twice-in-result",
        raised=TYPE,
        patterns=(
            r"^(?P<op>\w+) operation with inputs: (?P<types>.*?) produces an illegally"
            r" sharded result: (?P<type>\S+\])",
        ),
        says="OP operation with inputs: TYPES produces an illegally sharded result:"
        " TYPE",
        means="Both inputs of {op} are sharded over one axis, in different dimensions:"
        " {types}. The result can't use this axis twice. On Auto axes XLA would"
        " all-gather one of them, and every device along the idle axis would compute"
        " the same.",
        instead="w = jax.reshard(w, P(None, 'model'))  # another axis of the mesh, or"
        " P()\n"
        "y = jax.sharding.auto_axes(f, out_sharding=P('data'))(x)  # or leave f to XLA:"
        " x @ x.T, jnp.linalg.cholesky",
        chapter="07_redundant_compute",
    ),
    Rule(
        code="shardings-differ",
        raised=("ShardingTypeError", "ValueError"),
        patterns=(
            r"^(?P<op>\w+) got incompatible shardings for broadcasting:"
            r" (?P<types>\(.*\))",
            r"^All operands should have the same sharding\. (?P<op>Got) shardings"
            r" (?P<types>.*)",
            r"^(?P<op>dynamic_update_slice) operand sharding must be equal to update"
            r" sharding, got (?P<types>.*)",
            r"^Incompatible types for (?P<op>\w+) arguments: (?P<types>\S*@.*)",
        ),
        says="OP got incompatible shardings: TYPES",
        means="On Explicit axes JAX reshards nothing implicitly, and the inputs'"
        " shardings don't fit together: {types}.",
        instead="y = jax.reshard(y, jax.typeof(x).sharding.spec)  # under"
        " jax.set_mesh(mesh)",
        chapter=MODES,
    ),
    Rule(
        code="gather-is-ambiguous",
        raised=TYPE,
        patterns=(
            r"^Use '\.at\[\.\.\.\]\.get\(out_sharding=\)' to provide .* Got"
            r" operand=ShapedArray\((?P<type>.*?)\),"
            r" indices=ShapedArray\((?P<types>.*?)\)",
        ),
        says="Use .at[...].get(out_sharding=) to provide output PartitionSpec for"
        " the gather. Got operand=TYPE, indices=TYPES",
        means="Indexing takes elements of {type} at indices of {types}. The sharding"
        " of the result does not follow from these: state it.",
        instead="y = x.at[i].get(out_sharding=P('data', None))  # for x[i], under"
        " jax.set_mesh(mesh)\n"
        "y = jax.sharding.auto_axes(f, out_sharding=P('data'))(x, i)  # if f indexes: a"
        " function of JAX, a mask",
        chapter=MODES,
    ),
    Rule(
        code="scatter-is-ambiguous",
        raised=TYPE,
        patterns=(
            r"^Use '\.at\[\.\.\.\]\.set/add/mul/\.\.\.\(out_sharding=\)' to provide"
            r" .* Got operand=ShapedArray\((?P<type>.*?)\)",
        ),
        says="Use .at[...].set/add/mul/...(out_sharding=) to provide output"
        " PartitionSpec for the scatter. Got operand=TYPE",
        means="An update writes into an array of type {type}. The sharding of the"
        " result does not follow from the operands: state it.",
        instead="x.at[i].set(v, out_sharding=jax.typeof(x).sharding.spec)  # under"
        " jax.set_mesh(mesh)\n"
        "y = jax.sharding.auto_axes(f, out_sharding=P('data'))(x, i)  # if f updates:"
        " segment_sum, bincount, x.view",
        chapter=MODES,
        versions="0.12",
    ),
    Rule(
        code="reshape-is-ambiguous",
        raised=TYPE,
        patterns=(
            r"^This reshape is not supported\. .* Got operand type: (?P<type>.*?), new"
            r" sizes: (?P<shape>\(.*?\))",
        ),
        says="This reshape is not supported. Please specify the sharding of the"
        " output. Got operand type: TYPE, new sizes: SHAPE",
        means="A sharded dimension of {type} is split or merged into {shape}, and its"
        " sharding does not carry over: the axis does not divide the new first factor.",
        instead="x.reshape({shape}, out_sharding=P(...))  # one entry a new"
        " dimension\n"
        "# free where the mesh axis divides the first factor: heads before head_dim",
        chapter="12_attention",
    ),
    Rule(
        code="map-over-sharded-rows",
        raised=("ValueError",),
        patterns=(
            r"^0th dimension of leaf passed to 'jax\.lax\.map' should be replicated\."
            r" Got"
            r" (?P<type>[\w<>]+\[.*?\])",
        ),
        says="0th dimension of leaf passed to jax.lax.map should be replicated. Got"
        " TYPE",
        means="lax.map takes one slice of the first dimension after another, and that"
        " dimension is sharded in {type}. Rows that don't depend on each other need no"
        " loop.",
        instead="y = jax.vmap(f)(x)  # all rows at once, each device its own\n"
        "y = jax.shard_map(lambda x: lax.map(f, x), in_specs={type_spec},"
        " out_specs=...)(x)  # a loop on each device",
        chapter=MODES,
    ),
    Rule(
        code="scan-over-sharded-layers",
        raised=("ValueError",),
        patterns=(
            r"^0th dimension of all xs should be replicated\. Got (?P<spec>P\(.*?\))",
        ),
        says="0th dimension of all xs should be replicated. Got SPEC",
        means="scan and lax.map take one slice of the first dimension a step, and"
        " {spec} shards that dimension over devices: no step would have its slice at"
        " hand.",
        instead="P(None, 'data')  # stacked layers: shard within a layer\n"
        "y = jax.vmap(f)(x)  # rows that don't depend on each other: no lax.map",
        chapter="08_it_ran_but",
    ),
    Rule(
        code="vmap-over-a-sharded-axis",
        raised=("ValueError",),
        patterns=(
            r"^Unmapped values passed to vmap cannot be sharded along the mesh axis you"
            r" are vmapping over\. Got type: (?P<type>.*?), in_axes: .* axis:"
            r" (?P<axes>\(.*?\))",
        ),
        says="Unmapped values passed to vmap cannot be sharded along the mesh axis"
        " you are vmapping over. Got TYPE, axis: AXES",
        means="vmap maps a dimension that is sharded over {axes}, and an argument that"
        " is not mapped, {type}, is sharded over {axes} too.",
        instead="w = jax.reshard(w, P())  # replicated, then vmap",
        chapter=MODES,
    ),
    Rule(
        code="vmap-inputs-sharded-differently",
        raised=("ValueError",),
        patterns=(
            r"^Mapped away dimension of inputs passed to vmap should be sharded the"
            r" same\."
            r" Got inconsistent axis specs: (?:None vs )?(?P<axis>(?!None)[^\s.]+)",
        ),
        says="Mapped away dimension of inputs passed to vmap should be sharded the"
        " same."
        " Got inconsistent axis specs: AXIS vs None",
        means="vmap maps a dimension that is sharded over {axis!r} in one argument and"
        " not in another. Functions of JAX such as jnp.linalg.inv use vmap inside.",
        instead="w = jax.reshard(w, P({axis!r}))  # the mapped dimension, like the"
        " other\n"
        "y = jax.sharding.auto_axes(jnp.linalg.inv, out_sharding=P({axis!r}))(x)",
        chapter=MODES,
    ),
    Rule(
        code="repeat-needs-out-sharding",
        raised=("ValueError",),
        patterns=(r"^Please pass sharding to 'jnp\.(?P<op>\w+)' via 'out_sharding'",),
        says="Please pass sharding to jnp.OP via out_sharding parameter",
        means="How the result of {op} is sharded does not follow from its input on"
        " Explicit axes: you say it.",
        instead="y = jnp.{op}(x, 2, axis=0, out_sharding=P('data', None))  # under"
        " jax.set_mesh(mesh)",
        chapter=MODES,
    ),
    Rule(
        code="no-sharding-rule",
        raised=("NotImplementedError",),
        patterns=(
            r"^Explicit sharding inference for (?P<op>\w+) is not currently"
            r" implemented",
        ),
        says="Explicit sharding inference for OP is not currently implemented",
        means="JAX has no rule yet that gives the sharding of the result of {op} on"
        " Explicit axes. In Auto mode XLA chooses one.",
        instead="y = jax.sharding.auto_axes(lax.ragged_dot, out_sharding=P())(x, w,"
        " sizes)  # {op}: leave it to XLA",
        chapter=MODES,
    ),
    Rule(
        code="dimension-must-be-unsharded",
        raised=(*TYPE, "ValueError"),
        patterns=(
            r"^(?P<op>slicing|padding|dynamic_slice) on sharded dims .* Got input"
            r" type=(?P<type>\S+) and",
            r"cannot be sharded on the axis being (?P<op>\w+) over\. Got arr"
            r" type=(?P<type>\S+) and",
            r"^Input should be unsharded over the axis being (?P<op>\w+)\. Got input"
            r" type=(?P<type>\S+) and",
            r"^Arguments to (?P<op>\w+) must be unsharded over the sorting dimension\."
            r" Got arg sharding=.*?(?P<type>P\(.*?\))\)",
            r"^The input should be unsharded over the axis along which to compute the"
            r" (?P<op>\w+) values\. Got input type=(?P<type>\S+) and",
            r"^Cannot apply (?P<op>nonzero) over sharded axes .* with sharding"
            r" .*?spec=(?P<type>P\(.*?\))\)",
            r"^The input should be fully replicated when axis is not specified to"
            r" (?P<op>\w+)\. Got input type=(?P<type>\S+\])",
            r"^Operand cannot be sharded on dimension \d+ when the (?P<op>\w+) is"
            r" non-trivial\. Got input type: (?P<type>\S+) with",
        ),
        says="OP on sharded dims is not implemented. Got input TYPE",
        means="{op} works along a dimension that is sharded ({type}; @ names the"
        " axis). Each device would need its neighbors' shards, and on Explicit axes"
        " JAX communicates nothing implicitly.",
        instead="x = jax.reshard(x, P())  # gather first, under"
        " jax.set_mesh(mesh)\n"
        "y = jax.sharding.auto_axes(f, out_sharding=P('data'))(x)  # or leave f to XLA",
        chapter=MODES,
    ),
    Rule(
        code="library-carry-on-explicit-axes",
        raised=("TypeError",),
        patterns=(_CARRY,),
        where=innermost(NO_LOOP),
        check="another sharding",
        says="LOOP carry must have equal types: TYPE and TYPE OUT, from a line without"
        " a"
        " loop",
        means="On Explicit axes the sharding is part of the type. The loop is in a"
        " function of a library, and its carry {name} starts as {type} and comes out as"
        " {type_out}.",
        instead="y = jax.sharding.auto_axes(f, out_sharding=P('data'))(x)  # leave f to"
        " XLA",
        chapter=MODES,
    ),
    Rule(
        code="carry-is-sharded-differently",
        raised=("TypeError",),
        patterns=(_CARRY,),
        check="another sharding",
        says="LOOP carry must have equal types: TYPE and TYPE OUT",
        means="On Explicit axes the sharding is part of the type. The carry {name}"
        " starts as {type} (jnp.zeros: replicated), and the body returns {type_out}.",
        instead="start = jax.reshard(start, {type_out_spec})  # before the {loop},"
        " under"
        " jax.set_mesh(mesh)\n"
        "return jax.reshard(c, {type_spec})  # or in the body, as the start is",
        chapter=MODES,
    ),
    Rule(
        code="branches-differ-in-sharding",
        raised=("TypeError",),
        patterns=(
            r"^(?P<op>cond|switch) branches .*? has type (?P<type>\S+\[\S*\]) but the"
            r" corresponding output .*?has type (?P<type_out>\S+\[\S*\])",
        ),
        check="another sharding",
        says="OP branches must have equal types: TYPE and TYPE OUT",
        means="On Explicit axes the sharding is part of the type, and {op} needs one"
        " type: its branches give {type} and {type_out}.",
        instead="return jax.reshard(y, {type_spec})  # at the end of each branch, under"
        " jax.set_mesh(mesh)",
        chapter=MODES,
    ),
    Rule(
        code="constraint-on-explicit-axes",
        raised=("ValueError",),
        patterns=(
            r"can only refer to Auto axes of the mesh\. Got spec=(?P<spec>P\(.*?\)) and"
            r" mesh=(?P<mesh>AbstractMesh\(.*?Explicit.*?\)\.?)",
        ),
        says="The spec passed to with_sharding_constraint can only refer to Auto"
        " axes of the mesh. Got spec=SPEC and mesh=MESH",
        means="with_sharding_constraint is a wish to XLA, for Auto axes. On the"
        " Explicit axes of {mesh} a sharding is changed by jax.reshard.",
        instead="y = jax.reshard(x, {spec})  # under jax.set_mesh(mesh)",
        chapter=MODES,
    ),
    Rule(
        code="explicit-sharding-on-auto-axes",
        raised=("ValueError",),
        patterns=(
            r"^PartitionSpec passed to (?P<op>(?!broadcast_in_dim)\S+) cannot contain"
            r" axis names that are of type Auto or Manual\. Got PartitionSpec:"
            r" (?P<spec>P\(.*\)) with axis name: (?P<axis>.+?) of type:"
            r" AxisType\.(?P<mode>\w+)",
        ),
        says="PartitionSpec passed to OP cannot contain axis names that are of type"
        " Auto or Manual. Got SPEC with axis name AXIS of type MODE",
        means="{op} states a sharding, which is for Explicit axes; {axis!r} is"
        " {mode}. On Auto axes use a constraint; inside shard_map the axis is manual "
        "and can't be used.",
        instead="y = lax.with_sharding_constraint(y, NamedSharding(mesh, {spec}))\n"
        "mesh = jax.make_mesh(sizes, names, axis_types=(AxisType.Explicit,) * 2)",
        chapter=MODES,
    ),
    Rule(
        code="auto-axes-out-sharding",
        raised=("TypeError",),
        patterns=(
            r"^Missing required keyword argument: '(?P<name>out_sharding|in_sharding)'",
        ),
        where=r"jax/_src/pjit\.py|auto_axes|explicit_axes",
        alone=True,
        says="Missing required keyword argument: 'NAME'",
        means="auto_axes and explicit_axes switch to another mode and back, and {name}"
        " states the arrays' shardings at that boundary.",
        instead="jax.sharding.auto_axes(f, out_sharding=P('data'))(x)  # under"
        " jax.set_mesh(mesh)",
        chapter=MODES,
    ),
    Rule(
        code="sharding-type",
        raised=TYPE,
        patterns=("",),
        says="any other ShardingTypeError",
        means="On Explicit axes a sharding is part of the type, and JAX does not"
        " guess the result's here.",
        instead="jax.typeof(x)  # shows the sharding of an input\n"
        "y = jax.sharding.auto_axes(f, out_sharding=P('data'))(x)  # or leave f to XLA",
        chapter=MODES,
    ),
)
