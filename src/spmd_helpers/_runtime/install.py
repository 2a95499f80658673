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
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

from .._core.words import join_words
from .._errors import InstallFailed, RestartNeeded
from .packages import (
    TRIED_AS,
    Change,
    bare_name,
    has_pip,
    installed,
    is_imported,
    is_readable,
    needed_change,
    python_in_a_shell,
)

RESTART = "restart the kernel (in Colab: Runtime > Restart session)"
_not_imported: set[str] = set()
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
    r"|Read timed out|getaddrinfo failed|ProtocolError|IncompleteRead|SSLError"
    r"|Connection (?:broken|reset|aborted)|incomplete-download|from versions: none"
)


def hosted() -> str:
    """Where this runs: "Colab", "Kaggle", or "" where nothing is installed unasked."""
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:  # its images are made from Colab's
        return "Kaggle"
    return "Colab" if "COLAB_RELEASE_TAG" in os.environ else ""


def install(change: Change, libraries: Sequence[str], place: str) -> None:
    """Install what `change` asks for, and import it to see that it works.

    What this process has imported already keeps its version, so that no module
    changes under a running program. NumPy 1, and what leaves pip no other way, are
    replaced all the same, and a restart is asked for.

    Raises:
        RestartNeeded: something that has to be replaced is imported already; nothing
            was changed; or all is installed, and what is imported was replaced.
        InstallFailed: pip is missing, could not reach its index, or failed.
    """
    why = join_words(change.reasons)
    brought = (
        {bare_name(text) for text in change.requirements} if change.brings_jax else ()
    )
    loaded = [
        n for n in (*change.replaces, *brought) if n != "numpy" and is_imported(n)
    ]
    if loaded:
        raise RestartNeeded(
            f"{loaded[0]} is imported already and has to be replaced ({why}):"
            f" {_RESTARTS[place]}, and import JAX only below this cell, which then"
            " installs what fits."
        )
    numpy_is_in_use = "numpy" in change.replaces and is_imported("numpy")
    names = [bare_name(text) for text in change.requirements]
    kept = {"numpy"} if change.brings_jax else {"numpy", "jax"}
    what = join_words([n for n in names if n not in kept or n in change.replaces])
    accelerated = any("[" in text for text in change.requirements)
    about = "a minute" if accelerated else "20 seconds"
    then = "then one restart" if numpy_is_in_use else "no restart"
    _require_pip_and_place(change.replaces)
    print(
        f"{place}: pip installs {what} for this notebook, because {why} (about"
        f" {about}, {then}):",
        flush=True,
    )
    begun = time.monotonic()
    before = _all_versions()
    ours = [*names, "jaxlib"]
    code, output = _pip(change.requirements, _versions_to_keep(change, ours))
    in_use = code and "conflicting dependencies" in output
    if in_use:  # what is imported stands in the way: replaced too, it needs a restart
        code, output = _pip(change.requirements, [])
    importlib.invalidate_caches()
    if code:
        raise InstallFailed(_why_it_failed(code, output, before, place))
    if in_use:
        raise RestartNeeded(
            f"packages that are in use had to be replaced too: {_RESTARTS[place]}."
        )
    if numpy_is_in_use:
        raise RestartNeeded(
            f"NumPy {installed('numpy')} is installed, and an older one is imported:"
            f" {_RESTARTS[place]}."
        )
    if left := needed_change(libraries):  # an older copy lay under the one replaced
        _pip(left.requirements, _versions_to_keep(left, ours))
        importlib.invalidate_caches()
        if left := needed_change(libraries):
            where = importlib.metadata.distribution("jax").locate_file("")
            raise InstallFailed(
                f"pip ended without an error, and still {join_words(left.reasons)}: see"
                f" what puts {where} on this Python's path, or {_NEW_SESSIONS[place]}."
            )
    _import_all(["jax", *libraries], place)
    now = join_words([f"{name} {installed(name)}" for name in names])
    print(f"{now}: ready after {time.monotonic() - begun:.0f} s")


def _all_versions() -> dict[str, str | None]:
    """What is installed. What pip has put aside (`~axlib...`) has no version."""
    importlib.invalidate_caches()
    listed = {one.name for one in importlib.metadata.distributions()}
    return {name: installed(name) for name in listed if name}


def _require_pip_and_place(replaces: Iterable[str]) -> None:
    """Stop before anything is touched where pip cannot work."""
    if not has_pip():
        raise InstallFailed(
            "this Python has no pip, so nothing was installed: run  !uv pip install"
            f" --python {python_in_a_shell()} pip  and then this cell again."
        )
    folders = {sysconfig.get_path("purelib")}
    for name in replaces:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            folders.add(str(importlib.metadata.distribution(name).locate_file("")))
    for folder in filter(os.path.isdir, sorted(folders)):
        if not os.access(folder, os.W_OK):
            raise InstallFailed(
                f"this Python's packages are in {folder}, which is read-only, so"
                " nothing was installed: take an environment that you may change."
            )


def _versions_to_keep(change: Change, names: Iterable[str]) -> list[str]:
    """Constraints: what is imported in this process, at the version that it has."""
    homes = importlib.metadata.packages_distributions()
    imported = {name.split(".")[0] for name in sys.modules}
    keep = {package for module in imported for package in homes.get(module, ())}
    keep -= {*names, *change.replaces}
    return sorted(
        f"{package}=={version}"
        for package in keep
        if package and (version := installed(package)) and is_readable(version)
    )


def _pip(requirements: Iterable[str], keep: list[str]) -> tuple[int, str]:
    """(exit code, everything that pip printed); shows its progress meanwhile."""
    lines: list[str] = []
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
            start_new_session=True,  # an interrupt must not stop it half-way
        )
        output = process.stdout
        assert output is not None  # it is a pipe
        try:
            _follow(output, lines)
            code = process.wait()
        except KeyboardInterrupt:
            if any(line.startswith("Installing collected") for line in lines):
                print("  pip is replacing packages: it finishes first", flush=True)
                _follow(output, lines)
                process.wait()
            raise
        finally:
            output.close()
            if process.poll() is None:
                process.kill()
                process.wait()
    return code, "".join(lines)


def _follow(output: IO[str], lines: list[str]) -> None:
    for line in output:
        lines.append(line)
        if shown := _PROGRESS.match(line):
            print(f"  {shown[1]}", flush=True)


def _why_it_failed(
    code: int, output: str, before: Mapping[str, str | None], place: str
) -> str:
    unchanged = _all_versions() == before
    state = "nothing was changed" if unchanged else "it stopped half-way"
    if "No space left" not in output and _NO_NETWORK.search(output):
        ask = "see that this runtime has a network"
        if place == "Kaggle":
            ask = (
                "switch Internet on in the panel on the right, for which Kaggle wants a"
                " confirmed phone number,"
            )
        return f"pip has no connection, and {state}: {ask} and run this cell again."
    if code < 0:
        reason = "it was stopped from outside"
    elif "ERROR: Exception:" in output:
        reason = output.strip().splitlines()[-1]
    else:
        errors = re.findall(r"^(?:ERROR|error): (.+)$", output, re.M)
        reason = errors[0] if errors else "it gave no reason"
    reason = reason.strip().rstrip(".")
    return (
        f"pip failed ({_shortened(reason)}), and {state}: run this cell again, and if"
        f" it fails again, {_NEW_SESSIONS[place]}."
    )


def _shortened(text: str, most: int = 160) -> str:
    text = text.replace(". ", "; ")
    return text if len(text) <= most else text[: most - 1] + "…"


def import_again(place: str) -> None:
    """Raise again what the last installation in this process could not import."""
    if _not_imported:
        _import_all(sorted(_not_imported), place)


def _import_all(packages: Iterable[str], place: str) -> None:
    for package in packages:
        _not_imported.add(package)
        try:
            importlib.import_module(TRIED_AS.get(package, package))
            _not_imported.discard(package)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InstallFailed(
                f"{package} {installed(package)} was installed and cannot be imported"
                f" beside jax {installed('jax')} ({_shortened(reason)}):"
                f" {_NEW_SESSIONS[place]} with this cell."
            ) from None
