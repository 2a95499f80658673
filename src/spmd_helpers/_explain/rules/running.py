"""Rules for errors of running: jit's arguments, donation, memory, processes.

`Rule` says what the fields of one hold.
"""

from ..read import innermost
from .rule import Rule

JIT = "02_jit_sharding"
FOLLOWS = "04_computation_follows_data"
MEMORY = "09_memory_math"
LOOP = "13_training_loop"
HOSTS = "16_many_hosts"
XLA = ("JaxRuntimeError", "XlaRuntimeError", "RuntimeError", "ValueError")

_ONE = (
    r"^Received incompatible devices for jitted computation\. Got (?P<name>argument"
    r" \S+|\S+).*? with device ids (?P<ids>\[[\d, ]*\]) on platform \w+ and"
)
_OTHER = r" (?P<name_other>.*?)(?: of .*?)? with device ids (?P<ids_other>\[[\d, ]*\])"

RULES = (
    # Where arguments lie.
    Rule(
        code="device-order-differs",
        raised=("ValueError",),
        patterns=(_ONE + _OTHER,),
        check="same devices",
        says="Received incompatible devices for jitted computation: IDS and IDS"
        " OTHER, the same in another order",
        means="Two arrays lie on the same devices in another order, {ids_list} and"
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
        means="Two things lie on different devices: {name} on {ids}, {name_other}"
        " on {ids_other}. An array that was placed stays where it is (committed): JAX"
        " never moves it by itself.",
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
        means="in_shardings says {spec}, and the argument {type} was placed"
        " otherwise: {sharding}. jit does not move what was placed. Under jax.set_mesh"
        " every new array is placed, whole on every device.",
        instead="x = jax.device_put(x, NamedSharding(mesh, {spec}))  # before the"
        " call\n"
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
        means="The program was compiled for {name} placed so: {sharding_want}. It"
        " came placed so: {sharding}. A compiled program does not move what was"
        " placed.",
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
        instead="jax.jit(step, in_shardings=(whole, by_rows))  # step(params, batch)",
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
            r" (?P<type>\w+\[.*?\])",
            r"The (?P<name>devices)\(\) method was called on traced array with shape"
            r" (?P<type>\w+\[.*?\])",
        ),
        says="The NAME attribute is not available on traced array with shape TYPE",
        means="While JAX traces a function there is no array, only its type {type}."
        " On Auto axes nobody knows yet how it will lie; on Explicit axes the type"
        " says it.",
        instead="print(jax.typeof(x))  # Explicit axes: float32[8@data]\n"
        "spmd.xray(f, x).output_shardings  # Auto axes: after compiling",
        chapter="05_three_modes",
    ),
    # Donation.
    Rule(
        code="donated-and-gone",
        raised=XLA,
        patterns=(
            r"^Array has been deleted with shape=(?P<type>\w+\[.*?\])",
            r"Buffer has been deleted or (?P<type>donated)",
        ),
        says="Array has been deleted with shape=TYPE",
        means="The array was donated (donate_argnums) or deleted: its memory now"
        " holds the result. A cell that donates can't run twice on the same array."
        " Before jax 0.11.1, on several CPU devices, Python itself can end instead.",
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
        instead="ema = jax.tree.map(jnp.copy, params)  # a copy with memory of its own",
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
    # Memory.
    Rule(
        code="too-large-for-the-chip",
        raised=XLA,
        patterns=(
            r"^RESOURCE_EXHAUSTED: .*?Ran out of memory on \w+, the total memory"
            r" required"
            r" for .*? \((?P<need>[\d.]+\w)\) exceeds available \w+"
            r" \((?P<there>[\d.]+\w)\)",
            r"^RESOURCE_EXHAUSTED: .*?Ran out of memory in memory space \w+\. Used"
            r" (?P<need>[\d.]+\w) of (?P<there>[\d.]+\w) ",
        ),
        says="RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory"
        " required"
        " (NEED) exceeds available HBM (THERE)",
        means="Compiled for this chip, the program needs {need} on each device, and"
        " a"
        " device has {there}.",
        instead="spmd.xray(f, *args).input_shardings  # what is whole on every"
        " device?\n"
        "spmd.training_memory(model, mesh=sizes, batch=n)  # what would fit?",
        chapter=MEMORY,
        versions="TPU",
    ),
    Rule(
        code="out-of-memory",
        raised=XLA,
        patterns=(
            r"RESOURCE_EXHAUSTED: .*?[Oo]ut of memory.*? allocat\w+ (?P<bytes>\d+)"
            r" bytes",
            r"RESOURCE_EXHAUSTED: Failed to allocate request for"
            r" .*?\((?P<bytes>\d+)B\)",
            r"RESOURCE_EXHAUSTED: .*?Attempting to allocate (?P<bytes>[\d.]+\w)\.",
        ),
        says="RESOURCE_EXHAUSTED: Out of memory allocating BYTES bytes",
        means="One device was asked for {bytes} in one piece, and has not that much"
        " left. An array made by jnp.zeros or init lies whole on one device first.",
        instead="params = jax.jit(init, out_shardings=shardings)(key)  # made in"
        " pieces\n"
        "spmd.memory(params)  # what is held, on which device",
        chapter=MEMORY,
    ),
    # Processes.
    Rule(
        code="not-on-this-process",
        raised=("RuntimeError",),
        patterns=(r"^Fetching value for 'jax\.Array' that spans non-addressable",),
        says="Fetching value for jax.Array that spans non-addressable devices is"
        " not possible",
        means="Part of the array lies on devices of another process, and NumPy"
        " and device_get need all of it here; print shows only shape and dtype.",
        instead="[s.data for s in x.addressable_shards]  # this process's part\n"
        "multihost_utils.process_allgather(x, tiled=True)  # all, in every process",
        chapter=HOSTS,
    ),
    Rule(
        code="closed-over-global-array",
        raised=("RuntimeError",),
        patterns=(
            r"^Closing over jax\.Array that spans non-addressable .* Got jax\.Array:"
            r" (?P<type>\S+)",
        ),
        says="Closing over jax.Array that spans non-addressable devices is not"
        " allowed. Got TYPE",
        means="The function uses {type} from outside, and part of it lies on"
        " another process: it can't become a constant of the program.",
        instead="step(params, x)  # hand it in as an argument",
        chapter=HOSTS,
    ),
    Rule(
        code="processes-disagree",
        raised=("AssertionError",),
        patterns=(r"passed to device_put is not the same on each process",),
        says="value passed to device_put is not the same on each process",
        means="device_put onto a mesh of several processes takes the same whole"
        " value in each of them; here each gives its own.",
        instead="jax.make_array_from_process_local_data(sharding, mine)",
        chapter=HOSTS,
    ),
    Rule(
        code="device-put-of-a-global-array",
        raised=("ValueError",),
        patterns=(
            r"^When the second argument to 'device_put' is a Device, the first argument"
            r" must be a fully addressable",
        ),
        says="When the second argument to device_put is a Device, the first"
        " argument must be a fully addressable array",
        means="Part of the array lies on another process: it can't be put on one"
        " device of this one.",
        instead="jax.device_put(x, NamedSharding(mesh, P()))  # whole, in every"
        " process",
        chapter=HOSTS,
    ),
    Rule(
        code="allgather-needs-tiled",
        raised=("ValueError",),
        patterns=(r"^Gathering global non-fully-addressable arrays only supports til",),
        says="Gathering global non-fully-addressable arrays only supports tiled=True",
        means="A global array has its shape already: its parts are put side by"
        " side, not stacked.",
        instead="multihost_utils.process_allgather(x, tiled=True)",
        chapter=HOSTS,
    ),
    Rule(
        code="distributed-too-late",
        raised=("RuntimeError",),
        patterns=(r"^jax\.distributed\.initialize\(\) must be called before any JAX",),
        says="jax.distributed.initialize() must be called before any JAX calls that"
        " might initialise the XLA backend",
        means="JAX already runs in this process, alone. Processes meet before the"
        " first array or jax.devices().",
        instead="jax.distributed.initialize(address, processes, number)  # right"
        " after import jax",
        chapter=HOSTS,
    ),
)
