"""Where things lie, and what the two configuration files say about them."""

import importlib.metadata
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import yaml
from packaging.version import Version

from tools import ROOT


class BookError(Exception):
    """A mistake in a chapter or in the configuration, said in one sentence."""


@dataclass(frozen=True)
class Book:
    """One checkout: its folder, and the settings that the tools need."""

    root: Path
    title: str
    repository: str  # public address, "" while it is not known
    version: str  # of the package; the repository's tag is "v" + version

    @property
    def masters(self) -> list[Path]:
        return sorted((self.root / "book" / "chapters").glob("[0-9][0-9]_*.md"))

    @property
    def pages(self) -> list[Path]:
        """The masters of notebooks outside the chapters, which have no exercises."""
        return sorted((self.root / "book" / "pages").glob("*.md"))

    def generated(self) -> list[Path]:
        """Every notebook that now lies in the two generated folders."""
        folders = (self.root / "notebooks", self.root / "solutions")
        return sorted(p for folder in folders for p in folder.glob("*.ipynb"))

    def name_of(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def output_jax() -> str:
    """The JAX whose outputs are stored: the newest that requirements.txt pins."""
    pins = (ROOT / "requirements.txt").read_text("utf8")
    return max(re.findall(r"^jax==([\w.]+)", pins, re.M), key=Version)


def makes_outputs() -> bool:
    """Whether the JAX of this Python is the one whose outputs are stored."""
    return importlib.metadata.version("jax") == output_jax()


def read_book(root: Path = ROOT) -> Book:
    """The settings of the checkout at `root`."""
    config = yaml.safe_load((root / "_config.yml").read_text("utf8"))
    project = tomllib.loads((root / "pyproject.toml").read_text("utf8"))["project"]
    repository = config.get("repository") or {}
    address = (repository.get("url") or "").rstrip("/")
    if address and not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", address):
        raise BookError(
            f"_config.yml: repository url {address!r} is not an https address; "
            'write https://host/owner/name, or "" while there is none'
        )
    return Book(
        root=root,
        title=config["title"],
        repository=address,
        version=project["version"],
    )
