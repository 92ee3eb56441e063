"""Bytes of videos: read where they lie, fetched ahead by range, shared by episodes and processes, never wrong."""

from __future__ import annotations

import logging
import os
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fetching import leftovers, wait_until
from robot_files import MOVIE, A, B, N, Repo, movie, ranges_of, repo_on, settled, span, threads, track_of, videos_in

from headrace.catalog.local import LocalOrigin
from headrace.catalog.shard import Shard
from headrace.errors import Changed, DataError, FetchError, NotFound, SpecError, Unreachable
from headrace.fetch.cache import ShardCache
from headrace.fetch.media.mp4 import read_track
from headrace.lerobot import files as module
from headrace.lerobot.files import VideoFiles
from headrace.lerobot.opened import MOST
from headrace.lerobot.tables import Table, Tables
from headrace.run import Run
from headrace.testing.hub import Delay, LocalHub, StallAfter, Status

pytestmark = [pytest.mark.timed, pytest.mark.usefixtures("quick", "small")]


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


def local_repo(folder: Path, bodies: dict[str, bytes]) -> Repo:
    shards = {}
    for name, body in bodies.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        shards[name] = Shard(str(path), len(body), str(path.stat().st_mtime_ns), LocalOrigin())
    return Repo(shards)


class TestLocal:
    def test_a_file_of_the_users_is_read_where_it_lies_and_nothing_is_fetched(
        self, tmp_path: Path, cache: ShardCache
    ) -> None:
        with VideoFiles(local_repo(tmp_path / "set", {A: MOVIE}), cache) as files:
            files.admit(1, [(A, 10, 20)])
            data = files.open(A)
            assert (data.size, data.name) == (N, str(tmp_path / "set" / A))
            assert data.read(100, 5000) == MOVIE[100:5000]
            assert data.read(7, 7) == b""
            assert files.track(A).num_frames == 40
            assert threads() == []
            files.release(1)
        assert not cache.root.exists()

    def test_a_changed_file_is_an_error_before_and_after_it_was_opened(self, tmp_path: Path, cache: ShardCache) -> None:
        repo = local_repo(tmp_path, {A: MOVIE, B: MOVIE})
        os.utime(tmp_path / B, ns=(1, 1))
        with VideoFiles(repo, cache) as files:
            with pytest.raises(Changed, match="file-001.mp4 changed since it was listed"):
                files.open(B).read(0, 10)
            assert files.open(A).read(0, 10) == MOVIE[:10]
            (tmp_path / A).write_bytes(MOVIE[:1000])
            with pytest.raises(Changed, match="file-000.mp4"):
                files.open(A).read(0, 10)

    def test_a_missing_file_is_named_when_it_is_opened_and_admitting_it_is_no_failure(
        self, files: VideoFiles, caplog: pytest.LogCaptureFixture
    ) -> None:
        files.admit(1, [("no/such.mp4", 0, 10)])
        assert settled(files)["failed"] == 1
        with pytest.raises(NotFound, match="no/such.mp4"):
            files.open("no/such.mp4")
        assert caplog.text.count("no/such.mp4: fetching it ahead failed") == 1

    def test_few_files_are_open_at_a_time(self, tmp_path: Path, cache: ShardCache) -> None:
        repo = local_repo(tmp_path, {f"{n}.mp4": bytes([n]) for n in range(200)})
        before = len(list(Path("/proc/self/fd").iterdir()))
        with VideoFiles(repo, cache) as files:
            for n in [*range(200), *range(200)]:
                assert files.open(f"{n}.mp4").read(0, 1) == bytes([n])
            assert len(list(Path("/proc/self/fd").iterdir())) <= before + MOST
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    def test_what_is_outside_of_the_file_is_an_error_that_names_it(self, files: VideoFiles, hub: LocalHub) -> None:
        for start, stop in [(-1, 5), (0, N + 1), (9, 8)]:
            with pytest.raises(DataError, match="file-000.mp4: bytes"):
                files.open(A).read(start, stop)
        assert hub.requests == []

    def test_arguments_that_make_no_sense(self, repo: Repo, cache: ShardCache) -> None:
        with pytest.raises(SpecError, match="video_prefetch_workers=-1"):
            VideoFiles(repo, cache, workers=-1)
        unknown = Repo({"x": Shard("x", -1, "", repo.shards[A].origin)})
        with pytest.raises(DataError, match="size is not known"):
            VideoFiles(unknown, cache).open("x")


class TestWhereItLies:
    def test_a_cold_read_asks_for_exactly_its_range(self, files: VideoFiles, hub: LocalHub) -> None:
        assert files.open(A).read(200_000, 212_345) == MOVIE[200_000:212_345]
        assert ranges_of(hub) == ["bytes=200000-212344"]
        stats = files.stats()
        assert (stats["direct_reads"], stats["direct_bytes"], stats["files"]) == (1, 12_345, 0)
        assert threads() == []

    @pytest.mark.parametrize("last", [False, True])
    def test_the_index_takes_two_requests_at_most_and_none_the_second_time(
        self, hub: LocalHub, cache: ShardCache, last: bool
    ) -> None:
        body = movie(index_last=last)
        repo = repo_on(hub, {A: body})
        with VideoFiles(repo, cache) as one, VideoFiles(repo, cache) as two:
            wanted = track_of(body).offsets.tolist()
            assert one.track(A).offsets.tolist() == wanted
            assert len(hub.requests) == 1 + last
            assert one.track(A) is one.track(A)
            # Another process finds it in the cache; a reader of its own finds it in memory.
            assert two.track(A).offsets.tolist() == wanted
            assert read_track(two.open(A)).offsets.tolist() == wanted
            assert len(hub.requests) == 1 + last

    def test_the_index_is_read_without_a_disk_to_keep_it_on(self, hub: LocalHub, repo: Repo, tmp_path: Path) -> None:
        (tmp_path / "hf_shards").write_text("in the way")
        with VideoFiles(repo, ShardCache(tmp_path)) as files:
            with pytest.raises(FetchError):
                ShardCache(tmp_path).acquire(repo.shards[A])
            assert files.track(A).num_frames == 40
            assert files.open(A).read(300_000, 300_001) == MOVIE[300_000:300_001]

    def test_an_error_of_the_server_names_the_file(self, files: VideoFiles, hub: LocalHub) -> None:
        hub.fault("*-000.mp4", 404)
        with pytest.raises(NotFound, match="file-000.mp4"):
            files.open(A).read(0, 10)
        hub.fault("*-001.mp4", Status(503))
        with pytest.raises(Unreachable, match="file-001.mp4"):
            files.open(B).read(0, 10)

    def test_tables_are_kept_while_there_is_room(self) -> None:
        table = Table(track_of(MOVIE))
        tables = Tables(most_bytes=3 * table.num_bytes, most=10)
        for n in range(5):
            tables.get(str(n), lambda: table)
        assert [tables.peek(str(n)) is None for n in range(5)] == [True, True, False, False, False]
        few = Tables(most=2)
        for n in range(5):
            few.get(str(n), lambda: table)
        assert len(few) == 2

    def test_threads_that_ask_for_one_table_at_once_load_it_once(self) -> None:
        tables, loads, held = Tables(), [], threading.Event()

        def load() -> Table:
            loads.append(1)
            held.wait(0.2)
            return Table(track_of(MOVIE))

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: tables.get(A, load), range(4)))
        assert len(loads) == 1
        assert len(set(map(id, found))) == 1

        def fail() -> Table:
            raise DataError("no")

        for _ in range(2):
            with pytest.raises(DataError):
                tables.get(B, fail)

    def test_without_prefetch_no_thread_starts(self, hub: LocalHub, repo: Repo, cache: ShardCache) -> None:
        for options in ({"prefetch": False}, {"workers": 0}):
            given: Any = options
            with VideoFiles(repo, cache, **given) as files:
                files.admit(1, [(A, 0, 40)])
                assert files.open(A).read(0, 10) == MOVIE[:10]
                files.release(1)
        assert len(hub.requests) == 2
        assert threads() == []


class TestAhead:
    def test_a_small_part_of_a_file_is_fetched_by_its_range_alone(
        self, files: VideoFiles, hub: LocalHub, cache: ShardCache
    ) -> None:
        start, stop = span(10, 20)
        files.admit("episode", [(A, 10, 20)])
        stats = settled(files)
        assert (stats["ranges"], stats["files"], stats["bytes"]) == (1, 0, stop - start)
        assert ranges_of(hub) == ["bytes=0-65535", f"bytes={start}-{stop - 1}"]
        assert videos_in(cache.root) == [f"file-000.mp4.bytes-{start}-{stop}"]
        data = files.open(A)
        assert data.read(start, stop) == MOVIE[start:stop]
        assert data.read(start + 5, stop - 5) == MOVIE[start + 5 : stop - 5]
        assert len(hub.requests) == 2
        assert data.read(stop - 5, stop + 5) == MOVIE[stop - 5 : stop + 5]
        assert ranges_of(hub)[2:] == [f"bytes={stop - 5}-{stop + 4}"]
        assert files.stats()["direct_reads"] == 1

    def test_half_of_a_file_or_more_is_fetched_whole_and_ranges_of_it_no_more(
        self, files: VideoFiles, hub: LocalHub, cache: ShardCache
    ) -> None:
        files.admit(1, [(A, 5, 30)])
        settled(files)
        files.admit(2, [(A, 0, 3)])
        stats = settled(files)
        assert (stats["ranges"], stats["files"], stats["bytes"], stats["held"]) == (0, 1, N, 1)
        assert videos_in(cache.root) == ["file-000.mp4"]
        assert files.open(A).read(0, N) == MOVIE
        assert len(hub.requests) == 2

    def test_a_small_file_is_fetched_whole_without_a_look_at_its_index(
        self, hub: LocalHub, cache: ShardCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "WHOLE_BYTES", N)
        with VideoFiles(repo_on(hub, {A: MOVIE}), cache) as files:
            files.admit(1, [(A, 0, 1)])
            settled(files)
            assert files.track(A).num_frames == 40
            assert ranges_of(hub) == [None]

    def test_a_cold_read_does_not_wait_for_what_is_on_its_way(self, files: VideoFiles, hub: LocalHub) -> None:
        files.track(A)
        fault = hub.fault("*-000.mp4", StallAfter(1000), nth=1)
        files.admit(1, [(A, 10, 20)])
        wait_until(lambda: fault.hits)
        start, stop = span(12, 13)
        began = time.monotonic()
        assert files.open(A).read(start, stop) == MOVIE[start:stop]
        assert time.monotonic() - began < 0.5
        assert files.stats()["held"] == 0

    def test_after_the_fetch_nothing_waits_for_the_network(self, files: VideoFiles, hub: LocalHub) -> None:
        hub.fault("*.mp4", Delay(0.02))
        for n in range(8):
            files.admit(n, [(A, 4 * n, 4 * n + 4), (B, 4 * n, 4 * n + 4)])
        settled(files)
        # Of each file the index, and a range for each episode.
        assert len(hub.requests) == 2 + 16
        assert len(threads()) == 4
        waited = files.stats()["seconds_waited"]
        for n in range(8):
            start, stop = span(4 * n, 4 * n + 4)
            assert files.open(A).read(start, stop) == MOVIE[start:stop]
        assert files.stats()["seconds_waited"] == waited
        assert len(hub.requests) == 2 + 16

    def test_what_episodes_share_goes_with_the_last_of_them(self, files: VideoFiles, cache: ShardCache) -> None:
        files.admit("a", [(A, 10, 20), (B, 0, 40)])
        files.admit("b", [(A, 10, 20)])
        settled(files)
        files.admit("c", [(B, 1, 2)])
        settled(files)
        part = [name for name in videos_in(cache.root) if "bytes" in name]
        assert videos_in(cache.root) == [*part, "file-001.mp4"]
        files.release("a")
        assert files.stats()["held"] == 2
        assert videos_in(cache.root) == [*part, "file-001.mp4"]
        files.release("c")
        wait_until(lambda: videos_in(cache.root) == part)
        files.release("b")
        files.release("b")
        files.release("never seen")
        wait_until(lambda: videos_in(cache.root) == [])
        assert files.stats()["held"] == 0

    def test_a_cache_that_keeps_keeps(self, repo: Repo, tmp_path: Path, hub: LocalHub) -> None:
        for _ in range(2):
            with VideoFiles(repo, ShardCache(tmp_path, cleanup="keep")) as files:
                files.admit(1, [(A, 10, 20), (B, 0, 40)])
                settled(files)
                files.release(1)
        assert len(videos_in(tmp_path)) == 2
        assert len(hub.requests) == 4
        assert leftovers(tmp_path) == []

    def test_what_is_held_at_the_close_is_there_at_the_next_start(
        self, repo: Repo, cache: ShardCache, hub: LocalHub
    ) -> None:
        for _ in range(2):
            with VideoFiles(repo, cache) as files:
                files.admit(1, [(A, 10, 20)])
                settled(files)
            assert len(videos_in(cache.root)) == 1
        assert len(hub.requests) == 2
        assert leftovers(cache.root) == []

    def test_admitted_again_an_episode_wants_the_new_files_and_no_others(
        self, files: VideoFiles, cache: ShardCache, hub: LocalHub
    ) -> None:
        files.admit(1, [(A, 0, 40), (A, 0, 40)])
        settled(files)
        files.admit(1, [(A, 0, 40), (B, 0, 40)])
        settled(files)
        assert videos_in(cache.root) == ["file-000.mp4", "file-001.mp4"]
        files.admit(1, [(B, 0, 40)])
        wait_until(lambda: videos_in(cache.root) == ["file-001.mp4"])
        assert len(hub.requests) == 4

    def test_a_release_does_not_wait_for_a_download_and_ends_it(
        self, files: VideoFiles, cache: ShardCache, hub: LocalHub
    ) -> None:
        files.track(A)
        fault = hub.fault("*-000.mp4", StallAfter(1000))
        files.admit(1, [(A, 10, 20)])
        wait_until(lambda: fault.hits)
        began = time.monotonic()
        files.release(1)
        assert time.monotonic() - began < 0.2
        settled(files)
        assert [name for name in leftovers(cache.root) if name.endswith((".part", ".lock"))] == []
        hub.clear_faults()
        files.admit(1, [(A, 10, 20)])
        assert settled(files)["held"] == 1

    def test_frames_that_the_video_has_not_are_not_fetched(self, files: VideoFiles, cache: ShardCache) -> None:
        files.admit(1, [(A, 35, 60)])
        files.admit(2, [(A, 40, 60)])
        stats = settled(files)
        start, stop = span(35, 40)
        assert (stats["failed"], stats["bytes"]) == (0, stop - start)

    def test_a_failed_fetch_is_told_once_for_each_file_and_reads_go_on(
        self, files: VideoFiles, hub: LocalHub, caplog: pytest.LogCaptureFixture
    ) -> None:
        files.track(A)
        fault = hub.fault("*-000.mp4", 404)
        for n in range(3):
            files.admit(n, [(A, 10 + n, 13 + n)])
        assert settled(files)["failed"] == 3
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "file-000.mp4: fetching it ahead failed" in caplog.text
        fault.remove()
        assert files.open(A).read(200_000, 200_009) == MOVIE[200_000:200_009]

    def test_what_is_no_video_is_looked_at_once_by_the_threads(
        self, hub: LocalHub, cache: ShardCache, caplog: pytest.LogCaptureFixture
    ) -> None:
        with VideoFiles(repo_on(hub, {A: b"#EXTM3U\n" * 10_000}), cache, workers=1) as files:
            for n in range(4):
                files.admit(n, [(A, n, n + 1)])
            settled(files)
            assert len(hub.requests) == 1
            assert caplog.text.count("fetching it ahead failed") == 1
            with pytest.raises(DataError, match="file-000.mp4"):
                files.track(A)
            assert leftovers(cache.root) == []

    def test_more_than_can_wait_is_read_where_it_lies(
        self, files: VideoFiles, hub: LocalHub, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from headrace.lerobot import ahead

        monkeypatch.setattr(ahead, "MOST_WAITING", 5)
        fault = hub.fault("*.mp4", StallAfter(10))
        for n in range(30):
            files.admit(n, [(A if n % 2 else B, n, n + 1)])
        wait_until(lambda: fault.hits == 2)
        assert files.stats()["waiting"] <= 5 + 4
        assert caplog.text.count("videos wait to be fetched") == 1
        for n in range(30):
            files.release(n)


class TestRealDataSet:
    def test_frames_come_out_the_same_from_a_folder_and_from_the_hub(self, hub: LocalHub, tmp_path: Path) -> None:
        from media_files import clip

        from headrace.fetch.media.frames import FrameReader, rgb
        from headrace.lerobot.root import Root

        files = {"meta/info.json": b"{}", A: clip(list(range(60)), options={"g": "2"})}
        for name, body in files.items():
            (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "set" / name).write_bytes(body)
        hub.push("me/robot", files)
        hub.push("me/robot", files, branch="refs/tags/v3.0")
        run = Run(cache_dir=tmp_path / "cache", endpoint=hub.endpoint, cleanup="keep")
        found = []
        for where in (str(tmp_path / "set"), "me/robot", "me/robot"):
            root = Root.open(where, run)
            with pickle.loads(pickle.dumps(VideoFiles(root, ShardCache(run.cache_dir, cleanup="keep")))) as opened:  # noqa: S301
                assert isinstance(opened, VideoFiles)
                opened.admit(1, [(A, 20, 30)])
                settled(opened)
                reader = FrameReader(opened.open(A), opened.track(A))
                found.append([rgb(frame).tobytes() for frame in reader.frames([20, 29, 25])])
        assert found[0] == found[1] == found[2]
        assert len(set(found[0])) == 3
        assert len(ranges_of(hub, "*.mp4")) <= 2
