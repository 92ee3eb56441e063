"""Checks of plain values that users and checkpoints give."""

from __future__ import annotations

from operator import index
from typing import Any


def as_int(value: Any) -> int | None:
    """A whole number as a plain int, also one of numpy or torch. None: it is something else, or a truth value."""
    if type(value) is int:
        return value
    kind = str(getattr(value, "dtype", type(value).__name__))
    if "bool" in kind or not hasattr(value, "__index__"):
        return None
    try:
        return index(value)
    except (TypeError, ValueError, RuntimeError):  # an array of several numbers, or of fractions
        return None
