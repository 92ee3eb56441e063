"""The limit of the cache is kept by those who read: what lies on disk is within it, but for what is being read."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fetching import leases_of, noise, shards_on, wait_until

import headrace
from headrace.catalog.shard import Shard
from headrace.fetch import sidecar
from headrace.fetch.cache import ShardCache
from headrace.fetch.cache_room import Room
from headrace.fetch.leases import Grade
from headrace.fetch.prefetch import ShardPrefetcher
from headrace.files import Files
from headrace.testing import LocalHub, write_parquet

N = 20_000
SHARDS, ROWS = 40, 12

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def small(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Many shards, each with one chunk. Gives the size of the largest."""
    return push(hub, tmp_path, monkeypatch, [[ROWS]] * SHARDS)


def push(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: list[list[int]]) -> int:
    write_parquet(tmp_path / "repo", groups)
    hub.push("me/rows", tmp_path / "repo")
    for name, value in hub.env().items():
        monkeypatch.setenv(name, value)
    return max(path.stat().st_size for path in (tmp_path / "repo").iterdir())


def whole(cache: Path) -> dict[Path, int]:
    """The shards that lie there, and their sizes."""
    found = {}
    for path in (cache / "hf_shards").rglob("*.parquet"):
        try:
            found[path] = path.lstat().st_size
        except FileNotFoundError:
            continue
    return found


def being_read(cache: Path) -> int:
    """The bytes of the shards that somebody reads from."""
    reading = leases_of(cache, Grade.READ)
    there = ShardCache(cache)
    return sum(size for path, size in whole(cache).items() if there._key(path) in reading)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def watched(items: Iterator[Any], cache: Path, limit: int, beside: int) -> list[Any]:
    """All items; at many, no more lies on disk than the limit, or than is being read, at most `beside`."""
    found = []
    for number, item in enumerate(items):
        found.append(item)
        if number > 100 and number % 20:
            continue
        total, reading = sum(whole(cache).values()), being_read(cache)
        assert total <= max(limit, reading + beside), f"{total:,} bytes at a limit of {limit:,}, {reading:,} being read"
        assert reading <= max(limit, beside), f"{reading:,} bytes are being read"
    return found


# --- those who read


def loaded(cache: Path, limit: int, beside: int) -> list[str]:
    with headrace.load("hf:me/rows", batch_size=10, cache_dir=cache, lanes=2, seed=3) as loader:
        return [uid for batch in watched(iter(loader), cache, limit, beside) for uid in batch["uid"]]


def shuffled(cache: Path, limit: int, beside: int) -> list[str]:
    with headrace.rows("hf:me/rows", shuffle=True, seed=3, cache_dir=cache) as stage:
        return [row.data["uid"] for row in watched(stage, cache, limit, beside)]


@pytest.mark.parametrize(("uids", "warned"), [(loaded, {1}), (shuffled, {0, 1})])
@pytest.mark.parametrize("cleanup", ["auto", "keep"])
@pytest.mark.parametrize("shards", [1, 4, 10])
def test_readers_of_many_small_shards_in_random_order_keep_to_the_limit_and_warn_once(
    small: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    shards: int,
    cleanup: str,
    uids: Callable[[Path, int, int], list[str]],
    warned: set[int],
) -> None:
    def read(cache: str, limit: int) -> list[str]:
        monkeypatch.setenv("HEADRACE_CACHE_BYTES", str(limit))
        return uids(tmp_path / cache, limit, 3 * small)

    monkeypatch.setenv("HF_SHARD_CACHE_CLEANUP", cleanup)
    roomy = read("roomy", 10**9)
    assert warnings_in(caplog) == []
    tight = read("tight", shards * small)
    assert tight == roomy
    assert len(set(tight)) == SHARDS * ROWS
    assert len(warnings_in(caplog)) in warned
    assert sum(whole(tmp_path / "tight").values()) <= shards * small


def test_what_fits_is_read_from_whole_shards_and_each_is_fetched_once(
    hub: LocalHub, small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limit = 2 * 30 * small
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", str(limit))
    with headrace.load("hf:me/rows", batch_size=10, cache_dir=tmp_path / "data", lanes=2) as loader:
        watched(iter(loader), tmp_path / "data", limit, 3 * small)
    fetched = [request.path for request in hub.requests if request.range is None and "/resolve/" in request.path]
    assert sorted(set(fetched)) == sorted(fetched)
    assert fetched
    assert warnings_in(caplog) == []


def test_shards_of_many_chunks_are_held_by_the_window_not_by_the_chunk(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pool of 24 chunks lies in two or three of these shards: room for four is enough to have them whole."""
    largest = push(hub, tmp_path, monkeypatch, [[5] * 30] * 8)
    limit = 4 * largest
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", str(limit))
    with headrace.load("hf:me/rows", batch_size=10, cache_dir=tmp_path / "data") as loader:
        watched(iter(loader), tmp_path / "data", limit, 4 * largest)
    assert warnings_in(caplog) == []
    assert any(request.range is None and "/resolve/" in request.path for request in hub.requests)


@pytest.mark.parametrize("shards", [4, 100])
def test_a_shard_whose_chunks_are_all_in_memory_is_not_being_read(
    small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", str(shards * small))
    with headrace.rows("hf:me/rows", shuffle=True, cache_dir=tmp_path / "data") as stage:
        for _ in range(SHARDS * ROWS // 2):
            next(stage)
        assert being_read(tmp_path / "data") <= 3 * small  # a window, and what is on its way


def test_without_a_limit_what_the_last_state_needs_stays_on_disk(small: int, hub: LocalHub, tmp_path: Path) -> None:
    stage = headrace.rows("hf:me/rows", shuffle=True, cache_dir=tmp_path / "data")
    before = [next(stage) for _ in range(200)]
    state = stage.state_dict()
    needed = stage._pool.shards_in_use()
    for _ in range(10):
        next(stage)
    names = {f"train-{number:05d}-of-{SHARDS:05d}.parquet" for number in needed}
    # Some may still be on their way; what was removed does not come back while nothing is drawn.
    wait_until(lambda: names <= {path.name for path in whole(tmp_path / "data")})
    rest = [row.address for row in stage]
    stage.close()
    again = headrace.rows("hf:me/rows", shuffle=True, cache_dir=tmp_path / "other")
    again.load_state_dict(state)
    assert [row.address for row in again][10:] == rest
    assert len(before) == 200
    again.close()


def test_a_loader_that_reads_by_range_keeps_no_lease_on_the_shards_it_finds(
    small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses what an earlier run left, fetches nothing whole, and the smaller limit is kept from its start on."""
    monkeypatch.setenv("HF_SHARD_CACHE_CLEANUP", "keep")
    with headrace.rows("hf:me/rows", cache_dir=tmp_path / "data") as stage:
        assert len(list(stage)) == SHARDS * ROWS
    assert len(whole(tmp_path / "data")) == SHARDS
    limit = 4 * small
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", str(limit))
    with headrace.load("hf:me/rows", batch_size=10, cache_dir=tmp_path / "data", lanes=2) as loader:
        watched(iter(loader), tmp_path / "data", limit, 3 * small)


# --- the cache


@pytest.fixture
def shards(hub: LocalHub) -> list[Any]:
    return shards_on(hub, {name: noise(N, seed) for seed, name in enumerate("abcd")})


def names(root: Path) -> list[str]:
    found = (path for path in (root / "hf_shards").rglob("*") if path.is_file() and path.parent.name != ".leases")
    return sorted(path.name for path in found if not path.name.startswith("."))


def test_a_kept_shard_survives_whoever_lets_go_of_it_but_not_a_need_for_room(shards: list[Any], tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, limit=2 * N)
    kept, other = cache.acquire(shards[0]), cache.acquire(shards[0])
    kept.turn(Grade.KEPT)
    other.release()
    assert names(tmp_path) == ["a"]
    held = cache.acquire(shards[1])
    assert names(tmp_path) == ["a", "b"]
    last = cache.acquire(shards[2])
    assert names(tmp_path) == ["b", "c"]
    for lease in (kept, held, last):
        lease.release()
    assert names(tmp_path) == []


def test_what_nobody_has_goes_before_what_is_kept_and_that_before_what_was_fetched_ahead(
    shards: list[Any], tmp_path: Path
) -> None:
    cache = ShardCache(tmp_path, limit=3 * N)
    leases = {name: cache.acquire(shard) for name, shard in zip("abc", shards, strict=False)}
    leases["a"].turn(Grade.AHEAD)
    leases["b"].turn(Grade.KEPT)
    leases["c"].release(keep=True)
    cache.acquire(shards[3]).release(keep=True)
    assert names(tmp_path) == ["a", "b", "d"]
    d = cache.acquire(shards[3])
    c = cache.acquire(shards[2])
    assert names(tmp_path) == ["a", "c", "d"]
    cache.acquire(shards[1])
    assert names(tmp_path) == ["b", "c", "d"]
    assert c.path.exists()
    assert d.path.exists()


def test_a_fetch_ahead_takes_no_room_from_what_was_fetched_ahead_before(shards: list[Any], tmp_path: Path) -> None:
    with ShardPrefetcher(shards, tmp_path, limit=3 * N, lookahead=3) as prefetch:
        assert prefetch.wait_for(shards[0]).exists()
        wait_until(lambda: names(tmp_path) == ["a", "b", "c"])
        wait_until(lambda: not prefetch._desk._queue and not prefetch._desk._jobs)
        assert names(tmp_path) == ["a", "b", "c"]
        for n, shard in enumerate(shards):
            assert prefetch.wait_for(shard).read_bytes() == noise(N, n)


def test_a_shard_fetched_ahead_and_evicted_is_fetched_again_when_it_is_asked_for(
    hub: LocalHub, shards: list[Any], tmp_path: Path
) -> None:
    with ShardPrefetcher(shards[:2], tmp_path, limit=2 * N) as prefetch:
        prefetch.wait_for(shards[0])
        wait_until(lambda: leases_of(tmp_path, Grade.AHEAD))
        with ShardCache(tmp_path, limit=2 * N).acquire(shards[2]):
            assert names(tmp_path) == ["a", "c"]
        assert prefetch.wait_for(shards[1]).read_bytes() == noise(N, 1)
    assert len(hub.requests) == 4


def test_a_limit_that_was_exceeded_is_kept_again_as_soon_as_files_are_let_go(
    shards: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = ShardCache(tmp_path, cleanup="keep", limit=2 * N)
    leases = [cache.acquire(shard) for shard in shards]
    assert names(tmp_path) == ["a", "b", "c", "d"]
    assert len(warnings_in(caplog)) == 1
    assert "limit of 40,000 bytes is exceeded by 20,000" in caplog.text
    for lease in leases:
        lease.release()
    assert len(names(tmp_path)) == 2


def test_a_sweep_keeps_to_a_limit_that_was_lowered(shards: list[Any], tmp_path: Path) -> None:
    for shard in shards:
        ShardCache(tmp_path).acquire(shard).release(keep=True)
    ShardCache(tmp_path, limit=N).sweep()
    assert names(tmp_path) == ["d"]


class SmallDisk(Files):
    """A disk that is full at so many bytes."""

    def __init__(self, top: Path, room: int) -> None:
        self._top, self._room = top, room

    def write(self, fd: int, data: bytes | memoryview) -> None:
        if self._used() + len(data) > self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, data)

    def _used(self) -> int:
        found = 0
        for path in self._top.rglob("*"):
            with suppress(FileNotFoundError):
                found += path.lstat().st_size if path.is_file() else 0
        return found


def test_on_a_full_disk_what_is_fetched_ahead_leaves_alone_what_others_fetched_ahead(
    hub: LocalHub, tmp_path: Path
) -> None:
    a, b, c = shards_on(hub, {f"data/{name}.parquet": noise(3 * N, i) for i, name in enumerate("abc")})
    disk = tmp_path / "disk"
    cache = ShardCache(disk, files=SmallDisk(disk, 7 * N))
    with ahead_of(cache, a, b, c) as one, ahead_of(cache, a, b, c) as other:
        one.wait_for(a)
        one.want(b)
        wait_until(lambda: cache._key(cache.path_of(b)) in leases_of(disk, Grade.AHEAD))
        other.want(c)
        wait_until(lambda: not other._here()._queue and not other._here()._jobs)
        assert cache.path_of(b).exists()
        assert not cache.path_of(c).exists()
        assert other.wait_for(c).exists()  # what is needed now has the right of way
        assert not cache.path_of(b).exists()


def test_what_finds_no_room_ahead_costs_nobody_his_own(hub: LocalHub, tmp_path: Path) -> None:
    sizes = {"kept": N // 2, "read": 5 * N // 4, "next": N}
    kept, read, ahead = shards_on(
        hub, {f"data/{i}-{name}.parquet": noise(size, i) for i, (name, size) in enumerate(sizes.items())}
    )
    cache = ShardCache(tmp_path, limit=2 * N)
    with ahead_of(cache, kept, read, ahead) as prefetcher:
        prefetcher.wait_for(kept)
        prefetcher.wait_for(read)
        prefetcher.put_by(kept)
        prefetcher.want(ahead)
        wait_until(lambda: not prefetcher._here()._queue and not prefetcher._here()._jobs)
        assert not cache.path_of(ahead).exists()
        assert cache.path_of(kept).exists()


def ahead_of(cache: ShardCache, *shards: Shard) -> ShardPrefetcher:
    return ShardPrefetcher(shards, cache.root, lookahead=0, auto_release=False, cache=cache)


def test_who_finds_the_limit_kept_does_not_hide_that_another_found_it_exceeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One looks; another fetches a file and looks; then the first one says what it saw."""
    room = Room(tmp_path, 10, lambda place, but: True, lambda place, but: False)
    looks: list[int] = []

    def reduce(grades: object) -> int:
        looks.append(len(looks))
        if len(looks) == 1:
            room.make(shard, ahead=False)
            return 0
        return 5 if len(looks) == 2 else 0

    shard: Any = SimpleNamespace(size=1)
    monkeypatch.setattr(room, "_reduce", reduce)
    room.make(shard, ahead=False)
    assert len(looks) == 2
    room.keep_again()
    assert len(looks) == 3, "it is looked at again when something was let go"
    room.keep_again()
    assert len(looks) == 3


def test_two_who_make_room_at_once_remove_no_more_than_one_would(
    shards: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both see that one file is too much; one of them removes it before the other does."""
    full = ShardCache(tmp_path)
    for shard in shards[:3]:
        full.acquire(shard).release(keep=True)
    assert names(tmp_path) == ["a", "b", "c"]
    last_use = sidecar.last_use
    others: list[None] = []

    def last_use_while_another_makes_room(place: Path) -> float:
        if not others:
            others.append(None)
            ShardCache(tmp_path, limit=2 * N)._room.keep()
        return last_use(place)

    monkeypatch.setattr(sidecar, "last_use", last_use_while_another_makes_room)
    ShardCache(tmp_path, limit=2 * N)._room.keep()
    assert others
    assert names(tmp_path) == ["b", "c"]
