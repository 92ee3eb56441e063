"""Where one check alone stands between a fault and wrong bytes: the others that would notice are out of the way."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from fetching import leftovers, noise, shard_on

from headrace.catalog.shard import Shard
from headrace.fetch import leases, sidecar
from headrace.fetch.cache import ShardCache
from headrace.fetch.download import download
from headrace.fetch.leases import REMOVAL_SECONDS, Grade, Lease, Leases
from headrace.files import REAL, Files
from headrace.testing.hub import CloseAfter, GzipBody, IgnoreRange, LocalHub
from headrace.testing.hub.faults import Exchange

pytestmark = pytest.mark.usefixtures("quick")

BODY = noise(100_000)
MID = len(BODY) // 2


def test_a_whole_file_in_answer_to_a_range_is_not_appended_where_neither_size_nor_hash_would_tell(
    hub: LocalHub, tmp_path: Path
) -> None:
    known = shard_on(hub, BODY)
    shard = Shard(known.path, -1, "", known.origin)
    hub.fault("*/resolve/*", CloseAfter(MID), nth=1)
    hub.fault("*/resolve/*", IgnoreRange(), nth=1)
    download(shard, tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == BODY
    assert [request.range for request in hub.requests] == [None, f"bytes={MID}-", None]


class FromTheStart:
    """206 with the whole file, which it says, where its second half was asked for; nothing tells its length."""

    def acts_on(self, exchange: Exchange) -> bool:
        return exchange.has_body and exchange.answer.status == 206

    def act(self, exchange: Exchange) -> None:
        answer = exchange.answer
        size = answer.headers["Content-Range"].rpartition("/")[2]
        answer.headers["Content-Range"] = f"bytes 0-{answer.stop - 1}/{size}"
        answer.start, answer.trouble.framing = 0, "none"


def test_a_range_from_another_place_is_not_appended_where_neither_size_nor_hash_would_tell(
    hub: LocalHub, tmp_path: Path
) -> None:
    known = shard_on(hub, BODY)
    hub.fault("*/resolve/*", CloseAfter(MID), nth=1)
    hub.fault("*/resolve/*", FromTheStart(), nth=1)
    download(Shard(known.path, -1, "", known.origin), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == BODY
    assert [request.range for request in hub.requests] == [None, f"bytes={MID}-", None]


def test_a_packed_body_is_not_taken_where_neither_size_nor_hash_would_tell(hub: LocalHub, tmp_path: Path) -> None:
    known = shard_on(hub, BODY)
    hub.fault("*/resolve/*", GzipBody(), nth=1)
    download(Shard(known.path, -1, "", known.origin), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == BODY


@pytest.mark.parametrize("known", [False, True])
def test_a_shard_is_leased_before_it_is_looked_at_so_that_nobody_evicts_it_in_between(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """At the last moment before a reader has its file, another process wants all the room there is."""
    shard = shard_on(hub, BODY)
    cache, other = ShardCache(tmp_path), ShardCache(tmp_path)
    if known:
        cache.acquire(shard).release(keep=True)
    freed: list[bool] = []

    def evict(place: Path) -> None:
        freed.append(other._evict(1 << 40))

    monkeypatch.setattr(sidecar, "touch", evict)
    for lease in (cache.acquire(shard), cache.find(shard)):
        assert lease is not None
        assert lease.path.read_bytes() == BODY
        lease.release(keep=True)
    assert freed == [False, False]
    assert other._evict(1 << 40), "it does evict what nobody reads"
    assert leftovers(tmp_path) == []


def test_a_shard_that_is_evicted_between_look_and_lease_is_not_found(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = shard_on(hub, BODY)
    cache, other = ShardCache(tmp_path), ShardCache(tmp_path)
    cache.acquire(shard).release(keep=True)
    lease = cache._lease

    def late(place: Path) -> Lease:
        assert other._evict(1 << 40)
        return lease(place)

    monkeypatch.setattr(cache, "_lease", late)
    assert cache.find(shard) is None
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_takes_no_lease_is_no_reason_to_fail_while_only_looking(
    hub: LocalHub, tmp_path: Path, code: int
) -> None:
    class Full(Files):
        def create(self, path: Path) -> int:
            raise OSError(code, os.strerror(code))

    shard = shard_on(hub, BODY)
    ShardCache(tmp_path).acquire(shard).release(keep=True)
    assert ShardCache(tmp_path, files=Full()).find(shard) is None
    assert len(hub.requests) == 1


class Clock:
    """In the place of the module `time`: it goes on only where somebody sleeps, or the machine is suspended."""

    CLOCK_BOOTTIME = 7

    def __init__(self) -> None:
        self.now = 1000.0
        self.suspended = 0.0

    def monotonic(self) -> float:
        return self.now

    def clock_gettime(self, which: int) -> float:
        assert which == self.CLOCK_BOOTTIME
        return self.now + self.suspended

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def suspend(self, seconds: float) -> None:
        self.suspended += seconds


class Sleeper(Leases):
    """Falls asleep when it has found that nobody has a lease, before it removes the file."""

    asleep: Callable[[], None]

    def in_use(self, key: str, but: Collection[Grade] = ()) -> bool:
        found = super().in_use(key, but)
        self.asleep()
        return found


def test_who_slept_before_a_removal_leaves_the_file_to_those_who_no_longer_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sleeper saw no lease, and is waited for in vain: the other reads the file by the time it wakes up."""
    clock = Clock()
    monkeypatch.setattr(leases, "time", clock)
    monkeypatch.setattr(leases, "pause", clock.sleep)
    sleeper, reader = Sleeper(tmp_path, REAL), Leases(tmp_path, REAL)
    removed: list[str] = []

    def read() -> None:
        reader.claim("key")
        reader.wait_for_removals("key")

    sleeper.asleep = read
    assert sleeper.remove("key", lambda: removed.append("key")) is False
    assert clock.now - 1000 >= 2 * REMOVAL_SECONDS, "it was waited for"
    assert removed == []


@pytest.mark.parametrize("how", [Clock.sleep, Clock.suspend])
@pytest.mark.parametrize(("share", "goes"), [(0.0, True), (0.9, True), (1.1, False)])
def test_a_removal_gives_up_when_it_took_longer_than_a_removal_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, goes: bool, how: Callable[[Clock, float], None]
) -> None:
    """The process alone was stopped, or the whole machine was suspended, and another one was not."""
    clock = Clock()
    monkeypatch.setattr(leases, "time", clock)
    sleeper = Sleeper(tmp_path, REAL)
    sleeper.asleep = lambda: how(clock, share * REMOVAL_SECONDS)
    removed: list[str] = []
    assert sleeper.remove("key", lambda: removed.append("key")) is goes
    assert bool(removed) is goes
    assert list(tmp_path.iterdir()) == [], "no mark stays"
