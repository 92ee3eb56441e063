"""No more processes and threads to be had: the error is one of the family and names the limit, not the data."""

from __future__ import annotations

import errno
import gc
import os
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

import headrace
from headrace.catalog import soundness
from headrace.errors import DataError, WorkerError
from headrace.limits import starting
from headrace.testing import write_parquet

ARROW = "Unknown error: Failed to launch worker thread: Resource temporarily unavailable"
LIMIT = r"may have .* \(ulimit -u, RLIMIT_NPROC\).*fewer workers"


@pytest.fixture
def spec(tmp_path: Path) -> str:
    write_parquet(tmp_path / "in", [[10], [10]])
    return f"parquet:{tmp_path}/in/*.parquet"


def test_a_worker_that_cannot_be_forked(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)
    loader = headrace.load(spec, batch_size=2, num_workers=2, start_method="fork", cache_dir=tmp_path / "data")
    with pytest.raises(WorkerError, match=f"worker 0 could not be started .*{LIMIT}"):
        next(iter(loader))
    loader.close()


def test_a_thread_that_reads_footers(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(WorkerError, match=f"threads for reading footers could not be started .*{LIMIT}"):
        headrace.rows(spec, cache_dir=tmp_path / "data")


def test_a_thread_of_pyarrow_is_not_taken_for_a_damaged_file(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*_: Any) -> Exception:
        return OSError(ARROW)

    gc.collect()  # a footer that is still held from another test is not looked at again
    monkeypatch.setattr(soundness, "_begin", begin)
    with pytest.raises(WorkerError, match=f"pyarrow could not be started .*{LIMIT}") as told:
        headrace.rows(spec, cache_dir=tmp_path / "data")
    assert "damaged" not in str(told.value)


@pytest.mark.parametrize("error", [DataError("Failed to launch worker thread"), RuntimeError("other"), OSError(2, "x")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as told, starting("a thread"):
        raise error
    assert told.value is error


def test_a_worker_without_a_thread_to_watch_its_trainer_goes_on(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name == "headrace-watch":
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    with headrace.load(spec, batch_size=2, num_workers=1, start_method="fork", cache_dir=tmp_path / "data") as loader:
        assert sum(len(batch["uid"]) for batch in loader) == 20
