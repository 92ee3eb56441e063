"""Where one check alone stands between a fault and wrong bytes: the others that would notice are out of the way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from fetching import leftovers, noise, shard_on

from headrace.catalog.shard import Shard
from headrace.fetch import sidecar
from headrace.fetch.cache import ShardCache
from headrace.fetch.download import download
from headrace.files import Files
from headrace.testing.hub import CloseAfter, IgnoreRange, LocalHub

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
