"""The bytes of videos, wherever they lie: a file of the user's, a part in the cache, or far away.

A file of the user's is read in place, and must be the one that was listed (size and time of change). Of a remote file,
what admitted episodes need is fetched in the background into the common cache; what is read before it has come is asked
for by its own byte range. A cached file is taken for what it was when it was leased while its inode, size and time of
change are the same, which each read checks; where they are not, the bytes come from the server, and it comes again.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from headrace.catalog.local import open_listed
from headrace.catalog.shard import Shard
from headrace.catalog.stop import Stopped, current, stopped_by
from headrace.errors import DataError, FetchError, HeadraceError, SpecError, shown
from headrace.fetch.cache import ShardCache
from headrace.lerobot.ahead import Ahead
from headrace.lerobot.opened import OpenFiles
from headrace.lerobot.parts import Want
from headrace.lerobot.ranges import Readable, range_of
from headrace.lerobot.tables import Table, Tables, remote_table

if TYPE_CHECKING:
    from headrace.fetch.media.mp4 import Track

WHOLE_BYTES = 4 << 20
"""A file of so many bytes or less is fetched whole."""
WHOLE_SHARE = 2
"""A file is fetched whole if the episode takes 1/2 of it or more."""


class Listed(Protocol):
    """What is asked of a data set's `Root`."""

    def shard(self, path: str) -> Shard: ...


class VideoFiles:
    """Byte access to the videos of a data set, and what episodes need of them, fetched ahead.

        files.admit(episode, [("videos/top/file-000.mp4", 120, 240)])
        files.open("videos/top/file-000.mp4").read(0, 16)
        files.release(episode)

    For one consumer, whose threads may share it. Nothing runs and nothing is open before it is used. A forked child
    starts afresh, with no episode admitted; so does a pickled copy.
    """

    def __init__(self, root: Listed, cache: ShardCache, *, workers: int = 4, prefetch: bool = True) -> None:
        if workers < 0:
            raise SpecError(f"video_prefetch_workers={shown(workers)}: it is a number of threads, 0 or more")
        self._root, self._cache, self._workers, self._prefetch = root, cache, workers, prefetch
        self._closed = False
        self._desks: dict[int, _Desk] = {}
        """By process: after a fork, threads, leases and whoever held a lock are the parent's."""

    def open(self, path: str) -> VideoBytes:
        shard = self._root.shard(path)
        if shard.size < 0:
            raise DataError(f"{shard}: its size is not known, so its end is not found")
        return VideoBytes(self, path, shard)

    def track(self, path: str) -> Track:
        """Where its frames are. Read once, and kept while there is room."""
        return self._here().track(path, self.open(path).shard)

    def admit(self, key: Hashable, wanted: Sequence[tuple[str, int, int]]) -> None:
        """An episode was admitted, and will read frames [first, stop) of these files: fetch them in the background.

        A failure shows when a frame is read. Admitted again, it wants the new ones and no others.
        """
        if self._prefetch and self._workers and not self._closed:
            far = [want for want in wanted if self._is_far(want[0])]
            if far or self._desks:
                self._here().ahead.admit(key, far)

    def release(self, key: Hashable) -> None:
        """The episode has left. What nobody else uses, here or elsewhere, is removed, unless the cache keeps it.

        Waits for nothing, and may be called by garbage collection.
        """
        desk = self._desks.get(os.getpid())
        if desk is not None:
            desk.ahead.release(key)

    def stats(self) -> dict[str, float]:
        """What was done so far, and what is held.

        `files`, `ranges`, `bytes`: fetched ahead (also by another process that was waited for); `skipped` for want of
        room, `failed`, `lost`. `direct_reads` and `direct_bytes`: read from where they lie. `seconds_waited`: how long
        readers waited for what was not here. `held`: parts; `waiting`: wants that are not done yet; `tables`: kept.
        """
        return self._here().stats()

    def close(self) -> None:
        """End the threads within a second and let go of everything. What lies in the cache stays. Twice is fine."""
        self._closed = True
        desk = self._desks.get(os.getpid())
        if desk is not None:
            desk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., VideoFiles], tuple[Any, ...]]:
        made = partial(VideoFiles, workers=self._workers, prefetch=self._prefetch)
        return made, (self._root, self._cache)

    def _is_far(self, path: str) -> bool:
        try:
            shard = self._root.shard(path)
        except HeadraceError:
            return True  # whoever fetches it tells
        return shard.origin.local_path(shard) is None

    def _here(self) -> _Desk:
        desk = self._desks.get(os.getpid())
        return self._started() if desk is None else desk

    def _started(self) -> _Desk:
        new = _Desk(self._root, self._cache, self._workers if self._prefetch else 0)
        if self._closed:
            new.close()
        desk = self._desks.setdefault(os.getpid(), new)
        if desk is new:
            desk.forgotten = weakref.finalize(self, desk.close)
            for pid in [pid for pid in list(self._desks) if pid != os.getpid()]:
                old = self._desks.pop(pid, None)
                if old is not None:
                    old.abandon()
        return desk


class VideoBytes:
    """The bytes of one video. Keeps nothing open itself, so it may be held, shared and pickled."""

    def __init__(self, files: VideoFiles, path: str, shard: Shard) -> None:
        self.files, self.path, self.shard = files, path, shard
        self.name, self.size = str(shard), shard.size

    def read(self, start: int, stop: int) -> bytes:
        """Exactly the bytes [start, stop)."""
        if not 0 <= start <= stop <= self.size:
            raise DataError(f"{self.name}: bytes [{start}, {stop}) are outside its {self.size:,} bytes; fetch it again")
        return self.files._here().read(self.path, self.shard, start, stop)


class _Desk:
    """What one process has: open files, tables, and what is fetched ahead."""

    def __init__(self, root: Listed, cache: ShardCache, workers: int) -> None:
        self.pid = os.getpid()
        self.forgotten: weakref.finalize[Any, Any] | None = None
        self._root, self._cache = root, cache.strict()
        self._opened = OpenFiles()
        self._tables = Tables()
        self._unreadable: set[str] = set()
        """Files that are no videos we can read: not looked into again by the threads."""
        self.ahead = Ahead(self._cache.passing(), workers, self._place, self._opened.put, self._opened.drop)
        self._lock = threading.Lock()
        self._direct_reads = self._direct_bytes = 0
        self._waited = 0.0

    def read(self, path: str, shard: Shard, start: int, stop: int) -> bytes:
        if start == stop:
            return b""
        if shard.origin.local_path(shard) is not None:
            self._check_open(shard)
            return self._opened.read(path, partial(open_listed, shard), start, stop)
        found = self._near(path, start, stop)
        return self._far(path, shard, start, stop) if found is None else found

    def track(self, path: str, shard: Shard) -> Track:
        kept = self._tables.peek(path)
        if kept is None:
            with self._waiting(shard):
                if self._comes_soon(shard):
                    self.ahead.wait_for(path, 0, shard.size)
                kept = self._tables.get(path, partial(self._load, path, shard))
        return kept.track

    def stats(self) -> dict[str, float]:
        names = ("files", "ranges", "bytes", "skipped", "failed", "lost")
        return {
            **dict.fromkeys(names, 0),
            **self.ahead.stats(),
            "direct_reads": self._direct_reads,
            "direct_bytes": self._direct_bytes,
            "seconds_waited": self._waited,
            "tables": len(self._tables),
        }

    def close(self) -> None:
        self.ahead.close()
        if self.pid == os.getpid():
            self._tables.clear()
            self._opened.close()

    def abandon(self) -> None:
        """In a forked child: let the parent's desk alone, and keep none of its files open."""
        if self.forgotten is not None:
            self.forgotten.detach()
        self._opened.abandon()

    # --- reading

    def _near(self, path: str, start: int, stop: int) -> bytes | None:
        """From what lies here; None where it does not, or not any more."""
        part = self.ahead.find(path, start, stop)
        if part is not None:
            try:
                return self._opened.read(part, part.opened, start - part.start, stop - part.start)
            except (HeadraceError, OSError) as error:
                self.ahead.lost(part, error)
        table = self._tables.peek(path)
        return table.head.read(start, stop) if table is not None and table.head is not None else None

    def _far(self, path: str, shard: Shard, start: int, stop: int) -> bytes:
        with self._waiting(shard):
            if self._comes_soon(shard):
                self.ahead.wait_for(path, start, stop)
                found = self._near(path, start, stop)
                if found is not None:
                    return found
            try:
                found = shard.origin.read(shard, start, stop)
            except FetchError:
                # It may have come another way meanwhile.
                found = self._near(path, start, stop)
                if found is None:
                    raise
                return found
        with self._lock:
            self._direct_reads += 1
            self._direct_bytes += len(found)
        return found

    def _load(self, path: str, shard: Shard) -> Table:
        from headrace.fetch.media.mp4 import read_track

        local = shard.origin.local_path(shard) is not None
        if local or self.ahead.find(path, 0, shard.size) is not None:
            return Table(read_track(Readable(str(shard), shard.size, partial(self.read, path, shard))))
        return remote_table(shard, self._cache)

    @contextmanager
    def _waiting(self, shard: Shard) -> Iterator[None]:
        """A wait of a reader's, which is counted, and which `close` ends unless the thread has a `Stop` of its own."""
        self._check_open(shard)
        ours, began = current() is None, time.monotonic()
        try:
            with stopped_by(self.ahead.end if ours else None):
                yield
        except Stopped:
            if ours:
                raise _closed(shard) from None
            raise
        finally:
            with self._lock:
                self._waited += time.monotonic() - began

    def _check_open(self, shard: Shard) -> None:
        if self.ahead.end.is_set():
            raise _closed(shard)

    # --- fetching ahead

    def _place(self, want: Want) -> tuple[int, Shard] | None:
        """The part of a file that a want needs."""
        whole = self._root.shard(want.path)
        if whole.origin.local_path(whole) is not None or whole.size <= 0 or want.path in self._unreadable:
            return None
        if whole.size <= WHOLE_BYTES or self._has_whole(want.path, whole):
            return 0, whole
        try:
            track = self._tables.get(want.path, partial(self._load, want.path, whole)).track
        except DataError:
            self._unreadable.add(want.path)
            raise
        stop = min(want.stop, track.num_frames)
        if want.first >= stop:
            return None
        first, last = track.span(want.first, stop)
        if (last - first) * WHOLE_SHARE >= whole.size:
            return 0, whole
        return first, range_of(whole, first, last)

    def _has_whole(self, path: str, whole: Shard) -> bool:
        """Whether all of the file is here or on its way, so that no range of it need be fetched."""
        return self.ahead.find(path, 0, whole.size, coming=True) is not None or self._is_kept(whole)

    def _comes_soon(self, shard: Shard) -> bool:
        """Whether a thread has only to get to it, or nobody else can be asked."""
        return getattr(shard.origin, "offline", False) or self._is_kept(shard)

    def _is_kept(self, whole: Shard) -> bool:
        lease = self._cache.find(whole)
        if lease is not None:
            lease.release(keep=True)
        return lease is not None


def _closed(shard: Shard) -> FetchError:
    return FetchError(f"{shard}: it is read after its files were closed")
