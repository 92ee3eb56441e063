"""SIGKILL at every system call of the cache that touches its folder; a plain rerun then finds everything right."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fetching import environment, leftovers, python
from scenes import BODIES, SIZE, log_of, num_fetched, play, shard_for

from headrace.fetch.cache import ShardCache
from headrace.files import host_tag

STRACE = shutil.which("strace")
CALLS = "openat,write,pwrite64,fsync,close,rename,unlink,link,linkat,mkdir,flock,fchmod,ftruncate,utimensat,getdents64"
KILLED = (-9, 128 + 9)
AT_ONCE = 3


def set_up(scene: str, root: Path) -> None:
    root.mkdir()
    cache = ShardCache(root)
    if scene == "publish":
        return
    for name in "ab":
        cache.acquire(shard_for(name, root)).release(keep=True)
    if scene == "heal":
        path = cache.path_of(shard_for("a", root))
        path.chmod(0o644)
        path.write_bytes(b"rotten")
    if scene == "sweep":
        dead = f"{host_tag()}.{ended_process()}.1"
        place = cache.path_of(shard_for("c", root))
        place.with_name(f".c.0123456789abcdef.{dead}.00000000.part").write_bytes(b"half")
        place.with_name(f"..c.meta.json.x.{dead}.00000000.part").write_bytes(b"{")
        for name in (f"00.{dead}.0", f"00.{dead}.1.rm", "00.lock"):
            (root / "hf_shards/.leases" / name).touch()
    log_of(root).unlink()


def ended_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def run(scene: str, root: Path, *options: str) -> int:
    """Play a scene under strace; the exit status."""
    code = "import sys, pathlib, scenes; scenes.play(sys.argv[1], pathlib.Path(sys.argv[2]))"
    env = environment()
    env["PYTHONPATH"] += os.pathsep + str(Path(__file__).parent)
    command = [
        str(STRACE),
        "-f",
        "-qq",
        "-y",
        "-e",
        f"trace={CALLS}",
        *options,
        *python(),
        "-c",
        code,
        scene,
        str(root),
    ]
    return subprocess.run(command, env=env, capture_output=True, timeout=30, check=False).returncode


def points(scene: str, folder: Path) -> list[tuple[str, int]]:
    """Every call that touches the cache folder, as its name and its number among the calls of that name."""
    root, trace = folder / "reference", folder / "trace"
    set_up(scene, root)
    assert run(scene, root, "-o", str(trace)) == 0
    found: list[tuple[str, int]] = []
    counts = Counter[str]()
    for line in trace.read_text(errors="replace").splitlines():
        match = re.match(r"\d+\s+(\w+)\(", line)
        if match:
            counts[match[1]] += 1
            if f"{root}/" in line or f"{root}>" in line or f'{root}"' in line:
                found.append((match[1], counts[match[1]]))
    return found


def check(scene: str, root: Path) -> None:
    """What must hold after a kill, and after a plain rerun."""
    for name in "abc":
        for path in root.rglob(name):
            assert path.read_bytes() in (BODIES[name], b"rotten" if scene == "heal" else None), f"{path} is torn"
    before = num_fetched(root)
    assert before <= SIZE
    play(scene, root)
    cache = ShardCache(root)
    wanted = shard_for("c" if scene == "evict" else "a", root)
    with cache.acquire(wanted) as lease:
        assert lease.path == root / "hf_shards/me/rows/train" / wanted.path
        assert lease.path.read_bytes() == BODIES[wanted.path]
    assert num_fetched(root) - before <= (2 if scene == "clean up" else 1) * SIZE
    cache.sweep()
    assert leftovers(root) == []
    for name in "ab":
        cache.acquire(shard_for(name, root)).release()
    assert [path for path in root.rglob("*") if path.is_file()] == []


@pytest.fixture(autouse=True)
def _needs_strace() -> None:
    if not STRACE or subprocess.run([STRACE, "-o", os.devnull, "true"], capture_output=True, check=False).returncode:
        pytest.skip("strace is missing, or may not trace here")


@pytest.mark.parametrize(
    ("scene", "least"), [("publish", 40), ("heal", 35), ("clean up", 15), ("evict", 40), ("sweep", 8)]
)
def test_a_kill_at_any_system_call_leaves_nothing_that_a_rerun_does_not_put_right(
    scene: str, least: int, tmp_path: Path
) -> None:
    found = points(scene, tmp_path)
    assert len(found) >= least

    def attempt(number: int) -> str:
        call, nth = found[number]
        root = tmp_path / str(number)
        set_up(scene, root)
        status = run(scene, root, "-o", os.devnull, "-e", f"inject={call}:signal=KILL:when={nth}")
        try:
            assert status in KILLED, f"it ended with {status}"
            check(scene, root)
        except Exception as error:
            return f"killed at {call} number {nth}: {error!r}"
        return ""

    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert [problem for problem in pool.map(attempt, range(len(found))) if problem] == []
