"""What an earlier boot of this machine left in the cache is dead at once; another machine's may be alive."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from fetching import leftovers, noise, shard_on

from headrace import files
from headrace.fetch.cache import ShardCache
from headrace.fetch.download import part_mark
from headrace.files import host_tag, process_tag, unique_part
from headrace.testing.hub import LocalHub

N = 5000
BOOTED, BEFORE, SINCE = 20, 40, 5
"""Seconds ago: when this machine was started, and times before and since."""

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def booted(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = time.time() - BOOTED
    monkeypatch.setattr(files, "_boot_moment", lambda: moment)


def other_boot(name: str) -> str:
    boot, _, space = host_tag().partition("-")
    return name.replace(host_tag(), f"{'0' * len(boot)}-{space}")


def touch(path: Path, ago: float) -> None:
    os.utime(path, (time.time() - ago, time.time() - ago))


def left_by(cache: ShardCache, path: Path, ending: str = "", ago: float = BEFORE) -> Path:
    """A lease, or what ends otherwise, of a process of another boot."""
    left = cache._leases.folder / f"{cache._key(path)}.{other_boot(process_tag())}.0{ending}"
    left.touch()
    touch(left, ago)
    return left


def test_a_lease_of_an_earlier_boot_holds_nothing(hub: LocalHub, tmp_path: Path) -> None:
    cache, shard = ShardCache(tmp_path), shard_on(hub, noise(N))
    lease = cache.acquire(shard)
    left_by(cache, lease.path)
    left_by(cache, lease.path, ".kept")
    lease.release()
    assert not lease.path.exists()
    assert leftovers(tmp_path) == []


def test_a_mark_of_an_earlier_boot_is_not_waited_for(hub: LocalHub, tmp_path: Path) -> None:
    cache, shard = ShardCache(tmp_path), shard_on(hub, noise(N))
    cache.acquire(shard).release(keep=True)
    left_by(cache, cache.path_of(shard), ".rm")
    began = time.monotonic()
    assert cache.acquire(shard).path.exists()
    assert time.monotonic() - began < 2


def test_a_partial_file_of_an_earlier_boot_is_gone_on_with(hub: LocalHub, tmp_path: Path) -> None:
    cache, shard = ShardCache(tmp_path), shard_on(hub, noise(N))
    place = cache.path_of(shard)
    cache._prepare(place)
    part = unique_part(place, part_mark(shard))
    part = part.with_name(other_boot(part.name))
    part.write_bytes(noise(N)[:2000])
    touch(part, BEFORE)
    assert cache.acquire(shard).path.read_bytes() == noise(N)
    assert hub.requests[0].range == "bytes=2000-"


@pytest.mark.parametrize("why", ["touched since", "a shared disk", "a disk that is not known", "the same boot"])
def test_what_may_be_alive_holds(hub: LocalHub, tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, shard = ShardCache(tmp_path), shard_on(hub, noise(N))
    lease = cache.acquire(shard)
    left = left_by(cache, lease.path, ago=SINCE if why == "touched since" else BEFORE)
    if why == "a shared disk":
        monkeypatch.setattr(files, "_OWN_DISKS", {"ext17"})
    elif why == "a disk that is not known":
        monkeypatch.setattr(os, "minor", lambda device: 10**6)
    elif why == "the same boot":
        boot, _, space = host_tag().partition("-")
        left.rename(left.with_name(left.name.replace("0" * len(boot), boot).replace(space, "1" * len(space))))
    lease.release()
    assert lease.path.exists()


def test_a_lease_of_another_machine_counts_though_it_is_older_than_this_boot(hub: LocalHub, tmp_path: Path) -> None:
    """The disk may be this machine's own and be served to others, which were not started again."""
    cache, shard = ShardCache(tmp_path), shard_on(hub, noise(N))
    lease = cache.acquire(shard)
    left = left_by(cache, lease.path)
    node = host_tag().rpartition("-")[2]
    left.rename(left.with_name(left.name.replace(node, "f" * len(node))))
    lease.release()
    assert lease.path.exists()
