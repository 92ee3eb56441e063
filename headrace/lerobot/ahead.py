"""Videos come before they are read: a few threads fetch what admitted episodes need, and let go of it after them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue

from headrace.catalog.plain import PlainFile
from headrace.catalog.shard import Shard
from headrace.catalog.stop import BEAT_SECONDS, Stop, Stopped, look, stopped_by
from headrace.errors import NoSpace, shown
from headrace.fetch.cache import ShardCache
from headrace.fetch.leases import Lease
from headrace.fetch.prefetch import sweep_once
from headrace.lerobot.parts import Part, Want
from headrace.lerobot.ranges import RangeOrigin

log = logging.getLogger(__name__)

END_SECONDS = 1.0
MOST_WAITING = 4096
"""Wants that no thread has begun with; those beyond are not fetched ahead."""
MOST_LOSSES = 2
"""So often a part that was damaged or removed under us is fetched again for one want."""


@dataclass
class _Chores:
    """What is to be done when the lock is free again: nothing is called under it that may wait for another lock."""

    gone: list[tuple[Part, Lease | None, bool]] = field(default_factory=list)
    """Parts to let go of, with their leases, and whether the files stay."""
    threads: list[threading.Thread] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


class Ahead:
    """What the threads and the readers of one `VideoFiles` share. It does not know it, so that it can be forgotten.

    Garbage collection may call `release` and `close` in the middle of any line, here and elsewhere. So `release` only
    notes the key, and goes on if the lock is free; whoever has the lock looks for such notes when giving it back.
    """

    def __init__(
        self,
        cache: ShardCache,
        workers: int,
        place: Callable[[Want], tuple[int, Shard] | None],
        on_here: Callable[[Part, PlainFile], None],
        on_gone: Callable[[Part], None],
    ) -> None:
        """`place`: the part that a want needs, by where it starts and its shard; None if nothing is to be fetched.

        `on_here` is told of each part that comes, with its open file; `on_gone`, of each that is let go.
        """
        self.pid = os.getpid()
        self.end = Stop()
        self._cache, self._workers = cache, workers
        self._place, self._on_here, self._on_gone = place, on_here, on_gone
        self._lock = threading.Condition(threading.Lock())
        self._leaving: deque[Hashable] = deque()
        self._mail: SimpleQueue[None] = SimpleQueue()
        """Wakes a thread that has nothing to do."""
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._episodes: dict[Hashable, dict[tuple[str, int, int], Want]] = {}
        self._queue: dict[Want, None] = {}
        self._skipped: dict[Want, None] = {}
        """Those that found no room."""
        self._busy: Counter[str] = Counter()
        """Wants per file that are in the queue, or that a thread is at."""
        self._parts: dict[str, dict[tuple[int, int], Part]] = {}
        self._counts: Counter[str] = Counter()
        self._told: set[tuple[str, str]] = set()

    # --- what readers call

    def admit(self, key: Hashable, wanted: Sequence[tuple[str, int, int]]) -> None:
        if self.end.is_set() or not self._workers:
            return
        spans = dict.fromkeys((path, int(first), int(stop)) for path, first, stop in wanted)
        with self._held() as chores:
            before = self._episodes.pop(key, {})
            now = self._episodes[key] = {}
            for span in spans:
                want = before.pop(span, None)
                if want is None:
                    want = Want(*span)
                    self._queued(want, chores)
                now[span] = want
            for want in before.values():
                self._drop(want, chores)

    def release(self, key: Hashable) -> None:
        self._leaving.append(key)
        self._settle()

    def find(self, path: str, start: int, stop: int, *, coming: bool = False) -> Part | None:
        """A part with these bytes that lies here, or, if `coming`, that is on its way."""
        with self._lock:
            found = self._found(path, start, stop, coming)
        if self._leaving:
            self._settle()
        return found

    def wait_for(self, path: str, start: int, stop: int) -> Part | None:
        """A part with these bytes, after all that is wanted of this file has come or failed."""
        while True:
            with self._held():
                first = [want for want in self._queue if want.path == path]
                self._queue = dict.fromkeys([*first, *self._queue])
                found = self._found(path, start, stop)
                if found is not None or not self._busy[path] or self.end.is_set():
                    return found
                self._lock.wait(BEAT_SECONDS)
            look()

    def lost(self, part: Part, error: Exception) -> None:
        """A part cannot be read any more: it was damaged or removed. It is fetched again."""
        with self._held() as chores:
            if part.lease is None or not self._forget(part):
                return  # it was let go while it was being read
            chores.gone.append((part, part.lease, True))
            self._counts["lost"] += 1
            self._tell("lost", part.path, f"its cached file was lost: {error}; it is read from where it came", chores)
            for want in part.wants:
                want.part = None
                want.losses += 1
                if want.losses <= MOST_LOSSES:
                    self._queued(want, chores)

    def stats(self) -> dict[str, int]:
        with self._held():
            held = sum(part.lease is not None for parts in self._parts.values() for part in parts.values())
            return {**self._counts, "held": held, "waiting": sum(self._busy.values())}

    def close(self) -> None:
        """End the threads and let go of everything; what lies in the cache stays there for the next start."""
        if self.pid != os.getpid():
            return
        self.end.set()
        # Garbage collection may have called this from one of the threads, which lets go of all when it ends.
        inside = threading.current_thread() in self._threads
        self._let_go_of_all(0.0 if inside else END_SECONDS)
        threads, deadline = list(self._threads), time.monotonic() + END_SECONDS
        for _ in threads:
            self._mail.put(None)
        for thread in threads if not inside else ():
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    # --- the lock

    @contextmanager
    def _held(self) -> Iterator[_Chores]:
        chores = _Chores()
        try:
            with self._lock:
                self._see_off(chores)
                yield chores
                self._see_off(chores)
        finally:
            self._do(chores)
            self._settle()

    def _settle(self) -> None:
        """See off the episodes that have left, if the lock is free."""
        while self._leaving:
            if not self._lock.acquire(blocking=False):
                # Whoever has it looks for them later; a thread does, should it be about to wait.
                self._mail.put(None)
                return
            chores = _Chores()
            try:
                self._see_off(chores)
            finally:
                self._lock.release()
            self._do(chores)

    def _see_off(self, chores: _Chores) -> None:
        while self._leaving:
            for want in self._episodes.pop(self._leaving.popleft(), {}).values():
                self._drop(want, chores)

    def _do(self, chores: _Chores) -> None:
        for message in chores.messages:
            log.warning("%s", message)
        for part, lease, keep in chores.gone:
            part.ending.set()
            self._on_gone(part)
            if lease is not None:
                lease.release(keep)
                self._retry()
        for thread in chores.threads:
            try:
                thread.start()
            except RuntimeError as error:
                self._without(thread, error)

    def _retry(self) -> None:
        """There may be room now for one that found none."""
        if self._skipped and not self.end.is_set():
            with self._held() as chores:
                want = next(iter(self._skipped), None)
                if want is not None:
                    del self._skipped[want]
                    self._queued(want, chores)

    def _without(self, thread: threading.Thread, error: RuntimeError) -> None:
        with self._held() as chores:
            self._threads.remove(thread)
            self._tell("thread", "", f"no thread to fetch videos ({error}): they are read where they lie", chores)
            if not self._threads:
                self._queue.clear()
                self._busy.clear()

    # --- under the lock

    def _found(self, path: str, start: int, stop: int, coming: bool = False) -> Part | None:
        for part in self._parts.get(path, {}).values():
            if part.start <= start and stop <= part.stop and (coming or part.lease is not None):
                return part
        return None

    def _queued(self, want: Want, chores: _Chores) -> None:
        """Put it into the queue, and see that a thread comes to it."""
        if len(self._queue) >= MOST_WAITING:
            message = f"more than {MOST_WAITING:,} videos wait to be fetched; more are read where they lie"
            self._tell("many", "", message, chores)
            return
        self._queue[want] = None
        self._busy[want.path] += 1
        if self._idle:
            self._mail.put(None)
        if len(self._queue) > self._idle and len(self._threads) < self._workers:
            thread = threading.Thread(target=self._serve, name="headrace-video", daemon=True)
            self._threads.append(thread)
            chores.threads.append(thread)

    def _drop(self, want: Want, chores: _Chores) -> None:
        """Forget a want, and the part that nobody else wants. While that is on its way, its thread has the lease."""
        want.over = True
        self._skipped.pop(want, None)
        if want in self._queue:
            del self._queue[want]
            self._done(want)
        part, want.part = want.part, None
        if part is not None:
            part.wants.discard(want)
            if not part.wants and self._forget(part):
                chores.gone.append((part, part.lease, False))

    def _knows(self, part: Part) -> bool:
        return self._parts.get(part.path, {}).get((part.start, part.stop)) is part

    def _forget(self, part: Part) -> bool:
        if not self._knows(part):
            return False
        del self._parts[part.path][part.start, part.stop]
        if not self._parts[part.path]:
            del self._parts[part.path]
        return True

    def _done(self, want: Want) -> None:
        self._busy[want.path] -= 1
        if self._busy[want.path] <= 0:
            del self._busy[want.path]

    def _tell(self, kind: str, path: str, message: str, chores: _Chores) -> None:
        """Log it, once for each kind and file."""
        if (kind, path) not in self._told and len(self._told) < MOST_WAITING:
            self._told.add((kind, path))
            chores.messages.append(f"{shown(path)}: {message}" if path else message)

    # --- what the threads do

    def _serve(self) -> None:
        while (want := self._next()) is not None:
            try:
                with stopped_by(self.end):
                    self._fetch(want)
            except Stopped:
                pass
            except BaseException as error:  # whoever reads the frame is told; the thread goes on
                with self._held() as chores:
                    self._counts["failed"] += 1
                    message = f"fetching it ahead failed: {type(error).__name__}: {error}"
                    self._tell("failed", want.path, message, chores)
            with self._held():
                self._done(want)
                idle = not self._queue
                self._lock.notify_all()
            if idle:
                sweep_once(self._cache, self.end)
        self._let_go_of_all(END_SECONDS)

    def _next(self) -> Want | None:
        while not self.end.is_set():
            with self._held():
                if self._queue:
                    want = next(iter(self._queue))
                    del self._queue[want]
                    return want
                self._idle += 1
            self._mail.get()
            with self._held():
                self._idle -= 1
        return None

    def _fetch(self, want: Want) -> None:
        placed = self._place(want)
        if placed is None:
            return
        start, shard = placed
        with self._held():
            if want.over or self.end.is_set():
                return
            parts = self._parts.setdefault(want.path, {})
            known = parts.get((start, start + shard.size))
            part = known or Part(want.path, start, shard)
            parts[start, start + shard.size] = part
            part.wants.add(want)
            want.part = part
        if known is None:
            self._bring(part)

    def _bring(self, part: Part) -> None:
        """Get the lease of a part, or forget it."""
        lease: Lease | None = None
        kept = full = False
        try:
            lease = self._cache.find(part.shard)
            if lease is None:
                lease = self._cache.acquire(part.shard, part.ending)
                with self._held():
                    self._counts["ranges" if isinstance(part.shard.origin, RangeOrigin) else "files"] += 1
                    self._counts["bytes"] += part.shard.size
            self._on_here(part, part.arrived(lease))
            with self._held():
                kept = self._knows(part) and not self.end.is_set()
                part.lease = lease if kept else None
        except NoSpace as error:
            full = True
            with self._held() as chores:
                self._counts["skipped"] += 1
                self._skipped.update(dict.fromkeys(part.wants))
                self._tell("room", "", f"{error}; videos are read where they lie until there is room", chores)
        finally:
            with self._held():
                if not kept and self._forget(part):
                    for want in part.wants:
                        want.part = None
                self._lock.notify_all()
            if not kept:
                self._on_gone(part)
                if lease is not None:
                    # Nobody wants it any more; or, when all ends, the next start may.
                    lease.release(keep=self.end.is_set())
                if not full:
                    self._retry()

    def _let_go_of_all(self, patience: float) -> None:
        if not self._lock.acquire(timeout=patience):
            return
        chores = _Chores()
        try:
            self._see_off(chores)
            parts = [part for parts in self._parts.values() for part in parts.values()]
            self._episodes, self._queue, self._skipped, self._parts = {}, {}, {}, {}
            self._busy.clear()
            self._lock.notify_all()
        finally:
            self._lock.release()
        chores.gone += [(part, part.lease, True) for part in parts]
        chores.threads.clear()
        self._do(chores)
