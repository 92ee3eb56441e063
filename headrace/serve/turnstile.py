"""Which epoch an `iter()` is of, when torch copies the data set into workers and tells nobody.

A few bytes that all copies share, over fork and spawn. Whoever comes with a key that was seen before is in the same
epoch; a new key begins the next one, and so does a consumer that was here with this key: keys of torch come again
where its generator is seeded again.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import context, reduction
from typing import Any, NamedTuple

from headrace.files import memory_file

KEPT = 64
"""Keys that are remembered: a slow worker may come when others are an epoch further."""


class Entry(NamedTuple):
    """What one who comes is told."""

    epoch: int
    resume: Any = None
    """The state to go on from, where one was left."""
    asked: bool = False
    """The epoch was asked for after the state was left: a state that leads elsewhere does not count."""
    held: Any = None
    """What was held for all who come."""


class Turnstile:
    def __init__(self, content: dict[str, Any] | None = None) -> None:
        self._open(memory_file("headrace-epochs"))
        with self._changed() as shared:
            shared.update(content or {"next": 0, "seen": [], "resume": None, "asked": False})

    def _open(self, memory: int) -> None:
        self._memory, self._lock = memory, threading.Lock()

    def enter(self, key: str, who: int | None = None) -> Entry:
        """`who`: one of those who come with this key, each once in an epoch. None: it may come several times."""
        with self._changed() as shared:
            found = self._last(shared, key)
            if found is None or (who is not None and who in found["who"]):
                found = {"key": key, "who": [], "settled": False, "epoch": shared["next"]}
                found |= {name: shared[name] for name in ("resume", "asked")} | {"held": shared.get("held")}
                shared["seen"] = [*shared["seen"], found][-KEPT:]
                shared |= {"next": found["epoch"] + 1, "resume": None, "asked": False}
            if who is not None:
                found["who"].append(who)
            return Entry(found["epoch"], found["resume"], found["asked"], found["held"])

    def settle(self, key: str, epoch: int) -> None:
        """A state led those with this key to `epoch`: the one after it comes next. The first who says it is heard."""
        with self._changed() as shared:
            seen = self._last(shared, key)
            if seen is not None and not seen["settled"]:
                seen["settled"], shared["next"] = True, epoch + 1

    def undo(self, key: str) -> None:
        """Nothing came of it: the next one with a new key gets what these were told."""
        with self._changed() as shared:
            seen = self._last(shared, key)
            if seen is not None and not seen["settled"]:
                shared["seen"].remove(seen)
                shared |= {"next": seen["epoch"], "resume": seen["resume"], "asked": seen["asked"]}

    def leave(self, *, epoch: int | None = None, resume: Any = None) -> None:
        """For the next that comes with a new key: a state, or an epoch."""
        with self._changed() as shared:
            if epoch is not None:
                shared |= {"next": epoch, "asked": shared["resume"] is not None}
            else:
                shared |= {"resume": resume, "asked": False}

    def hold(self, value: Any) -> None:
        """For all who come with new keys, until another value is held."""
        with self._changed() as shared:
            shared["held"] = value

    def peek(self) -> tuple[int, Any, str]:
        """What the next one with a new key would get; and the key of those who came last."""
        with self._changed() as shared:
            return shared["next"], shared["resume"], shared["seen"][-1]["key"] if shared["seen"] else ""

    def is_first(self, what: str) -> bool:
        """Whether nobody has come to say this before: what concerns all is said by one of them."""
        with self._changed() as shared:
            said = shared.setdefault("said", [])
            new = what not in said
            if new:
                said.append(what)
            return new

    def note(self, key: str, text: str, most: int) -> int | None:
        """Keep one more of at most so many notes, for all copies; which one it is, or None where there are so many. A
        note with a known key is kept already."""
        with self._changed() as shared:
            notes = shared.setdefault("notes", {})
            if key not in notes and len(notes) >= most:
                return None
            notes.setdefault(key, text)
            return list(notes).index(key) + 1

    def notes(self) -> dict[str, str]:
        with self._changed() as shared:
            return dict(shared.get("notes", {}))

    @staticmethod
    def _last(shared: dict[str, Any], key: str) -> Any:
        return next((seen for seen in reversed(shared["seen"]) if seen["key"] == key), None)

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        with self._lock:
            fcntl.lockf(self._memory, fcntl.LOCK_EX)
            try:
                text = os.pread(self._memory, os.fstat(self._memory).st_size, 0)
                shared: dict[str, Any] = json.loads(text) if text else {}
                yield shared
                # Never cut: who is killed on the way leaves what was there, or what is there now.
                os.pwrite(self._memory, json.dumps(shared).encode().ljust(len(text)), 0)
            finally:
                fcntl.lockf(self._memory, fcntl.LOCK_UN)

    def __reduce__(self) -> tuple[Callable[..., Turnstile], tuple[Any, ...]]:
        if context.get_spawning_popen() is not None:  # on the way to a worker: it shares this one
            return _shared, (reduction.DupFd(self._memory),)
        with self._changed() as shared:
            return Turnstile, (dict(shared),)

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_exiting() and hasattr(self, "_memory"):  # at exit `os` may be gone, and the process closes it
            os.close(self._memory)


def _shared(descriptor: Any) -> Turnstile:
    found = Turnstile.__new__(Turnstile)
    found._open(descriptor.detach())
    return found
