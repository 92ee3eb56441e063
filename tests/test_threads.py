"""Threads that read side by side: their waits end with whoever asked for them, and show that they go on."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from fetching import noise, shard_on, wait_until

import headrace
from headrace.catalog import retry
from headrace.catalog.retry import Retry
from headrace.catalog.stop import Stop, Stopped, current, pause, stopped_by
from headrace.catalog.threads import Threads
from headrace.testing import LocalHub, write_parquet
from headrace.testing.hub import StallAfter, Status

LONG = 40.0
"""Seconds."""


class Waits:
    """Jobs that wait for longer than any test, of which the first has begun."""

    def __init__(self) -> None:
        self._begun = threading.Event()

    def __call__(self) -> None:
        self._begun.set()
        pause(LONG)

    def have_begun(self) -> None:
        assert self._begun.wait(20)


def test_an_interrupt_ends_the_waits_and_begins_nothing_more() -> None:
    waits, began = Waits(), time.monotonic()
    every: list[Future[None]] = []

    def interrupted() -> None:
        with Threads(2, "test") as threads:
            every.extend(threads.submit(waits) for _ in range(5))
            waits.have_begun()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 30
    assert [one.cancelled() for one in every][2:] == [True] * 3
    with pytest.raises(Stopped):
        every[0].result()


def test_an_interrupt_ends_a_read_that_waits_for_bytes(hub: LocalHub) -> None:
    shard = shard_on(hub, noise(100_000), stall_seconds=LONG)
    fault, began = hub.fault("*/resolve/*", StallAfter(1000)), time.monotonic()

    def interrupted() -> None:
        with Threads(1, "test") as threads:
            threads.submit(shard.origin.read, shard, 0, 50_000)
            wait_until(lambda: fault.hits, 20)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 30


def test_what_ends_the_one_that_asks_ends_its_threads_too() -> None:
    waits, stop = Waits(), Stop()

    def ask() -> None:
        waits.have_begun()
        stop.set()

    other = threading.Thread(target=ask)
    other.start()
    began = time.monotonic()
    with stopped_by(stop), Threads(2, "test") as threads:
        every = [threads.submit(waits) for _ in range(5)]
        for found in every:
            with pytest.raises(Stopped):
                found.result()
    other.join()
    assert time.monotonic() - began < 30


def test_an_error_of_a_part_does_not_end_the_whole() -> None:
    stop = Stop()
    with stopped_by(stop):
        with pytest.raises(ValueError, match="this one"), Threads(2, "test"):
            raise ValueError("this one")
        assert not stop.is_set()
        assert current() is stop
        with Threads(2, "test") as threads:
            assert threads.submit(lambda: 7).result() == 7
    assert stop._parts == set()


def test_threads_give_their_signs_of_life_to_the_one_that_asks() -> None:
    heard, stop = threading.Event(), Stop()
    with stopped_by(stop, on_beat=heard.set), Threads(2, "test") as threads:
        before = stop.pulse
        threads.submit(pause, 0.01).result()
    assert stop.pulse > before
    assert heard.is_set()


def test_who_waits_for_footers_in_an_outage_shows_life_to_the_others(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "RETRY", Retry(cap=1.0))
    for name, value in hub.env().items():
        monkeypatch.setenv(name, value)
    write_parquet(tmp_path / "repo" / "data", [[5]] * 3)
    hub.push("org/corpus", tmp_path / "repo")
    fault = hub.fault("*.parquet", Status(503))
    rows: list[object] = []

    def read() -> None:
        with headrace.rows("hf:org/corpus", cache_dir=tmp_path / "data") as stage:
            rows.extend(stage)

    reader = threading.Thread(target=read)
    reader.start()
    times: set[int] = set()

    def seen() -> int:
        for lock in (tmp_path / "data" / "hf_index").glob("**/*~*.lock"):
            times.add(lock.stat().st_mtime_ns)
        return len(times)

    try:
        wait_until(lambda: seen() > 4, 20)
    finally:
        fault.remove()
        reader.join()
    assert len(rows) == 15
