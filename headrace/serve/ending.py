"""Iterators that are not at their end when the process is: they are closed while there is an interpreter to do it."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Generator
from contextlib import suppress
from typing import Any, TypeVar

G = TypeVar("G", bound=Generator[Any, Any, Any])

_OPEN: weakref.WeakSet[Generator[Any, Any, Any]] = weakref.WeakSet()


def closed_at_exit(given: G) -> G:
    _OPEN.add(given)
    return given


@atexit.register
def _close_all() -> None:
    for given in list(_OPEN):
        with suppress(ValueError):  # a thread is in there
            given.close()
