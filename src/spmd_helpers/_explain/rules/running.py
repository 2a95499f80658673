"""Rules for errors of a call: jit's arguments, and donation.

`Rule` documents the fields.
"""

from ..read import innermost
from .rule import Rule

JIT = "02_jit_sharding"
FOLLOWS = "04_computation_follows_data"
LOOP = "13_training_loop"
XLA = ("JaxRuntimeError", "XlaRuntimeError", "RuntimeError", "ValueError")

_ONE = (
    r"^Received incompatible devices for jitted computation\. Got (?P<name>argument"
    r" \S+|\S+).*? (?:with|and) device ids (?P<ids>\[[\d, ]*\]) on platform"
    r" (?P<platform>\w+) and"
)
_OTHER = (
    r" (?P<name_other>.*?)(?: of .*?)? (?:with|and) device ids"
    r" (?P<ids_other>\[[\d, ]*\]) on platform (?P<platform_other>\w+)"
)

SUBJECT = "Calling a jitted function"
RULES = (
    # Where arguments lie.
    Rule(
        code="other-platforms",
        raised=("ValueError",),
        patterns=(_ONE + _OTHER,),
        check="other platforms",
        says="Received incompatible devices for jitted computation: NAME on platform"
        " PLATFORM and NAME OTHER on platform PLATFORM OTHER",
        means="{name} is on the {platform}, {name_other} on the {platform_other}. An"
        " array that was placed (committed) stays where it is: JAX never moves it"
        " implicitly. A context mesh is one that jax.set_mesh set.",
        instead="x = jax.device_put(x, NamedSharding(mesh, P()))  # mesh: of the"
        " devices on which to compute",
        chapter=FOLLOWS,
        versions="GPU",
    ),
    Rule(
        code="device-order-differs",
        raised=("ValueError",),
        patterns=(_ONE + _OTHER,),
        check="same devices",
        says="Received incompatible devices for jitted computation: IDS and IDS"
        " OTHER, the same in another order",
        means="Two arrays are on the same devices in another order, {ids_list} and"
        " {ids_other_list}. Each mesh fixes an order, and a program has one.",
        instead="mesh = jax.make_mesh(sizes, names)  # once, for every array",
        chapter="03_mesh_and_partitionspec",
    ),
    Rule(
        code="incompatible-devices",
        raised=("ValueError",),
        patterns=(_ONE + _OTHER,),
        says="Received incompatible devices for jitted computation. Got NAME with"
        " device ids IDS and NAME OTHER with device ids IDS OTHER",
        means="Two arrays are on different devices: {name} on {ids}, {name_other} on"
        " {ids_other}. An array that was placed (committed) stays where it is: JAX"
        " never moves it implicitly.",
        instead="x = jax.device_put(x, NamedSharding(mesh, P()))  # onto the same"
        " mesh as the others",
        chapter=FOLLOWS,
    ),
    Rule(
        code="in-shardings-differ",
        raised=("ValueError",),
        patterns=(
            r"^Sharding passed to jit does not match the sharding on the respective"
            r" arg\."
            r" Got jit sharding: .*?spec=(?P<spec>P\(.*?\)), .*? arg sharding:"
            r" (?P<sharding>.*?) for arg type: (?P<type>\S+)",
        ),
        says="Sharding passed to jit does not match the sharding on the respective"
        " arg. Got SPEC and SHARDING",
        means="in_shardings has {spec}, and the argument {type} was placed with"
        " another sharding: {sharding}. jit does not reshard a committed argument."
        " Under jax.set_mesh every new array is placed, replicated on every device.",
        instead="x = jax.device_put(x, NamedSharding(mesh, {spec}))  # before the"
        " call; but delete a pmap that a port left over\n"
        "step = jax.jit(step)  # and no in_shardings: jit takes the argument's own",
        chapter=FOLLOWS,
    ),
    Rule(
        code="compiled-for-another-sharding",
        raised=("ValueError",),
        patterns=(
            r"^Computation was compiled for input shardings that disagree .*?Argument"
            r" (?P<name>\S+) with shape (?P<type>\S+): Passed sharding:"
            r" (?P<sharding>.*?) Required sharding: (?P<sharding_want>.*)",
        ),
        says="Computation was compiled for input shardings that disagree with the"
        " shardings of arguments passed to it",
        means="The program was compiled for {name} with the sharding {sharding_want}."
        " The argument has {sharding}. A compiled program does not reshard a committed"
        " argument.",
        instead="{name} = jax.device_put({name}, compiled.input_shardings[0][0])  #"
        " of argument 0",
        chapter=FOLLOWS,
    ),
    Rule(
        code="keywords-with-in-shardings",
        raised=("ValueError",),
        patterns=(r"^(?:pjit|jit) does not support kwargs when in_shardings is spec",),
        says="pjit does not support kwargs when in_shardings is specified",
        means="in_shardings belong to positions, and an argument came by name.",
        instead="step(params, batch)  # by position, or\n"
        "step = jax.jit(step)  # no in_shardings: place the arguments before",
        chapter=JIT,
    ),
    Rule(
        code="in-shardings-count",
        raised=("ValueError",),
        patterns=(
            r"in_shardings is the wrong length: got (?P<what>a tuple or list of length"
            r" \d+ for an args tuple of length \d+)",
            r"in_shardings is not a tuple: got (?P<what><class '\w+'>) instead",
        ),
        says="in_shardings must be a tree prefix of the positional arguments tuple,"
        " but is the wrong length, or not a tuple: WHAT",
        means="in_shardings is one sharding for all arguments, or a tuple with one"
        " entry for each. Here it is {what}.",
        instead="jax.jit(step, in_shardings=(replicated, by_rows))  # step(params,"
        " batch)",
        chapter=JIT,
    ),
    Rule(
        code="tree-of-specs-differs",
        raised=("ValueError",),
        patterns=(
            r"pytree structure error: .*? at key path (?:pjit |shard_map |pmap )"
            r"(?P<argument>in_specs|out_specs|in_shardings|out_shardings|in_axes)",
        ),
        says="pytree structure error at key path ARGUMENT",
        means="{argument} is a tree, and it is not built like the tree it is for:"
        " other keys, or another number of entries. A tuple is a tree; a P or a"
        " NamedSharding is one leaf.",
        instead="{argument}={one_leaf}  # one for all leaves, or\n"
        "jax.tree.map(lambda x: {one_leaf}, tree)  # a tree built alike",
        chapter=JIT,
    ),
    Rule(
        code="nnx-tree-of-shardings",
        raised=("ValueError",),
        patterns=(
            r"pytree structure error: different types at key path tree_map tree"
            r"(?P<path>\S*) .*?subtree of type <class '(?P<kind>NoneType)'>",
        ),
        where=innermost(r"flax"),
        says="pytree structure error at key path tree_map tree PATH, from Flax",
        means="nnx.jit reads in_shardings and out_shardings as trees, where a bare"
        " None or a tuple is no sharding.",
        instead="nnx.jit(f, out_shardings=NamedSharding(mesh, P('data', None)))",
        chapter=JIT,
    ),
    Rule(
        code="tracer-has-no-sharding",
        raised=("AttributeError", "ConcretizationTypeError"),
        patterns=(
            r"The '(?P<name>sharding|addressable_shards|global_shards|committed)'"
            r" attribute is not available on traced array with shape"
            r" (?P<type>[\w<>]+\[.*?\])",
            r"The (?P<name>devices)\(\) method was called on traced array with shape"
            r" (?P<type>[\w<>]+\[.*?\])",
        ),
        says="The NAME attribute is not available on traced array with shape TYPE",
        means="While JAX traces a function there is no array, only its type {type}."
        " On Auto axes its sharding is not decided yet; on Explicit axes it is part "
        "of the type.",
        instead="print(jax.typeof(x))  # Explicit axes: float32[8@data]\n"
        "spmd.xray(f, x).output_shardings  # Auto axes: after compiling",
        chapter="05_three_modes",
    ),
    # Donation.
    Rule(
        code="donated-and-gone",
        raised=XLA,
        patterns=(
            r"^Array has been deleted with shape=(?P<type>[\w<>]+\[.*?\])",
            r"Buffer has been deleted or (?P<type>donated)",
        ),
        says="Array has been deleted with shape=TYPE",
        means="The array was donated (donate_argnums) or deleted: the result now uses"
        " its memory. A cell that donates can't run twice on the same array. Before"
        " jax 0.11.1, on several CPU devices, Python itself can end instead.",
        instead="params = step(params, batch)  # put the result under the same name",
        chapter=LOOP,
    ),
    Rule(
        code="donated-twice",
        raised=XLA,
        patterns=(
            r"Attempt to donate the same buffer twice .*?\(flattened argument"
            r" (?P<number>\d+)",
            r"Attempt to use a buffer that was previously donated in the same call"
            r" .*?\(flattened argument (?P<number>\d+)",
        ),
        says="Attempt to donate the same buffer twice (flattened argument NUMBER)",
        means="One array is two arguments of a call that donates: leaf {number},"
        " counted from 0, is an earlier one once more. Its memory can be given once.",
        instead="ema = jax.tree.map(jnp.copy, params)  # a copy with its own memory",
        chapter=LOOP,
    ),
    Rule(
        code="donation-not-used",
        raised=("UserWarning",),
        patterns=(r"^Some donated buffers were not usable: (?P<type>.*?\])",),
        says="Some donated buffers were not usable: TYPE",
        means="A donated argument, per device {type}, was not reused: no result has"
        " the same shape and type on each device.",
        instead="jax.jit(step, donate_argnums=0, out_shardings=shardings_of_args)",
        chapter=LOOP,
    ),
    # Objects that are no arrays.
    Rule(
        code="mesh-handed-to-jit",
        raised=("TypeError",),
        patterns=(
            r"^Error interpreting argument to .* The problematic value is of type"
            r" (?P<what><class '(?:jax\._src\.mesh\.\w*Mesh|jax\.sharding\.\w+|jax\.P"
            r"|jax\.\w*PartitionSpec|jaxlib\._jax\.Device)'>) and was passed to the"
            r" function at path (?P<name>\w+)\.",
        ),
        says="Error interpreting argument … as an abstract array. The problematic value"
        " is of type WHAT … at path NAME",
        means="The argument {name} of a jitted function is {what}, and jit takes"
        " arrays."
        " What describes a placement is fixed while the function is compiled.",
        instead="step = jax.jit(step, static_argnames={name!r})\n"
        "step = jax.jit(lambda x: step(x, {name}))  # or close over it",
        chapter=JIT,
    ),
    Rule(
        code="module-handed-to-jit",
        raised=("TypeError",),
        patterns=(
            r"^Error interpreting argument to .* The problematic value is of type"
            r" <class"
            r" '(?P<kind>(?!str')[^']*)'> and was passed to the function at path"
            r" (?P<name>\w+(?:\.|\[)[^\s]*?)\. ",
            r"^Argument '(?P<name>\w+)\(.* of type <class '(?P<kind>flax\..*?)'> is"
            r" not a"
            r" valid JAX type",
        ),
        says="Error interpreting argument … The problematic value is of type KIND … at"
        " path NAME, or: Argument of type KIND is not a valid JAX type",
        means="{name} is no array ({kind}). A module or an optimizer contains"
        " functions beside its arrays, and jit takes arrays alone. nnx.jit and"
        " Equinox's filter_jit separate the two.",
        instead="step = jax.jit(lambda params, x: model.apply(params, x))  # arrays are"
        " arguments, model and optimizer are closed over",
        chapter=JIT,
    ),
    Rule(
        code="device-put-of-a-module",
        raised=("TypeError",),
        patterns=(
            r"^Cannot interpret value of type <class '(?P<kind>.*?)'> as an abstract"
            r" array",
        ),
        where=innermost(r":[\w<>]+: [^\n]*\bdevice_put\("),
        says="Cannot interpret value of type KIND as an abstract array, from"
        " device_put",
        means="The tree contains a {kind} beside its arrays, as a module or an"
        " optimizer does. device_put takes arrays alone.",
        instead="model = jax.tree.map(lambda v: jax.device_put(v, sharding) if"
        " isinstance(v, jax.Array) else v, model)",
        chapter=FOLLOWS,
    ),
)
