"""Signs of life between machines that share a disk.

A process holds leases, needs and partial files. Each is a file, and its times are the sign of life: one thread per
process touches all of them every `BEAT_SECONDS`. A process of another machine, or of another pid namespace, counts as
dead when this process has seen its file unchanged for `SILENT_SECONDS`, on its own monotonic clock. Times of files are
only compared for being the same: on Lustre, CephFS and SMB they are those of the machine that wrote, so the age of a
file would depend on two clocks.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from headrace.errors import HeadraceError
from headrace.files import REAL, lives

log = logging.getLogger(__name__)

BEAT_SECONDS = 30.0
END_SECONDS, POLL_SECONDS = 1.0, 0.01
"""The thread ends at once, unless the disk keeps it waiting."""
SILENT_SECONDS = 600.0
"""A process of another machine that shows no sign of life for this long counts as dead."""
MOST_SEEN = 100_000
"""Number of files of other machines that are remembered; beyond it, all are watched from the start again."""


class Sign:
    """A file that stands for something this process holds."""

    def __init__(self, path: Path, again: Callable[[], object] | None = None) -> None:
        """`again`: makes the file again after others removed it."""
        self.path, self.again = path, again
        self.was_lost = False
        """Whether others took this process for dead and removed the file."""


class _Heartbeat:
    """The signs of this process, and the thread that touches them. The thread ends when nothing is held."""

    def __init__(self) -> None:
        self._held: dict[Sign, None] = {}
        # Garbage collection may call `drop` in the middle of any line: it takes no lock, and this queue needs none.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._latest: threading.Thread | None = None
        """The same, also when it is about to end."""
        self._last = time.monotonic()

    def hold(self, sign: Sign) -> None:
        self._held[sign] = None
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="headrace-alive", daemon=True)
                try:
                    thread.start()
                    self._thread = self._latest = thread
                except RuntimeError:
                    pass  # no thread can be had now; the next `hold` tries again
        if self._thread is None and time.monotonic() - self._last >= BEAT_SECONDS:
            self.beat()

    def drop(self, sign: Sign) -> None:
        if sign in self._held:
            self._held.pop(sign, None)
            if not self._held:
                self._wake.put(None)

    def wait_for_end(self) -> None:
        """Wait until the thread has ended, if nothing is held: no thread is left after the last close."""
        thread, deadline = self._latest, time.monotonic() + END_SECONDS
        if thread is None or thread is threading.current_thread():
            return
        while not self._held and thread.is_alive() and time.monotonic() < deadline:
            thread.join(POLL_SECONDS)

    def beat(self) -> None:
        """Touch all signs, and make those again that others removed."""
        self._last = time.monotonic()
        num_lost = 0
        for sign in list(self._held):
            try:
                os.utime(sign.path, follow_symlinks=False)
            except FileNotFoundError:
                if sign in self._held:  # or it was let go at this moment
                    num_lost += not sign.was_lost
                    sign.was_lost = True
                    self._make_again(sign)
            except OSError:
                pass  # a disk that does not answer now: the next beat tries again
        if num_lost:
            log.warning(
                "other machines took this process for dead, because it showed no sign of life, and removed %d of its "
                "leases in the cache; they are taken again, and shards that are gone are fetched again",
                num_lost,
            )

    def _make_again(self, sign: Sign) -> None:
        if sign.again is not None:
            with suppress(OSError, HeadraceError):
                sign.again()
            if sign not in self._held:  # let go meanwhile, and nobody else removes it
                with suppress(OSError):
                    sign.path.unlink()

    def _serve(self) -> None:
        while True:
            try:
                self._wake.get(timeout=BEAT_SECONDS)
            except Empty:
                self.beat()
            with self._lock:
                if not self._held:
                    self._thread = None
                    return


_HERE = _Heartbeat()


def _in_forked_child() -> None:
    """Signs and thread are the parent's."""
    global _HERE
    _HERE = _Heartbeat()


os.register_at_fork(after_in_child=_in_forked_child)


def hold(path: Path, again: Callable[[], object] | None = None) -> Sign:
    """Show that this process lives, by the times of the file `path`, until `drop`."""
    sign = Sign(path, again)
    _HERE.hold(sign)
    return sign


def hold_empty(path: Path) -> Sign:
    """The same for a file without content."""
    return hold(path, lambda: REAL.close(REAL.create(path)))


def drop(sign: Sign) -> None:
    """To be called before the file is removed or renamed. The second time does nothing."""
    _HERE.drop(sign)


def wait_for_end() -> None:
    """To be called after what was held has been let go, and not by the garbage collector."""
    _HERE.wait_for_end()


def is_lost(sign: Sign) -> bool:
    """Whether others removed the file. It is there again then, if it could be made."""
    if not sign.was_lost and not os.path.lexists(sign.path):
        _HERE.beat()
    return sign.was_lost


@dataclass
class _Seen:
    times: tuple[int, int]
    since: float
    doubted: float | None = None


_SEEN: dict[Path, _Seen] = {}


def is_silent(path: Path, limit: float | None = None) -> bool:
    """Whether a file of another machine is gone, or was seen unchanged for `limit` or SILENT_SECONDS."""
    now = time.monotonic()
    try:
        times = _times(path)
    except FileNotFoundError:
        _SEEN.pop(path, None)
        return True
    except OSError:
        return False
    seen = _SEEN.get(path)
    if seen is None or seen.times != times:
        if len(_SEEN) >= MOST_SEEN:
            _SEEN.clear()
        _SEEN[path] = _Seen(times, now)
        return False
    if now - seen.since < (SILENT_SECONDS if limit is None else limit):
        return False
    if seen.doubted is None:
        # The disk may have been away for everybody: a living process has two beats to show itself.
        seen.doubted = now
    return now - seen.doubted >= 2 * BEAT_SECONDS


def is_owner_alive(tag: str, path: Path, limit: float | None = None) -> bool:
    """Whether the process of a `process_tag`, which holds the file `path`, lives, here or on another machine."""
    alive = lives(tag, path)
    return not is_silent(path, limit) if alive is None else alive


def _times(path: Path) -> tuple[int, int]:
    """Opened, because NFS asks the server then; `stat` alone may answer from a cache of attributes."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        return found.st_mtime_ns, found.st_ctime_ns
    finally:
        os.close(fd)
