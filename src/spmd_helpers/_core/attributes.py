"""Attributes of objects that answer to any name, or raise what they like."""

from typing import Any


def attribute(x: object, name: str, default: Any = None) -> Any:
    """An attribute of x, or the default, whatever x raises when it has none.

    A dict with attribute access may raise KeyError where Python expects
    AttributeError; then `getattr` with a default raises too.

    >>> class Settings(dict):
    ...     __getattr__ = dict.__getitem__
    >>> attribute(Settings(rate=0.1), "rate"), attribute(Settings(), "sharding")
    (0.1, None)
    """
    try:
        return getattr(x, name, default)
    except Exception:
        return default


def has_method(x: object, name: str) -> bool:
    """Whether the class of x defines a method: a dict's keys are none.

    >>> has_method({}, "items"), has_method({"lower": len}, "lower")
    (True, False)
    """
    return callable(attribute(type(x), name))
