"""Bytes of videos where there is little room, no network, or harm done to the cache: they are right, or an error."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from fetching import wait_until
from robot_files import MOVIE, A, B, N, Repo, movie, repo_on, settled, span, videos_in

from headrace.catalog.remote import RemoteOrigin
from headrace.catalog.shard import Shard
from headrace.errors import Unreachable
from headrace.fetch.cache import ShardCache
from headrace.fetch.leases import Grade
from headrace.lerobot import files as module
from headrace.lerobot.files import VideoFiles
from headrace.lerobot.ranges import range_of
from headrace.testing.hub import Flip, LocalHub

pytestmark = pytest.mark.usefixtures("quick", "small")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WHOLE_BYTES", 10_000)


@pytest.fixture
def repo(hub: LocalHub) -> Repo:
    return repo_on(hub, {A: MOVIE, B: movie(seed=1)})


@pytest.fixture
def cache(tmp_path: Path) -> ShardCache:
    return ShardCache(tmp_path / "cache")


@pytest.fixture
def files(repo: Repo, cache: ShardCache) -> Iterator[VideoFiles]:
    with VideoFiles(repo, cache) as files:
        yield files


class TestRoom:
    def test_an_episode_larger_than_the_limit_is_read_where_it_lies_and_told_once(
        self, repo: Repo, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with VideoFiles(repo, ShardCache(tmp_path, limit=20_000)) as files:
            files.admit(1, [(A, 10, 20), (B, 10, 20)])
            stats = settled(files)
            assert (stats["skipped"], stats["failed"], stats["held"]) == (2, 0, 0)
            start, stop = span(10, 20)
            assert files.open(A).read(start, stop) == MOVIE[start:stop]
        assert caplog.text.count("cache limit is 20,000 bytes") == 1
        assert videos_in(tmp_path) == []

    def test_the_limit_holds_and_who_found_no_room_comes_when_there_is(
        self, repo: Repo, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        remove = ShardCache._remove

        def slowly(cache: ShardCache, place: Path, but: Collection[Grade] = ()) -> bool:
            time.sleep(0.05)
            return remove(cache, place, but)

        monkeypatch.setattr(ShardCache, "_remove", slowly)
        with VideoFiles(repo, ShardCache(tmp_path, limit=300_000)) as files:
            for n in range(4):
                files.admit(n, [(A, 10 * n, 10 * n + 10)])
                settled(files)
            assert (files.stats()["held"], files.stats()["skipped"]) == (2, 2)
            assert sum(path.stat().st_size for path in tmp_path.rglob("file*")) < 300_000
            files.release(0)
            wait_until(lambda: files.stats()["held"] == 2)
            start, stop = span(20, 30)
            assert f"file-000.mp4.bytes-{start}-{stop}" in videos_in(tmp_path)
            files.release(3)
            files.release(1)
            assert settled(files)["held"] == 1
        assert caplog.text.count("needs") == 1

    def test_what_nobody_uses_makes_room(self, repo: Repo, tmp_path: Path) -> None:
        cache = ShardCache(tmp_path, cleanup="keep", limit=300_000)
        with VideoFiles(repo, cache) as files:
            for n in range(4):
                files.admit(n, [(A, 10 * n, 10 * n + 10)])
                settled(files)
                files.release(n)
            assert files.stats()["ranges"] == 4
        assert len(videos_in(tmp_path)) == 2


class TestDamage:
    @pytest.mark.parametrize("wanted", [(10, 20), (0, 40)], ids=["range", "whole"])
    @pytest.mark.parametrize("harm", ["cut", "written over", "replaced", "removed", "all removed"])
    def test_a_cached_file_that_is_harmed_during_the_run_is_never_believed_and_comes_again(
        self, files: VideoFiles, cache: ShardCache, hub: LocalHub, wanted: tuple[int, int], harm: str
    ) -> None:
        files.admit(1, [(A, *wanted)])
        settled(files)
        (place,) = (path for path in (cache.root / "hf_shards").rglob("file*") if path.suffix != ".head")
        place.chmod(0o644)
        if harm == "cut":
            os.truncate(place, 100)
        elif harm == "written over":
            place.write_bytes(b"x" * place.stat().st_size)
        else:
            files._here()._opened.close()  # an open file lives on
            shutil.rmtree(cache.root) if harm == "all removed" else place.unlink()
            if harm == "replaced":
                place.write_bytes(b"x" * (span(*wanted)[1] - span(*wanted)[0] if wanted == (10, 20) else N))
        start, stop = span(*wanted)
        assert files.open(A).read(start, stop) == MOVIE[start:stop]
        stats = settled(files)
        assert (stats["lost"], stats["held"]) == (1, 1)
        count = len(hub.requests)
        assert files.open(A).read(start, stop) == MOVIE[start:stop]
        assert len(hub.requests) == count

    def test_what_was_harmed_between_two_runs_comes_again(self, repo: Repo, tmp_path: Path, hub: LocalHub) -> None:
        cache = ShardCache(tmp_path, cleanup="keep")
        for _ in range(2):
            with VideoFiles(repo, cache) as files:
                files.admit(1, [(A, 10, 20)])
                settled(files)
                start, stop = span(10, 20)
                assert files.open(A).read(start, stop) == MOVIE[start:stop]
                assert files.track(A).num_frames == 40
            for path in (tmp_path / "hf_shards").rglob("file*"):
                path.chmod(0o644)
                path.write_bytes(b"x" * path.stat().st_size)
        assert len(hub.requests) == 4

    def test_it_is_not_fetched_again_for_ever(self, files: VideoFiles, cache: ShardCache) -> None:
        files.admit(1, [(A, 10, 20)])
        start, stop = span(10, 20)
        for _ in range(6):
            settled(files)
            for path in (cache.root / "hf_shards").rglob("file*.bytes*"):
                path.chmod(0o644)
                path.write_bytes(b"x" * (stop - start))
            assert files.open(A).read(start, stop) == MOVIE[start:stop]
        assert settled(files)["lost"] == 3

    def test_bytes_that_change_on_the_way_are_noticed_in_a_whole_file(self, files: VideoFiles, hub: LocalHub) -> None:
        hub.fault("*-000.mp4", Flip(N // 2), times=1)
        files.admit(1, [(A, 0, 40)])
        settled(files)
        assert files.open(A).read(0, N) == MOVIE

    def test_ranges_of_another_content_under_the_same_name_do_not_mix(self, hub: LocalHub, tmp_path: Path) -> None:
        cache, other = ShardCache(tmp_path, cleanup="keep"), MOVIE[:50_000] + movie(seed=7)[50_000:N].ljust(N - 50_000)
        for body in (MOVIE, other, MOVIE):
            with VideoFiles(repo_on(hub, {A: body}), cache) as files:
                files.admit(1, [(A, 10, 20)])
                settled(files)
                start, stop = span(10, 20, body)
                assert files.open(A).read(start, stop) == body[start:stop]

    def test_an_object_that_was_replaced_is_not_taken_for_the_one_that_was_listed(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        import fsspec

        fs = fsspec.filesystem("memory")
        fs.pipe_file("/bucket/a.mp4", MOVIE)
        origin = RemoteOrigin("memory", "bucket", "/")
        listed = Shard("bucket/a.mp4", N, f"created={fs.info('/bucket/a.mp4')['created'].timestamp():.6f}", origin)
        with VideoFiles(Repo({A: listed}), ShardCache(tmp_path)) as files:
            files.admit(1, [(A, 10, 20)])
            assert settled(files)["ranges"] == 1
            time.sleep(0.01)
            fs.pipe_file("/bucket/a.mp4", movie(seed=3))
            files.admit(2, [(A, 20, 30)])
            assert settled(files)["failed"] == 1
            assert "changed since it was listed" in caplog.text
            start, stop = span(10, 20)
            assert files.open(A).read(start, stop) == MOVIE[start:stop]
        fs.rm("/bucket/a.mp4")

    def test_a_long_name_has_parts_too(self, hub: LocalHub, cache: ShardCache) -> None:
        path = "x" * 251 + ".mp4"
        with VideoFiles(repo_on(hub, {path: MOVIE}), cache) as files:
            files.admit(1, [(path, 10, 20)])
            assert settled(files)["ranges"] == 1
        assert len(range_of(files.open(path).shard, 0, 1).path) < 60


class TestOffline:
    def test_with_everything_in_the_cache_no_network_is_needed(self, hub: LocalHub, tmp_path: Path) -> None:
        cache, bodies = ShardCache(tmp_path, cleanup="keep"), {A: MOVIE, B: movie(seed=1)}
        wanted = [(A, 10, 20), (A, 30, 33), (B, 0, 40)]
        with VideoFiles(repo_on(hub, bodies), cache) as files:
            files.admit(1, wanted)
            settled(files)
        count = len(hub.requests)
        with VideoFiles(repo_on(hub, bodies, offline=True), cache) as files:
            # Read at once, before any thread can have looked.
            files.admit(1, wanted)
            assert files.track(A).num_frames == 40
            for path, first, stop in wanted:
                at, end = span(first, stop, bodies[path])
                assert files.open(path).read(at, end) == bodies[path][at:end]
            with pytest.raises(Unreachable, match="file-000.mp4: not in the cache, and HF_HUB_OFFLINE"):
                files.open(A).read(200_000, 300_000)
        assert len(hub.requests) == count

    def test_with_nothing_in_the_cache_the_error_says_why(self, hub: LocalHub, cache: ShardCache) -> None:
        with VideoFiles(repo_on(hub, {A: MOVIE}, offline=True), cache) as files:
            files.admit(1, [(A, 10, 20)])
            with pytest.raises(Unreachable, match="file-000.mp4.*HF_HUB_OFFLINE"):
                files.track(A)
            with pytest.raises(Unreachable, match="HF_HUB_OFFLINE"):
                files.open(A).read(0, 1)
        assert hub.requests == []
