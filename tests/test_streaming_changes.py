"""A run that goes on and is not quite the same: other sources, another formatter, other files."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from streaming import World, code_row, named, saved, write_lines

from headrace.errors import Changed


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def test_a_source_more_or_less_goes_on_with_the_rest(world: World, tmp_path: Path) -> None:
    options = {"max_per_epoch": 12, "max_per_dataset": 6, "sample_repeat": 1}
    dataset = world.make(["conversation", "code"], **options)
    list(islice(iter(dataset), 4))
    path = saved(dataset, tmp_path)
    more = world.names(world.make(["vision", "conversation", "code"], **options, resume_state_path=path))
    assert sorted(more) == sorted(
        [f"conversation {i}" for i in (2, 3, 4)] + [f"code {i}" for i in (2, 3)] + [f"vision {i}" for i in (0, 1, 2)]
    )
    less = world.make(["code"], **options, resume_state_path=path)
    assert world.names(less) == [f"code {i}" for i in (2, 3, 4, 5)]


def test_with_another_formatter_rows_that_wait_are_made_anew(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def twice(sample: Any, tokens: Any) -> Any:
        return [{"text": sample["output"].replace("]", f".{i}]")} for i in range(2)]

    def never(sample: Any, tokens: Any) -> Any:
        return {"text": sample["output"]} if "1" not in sample["output"] else None

    memory = world.memory({"a": named("a")})
    options = {"max_per_epoch": 8, "sample_repeat": 1}
    dataset = memory.make(functions={"code": twice}, **options)
    assert world.names(islice(iter(dataset), 3)) == ["a 0.0", "a 0.1", "a 1.0"]
    path = saved(dataset, tmp_path)
    changed = memory.make(**options, resume_state_path=path)
    assert world.names(changed) == [f"a {i}" for i in (1, 2, 3, 4, 5)]
    assert "what makes rows ready changed for a" in caplog.text
    none = memory.make(functions={"code": never}, **options, resume_state_path=path)
    assert world.names(none) == [f"a {i}" for i in (2, 3, 4, 5, 6)]


def test_changed_files_are_an_error(world: World, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", [code_row(i, "rows") for i in range(9)])
    configs = {"code": [{"name": "rows", "path": str(path)}]}
    dataset = world.make(configs)
    list(islice(iter(dataset), 3))
    state = saved(dataset, tmp_path)
    write_lines(path, [code_row(i, "other") for i in range(9)])
    with pytest.raises(Changed):
        next(iter(world.make(configs, resume_state_path=state)))
