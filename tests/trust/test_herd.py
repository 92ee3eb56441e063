"""Many processes want the same at the same moment: one of them fetches it, or all do, and all get the same bytes.

`HEADRACE_FAULTS=10` repeats each of these ten times as often.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from fetching import finish, leftovers, noise, shard_on, shards_on, start, wait_until

from headrace.catalog.shard import Shard
from headrace.errors import HeadraceError
from headrace.fetch.cache import ShardCache
from headrace.testing.hub import Drip, LocalHub, RateLimit, Status

TIMES = int(os.environ.get("HEADRACE_FAULTS", "1"))
HERD = 4
FORK: Any = get_context("fork")

pytestmark = [pytest.mark.usefixtures("quick"), pytest.mark.timeout(120 * TIMES)]


def together(work: Callable[[int], None], count: int = HERD) -> None:
    """Do it in so many forked processes, all at the same moment."""
    barrier = FORK.Barrier(count)

    def one(number: int) -> None:
        barrier.wait(30)
        try:
            work(number)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    children = [FORK.Process(target=one, args=(number,)) for number in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * count


LOCKS: dict[str, Callable[[], None]] = {
    "that work": lambda: None,
    "that lock nothing": lambda: setattr(fcntl, "flock", lambda *_: None),
    "that take half a second": lambda: setattr(fcntl, "flock", _slow(fcntl.flock)),
}


def _slow(flock: Any) -> Any:
    def late(*given: Any) -> Any:
        time.sleep(0.5)
        return flock(*given)

    return late


@pytest.mark.parametrize(
    ("locks", "rounds"), [("that work", 20), ("that lock nothing", 20), ("that take half a second", 2)]
)
def test_everybody_in_a_herd_gets_the_right_bytes_with_locks(
    hub: LocalHub, tmp_path: Path, locks: str, rounds: int
) -> None:
    """Everybody has the right bytes, nothing is left behind, and with locks that work one request is made."""
    for number in range(rounds * TIMES):
        body = noise(20_000, number)
        shard = shard_on(hub, body)
        hub.clear_log()
        root = tmp_path / str(number)
        done = FORK.Barrier(HERD)

        def work(number: int, shard: Shard = shard, root: Path = root, body: bytes = body, done: Any = done) -> None:
            LOCKS[locks]()
            lease = ShardCache(root).acquire(shard)
            assert lease.path.read_bytes() == body
            done.wait(30)  # nobody removes it while others come
            lease.release()

        together(work)
        assert 1 <= len(hub.requests) <= (1 if locks == "that work" else HERD)
        assert leftovers(root) == []
        assert [path for path in root.rglob("*") if path.is_file()] == []


def test_nobody_of_a_herd_asks_before_the_time_that_the_server_gave(hub: LocalHub, tmp_path: Path) -> None:
    """In all processes together: no request inside the pause, and few more requests than shards after it."""
    shards = shards_on(hub, {f"s{n}.parquet": noise(5000, n) for n in range(6)}, cache_root=tmp_path)
    hub.fault("*", RateLimit(1.5), nth=1)
    hub.clear_log()

    def work(number: int) -> None:
        if number:  # the first of them is told, the others hear of it
            wait_until(lambda: list(tmp_path.glob(".hold-*")), 20)
        cache = ShardCache(tmp_path, cleanup="keep")
        for turn in range(len(shards)):
            cache.acquire(shards[(turn + number) % len(shards)]).release()

    together(work, 3)
    first, *later = hub.requests
    assert first.status == 429
    assert min(request.time for request in later) - first.time >= 1.5
    assert len(hub.requests) <= 1.2 * len(shards) + 1


def test_a_slow_reader_keeps_its_shard_where_the_server_gives_no_file_twice(hub: LocalHub, tmp_path: Path) -> None:
    """The limit is one shard; one reader maps its own for long, while others come and go."""
    names = [f"s{n}.parquet" for n in range(5)]
    shards = shards_on(hub, {name: noise(50_000, n) for n, name in enumerate(names)})
    for name in names:
        hub.fault(f"*/{name}", Status(403), nth=range(2, 99))
    slow = ShardCache(tmp_path, limit=50_000).acquire(shards[0])
    with slow.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:

        def work(number: int) -> None:
            cache = ShardCache(tmp_path, limit=50_000)
            for n in range(1 + number, len(shards), 2):
                with cache.acquire(shards[n]) as lease:
                    assert lease.path.read_bytes() == noise(50_000, n)
            with cache.acquire(shards[0]) as lease:
                assert lease.path.read_bytes() == noise(50_000, 0)

        together(work, 2)
        assert view[:] == noise(50_000, 0)
        assert slow.path.read_bytes() == noise(50_000, 0)
    slow.release()
    assert not slow.path.exists()
    assert max(Counter(request.path for request in hub.requests).values()) == 1


RACE = """
from headrace.errors import NoSpace
good = 0
for turn in range(12):
    shard = shards[turn % len(shards)]
    try:
        lease = ShardCache(root).acquire(shard)
    except NoSpace as error:
        for words in ("needs 100,000 bytes", "free", "HEADRACE_CACHE_BYTES"):
            assert words in str(error), error
        time.sleep(0.02)
        continue
    import hashlib
    assert hashlib.sha256(lease.path.read_bytes()).hexdigest() == shard.etag
    time.sleep(0.01)
    lease.release(keep=turn % 2 == 0)
    good += 1
print(good)
"""


def test_processes_that_race_for_the_last_room_on_a_disk_read_right_or_say_what_they_need(
    hub: LocalHub, tmp_path: Path
) -> None:
    """A real disk of 280 kB, three readers, shards of 100 kB: there is room for two."""
    shards = shards_on(hub, {f"s{n}.parquet": noise(100_000, n) for n in range(4)})
    mount = tmp_path / "disk"
    mount.mkdir()
    script = (
        f'mount -t tmpfs -o size=280k none "{mount}" || exit 9; for i in 1 2 3; do "$@" & pids="$pids $!"; done; '
        f'for pid in $pids; do wait $pid || exit 1; done; echo left; find "{mount}" -name "*.part"'
    )
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    out = finish(start(RACE, mount, shards, "unshare", "-Urm", "sh", "-c", script, "-"), 60)
    counts, _, left = out.partition("left\n")
    assert left == ""
    assert len(counts.split()) == 3
    assert sum(map(int, counts.split())) >= 12


TRAINER = """
import sys
sys.path.insert(0, sys.argv[1])
from serving import loader_of
if __name__ == "__main__":
    loader = loader_of("rows", sys.argv[2], num_workers=2)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    print(*[worker.pid for worker in batches._slots._crew._workers], flush=True)
    for batch in iter(lambda: next(batches, None), 7):
        pass
"""


def test_a_trainer_that_is_killed_and_started_again_at_once_many_times_leaves_nothing(tmp_path: Path) -> None:
    from serving import is_alive, shared_memory, write_rows

    pattern = write_rows(tmp_path)
    script, temporary = tmp_path / "trainer.py", tmp_path / "temporary"
    script.write_text(TRAINER)
    temporary.mkdir()
    tests = str(Path(__file__).parents[1])
    shared, pids = shared_memory(), []
    for _ in range(10 * TIMES):
        process = subprocess.Popen(
            [sys.executable, str(script), tests, pattern],
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(temporary)},
            text=True,
        )
        assert process.stdout is not None
        pids += [int(word) for word in process.stdout.readline().split()]
        process.kill()
        process.wait()
        process.stdout.close()
    assert len(pids) == 20 * TIMES
    wait_until(lambda: not any(map(is_alive, pids)), 15)
    assert list(temporary.iterdir()) == []
    assert shared_memory() <= shared
    assert leftovers(tmp_path) == []


def test_a_herd_waits_for_one_slow_download_and_makes_no_other(hub: LocalHub, tmp_path: Path) -> None:
    """Under a slow server every member of a herd waits, and is told apart from one that hangs: it takes longer than
    anybody is waited for without a sign of life."""
    body = noise(60_000)
    shard = shard_on(hub, body, stall_seconds=1.0)
    hub.fault("*/resolve/*", Drip(len(body) / 2.5))

    def work(number: int) -> None:
        try:
            with ShardCache(tmp_path, cleanup="keep").acquire(shard) as lease:
                assert hashlib.sha256(lease.path.read_bytes()).hexdigest() == shard.etag
        except HeadraceError as error:
            raise AssertionError(str(error)) from error

    together(work)
    assert len(hub.requests) == 1
