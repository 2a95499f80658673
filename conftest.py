"""The physics of the tests: eight CPU devices, whatever the machine has.

SPMD_TEST_DEVICES asks for another number: `make test-all` runs the exercises of a
chapter that compiles for a pod with 64.
"""

import os
import signal
import sys
from importlib.util import find_spec

os.environ["JAX_PLATFORMS"] = "cpu"

import jax

# A background job starts with SIGINT ignored, as do its children. Tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Not in the home directory, which may be missing or read-only.
for name, folder in (("IPYTHONDIR", "ipython"), ("MPLCONFIGDIR", "matplotlib")):
    os.environ[name] = os.environ.get(name) or os.path.join(sys.prefix, folder)
    os.makedirs(os.environ[name], exist_ok=True)

# What a course folder gets: nbgrader runs it, there. And checks that tests make theirs.
collect_ignore = ["src/spmd_grading/course_folder", "tests/own_exercises"]

# XLA takes NPROC for the number of its threads when the backend starts. With as
# many devices as threads, devices that wait in a collective leave no thread for
# the others' work, and on two cores that is a deadlock. Kernels that tests start
# must not inherit it: `use_devices` has to see to it by itself.
devices = int(os.environ.get("SPMD_TEST_DEVICES", 8))
os.environ["NPROC"] = str(4 * devices)
jax.config.update("jax_num_cpu_devices", devices)
# Programs of this process are compiled without LLVM's optimizations, a fifth of what
# the tests compute. XLA's own passes, which shard a program and write its collectives,
# are as ever. Notebooks and whatever else starts a process are compiled as readers'
# are, and so is everything where a TPU's or a GPU's compiler is there to be asked.
others = ("libtpu", "jax_cuda12_plugin")
alone = not any(map(find_spec, others))
jax.config.update("jax_disable_most_optimizations", alone)
jax.devices()
del os.environ["NPROC"]
