"""Encoded sound in a form that libsndfile reads from.

It reads in small pieces. From an object of Python's each is a call back into the interpreter, which one thread has at a
time: those that decode side by side would wait for each other. A file in memory they read by themselves.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MOST = 4 << 20
"""Bytes that a file of this kind holds; what was read last stays in it."""
_crowds: list[None] = []
"""One for each time that several threads decode at the moment."""


@contextmanager
def crowded() -> Iterator[None]:
    """Several threads decode until it ends. For one alone, calls back into Python are the quicker way."""
    _crowds.append(None)
    try:
        yield
    finally:
        _crowds.pop()


def readable(data: bytes) -> int | io.BytesIO:
    """For `soundfile.SoundFile(…, closefd=False)`; until the same thread asks for the next."""
    if _crowds and len(data) <= MOST and hasattr(os, "memfd_create"):
        try:
            return _own.filled(data)
        except OSError:
            _own.file = None  # none to be had, or no room in it
    return _Bytes(data)


class _Bytes(io.BytesIO):
    """A seek to nowhere stays where it is, which libsndfile notices; an exception on that way would only be printed."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError, OSError):
            return self.tell()


class _File:
    def __init__(self) -> None:
        self.number = os.memfd_create("headrace-sound")
        self.process = os.getpid()
        self.size = 0

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_exiting() and hasattr(self, "number"):  # at exit `os` may be gone, and the process closes it
            os.close(self.number)


class _Own(threading.local):
    """The file of each thread."""

    file: _File | None = None

    def filled(self, data: bytes) -> int:
        if self.file is None or self.file.process != os.getpid():  # which a forked child would share with its parent
            self.file = _File()
        file = self.file
        if len(data) < file.size:
            os.ftruncate(file.number, len(data))
        file.size = len(data)
        if os.pwrite(file.number, data, 0) != len(data):
            raise OSError
        os.lseek(file.number, 0, os.SEEK_SET)
        return file.number


_own = _Own()
