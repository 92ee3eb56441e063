"""Readers keep few files open: those that were not used for longest close theirs, and open them again when needed.

A process may have a thousand files open, and a run with many sources and lanes has many times as many readers.
"""

from __future__ import annotations

import os
import resource
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

SHARE = 2
"""Readers keep half of the descriptors that this process may have; connections, workers and others have the rest."""
LEAST = 8


class Reader(Protocol):
    """What has files open, and can do without for a while. It is compared by identity."""

    num_files: int
    """Descriptors that it has open."""

    def rest(self) -> None:
        """Close the files. Nobody reads from them now."""

    def wake(self) -> None:
        """Open them again, if they are closed. They must be the same files."""


class _Open:
    def __init__(self) -> None:
        self.lock = threading.RLock()  # garbage collection may forget a reader in the middle of any line
        self.readers: dict[int, weakref.ref[Reader]] = {}
        """By id; those used last are last. One that is forgotten closes its files by itself."""
        self.users: dict[int, int] = {}


_OPEN = _Open()


def _start_anew() -> None:
    """In a forked child: whoever held the lock is not here, and copies of the parent's files are not ours to count."""
    global _OPEN
    _OPEN = _Open()


os.register_at_fork(after_in_child=_start_anew)


@contextmanager
def in_use(reader: Reader) -> Iterator[None]:
    """While its files are read from: they are open, and stay so. Others may have to rest for that."""
    opened, key = _OPEN, id(reader)
    with opened.lock:
        opened.readers.pop(key, None)
        opened.users[key] = opened.users.get(key, 0) + 1
        try:
            _make_room(opened, reader.num_files)
            reader.wake()
            opened.readers[key] = weakref.ref(reader)
        except BaseException:
            _left(opened, key)
            raise
    try:
        yield
    finally:
        with opened.lock:
            _left(opened, key)


def forget(reader: Reader) -> None:
    """It is closed for good."""
    with _OPEN.lock:
        _OPEN.readers.pop(id(reader), None)


def _left(opened: _Open, key: int) -> None:
    opened.users[key] -= 1
    if not opened.users[key]:
        del opened.users[key]


def make_room(num_files: int) -> None:
    """For files that are about to be opened."""
    with _OPEN.lock:
        _make_room(_OPEN, num_files)


def _make_room(opened: _Open, num_files: int) -> None:
    most = max(LEAST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // SHARE)
    living = {key: reader for key, ref in opened.readers.items() if (reader := ref()) is not None}
    total = num_files + sum(reader.num_files for reader in living.values())
    for key in [key for key in opened.readers if key not in living]:
        del opened.readers[key]
    for key, reader in living.items():
        if total <= most:
            return
        if key not in opened.users:
            del opened.readers[key]
            total -= reader.num_files
            reader.rest()
