"""Rules for memory: what does not fit, memory kinds, lines of XLA's log.

`Rule` documents the fields.
"""

from .rule import Rule

FOLLOWS = "04_computation_follows_data"
MEMORY = "09_memory_math"
XLA = ("JaxRuntimeError", "XlaRuntimeError", "RuntimeError", "ValueError")

SUBJECT = "Running out of memory"
RULES = (
    Rule(
        code="too-large-for-the-chip",
        raised=XLA,
        patterns=(
            r"^RESOURCE_EXHAUSTED: .*?Ran out of memory on HBM, the total memory"
            r" required"
            r" for .*? \((?P<need>[\d.]+\w)\) exceeds available \w+"
            r" \((?P<there>[\d.]+\w)\)",
            r"^RESOURCE_EXHAUSTED: .*?Ran out of memory in memory space hbm\. Used"
            r" (?P<need>[\d.]+\w) of (?P<there>[\d.]+\w) ",
        ),
        says="RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory"
        " required"
        " (NEED) exceeds available HBM (THERE)",
        means="Compiled for this chip, the program needs {need} on each device, and"
        " a"
        " device has {there}.",
        instead="spmd.xray(f, *args).input_shardings  # what is replicated?\n"
        "spmd.training_memory(model, mesh=sizes, batch=n)  # what would fit?",
        chapter=MEMORY,
        versions="TPU",
    ),
    Rule(
        code="no-room-for-the-program",
        raised=XLA,
        patterns=(
            r"RESOURCE_EXHAUSTED: .*?Attempting to reserve (?P<need>[\d.]+\w) at the"
            r" bottom of memory\. That was not possible\. There are"
            r" (?P<there>[\d.]+\w) free",
        ),
        says="RESOURCE_EXHAUSTED: Attempting to reserve NEED at the bottom of memory."
        " That was not possible. There are THERE free",
        means="To run, the compiled program needs {need} on a device beside the arrays"
        " that are there already, and {there} are free.",
        instead="spmd.memory(params, state)  # what is there already, on which device\n"
        "spmd.xray(f, *args).peak_memory  # what the program needs on each device",
        chapter=MEMORY,
        versions="TPU",
    ),
    Rule(
        code="recompute-is-not-enough",
        raised=("XLA's log",),
        patterns=(
            r"Can't reduce memory use below (?P<there>[\d.]+\w+) .*?by"
            r" rematerialization;"
            r" only reduced to (?P<need>[\d.]+\w+)",
        ),
        says="Can't reduce memory use below THERE by rematerialization; only reduced to"
        " NEED",
        means="XLA wants the program to fit into {there} on each device and, after all"
        " it can compute twice, it needs {need}. The run will most likely end for want"
        " of memory.",
        instead="spmd.xray(f, *args).input_shardings  # what is replicated?\n"
        "spmd.training_memory(model, mesh=sizes, batch=n)  # what would fit?",
        chapter=MEMORY,
        versions="GPU",
    ),
    Rule(
        code="out-of-memory",
        raised=XLA,
        patterns=(
            r"RESOURCE_EXHAUSTED: .*?[Oo]ut of memory.*? allocat\w+ (?P<bytes>\d+)"
            r" bytes",
            r"(?:RESOURCE_EXHAUSTED|Resource exhausted): Failed to allocate request for"
            r" .*?\((?P<bytes>\d+)B\)",
            r"failed to allocate .*?\((?P<bytes>\d+) bytes\) from device:"
            r" CUDA_ERROR_OUT_OF_MEMORY",
            r"RESOURCE_EXHAUSTED: .*?Attempting to allocate (?P<bytes>[\d.]+\w)\.",
        ),
        says="RESOURCE_EXHAUSTED: Out of memory allocating BYTES bytes",
        means="The program tried to allocate {bytes} in one piece on one device, which"
        " has not that much left. An array made by jnp.zeros or init is first placed"
        " at full size on one device.",
        instead="params = jax.jit(init, out_shardings=shardings)(key)  # made sharded\n"
        "spmd.memory(params)  # bytes per device",
        chapter=MEMORY,
    ),
    # Memory kinds.
    Rule(
        code="host-and-device-memory",
        raised=("ValueError",),
        patterns=(
            r"^memory_space of all inputs passed to '(?P<op>\w+)' must be the same\."
            r" Got"
            r" one operand with type: (?P<type>\S+) and another operand with type:"
            r" (?P<type_out>\S+)",
        ),
        says="memory_space of all inputs passed to OP must be the same. Got TYPE and"
        " TYPE OUT",
        means="One input of {op} is in the host's memory and one in the device's:"
        " {type} and {type_out}. jit computes where both are in one memory.",
        instead="x = jax.device_put(x, jax.memory.Space.Device)  # inside jit, for the"
        " one of the host",
        chapter=MEMORY,
    ),
    Rule(
        code="memory-kind-of-an-argument",
        raised=("ValueError",),
        patterns=(
            r"^Memory kinds passed to jax\.jit does not match memory kind on the"
            r" respective arg\. Got jit memory kind: (?P<kind>\w+), arg memory kind:"
            r" (?P<kind_have>\w+) for arg type: (?P<type>\S+)",
        ),
        says="Memory kinds passed to jax.jit does not match memory kind on the"
        " respective arg. Got KIND and KIND HAVE",
        means="in_shardings has the memory kind {kind}, and the argument {type} is in"
        " {kind_have}.",
        instead="x = jax.device_put(x, x.sharding.with_memory_kind('{kind}'))  # before"
        " the call",
        chapter=MEMORY,
    ),
    Rule(
        code="no-such-memory-kind",
        raised=("ValueError",),
        patterns=(
            r"^Could not find memory addressable by device (?P<what>.*?)\. Device .*?"
            r" can"
            r" address the following memory kinds: (?P<there>[\w, ]+)\. Got memory"
            r" kind:"
            r" (?P<kind>\w+)",
        ),
        says="Could not find memory addressable by device WHAT … Got memory kind: KIND",
        means="A device of kind {what} has the memory kinds {there}, and not {kind}.",
        instead="x = jax.device_put(x, NamedSharding(mesh, spec,"
        " memory_kind='device'))",
        chapter=MEMORY,
    ),
    # Lines of XLA's log.
    Rule(
        code="one-device-rematerialization",
        raised=("XLA's log",),
        patterns=(
            r"Involuntary full rematerialization\. The compiler"
            r" (?:was not able to|cannot) go from sharding"
            r" (?:\{maximal device=\d+\}|\{single_device\[.*?\]\}|[^.]*? to"
            r" \{(?:maximal device=\d+|single_device\[.*?\])\})",
        ),
        says="[spmd] Involuntary full rematerialization. The compiler cannot go from"
        " sharding {maximal device=0} to {…}",
        means="One operation runs on a single device: a callback or a print of values"
        " most often. XLA gathers its sharded array, at full size, on every device."
        " Correct, but it costs memory and time.",
        instead="jax.shard_map(f, mesh=mesh, in_specs=P('data'), out_specs=P('data')) "
        " #"
        " the callback in f gets one shard at a time\n"
        "spmd.xray(f, *args).collectives  # which all-gather it is, and its line",
        chapter=FOLLOWS,
    ),
    Rule(
        code="full-rematerialization",
        raised=("XLA's log",),
        patterns=(
            r"Involuntary full rematerialization\. The compiler?d?"
            r" (?:was not able to|cannot) go from sharding (?P<value>\{.*?\}) to",
        ),
        says="[spmd] Involuntary full rematerialization. The compiler was not able to"
        " go"
        " from sharding VALUE to {…} without doing a full rematerialization",
        means="XLA knows no direct way between two shardings of one array. It gathers"
        " the full array on every device and keeps a part: correct, but it costs"
        " memory and time.",
        instead="x = lax.with_sharding_constraint(x, between)  # an intermediate"
        " sharding: one axis at a time\n"
        "spmd.xray(f, *args).findings  # which array it is, and where",
        chapter=FOLLOWS,
    ),
)
