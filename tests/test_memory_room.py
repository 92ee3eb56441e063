"""Where memory is short for a moment, nothing is left out; and what is in memory is counted as what it is."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from robots import small_set
from streaming import World

from headrace import Faults, StreamingLeRobotDataset, rows
from headrace.errors import DataError
from headrace.fetch.line_memory import json_bytes
from headrace.fetch.memory import MemoryBudget, MemoryUse
from headrace.make.groups import Groups
from headrace.testing import Camera

BUDGET = 40_000_000
SKIP = Faults(policy="skip", budget=100_000)


def write_lines(path: Path, values: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return path


def grouped(tmp_path: Path, *files: list[dict[str, Any]], kind: str = "jsonl", **options: Any) -> Any:
    """A data set of each file."""
    paths = [tmp_path / f"g{i}.{kind}" for i in range(len(files))]
    for path, values in zip(paths, files, strict=True):
        if kind == "jsonl":
            write_lines(path, values)
        else:
            pq.write_table(pa.Table.from_pylist(values), path, row_group_size=150)

    def joined(row: Any, tokens: Any) -> dict[str, Any]:
        return {"text": f"[g {row['rows'][0]['tree']}] "}

    sets = {"code": [{"name": path.stem, "path": str(path), "group_by": "tree"} for path in paths]}
    options = {"max_per_epoch": None, "max_per_dataset": None, "sample_repeat": 1, **options}
    return World(tmp_path).make(sets, functions={"code": joined}, **options)


@pytest.fixture(autouse=True)
def _budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MEMORY_BYTES", str(BUDGET))
    monkeypatch.setattr("headrace.fetch.memory._USES", {})  # what other tests have not let go of yet


def test_no_group_is_left_out_because_others_fill_the_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = [{"tree": i // 3, "n": i, "t": "x" * 5000} for i in range(3000)]
    data = iter(grouped(tmp_path, values, faults=SKIP))
    given = [next(data) for _ in range(50)]
    others = MemoryUse(3 * BUDGET // 2)
    with pytest.raises(DataError, match="HEADRACE_MEMORY_BYTES"):
        given += data
    del others
    assert 50 <= len(given) < 1000
    assert "skipped" not in caplog.text


def test_no_frame_is_left_out_because_others_fill_the_memory(tmp_path: Path) -> None:
    camera = Camera(kind="image", height=32, width=64)
    small_set(tmp_path / "robot", cameras={"observation.images.still": camera}, episodes=(20,) * 10)
    data = StreamingLeRobotDataset(
        "org/robot", root=tmp_path / "robot", faults=SKIP, episode_pool_size=2, cache_dir=tmp_path / "c"
    )
    frames = iter(data)
    given = [int(next(frames)["index"]) for _ in range(25)]
    others = MemoryUse(3 * BUDGET // 2 - 10_000)
    with pytest.raises(DataError, match="HEADRACE_MEMORY_BYTES"):
        given += [int(frame["index"]) for frame in frames]
    del others
    assert len(set(given)) == len(given) < 200


def test_groups_of_lines_are_kept_as_far_as_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk of a thousand lines takes some megabytes, and up to 32 of them were kept."""
    most = 0

    def is_full(self: Groups) -> bool:
        nonlocal most
        most = max(most, sum(kept.memory.nbytes for kept in self._kept.values()))
        return was_full(self)

    was_full = Groups._is_full
    monkeypatch.setattr(Groups, "_is_full", is_full)
    line: dict[str, Any] = {"t": [[]] * 40}
    data = grouped(tmp_path, [{"tree": i // 500, **line} for i in range(16_000)])
    assert sum(1 for _ in data) == 32
    assert BUDGET // 4 < most < BUDGET


@pytest.mark.parametrize(("kind", "budget"), [("jsonl", 24_000_000), ("parquet", 10_000_000)])
def test_groups_that_are_kept_for_later_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, budget: int
) -> None:
    """Each data set may keep half of the budget: those of several were more than all, and nothing fitted any more."""
    monkeypatch.setenv("HEADRACE_MEMORY_BYTES", str(budget))
    files = [[{"tree": i // 3, "t": f"{s}-{i}-" + "x" * 4000} for i in range(1500)] for s in range(6)]
    data = grouped(tmp_path, *files, kind=kind)
    assert sum(1 for _ in data) == 6 * 500


def test_lines_are_counted_as_about_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is plenty of memory, nobody looks at them."""
    turns = [{"role": "user", "content": "q " * 120}, {"role": "assistant", "content": "a " * 250}]
    path = write_lines(tmp_path / "a.jsonl", [{"messages": turns, "id": i} for i in range(12_000)])
    for budget in (1 << 33, 1 << 31, 1 << 27):
        monkeypatch.setenv("HEADRACE_MEMORY_BYTES", str(budget))
        with rows(f"jsonl:{path}", shuffle=True, cache_dir=tmp_path / "c") as stage:
            for _ in range(200):
                next(stage)
            memory = MemoryBudget(budget)
            assert path.stat().st_size < memory.in_use() < 5 * path.stat().st_size
            assert memory.unknown() <= budget // 8
    assert memory.in_use() == memory.unknown() == 0


# --- estimates, which are high, are measured where something would be refused for them


def test_lines_are_not_measured_where_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes as long as to parse them."""
    path = write_lines(tmp_path / "a.jsonl", [{"ids": [i] * 40, "id": i} for i in range(12_000)])
    measured: list[int] = []
    monkeypatch.setattr("headrace.fetch.lines.json_bytes", lambda rows, most: measured.append(len(rows)))
    monkeypatch.setenv("HEADRACE_MEMORY_BYTES", str(BUDGET))
    most = 0
    with rows(f"jsonl:{path}", shuffle=True, cache_dir=tmp_path / "c") as stage:
        for _ in stage:
            most = max(most, MemoryBudget(BUDGET).in_use())
    assert most > BUDGET // 2
    assert not measured


def test_as_many_estimates_are_measured_as_make_room() -> None:
    budget, small, large = MemoryBudget(1000), MemoryUse(100), MemoryUse(1300)
    small.measure_by(lambda most: min(most, 50))
    large.measure_by(lambda most: min(most, 400))
    assert budget.most(90) == 100
    assert (small.nbytes, large.nbytes) == (100, 1300)
    assert budget.most(300) == 500
    assert (small.nbytes, large.nbytes) == (100, 400)
    assert budget.room(1500) == 1050
    assert (small.nbytes, large.nbytes) == (50, 400)


def test_who_needs_room_waits_for_who_measures() -> None:
    budget, use = MemoryBudget(1000), MemoryUse(1450)
    begun, go_on = threading.Event(), threading.Event()

    def measured(most: int) -> int:
        begun.set()
        assert go_on.wait(30)
        return 200

    use.measure_by(measured)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(budget.most, 400)
        assert begun.wait(30)
        second = threads.submit(budget.most, 400)
        assert not second.done()
        go_on.set()
        assert (first.result(30), second.result(30)) == (500, 500)


def test_an_estimate_whose_measuring_is_interrupted_is_measured_later() -> None:
    budget, use, answers = MemoryBudget(1000), MemoryUse(1450), iter([KeyboardInterrupt()])

    def measured(most: int) -> int:
        for interrupt in answers:
            raise interrupt
        return 200

    use.measure_by(measured)
    with pytest.raises(KeyboardInterrupt):
        budget.most(400)
    assert budget.most(400) == 500


def test_what_is_released_while_it_is_measured_takes_nothing() -> None:
    budget, use = MemoryBudget(1000), MemoryUse(1450)

    def measured(most: int) -> int:
        use.release()
        return 200

    use.measure_by(measured)
    assert budget.room(400) == 1500


def test_rows_that_a_caller_made_endless_can_be_measured() -> None:
    row: dict[str, Any] = {"a": [1, 2, 3]}
    alone = json_bytes([row], 1 << 40)
    row["self"] = row
    row["a"].append([row["a"]])
    row["a"] += [row["a"]] * 10_000
    assert json_bytes([row], 10 * alone) == 10 * alone
