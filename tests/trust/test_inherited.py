"""What a forked process inherits, clocks that jump, and workers of very different speed."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fetching import leftovers, noise, shard_on
from media_files import clip, encoded, photo, sound, tone
from serving import NUM_ROWS, UIDS, loader_of, seen, uids_in, write_rows

import headrace
from headrace.catalog import stop
from headrace.errors import WorkerError
from headrace.fetch.block import RowBlock
from headrace.fetch.cache import ShardCache
from headrace.fetch.media.audio import decode_audio
from headrace.fetch.media.images import decode_image
from headrace.fetch.media.video import decode_video
from headrace.files import host_tag
from headrace.make.prepare import AsRows
from headrace.serve import worker
from headrace.serve.pulse import Pulse
from headrace.serve.wire import Wire
from headrace.testing import LocalHub, write_jsonl, write_parquet, write_txt

pytestmark = pytest.mark.timed

FORK: Any = get_context("fork")


def in_children_and_here(work: Callable[[], str], children: int = 2) -> list[str]:
    """What `work` gives in forked processes and in this one, all at the same time."""
    started, answers = FORK.Barrier(children + 1), FORK.Queue()

    def child() -> None:
        started.wait(30)
        answers.put(work())

    processes = [FORK.Process(target=child) for _ in range(children)]
    for process in processes:
        process.start()
    started.wait(30)
    here = work()
    found = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    return [here, *found]


# --- handles that were open before a fork


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "txt", "jsonl.gz"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_opened_before_a_fork_are_read_on_by_parent_and_children_alike(
    tmp_path: Path, kind: str, shuffle: bool
) -> None:
    if kind == "parquet":
        write_parquet(tmp_path / "in", [[200, 150], [100, 77]])
    elif kind == "txt":
        write_txt(tmp_path / "in", [300, 227])
    else:
        for path in write_jsonl(tmp_path / "in", [300, 227]):
            if kind.endswith("gz"):
                import gzip

                path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
                path.unlink()
    spec = f"{kind.partition('.')[0]}:{tmp_path}/in/*.{kind}"
    with headrace.rows(spec, shuffle=shuffle, cache_dir=tmp_path / "data") as stage:
        whole = [repr(row) for row in stage]
    with headrace.rows(spec, shuffle=shuffle, cache_dir=tmp_path / "data") as stage:
        first = [repr(next(stage)) for _ in range(130)]
        rests = in_children_and_here(lambda: json.dumps([repr(row) for row in stage]))
        for rest in rests:
            assert first + json.loads(rest) == whole


def test_decoders_used_before_a_fork_give_the_same_pixels_and_samples_after_it() -> None:
    video, picture, wave = clip(list(range(12))), encoded(photo(), "JPEG"), sound(tone(), 16_000, "FLAC")

    def decoded() -> str:
        digest = hashlib.sha256()
        for _ in range(6):
            digest.update(decode_video(video, 5, 16).tobytes())
            digest.update(decode_image(picture).tobytes())
            digest.update(decode_audio(wave, 8_000).tobytes())
        return digest.hexdigest()

    before = decoded()
    assert in_children_and_here(decoded) == [before] * 3


# --- clocks


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_that_jumps_by_an_hour_ends_no_lease_and_holds_nobody_up(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """In both directions, with leases and files of another machine that come from the future or the past."""
    body = noise(30_000)
    shard = shard_on(hub, body)
    cache = ShardCache(tmp_path)
    lease = cache.acquire(shard)
    assert lease.file is not None
    elsewhere = lease.file.with_name(lease.file.name.replace(host_tag(), "0" * 10))
    elsewhere.touch()
    real = time.time
    os.utime(elsewhere, (real() - jump, real() - jump))
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    began = time.monotonic()
    other = ShardCache(tmp_path)
    other._evict(1 << 40)
    other.sweep()
    assert lease.path.read_bytes() == body
    lease.release()
    assert lease.path.read_bytes() == body, "the other machine still reads it"
    elsewhere.unlink()
    with other.acquire(shard) as again:
        assert again.path.read_bytes() == body
    assert time.monotonic() - began < 5
    assert leftovers(tmp_path) == []


def test_a_download_keeps_its_deadline_when_the_clock_jumps(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.testing.hub import Drip

    body = noise(40_000)
    shard = shard_on(hub, body, stall_seconds=1.0)
    hub.fault("*/resolve/*", Drip(len(body) / 0.6))
    real, calls = time.time, [0]

    def jumping() -> float:
        calls[0] += 1
        return real() + (7200.0 if calls[0] % 2 else -7200.0)

    monkeypatch.setattr(time, "time", jumping)
    with ShardCache(tmp_path).acquire(shard) as lease:
        assert lease.path.read_bytes() == body
    assert len(hub.requests) == 1


class Clock:
    """In the place of the module `time`: sleeping takes no time, and the wall clock is set anew after each sleep."""

    def __init__(self, jump: float) -> None:
        self.slept, self._jump, self._wall = 0.0, jump, 1.7e9

    def monotonic(self) -> float:
        return 1000.0 + self.slept

    def time(self) -> float:
        return self._wall + self.slept

    def sleep(self, seconds: float) -> None:
        assert self.slept < 60, "it sleeps on and on"
        self.slept += seconds
        self._wall += self._jump


class StoppedClock(stop.Stop):
    """A `Stop` that waits by such a clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, seconds: float) -> bool:
        self._clock.sleep(seconds)
        return self.is_set()


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
@pytest.mark.parametrize("owned", [False, True])
def test_a_pause_is_as_long_as_it_was_asked_for_when_the_clock_jumps(
    monkeypatch: pytest.MonkeyPatch, jump: float, owned: bool
) -> None:
    clock = Clock(jump)
    monkeypatch.setattr(stop, "time", clock)
    with stop.stopped_by(StoppedClock(clock) if owned else None):
        stop.pause(3.0)
    assert clock.slept == pytest.approx(3.0)


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_worker_is_waited_for_as_long_when_the_clock_jumps(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """It gives nothing, and the trainer wakes up now and then without a reason."""
    clock = Clock(jump)
    monkeypatch.setattr(worker, "time", clock)
    monkeypatch.setattr(worker, "wait", lambda _, timeout: clock.sleep(min(timeout, 0.5)))
    silent = worker.Worker.__new__(worker.Worker)
    silent.number, silent.pid, silent._job, silent._last = 0, 0, 0, None
    silent._wire, theirs = Wire.pair()
    silent._pulse = Pulse()
    silent._process = SimpleNamespace(sentinel=theirs.fileno())
    with pytest.raises(WorkerError, match="has given nothing for 3 s"):
        silent.take(0, 3.0)
    assert clock.slept == pytest.approx(3.0)


# --- a worker that is fifty times slower


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_end_and_are_whole_where_one_worker_is_fifty_times_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, persistent: bool
) -> None:
    pattern = write_rows(tmp_path)
    wanted = loader_of("rows", pattern, lanes=6)
    whole = [[seen(batch) for batch in wanted] for _ in range(3)]
    real, flag = AsRows.__call__, tmp_path / "slow"

    def slow(self: AsRows, block: RowBlock) -> Any:
        try:
            flag.touch(exist_ok=False)
            flag.write_text(str(os.getpid()))
        except FileExistsError:
            pass
        time.sleep(0.05 if flag.read_text() == str(os.getpid()) else 0.001)
        return real(self, block)

    monkeypatch.setattr(AsRows, "__call__", slow)
    with loader_of("rows", pattern, lanes=6, num_workers=3, persistent_workers=persistent) as loader:
        for epoch in range(3):
            batches = list(loader)
            assert sorted(uids_in(batches)) == UIDS
            assert [seen(batch) for batch in batches] == whole[epoch]
    assert len(UIDS) == NUM_ROWS
