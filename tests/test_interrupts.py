"""Errors and Ctrl-C at any line of the code that draws: nothing is lost, nothing comes twice, and the error is seen."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from headrace import rows
from headrace.catalog import index
from headrace.catalog.footer import GroupRows, footer_bytes, parse_footer, read_footer
from headrace.catalog.local import LocalOrigin
from headrace.catalog.plain import PlainFile
from headrace.catalog.shard import Shard
from headrace.errors import HeadraceError, SpecError, StateError, Unreachable
from headrace.fetch.memory import MemoryBudget, MemoryUse
from headrace.fetch.parquet import ParquetReader
from headrace.fetch.pool import Pool
from headrace.fetch.rows import Rows
from headrace.testing import LocalHub, write_parquet

DRAWING = {"_draw", "_drawn", "_tidy", "draw", "_fill", "_admit", "_look", "_draw_chunks", "_draw_rows", "_opened"}


class Interrupt:
    """KeyboardInterrupt at the nth line of the drawing code, once."""

    def __init__(self, nth: int) -> None:
        self.nth, self.seen, self.fired = nth, 0, False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        in_fetch = code.co_filename.endswith(("headrace/fetch/rows.py", "headrace/fetch/pool.py"))
        return self.line if in_fetch and code.co_name in DRAWING and not self.fired else None

    def line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and not self.fired:
            self.seen += 1
            if self.seen == self.nth:
                self.fired = True
                raise KeyboardInterrupt
        return self.line


def everything(stage: Rows, by_blocks: bool, trace: Any = None, again: type[BaseException] = SystemExit) -> list[str]:
    """All rows; after an error of this kind they are asked for again."""
    found: list[str] = []
    while True:
        sys.settrace(trace)
        try:
            got: Any = stage.next_block(7) if by_blocks else next(stage, None)
        except again:
            continue
        finally:
            sys.settrace(None)
        if got is None:
            return found
        found += got.columns["uid"] if by_blocks else [got.data["uid"]]


@pytest.mark.parametrize("by_blocks", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_interrupt_at_any_line_loses_and_repeats_nothing(tmp_path: Path, shuffle: bool, by_blocks: bool) -> None:
    write_parquet(tmp_path / "in", [[5, 5], [5]])

    def make() -> Rows:
        return rows(f"parquet:{tmp_path}/in/*.parquet", cache_dir=tmp_path / "data", shuffle=shuffle, pool_size=2)

    with make() as stage:
        wanted = everything(stage, by_blocks)
    points = 0
    while True:
        interrupt = Interrupt(points + 1)
        with make() as stage:
            found = everything(stage, by_blocks, interrupt, KeyboardInterrupt)
        if not interrupt.fired:
            break
        assert found == wanted, f"line {points + 1} of the drawing code"
        points += 1
    assert points > 50


@pytest.mark.parametrize("by_blocks", [False, True])
def test_a_footer_that_fails_once_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_blocks: bool
) -> None:
    monkeypatch.setattr("headrace.fetch.plan.LARGE", 2)
    monkeypatch.setattr("headrace.fetch.plan.SHARDS_PER_LANE", 1)
    write_parquet(tmp_path / "in", [[10]] * 4)
    failed: list[Shard] = []

    def flaky(shard: Shard) -> GroupRows:
        if "00002" in shard.path and not failed:
            failed.append(shard)
            raise Unreachable("planted")
        return read_footer(shard)

    monkeypatch.setattr(index, "read_footer", flaky)
    with rows(f"parquet:{tmp_path}/in/*.parquet", cache_dir=tmp_path / "data") as stage:
        found = everything(stage, by_blocks, again=Unreachable)
    assert failed
    assert len(found) == len(set(found)) == 40


def interrupted(pool: Pool, count: int) -> int:
    raise KeyboardInterrupt


def test_an_error_while_the_state_is_taken_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "in", [[20, 20]])
    with rows(f"parquet:{tmp_path}/in/*.parquet", cache_dir=tmp_path / "data", shuffle=True) as stage:
        seen = [next(stage).data["uid"] for _ in range(10)]  # in the middle of a block of draws
        with monkeypatch.context() as patch:
            patch.setattr(Pool, "skip", interrupted)
            with pytest.raises(KeyboardInterrupt):
                stage.state_dict()
        seen += [row.data["uid"] for row in stage]
    assert len(seen) == len(set(seen)) == 40


def test_a_closed_stage_gives_nothing_and_keeps_its_state(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[20, 20]])
    for shuffle in (False, True):
        stage = rows(f"parquet:{tmp_path}/in/*.parquet", cache_dir=tmp_path / "data", shuffle=shuffle)
        for _ in range(7):
            next(stage)
        state = stage.state_dict()
        stage.close()
        with pytest.raises(HeadraceError, match="closed"):
            next(stage)
        with pytest.raises(HeadraceError, match="closed"):
            stage.next_block(3)
        assert stage.state_dict() == state


@pytest.mark.parametrize("most", [0, -5])
def test_a_block_of_no_rows_is_refused(tmp_path: Path, most: int) -> None:
    write_parquet(tmp_path / "in", [[20]])
    with rows(f"parquet:{tmp_path}/in/*.parquet", cache_dir=tmp_path / "data") as stage:
        next(stage)
        with pytest.raises(SpecError, match="1 or more"):
            stage.next_block(most)
        assert stage.state_dict()["resume_state"]["datasets"][0]["row_offset"] == 1


def test_a_load_that_fails_late_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "repo" / "data", [[10], [10]])
    with LocalHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.push("org/moves", tmp_path / "repo")
        with rows("hf:org/moves", cache_dir=tmp_path / "a") as stage:
            old = stage.state_dict()
        hub.push("org/moves", {"data/train-0.parquet": tmp_path / "repo/data/train-00000-of-00002.parquet"})
        with rows("hf:org/moves", cache_dir=tmp_path / "b") as stage:
            next(stage)
            before = stage.state_dict()
            hub.fault(f"*/resolve/{old['revision']}/*.parquet", 404)
            with pytest.raises(HeadraceError):
                stage.load_state_dict(old)
            assert stage.state_dict() == before
            assert len(list(stage)) == 9


@pytest.mark.parametrize(
    ("made", "opened", "said"),
    [
        ({"shuffle": True}, {}, "shuffled source"),
        ({"lane": 1, "lanes": 2}, {}, "per_lane"),
        ({"lane": 1, "lanes": 2}, {"lane": 1, "lanes": 3}, "per_lane has 0 entries for lane 1 of 3"),
        ({}, {"lane": 0, "lanes": 2}, "per_lane has 0 entries"),
    ],
)
def test_row_offsets_of_another_way_of_reading_are_refused(
    tmp_path: Path, made: dict[str, Any], opened: dict[str, Any], said: str
) -> None:
    write_parquet(tmp_path / "in", [[40], [40]])
    spec = f"parquet:{tmp_path}/in/*.parquet"
    with rows(spec, cache_dir=tmp_path / "data", **made) as stage:
        for _ in range(11):
            next(stage)
        offsets = {"resume_state": stage.state_dict()["resume_state"]}
    with rows(spec, cache_dir=tmp_path / "data", **opened) as stage, pytest.raises(StateError, match=said):
        stage.load_state_dict(offsets)


def test_slices_of_a_row_group_are_read_in_one_pass_also_when_shuffled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "in", [[12_000]])
    passes: list[int] = []
    real = ParquetReader._by_pages

    def counted(self: ParquetReader) -> Any:
        passes.append(1)
        return real(self)

    monkeypatch.setattr(ParquetReader, "_by_pages", counted)
    with rows(f"parquet:{tmp_path}/in/*.parquet", cache_dir=tmp_path / "data", shuffle=True) as stage:
        assert len({row.data["uid"] for row in stage}) == 12_000
    assert len(passes) == 1


def test_rows_with_large_values_need_the_memory_of_a_few_not_of_a_row_group(tmp_path: Path) -> None:
    import subprocess

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    noise = np.random.default_rng(0).bytes(3 << 20)
    values = pa.array([noise[i:] + noise[:i] for i in range(100)], pa.binary())
    table = pa.table({"uid": [str(i) for i in range(100)], "image": values})
    # One value a page: pyarrow, left alone, writes all of them as a single page, which nobody can read in parts.
    pq.write_table(table, tmp_path / "big.parquet", use_dictionary=False, write_batch_size=1)
    del table, values
    code = (
        "import headrace\n"
        f"with headrace.rows('parquet:{tmp_path}/big.parquet', cache_dir={str(tmp_path / 'data')!r}) as stage:\n"
        "    assert len({row.data['uid'] for row in stage}) == 100\n"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) / 1024 < 220, "300 MB lie in the row group"


# --- what goes while a loop runs


def calls_when_forgotten(held: dict[str, Any], name: str) -> list[str]:
    """Functions of Python that run then: an interrupt that comes in one of them is lost."""
    found: list[str] = []

    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            found.append(f"{frame.f_code.co_filename}: {frame.f_code.co_name}")

    gc.collect()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        del held[name]
    finally:
        sys.setprofile(before)
    return found


def test_what_goes_during_a_run_runs_no_code_in_which_an_interrupt_would_be_swallowed(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "in", [[10]])[0]
    stat = path.stat()
    shard = Shard(str(path), stat.st_size, str(stat.st_mtime_ns), LocalOrigin())
    held: dict[str, Any] = {
        "memory": MemoryUse(10),
        "footer": parse_footer(shard, footer_bytes(shard)),
        "file": PlainFile(path),
    }
    held["file"].close()
    for name in list(held):
        assert calls_when_forgotten(held, name) == [], name


def test_what_is_forgotten_is_not_counted_and_not_open(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "in", [[10]])[0]
    opened, used = PlainFile(path), MemoryUse(10)
    number, before = opened._fd, MemoryBudget(100).in_use()
    del opened, used
    gc.collect()
    assert MemoryBudget(100).in_use() == before - 10
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
