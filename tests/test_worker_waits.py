"""A worker that waits for a server is not taken for one that hangs, nor the other way round."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fetching import wait_until
from serving import is_alive, loader_of, seen, write_rows

import headrace
from headrace.catalog import stop
from headrace.errors import WorkerError
from headrace.fetch.block import RowBlock
from headrace.make.prepare import AsRows
from headrace.serve.pulse import Pulse
from headrace.testing import LocalHub, write_parquet
from headrace.testing.hub import Status
from headrace.testing.hub.faults import Exchange

pytestmark = pytest.mark.timed

SHARDS = "*/resolve/*.parquet"


@pytest.fixture
def repo(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    write_parquet(tmp_path / "repo" / "data", [[20]] * 4)
    hub.push("org/corpus", tmp_path / "repo")
    for name, value in hub.env().items():
        monkeypatch.setenv(name, value)
    return hub


@dataclass(frozen=True)
class Later(Status):
    """Asks whoever wants a whole file, as workers do, to come back later. Indices are made from ranges."""

    def acts_on(self, exchange: Exchange) -> bool:
        return "range" not in exchange.headers


def test_a_pause_that_the_server_asks_for_may_be_longer_than_the_workers_limit(
    repo: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_WORKER_SECONDS", "3")
    fault = repo.fault(SHARDS, Later(503, {"retry-after": "7"}), times=1)
    with headrace.load("hf:org/corpus", batch_size=5, cache_dir=tmp_path / "data", num_workers=2) as loader:
        found = [uid for batch in loader for uid in batch["uid"]]
    assert fault.hits == 1
    assert len(found) == len(set(found)) == 80


@pytest.mark.parametrize("waiting", [False, True])
def test_a_worker_that_is_stuck_is_given_up_in_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: bool
) -> None:
    """Also one that waited before; the time counts from its last sign of life."""
    monkeypatch.setenv("HEADRACE_WORKER_SECONDS", "1.5")
    flag, real = tmp_path / "flag", AsRows.__call__

    def prepare(self: Any, block: RowBlock) -> Any:
        if not flag.exists() and block.addresses[0].shard.endswith("00002-of-00004.parquet"):
            flag.touch()
            if waiting:
                stop.pause(3)
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        return real(self, block)

    pattern = write_rows(tmp_path / "corpus")
    wanted = [seen(batch) for batch in loader_of("rows", pattern)]
    monkeypatch.setattr(AsRows, "__call__", prepare)
    flag.unlink(missing_ok=True)
    with loader_of("rows", pattern, num_workers=2) as loader:
        batches, found = iter(loader), []
        with pytest.raises(WorkerError, match="has given nothing for 1.5 s, not even a sign that it waits"):
            found += [seen(batch) for batch in batches]
        again = loader.state_dict()
    with loader_of("rows", pattern) as loader:
        loader.load_state_dict(again)
        assert [seen(batch) for batch in loader] == wanted[again["m"] :]


def _beat(pulse: Pulse) -> None:
    stop.listen(pulse.beat)
    stop.pause(0)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pulse_is_heard_however_the_worker_is_started(method: str) -> None:
    began, pulse = time.monotonic(), Pulse.for_method(method)
    assert pulse.last() == 0
    process = multiprocessing.get_context(method).Process(target=_beat, args=(pulse,))  # type: ignore[attr-defined]
    process.start()
    process.join()
    assert process.exitcode == 0
    assert began <= pulse.last() <= time.monotonic()
    pulse.close()
    pulse.close()
    assert pulse.last() == 0


def test_a_thread_that_waits_for_others_gives_no_sign_of_life_in_their_place() -> None:
    beats: list[int] = []
    stop.listen(lambda: beats.append(1))
    try:
        stop.look()
        assert beats == []
        stop.beat()
        assert beats == [1]
    finally:
        stop._LISTENERS.pop()


TORCH = """
import os, sys
import headrace
from torch.utils.data import DataLoader, IterableDataset

class Rows(IterableDataset):
    def __iter__(self):
        print(os.getpid(), flush=True)
        with headrace.rows("hf:org/corpus", cache_dir=sys.argv[1]) as rows:
            yield from (row.data["uid"] for row in rows)

if __name__ == "__main__":
    print(len(list(DataLoader(Rows(), batch_size=None, num_workers=1))), flush=True)
"""


def test_a_plain_torch_worker_waits_for_a_server(repo: LocalHub, tmp_path: Path) -> None:
    repo.fault(SHARDS, Status(503, {"retry-after": "2"}), times=1)
    command = [sys.executable, "-c", TORCH, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.split()[1:] == ["80"], done.stderr[-3000:]


def test_a_plain_torch_worker_that_waits_ends_with_its_trainer(repo: LocalHub, tmp_path: Path) -> None:
    fault = repo.fault(SHARDS, Status(503))
    command = [sys.executable, "-c", TORCH, str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        worker = int(trainer.stdout.readline())
        wait_until(lambda: fault.hits > 0, 100)
        trainer.kill()
        trainer.wait()
        try:
            wait_until(lambda: not is_alive(worker), 100)  # the wait itself would take 600 s
        finally:
            if is_alive(worker):
                os.kill(worker, signal.SIGKILL)
