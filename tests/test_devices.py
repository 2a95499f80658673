"""use_devices and require_jax; what changes the device count runs in a process."""

import os
import pathlib
import re
import subprocess
import sys
import textwrap
import types

import jax
import pytest

from spmd_helpers import _devices
from spmd_helpers._devices import use_devices
from spmd_helpers._errors import BackendStarted, NoJax, OldJax
from spmd_helpers._runtime.packages import is_older

SRC = pathlib.Path(_devices.__file__).resolve().parents[1]
RESTART = (
    "so restart the kernel (in Colab: Runtime > Restart session) and run the cell with"
    " use_devices before any other."
)
# The second line, of a JAX that ends the kernel; a test below sees it end.
DANGER = (
    f"jax {jax.__version__} ends the kernel when a donated array is used again; 0.11.1"
    " and newer raise an error\n"
    if is_older(jax.__version__, "0.11.1")
    else ""
)
# Looking has to start JAX, as it does where there is a card.
ONE_GPU = """
import types
clients = []
from spmd_helpers import _devices
def one_gpu(jax):
    if jax.config.jax_platforms == "cpu":  # JAX was started anew without it
        return []
    clients.append(jax.devices()[0].client)
    return [types.SimpleNamespace(platform="gpu", device_kind="Toy A1")]
_devices._accelerators = one_gpu
"""


def run(code, path=(), **env):
    """Run a program in a fresh Python in which a warning is an error."""
    drop = ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS")
    clean = {key: value for key, value in os.environ.items() if key not in drop}
    clean["PYTHONPATH"] = os.pathsep.join([*map(str, path), str(SRC)])
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env=clean | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def output_of(code, **env):
    done = run(code, **env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


FIRST_CALL = """
from spmd_helpers._devices import use_devices
devices = use_devices()
import jax, jax.numpy as jnp
assert devices == jax.devices()[:8] and {d.platform for d in devices} == {"cpu"}
assert use_devices(8) == devices and use_devices(3) == devices[:3]
assert jnp.ones(3).devices() == {devices[0]}
"""
OTHERS_FLAGS = (
    "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=4"
)


def cpu_lines(running):
    split = f"(the processor split in {running}; JAX sees no accelerator)"
    of = " of 16" if running == 16 else ""
    eight = f"using 8{of} CPU devices {split}\n{DANGER}"
    return 2 * eight + f"using 3 of {running} CPU devices {split}\n{DANGER}"


OTHERS = pytest.mark.long("what few have set before the first call")


@pytest.mark.parametrize(
    ("running", "env"),
    [
        (8, {}),
        (8, {"XLA_FLAGS": OTHERS_FLAGS}),
        # JAX itself fails on it with no message.
        pytest.param(8, {"JAX_PLATFORMS": "cuda"}, marks=OTHERS),
        pytest.param(
            8, {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"}, marks=OTHERS
        ),
        pytest.param(16, {"JAX_NUM_CPU_DEVICES": "16"}, marks=OTHERS),
    ],
)
def test_first_call_gives_eight_cpu_devices(running, env):
    if env.get("JAX_PLATFORMS") == "cuda" and os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has a card")
    assert output_of(FIRST_CALL, **env) == cpu_lines(running)


def test_the_line_that_notebooks_store(capsys):
    use_devices()
    assert capsys.readouterr().out == (
        "using 8 CPU devices (the processor split in 8; JAX sees no accelerator)\n"
        + DANGER
    )


@pytest.mark.parametrize("nproc", [None, "1", "5000"])
def test_jax_starts_with_threads_to_spare(monkeypatch, nproc):
    monkeypatch.delenv("NPROC", raising=False)
    if nproc:
        monkeypatch.setenv("NPROC", nproc)
    thread_counts = []
    monkeypatch.setattr(
        _devices,
        "_accelerators",
        lambda _: thread_counts.append(int(os.environ["NPROC"])) or [],
    )
    use_devices(8)
    with pytest.raises(BackendStarted):
        use_devices(999)
    cores = os.cpu_count()
    given = int(nproc or 0)
    assert thread_counts == [max(given, cores, 32), max(given, cores, 4 * 999)]
    assert os.environ.get("NPROC") == nproc


def test_started_on_one_device_is_an_error_that_says_what_to_restart():
    code = """
    import jax
    jax.devices()
    from spmd_helpers._devices import use_devices
    from spmd_helpers._errors import BackendStarted
    for n in 1, 8:
        try:
            use_devices(n)
        except BackendStarted as error:
            print(error)
    """
    assert output_of(code) == (
        "using 1 CPU device (the processor; JAX sees no accelerator)\n"
        "JAX already runs, on 1 CPU device, and use_devices(8) needs 8: the number"
        f" can't change once JAX has started, {RESTART}\n"
    )


def test_one_gpu_is_left_for_eight_cpu_devices():
    code = (
        ONE_GPU
        + """
from spmd_helpers._errors import BackendStarted
devices = _devices.use_devices()
import jax, jax.numpy as jnp
mesh = jax.make_mesh((4, 2), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
assert list(mesh.devices.flat) == devices == jax.devices()
assert clients and devices[0].client is not clients[0]  # that one would hold the card
assert jnp.ones(3).devices() == {devices[0]}
assert jax.pmap(lambda x: x)(jnp.ones((8, 1))).devices() == set(devices)
assert _devices.use_devices() == devices
assert jax.config.jax_default_device is None
try:
    _devices.use_devices(8, at_least=1)
except BackendStarted as error:
    print(error)
"""
    )
    line = (
        "using 8 CPU devices (the processor split in 8; JAX sees 1 GPU, Toy A1, and 8"
        " are needed)\n" + DANGER
    )
    assert output_of(code) == line + line + (
        "JAX runs on the CPU devices that an earlier use_devices chose, and"
        " use_devices(n=8, at_least=1) would take the 1 GPU instead: that can't change"
        f" once JAX has started, {RESTART}\n"
    )


def test_one_gpu_is_taken_where_one_is_enough_and_where_the_platform_is_named():
    code = (
        ONE_GPU
        + """
assert [d.device_kind for d in _devices.use_devices(8, at_least=1)] == ["Toy A1"]
import jax
assert len(jax.devices("cpu")) == 8  # looking did not cost the way back
print(jax.config.jax_platforms)
"""
    )
    assert output_of(code, JAX_PLATFORMS="cuda") == (
        "using 1 GPU device (Toy A1); up to 8 were requested, and this is "
        "enough\ncuda,cpu\n"
    )


def test_an_accelerator_that_does_not_start_is_said_and_done_without():
    code = """
    from spmd_helpers._devices import use_devices
    assert len(use_devices()) == 8
    assert len(use_devices()) == 8
    """
    lines = output_of(code, JAX_PLATFORMS="nonesuch").splitlines(keepends=True)
    first, second = (line for line in lines if line != DANGER)
    assert first == second
    assert first.startswith(
        "using 8 CPU devices (the processor split in 8; the accelerator did not start:"
        " Unable to initialize backend 'nonesuch'"
    )


@pytest.fixture
def cards(monkeypatch):
    """Put accelerators into this machine, whose JAX runs on eight CPU devices."""

    def put(count, platform="gpu", kind="Toy A1"):
        devices = [
            types.SimpleNamespace(platform=platform, device_kind=kind, id=i)
            for i in range(count)
        ]
        monkeypatch.setattr(_devices, "_accelerators", lambda jax: list(devices))

    jax.devices()  # so that JAX runs, whichever test came before
    monkeypatch.setattr(_devices, "_shut_out", None)
    yield put
    jax.config.update("jax_default_device", None)


@pytest.mark.parametrize(
    ("count", "platform", "arguments", "ids", "line"),
    [
        (8, "tpu", {}, range(8), "using 8 TPU devices (Toy A1)"),
        (16, "tpu", {}, range(8), "using 8 of 16 TPU devices (Toy A1)"),
        (2, "gpu", {"n": 1}, [0], "using 1 of 2 GPU devices (Toy A1)"),
        (
            2,
            "gpu",
            {"n": 8, "at_least": 2},
            [0, 1],
            "using 2 GPU devices (Toy A1); up to 8 were requested, and this is enough",
        ),
    ],
)
def test_enough_accelerators(cards, capsys, count, platform, arguments, ids, line):
    cards(count, platform)
    assert [device.id for device in use_devices(**arguments)] == list(ids)
    assert capsys.readouterr().out == line + "\n"


def test_too_few_accelerators_in_a_jax_that_already_runs(cards, capsys):
    cards(1)
    assert use_devices(4, at_least=2) == jax.devices()[:4]
    assert jax.config.jax_default_device == jax.devices()[0]
    assert capsys.readouterr().out == (
        "using 4 of 8 CPU devices (the processor split in 8; JAX sees 1 GPU, Toy A1,"
        " and 2 are needed)\n" + DANGER
    )
    with pytest.raises(BackendStarted) as caught:
        use_devices(9)
    assert str(caught.value).startswith(
        "JAX already runs, on 1 GPU device and 8 CPU devices, and use_devices(9) needs"
        " 9: the number can't change once JAX has started, so restart the kernel"
    )
    use_devices(4, at_least=1)  # and back to the accelerator
    assert jax.config.jax_default_device is None


@pytest.mark.parametrize("bad", [0, -1, 2.0, "8", True, [8]])
@pytest.mark.parametrize("name", ["n", "at_least"])
def test_a_number_that_is_none(name, bad, capsys):
    example = {"n": "use_devices(8)", "at_least": "use_devices(8, at_least=2)"}[name]
    with pytest.raises(ValueError, match="give an integer") as caught:
        use_devices(**{name: bad})
    assert str(caught.value) == (
        f"{name}={bad!r} is not a number of devices; give an integer, 1 or more, such "
        f"as {example}."
    )
    assert capsys.readouterr().out == ""


def test_at_least_more_than_n():
    with pytest.raises(ValueError, match="is more than n=2") as caught:
        use_devices(2, at_least=4)
    assert str(caught.value) == (
        "at_least=4 is more than n=2, and use_devices never returns more than n: write"
        " use_devices(4, at_least=4)."
    )


@pytest.mark.parametrize(
    ("version", "older"),
    [
        ("0.4.35", True),
        ("0.9.10", True),
        ("0.10.1", True),
        ("0.10", True),
        ("0.10.2.dev20260401+4f2a", True),
        ("0.10.2rc1", True),
        ("0.10.2", False),
        ("0.10.2.0", False),
        ("0.10.2.post1", False),
        ("0.11.0.dev20260901", False),
        ("0.12.0.1", False),
        ("1.0", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_which_versions_are_older(version, older):
    assert is_older(version, "0.10.2") is older


ASK = """
import spmd_helpers
from spmd_helpers import _devices, _errors
try:
    _devices.use_devices()
except (_errors.OldJax, _errors.NoJax) as error:
    assert error.__context__ is None or error.__suppress_context__
    print(type(error).__name__, error, sep=": ")
"""


def stand_in(folder, text):
    (folder / "jax").mkdir()
    (folder / "jax" / "__init__.py").write_text(text)
    done = run(ASK, path=[folder])
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


INSTALL = r"%pip install -U \"?jax.+?"
AGAIN = r"restart the kernel \(in Colab: Runtime > Restart session\) and begin again"


def test_old_jax(tmp_path):
    """tests/book/test_hosted.py types the command and sees it work."""
    assert re.fullmatch(
        "OldJax: spmd_helpers needs jax 0.10.2 or newer, and this is jax 0.4.30: run"
        rf"  {INSTALL}  , {AGAIN} at the first cell.\n",
        stand_in(tmp_path, "__version__ = '0.4.30'"),
    )


def test_no_jax(tmp_path):
    missing = "raise ModuleNotFoundError(\"No module named 'jax'\", name='jax')"
    assert re.fullmatch(
        "NoJax: spmd_helpers needs JAX, and jax is not installed: run"
        rf"  {INSTALL}  and then this cell again.\n",
        stand_in(tmp_path, missing),
    )


def test_broken_jax(tmp_path):
    mismatch = "raise RuntimeError('jaxlib 0.3 does not fit jax 0.12\\nmore')"
    assert re.fullmatch(
        "NoJax: spmd_helpers needs JAX, and the installed one cannot be imported"
        r" \(RuntimeError: jaxlib 0.3 does not fit jax 0.12\): run"
        rf"  {INSTALL}  , {AGAIN} at the first cell.\n",
        stand_in(tmp_path, mismatch),
    )
    assert issubclass(NoJax, RuntimeError)
    assert issubclass(OldJax, RuntimeError)


WITHOUT_POSIX = """
import os, pkgutil, signal, sys
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
for name in ("fork", "getpgid", "getuid", "killpg", "setsid", "waitid"):
    vars(os).pop(name, None)
for name in ("SIGALRM", "SIGHUP", "SIGKILL", "setitimer"):
    vars(signal).pop(name, None)

import spmd_helpers as spmd
for module in pkgutil.walk_packages(spmd.__path__, "spmd_helpers."):
    __import__(module.name)
[getattr(spmd, name) for name in spmd.__all__]
spmd.use_devices(8)
import jax
x = jax.numpy.ones((8, 4))
print(spmd.draw(x), spmd.memory([x]), spmd.xray(jax.jit(jax.numpy.sum), x))
assert "<svg" in spmd.draw(x).svg
print("drawn")
"""


def test_nothing_that_windows_lacks_is_needed():
    assert output_of(WITHOUT_POSIX).endswith("\ndrawn\n")


DONATED_TWICE = """
import jax, jax.numpy as jnp
from spmd_helpers._devices import use_devices
use_devices({n})
mesh = jax.make_mesh(({n},), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
split = jax.NamedSharding(mesh, jax.P("data"))
step = jax.jit(lambda x: x + 1, donate_argnums=0)
x = jax.device_put(jnp.zeros(16), split)
step(step(x))
try:
    step(x)
except (RuntimeError, ValueError):
    print("an error")
"""


@pytest.mark.parametrize("n", [1, 8])
def test_a_jax_that_ends_the_kernel_is_named_before(n):
    """And only such a one: a donated array is used again, through a warm cache."""
    done = run(DONATED_TWICE.format(n=n))
    dies = done.returncode < 0
    assert dies or done.stdout.endswith("an error\n")
    named = "ends the kernel when a donated array is used again" in done.stdout
    assert named == dies == (n > 1 and is_older(jax.__version__, "0.11.1"))
