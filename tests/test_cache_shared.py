"""The shard cache among many processes, under a limit, and on a full disk."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fetching import finish, leftovers, noise, shard_on, shards_on, start, wait_until

from headrace.catalog.shard import Shard
from headrace.catalog.stop import Stop, Stopped
from headrace.errors import NoSpace, SpecError
from headrace.fetch import sidecar
from headrace.fetch.cache import ShardCache
from headrace.locks import Lock
from headrace.testing.hub import Drip, LocalHub, StallAfter, Status

BODY = noise(200_000)
N = len(BODY)
FILE = "*/resolve/*"


pytestmark = [pytest.mark.timed, pytest.mark.usefixtures("quick")]


@pytest.fixture
def cache(tmp_path: Path) -> ShardCache:
    return ShardCache(tmp_path)


def shards_in(root: Path) -> list[str]:
    """The shard files there are, by name."""
    files = (path for path in (root / "hf_shards").rglob("*") if path.is_file() and path.parent.name != ".leases")
    return sorted(path.name for path in files if not path.name.startswith("."))


def files_in(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


class TestManyProcesses:
    CODE = "lease = ShardCache(root).acquire(shards[0])\nassert lease.path.stat().st_size == shards[0].size\n"
    HOLD = CODE + "print('ready', flush=True); sys.stdin.read()"

    def test_several_processes_at_once_make_one_request(self, hub: LocalHub, cache: ShardCache) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, Drip(N / 0.7))
        code = self.CODE + "time.sleep(1.5)"
        for process in [start(code, cache.root, [shard]) for _ in range(4)]:
            finish(process)
        assert len(hub.requests) == 1
        assert leftovers(cache.root) == []

    @pytest.mark.parametrize("lock", ["lambda *a: None", "fail(errno.ENOSYS)", "fail(errno.EACCES)", "fail(errno.EIO)"])
    def test_without_working_locks_all_is_right_but_for_the_bandwidth(
        self, hub: LocalHub, cache: ShardCache, lock: str
    ) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, Drip(N / 0.4))
        code = f"""
import fcntl, errno
def fail(code):
    def call(*args):
        raise OSError(code, "no locks here")
    return call
fcntl.flock = {lock}
lease = ShardCache(root).acquire(shards[0])
import hashlib
assert hashlib.sha256(lease.path.read_bytes()).hexdigest() == shards[0].etag
time.sleep(1)
"""
        for process in [start(code, cache.root, [shard]) for _ in range(3)]:
            finish(process)
        assert 1 <= len(hub.requests) <= 3
        assert leftovers(cache.root) == []

    def test_when_the_downloader_is_killed_another_goes_on_where_it_was(self, hub: LocalHub, cache: ShardCache) -> None:
        shard = shard_on(hub, BODY)
        stall = hub.fault(FILE, StallAfter(N // 2))
        first = start(self.CODE, cache.root, [shard])
        wait_until(lambda: list(cache.root.rglob("*.part")) and hub.requests and hub.requests[0].bytes_sent == N // 2)
        second = start(self.CODE, cache.root, [shard])
        wait_until(lambda: len(leases_in(cache)) == 2)
        stall.remove()
        time.sleep(0.2)
        first.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        first.wait()
        finish(second)
        assert time.monotonic() - killed < 2
        assert [request.range for request in hub.requests] == [None, f"bytes={N // 2}-"], "and nothing came twice"
        first.communicate()

    def test_when_the_downloader_is_stopped_another_takes_over_in_time(self, hub: LocalHub, cache: ShardCache) -> None:
        shard = shard_on(hub, BODY, stall_seconds=1.0)
        fault = hub.fault(FILE, Drip(N / 2.5), nth=1)
        first = start(self.CODE, cache.root, [shard])
        wait_until(lambda: fault.hits)
        second = start(self.CODE, cache.root, [shard])
        wait_until(lambda: len(leases_in(cache)) == 2)
        first.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            finish(second)
            assert time.monotonic() - stopped < 2.5
            assert [request.range for request in hub.requests] == [None, None], "it goes on, and writes to what it has"
        finally:
            first.send_signal(signal.SIGCONT)
        finish(first)
        assert leftovers(cache.root) == []

    def test_a_waiter_is_patient_with_a_downloader_that_waits_for_the_server(
        self, hub: LocalHub, cache: ShardCache
    ) -> None:
        shard = shard_on(hub, BODY, stall_seconds=0.5)
        hub.fault(FILE, Status(503, {"Retry-After": "2"}), nth=1)
        code = self.CODE + "time.sleep(0.5)"
        for process in [start(code, cache.root, [shard]) for _ in range(3)]:
            finish(process)
        assert len(hub.requests) == 2

    def test_a_lock_that_its_owner_removes_before_it_is_taken_is_made_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else its next two owners would hold a file each, and each believe that it is the lock."""
        path, real = tmp_path / "lock", fcntl.flock
        removed: list[Path] = []

        def flock(fd: int, how: int) -> None:
            if not removed:
                removed.append(path)
                path.unlink()
            real(fd, how)

        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", flock)
            lock = Lock(path)
            assert lock.take() is True
        assert removed == [path]
        assert Lock(path).take() is False
        lock.release()
        assert not path.exists()

    def test_a_lock_that_outlives_its_owner_in_a_forked_child_holds_nobody_up(
        self, hub: LocalHub, cache: ShardCache
    ) -> None:
        code = """
from headrace.locks import Lock
cache = ShardCache(root)
place = cache.path_of(shards[0])
cache._prepare(place)
lock = Lock(cache._leases.folder / f"{cache._key(place)}.lock")
assert lock.take() is True
if os.fork() == 0:
    os.close(1); os.close(2)
    time.sleep(5)
os._exit(0)
"""
        shard = shard_on(hub, BODY)
        finish(start(code, cache.root, [shard]))
        began = time.monotonic()
        cache.acquire(shard)
        assert time.monotonic() - began < 2

    def test_a_canary_token_is_in_no_file_of_the_cache(self, hub: LocalHub, cache: ShardCache) -> None:
        shard = shard_on(hub, BODY)
        process = start(self.HOLD, cache.root, [shard], HF_TOKEN="hf_CANARY")
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert hub.requests[0].authorized
        for path in cache.root.rglob("*"):
            assert "CANARY" not in str(path)
            assert not path.is_file() or b"CANARY" not in path.read_bytes()
        process.kill()
        process.communicate()


def leases_in(cache: ShardCache) -> list[Path]:
    return [path for path in cache._leases.folder.glob("*") if path.suffix != ".lock"]


class TestLimit:
    def test_a_shard_beyond_the_limit_is_refused_before_any_request(self, hub: LocalHub, tmp_path: Path) -> None:
        cache = ShardCache(tmp_path, limit=N - 1)
        with pytest.raises(NoSpace, match=rf"a\.parquet needs {N:,} bytes.*limit is {N - 1:,}.*HEADRACE_CACHE_BYTES"):
            cache.acquire(shard_on(hub, BODY))
        assert hub.requests == []
        assert files_in(tmp_path) == []

    def test_the_longest_unused_go_first(self, hub: LocalHub, tmp_path: Path) -> None:
        cache = ShardCache(tmp_path, cleanup="keep", limit=3 * N)
        a, b, c, d = shards_on(hub, {name: noise(N, seed) for seed, name in enumerate("abcd")})
        for shard in (a, b, c):
            cache.acquire(shard).release()
        cache.acquire(a).release()
        cache.acquire(d).release()
        assert shards_in(tmp_path) == ["a", "c", "d"]

    def test_what_is_leased_stays_and_the_log_says_so(
        self, hub: LocalHub, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        cache = ShardCache(tmp_path, limit=2 * N)
        shards = shards_on(hub, {name: noise(N, seed) for seed, name in enumerate("abc")})
        leases = [cache.acquire(shard) for shard in shards]
        assert all(lease.path.exists() for lease in leases)
        assert "limit of 400,000 bytes is exceeded by 200,000" in caplog.text

    def test_what_others_are_fetching_counts(self, hub: LocalHub, tmp_path: Path) -> None:
        cache = ShardCache(tmp_path, limit=2 * N)
        a, b, c = shards_on(hub, {name: noise(N, seed) for seed, name in enumerate("abc")})
        cache.acquire(a).release(keep=True)
        fault = hub.fault("*/b", StallAfter(10))
        with ThreadPoolExecutor() as pool:
            stop = Stop()
            fetching = pool.submit(cache.acquire, b, stop)
            wait_until(lambda: fault.hits)
            cache.acquire(c)
            assert shards_in(tmp_path) == ["c"]
            stop.set()
            assert isinstance(fetching.exception(), Stopped)

    def test_a_file_without_a_sidecar_is_never_evicted(self, hub: LocalHub, tmp_path: Path) -> None:
        cache = ShardCache(tmp_path, limit=N)
        foreign = tmp_path / "hf_shards/me/rows/train/foreign.parquet"
        foreign.parent.mkdir(parents=True)
        for folder in (foreign.parent, *foreign.parent.parents[:3]):
            folder.chmod(0o700)
        foreign.write_bytes(BODY)
        for shard in shards_on(hub, {name: noise(N, seed) for seed, name in enumerate("ab")}):
            cache.acquire(shard).release(keep=True)
        assert shards_in(tmp_path) == ["b", "foreign.parquet"]

    def test_an_open_file_survives_its_eviction(self, hub: LocalHub, tmp_path: Path) -> None:
        cache = ShardCache(tmp_path, limit=N)
        a, b = shards_on(hub, {name: noise(N, seed) for seed, name in enumerate("ab")})
        lease = cache.acquire(a)
        with lease.path.open("rb") as file:
            lease.release(keep=True)
            cache.acquire(b)
            assert not lease.path.exists()
            assert file.read() == noise(N, 0)


class TestDiskFull:
    SIZE = 400_000
    """Of the file system: room for one of our shards and a half."""

    def on_a_small_disk(self, mount: Path, options: str, code: str, shards: list[Shard]) -> str:
        mount.mkdir()
        script = f'mount -t tmpfs -o {options} none "{mount}" && exec "$@"'
        return finish(start(code, mount, shards, "unshare", "-Urm", "sh", "-c", script, "-"))

    @pytest.fixture(autouse=True)
    def _needs_namespaces(self) -> None:
        if subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode:
            pytest.skip("no user namespaces here")

    REPORT = """
from headrace.errors import HeadraceError
def left():
    return [p.name for p in root.rglob("*") if p.is_file()]
def attempt(shard, keep=True, **options):
    try:
        ShardCache(root, **options).acquire(shard).release(keep=keep)
        return "good"
    except HeadraceError as error:
        return f"{type(error).__name__}: {error}"
"""

    def test_old_shards_make_room_for_new_ones(self, hub: LocalHub, tmp_path: Path) -> None:
        shards = shards_on(hub, {name: noise(N, seed) for seed, name in enumerate("abc")})
        code = self.REPORT + "print([attempt(shard) for shard in shards], left())"
        out = self.on_a_small_disk(tmp_path / "disk", f"size={self.SIZE}", code, shards)
        assert out == "['good', 'good', 'good'] ['.c.meta.json', 'c']\n" or out.endswith("['c', '.c.meta.json']\n")

    def test_a_shard_too_large_for_the_disk_is_an_error_that_leaves_nothing(
        self, hub: LocalHub, tmp_path: Path
    ) -> None:
        code = self.REPORT + "print(attempt(shards[0])); print(left())"
        out = self.on_a_small_disk(tmp_path / "disk", f"size={N // 2}", code, [shard_on(hub, BODY)])
        assert f"data/a.parquet needs {N:,} bytes: no room to write" in out
        assert out.startswith("NoSpace")
        assert out.endswith("\n[]\n")

    @pytest.mark.parametrize("inodes", range(4, 12))
    def test_a_disk_without_inodes_is_an_error_that_leaves_no_partial(
        self, hub: LocalHub, tmp_path: Path, inodes: int
    ) -> None:
        code = self.REPORT + "print(attempt(shards[0])); print(left())"
        out = self.on_a_small_disk(tmp_path / "disk", f"nr_inodes={inodes}", code, [shard_on(hub, BODY)])
        assert out.startswith("NoSpace")
        assert ".part'" not in out

    def test_room_that_comes_back_is_used(self, hub: LocalHub, tmp_path: Path) -> None:
        code = (
            self.REPORT
            + """
(root / "ballast").write_bytes(bytes(300_000))
print(attempt(shards[0])[:7])
(root / "ballast").unlink()
print(attempt(shards[0]))
"""
        )
        out = self.on_a_small_disk(tmp_path / "disk", f"size={self.SIZE}", code, [shard_on(hub, BODY)])
        assert out == "NoSpace\ngood\n"

    def test_a_disk_that_became_read_only_still_gives_what_it_has(self, hub: LocalHub, tmp_path: Path) -> None:
        code = (
            self.REPORT
            + """
import subprocess
print(attempt(shards[0]))
subprocess.run(["mount", "-o", "remount,ro", root], check=True)
print(attempt(shards[0]))
print(attempt(shards[1]))
"""
        )
        shards = shards_on(hub, {"a": noise(1000), "b": noise(1000, 1)})
        out = self.on_a_small_disk(tmp_path / "disk", f"size={self.SIZE}", code, shards)
        assert out.startswith("good\ngood\nFetchError")
        assert "Read-only" in out


class TestSweep:
    def test_what_dead_processes_left_goes_and_what_living_ones_hold_stays(
        self, hub: LocalHub, cache: ShardCache
    ) -> None:
        held, lost = shards_on(hub, {"held": BODY, "lost": noise(N, 1)})
        lease = cache.acquire(held)
        fault = hub.fault("*/lost", StallAfter(100))
        process = start("ShardCache(root).acquire(shards[0])", cache.root, [lost])
        wait_until(lambda: fault.hits and list(cache.root.rglob("*.part")))
        cache.sweep()
        assert len(list(cache.root.rglob("*.part"))) == 1
        process.kill()
        process.communicate()
        foreign = cache.root / "hf_shards/me/notes.part"
        foreign.write_text("mine")
        cache.sweep()
        assert leftovers(cache.root / "hf_shards") == [
            f".leases/{lease.file.name}" if lease.file else "",
            "me/notes.part",
        ]
        assert shards_in(cache.root) == ["held", "notes.part"]
        assert not sidecar.path_beside(cache.path_of(lost)).exists()

    def test_a_name_whose_file_comes_while_it_is_swept_keeps_its_file(
        self, hub: LocalHub, cache: ShardCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was taken and not filled when the sweep looked; then the file came, and was read and let go."""
        shard = shard_on(hub, BODY)
        taken = cache._settle(shard)
        there = os.path.lexists
        came: list[Any] = []

        def looked(path: Any) -> bool:
            found = there(path)
            if Path(path) == taken and not found and not came:
                came.append(path)
                cache.acquire(shard).release(keep=True)
            return found

        monkeypatch.setattr(os.path, "lexists", looked)
        cache.sweep(passed=False)
        assert came
        assert taken.read_bytes() == BODY
        assert cache.looks_right(shard, taken)

    def test_an_empty_or_missing_cache_is_swept(self, tmp_path: Path) -> None:
        ShardCache(tmp_path / "nothing").sweep()
        assert not (tmp_path / "nothing").exists()
        (tmp_path / "hf_shards").mkdir()
        ShardCache(tmp_path).sweep()
        assert list((tmp_path / "hf_shards").iterdir()) == []

    def test_a_failed_fetch_leaves_no_name_taken(self, hub: LocalHub, cache: ShardCache) -> None:
        hub.fault(FILE, Status(404))
        with pytest.raises(FileNotFoundError):
            cache.acquire(shard_on(hub, BODY))
        assert files_in(cache.root) == []

    def test_a_wrong_cleanup_is_refused(self, tmp_path: Path) -> None:
        wrong: Any = "sometimes"
        with pytest.raises(SpecError, match="'auto'"):
            ShardCache(tmp_path, cleanup=wrong)
