"""A few files open at a time, the ones used last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from headrace.catalog.plain import PlainFile

MOST = 64
"""Files that are open at once, beside those being read at the moment."""


@dataclass(eq=False)
class _Entry:
    file: PlainFile
    users: int = 0
    dropped: bool = False


class OpenFiles:
    """Reads from files by key; opens them when needed, and closes none that is being read."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._entries)

    def read(self, key: Hashable, opened: Callable[[], PlainFile], start: int, stop: int) -> bytes:
        """Bytes [start, stop) of the file that `opened` opens. Raises what opening and reading raise."""
        entry = self._taken(key) or self._stored(key, opened())
        try:
            return entry.file.read_bytes(start, stop)
        finally:
            self._give_back(entry)

    def put(self, key: Hashable, file: PlainFile) -> None:
        """Keep a file that is open already."""
        self._give_back(self._stored(key, file))

    def drop(self, key: Hashable) -> None:
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._end(entry)

    def close(self) -> None:
        with self._lock:
            for key in list(self._entries):
                self.drop(key)

    def abandon(self) -> None:
        """In a forked child, whose parent's these are: close the child's copies. The lock may be held for ever."""
        for entry in list(self._entries.values()):
            entry.file.close()

    def _taken(self, key: Hashable) -> _Entry | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.users += 1
            if entry.dropped:  # by garbage collection, in between
                entry.users -= 1
                return None
            self._entries.move_to_end(key)
            return entry

    def _stored(self, key: Hashable, file: PlainFile) -> _Entry:
        with self._lock:
            entry = self._taken(key)
            if entry is not None:
                file.close()
                return entry
            entry = self._entries[key] = _Entry(file, users=1)
            while len(self._entries) > self._most:
                self._end(self._entries.popitem(last=False)[1])
            return entry

    def _give_back(self, entry: _Entry) -> None:
        with self._lock:
            entry.users -= 1
            if entry.dropped and not entry.users:
                entry.file.close()

    def _end(self, entry: _Entry) -> None:
        entry.dropped = True
        if not entry.users:
            entry.file.close()
