"""The prefetcher always ends: on close, on exit, on signals, in forked children, and after a kill."""

from __future__ import annotations

import gc
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fetching import finish, leftovers, noise, shards_on, start, wait_until

from headrace.catalog.shard import Shard
from headrace.errors import FetchError
from headrace.fetch.prefetch import ShardPrefetcher
from headrace.testing.hub import Delay, LocalHub, StallAfter, Status

N = 50_000
NAMES = [f"train-{n:05}.parquet" for n in range(5)]


pytestmark = [pytest.mark.timed, pytest.mark.usefixtures("quick")]


@pytest.fixture
def shards(hub: LocalHub) -> list[Shard]:
    return shards_on(hub, {name: noise(N, seed) for seed, name in enumerate(NAMES)})


def on_disk(root: Path) -> list[int]:
    """The numbers of the shards that lie there."""
    return sorted(int(path.name[6:11]) for path in root.rglob("train-*.parquet"))


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headrace-prefetch"]


class TestEnd:
    def test_close_ends_the_thread_mid_stall_and_leaves_no_partial(
        self, hub: LocalHub, shards: list[Shard], tmp_path: Path
    ) -> None:
        prefetch = ShardPrefetcher(shards, tmp_path)
        hub.fault("*", StallAfter(1000))
        prefetch.start()
        wait_until(lambda: list(tmp_path.rglob("*.part")))
        began = time.monotonic()
        prefetch.close()
        prefetch.close()
        assert time.monotonic() - began < 1
        assert threads() == []
        assert leftovers(tmp_path) == []
        with pytest.raises(FetchError, match="closed"):
            prefetch.wait_for(shards[0])

    def test_close_frees_whoever_waits(self, hub: LocalHub, shards: list[Shard], tmp_path: Path) -> None:
        prefetch = ShardPrefetcher(shards, tmp_path)
        fault = hub.fault("*", StallAfter(1000))
        with ThreadPoolExecutor() as pool:
            waiting = [pool.submit(prefetch.wait_for, shards[0]) for _ in range(2)]
            wait_until(lambda: fault.hits)
            prefetch.close()
            for future in waiting:
                assert isinstance(future.exception(timeout=2), FetchError)

    def test_a_forgotten_prefetcher_ends(self, hub: LocalHub, shards: list[Shard], tmp_path: Path) -> None:
        prefetch = ShardPrefetcher(shards, tmp_path)
        hub.fault("*-00001.parquet", StallAfter(1000))
        prefetch.wait_for(shards[0])
        wait_until(threads)
        del prefetch
        gc.collect()
        wait_until(lambda: not threads(), 2)
        assert leftovers(tmp_path) == []

    @pytest.mark.parametrize(
        "fault", [StallAfter(1000), StallAfter(None), Delay(60), Status(429, {"Retry-After": "60"})]
    )
    def test_the_interpreter_exits_in_time_also_mid_download(
        self, hub: LocalHub, shards: list[Shard], tmp_path: Path, fault: Any
    ) -> None:
        hit = hub.fault("*-00001.parquet", fault)
        code = "p = ShardPrefetcher(shards, root); p.start(); p.wait_for(shards[0]); sys.stdin.readline()"
        process = start(code, tmp_path, shards)
        wait_until(lambda: hit.hits)
        began = time.monotonic()
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        finish(process)
        assert time.monotonic() - began < 2
        assert leftovers(tmp_path) == []
        assert on_disk(tmp_path) == [0]

    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_ends_it_in_time(self, hub: LocalHub, shards: list[Shard], tmp_path: Path, how: int) -> None:
        fault = hub.fault("*-00001.parquet", StallAfter(1000))
        code = """
def end(*args):
    raise SystemExit(7)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
prefetch = ShardPrefetcher(shards, root)
prefetch.start()
prefetch.wait_for(shards[0])
prefetch.wait_for(shards[1])
"""
        process = start(code, tmp_path, shards)
        wait_until(lambda: fault.hits)
        time.sleep(0.1)
        began = time.monotonic()
        process.send_signal(how)
        _, err = process.communicate(timeout=10)
        assert time.monotonic() - began < 2
        assert process.returncode == (7 if how == signal.SIGTERM else -signal.SIGINT)
        assert "Fatal Python error" not in err
        assert leftovers(tmp_path) == []

    def test_a_killed_reader_goes_on_where_it_was(self, hub: LocalHub, shards: list[Shard], tmp_path: Path) -> None:
        fault = hub.fault("*-00001.parquet", StallAfter(N // 2), nth=1)
        code = "p = ShardPrefetcher(shards, root); p.start(); p.wait_for(shards[0]); sys.stdin.read()"
        process = start(code, tmp_path, shards)
        wait_until(lambda: fault.hits and any(p.stat().st_size == N // 2 for p in tmp_path.rglob("*.part")))
        process.kill()
        process.communicate()
        hub.clear_log()
        with ShardPrefetcher(shards, tmp_path) as prefetch:
            for n, shard in enumerate(shards[:3]):
                assert prefetch.wait_for(shard).read_bytes() == noise(N, n)
        asked = {request.path.rpartition("/")[2]: request.range for request in hub.requests}
        assert NAMES[0] not in asked
        assert asked[NAMES[1]] == f"bytes={N // 2}-"
        wait_until(lambda: leftovers(tmp_path) == [])

    def test_orphans_of_dead_processes_are_swept_in_the_background(
        self, hub: LocalHub, shards: list[Shard], tmp_path: Path
    ) -> None:
        fault = hub.fault("*-00004.parquet", StallAfter(N // 2), nth=1)
        process = start("ShardCache(root).acquire(shards[4])", tmp_path, shards)
        wait_until(lambda: fault.hits and list(tmp_path.rglob("*.part")))
        process.kill()
        process.communicate()
        with ShardPrefetcher(shards, tmp_path) as prefetch:
            prefetch.wait_for(shards[0])
            wait_until(lambda: not list(tmp_path.rglob("*.part")))


class TestFork:
    def test_a_forked_child_starts_afresh_and_harms_nothing(
        self, hub: LocalHub, shards: list[Shard], tmp_path: Path
    ) -> None:
        code = """
prefetch = ShardPrefetcher(shards, root, cleanup="keep")
prefetch.start()
path = prefetch.wait_for(shards[0])
pids = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        for shard in shards:
            assert prefetch.wait_for(shard).stat().st_size == shard.size
        prefetch.close()
        sys.exit(0)
    pids.append(pid)
for shard in shards:
    prefetch.wait_for(shard)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
prefetch.close()
"""
        finish(start(code, tmp_path, shards))
        assert leftovers(tmp_path) == []
        assert len(hub.requests) == len(shards)

    def test_a_child_forked_while_the_lock_is_held_does_not_hang(self, shards: list[Shard], tmp_path: Path) -> None:
        code = """
import threading
prefetch = ShardPrefetcher(shards, root)
prefetch.start()
held = threading.Event()
def hold():
    with prefetch._desk._changed:
        held.set()
        time.sleep(1)
threading.Thread(target=hold).start()
held.wait()
pid = os.fork()
if pid == 0:
    prefetch.wait_for(shards[0])
    prefetch.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
        finish(start(code, tmp_path, shards), 10)
