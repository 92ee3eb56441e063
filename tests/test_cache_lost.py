"""Cached shards whose sidecar was lost: still ours, by what the file says about itself; a user's files never are."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from fetching import noise, shards_on

from headrace.catalog.shard import Shard
from headrace.fetch import sidecar
from headrace.fetch.cache import ShardCache
from headrace.files import Files
from headrace.testing.hub import LocalHub

N = 20_000

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def shards(hub: LocalHub) -> list[Shard]:
    return shards_on(hub, {f"data/{name}": noise(N, seed) for seed, name in enumerate("abc")})


@pytest.fixture
def lost(shards: list[Shard], tmp_path: Path) -> Path:
    """The first shard, in the cache without its sidecar."""
    lease = ShardCache(tmp_path).acquire(shards[0])
    lease.release(keep=True)
    sidecar.path_beside(lease.path).unlink()
    return lease.path


def test_it_is_adopted_when_it_is_asked_for_and_goes_like_any_other(
    hub: LocalHub, shards: list[Shard], lost: Path, tmp_path: Path
) -> None:
    with ShardCache(tmp_path).acquire(shards[0]) as lease:
        assert lease.path == lost
        assert sidecar.path_beside(lost).exists()
    assert len(hub.requests) == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_it_counts_and_is_evicted_also_if_nobody_asks_for_it(shards: list[Shard], lost: Path, tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, limit=2 * N)
    for shard in shards[1:]:
        cache.acquire(shard).release(keep=True)
    assert not lost.exists()
    assert {path.name for path in tmp_path.rglob("[a-c]")} == {"b", "c"}


def test_one_that_was_harmed_is_fetched_again(hub: LocalHub, shards: list[Shard], lost: Path, tmp_path: Path) -> None:
    lost.chmod(0o644)
    lost.write_bytes(b"harmed")
    with ShardCache(tmp_path).acquire(shards[0]) as lease:
        assert lease.path == lost
        assert lease.path.read_bytes() == noise(N, 0)
    assert len(hub.requests) == 2


def test_somebody_who_reads_it_keeps_it(shards: list[Shard], tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, limit=N)
    with cache.acquire(shards[0]) as lease:
        sidecar.path_beside(lease.path).unlink()
        cache.acquire(shards[1]).release()
        assert lease.path.read_bytes() == noise(N, 0)


@pytest.mark.parametrize("how", ["copied over it", "moved away", "copied away", "linked under another name"])
def test_what_the_user_put_there_is_never_removed(
    hub: LocalHub, shards: list[Shard], lost: Path, tmp_path: Path, how: str
) -> None:
    other = lost.parent / "mine"
    other.mkdir(mode=0o700)
    mine = lost if how == "copied over it" else other / lost.name
    if how == "copied over it":
        aside = shutil.copy2(lost, tmp_path / "aside")
        os.replace(aside, lost)  # noqa: PTH105 - beside copy2
    elif how == "moved away":
        lost.rename(mine)
    elif how == "copied away":
        shutil.copy2(lost, mine)
    else:
        mine = other.parent / "z"
        os.link(lost, mine)
    assert os.getxattr(mine, sidecar.MARK)
    cache = ShardCache(tmp_path, limit=N)
    cache.sweep()
    for shard in (*shards[1:], shards[0], shards[1]):
        cache.acquire(shard).release()
    assert mine.read_bytes() == noise(N, 0)


def test_on_a_disk_without_such_marks_it_is_read_and_left_alone(
    hub: LocalHub, shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(Files, "mark", none)
    cache = ShardCache(tmp_path, limit=N)
    lease = cache.acquire(shards[0])
    lease.release(keep=True)
    sidecar.path_beside(lease.path).unlink()
    for shard in (shards[1], shards[0]):
        cache.acquire(shard).release()
    assert lease.path.read_bytes() == noise(N, 0)
    assert len(hub.requests) == 2
