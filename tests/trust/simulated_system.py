"""The system that simulated processes see: a real folder, whose calls are points of the schedule, and a server.

Everything that the code under test does to files goes through the `os` module, by itself or by `pathlib`. For the time
of a simulation its functions are ours: from a task they are a point, may fail, and do nothing for a process that is
dead; from any other thread, and for files elsewhere, they are the real ones.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_threads import Threading, Time
from simulator import MOMENT, Killed, Process, Task, World

from headrace import files, locks
from headrace.catalog import retry, stop
from headrace.catalog.shard import Broken, Origin, Restart, Shard
from headrace.catalog.stop import beat, current
from headrace.errors import Unreachable
from headrace.fetch import cache, download, heartbeat, leases, prefetch
from headrace.fetch.heartbeat import Sign

BY_PATH = ["lstat", "stat", "access", "link", "mkdir", "chmod", "unlink", "rename", "utime", "scandir"]
BY_FILE = ["open", "close", "read", "write", "pwrite", "ftruncate", "fsync", "setxattr", "getxattr"]
UNSEEN = ["fchmod", "fstat", "lseek", "pread"]
"""By other processes."""
CALLS = [*BY_PATH, *BY_FILE, *UNSEEN, "getpid", "kill"]
REAL = {name: getattr(os, name) for name in CALLS}
TROUBLED = ("create", "write", "fsync", "rename", "link")
"""Calls that a disk without room, or with a damaged block, refuses."""
EPOCH = 1_700_000_000


class System:
    """The calls of `os`. It knows which process has which file open, and lets no finished file be harmed."""

    def __init__(self, world: World, root: Path) -> None:
        self.world, self.root = world, f"{root}/"
        self.open_files: dict[int, tuple[Process, str]] = {}
        self.locks = world.random.choice(("work", "work", "work", "nothing", "ENOSYS"))
        self.refusals = world.random.choice((0, 0, 0, 1, 3))
        """So many calls will be refused by the disk."""
        self.was_refused = False
        self.removing: set[Task] = set()
        """Those who have a mark up: a delicate moment, so they get their turns rarely then."""
        self.on_rename: Callable[[str, str], None] = lambda name, to: None
        self.on_remove: Callable[[str], None] = lambda name: None
        self.on_claim: Callable[[str], None] = lambda name: None

    # --- what the schedule sees

    def name_of(self, path: Any) -> str | None:
        """Below the folder; None: not ours."""
        if isinstance(path, int):
            found = self.open_files.get(path)
            return found[1] if found is not None else None
        text = os.fspath(path)
        return text.removeprefix(self.root) if isinstance(text, str) and text.startswith(self.root) else None

    def step(self, call: str, path: Any) -> str | None:
        """A point, where a task is about to do something to a file of the folder; None: it is none of our business."""
        if (task := self.world.task_here()) is None:
            return None
        if not task.process.is_alive:
            raise Killed
        name = self.name_of(path)
        if name is not None:
            self.world.point(f"{call} {name}")
            if task in self.removing and self.world.lazy and self.world.random.random() < 0.2:
                self.world.block("its turn", self.world.random.random() * MOMENT)
            if call in TROUBLED and self.refusals and self.world.random.random() < 0.02:
                self.refusals, self.was_refused = self.refusals - 1, True
                code = self.world.random.choice((errno.ENOSPC, errno.EIO))
                raise OSError(code, os.strerror(code))
        return name

    def plain(self, call: str) -> Callable[..., Any]:
        def do(path: Any, *args: Any, **options: Any) -> Any:
            self.step(call, path)
            return REAL[call](path, *args, **options)

        return do

    def quiet(self, call: str) -> Callable[..., Any]:
        """For what no other process can see."""

        def do(fd: Any, *args: Any) -> Any:
            task = self.world.task_here()
            if task is not None and not task.process.is_alive:
                raise Killed
            return REAL[call](fd, *args)

        return do

    # --- calls that need more

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = self.step("create" if flags & os.O_EXCL else "open", path)
        fd: int = REAL["open"](path, flags, mode, dir_fd=dir_fd)
        if name is not None:
            self.open_files[fd] = self.world.me.process, name
            if flags & os.O_EXCL:
                self.stamp(fd)
                if name.endswith(leases.REMOVING):
                    self.removing.add(self.world.me)
                elif "/.leases/" in name:
                    self.on_claim(name)
        return fd

    def close(self, fd: int) -> None:
        self.step("close", fd)
        self.open_files.pop(fd, None)
        REAL["close"](fd)

    def write(self, fd: int, data: Any) -> int:
        name = self.step("write", fd)
        if name is not None:
            self.check_unfinished(name)
            if len(data) > 1 and self.world.random.random() < 0.05:
                data = data[: len(data) // 2]
        found: int = REAL["write"](fd, data)
        self.stamp(fd, name)
        return found

    def pwrite(self, fd: int, data: Any, at: int) -> int:
        name = self.step("pwrite", fd)
        found: int = REAL["pwrite"](fd, data, at)
        self.stamp(fd, name)
        return found

    def ftruncate(self, fd: int, size: int) -> None:
        name = self.step("ftruncate", fd)
        if name is not None:
            self.check_unfinished(name)
        REAL["ftruncate"](fd, size)
        self.stamp(fd, name)

    def fsync(self, fd: int) -> None:
        if self.step("fsync", fd) is None:
            REAL["fsync"](fd)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        name = self.step("unlink", path)
        if name is not None:
            self.on_remove(name)
            if name.endswith(leases.REMOVING):
                self.removing.discard(self.world.me)
        REAL["unlink"](path, dir_fd=dir_fd)

    def rename(self, old: Any, new: Any) -> None:
        name, to = self.step("rename", old), self.name_of(new)
        REAL["rename"](old, new)
        if name is not None and to is not None:
            self.open_files = {fd: (who, to if of == name else of) for fd, (who, of) in self.open_files.items()}
            self.on_rename(name, to)

    def utime(self, path: Any, times: Any = None, **options: Any) -> None:
        if self.step("utime", path) is not None and times is None and "ns" not in options:
            options["ns"] = self.stamps()
        REAL["utime"](path, times, **options)

    def scandir(self, path: Any = ".") -> Any:
        """Sorted, for no file system promises an order; and read at once, as the kernel does with a short folder."""
        if self.step("scandir", path) is None:
            return REAL["scandir"](path)
        with REAL["scandir"](path) as entries:
            return Entries(sorted(entries, key=lambda entry: str(entry.name)))

    def getpid(self) -> int:
        task = self.world.task_here()
        if task is None:
            return REAL["getpid"]()  # type: ignore[no-any-return]
        return task.process.pid if task.process.is_alive else -1

    def kill(self, pid: int, signal: int) -> None:
        if self.world.task_here() is None:
            REAL["kill"](pid, signal)
        elif not self.start_time(pid):
            raise ProcessLookupError

    def flock(self, fd: int, how: int) -> None:
        if self.step("flock", fd) is None or self.locks == "work":
            fcntl.flock(fd, how)  # each open file has a lock of its own, also within one real process
        elif self.locks == "ENOSYS":
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def start_time(self, pid: int) -> int:
        return int(any(process.pid == pid and process.is_alive for process in self.world.processes))

    # --- what follows from them

    def stamps(self) -> tuple[int, int]:
        now = EPOCH * 10**9 + int(self.world.now * 1e9)
        return now, now

    def stamp(self, fd: int, name: str | None = "") -> None:
        """Files change at the time of the simulation."""
        if name is not None:
            REAL["utime"](fd, ns=self.stamps())

    def check_unfinished(self, name: str) -> None:
        if not name.rpartition("/")[2].startswith(".") and not name.endswith(leases.LOCK):
            self.world.fail(f"{name} is written to after it was given its name")

    def buried(self, process: Process) -> None:
        """What the kernel does at the end of a process."""
        for fd in [fd for fd, (who, _) in self.open_files.items() if who is process]:
            del self.open_files[fd]
            REAL["close"](fd)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The code under test sees this system, the world's clock and the world's threads."""
        world = self.world
        with pytest.MonkeyPatch.context() as patch:
            own = {name for name in vars(System) if name in CALLS}
            for name in CALLS:
                ours = getattr(self, name) if name in own else self.quiet(name) if name in UNSEEN else self.plain(name)
                patch.setattr(os, name, ours)
            for module in (stop, retry, locks, cache, download, leases, prefetch):
                if hasattr(module, "time"):
                    patch.setattr(module, "time", Time(world))
            for module in (stop, prefetch):
                patch.setattr(module, "threading", Threading(world))
            patch.setattr(files, "_HOST", "0" * 10)
            patch.setattr(files, "start_time", self.start_time)
            patch.setattr(
                files, "secrets", SimpleNamespace(token_hex=lambda n: f"{world.random.getrandbits(8 * n):0{2 * n}x}")
            )
            patch.setattr(locks, "fcntl", SimpleNamespace(flock=self.flock, **{n: getattr(fcntl, n) for n in LOCKS}))
            patch.setattr(heartbeat, "hold", lambda path, again=None: Sign(path))  # all are of one machine
            patch.setattr(leases, "_numbers", iter(range(10**9)))
            patch.setattr(retry, "_random", world.random.random)
            patch.setattr(prefetch, "_SWEPT", set())
            patch.setattr(sys, "unraisablehook", partial(_unless_killed, sys.unraisablehook))
            yield


LOCKS = ("LOCK_EX", "LOCK_NB", "LOCK_UN")


def _unless_killed(report: Callable[[Any], object], what: Any) -> None:
    """A process may be killed while it cleans up after a forgotten object; Python says what was raised there."""
    if not isinstance(what.exc_value, Killed):
        report(what)


class Entries(list[Any]):
    """What `os.scandir` gives."""

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(self.copy())

    def __next__(self) -> Any:
        if not self:
            raise StopIteration
        return self.pop(0)

    def close(self) -> None:
        pass


class Name(str):
    """Hashes to the same number in every interpreter, so that sets of shards have the same order."""

    __slots__ = ()

    def __hash__(self) -> int:
        return zlib.crc32(self.encode())

    __eq__ = str.__eq__


class Server(Origin):
    """Has the bytes in memory, and gives them as servers do: slowly, in part, not at all, wrong."""

    name = Name("me/rows@00000000")
    folder = ("hf_shards", "me", "rows", "train")
    stall_seconds = 8.0

    def __init__(self, world: World, bodies: Mapping[str, bytes]) -> None:
        self._world, self._bodies = world, bodies
        self.faults = world.random.choice((0, 0, 3, 8))
        self.is_troubled = False
        self.asked = 0
        self.silent: set[str] = set()
        """Shards whose download showed no life for about as long as others wait for it."""
        self.on_request: Callable[[Shard], None] = lambda shard: None

    def __hash__(self) -> int:
        return 1

    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        self._world.point(f"range {shard.path} {start} {stop}")
        self._wait(self._world.random.random())
        if self._fault() == "status":
            raise Unreachable(f"{shard}: the server is not there")
        return self._bodies[shard.path][start:stop]

    def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
        random, fault = self._world.random, self._fault()
        self._world.point(f"get {shard.path} from {start} {fault}")
        self.asked += 1
        self.on_request(shard)
        self._wait(random.random() * 0.1)
        body = bytearray(self._bodies[shard.path])
        if fault == "status":
            raise Broken("status 503", retry_after=random.choice((None, 2.0)))
        if fault == "range":
            raise Restart("status 200 to a request for a range")
        if fault == "flip":
            body[-1] ^= 1
        if fault == "more":
            body += b"more"
        step = random.choice((len(body), len(body) // 2 + 1, len(body) // 4 + 1))
        for at in range(start, len(body), step):
            if not self._goes_on(fault, at > start, shard):
                return
            yield bytes(body[at : at + step])
            beat()

    def _fault(self) -> str:
        if not self.faults or self._world.random.random() < 0.5:
            return ""
        self.faults -= 1
        self.is_troubled = True
        return self._world.random.choice(("status", "range", "flip", "more", "short", "reset", "stall", "slow", "stop"))

    def _goes_on(self, fault: str, is_later: bool, shard: Shard) -> bool:
        """Whether more bytes come."""
        random = self._world.random
        self._wait(random.random() * (5.0 if fault == "slow" else 0.05))
        if fault == "stop":
            # Not the server is slow but we: stopped in the middle of a read, for longer than anybody waits for us.
            self.silent.add(shard.path)
            self._world.sleep(random.random() * 2 * self.stall_seconds)
        if is_later or random.random() < 0.3:
            if fault == "stall":
                self.silent.add(shard.path)
                self._wait(self.stall_seconds)
                raise Broken(f"{self.stall_seconds} s of silence")
            if fault == "reset":
                raise Broken("the connection broke")
            return fault != "short"
        return True

    def _wait(self, seconds: float) -> None:
        """For bytes; whoever ends the download ends the wait."""
        stop = current()
        self._world.point(f"receive {seconds:.3f}")
        if stop is None:
            self._world.block("bytes", seconds)
        else:
            stop.wait(seconds)
            beat()
