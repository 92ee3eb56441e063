"""Real processes: killed, forked, side by side; and what they leave behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import rows
from headrace.testing import LocalHub, write_parquet
from headrace.testing.hub import Delay
from headrace.tools.demo import Ledger

pytestmark = pytest.mark.alone

SHAPE = [[300, 300], [500], [200, 200, 200], [700], [100] * 6, [400]]
NUM_ROWS = sum(map(sum, SHAPE))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    write_parquet(tmp_path / "repo" / "data", SHAPE)
    with LocalHub() as hub:
        hub.push("demo/corpus", tmp_path / "repo")
        yield hub


def uids() -> set[str]:
    names = [f"train-{i:05d}-of-{len(SHAPE):05d}.parquet" for i in range(len(SHAPE))]
    return {f"{name}:{row}" for name, groups in zip(names, SHAPE, strict=True) for row in range(sum(groups))}


def start(hub: LocalHub, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace.tools.demo_run", "hf:demo/corpus:train:text", str(folder)]
    return subprocess.Popen(command, env={**os.environ, **hub.env()}, stderr=subprocess.PIPE)


def test_a_run_killed_at_any_moment_goes_on_by_itself_and_loses_nothing(hub: LocalHub, tmp_path: Path) -> None:
    chance = random.Random(11)
    kills = 0
    hub.fault("*.parquet", Delay(0.2))  # so that no run is over before it is killed, however fast the machine
    for _ in range(14):
        child = start(hub, tmp_path)
        try:
            child.wait(chance.uniform(0.25, 0.75))
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            kills += 1
        _, errors = child.communicate(timeout=10)
        assert child.returncode in (0, -signal.SIGKILL), errors.decode()
        if child.returncode == 0:
            break
    if child.returncode != 0:
        child = start(hub, tmp_path)
        _, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors.decode()
    assert kills >= 2
    ledger = Ledger.read(tmp_path / "ledger.txt", uids())
    assert ledger.is_exact, ledger
    # A whole shard is fetched once, and once more at most for each kill.
    whole = Counter(r.path for r in hub.requests if r.method == "GET" and r.path.endswith(".parquet") and not r.range)
    assert sum(whole.values()) <= len(SHAPE) + kills
    left = [p.name for p in (tmp_path / "data").rglob("*") if p.name.endswith(".part")]
    assert left == []


def test_a_kill_while_the_index_is_written_leaves_the_old_or_the_new_one(tmp_path: Path) -> None:
    """SIGKILL at each of the system calls that write a file, in the process that builds the index."""
    write_parquet(tmp_path / "in", [[20], [20]])
    code = (
        "import sys; sys.path[:0] = sys.argv[3].split(':')\n"
        "import headrace\n"
        "n = len(list(headrace.rows(sys.argv[1], cache_dir=sys.argv[2])))\n"
        "assert n == 40, n\n"
    )
    spec, cache = f"parquet:{tmp_path}/in/*.parquet", str(tmp_path / "data")
    python = [os.path.realpath(sys.executable), "-S", "-c", code, spec, cache, ":".join(sys.path)]
    killed = 0
    for call, most in (("fsync", 4), ("rename", 2), ("unlink", 2)):
        for nth in range(1, most + 1):
            for path in Path(cache).rglob("*.json"):
                path.unlink()
            inject = f"inject={call}:signal=KILL:when={nth}"
            done = subprocess.run(
                ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject, *python],
                capture_output=True,
                timeout=60,
                check=False,
            )
            killed += done.returncode != 0
            again = subprocess.run(python, capture_output=True, timeout=60, check=False)
            assert again.returncode == 0, again.stderr.decode()
            assert list(Path(cache).rglob("*.part")) == []
    assert killed >= 4


def _count(endpoint: str, spec: str, cache: str, counts: multiprocessing.Queue[int]) -> None:
    os.environ["HF_ENDPOINT"] = endpoint  # the server that forks keeps the environment that it was started with
    with rows(spec, shuffle=True, cache_dir=cache) as stage:
        counts.put(len({row.data["uid"] for row in stage}))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_rows_can_be_read_in_children_of_a_process_that_has_read_rows(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    cache = str(tmp_path / "data")
    with rows("hf:demo/corpus", cache_dir=cache) as open_in_parent:
        next(open_in_parent)
        context: Any = multiprocessing.get_context(method)
        counts = context.Queue()
        children = [
            context.Process(target=_count, args=(hub.endpoint, "hf:demo/corpus", cache, counts)) for _ in range(2)
        ]
        for child in children:
            child.start()
        assert [counts.get(timeout=60) for _ in children] == [NUM_ROWS, NUM_ROWS]
        for child in children:
            child.join(10)
            assert child.exitcode == 0
        assert len(list(open_in_parent)) == NUM_ROWS - 1


def test_two_jobs_on_one_cache_do_not_disturb_each_other(hub: LocalHub, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for name in "ab":
        (tmp_path / name / "data").symlink_to(tmp_path / "shared")
    (tmp_path / "shared").mkdir(mode=0o700)
    jobs = [start(hub, tmp_path / name) for name in "ab"]
    for job in jobs:
        _, errors = job.communicate(timeout=60)
        assert job.returncode == 0, errors.decode()
    for name in "ab":
        assert Ledger.read(tmp_path / name / "ledger.txt", uids()).is_exact
    shards = tmp_path / "shared" / "hf_shards"
    assert list((shards / ".leases").iterdir()) == []
    assert [p.name for p in shards.rglob("*.part")] == []


@pytest.mark.parametrize("ending", ["return", "exit", "error", "SIGINT", "SIGTERM"])
def test_a_process_ends_soon_whatever_is_going_on(hub: LocalHub, tmp_path: Path, ending: str) -> None:
    from headrace.testing.hub import StallAfter

    hub.fault("*train-00001*", StallAfter(100, 30), nth=range(2, 50))  # the first request is for the footer
    code = (
        "import headrace, os, signal, sys, time\n"
        f"stage = headrace.rows('hf:demo/corpus', cache_dir={str(tmp_path / 'data')!r})\n"
        "next(stage)\n"
        "time.sleep(0.3)\n"
        "print(time.time(), flush=True)\n"
        f"ending = {ending!r}\n"
        "if ending == 'exit': sys.exit(3)\n"
        "if ending == 'error': raise RuntimeError('planted')\n"
        "if ending.startswith('SIG'): os.kill(os.getpid(), getattr(signal, ending)); time.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **hub.env()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    seconds = time.time() - float(done.stdout)
    expected = {"return": 0, "exit": 3, "error": 1, "SIGINT": -signal.SIGINT, "SIGTERM": -signal.SIGTERM}
    assert done.returncode in (expected[ending], 130 if ending == "SIGINT" else expected[ending])
    assert seconds < 2.5
    assert "Fatal Python error" not in done.stderr


def test_memory_stays_flat_over_epochs(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[1000] * 8] * 2)
    spec, cache = f"parquet:{tmp_path}/in/*.parquet", str(tmp_path / "data")
    code = (
        "import gc, headrace, json\n"
        "gc.disable()  # nothing large may wait for the garbage collector\n"
        "def rss(): return int(open('/proc/self/statm').read().split()[1]) * 4096 / 1e6\n"
        "out = []\n"
        "for epoch in range(11):\n"
        f"    with headrace.rows({spec!r}, shuffle=True, epoch=epoch, cache_dir={cache!r}) as stage:\n"
        "        for row in stage: pass\n"
        "    out.append(rss())\n"
        "print(json.dumps(out))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    mb = json.loads(done.stdout)[3:]
    slope = sum((i - 3.5) * (m - sum(mb) / 8) for i, m in enumerate(mb)) / sum((i - 3.5) ** 2 for i in range(8))
    assert slope < 1, mb
    assert max(mb) - min(mb) < 20, mb
