"""A disk that two machines share: who lives is told by what changes on it, and by no machine's clock."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fetching import finish, leases_of, leftovers, noise, shard_on, shards_on, start, wait_until

from headrace.catalog.shard import Shard
from headrace.catalog.stop import Stop
from headrace.fetch import heartbeat, prefetch
from headrace.fetch.cache import ShardCache
from headrace.fetch.download import download
from headrace.fetch.leases import Grade
from headrace.fetch.needs import needed
from headrace.fetch.prefetch import ShardPrefetcher, sweep_once
from headrace.testing import LocalHub, write_parquet
from headrace.testing.hub import StallAfter

N = 5000
BEAT, SILENT = 0.1, 1.0
"""Seconds, here and on the other machine."""
pytestmark = [pytest.mark.timed, pytest.mark.usefixtures("quick", "short")]

ELSEWHERE = f"""
import headrace.files
from headrace.fetch import heartbeat
headrace.files._HOST = "1111111111-2222222222-3333333333"
heartbeat.BEAT_SECONDS, heartbeat.SILENT_SECONDS = {BEAT}, {SILENT}
"""
HOLD = "lease = ShardCache(root).acquire(shards[0])\nprint('ready', flush=True); sys.stdin.read()\n"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", BEAT)
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", SILENT)
    monkeypatch.setattr(heartbeat, "_SEEN", {})


@pytest.fixture
def cache(tmp_path: Path) -> ShardCache:
    return ShardCache(tmp_path)


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a process of another machine, and waits until it says that it is ready."""
    started: list[subprocess.Popen[str]] = []

    def begin(code: str, cache: ShardCache, shards: list[Shard], *before: str) -> subprocess.Popen[str]:
        process = start(("" if before else ELSEWHERE) + code, cache.root, shards, *before)
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready"), process.communicate()
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def evicted(cache: ShardCache) -> bool:
    """Make all the room there is. True once no shard is left."""
    cache._evict(1 << 40)
    return not list((cache.root / "hf_shards").rglob("*.parquet"))


def seconds_until_gone(cache: ShardCache) -> float:
    began = time.monotonic()
    wait_until(lambda: evicted(cache), 5 * SILENT)
    return time.monotonic() - began


def stays(cache: ShardCache, path: Path) -> bool:
    """Whether a file is there for twice the limit, while this machine wants all the room."""
    until = time.monotonic() + 2 * SILENT
    while time.monotonic() < until:
        evicted(cache)
        if not path.exists():
            return False
        time.sleep(BEAT / 2)
    return True


OWN_TIMES = """
touch = os.utime
os.utime = lambda path, times=None, **options: touch(path, times or (time.time(), time.time()), **options)
"""
"""A file system that gives files the time of the machine that touches them: Lustre, CephFS, SMB."""


class TestLife:
    @pytest.mark.parametrize("times", ["", OWN_TIMES], ids=["times of the disk", "times of the machine"])
    @pytest.mark.parametrize("hours", [-6, 0, 6])
    def test_a_living_reader_keeps_its_file_whatever_its_clock_says(
        self, hub: LocalHub, cache: ShardCache, elsewhere: Any, hours: int, times: str
    ) -> None:
        shard = shard_on(hub, noise(N))
        clock = f"real = time.time\ntime.time = lambda: real() + {hours} * 3600\n"
        elsewhere(clock + times + HOLD, cache, [shard])
        assert stays(cache, cache.path_of(shard))

    @pytest.mark.parametrize("jump", [-6, 6])
    def test_a_clock_of_ours_that_jumps_ends_nothing(
        self, hub: LocalHub, cache: ShardCache, elsewhere: Any, jump: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shard, real = shard_on(hub, noise(N)), time.time
        elsewhere(HOLD, cache, [shard])
        evicted(cache)
        monkeypatch.setattr(time, "time", lambda: real() + jump * 3600)
        assert stays(cache, cache.path_of(shard))

    def test_a_living_reader_in_another_pid_namespace_keeps_its_file(
        self, hub: LocalHub, cache: ShardCache, elsewhere: Any
    ) -> None:
        space = ("unshare", "-Urpf", "--mount-proc", "--kill-child")
        if subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
            pytest.skip("no pid namespaces here")
        shard = shard_on(hub, noise(N))
        beat = f"from headrace.fetch import heartbeat\nheartbeat.BEAT_SECONDS = {BEAT}\n"
        process = elsewhere(beat + HOLD, cache, [shard], *space)
        assert stays(cache, cache.path_of(shard))
        process.kill()
        assert seconds_until_gone(cache) > 0

    def test_a_killed_reader_frees_its_file_after_the_limit_and_not_before(
        self, hub: LocalHub, cache: ShardCache, elsewhere: Any
    ) -> None:
        process = elsewhere(HOLD, cache, [shard_on(hub, noise(N))])
        assert not evicted(cache)
        process.kill()
        process.wait()
        assert SILENT - BEAT <= seconds_until_gone(cache) < 3 * SILENT
        assert leftovers(cache.root) == []

    def test_what_a_dead_machine_left_goes_in_a_later_sweep_of_the_same_process(
        self, hub: LocalHub, cache: ShardCache, elsewhere: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(prefetch, "LOOK_SECONDS", SILENT / 2)
        a, b = shards_on(hub, {"a.parquet": noise(N), "b.parquet": noise(N, 1)})
        process = elsewhere(HOLD.replace("(root)", "(root).passing()"), cache, [a])
        process.kill()
        process.wait()
        cache.acquire(b).release()
        began = time.monotonic()

        def swept() -> bool:
            sweep_once(cache, Stop())
            return not cache.path_of(a).exists()

        assert not swept()
        wait_until(swept, 5 * SILENT)
        assert time.monotonic() - began >= SILENT

    def test_a_partial_file_stays_while_its_download_waits_for_the_server(
        self, hub: LocalHub, cache: ShardCache, elsewhere: Any
    ) -> None:
        shard = shard_on(hub, noise(N), stall_seconds=60.0)
        hub.fault("*/resolve/*", StallAfter(100))
        process = elsewhere("print('ready', flush=True)\n" + HOLD, cache, [shard])
        wait_until(lambda: list(cache.root.rglob("*.part")))
        (part,) = cache.root.rglob("*.part")
        until = time.monotonic() + 2 * SILENT
        while time.monotonic() < until:
            cache.sweep()
            assert part.exists()
            time.sleep(BEAT)
        process.kill()
        process.wait()

        def swept() -> bool:
            cache.sweep()
            return not part.exists()

        wait_until(swept, 5 * SILENT)

    def test_what_readers_need_counts_while_their_machine_lives(
        self, hub: LocalHub, cache: ShardCache, elsewhere: Any
    ) -> None:
        code = "ShardCache(root).need('run').begin(1, ['mark'])\nprint('ready', flush=True); sys.stdin.read()"
        process = elsewhere(code, cache, [shard_on(hub, noise(N))])
        folder = cache.root / "hf_shards" / ".needs"
        (note,) = folder.iterdir()
        until = time.monotonic() + 2 * SILENT
        while time.monotonic() < until:
            assert needed(folder, cache._files) == {"mark"}
            time.sleep(BEAT)
        note.unlink()
        wait_until(lambda: needed(folder, cache._files) == {"mark"})
        process.kill()
        process.wait()
        wait_until(lambda: needed(folder, cache._files) == set(), 5 * SILENT)


class TestHeartbeat:
    def test_after_a_fork_each_shows_its_own_life(self, hub: LocalHub, cache: ShardCache, elsewhere: Any) -> None:
        a, b = shards_on(hub, {"a.parquet": noise(N), "b.parquet": noise(N, 1)})
        code = """
lease = ShardCache(root).acquire(shards[0])
child = os.fork()
other = ShardCache(root).acquire(shards[1]) if not child else None
if child:
    time.sleep(0.5)
    print("ready", child, flush=True)
time.sleep(60)
"""
        process = start(ELSEWHERE + code, cache.root, [a, b])
        assert process.stdout is not None
        child = int(process.stdout.readline().split()[1])
        try:
            for shard in (a, b):
                assert stays(cache, cache.path_of(shard))
            process.kill()
            process.wait()
            wait_until(lambda: evicted(cache) or not cache.path_of(a).exists(), 5 * SILENT)
            assert stays(cache, cache.path_of(b))
        finally:
            os.kill(child, signal.SIGKILL)
            process.kill()
        wait_until(lambda: evicted(cache), 5 * SILENT)
        process.communicate()

    def test_it_ends_with_the_last_lease_and_begins_again(self, hub: LocalHub, cache: ShardCache) -> None:
        def beats() -> int:
            return sum(thread.name == "headrace-alive" for thread in threading.enumerate())

        gc.collect()  # leases of tests before this one, in what they raised
        wait_until(lambda: not beats())
        shard = shard_on(hub, noise(N))
        for _ in range(3):
            lease, other = cache.acquire(shard), cache.acquire(shard)
            assert beats() == 1
            lease.release()
            assert beats() == 1
            other.release()
            assert not beats()

    def test_what_is_let_go_while_it_is_made_again_does_not_stay(self, tmp_path: Path) -> None:
        path, made = tmp_path / "lease", threading.Event()

        def again() -> None:
            heartbeat.drop(sign)
            path.touch()
            made.set()

        sign = heartbeat.Sign(path, again)
        heartbeat._HERE.hold(sign)
        assert made.wait(20)
        wait_until(lambda: not path.exists())

    def test_it_keeps_no_process_from_ending(self, hub: LocalHub, cache: ShardCache) -> None:
        began = time.monotonic()
        finish(start("kept = ShardCache(root).acquire(shards[0])", cache.root, [shard_on(hub, noise(N))]))
        assert time.monotonic() - began < 10
        assert leftovers(cache.root) == []

    def test_without_a_thread_to_be_had_leases_are_touched_as_others_are_taken(
        self, hub: LocalHub, cache: ShardCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Refused(threading.Thread):
            def start(self) -> None:
                raise RuntimeError("can't start new thread")

        a, b = shards_on(hub, {"a.parquet": noise(N), "b.parquet": noise(N, 1)})
        monkeypatch.setattr(heartbeat, "_HERE", heartbeat._Heartbeat())
        with monkeypatch.context() as patch:
            patch.setattr(heartbeat, "threading", SimpleNamespace(Thread=Refused))
            with cache.acquire(a) as lease:
                assert lease.file is not None
                before = lease.file.stat().st_mtime_ns
                time.sleep(2 * BEAT)
                cache.acquire(b).release()
                assert lease.file.stat().st_mtime_ns > before
        with cache.acquire(a) as lease:
            assert lease.file is not None
            os.utime(lease.file, (1, 1))
            file = lease.file
            wait_until(lambda: file.stat().st_mtime > 1)


class TestLoss:
    def test_a_lease_that_others_removed_is_taken_again_and_said_once(
        self, hub: LocalHub, cache: ShardCache, caplog: pytest.LogCaptureFixture
    ) -> None:
        leases = [cache.acquire(shard) for shard in shards_on(hub, {"a": noise(N), "b": noise(N, 1)})]
        for lease in leases:
            assert lease.file is not None
            assert not lease.is_lost
            lease.file.unlink()
        assert all(lease.is_lost for lease in leases)
        assert all(lease.file is not None and lease.file.exists() for lease in leases)
        time.sleep(3 * BEAT)
        assert caplog.text.count("took this process for dead") == 1
        for lease in leases:
            lease.release()
        assert leftovers(cache.root) == []

    @pytest.mark.parametrize("seen", ["by the next beat", "by the next use"])
    def test_who_asks_for_a_shard_that_was_lost_gets_it_again(
        self, hub: LocalHub, cache: ShardCache, seen: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shard = shard_on(hub, noise(N))
        if seen == "by the next use":
            monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 3600.0)
        with ShardPrefetcher([shard], cache.root, cache=cache) as shards:
            path = shards.wait_for(shard)
            (lease,) = cache._leases.folder.iterdir()
            lease.unlink()
            assert evicted(cache)
            if seen == "by the next beat":
                wait_until(lease.exists)
            assert shards.wait_for(shard) == path
            assert path.read_bytes() == noise(N)
            assert not evicted(cache), "it has a lease again"
        assert len(hub.requests) == 2

    def test_a_partial_file_that_others_removed_is_begun_again(self, hub: LocalHub, tmp_path: Path) -> None:
        shard, target = shard_on(hub, noise(N)), tmp_path / "a.parquet"
        parts: list[Path] = []

        def remove(size: int) -> None:
            if not parts:
                parts.extend(tmp_path.glob(".*.part"))
                parts[0].unlink()

        download(shard, target, on_progress=remove)
        assert target.read_bytes() == noise(N)
        assert len(hub.requests) == 2
        assert leftovers(tmp_path) == []

    READ = """
import logging, headrace
logging.basicConfig(level=logging.WARNING)
uids = []
with headrace.rows("hf:me/rows", cache_dir=root) as rows:
    for number, row in enumerate(rows):
        if number == 5:
            time.sleep(0.5)  # what comes next is fetched meanwhile
            print("ready", flush=True)
            sys.stdin.readline()
        uids.append(row.data["uid"])
print(json.dumps(uids), flush=True)
"""
    NFS = """
import errno
stat, read = os.fstat, os.pread
def gone(fd):
    if not stat(fd).st_nlink:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
os.fstat = lambda fd: gone(fd) or stat(fd)
os.pread = lambda fd, *args: gone(fd) or read(fd, *args)
"""
    """A file that another machine has removed cannot be read any more, though it is open."""

    @pytest.mark.parametrize("disk", ["local", "nfs", "nfs, where others have fetched it again"])
    def test_a_reader_that_was_suspended_reads_every_row_once(self, hub: LocalHub, tmp_path: Path, disk: str) -> None:
        write_parquet(tmp_path / "repo", [[10, 10]] * 3)
        hub.push("me/rows", tmp_path / "repo")
        cache = ShardCache(tmp_path / "data")
        (tmp_path / "data").mkdir()
        some, code = [shard_on(hub, noise(N), repo="me/other")], ELSEWHERE + (self.NFS if disk != "local" else "")
        process = start(code + self.READ, cache.root, some, **hub.env())
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n", process.communicate()
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: evicted(cache), 5 * SILENT)
            assert leases_of(cache.root, Grade.READ) == set()
            if disk.endswith("again"):
                env = {**hub.env(), "HF_SHARD_CACHE_CLEANUP": "keep"}
                code = "import headrace; list(headrace.rows('hf:me/rows', cache_dir=root))"
                finish(start(code, cache.root, some, **env))
                assert len(list((cache.root / "hf_shards").rglob("*.parquet"))) == 3
            process.send_signal(signal.SIGCONT)
            process.stdin.write("\n")
            process.stdin.flush()
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == 0, err
        uids = json.loads(out)
        assert len(uids) == len(set(uids)) == 60
        assert err.count("took this process for dead") == 1
