"""The limit of a cache: what may stay on disk beside the files that are being read."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from headrace.catalog.shard import Shard
from headrace.errors import NoSpace
from headrace.fetch import sidecar
from headrace.fetch.leases import Grade

log = logging.getLogger(__name__)

YIELDING: tuple[tuple[Grade, ...], ...] = ((), (Grade.KEPT,), (Grade.KEPT, Grade.AHEAD))
"""What goes for a file that is needed now: first what nobody has a lease on, then also what is needed less."""

_TOLD: set[tuple[int, Path]] = set()
"""The caches whose limit was seen exceeded, by process: it is said once."""


class Room:
    def __init__(
        self,
        top: Path,
        limit: int | None,
        in_use: Callable[[Path, Collection[Grade]], bool],
        remove: Callable[[Path, Collection[Grade]], bool],
    ) -> None:
        """`in_use`: whether somebody has a lease on a place, but for some grades. `remove`: the file there, unless it
        is leased, but for some grades."""
        self._top, self._limit, self._in_use, self._remove = top, limit, in_use, remove
        self._over = False
        """Whether the limit may be exceeded because of files in use: it is looked at again when one is let go. Others
        find out at the same time; so it is set by whoever sees it so, and unset only by one who looks after that."""

    def make(self, shard: Shard, *, ahead: bool) -> None:
        """Keep to the limit, as far as files in use let us. `ahead`: the shard is not needed yet, so there must be room
        for it."""
        if self._limit is None:
            return
        if shard.size > self._limit:
            raise NoSpace(
                f"{shard} needs {shard.size:,} bytes, but the cache limit is {self._limit:,} bytes; raise "
                f"HEADRACE_CACHE_BYTES to hold at least two shards"
            )
        over = self._lacking() if ahead else 0  # nothing goes in vain
        over = over if over > 0 else self._reduce(YIELDING[:2] if ahead else YIELDING)
        if over > 0 and ahead:
            why = f"the cache limit is {self._limit:,} bytes, and all other files are being read"
            raise NoSpace(f"{shard} needs {shard.size:,} bytes, but {why}; raise HEADRACE_CACHE_BYTES")
        self._over = self._over or over > 0
        if over > 0 and (os.getpid(), self._top) not in _TOLD:
            _TOLD.add((os.getpid(), self._top))
            log.warning(
                "%s: the cache limit of %s bytes is exceeded by %s bytes, because all other shards are being read; "
                "this is said once (see HEADRACE_CACHE_BYTES)",
                shard,
                f"{self._limit:,}",
                f"{over:,}",
            )

    def keep_again(self) -> None:
        """Something was let go: go back to the limit, where it was exceeded. If that fails, another time."""
        if self._over:
            with suppress(OSError):
                self.keep()

    def keep(self) -> None:
        """Go down to the limit, as far as files in use let us."""
        if self._limit is not None:
            self._over = False
            self._over = self._reduce(YIELDING[:2]) > 0 or self._over

    def free(self, needed: int, *, ahead: bool) -> int:
        """Remove files, those that are needed least and were unused for longest first, until so many bytes are free."""
        return self._free(needed, self._files(), YIELDING[:2] if ahead else YIELDING)

    def _lacking(self) -> int:
        """How much would be over the limit if all went that nobody reads or has fetched ahead."""
        assert self._limit is not None
        return sum(file.size for file in self._files() if self._in_use(file.place, YIELDING[1])) - self._limit

    def _reduce(self, grades: tuple[tuple[Grade, ...], ...]) -> int:
        """Remove what is over the limit; gives how much still is."""
        assert self._limit is not None
        files = self._files()
        over = sum(file.size for file in files) - self._limit
        return over - self._free(over, files, grades) if over > 0 else 0

    def _free(self, needed: int, files: list[_File], grades: tuple[tuple[Grade, ...], ...]) -> int:
        freed = 0
        waiting = sorted((file for file in files if file.is_whole), key=lambda file: sidecar.last_use(file.place))
        for yielding in grades:
            stay = []
            for file in waiting:
                # One that is gone by now counts too: another that makes room at the same time has removed it.
                if freed < needed and (not os.path.lexists(file.place) or self._remove(file.place, yielding)):
                    freed += file.size
                else:
                    stay.append(file)
            waiting = stay
        return freed

    def _files(self) -> list[_File]:
        """The files of ours, and those that somebody is fetching now."""
        files = []
        for place, known in sidecar.walk(self._top):
            if not known.ours:
                continue
            try:
                files.append(_File(place, place.lstat().st_size, is_whole=True))
            except OSError:
                if self._in_use(place, ()):
                    files.append(_File(place, max(known.size, 0), is_whole=False))
        return files


class _File(NamedTuple):
    place: Path
    size: int
    is_whole: bool
    """Whether it lies there; it is being fetched otherwise."""
