"""Locks that only save work: where they do not lock, a thing is done more than once, and nothing else happens."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.errors import shown
from headrace.files import is_alive, process_tag, remove_quietly

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
TOUCH_SECONDS = 0.1
PATIENCE_SECONDS = 60.0


class Lock:
    """Says who is downloading a shard. Where locks do not work, shards are downloaded more than once, nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._touched = 0.0

    def take(self) -> bool | None:
        """True: it is ours. False: somebody else has it. None: locks do not work here."""
        try:
            while True:
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                try:
                    if not stat.S_ISREG(os.fstat(fd).st_mode):
                        raise OSError(errno.EINVAL, "a lock is a file")
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # Its last owner may have removed it between our two calls.
                    if self._is_at_path(fd):
                        os.ftruncate(fd, 0)
                        os.pwrite(fd, process_tag().encode(), 0)
                        self._fd, fd = fd, -1
                        return True
                finally:
                    if fd >= 0:
                        os.close(fd)
        except BlockingIOError:
            return False
        except OSError:
            # A lock file that cannot be locked only puzzles people.
            remove_quietly(self._path)
            return None

    def release(self) -> None:
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            if self._is_at_path(fd):
                self._path.unlink(missing_ok=True)
            # Closing alone does not free it while a forked child has a copy of the descriptor.
            fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError:
            pass  # file systems that lock but do not unlock: closing does it
        finally:
            os.close(fd)

    def touch(self) -> None:
        """A sign of life for those who wait."""
        now = time.monotonic()
        if self._fd >= 0 and now - self._touched > TOUCH_SECONDS:
            self._touched = now
            try:
                os.utime(self._fd)
            except OSError:
                pass  # without it the others only wait less long

    def owner(self) -> tuple[bool | None, int]:
        """Whether the one who has it lives (None: unknown), and when it last showed that, in file time."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None, 0
        try:
            tag = os.read(fd, 200).decode("ascii", "replace")
            return (is_alive(tag) if tag else None), os.fstat(fd).st_mtime_ns
        except (OSError, ValueError):
            return None, 0
        finally:
            os.close(fd)

    def remove_if_free(self) -> None:
        if self.owner()[0] is not True and self.take():
            self.release()

    def _is_at_path(self, fd: int) -> bool:
        ours = os.fstat(fd)
        try:
            there = self._path.lstat()
        except FileNotFoundError:
            return False
        return stat.S_ISREG(there.st_mode) and (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


@contextmanager
def locked(path: Path, patience: float = PATIENCE_SECONDS) -> Iterator[Callable[[], None]]:
    """Hold the lock at `path`; gives a function that tells the waiting ones that the holder makes progress.

    A holder that dies frees it at once. One that shows no life for `patience` seconds is no longer waited for: the work
    is then done twice.
    """
    with suppress(OSError):  # there is no lock then; whoever writes here next says why
        path.parent.mkdir(parents=True, exist_ok=True)
    lock = Lock(path)
    seen, since = 0, time.monotonic()
    while lock.take() is False:
        beat = lock.owner()[1]
        if beat != seen:
            seen, since = beat, time.monotonic()
        if time.monotonic() - since > patience:
            log.warning("%s is held by a process that makes no progress; going on without it", shown(path))
            break
        time.sleep(POLL_SECONDS)
    try:
        yield lock.touch
    finally:
        lock.release()
