"""Which packages are installed, whether they fit each other, and what would fit."""

import contextlib
import dataclasses
import glob
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

OLDEST_JAX = "0.10.2"
OLDEST_NUMPY = "2.0"  # what jax 0.10.2 asks for
# JAX from this version on asks for NumPy from that version on (by its own metadata).
# pip would find it out by downloading each newer JAX first.
NUMPY_FOR_JAX = (("0.12", "2.2"), ("0.11", "2.1"))
# A newer JAX than any that was tried is kept where it is, and never brought: on the day
# that one breaks flax, no notebook would run.
JAX_NOT_TRIED = "0.13"
IMPORTED_AS = {"orbax-checkpoint": "orbax.checkpoint"}
# What chapters import of it: an old `flax` is imported where `flax.nnx` is not.
TRIED_AS = {"flax": "flax.nnx", "orbax-checkpoint": "orbax.checkpoint"}

# Releases that cannot be imported beside a JAX although their metadata allow it:
# library -> (which JAX, which releases). Found by importing each release beside
# jax 0.10.2, 0.11.0, 0.11.2 and 0.12.0.1 on Python 3.13 (November 2026).
DOES_NOT_IMPORT = {
    "flax": (
        (">=0.11.1", "<0.12.10"),
        (">=0.11", "<0.12.7"),
        (">=0.10.2", "<0.12.4"),
    ),
    "optax": ((">=0.10.2", "==0.2.7"),),
    "orbax-checkpoint": ((">=0.10.2", "<0.11.20"),),
}
_NEWEST = "9999"  # stands for a JAX that pip has not chosen yet


@dataclasses.dataclass(frozen=True)
class Change:
    """What has to be installed so that a notebook can run, and why.

    Attributes:
        reasons: one clause for each thing that does not fit, such as
            "jax 0.7.2 is older than 0.10.2".
        requirements: what to ask pip for, such as "jax>=0.10.2" and "numpy==2.1.3".
        replaces: names of the installed packages that are replaced.
        brings_jax: whether a JAX is installed, not only libraries beside it.
    """

    reasons: tuple[str, ...]
    requirements: tuple[str, ...]
    replaces: tuple[str, ...]
    brings_jax: bool

    @property
    def command(self) -> str:
        """The line to type in a notebook cell, for pip or, where there is none, uv."""
        if not has_pip():
            names = [bare_name(text) for text in self.requirements]
            renew = "".join(f" -P {name}" for name in names if name != "numpy")
            here = python_in_a_shell()
            if shutil.which("uv"):
                return f"!uv pip install --python {here}{renew} {self._quoted}"
            pip = f"{here} -m pip install -U {self._quoted}"
            return f"!{here} -m ensurepip && {pip}"
        return f"%pip install -U {self._quoted}"

    @property
    def _quoted(self) -> str:
        texts = self.requirements
        return " ".join(f'"{t}"' if re.search(r"[^\w.-]", t) else t for t in texts)


def needed_change(
    libraries: Iterable[str] = (), running_jax: str | None = None
) -> Change | None:
    """What has to change before a notebook with these libraries can run.

    NumPy keeps its version: other packages of the environment were built for it, and
    a notebook may have imported it. pip then takes the newest JAX that goes with it.

    Args:
        libraries: names as pip knows them, such as "flax".
        running_jax: the version of an imported JAX that is too old, whatever version
            is installed.

    Returns:
        None where everything is installed and fits.
    """
    jax = installed("jax")
    faults = list(_faults_of_jax(jax, running_jax))
    too_old = jax is None or running_jax or is_older(jax, OLDEST_JAX)
    kept = None if too_old else jax
    missing = [name for name in libraries if not is_installed(name)]
    unfit = [
        name
        for name in DOES_NOT_IMPORT
        if (name in libraries or not kept)
        and name not in missing
        and (have := installed(name))
        and not fits(name, have, kept or _NEWEST)
    ]
    numpy = installed("numpy")
    old_numpy = bool(numpy and is_older(numpy, OLDEST_NUMPY))
    if not (faults or missing or old_numpy or (kept and unfit)):
        return None
    reasons = [*faults, *(f"{name} is not installed" for name in missing)]
    if kept:
        reasons += [f"{n} {installed(n)} does not work with jax {kept}" for n in unfit]
    extras = _extras() if faults else ""
    wanted = f"jax{extras}=={kept}" if kept else f"jax{extras}{_newest_with(numpy)}"
    oldest = kept or OLDEST_JAX
    requirements = [wanted, *(_that_fits(n, oldest) for n in [*missing, *unfit])]
    replaces = [*(["jax", "jaxlib"] if faults and jax else []), *unfit]
    if old_numpy:
        reasons.append(f"NumPy {numpy} is older than {OLDEST_NUMPY}")
        requirements.append(f"numpy>={OLDEST_NUMPY}")
        replaces.append("numpy")
    elif numpy:
        requirements.append(f"numpy=={numpy}")
    return Change(tuple(reasons), tuple(requirements), tuple(replaces), bool(faults))


def _that_fits(name: str, jax: str) -> str:
    """What to ask pip for: not the releases that cannot be imported beside this JAX.

    Without it pip is content with what is there when it finds no newer one.
    """
    from packaging.specifiers import SpecifierSet

    turned = {"<": ">=", "==": "!="}
    wanted = ""
    for which_jax, releases in DOES_NOT_IMPORT.get(name, ()):
        if SpecifierSet(which_jax).contains(jax, prereleases=True):
            release = releases.lstrip("<=")
            operator = releases.removesuffix(release)
            wanted = wanted or turned[operator] + release  # the first is the strictest
    return name + wanted


def _newest_with(numpy: str | None) -> str:
    """The versions of JAX to choose from: ">=0.10.2", below one that wants more."""
    too_new = [JAX_NOT_TRIED]
    if numpy and not is_older(numpy, OLDEST_NUMPY):
        too_new += [jax for jax, wants in NUMPY_FOR_JAX if is_older(numpy, wants)]
    return f">={OLDEST_JAX},<{too_new[-1]}"


def _faults_of_jax(jax: str | None, running: str | None) -> Iterator[str]:
    """Clauses that say why the installed JAX has to be replaced or completed."""
    if running is not None:
        yield f"jax {running} is older than {OLDEST_JAX}"
    elif jax is None:
        yield "jax is not installed"
    elif is_older(jax, OLDEST_JAX):
        yield f"jax {jax} is older than {OLDEST_JAX}"
    else:
        for name, versions in _requirements_of_jax():
            have = installed(name)
            if have is None:
                pair = {name.replace("pjrt", "plugin"), name.replace("plugin", "pjrt")}
                if name == "jaxlib" or any(map(installed, pair)):
                    yield f"jax {jax} is installed without {name}"
            elif name == "libtpu":  # a newer one works, and images have such
                if clause := old_libtpu():
                    yield clause
            elif not versions.contains(have, prereleases=True):
                yield f"{name} {have} is not the one for jax {jax}"


def old_libtpu() -> str:
    """The clause about a libtpu older than the installed JAX needs; "" if it is not.

    Without metadata, where pip did not install it, it is not judged.
    """
    versions = dict(_requirements_of_jax()).get("libtpu", "")
    oldest, have = re.search(r"\d+(\.\d+)*", str(versions)), installed("libtpu")
    if have is None or oldest is None or not is_older(have, oldest[0]):
        return ""
    return (
        f"libtpu {have} is older than {oldest[0]}, which jax {installed('jax')} needs"
    )


def misfits(*names: str) -> str:
    """The clause about the first of some packages that is not this JAX's; "" if none.

    A package without metadata, one that pip did not install, is not judged.
    """
    wanted = dict(_requirements_of_jax())
    for name in names:
        have = installed(name)
        fits = have is None or name not in wanted
        if not fits and not wanted[name].contains(str(have), prereleases=True):
            return f"{name} {have} is not the one for jax {installed('jax')}"
    return ""


def _requirements_of_jax() -> Iterator[tuple[str, "SpecifierSet"]]:
    """(jaxlib or a plugin, which versions the installed JAX goes with)."""
    from packaging.requirements import InvalidRequirement, Requirement

    texts = list(importlib.metadata.requires("jax") or ())
    for cuda in ("12", "13"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            texts += importlib.metadata.requires(f"jax-cuda{cuda}-plugin") or ()
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        extras = {"", "tpu", "cuda12-local", "cuda13-local"}
        name, marker = requirement.name, requirement.marker
        if not re.fullmatch(r"jaxlib|libtpu|jax-cuda1[23]-(plugin|pjrt)", name):
            continue
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            yield name, requirement.specifier


def _extras() -> str:
    """What to write after "jax" so that the accelerator's packages come with it.

    NVIDIA's own libraries stay as they are where they are new enough for the plugin,
    and are not brought where the plugin runs on those of the system.
    """
    extras = ["tpu"] if installed("libtpu") or _is_tpu_runtime() else []
    for cuda in ("12", "13"):  # one of the two is left when pip is stopped between
        if installed(f"jax-cuda{cuda}-plugin") or installed(f"jax-cuda{cuda}-pjrt"):
            local = "" if installed(f"nvidia-cudnn-cu{cuda}") else "-local"
            extras.append(f"cuda{cuda}{local}")
    return f"[{','.join(extras)}]" if extras else ""


def _is_tpu_runtime() -> bool:
    """Whether Colab or Kaggle has given this notebook TPUs, libtpu or not."""
    if not {"COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"} & {*os.environ}:
        return False
    files = [*glob.glob("/dev/accel[0-9]*"), *glob.glob("/dev/vfio/[0-9]*")]
    return "ISTPUVM" in os.environ or bool(files)  # the word of Kaggle's image


def fits(name: str, version: str, jax: str) -> bool:
    """Whether a release of a library can be imported beside a JAX, as far as tried."""
    from packaging.specifiers import SpecifierSet

    return not any(
        SpecifierSet(which_jax).contains(jax, prereleases=True)
        and SpecifierSet(releases).contains(version, prereleases=True)
        for which_jax, releases in DOES_NOT_IMPORT.get(name, ())
    )


def bare_name(requirement: str) -> str:
    """The name of a package in what pip is asked for.

    >>> bare_name("jax[tpu]>=0.10.2")
    'jax'
    """
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def has_pip() -> bool:
    """Whether this Python has pip; setuptools' finder, which warns, is not called."""
    return importlib.machinery.PathFinder.find_spec("pip") is not None


def python_in_a_shell() -> str:
    """This Python as a word of a `!` line, whatever its path has in it."""
    path = sys.executable
    if sys.platform == "win32":
        return f'"{path}"'
    return shlex.quote(path).replace("{", "{{").replace("}", "}}")


def installed(name: str) -> str | None:
    """The version of an installed package, without importing it; None if there is none.

    What pip left behind when it was stopped half-way counts as not installed.
    """
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, TypeError, KeyError):
        return None


def is_installed(name: str) -> bool:
    """Whether pip finished installing a package: metadata and a module, not imported.

    A folder without a module in it is not one, nor is what a stopped pip left.
    """
    module = IMPORTED_AS.get(name, name)
    if installed(name) is None or (module in sys.modules and not sys.modules[module]):
        return False
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)  # of the first part: imports nothing
        for part in rest:
            top = f"{top}.{part}"
            folders = spec.submodule_search_locations if spec else None
            if not folders:
                return False
            spec = importlib.machinery.PathFinder.find_spec(top, folders)
    except ValueError:  # imported, and without a spec
        return True
    return spec is not None and spec.origin is not None


def is_imported(name: str) -> bool:
    """Whether a package's module has been imported in this process."""
    return IMPORTED_AS.get(name, name) in sys.modules


def is_older(version: str, than: str) -> bool:
    """Whether a version comes before a release.

    Example:
        >>> is_older("0.4.35", "0.10.2"), is_older("0.12.0.1", "0.10.2")
        (True, False)
        >>> is_older("0.10.2.dev20260401", "0.10.2")  # made before 0.10.2 was
        True

    Args:
        version: such as "0.10.2", "0.12.0.1" or "0.11.0.dev20260901+4f2a".
        than: a release.

    Returns:
        False also for a version that cannot be read: better to try than to refuse.
    """
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version) < Version(than)
    except InvalidVersion:
        return False


def is_readable(version: str) -> bool:
    """Whether pip could read a version; Debian's own packages have others."""
    from packaging.version import InvalidVersion, Version

    try:
        return bool(Version(version))
    except InvalidVersion:
        return False
