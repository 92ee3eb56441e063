"""How work that waits for the network or for another process is ended from outside, and shows that it goes on.

The one who starts the work makes a `Stop` and lends it to its thread with `stopped_by`. Everything below finds it
there, so that no call in between has to hand it on: waits are `pause`, long work calls `beat`, requests have a `Cover`.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.errors import WorkerError

BEAT_SECONDS = 0.2


class Stopped(Exception):
    """The owner of this work has closed. For the owner only; it never reaches a user."""


class Stop:
    """Ends the waits and reads of one piece of work, from any thread."""

    def __init__(self, whole: Stop | None = None) -> None:
        """`whole`: that of the work which this is a part of. It ends this too, and gets its signs of life."""
        self.pulse = time.monotonic()
        """When the work last showed that it goes on."""
        self._event = threading.Event()
        # Garbage collection may close an owner in the middle of our own code, in the same thread.
        self._lock = threading.RLock()
        self._parts: set[Callable[[], None]] = set()
        """What ends the parts of the work, and its requests."""
        self._whole = whole
        if whole is not None:
            whole._add(self.set)

    def set(self) -> None:
        self._event.set()
        with self._lock:
            for end in list(self._parts):  # garbage collection may close one meanwhile
                end()

    def close(self) -> None:
        """This part is over; the work that it is a part of continues."""
        if self._whole is not None:
            self._whole._drop(self.set)

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)

    def goes_on(self) -> None:
        """A sign of life."""
        self.pulse = time.monotonic()
        if self._whole is not None:
            self._whole.goes_on()

    def _add(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._parts.add(end)
        if self.is_set():
            end()

    def _drop(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._parts.discard(end)


class Cover:
    """The sockets of one request, so that a read that waits for bytes can be ended by another thread."""

    def __init__(self) -> None:
        self._stop = current()
        self._handles: dict[int, socket.socket] = {}
        self._lock = threading.RLock()
        if self._stop is not None:
            self._stop._add(self.end)

    def watch(self, sock: socket.socket) -> None:
        if self._stop is None or sock.fileno() in self._handles:
            return
        # A second descriptor of our own: the first may be closed, wrapped for TLS or reused while we hold it.
        handle = socket.socket(fileno=os.dup(sock.fileno()))
        with self._lock:
            self._handles[sock.fileno()] = handle
        if self._stop.is_set():
            self.end()

    def end(self) -> None:
        with self._lock:
            for handle in self._handles.values():
                try:
                    handle.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it has ended by itself

    def close(self) -> None:
        if self._stop is not None:
            self._stop._drop(self.end)
        with self._lock:
            for handle in self._handles.values():
                handle.close()
            self._handles.clear()


class _Thread(threading.local):
    stop: Stop | None = None
    on_beat: Callable[[], None] | None = None


_THREAD = _Thread()
_LISTENERS: list[Callable[[], None]] = []


def listen(on_beat: Callable[[], None]) -> None:
    """Have `on_beat` called at each sign of life of this process, in whichever thread that is."""
    _LISTENERS.append(on_beat)


def current() -> Stop | None:
    """The `Stop` that this thread's work runs under."""
    return _THREAD.stop


@contextmanager
def stopped_by(stop: Stop | None, on_beat: Callable[[], None] | None = None) -> Iterator[None]:
    """Run the body under `stop` (None: under the one already there). `on_beat` is called while the work goes on."""
    before = _THREAD.stop, _THREAD.on_beat
    _THREAD.stop, _THREAD.on_beat = stop or before[0], on_beat or before[1]
    try:
        yield
    finally:
        _THREAD.stop, _THREAD.on_beat = before


def lend(stop: Stop, on_beat: Callable[[], None] | None) -> Callable[[], None]:
    """What a thread calls that runs under `stop` to its end; `on_beat` None: with that of this thread."""
    wanted = on_beat or _THREAD.on_beat

    def begin() -> None:
        _THREAD.stop, _THREAD.on_beat = stop, wanted

    return begin


def look() -> None:
    """Raise `Stopped` when the work should end. No sign of life: for those who wait for other threads to give one."""
    stop = _THREAD.stop
    if stop is not None and stop.is_set():
        raise Stopped


def beat() -> None:
    """Say that the work goes on; raises `Stopped` when it should not."""
    look()
    if _THREAD.stop is not None:
        _THREAD.stop.goes_on()
    if _THREAD.on_beat is not None:
        _THREAD.on_beat()
    for listener in _LISTENERS:
        listener()


def pause(seconds: float) -> None:
    """Sleep, with signs of life, until the time is over or `Stopped`."""
    until = time.monotonic() + seconds
    while True:
        beat()
        _require_parent()
        left = min(until - time.monotonic(), BEAT_SECONDS)
        if left <= 0:
            return
        stop = _THREAD.stop
        if stop is None:
            time.sleep(left)
        else:
            stop.wait(left)


def _require_parent() -> None:
    """A daemon ends with its parent. One that waits here, as a worker of torch may, would wait for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None and multiprocessing.current_process().daemon and not parent.is_alive():
        raise WorkerError(f"the process that started this one (pid {parent.pid}) has ended, so nothing is waited for")
