"""T18: disks that are full, refuse, or are fought over; and limits that leave room for one shard only."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import traced
from fetching import finish, noise, shards_on, start
from repeats import FULL
from scenes import BODIES

from headrace import rows
from headrace.errors import NoSpace
from headrace.testing import LocalHub, write_parquet

N = 300_000
CALLS = "openat,write,fsync,rename,link,linkat,mkdir,unlink"
FETCH = """
import sys
from pathlib import Path
from scenes import shard_for
from headrace.errors import HeadraceError
from headrace.fetch.cache import ShardCache
root = Path(sys.argv[1])
try:
    ShardCache(root).acquire(shard_for("a", root)).release(keep=True)
except HeadraceError as error:
    print(f"family: {type(error).__name__}: {error}")
    sys.exit(3)
"""


@pytest.mark.skipif(not traced.may_trace(), reason="strace is missing, or may not trace here")
@pytest.mark.parametrize("code", ["EIO", "ENOSPC", *(["EDQUOT"] if FULL else [])])
def test_a_disk_that_fails_at_any_call_of_a_fetch_is_an_error_or_does_not_matter(tmp_path: Path, code: str) -> None:
    """No partial file is left, and a plain rerun works."""
    (tmp_path / "reference").mkdir()
    found = traced.points(FETCH, CALLS, tmp_path / "reference", tmp_path / "trace")
    tried = [point for point in found if point[0] != "unlink"]
    assert len(tried) >= 12

    def attempt(point: tuple[str, int]) -> int:
        folder = tmp_path / f"{point[0]}-{point[1]}"
        folder.mkdir()
        inject = f"inject={point[0]}:error={code}:when={point[1]}"
        done = traced.run(FETCH, CALLS, "-o", os.devnull, "-e", inject, argument=str(folder))
        assert done.returncode in (0, 3), f"{point}: {done.stdout}{done.stderr}"
        assert [path.name for path in folder.rglob("*.part")] == [], point
        again = traced.run(FETCH, CALLS, "-o", os.devnull, argument=str(folder))
        assert again.returncode == 0, f"{point}: {again.stdout}{again.stderr}"
        assert (folder / "hf_shards/me/rows/train/a").read_bytes() == BODIES["a"]
        return done.returncode

    with ThreadPoolExecutor(3) as pool:
        assert 3 in list(pool.map(attempt, tried))


# --- limits


@pytest.fixture
def repo(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> list[int]:
    """The sizes of its shards."""
    write_parquet(tmp_path / "repo", [[30, 30], [80], [20, 20, 20], [50]])
    hub.push("me/rows", tmp_path / "repo")
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    return [path.stat().st_size for path in sorted((tmp_path / "repo").iterdir())]


@pytest.mark.parametrize("cleanup", ["auto", "keep"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_limit_of_one_shard_is_enough(
    repo: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cleanup: str, shuffle: bool
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", str(max(repo)))
    monkeypatch.setenv("HF_SHARD_CACHE_CLEANUP", cleanup)
    for epoch in range(2):
        with rows("hf:me/rows", cache_dir=tmp_path / "data", shuffle=shuffle, epoch=epoch) as stage:
            assert len({row.data["uid"] for row in stage}) == 250


def test_a_limit_below_one_shard_is_an_error_before_anything_is_fetched(
    hub: LocalHub, repo: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", str(max(repo) - 1))
    with (
        pytest.raises(NoSpace, match=rf"needs {max(repo):,} bytes.*limit is {max(repo) - 1:,} bytes.*HEADRACE_CACHE_B"),
        rows("hf:me/rows", cache_dir=tmp_path / "data") as stage,
    ):
        next(stage)
    assert [request for request in hub.requests if request.range is None and "train-" in request.path] == []


# --- a small disk


@pytest.fixture
def small_disk() -> str:
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    return 'mount -t tmpfs -o size={size},mode=0700 tmpfs {at} && exec "$@"'


READING = """
import hashlib
from headrace.errors import NoSpace
cache = ShardCache(root)
held = cache.acquire(shards[0])
ballast = open(root / "ballast", "wb", buffering=0)
try:
    while ballast.write(bytes(4096)): pass
except OSError: pass
try:
    cache.acquire(shards[1])
    print("no error")
except NoSpace as error:
    print("NoSpace", "free" in str(error), "HEADRACE_CACHE_BYTES" in str(error))
print(hashlib.sha256(held.path.read_bytes()).hexdigest() == shards[0].etag)
print(ShardCache(root).acquire(shards[0]).path == held.path)
ballast.truncate(0)
print(hashlib.sha256(cache.acquire(shards[1]).path.read_bytes()).hexdigest() == shards[1].etag)
"""


def test_on_a_full_disk_what_is_there_is_read_on_and_the_rest_comes_when_there_is_room(
    hub: LocalHub, tmp_path: Path, small_disk: str
) -> None:
    shards = shards_on(hub, {f"{i}.parquet": noise(N, i) for i in range(2)})
    (tmp_path / "disk").mkdir()
    script = small_disk.format(size=4 * N, at=tmp_path / "disk")
    said = finish(start(READING, tmp_path / "disk", shards, "unshare", "-Urm", "sh", "-c", script, "-"), 60)
    assert said.splitlines() == ["NoSpace True True", "True", "True", "True"]


def test_a_whole_run_survives_a_disk_that_fills_up_and_empties_again(
    hub: LocalHub, tmp_path: Path, small_disk: str
) -> None:
    """The trainer's own loop tries again; no row is lost or comes twice."""
    # One shard is larger than all that the reader leaves behind it, so it cannot come before the disk is emptied.
    write_parquet(tmp_path / "repo", [*[[50]] * 3, [400], *[[50]] * 3])
    hub.push("me/rows", tmp_path / "repo")
    largest = max(path.stat().st_size for path in (tmp_path / "repo").iterdir())
    code = f"""
import sys, time, threading
from pathlib import Path
import headrace
from headrace.errors import NoSpace
root = Path({str(tmp_path / "disk")!r})
stage = headrace.rows("hf:me/rows", cache_dir=root / "data")
uids, refused = [], 0
while True:
    if len(uids) == 60 and not refused:
        with open(root / "ballast", "wb", buffering=0) as ballast:
            try:
                while ballast.write(bytes(1024)): pass
            except OSError: pass
    try:
        uids.append(next(stage).data["uid"])
    except StopIteration:
        break
    except NoSpace:
        refused += 1
        (root / "ballast").unlink(missing_ok=True)
print(len(uids), len(set(uids)), refused > 0)
"""
    (tmp_path / "disk").mkdir()
    script = small_disk.format(size=10 * largest, at=tmp_path / "disk")
    command = ["unshare", "-Urm", "sh", "-c", script, "-", sys.executable, "-c", code]
    done = subprocess.run(
        command, env={**os.environ, **hub.env()}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "700 700 True\n", done.stderr
