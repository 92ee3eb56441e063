"""Small robot data sets whose metadata is large as Python values: read within the budget, or refused before."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import robot_meta as made
from read_limited import BUDGET, MB, ONE, cost
from robot_meta import TASKS
from test_parquet_bombs import again, data_file, lists, robot, with_column, write

from headrace.errors import DataError
from headrace.fetch.memory import MemoryBudget, MemoryUse
from headrace.fetch.parquet import ParquetReader
from headrace.fetch.plan import Chunk
from headrace.fetch.python_size import python_bytes
from headrace.fetch.sources import cache_of
from headrace.lerobot import identity
from headrace.lerobot.identity import content_revision
from headrace.lerobot.meta import SUBTASKS, Meta
from headrace.lerobot.root import Root
from headrace.lerobot.table import KeptGroups, Tables
from headrace.run import Run
from headrace.testing import Camera, write_robot_dataset

EPISODES = 300
DEEP = 60
BOOLS = pa.array(np.zeros(EPISODES * 6333, bool))


def structs(values: Any, depth: int = 1) -> Any:
    for _ in range(depth):
        values = pa.StructArray.from_arrays([values], ["a"])
    return values


def of_python(value: Any) -> int:
    """What a value takes with all that is in it."""
    if value is None or isinstance(value, bool):
        return 0
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sys.getsizeof(value) + sum(map(of_python, inside))


def write_tasks(folder: Path, count: int, *others: str) -> None:
    tasks = {"task_index": range(count + len(others)), "task": again(count, *others)}
    write(folder / TASKS, tasks)


def meta_of(folder: Path, tmp_path: Path) -> Meta:
    return Meta.open(Root.open(str(folder), Run(cache_dir=tmp_path / "data")))


# --- tasks


def test_a_task_that_comes_again_in_many_rows_is_never_written_out(tmp_path: Path) -> None:
    """200 MB, if it were."""
    folder = robot(tmp_path, [3, 3])
    write_tasks(folder, 200)
    found = cost(f"lerobot:{folder}", tmp_path, "robot")
    assert (found["error"], found["rows"]) == ("", 6)
    assert found["bytes"] < BUDGET, found


def test_tasks_that_would_take_long_to_hash_are_refused(tmp_path: Path) -> None:
    """6 GB, in a file of 17 kB."""
    folder = robot(tmp_path, [3, 3])
    write_tasks(folder, 6000)
    found = cost(f"lerobot:{folder}", tmp_path, "robot")
    said = f"DataError: {folder}, meta/tasks.parquet: its 6,000 tasks take more than 268,"
    assert found["error"].startswith(said), found
    assert found["bytes"] < BUDGET, found


def test_many_short_tasks_are_counted_as_python_values(tmp_path: Path) -> None:
    """15 bytes each in Arrow, and 60 in Python."""
    folder = robot(tmp_path, [3, 3])
    count = 1_400_000
    words = pa.array(["ab"]).take(pa.array(np.zeros(count, np.int32)))
    write(folder / TASKS, {"task": words}, use_dictionary=False)
    found = cost(f"lerobot:{folder}", tmp_path, "robot")
    assert found["error"].startswith(f"DataError: {folder}/meta/tasks.parquet, column 'task': "), found
    assert found["bytes"] < 2 * BUDGET, found


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


# --- episodes


@pytest.mark.parametrize(
    "column",
    [
        lists(structs(BOOLS), 6333),
        structs(pa.array(np.zeros(EPISODES * 20, bool)), DEEP).take(pa.array(range(EPISODES))),
        lists(structs(pa.array(np.zeros(EPISODES * 100, bool)), DEEP), 100),
        lists(pa.array(np.zeros(EPISODES * 4000, np.int32)), 4000),
    ],
    ids=["structs", "few deep structs", "deep structs", "numbers"],
)
def test_a_column_of_episodes_is_counted_as_python_values(
    tmp_path: Path, request: pytest.FixtureRequest, column: Any
) -> None:
    folder = robot(tmp_path, [1] * EPISODES)
    with_column(next(folder.glob("meta/episodes/*/*.parquet")), "l", column)
    found = cost(f"lerobot:{folder}", tmp_path, "robot's table")
    if "few" in request.node.name:
        assert (found["error"], found["rows"]) == ("", EPISODES)
    else:
        assert found["error"].startswith(f"DataError: {folder}/meta/episodes/chunk-000/file-000.parquet, column 'l': ")
        assert f"all metadata may take {BUDGET:,} (HEADRACE_MEMORY_BYTES)" in found["error"], found
    assert found["bytes"] < 2 * BUDGET, found


def test_columns_of_a_slice_are_counted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = robot(tmp_path, [1] * EPISODES)
    path = next(folder.glob("meta/episodes/*/*.parquet"))
    for name in "ab":
        with_column(path, name, lists(pa.array(np.zeros(EPISODES * 1000, np.int32)), 1000))
    episodes = Meta.open(Root.open(str(folder), Run(cache_dir=tmp_path / "data")), 32 * MB).episodes
    assert len(episodes["a"]) == len(episodes["b"]) == EPISODES
    assert [len(row["a"]) for row in episodes] == [1000] * EPISODES
    with pytest.raises(DataError, match=r"file-000\.parquet, column 'a' and \d+ others: "):
        episodes[:]


def test_a_row_of_episodes_shares_what_comes_again_in_it(tmp_path: Path) -> None:
    folder = robot(tmp_path, [1] * 2)
    with_column(next(folder.glob("meta/episodes/*/*.parquet")), "l", lists(again(800), 400))
    row = meta_of(folder, tmp_path).episodes[1]
    assert len(row["l"]) == 400
    assert len({id(text) for text in row["l"]}) == 1


def test_a_row_of_episodes_that_is_large_in_python_is_refused(tmp_path: Path) -> None:
    folder = robot(tmp_path, [1] * 2)
    with_column(
        next(folder.glob("meta/episodes/*/*.parquet")), "l", lists(structs(BOOLS[: 4 * MB // 10], DEEP), MB // 5)
    )
    episodes = Meta.open(Root.open(str(folder), Run(cache_dir=tmp_path / "data")), 400 * MB).episodes
    with pytest.raises(DataError, match=r"file-000\.parquet, column 'l'"):
        episodes[1]


# --- frames


def test_frames_of_an_episode_are_counted_as_python_values(tmp_path: Path) -> None:
    folder = robot(tmp_path, [150] * 6)
    with_column(data_file(folder), "note", lists(structs(BOOLS[: 900 * 2111]), 2111), row_group_size=150)
    found = cost(f"lerobot:{folder}", tmp_path, "robot")
    assert found["error"].startswith(f"DataError: {folder}, data/chunk-000/file-000.parquet, episode "), found
    assert "column 'note'" in found["error"], found
    assert found["bytes"] < 2 * BUDGET, found


# --- row groups of frames


def zeros(rows: int, nbytes: int) -> Any:
    """Numbers that take so many bytes in each row, and nearly none in a file."""
    width = nbytes // 4
    return pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * width, np.float32)), width)


def numbered(tmp_path: Path, episodes: list[int], nbytes: int, group: int, **options: Any) -> Path:
    """A robot data set with such a column in row groups of so many frames."""
    features = {"big": ("float32", (1,))}
    for name, lengths in (("set", episodes), ("set-warm", [3, 3])):
        write_robot_dataset(
            tmp_path / name, episodes=lengths, cameras={}, extra_features=features, episodes_per_data_file=1000
        )
    path = data_file(tmp_path / "set")
    with_column(path, "big", zeros(sum(episodes), nbytes), row_group_size=group, **options)
    return tmp_path / "set"


@pytest.mark.parametrize(("way", "frames", "rows"), [(ONE, 40, 4000), ("robot", 4, 2000)])
def test_row_groups_that_episodes_share_are_kept_within_the_budget(
    tmp_path: Path, way: str, frames: int, rows: int
) -> None:
    """4 MB each, 100 or 200 in all."""
    folder = numbered(tmp_path, [frames] * (rows // frames), MB // 20, group=80)
    found = cost(f"lerobot:{folder}", tmp_path, way)
    assert (found["error"], found["rows"]) == ("", rows)
    assert found["bytes"] < 2 * BUDGET, found


def test_what_arrow_keeps_of_shared_row_groups_does_not_add_up(tmp_path: Path) -> None:
    """Episodes of 2 MB in row groups of 4 MB: pools of them do not fit, and end there."""
    folder = numbered(tmp_path, [500] * 60, 4000, group=1000)
    found = cost(f"lerobot:{folder}", tmp_path, "robot")
    assert "other chunks hold" in found["error"], found
    assert found["bytes"] < 2 * BUDGET, found


def test_a_row_group_of_frames_that_is_too_large_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    """200 MB."""
    folder = numbered(tmp_path, [500] * 2, MB // 5, group=1000)
    found = cost(f"lerobot:{folder}", tmp_path, ONE)
    assert found["error"].startswith(f"DataError: {data_file(folder)}, row group 0, column 'big"), found
    assert found["bytes"] < BUDGET, found


def test_an_episode_of_many_row_groups_is_refused_before_all_are_decoded(tmp_path: Path) -> None:
    """Each is 4 MB and fits, all are 80."""
    folder = numbered(tmp_path, [1600] * 2, MB // 20, group=80)
    found = cost(f"lerobot:{folder}", tmp_path, ONE)
    assert found["error"].startswith(f"DataError: {data_file(folder)}, episode "), found
    assert f"the budget is {BUDGET:,} (HEADRACE_MEMORY_BYTES)" in found["error"], found
    assert found["bytes"] < 2 * BUDGET, found


def test_an_episode_with_few_rows_in_each_of_many_row_groups_takes_no_more_than_they_do(tmp_path: Path) -> None:
    """5 MB of 50 row groups of 2."""
    folder = numbered(tmp_path, [50] * 20, MB // 10, group=20)
    path = data_file(folder)
    numbers = pa.array(list(range(20)) * 50)
    with_column(path, "episode_index", numbers, row_group_size=20)
    found = cost(f"lerobot:{folder}", tmp_path, ONE)
    assert (found["error"], found["rows"]) == ("", 1000)
    assert found["bytes"] < 2 * BUDGET, found


@pytest.mark.parametrize("at", range(5))
def test_an_episode_is_whole_where_the_reader_leaves_values_in_dictionaries_from_one_of_its_row_groups_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """As it does where others have taken the memory meanwhile. Row groups that were kept have their values plain."""
    folder, features = tmp_path / "set", {"note": ("string", (1,))}
    cameras = {"still": Camera(kind="image", height=8, width=8)}
    write_robot_dataset(
        folder, episodes=[50, 30, 50], cameras=cameras, extra_features=features, episodes_per_data_file=1000
    )
    path = data_file(folder)
    with_column(path, "note", pa.array([f"note {i % 7}" for i in range(130)]), row_group_size=20)
    real, read = ParquetReader._weigh, 0

    def weigh(self: ParquetReader, chunk: Chunk) -> int:
        nonlocal read
        read += 1
        if read == at + 1:
            self._read_coded({"note"})
        if read == at + 2:
            self._read_coded({"still.bytes"})
        return real(self, chunk)

    monkeypatch.setattr(ParquetReader, "_weigh", weigh)
    tables = Tables(meta_of(folder, tmp_path), cache_of(Run(cache_dir=tmp_path / "cache")), BUDGET)
    wanted = pq.read_table(path)
    for number, rows in enumerate((slice(0, 50), slice(50, 80), slice(80, 130))):
        found = tables.read(number)
        for name in ("note", "still", "index"):
            assert list(found[name]) == wanted.column(name).to_pylist()[rows]
    assert read > at + 2


def batch_of(nbytes: int) -> Any:
    return pa.record_batch({"a": pa.array(np.zeros(nbytes // 8, np.int64))})


def test_row_groups_that_are_kept_count_and_give_way_before_anything_is_refused() -> None:
    budget = MemoryBudget(1000)
    kept, before = KeptGroups(budget), budget.in_use()

    def there() -> list[int]:
        return [group for group in range(5) if kept.get(("a", group)) is not None]

    for group in range(3):
        kept.keep(("a", group), batch_of(120))
    assert (there(), budget.in_use()) == ([1, 2], before + 240)
    others = MemoryUse(1000)
    assert budget.most(300) >= 300
    assert (len(there()), budget.in_use()) == (1, before + 1120)
    assert budget.most(500) >= 500
    assert (there(), budget.in_use()) == ([], before + 1000)
    kept.keep(("a", 1), batch_of(120))
    assert (there(), budget.in_use()) == ([], before + 1000), "others need the room"
    others.release()
    kept.keep(("a", 1), batch_of(120))
    kept.keep(("a", 2), batch_of(400))
    assert (there(), budget.in_use()) == ([2], before + 400), "alone it may be larger"
    kept.keep(("a", 3), batch_of(504))
    assert 3 not in there()
    kept = KeptGroups(budget)
    assert budget.in_use() == before


# --- sizes


VALUES: dict[str, Any] = {
    "numbers": pa.array(range(1000, 1300)),
    "floats": pa.array(np.linspace(0, 1, 300)),
    "bools": pa.array([True, False, None] * 100),
    "texts": pa.array(["ab", "Würfel", "\U0001f9ca" * 50, None] * 75),
    "bytes": pa.array([b"abc" * 100] * 300),
    "lists": pa.array([[1000, 2000], [], None, [3000] * 20] * 75),
    "large lists": pa.array([["a", "b"], []] * 150, pa.large_list(pa.large_string())),
    "structs": structs(pa.array([True] * 300)),
    "deep structs": structs(pa.array([1000] * 300), DEEP),
    "wide structs": pa.StructArray.from_arrays([pa.array([True] * 300)] * 50, [f"f{i}" for i in range(50)]),
    "lists of structs": lists(structs(pa.array([True] * 300)), 3),
    "maps": pa.array([[("ab", 1000), ("cd", 2000)]] * 300, pa.map_(pa.string(), pa.int64())),
    "fixed lists": pa.array([[1000, 2000]] * 300, pa.list_(pa.int64(), 2)),
    "dates": pa.array([10**15] * 300, pa.timestamp("us")),
    "views": pa.array(["ab", "a text that is not in its view", None] * 100, pa.string_view()),
    "lists in views": pa.array([["a", "b"], [], None] * 100, pa.list_view(pa.string())),
    "nulls": pa.nulls(300),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_are_counted_as_what_they_take_in_python(case: str) -> None:
    for array in (VALUES[case], VALUES[case].slice(50, 40)):
        taken = of_python(array.to_pylist())
        assert 0.8 * taken <= python_bytes(array) <= 4 * taken, (taken, python_bytes(array))


def test_a_value_that_comes_again_is_counted_once() -> None:
    assert MB < python_bytes(again(300)) < 5 * MB
    assert MB < python_bytes(lists(again(300), 3)) < 5 * MB


def test_of_a_large_dictionary_only_what_a_row_has_of_it_is_counted() -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([7, None, 500]), pa.array([f"{i}" * 1000 for i in range(1000)]))
    assert python_bytes(words) < 40_000
    assert python_bytes(lists(words, 3)) < 40_000


def test_lists_are_counted_as_far_as_a_slice_reaches() -> None:
    column = lists(pa.array(range(10**6)), 1000)
    assert python_bytes(column.slice(500, 1)) < 100_000
