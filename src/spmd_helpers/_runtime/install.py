"""On Colab and Kaggle: one pip call that brings what a notebook needs."""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time

from .._errors import InstallFailed, RestartNeeded
from .packages import IMPORTED_AS, Change, installed, is_imported, joined

RESTART = "restart the kernel (in Colab: Runtime > Restart session)"
_RESTARTS = {
    "Colab": "click Runtime > Restart session and then Runtime > Run all",
    "Kaggle": "click Run > Restart & clear cell outputs and then Run All",
}
_NEW_SESSIONS = {
    "Colab": "click Runtime > Disconnect and delete runtime and begin again",
    "Kaggle": "stop the session and begin again",
}
# Lines of pip worth a reader's time; the sizes in them show what is waited for.
_PROGRESS = re.compile(
    r"\s*(Downloading (?!\S+\.metadata)\S+ \([\d.]+ [MG]B\)|Installing collected .*)"
)
_NO_NETWORK = re.compile(
    r"NewConnectionError|ConnectTimeout|Temporary failure in name resolution"
    r"|Failed to establish a new connection|Network is unreachable|ProxyError"
    r"|Read timed out|getaddrinfo failed"
)


def hosted() -> str:
    """Where this runs: "Colab", "Kaggle", or "" where nothing is installed unasked."""
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:  # its images are made from Colab's
        return "Kaggle"
    if "COLAB_RELEASE_TAG" in os.environ or "google.colab" in sys.modules:
        return "Colab"
    return ""


def install(change: Change, libraries, place: str) -> None:
    """Install what `change` asks for, and import it to see that it works.

    What this process has imported already keeps its version, so that no module
    changes under a running program; only NumPy 1 is replaced, which needs a restart.

    Raises:
        RestartNeeded: something that has to be replaced is imported already; nothing
            was changed, or (NumPy 1) all is installed.
        InstallFailed: pip is missing, could not reach its index, or failed.
    """
    why = joined(change.reasons)
    loaded = [n for n in change.replaces if n != "numpy" and is_imported(n)]
    if loaded:
        raise RestartNeeded(
            f"{loaded[0]} is imported already and has to be replaced ({why}):"
            f" {_RESTARTS[place]}, and import JAX only below this cell, which then"
            " installs what fits."
        )
    numpy_is_in_use = "numpy" in change.replaces and is_imported("numpy")
    names = [_name(text) for text in change.requirements]
    kept = {"numpy"} if change.brings_jax else {"numpy", "jax"}
    what = joined([name for name in names if name not in kept])
    accelerated = any("[" in text for text in change.requirements)
    about = "a minute" if accelerated else "20 seconds"
    then = "then one restart" if numpy_is_in_use else "no restart"
    print(
        f"{place}: pip installs {what} for this notebook, because {why} (about"
        f" {about}, {then}):",
        flush=True,
    )
    begun = time.monotonic()
    _require_pip_and_place()
    before = {name: installed(name) for name in [*names, "jaxlib"]}
    code, said = _pip(change.requirements, _versions_to_keep(change, before))
    importlib.invalidate_caches()
    if code:
        raise InstallFailed(_why_it_failed(said, before, place))
    if numpy_is_in_use:
        raise RestartNeeded(
            f"NumPy {installed('numpy')} is installed, and an older one is imported:"
            f" {_RESTARTS[place]}."
        )
    _import_all(["jax", *libraries], place)
    now = joined([f"{name} {installed(name)}" for name in names])
    print(f"{now}: ready after {time.monotonic() - begun:.0f} s")


def _name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0]


def _require_pip_and_place() -> None:
    """Stop before anything is touched where pip cannot work."""
    if importlib.util.find_spec("pip") is None:
        raise InstallFailed(
            "this Python has no pip, so nothing was installed: run  !uv pip install"
            f" --python {sys.executable} pip  and then this cell again."
        )
    folder = sysconfig.get_path("purelib")
    if not os.access(folder, os.W_OK):
        raise InstallFailed(
            f"this Python's packages lie in {folder}, which is read-only, so nothing"
            " was installed: choose a runtime or an environment that you may change."
        )


def _versions_to_keep(change: Change, names) -> list[str]:
    """Constraints: what is imported in this process, at the version that it has."""
    homes = importlib.metadata.packages_distributions()
    imported = {name.split(".")[0] for name in sys.modules}
    keep = {package for module in imported for package in homes.get(module, ())}
    keep -= {*names, *change.replaces}
    return sorted(
        f"{package}=={version}" for package in keep if (version := installed(package))
    )


def _pip(requirements, keep: list[str]) -> tuple[int, str]:
    """(exit code, everything that pip said); shows its progress meanwhile."""
    said = []
    with tempfile.TemporaryDirectory() as folder:
        constraints = os.path.join(folder, "keep.txt")
        with open(constraints, "w", encoding="utf8") as file:
            file.write("\n".join(keep))
        command = [sys.executable, "-m", "pip", "install", "--upgrade", "--no-input"]
        command += ["--disable-pip-version-check", "--progress-bar=off", "--retries=2"]
        command += ["--constraint", constraints, *requirements]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            for line in process.stdout:
                said.append(line)
                if shown := _PROGRESS.match(line):
                    print(f"  {shown[1]}", flush=True)
            code = process.wait()
        except KeyboardInterrupt:  # pip was interrupted too, and puts back what it took
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            raise
        finally:
            process.stdout.close()
            if process.poll() is None:
                process.kill()
                process.wait()
    return code, "".join(said)


def _why_it_failed(said: str, before: dict, place: str) -> str:
    after = {name: installed(name) for name in before}
    state = "nothing was changed" if after == before else "it stopped half-way"
    if _NO_NETWORK.search(said):
        ask = "see that this runtime has a network"
        if place == "Kaggle":
            ask = (
                "switch Internet on in the panel on the right, for which Kaggle wants a"
                " confirmed phone number,"
            )
        return f"pip has no connection, and {state}: {ask} and run this cell again."
    errors = re.findall(r"^ERROR: (.+)$", said, re.M) or said.strip().splitlines()[-1:]
    reason = errors[0].strip().rstrip(".") if errors else "without a word"
    return (
        f"pip failed ({_shortened(reason)}), and {state}: run this cell again, and if"
        f" it fails again, {_NEW_SESSIONS[place]}."
    )


def _shortened(text: str, most: int = 160) -> str:
    text = text.replace(". ", "; ")
    return text if len(text) <= most else text[: most - 1] + "…"


def _import_all(packages, place: str) -> None:
    for package in packages:
        try:
            importlib.import_module(IMPORTED_AS.get(package, package))
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InstallFailed(
                f"{package} {installed(package)} was installed and cannot be imported"
                f" beside jax {installed('jax')} ({_shortened(reason)}):"
                f" {_NEW_SESSIONS[place]} with this cell."
            ) from None
