"""T20: every way to start workers, in a process that has used the library before, or uses it right now, or has not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import LocalHub, write_parquet
from headrace.testing.hub import Drip

GROUPS = [[20, 15], [30], [10, 25]]
UIDS = sorted(f"train-{i:05d}-of-00003.parquet:{row}" for i, sizes in enumerate(GROUPS) for row in range(sum(sizes)))

TRAINER = """
import json, multiprocessing, shutil, sys, headrace

def read(cache, method=None, workers=0):
    with headrace.load("hf:me/rows", cache_dir=cache, batch_size=5, lanes=4, num_workers=workers,
                       start_method=method) as loader:
        return [batch["uid"] for batch in loader]

def read_there(cache, queue):
    queue.put(read(cache))

def in_a_child(cache, method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=read_there, args=(cache, queue))
    child.start()
    found = queue.get(timeout=60)
    child.join(20)
    assert child.exitcode == 0, child.exitcode
    return found

def main():
    cache, method = sys.argv[1:]
    found = {}
    for before in ("unused", "used", "running"):
        for workers in (0, 2):
            stage = headrace.rows("hf:me/rows", cache_dir=cache) if before != "unused" else None
            if before == "used":
                next(stage)
                stage.close()
            shutil.rmtree(cache, ignore_errors=True)  # everything is fetched anew
            if before == "running":
                next(stage)
            given = read(cache, method, workers) if workers else in_a_child(cache, method)
            found[f"{before}, {workers or 'a child'}"] = given
            if before == "running":
                assert len(list(stage)) == 99
    print(json.dumps(found))

if __name__ == "__main__":
    main()
"""


def read_by(method: str, hub: LocalHub, tmp_path: Path, short_folder: Path) -> dict[str, list[list[str]]]:
    (tmp_path / "trainer.py").write_text(TRAINER)
    command = [sys.executable, str(tmp_path / "trainer.py"), str(tmp_path / "data"), method]
    env = {**os.environ, **hub.env(), "TMPDIR": str(short_folder)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[str]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_rows_are_the_same_however_processes_start(
    hub: LocalHub, tmp_path: Path, short_folder: Path, method: str
) -> None:
    """`running`: a thread of the parent is in the middle of a download when the children start."""
    write_parquet(tmp_path / "repo", GROUPS)
    hub.push("me/rows", tmp_path / "repo")
    hub.fault("*train-00001*", Drip(30_000))
    found = read_by(method, hub, tmp_path, short_folder)
    assert len(found) == 6
    assert {how: sorted(uid for batch in given for uid in batch) for how, given in found.items()} == dict.fromkeys(
        found, UIDS
    )
    assert len({json.dumps(given) for given in found.values()}) == 1
