"""Decoders of videos that stay open: the ones that were used last, each for one thread at a time.

A process has its own: after a fork the child begins with none, and leaves those of its parent alone. A decoder that is
in use is never closed; one that has to go meanwhile is closed when it is given back.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.errors import SpecError, StateError, shown

if TYPE_CHECKING:
    from headrace.fetch.media.frames import FrameReader

log = logging.getLogger(__name__)

MOST = 128
"""Decoders that are kept open at most, whatever is asked for: each has a few megabytes, and maybe a file."""


class VideoDecoderCache:
    """At most `max_size` decoders, and no more than 128. Pickled, it takes its size along and nothing else."""

    def __init__(self, max_size: int = MOST) -> None:
        if isinstance(max_size, bool) or not isinstance(max_size, int) or max_size < 1:
            raise SpecError(f"max_size={shown(max_size)}: a whole number above 0 is expected")
        self.max_size = min(max_size, MOST)
        self._shelves: dict[int, _Shelf] = {}
        """By process. Those of a parent stay untouched, and are not even freed."""

    @contextmanager
    def get_decoder(self, key: str, open: Callable[[], FrameReader]) -> Iterator[FrameReader]:  # noqa: A002 (its name in the interface)
        """The decoder of `key`, for the time of the block. `open` makes it where there is none."""
        shelf, held = self._shelf(), _Held()
        try:
            yield shelf.take(key, open, held)
        finally:
            # A child that was forked within the block leaves the parent's decoder to the parent.
            if held.entry is not None and self._shelf() is shelf:
                shelf.give_back(held.entry)

    def stats(self) -> dict[str, float]:
        """hits, misses, evictions, hit_rate, size. Of this process, since it began."""
        return self._shelf().stats()

    def invalidate(self, key: str) -> None:
        """Close the decoder of `key`, if there is one, so that the next one is opened anew."""
        self._shelf().drop([key])

    def clear(self) -> None:
        """Close all. What was counted stays."""
        self._shelf().drop(None)

    def __len__(self) -> int:
        return len(self._shelf().names())

    def __contains__(self, key: object) -> bool:
        return key in self._shelf().names()

    def __reduce__(self) -> tuple[type[VideoDecoderCache], tuple[int]]:
        return VideoDecoderCache, (self.max_size,)

    def _shelf(self) -> _Shelf:
        pid = os.getpid()
        found = self._shelves.get(pid)
        # Two threads may get here at once; setdefault gives both the same one.
        return self._shelves.setdefault(pid, _Shelf(self.max_size)) if found is None else found


class _Entry:
    """A decoder, and who has it."""

    def __init__(self, key: str, owner: int) -> None:
        self.key = key
        self.reader: FrameReader | None = None
        self.owner: int | None = owner
        """The thread that opens or uses it; None while nobody does."""
        self.gone = False
        """It is no longer on the shelf: closed, or to be closed when it is given back."""


class _Held:
    """What a block has of the shelf, known from the moment it has it: it is given back whatever comes after."""

    entry: _Entry | None = None


class _Shelf:
    """The decoders of one process."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._change = threading.Condition()
        """Guards all that follows, and tells when an entry is given back."""
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        """The one that was used last is last."""
        self._hits = self._misses = self._evictions = 0

    def take(self, key: str, open_it: Callable[[], FrameReader], held: _Held) -> FrameReader:
        me = threading.get_ident()
        with self._change:
            entry = held.entry = self._wait_for(key, me)
            if entry is not None and entry.reader is not None:
                self._hits += 1
                return entry.reader
            self._misses += 1
            entry = held.entry = self._entries[key] = _Entry(key, me)
            evicted = self._evict()
        _close(evicted)  # first, so that no more are open than may be
        entry.reader = open_it()
        return entry.reader

    def _wait_for(self, key: str, me: int) -> _Entry | None:
        """The entry of `key`, now ours; None if there is none, or no longer."""
        while (entry := self._entries.get(key)) is not None:
            if entry.owner is None:
                entry.owner = me
                self._entries.move_to_end(key)
                return entry
            if entry.owner == me:
                raise StateError(f"{shown(key)}: this thread has its decoder already, and would wait for itself")
            self._change.wait()
        return None

    def _evict(self) -> list[_Entry]:
        """Take out what is too much, the ones that were not used for longest, and first those that nobody uses."""
        out: list[_Entry] = []
        while len(self._entries) > self._max_size:
            waiting = (entry for entry in self._entries.values() if entry.owner is None)
            entry = next(waiting, None) or next(iter(self._entries.values()))
            self._forget(entry)
            self._evictions += 1
            out.append(entry)
        return [entry for entry in out if entry.owner is None]

    def give_back(self, entry: _Entry) -> None:
        with self._change:
            if entry.reader is None:  # it could not be opened; who waits for it tries again
                self._forget(entry)
            entry.owner = None
            gone = entry.gone
            self._change.notify_all()
        if gone:
            _close([entry])

    def drop(self, keys: list[str] | None) -> None:
        with self._change:
            found = [self._entries[key] for key in list(self._entries) if keys is None or key in keys]
            for entry in found:
                self._forget(entry)
            idle = [entry for entry in found if entry.owner is None]
        _close(idle)

    def names(self) -> list[str]:
        with self._change:
            return [key for key, entry in self._entries.items() if entry.reader is not None]

    def stats(self) -> dict[str, float]:
        with self._change:
            asked = self._hits + self._misses
            return {
                "hits": self._hits,
                "misses": self._misses,
                "evictions": self._evictions,
                "hit_rate": self._hits / asked if asked else 0.0,
                "size": sum(entry.reader is not None for entry in self._entries.values()),
            }

    def _forget(self, entry: _Entry) -> None:
        entry.gone = True
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]


def _close(entries: list[_Entry]) -> None:
    for entry in entries:
        if entry.reader is None:
            continue
        try:
            entry.reader.close()
        except Exception:
            log.warning("the decoder of %s could not be closed", shown(entry.key), exc_info=True)
