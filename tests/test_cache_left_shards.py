"""What killed and closed processes leave in the cache goes, but for what their last saved state needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.catalog.stop import pause
from headrace.fetch import needs
from headrace.fetch.cache import ShardCache
from headrace.files import REAL, process_tag, put_json
from headrace.testing import LocalHub, write_parquet

SHARDS, ROWS = 60, 20

pytestmark = pytest.mark.usefixtures("quick")

RESTARTS = """
import json, os, signal, sys, time
from pathlib import Path
import headrace
from headrace.fetch.cache import ShardCache
from headrace.serve import loader, worker
import pyarrow.parquet
how, cache, end = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
restarts, steps, workers = map(int, sys.argv[4:])
ended, sweep = [], ShardCache.sweep
def swept(cache, *, passed):
    sweep(cache, passed=passed)
    if passed:
        ended.append(True)
ShardCache.sweep = swept
def opened():
    if how == "loader":
        recipe = headrace.Recipe.of("hf:me/rows", order=headrace.Order(seed=3, pool_chunks=4), batch_size=5)
        return headrace.load(recipe, cache_dir=cache, lanes=2, num_workers=workers)
    return headrace.rows("hf:me/rows", shuffle=how == "shuffled", seed=3, pool_size=4, cache_dir=cache)
def read(given, pipe):
    stage = opened()
    if given is not None:
        stage.load_state_dict(given)
    items, uids = iter(stage), []
    for _ in range(steps):
        item = next(items)
        uids += item["uid"] if how == "loader" else [item.data["uid"]]
    state = stage.state_dict()
    deadline = time.monotonic() + 20
    while how != "loader" and time.monotonic() < deadline and not ended:
        time.sleep(0.01)  # what others left is removed in the background, once something was fetched
    on_disk = len(list((cache / "hf_shards" / "me").rglob("*.parquet")))
    os.write(pipe, json.dumps([uids, state, on_disk]).encode())
    os.close(pipe)
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    stage.close()
    os._exit(0)
state = None
for _ in range(restarts):
    ours, theirs = os.pipe()
    if not os.fork():
        read(state, theirs)
    os.close(theirs)
    with os.fdopen(ours) as file:
        uids, state, on_disk = json.load(file)
    os.wait()
    left = len(list((cache / "hf_shards" / "me").rglob("*.parquet")))
    print(json.dumps([uids, state, on_disk, left]), flush=True)
"""


@pytest.fixture
def rows_repo(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    write_parquet(tmp_path / "repo", [[ROWS // 2, ROWS // 2]] * SHARDS)
    hub.push("me/rows", tmp_path / "repo")
    for name, value in hub.env().items():
        monkeypatch.setenv(name, value)
    return hub


def restarted(how: str, cache: Path, end: str, restarts: int, steps: int, workers: int = 0) -> list[Any]:
    """Per restart: the rows, the state, the shards on disk just before the end, and after it."""
    command = [sys.executable, "-c", RESTARTS, how, str(cache), end, str(restarts), str(steps), str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def whole(cache: Path) -> set[str]:
    return {path.name for path in (cache / "hf_shards" / "me").rglob("*.parquet")}


def notes(cache: Path) -> list[Path]:
    return sorted((cache / "hf_shards" / ".needs").glob("*"))


MOST = {"ordered": 4, "shuffled": 12}
"""Shards on disk: those being read and the next, those of the last state, and those of the process that just ended."""


@pytest.mark.parametrize("end", ["kill", "close"])
@pytest.mark.parametrize("how", ["ordered", "shuffled"])
def test_restarts_pile_up_no_shards(rows_repo: LocalHub, tmp_path: Path, how: str, end: str) -> None:
    found = restarted(how, tmp_path / "data", end, 14, 50)
    assert max(left for *_, left in found) <= MOST[how], [left for *_, left in found]
    uids = [uid for one, *_ in found for uid in one]
    assert len(set(uids)) == len(uids) == 14 * 50
    assert len(notes(tmp_path / "data")) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_restarts_of_a_loader_pile_up_no_shards(rows_repo: LocalHub, tmp_path: Path, workers: int) -> None:
    found = restarted("loader", tmp_path / "data", "kill", 12, 12, workers)
    assert max(left for *_, left in found) <= 2 * 2 * 7, [left for *_, left in found]
    uids = [uid for one, *_ in found for uid in one]
    assert len(set(uids)) == len(uids) == 12 * 12 * 5
    saved = [path for path in notes(tmp_path / "data") if json.loads(path.read_text())["saved"]]
    assert len(saved) == 1


class Restarted:
    """Ends its processes without ending this one: what was noted before counts as noted by a process that is dead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch, self._before = monkeypatch, process_tag()
        self._dead = subprocess.Popen([sys.executable, "-c", ""])
        self._dead.wait()

    def kill(self, cache: Path) -> None:
        host, _, start = self._before.split(".")
        for path in notes(cache):
            name = path.name.partition(".")[0]
            path.rename(path.with_name(f"{name}.{host}.{self._dead.pid}.{int(start) + 1}"))
        needs._NOTED.clear()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Restarted:
    return Restarted(monkeypatch)


def fetched(hub: LocalHub) -> set[str]:
    """The shards that were asked for whole."""
    asked = [request.path for request in hub.requests if request.range is None and "/resolve/" in request.path]
    return {path.rpartition("/")[2] for path in asked if path.endswith(".parquet")}


def sweep(cache: Path, **options: Any) -> None:
    ShardCache(cache, **options).sweep()


def stage_of(kind: str, cache: Path, seed: int = 3) -> Any:
    if kind == "rows":
        return headrace.rows("hf:me/rows", shuffle=True, seed=seed, pool_size=4, cache_dir=cache)
    order = headrace.Order(seed=seed, pool_chunks=4)
    return headrace.load(headrace.Recipe.of("hf:me/rows", order=order, batch_size=5), cache_dir=cache, lanes=2)


@pytest.mark.parametrize("kind", ["rows", "loader"])
def test_what_the_last_state_of_a_killed_run_needs_survives_the_sweep_of_another_run(
    rows_repo: LocalHub, tmp_path: Path, processes: Restarted, kind: str
) -> None:
    cache = tmp_path / "data"
    stage = stage_of(kind, cache)
    items = iter(stage)
    for _ in range(60):
        next(items)
    state = stage.state_dict()
    stage.close()
    processes.kill(cache)
    with stage_of(kind, cache, seed=4) as other:
        next(iter(other))
    processes.kill(cache)
    sweep(cache)
    kept = whole(cache)
    assert kept
    rows_repo.clear_log()
    again = stage_of(kind, cache)
    again.load_state_dict(state)
    items = iter(again)
    for _ in range(8 if kind == "rows" else 4):
        next(items)
    again.close()
    assert fetched(rows_repo).isdisjoint(kept)
    assert len(fetched(rows_repo)) <= 6


@pytest.mark.parametrize("kind", ["rows", "loader"])
def test_a_state_of_the_next_process_takes_the_place_of_the_one_before(
    rows_repo: LocalHub, tmp_path: Path, processes: Restarted, kind: str
) -> None:
    cache, state = tmp_path / "data", None
    for _ in range(3):
        with stage_of(kind, cache) as stage:
            if state is not None:
                stage.load_state_dict(state)
            items = iter(stage)
            for _ in range(60):
                next(items)
            state = stage.state_dict()
        assert len(notes(cache)) == 1
        processes.kill(cache)
    needs_now = needs.needed(cache / "hf_shards" / ".needs", REAL)
    assert 1 <= len(needs_now) <= 16


def test_a_run_that_is_at_its_end_needs_nothing(rows_repo: LocalHub, tmp_path: Path) -> None:
    with headrace.rows("hf:me/rows", cache_dir=tmp_path) as stage:
        next(stage)
        stage.state_dict()
        assert len(notes(tmp_path)) == 1
        assert sum(1 for _ in stage) == SHARDS * ROWS - 1
        stage.state_dict()
    sweep(tmp_path)
    assert notes(tmp_path) == []
    assert whole(tmp_path) == set()


def test_readers_that_are_closed_one_after_the_other_in_one_process_pile_up_nothing(
    rows_repo: LocalHub, tmp_path: Path
) -> None:
    for seed in range(12):
        with headrace.rows("hf:me/rows", shuffle=True, seed=seed, pool_size=4, cache_dir=tmp_path) as stage:
            for _ in range(50):
                next(stage)
    sweep(tmp_path)
    assert whole(tmp_path) == set()
    assert notes(tmp_path) == []


def test_where_readers_began_counts_while_their_process_lives(
    rows_repo: LocalHub, tmp_path: Path, processes: Restarted
) -> None:
    """A lane opens its files when its turn comes; until then it has no lease on what another process left for it."""
    with headrace.rows("hf:me/rows", cache_dir=tmp_path) as stage:
        next(stage)
    left = whole(tmp_path)
    assert left
    with headrace.rows("hf:me/rows", cache_dir=tmp_path) as stage:
        sweep(tmp_path)
        assert "train-00000-of-00060.parquet" in whole(tmp_path)
        processes.kill(tmp_path)
        sweep(tmp_path)
        assert whole(tmp_path) == set()


def test_shards_that_were_to_be_kept_are_kept(
    rows_repo: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they were fetched so, or only found so."""
    with headrace.rows("hf:me/rows", cache_dir=tmp_path) as stage:
        next(stage)
    monkeypatch.setenv("HF_SHARD_CACHE_CLEANUP", "keep")
    with headrace.rows("hf:me/rows", cache_dir=tmp_path) as stage:
        for _ in range(5 * ROWS):
            next(stage)
    monkeypatch.delenv("HF_SHARD_CACHE_CLEANUP")
    kept = sorted(whole(tmp_path))[:5]
    assert kept == [f"train-{i:05d}-of-{SHARDS:05d}.parquet" for i in range(5)]
    sweep(tmp_path)
    assert sorted(whole(tmp_path))[:5] == kept
    with headrace.rows("hf:me/rows", cache_dir=tmp_path, lane=1, lanes=2) as stage:
        next(stage)
    sweep(tmp_path)
    assert sorted(whole(tmp_path))[:5] == kept


def test_who_has_fetched_nothing_removes_nothing(
    rows_repo: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing came on top, and it may be that nobody can be asked for what would be removed."""
    for how in ("ordered", "shuffled"):
        restarted(how, tmp_path, "kill", 1, 2)
    left = whole(tmp_path)
    shutil.rmtree(tmp_path / "hf_shards" / ".needs")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for how in ("shuffled", "ordered"):
        restarted(how, tmp_path, "close", 1, 2)
        assert whole(tmp_path) >= left  # what was left in parts may have become whole
    monkeypatch.delenv("HF_HUB_OFFLINE")
    shutil.rmtree(tmp_path / "hf_shards" / ".needs")
    restarted("ordered", tmp_path, "close", 1, 3 * ROWS)
    assert not left & whole(tmp_path)


def test_who_is_closed_while_it_removes_what_others_left_removes_all_of_it(
    rows_repo: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarted("ordered", tmp_path, "kill", 1, 2)
    left = whole(tmp_path)
    shutil.rmtree(tmp_path / "hf_shards" / ".needs")
    begun, remove_passed = threading.Event(), ShardCache._remove_passed

    def until_stopped(cache: ShardCache) -> None:
        """The background thread is in the middle of it when it is told to end."""
        if threading.current_thread() is threading.main_thread():
            return remove_passed(cache)
        begun.set()
        while True:
            pause(0.01)

    monkeypatch.setattr(ShardCache, "_remove_passed", until_stopped)
    with headrace.rows("hf:me/rows", cache_dir=tmp_path, lane=1, lanes=2) as stage:
        next(stage)
        assert begun.wait(60)
        assert left <= whole(tmp_path)
    assert not left & whole(tmp_path)


def test_under_a_limit_what_is_left_stays_within_it(rows_repo: LocalHub, tmp_path: Path) -> None:
    with headrace.rows("hf:me/rows", cache_dir=tmp_path) as stage:
        next(stage)
    left = whole(tmp_path)
    sweep(tmp_path, limit=10**9)
    assert whole(tmp_path) == left
    sweep(tmp_path, limit=1)
    assert whole(tmp_path) == set()


def test_a_state_at_every_step_writes_only_what_changed(
    rows_repo: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []

    def put(path: Path, value: Any, files: Any) -> None:
        written.append(path)
        put_json(path, value, files)

    monkeypatch.setattr(needs, "put_json", put)
    with stage_of("loader", tmp_path) as loader:
        for _, _ in zip(range(60), loader, strict=False):
            loader.state_dict()
        shards = 60 * 5 / ROWS
        assert len(written) <= 3 * shards
        loader.state_dict()
        before = len(written)
        for _ in range(10):
            loader.state_dict()
        assert len(written) == before


class TestBounds:
    def noted(self, tmp_path: Path, count: int, age: float = 0.0) -> Path:
        folder = tmp_path / "hf_shards" / ".needs"
        for number in range(count):
            ShardCache(tmp_path).need(f"run {number}").save({f"mark-{number}"})
        Restarted(pytest.MonkeyPatch()).kill(tmp_path)
        for path in folder.iterdir():
            number = int(json.loads(path.read_text())["saved"][0].partition("-")[2])
            os.utime(path, (time.time() - age - 100 + number,) * 2)
        return folder

    def test_no_more_than_so_many_ended_runs_are_remembered(self, tmp_path: Path) -> None:
        folder = self.noted(tmp_path, needs.KEPT + 5)
        assert needs.needed(folder, REAL) == {f"mark-{n}" for n in range(5, needs.KEPT + 5)}
        assert len(list(folder.iterdir())) == needs.KEPT

    def test_an_ended_run_is_forgotten_after_a_while(self, tmp_path: Path) -> None:
        folder = self.noted(tmp_path, 2, needs.KEPT_SECONDS)
        assert needs.needed(folder, REAL) == set()
        assert list(folder.iterdir()) == []

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 9}', '{"format": 1, "saved": 3, "begun": []}'])
    def test_what_a_power_cut_tore_says_nothing(self, tmp_path: Path, text: str) -> None:
        folder = self.noted(tmp_path, 1)
        next(folder.iterdir()).write_text(text)
        assert needs.needed(folder, REAL) == set()
        assert list(folder.iterdir()) == []

    def test_a_disk_that_takes_nothing_stops_no_state(self, tmp_path: Path) -> None:
        (tmp_path / "hf_shards").write_text("")
        ShardCache(tmp_path).need("run").save({"mark"})
        assert (tmp_path / "hf_shards").read_text() == ""
