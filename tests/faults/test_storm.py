"""T11: a server that is overrun. All processes of a node hold back together, and ask no more than they must."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.catalog import retry
from headrace.testing import LocalHub, write_parquet
from headrace.testing.hub import Request, Status

pytestmark = pytest.mark.alone

SHARDS = 6
ROWS = 30

READER = """
import sys, headrace
found = [row.data["uid"] for row in headrace.rows("hf:me/rows", cache_dir=sys.argv[1])]
print(len(found), len(set(found)))
"""


def storm(hub: LocalHub, tmp_path: Path, processes: int = 3) -> list[Request]:
    """So many processes read everything through one cache; what was asked of the server."""
    env = {**os.environ, **hub.env()}
    command = [sys.executable, "-c", READER, str(tmp_path / "data")]
    running = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    for process in running:
        out, err = process.communicate(timeout=60)
        assert out.split() == [str(SHARDS * ROWS)] * 2, err
    return sorted(hub.requests, key=lambda request: request.time)


@pytest.fixture
def repo(hub: LocalHub, tmp_path: Path) -> LocalHub:
    write_parquet(tmp_path / "repo", [[ROWS]] * SHARDS)
    hub.push("me/rows", tmp_path / "repo")
    return hub


def test_a_storm_costs_no_more_requests_than_it_refused(repo: LocalHub, tmp_path: Path) -> None:
    calm = storm(repo, tmp_path / "calm")
    repo.clear_log()
    fault = repo.fault("*/resolve/*", Status(503), nth=range(3, 11, 2))
    stormy = storm(repo, tmp_path / "stormy")
    assert fault.hits >= 3
    assert len(stormy) <= len(calm) + fault.hits + 3, "a footer more or less is chance"


def test_forked_processes_that_retry_do_not_come_all_at_once() -> None:
    """Each waits for a time of its own, although their generators were copied: few pairs fall together."""
    context = multiprocessing.get_context("fork")
    with context.Pool(12) as pool:
        rounds = pool.map(_waits, range(12), chunksize=1)
    near = [abs(a - b) < 0.05 for tries in zip(*rounds, strict=True) for a, b in itertools.combinations(tries, 2)]
    assert len(near) == 66 * 40
    assert sum(near) / len(near) < 0.25
    assert len({wait for tries in rounds for wait in tries}) == 12 * 40


def _waits(_: int) -> list[float]:
    return [retry.RETRY.wait(1, None, retry._random()) or 0.0 for _ in range(40)]
