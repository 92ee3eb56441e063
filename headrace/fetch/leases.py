"""Who is using which cached file: leases keep it there.

A lease is an empty file named after the process that holds it, so that it ends with that process, however it ends.
Its grade says how much the file is needed: only one that is being read stays whatever happens.
Whoever wants to remove a file puts up a mark first and looks for leases then; whoever wants to use it puts up a lease
first and looks for marks then. So one of the two sees the other, in any order of events and without a lock.
"""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from headrace.catalog.stop import pause
from headrace.fetch import heartbeat
from headrace.fetch.heartbeat import Sign, is_owner_alive
from headrace.files import Files, process_tag, remove_quietly
from headrace.locks import Lock

POLL_SECONDS = 0.05
REMOVAL_SECONDS = 5.0
"""A removal that takes longer between mark and unlink gives up. Whoever waits for one waits twice as long."""
MARK_SECONDS = 60.0
"""A mark of another machine that was seen unchanged for this long does not count: its removal is over."""
REMOVING = ".rm"
LOCK = ".lock"

_numbers = itertools.count()


class Grade(Enum):
    """How much a file is needed, by the ending of its lease's name. The others go where room is needed."""

    READ = ""
    AHEAD = ".ahead"
    """Fetched, and not asked for yet. Whatever else is fetched ahead leaves it alone."""
    KEPT = ".kept"
    """All of it that is needed now is in memory; a resume would need it again."""

    @classmethod
    def of(cls, name: str) -> Grade | None:
        """The grade of a lease; None: the name is that of a mark or a lock."""
        ending = name[name.rfind(".") :]
        if ending in (REMOVING, LOCK):
            return None
        return next((grade for grade in (cls.AHEAD, cls.KEPT) if ending == grade.value), cls.READ)


class Lease:
    """The right to read one file. It is over when it is released, when it is forgotten, and when the process ends."""

    def __init__(self, path: Path, file: Path | None = None, holder: Holder | None = None) -> None:
        self.path = path
        self.file = file
        """What stands for it on disk; None for a file of the user's, which needs no lease."""
        self.grade = Grade.READ
        self._pid = os.getpid()
        self._holder = holder
        self._hold()

    def release(self, keep: bool = False) -> None:
        """Let go of the file; unless `keep`, it may be removed. The second time does nothing."""
        # A forked child has a copy of the object, not of the right.
        if self._forgotten.detach() and self._pid == os.getpid() and self._holder is not None and self.file is not None:
            self._drop()
            self._holder.released(self.path, self.file, keep)
            heartbeat.wait_for_end()

    def turn(self, grade: Grade) -> None:
        """Need the file less from here on. To need it more again takes another lease: it may be gone by then."""
        if self._holder is None or self.file is None or not self._forgotten.alive:
            return
        if grade is Grade.READ or self.grade in (grade, Grade.KEPT):
            return
        self._drop()
        self.file = self._holder.turned(self.file, grade)
        self.grade = Grade.of(self.file.name) or Grade.READ
        self._forgotten.detach()
        self._hold()

    @property
    def is_lost(self) -> bool:
        """Whether other machines took this process for dead and ended the lease: its file may be gone. To go on with
        it takes another lease."""
        return self._sign is not None and self._pid == os.getpid() and heartbeat.is_lost(self._sign)

    def _hold(self) -> None:
        self._sign = None if self.file is None else heartbeat.hold_empty(self.file)
        self._forgotten = weakref.finalize(self, _forget, self._sign, self._pid)

    def _drop(self) -> None:
        if self._sign is not None:
            heartbeat.drop(self._sign)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


class Holder(Protocol):
    """Whoever gave a lease out, and is told what becomes of it."""

    def released(self, path: Path, file: Path, keep: bool) -> None: ...
    def turned(self, file: Path, grade: Grade) -> Path: ...


class Leases:
    """The folder of leases, marks and locks of one cache."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder = folder
        self._files = files

    def claim(self, key: str) -> Path:
        path = self.folder / f"{key}.{process_tag()}.{next(_numbers)}"
        self._files.close(self._files.create(path))
        return path

    def turn(self, file: Path, grade: Grade) -> Path:
        """Another grade for a lease, which is no higher: who looks at this moment may see none at all."""
        other = file.with_name(file.name.removesuffix(Grade.AHEAD.value) + grade.value)
        try:
            self._files.rename(file, other)
        except OSError:
            return file
        return other

    def in_use(self, key: str, but: Collection[Grade] = ()) -> bool:
        """Whether there is a lease of a living process, `but` for some grades. Those of dead ones are removed."""
        found = ((path, Grade.of(path.name)) for path in self._entries(key))
        return any(self._lives(path) for path, grade in found if grade is not None and grade not in but)

    def is_being_removed(self, key: str) -> bool:
        return any(self._lives(path) for path in self._entries(key) if path.suffix == REMOVING)

    def wait_for_removals(self, key: str) -> None:
        """Wait until nobody is about to remove the file. To be called with a lease of one's own."""
        deadline = time.monotonic() + 2 * REMOVAL_SECONDS
        while self.is_being_removed(key):
            if time.monotonic() > deadline:
                return
            pause(POLL_SECONDS)

    def remove(self, key: str, unlink: Callable[[], None], but: Collection[Grade] = ()) -> bool:
        """Call `unlink`, unless somebody has a lease, `but` for some grades. True if it was called."""
        began = _now()
        mark = self.folder / f"{key}.{process_tag()}.{next(_numbers)}{REMOVING}"
        try:
            self._files.close(self._files.create(mark))
        except OSError:
            return False  # without a mark it is not safe, so the file stays
        try:
            # Having slept in between, we may have been waited for in vain.
            free = not self.in_use(key, but) and _now() - began < REMOVAL_SECONDS
            if free:
                unlink()
            return free
        finally:
            remove_quietly(mark, self._files)

    def lock(self, key: str) -> Lock:
        return Lock(self.folder / f"{key}{LOCK}")

    def sweep(self) -> bool:
        """Remove what dead processes left here. True if there was a lease or a mark among it."""
        num_dead = 0
        for path in self._entries(""):
            if path.suffix == LOCK:
                Lock(path).remove_if_free()
            else:
                num_dead += not self._lives(path)
        return num_dead > 0

    def _entries(self, key: str) -> Iterator[Path]:
        with os.scandir(self.folder) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(key)]
        return (self.folder / name for name in names)

    def _lives(self, path: Path) -> bool:
        fields = path.name.removesuffix(REMOVING).split(".")
        try:
            alive = is_owner_alive(".".join(fields[1:4]), path, MARK_SECONDS if path.suffix == REMOVING else None)
        except ValueError:
            return False  # not a name of ours
        if not alive:
            remove_quietly(path, self._files)
        return alive


def _forget(sign: Sign | None, pid: int) -> None:
    if sign is not None and pid == os.getpid():
        heartbeat.drop(sign)
        remove_quietly(sign.path)


def _now() -> float:
    """Seconds on a clock that nobody sets, and that does not stand still while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
