"""T24: files of another hour, of another machine, or of this one before its power went."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from fetching import noise, shard_on

from headrace import rows
from headrace.fetch import heartbeat
from headrace.fetch.cache import ShardCache
from headrace.fetch.heartbeat import BEAT_SECONDS, SILENT_SECONDS
from headrace.fetch.leases import MARK_SECONDS, REMOVAL_SECONDS, Leases
from headrace.files import REAL
from headrace.locks import locked
from headrace.testing import LocalHub, write_parquet

ELSEWHERE = "0000000000.1.1"
HOUR = 3600.0


@pytest.mark.parametrize("hours", [-1, 1])
def test_files_of_the_user_from_another_hour_are_read(tmp_path: Path, hours: int) -> None:
    for path in write_parquet(tmp_path / "in", [[10], [10]]):
        when = time.time() + hours * HOUR
        os.utime(path, (when, when))
    for _ in range(2):  # the second time from the index
        with rows(f"parquet:{tmp_path}/in/*.parquet", cache_dir=tmp_path / "data") as stage:
            assert len(list(stage)) == 20


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_cached_file_from_another_hour_is_hashed_and_not_fetched(hub: LocalHub, tmp_path: Path, hours: int) -> None:
    shard, cache = shard_on(hub, noise(1000)), ShardCache(tmp_path)
    cache.acquire(shard).release(keep=True)
    when = time.time() + hours * HOUR
    os.utime(cache.path_of(shard), (when, when))
    with cache.acquire(shard) as lease:
        assert lease.path.read_bytes() == noise(1000)
    assert len(hub.requests) == 1


def leases_in(tmp_path: Path, name: str, age: float) -> Leases:
    """A folder with one file in it that another machine left, so long ago; less than 0: with a clock that is ahead."""
    path = tmp_path / name
    path.touch()
    os.utime(path, (time.time() - age,) * 2)
    return Leases(tmp_path, REAL)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The monotonic clock by which other machines are judged."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.mark.parametrize("age", [0, HOUR, -HOUR, 25 * HOUR, -48 * HOUR])
def test_a_lease_of_another_machine_holds_until_it_was_silent_whatever_its_clock_says(
    tmp_path: Path, clock: SimpleNamespace, age: float
) -> None:
    leases = leases_in(tmp_path, f"key.{ELSEWHERE}.0", age)
    for seconds in (0.0, SILENT_SECONDS - 1, 1.0, 2 * BEAT_SECONDS - 1):
        clock.now += seconds
        assert leases.in_use("key")
    clock.now += 1
    assert not leases.in_use("key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", [-HOUR, -1.0, 1.0, HOUR])
def test_a_lease_of_another_machine_that_is_touched_holds_for_ever(
    tmp_path: Path, clock: SimpleNamespace, step: float
) -> None:
    """Also where that machine sets the times of files, and its clock is set back each time."""
    leases = leases_in(tmp_path, f"key.{ELSEWHERE}.0", 0)
    (path,) = tmp_path.iterdir()
    for number in range(20):
        assert leases.in_use("key")
        clock.now += SILENT_SECONDS
        assert leases.in_use("key")
        when = time.time() + step * number
        os.utime(path, (when, when))


def test_a_disk_that_was_away_ends_no_lease(tmp_path: Path, clock: SimpleNamespace) -> None:
    """Nobody could touch anything then, and when it is back this process may be the first to look."""
    leases = leases_in(tmp_path, f"key.{ELSEWHERE}.0", 0)
    assert leases.in_use("key")
    clock.now += 10 * SILENT_SECONDS
    assert leases.in_use("key")
    next(tmp_path.iterdir()).touch()
    clock.now += 2 * BEAT_SECONDS
    assert leases.in_use("key")


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ETIMEDOUT])
def test_a_disk_that_does_not_answer_ends_no_lease(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    leases = leases_in(tmp_path, f"key.{ELSEWHERE}.0", 0)

    def away(path: Path) -> tuple[int, int]:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(heartbeat, "_times", away)
        for _ in range(3):
            assert leases.in_use("key")
            clock.now += 10 * SILENT_SECONDS
    assert leases.in_use("key")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("age", [0, 2 * MARK_SECONDS, -HOUR, 25 * HOUR])
def test_a_mark_of_another_machine_or_an_earlier_boot_holds_nobody_up_for_long(
    tmp_path: Path, clock: SimpleNamespace, age: float
) -> None:
    """A removal takes seconds. After a power cut its mark is still there, and nobody will take it away."""
    leases = leases_in(tmp_path, f"key.{ELSEWHERE}.0.rm", age)
    for seconds in (0.0, 2 * REMOVAL_SECONDS, MARK_SECONDS):
        clock.now += seconds
        assert leases.is_being_removed("key")
    clock.now += 2 * BEAT_SECONDS
    assert not leases.is_being_removed("key")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_from_the_future_is_waited_for_no_longer_than_others(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path):
        os.utime(path, (time.time() + HOUR,) * 2)
        began = time.monotonic()
        with locked(path, patience=0.3):
            pass
        assert 0.3 <= time.monotonic() - began < 2
