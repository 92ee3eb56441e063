"""The shard cache under three processes that take turns, each of which may be killed at any system call."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import machines
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace import files
from headrace.catalog import retry
from headrace.catalog.shard import Broken, Origin, Shard
from headrace.errors import HeadraceError
from headrace.fetch import cache as cache_module
from headrace.fetch import download, heartbeat, leases, sidecar
from headrace.fetch.cache import ShardCache
from headrace.fetch.heartbeat import Sign
from headrace.fetch.leases import Grade, Lease
from headrace.files import Files

EXAMPLES = 400
NUM_SHARDS, ACTORS = 4, 3
SIZE = 900
BODIES = [bytes((i * 7 + n) % 251 for n in range(SIZE)) for i in range(NUM_SHARDS)]
MINE = b"a file of the user's"


class Killed(BaseException):
    """The process is gone: nothing that it would have done afterwards happens."""


class Memory(Origin):
    """Gives bytes in three pieces; breaks off, or gives wrong ones, when told to."""

    name = "me/rows@00000000"
    folder = ("hf_shards", "me", "rows", "train")

    def __init__(self) -> None:
        self.breaks = 0
        self.flips = 0
        self.num_bytes = 0

    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        raise NotImplementedError

    def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
        body = bytearray(BODIES[int(shard.path[-1])])
        if self.flips:
            self.flips -= 1
            body[-1] ^= 1
        for at in range(start, SIZE, 300):
            if self.breaks and at > start:
                self.breaks -= 1
                raise Broken("the line is cut")
            piece = bytes(body[at : min(at + 300, SIZE)])
            self.num_bytes += len(piece)
            yield piece


class Process:
    """Who uses the cache. It is killed after so many more calls that change the disk."""

    def __init__(self, number: int) -> None:
        self.tag = f"{files.host_tag()}.{10**7 + number}.1"
        self.alive = True
        self.calls_left: int | None = None
        self.open: set[int] = set()
        self.leases: dict[int, list[Lease]] = {}
        """Those that it holds, by the number of their shard."""
        self.loose: list[Lease] = []
        """Those on files that it needs less."""


class Disk(Files):
    """The real one, in the name of whoever has the turn."""

    def __init__(self, machine: Cache) -> None:
        self._machine = machine

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_"):
            return super().__getattribute__(name)
        machine, real = self._machine, super().__getattribute__(name)

        def call(*args: Any) -> Any:
            who = machine.turn
            if not who.alive:
                raise Killed
            if who.calls_left is not None:
                who.calls_left -= 1
                if who.calls_left < 0:
                    machine.kill(who)
                    raise Killed
            if machine.refuses is not None and name in ("create", "write", "fsync", "rename", "link"):
                code, machine.refuses = machine.refuses, None
                raise OSError(code, os.strerror(code))
            found = real(*args)
            if name in ("create", "reopen"):
                who.open.add(found)
            elif name == "close":
                who.open.discard(args[0])
            return found

        return call


class Cache(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="headrace-machine-"))
        self.patch = pytest.MonkeyPatch()
        self.serial = 0
        self.refuses: int | None = None
        self.processes = [self.process() for _ in range(ACTORS)]
        self.turn = self.processes[0]
        everybody = {one.tag: one for one in self.processes}
        self.everybody = everybody
        for module in (files, leases):
            self.patch.setattr(module, "process_tag", lambda: self.turn.tag)
        for name in ("headrace.files.is_alive", "headrace.locks.is_alive"):
            self.patch.setattr(name, lambda tag: tag in everybody and everybody[tag].alive)
        self.patch.setattr("headrace.locks.process_tag", lambda: self.turn.tag)
        self.patch.setattr(heartbeat, "hold", lambda path, again=None: Sign(path))  # all are of one machine
        self.patch.setattr(cache_module, "log", _Silent())
        self.patch.setattr(download, "log", _Silent())
        self.patch.setattr(retry, "RETRY", retry.Retry(attempts=4, base=0.0))
        self.patch.setattr(Files, "fsync", lambda *_: None)
        self.patch.setattr(Files, "fsync_dir", lambda *_: None)
        self.origin = Memory()
        self.shards = [
            Shard(f"data/{i}", SIZE, hashlib.sha256(body).hexdigest(), self.origin) for i, body in enumerate(BODIES)
        ]
        self.spoiled: set[Path] = set()
        """Files that were damaged while somebody had them: what that reader sees is not our doing."""
        self.foreign: set[Path] = set()
        """Files that lost their sidecar, on a disk that keeps no marks: from then on they are nobody's, and stay."""
        self.marks = _keeps_marks(self.root)

    def process(self) -> Process:
        self.serial += 1
        return Process(self.serial)

    @initialize(cleanup=st.sampled_from(["auto", "keep"]), limit=st.sampled_from([None, SIZE, 2 * SIZE, 3 * SIZE]))
    def begin(self, cleanup: Any, limit: int | None) -> None:
        self.limit = limit
        self.cache = ShardCache(self.root, cleanup=cleanup, limit=limit, files=Disk(self))
        place = self.cache.path_of(self.shards[0]).with_name("mine")
        self.cache._prepare(place)
        place.write_bytes(MINE)
        self.mine = place

    def kill(self, who: Process) -> None:
        who.alive = False
        for fd in who.open:
            os.close(fd)
        who.open.clear()
        for held in who.leases.values():
            for lease in held:
                lease._forgotten.detach()  # its memory is gone, and with it what would be done at the end
        who.leases.clear()
        for lease in who.loose:
            lease._forgotten.detach()
        who.loose.clear()

    def replace_dead(self) -> None:
        """Another process begins in the place of one that died."""
        for i, who in enumerate(self.processes):
            if not who.alive:
                self.processes[i] = self.process()
                self.everybody[self.processes[i].tag] = self.processes[i]

    # --- what happens

    @rule(who=st.integers(0, ACTORS - 1), number=st.integers(0, NUM_SHARDS - 1), calls=st.none() | st.integers(0, 25))
    def acquire(self, who: int, number: int, calls: int | None) -> None:
        self.turn = self.processes[who]
        self.turn.calls_left = calls
        self.attempt(number)

    def attempt(self, number: int) -> None:
        shard, who, troubled = self.shards[number], self.turn, self.refuses is not None or self.origin.flips >= 3
        troubled, before = troubled or self.origin.breaks >= 4, self.origin.num_bytes
        try:
            lease = self.cache.acquire(shard)
        except Killed:
            self.replace_dead()
            return
        except HeadraceError:
            assert troubled, "nothing was wrong"
            return
        finally:
            who.calls_left = None
            self.refuses = None
        who.leases.setdefault(number, []).append(lease)
        assert lease.path.read_bytes() == BODIES[number]
        self.spoiled.discard(lease.path)
        if self.limit is not None and self.origin.num_bytes > before and not troubled:
            self.check_limit(self.limit)

    def check_limit(self, limit: int) -> None:
        """Where there is more than the limit after a fetch, all of it is being read."""
        found = {path for path in self.root.rglob("[0-9]") if path.is_file()} - self.foreign
        held = {lease.path for who in self.processes for leases in who.leases.values() for lease in leases}
        assert len(found) * SIZE <= limit or found <= held

    @rule(who=st.integers(0, ACTORS - 1), number=st.integers(0, NUM_SHARDS - 1))
    def find(self, who: int, number: int) -> None:
        self.turn = self.processes[who]
        before = self.origin.num_bytes
        lease = self.cache.find(self.shards[number])
        assert self.origin.num_bytes == before, "it asked somebody"
        if lease is not None:
            self.turn.leases.setdefault(number, []).append(lease)
            assert lease.path in self.spoiled or lease.path.read_bytes() == BODIES[number]

    @rule(
        who=st.integers(0, ACTORS - 1),
        number=st.integers(0, NUM_SHARDS - 1),
        keep=st.booleans(),
        calls=st.none() | st.integers(0, 6),
    )
    def release(self, who: int, number: int, keep: bool, calls: int | None) -> None:
        self.with_lease(who, number, calls, lambda lease: lease.release(keep))

    def with_lease(self, who: int, number: int, calls: int | None, do: Callable[[Lease], None]) -> None:
        """A process does so with a lease it has, if it has one, and may be killed at a system call."""
        self.turn = self.processes[who]
        held = self.turn.leases.get(number)
        if held:
            self.turn.calls_left = calls
            try:
                do(held.pop())
            except Killed:
                self.replace_dead()
            finally:
                self.turn.calls_left = None

    @rule(
        who=st.integers(0, ACTORS - 1),
        number=st.integers(0, NUM_SHARDS - 1),
        grade=st.sampled_from([Grade.AHEAD, Grade.KEPT]),
        calls=st.none() | st.integers(0, 3),
    )
    def need_less(self, who: int, number: int, grade: Grade, calls: int | None) -> None:
        """From here on the file may go; the lease must not be in the way of anything."""

        def loosen(lease: Lease) -> None:
            lease.turn(grade)
            self.turn.loose.append(lease)

        self.with_lease(who, number, calls, loosen)

    @rule(who=st.integers(0, ACTORS - 1), keep=st.booleans())
    def release_what_is_needed_less(self, who: int, keep: bool) -> None:
        self.turn = self.processes[who]
        while self.turn.loose:
            self.turn.loose.pop().release(keep)

    @rule(who=st.integers(0, ACTORS - 1))
    def die(self, who: int) -> None:
        self.kill(self.processes[who])
        self.replace_dead()

    @rule(who=st.integers(0, ACTORS - 1), needed=st.sampled_from([1, SIZE, 3 * SIZE]))
    def evict(self, who: int, needed: int) -> None:
        self.turn = self.processes[who]
        self.cache._evict(needed)

    @rule(who=st.integers(0, ACTORS - 1))
    def sweep(self, who: int) -> None:
        self.turn = self.processes[who]
        self.cache.sweep()

    @rule(number=st.integers(0, NUM_SHARDS - 1), how=st.sampled_from(["cut", "flip", "gone", "closed", "sidecar"]))
    def damage(self, number: int, how: str) -> None:
        self.turn = self.processes[0]
        path = self.cache.path_of(self.shards[number])
        if how == "sidecar":
            beside = sidecar.path_beside(path)
            if beside.exists() and path.exists():
                beside.write_bytes(b"{")
                if not self.marks:
                    self.foreign.add(path)
        elif how == "closed" and path.exists():
            path.chmod(0)
        elif path.exists():
            self.spoiled.add(path)
            if how == "gone":
                path.unlink()
                self.foreign.discard(path)
            else:
                path.chmod(0o600)
                content = bytearray(BODIES[number])
                content[5] ^= 1
                path.write_bytes(bytes(content) if how == "flip" else content[: SIZE // 2])
                os.utime(path, ns=(self.serial, self.serial))

    @rule(breaks=st.integers(0, 6), flips=st.sampled_from([0, 1, 2, 9]))
    def trouble_the_server(self, breaks: int, flips: int) -> None:
        self.origin.breaks, self.origin.flips = breaks, flips

    @rule(code=st.sampled_from([errno.ENOSPC, errno.EIO, errno.EDQUOT]))
    def trouble_the_disk(self, code: int) -> None:
        self.refuses = code

    # --- what holds

    @invariant()
    def whoever_has_a_lease_has_the_file(self) -> None:
        for who in self.processes:
            for number, held in who.leases.items():
                for lease in held:
                    if lease.path not in self.spoiled:
                        assert lease.path.read_bytes() == BODIES[number]

    @invariant()
    def the_file_of_the_user_is_there(self) -> None:
        if hasattr(self, "mine"):
            assert self.mine.read_bytes() == MINE

    @invariant()
    def what_is_nobodys_stays(self) -> None:
        assert all(path.exists() for path in self.foreign)

    @invariant()
    def no_shard_is_seen_in_part(self) -> None:
        for path in self.root.rglob("[0-9]"):
            if path.is_file() and path not in self.spoiled:
                assert path.read_bytes() == BODIES[int(path.name)]

    def teardown(self) -> None:
        try:
            if hasattr(self, "cache"):
                self.end()
        finally:
            for who in self.processes:
                if who.alive:
                    self.kill(who)
            self.patch.undo()
            shutil.rmtree(self.root)

    def end(self) -> None:
        """All is well again: every shard can be had, and when everybody has let go nothing is left behind."""
        self.origin.breaks = self.origin.flips = 0
        self.refuses = None
        self.turn = self.processes[0]
        for number in range(NUM_SHARDS):
            self.attempt(number)
        for who in self.processes:
            self.turn = who
            for held in (*who.leases.values(), who.loose):
                for lease in held:
                    lease.release(keep=True)
            who.leases.clear()
        self.cache.sweep()
        names = [path.name for path in self.root.rglob("*") if path.is_file()]
        assert [name for name in names if name.endswith((".part", ".rm", ".lock"))] == []
        assert list((self.root / "hf_shards" / ".leases").iterdir()) == []
        self.cache._evict(1 << 40)
        stay = {self.mine, *self.foreign, *map(sidecar.path_beside, self.foreign)}
        assert {path for path in self.root.rglob("*") if path.is_file()} <= stay


def _keeps_marks(root: Path) -> bool:
    probe = root / "probe"
    probe.touch()
    try:
        os.setxattr(probe, sidecar.MARK, b"?")
    except OSError:
        return False
    finally:
        probe.unlink()
    return True


class _Silent:
    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


@pytest.mark.timeout(120 * machines.TIMES)
def test_whoever_has_a_lease_has_the_right_bytes_whatever_the_others_do_and_wherever_they_die() -> None:
    machines.run(Cache, EXAMPLES, 20)
