"""Iterators that are not at their end when the process is: they are closed while there is an interpreter to do it."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Generator
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import Any, TypeVar

G = TypeVar("G", bound=Generator[Any, Any, Any])

_OPEN: weakref.WeakKeyDictionary[Generator[Any, Any, Any], int] = weakref.WeakKeyDictionary()
"""With the process that each is open in."""


def closed_at_exit(given: G) -> G:
    """Also in a worker, whose own frames may hold it to the end."""
    if os.getpid() not in _OPEN.values():
        Finalize(None, _close_all, exitpriority=10)
    _OPEN[given] = os.getpid()
    return given


@atexit.register
def _close_all() -> None:
    for given in [given for given, process in _OPEN.items() if process == os.getpid()]:
        with suppress(ValueError):  # a thread is in there
            given.close()
