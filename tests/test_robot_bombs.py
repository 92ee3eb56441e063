"""Small robot data sets whose metadata is large as Python values: read within the budget, or refused before."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import robot_meta as made
from read_limited import BUDGET, cost
from robot_meta import TASKS
from test_parquet_bombs import again, robot, write

from headrace.errors import DataError
from headrace.lerobot import identity
from headrace.lerobot.identity import content_revision
from headrace.lerobot.meta import SUBTASKS, Meta
from headrace.lerobot.root import Root
from headrace.run import Run


def write_tasks(folder: Path, count: int, *others: str) -> None:
    tasks = {"task_index": range(count + len(others)), "task": again(count, *others)}
    write(folder / TASKS, tasks)


def meta_of(folder: Path, tmp_path: Path) -> Meta:
    return Meta.open(Root.open(str(folder), Run(cache_dir=tmp_path / "data")))


# --- tasks


@pytest.mark.alone
def test_a_task_that_comes_again_in_many_rows_is_never_written_out(tmp_path: Path) -> None:
    """200 MB, if it were."""
    folder = robot(tmp_path, [3, 3])
    write_tasks(folder, 200)
    found = cost(f"lerobot:{folder}", tmp_path, "robot")
    assert (found["error"], found["rows"]) == ("", 6)
    assert found["bytes"] < BUDGET, found


@pytest.mark.alone
def test_tasks_that_would_take_long_to_hash_are_refused(tmp_path: Path) -> None:
    """6 GB, in a file of 17 kB."""
    folder = robot(tmp_path, [3, 3])
    write_tasks(folder, 6000)
    found = cost(f"lerobot:{folder}", tmp_path, "robot")
    said = f"DataError: {folder}, meta/tasks.parquet: its 6,000 tasks take more than 268,"
    assert found["error"].startswith(said), found
    assert found["bytes"] < BUDGET, found


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["pick up the cube", "put it into the box"],
        ["", 'quotes " and \\ and /', "tabs\tand\nlines\x00\x7f"],
        ["Würfel", "立方体を取る", "\U0001f9ca on \U0001f916", "\u2028\ufeff"],
        ["é\U0001f9ca\n" * 100_000, "x"] * 2,
    ],
)
def test_the_content_of_a_folder_has_the_revision_that_it_always_had(tmp_path: Path, names: list[str]) -> None:
    """States have it. This is how it was made before tasks were hashed one by one."""
    meta = replace(meta_of(made.write(tmp_path / "set"), tmp_path), task_names=names)
    said = {name: {k: v.tolist() for k, v in found.items()} for name, found in meta.stats.items()}
    listing, prefix = meta.files.listing, len(meta.files.prefix)
    files = [[path[prefix:], size] for path, size in zip(listing.paths, listing.sizes.tolist(), strict=True)]
    beside = [names, said, sorted(file for file in files if file[0].startswith(("meta/", "data/", "videos/")))]
    h = hashlib.blake2b(digest_size=16)
    for value in [*identity._described(meta), *beside]:
        data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
        h.update(len(data).to_bytes(8, "little") + data)
    assert content_revision(meta) == "robot-" + h.hexdigest()


def test_tasks_of_just_the_size_that_is_hashed_have_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = meta_of(made.write(tmp_path / "set"), tmp_path)
    monkeypatch.setattr(identity, "MOST_TASK_BYTES", len(json.dumps(meta.task_names)))
    content_revision(meta)
    monkeypatch.setattr(identity, "MOST_TASK_BYTES", len(json.dumps(meta.task_names)) - 1)
    with pytest.raises(DataError, match=r"meta/tasks\.parquet: its \d+ tasks take more than \d+ bytes"):
        content_revision(meta)


def test_tables_of_tasks_share_a_text_that_comes_again(tmp_path: Path) -> None:
    folder = made.write(tmp_path / "set")
    write_tasks(folder, 400, "other")
    write(folder / SUBTASKS, {"subtask_index": range(400), "subtask": again(400)})
    meta = meta_of(folder, tmp_path)
    assert meta.subtasks is not None
    for table, words in ((meta.tasks, 2), (meta.subtasks, 1)):
        assert len({id(text) for text in table.index}) == words
    assert len(repr(meta)) < 10_000
