"""Bytes of videos among threads and processes: what is shared stays, what ends leaves nothing, a kill loses little."""

from __future__ import annotations

import gc
import pickle
import random
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fetching import finish, leftovers, start, wait_until
from robot_files import MOVIE, PRELUDE, A, Repo, ranges_of, repo_on, settled, threads, track_of, videos_in

from headrace.catalog.plain import PlainFile
from headrace.errors import FetchError
from headrace.fetch.cache import ShardCache
from headrace.fetch.leases import Lease
from headrace.lerobot import files as module
from headrace.lerobot import parts
from headrace.lerobot.files import VideoFiles
from headrace.testing.hub import Delay, LocalHub, StallAfter, Status

TRACK = track_of(MOVIE)

pytestmark = [pytest.mark.timed, pytest.mark.usefixtures("quick", "small")]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WHOLE_BYTES", 10_000)


@pytest.fixture
def repo(hub: LocalHub) -> Repo:
    return repo_on(hub, {A: MOVIE})


@pytest.fixture
def files(repo: Repo, tmp_path: Path) -> Iterator[VideoFiles]:
    with VideoFiles(repo, ShardCache(tmp_path)) as files:
        yield files


class TestEnd:
    def test_close_ends_all_threads_while_the_server_is_silent_and_leaves_no_partial(
        self, files: VideoFiles, hub: LocalHub, tmp_path: Path
    ) -> None:
        files.track(A)
        fault = hub.fault("*.mp4", StallAfter(1000))
        for n in range(8):
            files.admit(n, [(A, 4 * n, 4 * n + 4)])
        wait_until(lambda: fault.hits == 4)
        began = time.monotonic()
        files.close()
        files.close()
        assert time.monotonic() - began < 1
        assert threads() == []
        assert leftovers(tmp_path) == []
        files.admit(9, [(A, 0, 1)])
        files.release(9)
        with pytest.raises(FetchError, match="file-000.mp4: it is read after its files were closed"):
            files.open(A).read(0, 10)

    def test_what_comes_when_all_ends_stays_for_the_next_start(
        self, files: VideoFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arrived = parts.Part.arrived

        def late(part: parts.Part, lease: Lease) -> PlainFile:
            files._here().ahead.end.set()
            return arrived(part, lease)

        monkeypatch.setattr(parts.Part, "arrived", late)
        files.admit(1, [(A, 0, 10)])
        settled(files)
        files.close()
        assert len(videos_in(tmp_path)) == 1
        assert leftovers(tmp_path) == []

    def test_close_frees_whoever_reads(self, files: VideoFiles, hub: LocalHub) -> None:
        fault = hub.fault("*.mp4", StallAfter(10))
        with ThreadPoolExecutor() as pool:
            reading = pool.submit(files.open(A).read, 0, 1000)
            parsing = pool.submit(files.track, A)
            wait_until(lambda: fault.hits == 2)
            files.close()
            assert isinstance(reading.exception(timeout=1), FetchError)
            assert isinstance(parsing.exception(timeout=1), FetchError)

    def test_when_it_is_forgotten_its_threads_end(self, repo: Repo, hub: LocalHub, tmp_path: Path) -> None:
        files = VideoFiles(repo, ShardCache(tmp_path))
        fault = hub.fault("*.mp4", StallAfter(10))
        files.admit(1, [(A, 0, 10)])
        wait_until(lambda: fault.hits)
        del files
        gc.collect()
        wait_until(lambda: not threads(), 2)
        assert leftovers(tmp_path) == []

    @pytest.mark.parametrize("fault", [StallAfter(10), Delay(60), Status(429, {"Retry-After": "60"})])
    def test_the_interpreter_exits_in_time_also_in_the_middle_of_a_fetch(
        self, repo: Repo, hub: LocalHub, tmp_path: Path, fault: Any
    ) -> None:
        hit = hub.fault("*.mp4", fault)
        code = PRELUDE + "f = VideoFiles(Repo(shards), ShardCache(root)); f.admit(1, [(shards[0].path, 0, 10)])\n"
        process = start(code + "sys.stdin.readline()", tmp_path, list(repo.shards.values()))
        wait_until(lambda: hit.hits)
        began = time.monotonic()
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        finish(process)
        assert time.monotonic() - began < 2
        assert leftovers(tmp_path) == []


class TestThreads:
    def test_threads_that_admit_read_and_release_at_once_agree(self, repo: Repo, hub: LocalHub, tmp_path: Path) -> None:
        files = VideoFiles(repo, ShardCache(tmp_path), workers=3)

        def work(seed: int) -> int:
            chance, held, wrong = random.Random(seed), set(), 0
            for n in range(40):
                first = chance.randrange(36)
                files.admit((seed, n), [(A, first, first + 4)])
                held.add((seed, n))
                at = chance.randrange(36)
                begin, end = TRACK.span(at, at + chance.randrange(1, 5))
                wrong += files.open(A).read(begin, end) != MOVIE[begin:end]
                if len(held) > 4:
                    files.release(held.pop())
            for key in held:
                files.release(key)
            return wrong

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(work, range(4))) == 0
        assert settled(files)["held"] == 0
        assert files.stats()["failed"] == files.stats()["lost"] == 0
        assert len(threads()) <= 3
        wait_until(lambda: not videos_in(tmp_path))
        files.close()
        assert leftovers(tmp_path) == []
        assert threads() == []

    def test_garbage_collection_may_release_in_the_middle_of_anything(
        self, repo: Repo, hub: LocalHub, tmp_path: Path
    ) -> None:
        class Episode:
            def __init__(self, files: VideoFiles, first: int) -> None:
                key = object()
                files.admit(key, [(A, first, first + 3)])
                weakref.finalize(self, files.release, key)
                self.itself = self

        files = VideoFiles(repo, ShardCache(tmp_path), workers=2)

        def work(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(30):
                Episode(files, chance.randrange(37))
                begin = chance.randrange(len(MOVIE) - 100)
                assert files.open(A).read(begin, begin + 100) == MOVIE[begin : begin + 100]

        before = gc.get_threshold()
        gc.collect()
        gc.set_threshold(3, 3, 3)
        try:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(work, range(2)))
        finally:
            gc.set_threshold(*before)
        gc.collect()
        assert settled(files)["held"] == 0
        wait_until(lambda: not videos_in(tmp_path))
        files.close()
        assert leftovers(tmp_path) == []

    def test_a_release_while_another_thread_has_the_lock_is_done_later(self, files: VideoFiles) -> None:
        files.admit(1, [(A, 0, 10)])
        assert settled(files)["held"] == 1
        began = time.monotonic()
        with files._here().ahead._lock:
            files.release(1)
        assert time.monotonic() - began < 0.5
        wait_until(lambda: files.stats()["held"] == 0)


class TestProcesses:
    FETCH = PRELUDE + "files = VideoFiles(Repo(shards), ShardCache(root))\nfiles.admit(1, [(shards[0].path, 10, 20)])\n"

    def test_a_process_killed_while_it_fetches_leaves_what_the_next_one_goes_on_with(
        self, repo: Repo, hub: LocalHub, tmp_path: Path
    ) -> None:
        begin, end = TRACK.span(10, 20)
        fault = hub.fault("*.mp4", StallAfter(100), nth=4)  # the index, and two of ten pieces
        code = self.FETCH.replace("files = V", "ranges.BLOCK = 10_000\nfiles = V") + "sys.stdin.read()"
        process = start(code, tmp_path, list(repo.shards.values()))
        wait_until(lambda: fault.hits and any(p.stat().st_size == 20_000 for p in tmp_path.rglob("*.part")))
        process.kill()
        process.communicate()
        hub.clear_log()
        with VideoFiles(repo, ShardCache(tmp_path)) as files:
            files.admit(1, [(A, 10, 20)])
            settled(files)
            assert ranges_of(hub) == [f"bytes={begin + 20_000}-{end - 1}"]
            assert files.open(A).read(begin, end) == MOVIE[begin:end]
            files.release(1)
        wait_until(lambda: leftovers(tmp_path) == [])
        assert videos_in(tmp_path) == []

    def test_what_another_process_reads_is_not_removed(self, repo: Repo, hub: LocalHub, tmp_path: Path) -> None:
        code = self.FETCH + (
            "waited(lambda: files.stats()['held'])\nprint('ready', flush=True); sys.stdin.readline()\n"
            "files._here()._opened.close()\n"
            "print(files.open(shards[0].path).read(150_000, 150_010).hex(), files.stats()['direct_reads'])\n"
            "files.release(1)"
        )
        other = start(code, tmp_path, list(repo.shards.values()))
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with VideoFiles(repo, ShardCache(tmp_path)) as files:
            files.admit(1, [(A, 10, 20)])
            stats = settled(files)
            assert (stats["held"], stats["ranges"]) == (1, 0)
            files.release(1)
        assert len(videos_in(tmp_path)) == 1
        assert len(hub.requests) == 2
        out, err = other.communicate("\n", timeout=20)
        assert other.returncode == 0, err
        assert out == f"{MOVIE[150_000:150_010].hex()} 0\n"
        assert videos_in(tmp_path) == []

    def test_processes_that_fetch_the_same_at_once_fetch_it_once(
        self, repo: Repo, hub: LocalHub, tmp_path: Path
    ) -> None:
        hub.fault("*.mp4", Delay(0.3))
        code = self.FETCH + "waited(lambda: files.stats()['held'])"
        for process in [start(code, tmp_path, list(repo.shards.values())) for _ in range(3)]:
            finish(process)
        assert len(hub.requests) == 2

    def test_a_forked_child_starts_afresh_and_harms_nothing(self, repo: Repo, hub: LocalHub, tmp_path: Path) -> None:
        code = (
            self.FETCH
            + """
path = shards[0].path
data = files.open(path)
waited(lambda: files.stats()["held"])
held = files._here().ahead._lock
pids = []
for n in range(3):
    with held:  # it is held in the child for ever
        pid = os.fork()
    if pid == 0:
        assert files.stats()["held"] == 0
        assert not [fd for fd in os.listdir("/proc/self/fd") if "file-000" in os.path.realpath("/proc/self/fd/" + fd)]
        assert len(data.read(150_000, 150_010)) == 10
        files.release(1)
        files.admit(2, [(path, 10, 20)])
        waited(lambda: files.stats()["held"] == 1)
        files.release(2)
        files.close()
        sys.exit(0)
    pids.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
assert files.stats()["held"] == 1
before = files.stats()["direct_reads"]
assert len(data.read(150_000, 150_010)) == 10
assert files.stats()["direct_reads"] == before
files.close()
"""
        )
        finish(start(code, tmp_path, list(repo.shards.values())))
        assert leftovers(tmp_path) == []
        assert len(videos_in(tmp_path)) == 1
        assert len(hub.requests) == 2 + 3

    def test_a_pickled_copy_starts_afresh(self, files: VideoFiles, hub: LocalHub) -> None:
        files.admit(1, [(A, 10, 20)])
        settled(files)
        copy = pickle.loads(pickle.dumps(files))  # noqa: S301
        data = pickle.loads(pickle.dumps(files.open(A)))  # noqa: S301
        assert copy.stats()["held"] == 0
        assert data.read(0, 100) == MOVIE[:100]
        copy.admit(1, [(A, 10, 20)])
        assert settled(copy)["held"] == 1
        copy.close()
        assert files.stats()["held"] == 1


def test_no_thread_is_left() -> None:
    wait_until(lambda: not threads(), 2)
    assert threading.active_count() < 20
