"""What a type checker gets to see, and what it is not told to pass over."""

import ast
import re
import tomllib

import pytest

import spmd_helpers
from tests.test_house import PACKAGE, ROOT, SOURCES, for_types_only, modules

# `# type: ignore[code]  # reason`
EXCEPTION = re.compile(r"# type: ignore\[[\w, -]+\]  # \w.*")


def names_for_type_checkers() -> dict[str, str]:
    """Public name -> where it lives, as the imports for type checkers have it."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf8"))
    imports = for_types_only(tree)
    assert all(alias.asname == alias.name for node in imports for alias in node.names)
    return {alias.name: node.module for node in imports for alias in node.names}


def test_a_type_checker_knows_every_public_name():
    assert names_for_type_checkers() == spmd_helpers._HOMES


def without_a_reason(text: str) -> list[str]:
    """The comments of a file that pass over an error and do not say which and why."""
    comments = re.findall(r"# type: ignore.*", text)
    return [comment for comment in comments if not EXCEPTION.fullmatch(comment)]


@pytest.mark.parametrize("path", modules(*SOURCES), ids=lambda path: path.stem)
def test_an_error_is_passed_over_for_a_reason(path):
    text = path.read_text("utf8")
    assert without_a_reason(text) == []
    assert "# mypy:" not in text


def test_an_error_that_is_passed_over_without_one_is_seen():
    reason = "x = f()  # type: ignore[no-untyped-call]  # JAX has no type for it"
    assert without_a_reason(reason) == []
    for bare in ("# type: ignore", "# type: ignore[misc]", "# type: ignore  # old"):
        assert without_a_reason(f"x = 1  {bare}") == [bare]


def test_the_checker_is_strict_everywhere():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["tool"][
        "mypy"
    ]
    assert settings["strict"]
    assert settings["files"] == ["src"]
    for override in settings["overrides"]:
        assert set(override) == {"module", "ignore_missing_imports"}
        assert not [name for name in override["module"] if name.startswith("spmd")]
