"""Which epoch an `iter()` is of, when torch copies the data set into workers and tells nobody.

A few bytes that all copies share, over fork and spawn. Whoever comes with a key that was seen before is in the same
epoch; a new key begins the next one.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import context, reduction
from typing import Any

KEPT = 64
"""Keys that are remembered: a slow worker may come when others are an epoch further."""


class Turnstile:
    def __init__(self, content: dict[str, Any] | None = None) -> None:
        self._open(os.memfd_create("headrace-epochs"))
        with self._changed() as shared:
            shared.update(content or {"next": 0, "seen": [], "resume": None})

    def _open(self, memory: int) -> None:
        self._memory, self._lock = memory, threading.Lock()

    def enter(self, key: str) -> tuple[int, Any]:
        """The epoch of this key, and the state to go on from, where one was left for it."""
        with self._changed() as shared:
            found = next((seen for seen in shared["seen"] if seen["key"] == key), None)
            if found is None:
                found = {"key": key, "epoch": shared["next"], "resume": shared["resume"], "settled": False}
                shared["seen"] = [*shared["seen"], found][-KEPT:]
                shared["next"], shared["resume"] = found["epoch"] + 1, None
            return found["epoch"], found["resume"]

    def settle(self, key: str, epoch: int) -> None:
        """A state led those with this key to `epoch`: the one after it comes next. The first who says it is heard."""
        with self._changed() as shared:
            for seen in shared["seen"]:
                if seen["key"] == key and not seen["settled"]:
                    seen["settled"], shared["next"] = True, epoch + 1

    def leave(self, *, epoch: int | None = None, resume: Any = None) -> None:
        """For the next that comes with a new key."""
        with self._changed() as shared:
            if epoch is not None:
                shared["next"] = epoch
            shared["resume"] = resume

    def peek(self) -> tuple[int, Any]:
        """What the next one with a new key would get."""
        with self._changed() as shared:
            return shared["next"], shared["resume"]

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        with self._lock:
            fcntl.lockf(self._memory, fcntl.LOCK_EX)
            try:
                text = os.pread(self._memory, os.fstat(self._memory).st_size, 0)
                shared: dict[str, Any] = json.loads(text) if text else {}
                yield shared
                text = json.dumps(shared).encode()
                os.ftruncate(self._memory, len(text))
                os.pwrite(self._memory, text, 0)
            finally:
                fcntl.lockf(self._memory, fcntl.LOCK_UN)

    def __reduce__(self) -> tuple[Callable[..., Turnstile], tuple[Any, ...]]:
        if context.get_spawning_popen() is not None:  # on the way to a worker: it shares this one
            return _shared, (reduction.DupFd(self._memory),)
        with self._changed() as shared:
            return Turnstile, (dict(shared),)

    def __del__(self) -> None:
        if hasattr(self, "_memory"):
            os.close(self._memory)


def _shared(descriptor: Any) -> Turnstile:
    found = Turnstile.__new__(Turnstile)
    found._open(descriptor.detach())
    return found
