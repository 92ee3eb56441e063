"""Where memory is short for a moment, nothing is left out; and what is in memory is counted as what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from robots import small_set
from streaming import World

from headrace import Faults, StreamingLeRobotDataset, rows
from headrace.errors import DataError
from headrace.fetch.memory import MemoryBudget, MemoryUse
from headrace.make.groups import Groups
from headrace.testing import Camera

BUDGET = 40_000_000
SKIP = Faults(policy="skip", budget=100_000)


def write_lines(path: Path, values: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return path


def grouped(tmp_path: Path, values: list[dict[str, Any]], **options: Any) -> Any:
    path = write_lines(tmp_path / "g.jsonl", values)

    def joined(row: Any, tokens: Any) -> dict[str, Any]:
        return {"text": f"[g {row['rows'][0]['tree']}] "}

    sets = {"code": [{"name": "g", "path": str(path), "group_by": "tree"}]}
    options = {"max_per_epoch": None, "max_per_dataset": None, "sample_repeat": 1, **options}
    return World(tmp_path).make(sets, functions={"code": joined}, **options)


@pytest.fixture(autouse=True)
def _budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MEMORY_BYTES", str(BUDGET))


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
        most = max(most, sum(nbytes for _, nbytes in self._kept.values()))
        return was_full(self)

    was_full = Groups._is_full
    monkeypatch.setattr(Groups, "_is_full", is_full)
    line: dict[str, Any] = {"t": [[]] * 40}
    data = grouped(tmp_path, [{"tree": i // 500, **line} for i in range(16_000)])
    assert sum(1 for _ in data) == 32
    assert BUDGET // 4 < most < BUDGET


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
