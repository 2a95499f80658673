"""Rules for errors of several processes: their start, and what each of them has.

`Rule` documents the fields.
"""

from .rule import Rule

HOSTS = "16_many_hosts"
XLA = ("JaxRuntimeError", "XlaRuntimeError", "RuntimeError")

SUBJECT = "Running several processes"
RULES = (
    Rule(
        code="not-on-this-process",
        raised=("RuntimeError",),
        patterns=(r"^Fetching value for 'jax\.Array' that spans non-addressable",),
        says="Fetching value for jax.Array that spans non-addressable devices is"
        " not possible",
        means="Part of the array is on devices of another process, and NumPy and"
        " device_get need all of it here; print shows only shape and dtype.",
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
        means="The function uses {type} from outside, and part of it is on another"
        " process: it can't become a constant of the program.",
        instead="step(params, x)  # hand it in as an argument",
        chapter=HOSTS,
    ),
    Rule(
        code="processes-disagree",
        raised=("AssertionError",),
        patterns=(r"passed to device_put is not the same on each process",),
        says="value passed to device_put is not the same on each process",
        means="device_put onto a mesh of several processes takes the same full value"
        " in each of them; here each gives its own.",
        instead="params = init(jax.random.key(0))  # replicated: one seed everywhere\n"
        "jax.make_array_from_process_local_data(rows, mine)  # rows: sharded over the"
        " processes",
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
        means="Part of the array is on devices of another process: it can't be put on"
        " one device of this one.",
        instead="jax.device_put(x, NamedSharding(mesh, P()))  # replicated, in every"
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
        means="JAX already runs in this process, alone. Processes must connect before"
        " the first array or jax.devices().",
        instead="jax.distributed.initialize(address, processes, number)  # right"
        " after import jax",
        chapter=HOSTS,
    ),
    Rule(
        code="initialized-twice",
        raised=("RuntimeError",),
        patterns=(r"^(?:jax\.)?distributed\.initialize should only be called once",),
        says="distributed.initialize should only be called once",
        means="This process has started JAX's distributed runtime already: a library"
        " did, or the cell ran twice.",
        instead="if not jax.distributed.is_initialized():\n"
        "    jax.distributed.initialize(address, processes, number)",
        chapter=HOSTS,
    ),
    Rule(
        code="cluster-is-not-described",
        raised=("ValueError",),
        patterns=(
            r"^(?P<what>coordinator_address) should be defined",
            r"^(?P<what>Number of processes|The process id of the current process) must"
            r" be defined",
            r"^(?P<what>process_id) and num_processes must be nonnegative",
        ),
        says="coordinator_address should be defined, or: Number of processes must be"
        " defined",
        means="JAX recognizes no cluster here (Slurm, Cloud TPU and others), so each"
        " process names all three: the address of process 0, how many there are, and"
        " its own number from 0. Missing or wrong: {what}.",
        instead="jax.distributed.initialize('host0:45671', num_processes=2,"
        " process_id=0)  # 1 in the other process\n"
        "# one process on one machine: leave the call out",
        chapter=HOSTS,
    ),
    Rule(
        code="a-process-did-not-come",
        raised=XLA,
        patterns=(
            r"DEADLINE_EXCEEDED: Barrier timed out\. (?:Barrier_id|Id):"
            r" (?:PjRT_Client_Connect|\[Init\]Wait_for_all_tasks_to_register)",
            r"JAX distributed service detected fatal errors\. .*?DEADLINE_EXCEEDED"
            r".*?RegisterTask",
        ),
        says="DEADLINE_EXCEEDED: Barrier timed out. Id: PjRT_Client_Connect, or the JAX"
        " distributed service detected fatal errors: RegisterTask",
        means="At their start the processes wait for each other, and in time not all"
        " came: one was not started or ended, can't reach the address of process 0, or"
        " two have one number.",
        instead="jax.distributed.initialize(address, n, i)  # in n processes, each with"
        " its own i from 0 to n - 1\n"
        "jax.distributed.initialize(address, n, i, initialization_timeout=1800)  #"
        " where they start minutes apart",
        chapter=HOSTS,
    ),
    Rule(
        code="port-is-taken",
        raised=("XLA's log",),
        patterns=(
            r"Failed to add port to server: No address added out of total .*? resolved"
            r" for '\[::\]:(?P<port>\d+)'",
        ),
        says="Failed to add port to server: No address added out of total 1 resolved"
        " for"
        " '[::]:PORT'",
        means="Another program, or an earlier run that did not end, listens on port"
        " {port} of process 0's machine.",
        instead="jax.distributed.initialize('host0:45672', n, i)  # another port, the"
        " same in every process",
        chapter=HOSTS,
    ),
)
