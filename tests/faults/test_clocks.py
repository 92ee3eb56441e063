"""T24: files of another hour, of another machine, or of this one before its power went."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from fetching import noise, shard_on

from headrace import rows
from headrace.fetch.cache import ShardCache
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


@pytest.mark.parametrize(
    ("age", "counts"), [(0, True), (HOUR, True), (-HOUR, True), (25 * HOUR, False), (-48 * HOUR, False)]
)
def test_a_lease_of_another_machine_holds_for_a_day_whatever_its_clock_says(
    tmp_path: Path, age: float, counts: bool
) -> None:
    assert leases_in(tmp_path, f"key.{ELSEWHERE}.0", age).in_use("key") is counts


@pytest.mark.parametrize(
    ("age", "counts"), [(0, True), (2 * REMOVAL_SECONDS, True), (2 * MARK_SECONDS, False), (-HOUR, False)]
)
def test_a_mark_of_another_machine_or_an_earlier_boot_holds_nobody_up_for_long(
    tmp_path: Path, age: float, counts: bool
) -> None:
    """A removal takes seconds. After a power cut its mark is still there, and nobody will take it away."""
    leases = leases_in(tmp_path, f"key.{ELSEWHERE}.0.rm", age)
    assert leases.is_being_removed("key") is counts
    assert counts or list(tmp_path.iterdir()) == []


def test_a_lock_from_the_future_is_waited_for_no_longer_than_others(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path):
        os.utime(path, (time.time() + HOUR,) * 2)
        began = time.monotonic()
        with locked(path, patience=0.3):
            pass
        assert 0.3 <= time.monotonic() - began < 2
