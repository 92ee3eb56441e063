"""Shards come before they are asked for: one background thread per prefetcher fetches the next ones."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from headrace.catalog.shard import Shard
from headrace.catalog.source import Source
from headrace.catalog.stop import Stop, Stopped, stopped_by
from headrace.errors import FetchError, HeadraceError, NoSpace, SpecError, Stalled
from headrace.fetch.cache import Cleanup, ShardCache
from headrace.fetch.leases import Grade, Lease
from headrace.fetch.shard_names import Names
from headrace.run import Run

log = logging.getLogger(__name__)

END_SECONDS = 2.0
LOOK_SECONDS = 300.0
PATIENCE_SECONDS = 900.0
"""A background download without any sign of life for so long is given up. Pauses that a server asks for are shorter."""


class ShardPrefetcher:
    """Gives out shards as local files, and has the next ones fetched meanwhile.

        with ShardPrefetcher(shards, "data") as prefetch:
            for shard in shards:
                path = prefetch.wait_for(shard)

    `shards`: those of `list_shards`, or the names of files: local ones, URLs of a file system (`s3://…`), or, with
    `source="hf:<repo>:<split>"`, the paths in that source, as `resolve_resume_plan` gives them.

    Opening shard N starts the download of the `lookahead` shards after it and, with `auto_release`, lets go of all
    others: under `cleanup="auto"` they are removed, so that the current and the next ones are what lies on disk. What
    is held at `close` stays there for the next start. Under a `limit`, in bytes, what finds no room ahead comes when it
    is asked for. Where `cleanup` and `limit` are not given, HF_SHARD_CACHE_CLEANUP and HEADRACE_CACHE_BYTES decide.
    """

    def __init__(
        self,
        shards: Sequence[Shard] | Sequence[str | Path],
        cache_root: str | Path,
        *,
        lookahead: int = 1,
        cleanup: Cleanup | None = None,
        limit: int | None = None,
        auto_release: bool = True,
        cache: ShardCache | None = None,
        source: str | Source | None = None,
    ) -> None:
        if lookahead < 0:
            raise SpecError(f"lookahead={lookahead}: it is the number of shards to fetch ahead, 0 or more")
        self._lookahead = lookahead
        self._auto_release = auto_release
        if cache is None:
            run = Run.here(cache_dir=cache_root, rank=0, world_size=1)
            limit = run.cache_bytes if limit is None else limit
            cache = ShardCache(run.cache_dir, cleanup=cleanup or run.cleanup, limit=limit)
        self._cache = cache.passing()
        self._names = Names(source, cache.root)
        self._shards = self._names.shards(shards)
        self._at = -1
        self._desk = self._new_desk()

    def start(self) -> None:
        """Begin with the first shard."""
        desk = self._here()
        if len(self._shards) and self._at < 0:
            desk.want(self._shards[0])

    def wait_for(self, shard: Shard | str | Path) -> Path:
        """The shard as a local file. Blocks until it is there; raises what its download raised."""
        desk, shard = self._here(), self._names.shard(shard)
        number = self._number(shard)
        ahead: list[Shard] = []
        if number is not None:
            self._at = number
            ahead = [self._shards[n] for n in range(number + 1, min(number + 1 + self._lookahead, len(self._shards)))]
        if self._auto_release:
            desk.keep_only({shard, *ahead})
        path = desk.get(shard)
        for later in ahead:
            desk.want(later)
        desk.settled = True
        return path

    def poll(self, shard: Shard | str | Path) -> Path | None:
        """The shard as a local file if it is there already; it is held then as after `wait_for`."""
        return self._here().poll(self._names.shard(shard))

    def want(self, shard: Shard | str | Path) -> None:
        """Fetch it in the background, after those wanted before."""
        self._here().want(self._names.shard(shard))

    def put_by(self, shard: Shard | str | Path) -> None:
        """Nothing is read from it for now: it stays where there is room for it."""
        self._here().put_by(self._names.shard(shard))

    def release(self, shard: Shard | str | Path, keep: bool = False) -> None:
        """Let go of a shard, and stop fetching it. Unless `keep`, its file may be removed."""
        self._here().release(self._names.shard(shard), keep)

    def close(self) -> None:
        """End the thread and let go of all shards. The second time does nothing."""
        self._desk.end_thread()
        if self._desk.settled and self._desk.pid == os.getpid() and self._cache.cleanup == "auto":
            # Where the thread has not come to it, or was stopped in the middle of it. What is held here stays.
            sweep_once(self._cache, Stop())
        self._desk.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _number(self, shard: Shard) -> int | None:
        """The shard's number: the next, the same, or, after a jump, the first one from here on."""
        first = (n for n in (self._at + 1, self._at) if 0 <= n < len(self._shards))
        found = next((n for n in first if self._shards[n] == shard), None)
        return self._shards.next_place(shard, self._at + 1) if found is None else found

    def _here(self) -> _Desk:
        if self._desk.pid != os.getpid():
            # Forked: thread, leases and whoever held the lock are the parent's.
            self._desk = self._new_desk()
        return self._desk

    def _new_desk(self) -> _Desk:
        desk = _Desk(self._cache)
        weakref.finalize(self, desk.close)
        return desk


@dataclass(eq=False)
class _Job:
    """A download that is going on, in the background thread or in that of a user."""

    shard: Shard
    ahead: bool = False
    """Nobody has asked for it yet."""
    stop: Stop = field(default_factory=Stop)
    error: BaseException | None = None
    done: bool = False
    keep: bool = True
    """What becomes of the file if nobody wants it any more when it arrives."""


class _Desk:
    """What the thread and its users share. It does not know the prefetcher, so that a forgotten one can end it."""

    def __init__(self, cache: ShardCache) -> None:
        self.pid = os.getpid()
        self._cache = cache
        # Re-entrant, because garbage collection may call close() in the middle of any line here.
        self._changed = threading.Condition(threading.RLock())
        self._queue: dict[Shard, None] = {}
        self._leases: dict[Shard, Lease] = {}
        self._jobs: dict[Shard, _Job] = {}
        self._thread: threading.Thread | None = None
        self._end = Stop()
        self.settled = False
        """Whether the first shards have been named, so that what dead processes left of others is of no use to us."""

    def want(self, shard: Shard) -> None:
        with self._changed:
            job = self._jobs.get(shard)
            if self._end.is_set() or shard in self._leases or (job is not None and not job.stop.is_set()):
                return
            self._queue[shard] = None
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self.serve, name="headrace-prefetch", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    log.warning("no background thread (%s): shards are fetched when they are asked for", error)
                    self._queue.clear()
                    return
                self._thread = thread
            self._changed.notify_all()

    def get(self, shard: Shard) -> Path:
        while True:
            if (path := self._had(shard)) is not None:
                return path
            with self._changed:
                self._check_open(shard)
                if shard in self._leases:
                    continue
                self._queue.pop(shard, None)
                job = self._jobs.get(shard)
                ours = job is None
                if job is None:
                    job = self._jobs[shard] = _Job(shard)
            if ours:
                # In the caller's own thread, because the background thread may be busy with another shard.
                self._fetch(job)
            else:
                self._wait(job)
            if job.error is not None and not isinstance(job.error, Stopped) and (ours or _is_for_all(job)):
                raise job.error
            if ours and job.stop.is_set():
                self._check_open(shard)
                raise FetchError(f"{shard}: it was released while it was being fetched")

    def _had(self, shard: Shard) -> Path | None:
        """The shard, if we have it already, to be read from here on."""
        with self._changed:
            self._check_open(shard)
            lease = self._leases.get(shard)
        if lease is None or (lease.grade is Grade.READ and not lease.is_lost):
            return None if lease is None else lease.path
        found = self._cache.find(shard)  # or it had to make room for others
        with self._changed:
            mine = self._leases.get(shard) is lease
            if mine and found is not None:
                self._leases[shard] = found
            elif mine:
                del self._leases[shard]
        spare = lease if mine else found
        if spare is not None:
            spare.release(keep=True)
        return found.path if mine and found is not None else None

    def poll(self, shard: Shard) -> Path | None:
        if (path := self._had(shard)) is not None:
            return path
        with self._changed:
            if shard in self._jobs:
                return None
        lease = self._cache.find(shard)
        if lease is None:
            return None
        with self._changed:
            self._queue.pop(shard, None)
            other = self._leases.get(shard)
            # One that came meanwhile may have come ahead, and have to make room for others.
            mine = not self._end.is_set() and (other is None or other.grade is not Grade.READ)
            if mine:
                self._leases[shard] = lease
        kept, spare = (lease, other) if mine else (other, lease)
        if spare is not None:
            spare.release(keep=True)
        return kept.path if kept is not None else None

    def put_by(self, shard: Shard) -> None:
        with self._changed:
            lease = self._leases.get(shard)
        if lease is not None:
            lease.turn(Grade.KEPT)

    def release(self, shard: Shard, keep: bool) -> None:
        with self._changed:
            self._queue.pop(shard, None)
            lease = self._leases.pop(shard, None)
            job = self._jobs.get(shard)
            if job is not None:
                job.keep = keep
                job.stop.set()
        if lease is not None:
            lease.release(keep)

    def keep_only(self, wanted: set[Shard]) -> None:
        with self._changed:
            others = {shard for shard in (*self._leases, *self._queue, *self._jobs) if shard not in wanted}
        for shard in others:
            self.release(shard, keep=False)

    def end_thread(self) -> None:
        """End what is being fetched. Leases stay."""
        if self.pid != os.getpid():
            return
        with self._changed:
            self._end.set()
            self._queue.clear()
            for job in self._jobs.values():
                job.stop.set()
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(END_SECONDS)

    def close(self) -> None:
        if self.pid != os.getpid():
            return
        self.end_thread()
        with self._changed:
            leases, self._leases = self._leases, {}
        for lease in leases.values():
            lease.release(keep=True)
        if leases:
            _LEFT.add(_cache_key(self._cache))

    def serve(self) -> None:
        """What the thread does, until the end."""
        while True:
            with self._changed:
                while not self._queue and not self._end.is_set():
                    self._changed.wait()
                if self._end.is_set():
                    return
                shard = next(iter(self._queue))
                del self._queue[shard]
                job = self._jobs[shard] = _Job(shard, ahead=True)
            self._fetch(job)
            if job.error is not None and not isinstance(job.error, Stopped):
                # Whoever asks for it later tries again, and is told then.
                level = logging.DEBUG if _is_limit(job.error) else logging.WARNING
                log.log(level, "%s: fetching it ahead failed: %s", shard, job.error)
            if self.settled and not self._queue:
                sweep_once(self._cache, self._end, again=True)

    def _fetch(self, job: _Job) -> None:
        """Get the lease, or the error, and tell everybody."""
        lease = None
        try:
            lease = (self._cache.strict() if job.ahead else self._cache).acquire(job.shard, job.stop)
            if job.ahead:
                lease.turn(Grade.AHEAD)
        except BaseException as error:
            if not isinstance(error, HeadraceError | Stopped):
                error.add_note(f"while fetching {job.shard}")
            job.error = error
        with self._changed:
            job.done = True
            if self._jobs.get(job.shard) is job:
                del self._jobs[job.shard]
            wanted = lease is not None and not job.stop.is_set() and job.shard not in self._leases
            if lease is not None and wanted:
                self._leases[job.shard] = lease
            self._changed.notify_all()
        if lease is not None and not wanted:
            lease.release(job.keep)

    def _wait(self, job: _Job) -> None:
        patience = PATIENCE_SECONDS + float(getattr(job.shard.origin, "stall_seconds", 0.0))
        with self._changed:
            while not job.done and not self._end.is_set():
                self._changed.wait(1.0)
                silent = time.monotonic() - job.stop.pulse
                if silent > patience:
                    raise Stalled(f"{job.shard}: its download has shown no sign of life for {silent:.0f} s")

    def _check_open(self, shard: Shard) -> None:
        if self._end.is_set():
            raise FetchError(f"{shard}: it was asked of a prefetcher that is closed")


_Swept: TypeAlias = tuple[int, Path, int | None, bool]
_SWEPT: set[_Swept] = set()
_LOOKED: dict[_Swept, float] = {}
"""When it was last looked whether other processes have died since."""
_LEFT: set[_Swept] = set()
"""Caches in which readers of this process left shards when they were closed."""


def sweep_once(cache: ShardCache, stop: Stop, *, again: bool = False) -> None:
    """Remove what ended processes left, and what is over the limit: once per process, cache and limit, and again when
    others have died since. `again`: also what readers of this process left since.

    Shards go once this process has fetched one itself: before, it may be that nobody can be asked for them.
    """
    key = _cache_key(cache)
    if key in _SWEPT and not (again and key in _LEFT) and not _has_news(cache, key):
        return
    _SWEPT.add(key)
    _LOOKED[key] = time.monotonic()
    _LEFT.discard(key)
    try:
        with stopped_by(stop):
            cache.sweep(passed=cache.has_fetched)
    except Stopped:
        _SWEPT.discard(key)  # the next one removes the rest
    except OSError as error:
        log.info("the cache folder could not be swept: %s", error)


def _has_news(cache: ShardCache, key: _Swept) -> bool:
    """Whether other processes have died. Those of other machines are found dead at a second look at the earliest."""
    now = time.monotonic()
    if now - _LOOKED.get(key, now) < LOOK_SECONDS:
        return False
    _LOOKED[key] = now
    return cache.forget_dead()


def _cache_key(cache: ShardCache) -> _Swept:
    return os.getpid(), cache.root, cache.limit, cache.has_fetched


def _is_for_all(job: _Job) -> bool:
    """A Ctrl-C ends the one who got it; whoever else waits for the same shard goes on. For a shard that is needed there
    may be room where there was none ahead of it."""
    return isinstance(job.error, Exception) and not (job.ahead and isinstance(job.error, NoSpace))


def _is_limit(error: BaseException) -> bool:
    """Whether the cache's limit, not the disk, has no room."""
    return isinstance(error, NoSpace) and error.errno is None
