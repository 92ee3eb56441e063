"""The metadata of LeRobot data sets: as it should be, as public data has it, and as it must be refused."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import robot_meta as made
from refused import check_refused
from robot_meta import EPISODES, INFO, STATS, TASKS, TOP, WRIST

from headrace.errors import DataError, HeadraceError, NotAllowed, NotFound
from headrace.lerobot import projection
from headrace.lerobot.info import Depth, Info
from headrace.lerobot.meta import Meta
from headrace.lerobot.root import Root
from headrace.lerobot.template import Template
from headrace.run import Run


def meta_of(tmp_path: Path, content: dict[str, bytes] | None = None) -> Meta:
    return Meta.open(Root.open(str(made.write(tmp_path / "set", content)), Run(cache_dir=tmp_path / "data")))


def refusal(act: Callable[[], object]) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        act()
    message = str(caught.value)
    assert message.isprintable(), repr(message)
    assert len(message) < 1500
    return caught.value


def with_info(**fields: Any) -> dict[str, bytes]:
    return made.files() | {INFO: json.dumps(made.info(**fields)).encode()}


def with_episodes(**columns: list[Any]) -> dict[str, bytes]:
    """Of each column that is given by its short name, other values."""
    shape = made.episodes()
    for name, values in columns.items():
        own = next(column for column in shape if column.replace("/", "_").endswith(name))
        shape[own] = values
    return made.files() | {EPISODES: made.parquet(shape)}


# --- as it should be


def test_metadata_is_read_into_columns_and_under_the_names_of_lerobot(tmp_path: Path) -> None:
    meta = meta_of(tmp_path)
    episodes = meta.episodes
    assert (meta.fps, meta.robot_type, meta.total_episodes, meta.total_frames) == (10, "so101", 4, 18)
    assert meta.task_names == ["pick", "place"]
    assert meta.video_keys == meta.camera_keys == [TOP, WRIST]
    assert meta.image_keys == meta.depth_keys == []
    assert list(meta.features) == list(made.features())
    assert meta.features["action"] == {
        "dtype": "float32",
        "shape": (2,),
        "names": {"motors": ["a", "b"]},
        "fps": 30,
    }
    assert meta.shapes["action"] == (2,)
    assert meta.names["action"] == {"motors": ["a", "b"]}
    assert meta.stats["action"]["std"].tolist() == [1, 2]
    assert episodes.index.tolist() == [0, 1, 2, 3]
    assert episodes.length.tolist() == [5, 3, 4, 6]
    assert episodes.first.tolist() == [0, 5, 8, 12]
    assert episodes.data_file.tolist() == [0, 0, 0, 1]
    chunks, video_files, firsts = episodes.videos[TOP]
    assert (chunks.tolist(), video_files.tolist(), firsts.tolist()) == ([1] * 4, [0, 0, 1, 1], [0, 5, 0, 4])
    assert episodes.videos[WRIST].first_frame.tolist() == [0, 5, 8, 12]
    assert episodes.starts[WRIST].tolist() == [0.0, 0.5, 0.8, 1.2]
    assert all(column.dtype == np.int64 for column in (episodes.index, episodes.length, episodes.first, *chunks))
    assert meta.get_data_file_path(3) == Path("data/chunk-000/file-001.parquet")
    assert meta.get_video_file_path(2, TOP) == Path(f"videos/{TOP}/chunk-001/file-001.mp4")
    assert meta.url_root == str(tmp_path / "set")


def test_metadata_travels_to_workers(tmp_path: Path) -> None:
    meta = pickle.loads(pickle.dumps(meta_of(tmp_path)))  # noqa: S301 - our own
    assert meta.episodes.videos[TOP].first_frame.tolist() == [0, 5, 0, 4]
    assert meta.files.read(INFO) == made.files()[INFO]


def test_chosen_episodes_come_in_the_order_of_the_data_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    meta = meta_of(tmp_path)
    few = meta.selected([3, 1, 3, 9, 77])
    assert few.episodes.index.tolist() == [1, 3]
    assert few.episodes.first.tolist() == [5, 12]
    assert few.episodes.videos[TOP].file.tolist() == [0, 1]
    assert few.episodes.starts[WRIST].tolist() == [0.5, 1.2]
    assert few.episodes.num_frames == 9
    assert few.total_frames == 18
    assert "2 of the episodes asked for are not in the data set: 9, 77" in caplog.text
    assert few.get_data_file_path(3) == Path("data/chunk-000/file-001.parquet")
    with pytest.raises(NotFound, match="there is no episode 2 among the 2 here; the last is 3"):
        few.get_data_file_path(2)
    assert len(meta.episodes) == 4


def test_frames_are_whole_numbers_where_times_have_drifted(tmp_path: Path) -> None:
    found = meta_of(tmp_path, with_episodes(wrist_from_timestamp=[-1e-9, 0.5 + 1e-3, 0.8 - 1e-3, 1.2 + 0.04]))
    assert found.episodes.videos[WRIST].first_frame.tolist() == [0, 5, 8, 12]


# --- as public data has it


def test_many_files_with_other_columns_in_another_order_are_one_table(tmp_path: Path) -> None:
    first, second, third = made.episodes((5, 3)), made.episodes((4,), 2, 8), made.episodes((6,), 3, 12)
    second = dict(reversed(second.items())) | {"mine": ["x"], "stats/extra/min": [[1.0]]}
    third.pop("tasks")
    content = made.files()
    del content[EPISODES]
    # Not in the order of their episodes either.
    content["meta/episodes/chunk-000/file-001.parquet"] = made.parquet(first)
    content["meta/episodes/chunk-000/file-000.parquet"] = made.parquet(third)
    content["meta/episodes/chunk-001/file-000.parquet"] = made.parquet(second)
    assert meta_of(tmp_path, content).episodes.first.tolist() == [0, 5, 8, 12]


def test_a_stale_copy_of_a_file_counts_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy = {"meta/episodes/chunk-000/file-001.parquet": made.parquet(made.episodes((5, 3)))}
    assert meta_of(tmp_path, made.files() | copy).episodes.index.tolist() == [0, 1, 2, 3]
    assert "2 episodes are there twice" in caplog.text
    copy = {"meta/episodes/chunk-000/file-001.parquet": made.parquet(made.episodes((5, 2)))}
    error = refusal(lambda: meta_of(tmp_path, made.files() | copy))
    check_refused(error, DataError, "meta/episodes: episode 1: it is there twice, and the two differ")


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint64(), pa.float64(), pa.dictionary(pa.int32(), pa.int64())])
def test_whole_numbers_of_any_type_are_read(tmp_path: Path, kind: pa.DataType) -> None:
    shape: dict[str, Any] = made.episodes()
    plain = pa.array(shape["length"])
    shape["length"] = plain.dictionary_encode() if pa.types.is_dictionary(kind) else plain.cast(kind)
    found = meta_of(tmp_path, made.files() | {EPISODES: made.parquet(shape)})
    assert found.episodes.length.tolist() == [5, 3, 4, 6]
    assert found.episodes.length.dtype == np.int64


def test_numbers_of_episodes_may_have_gaps(tmp_path: Path) -> None:
    found = meta_of(tmp_path, with_episodes(episode_index=[2, 3, 50, 51]) | {TASKS: made.tasks()})
    assert found.episodes.place(50) == 2
    assert found.selected([50]).episodes.first.tolist() == [8]


@pytest.mark.parametrize(
    "content",
    [
        made.tasks(index="task"),
        made.tasks(index="__index_level_0__"),
        made.tasks(index="what to do", pandas=True),
        made.tasks(index="what to do", pandas=False),
        made.parquet({"task": ["pick", "place"], "note": ["x", "y"], "task_index": [0, 1]}),
        made.parquet({"task": pa.array(["pick", "place"], pa.large_string())}),
        made.parquet({"task_index": [0, 1], "task": pa.array(["pick", "place"]).dictionary_encode()}),
        made.parquet({"task_index": [0, 1], "task": ["pick", "place"]}, row_group_size=1),
    ],
)
def test_tasks_are_read_whatever_their_column_is_called(tmp_path: Path, content: bytes) -> None:
    assert meta_of(tmp_path, made.files() | {TASKS: content}).task_names == ["pick", "place"]


def test_the_index_of_pandas_comes_before_other_texts(tmp_path: Path) -> None:
    table = pa.table({"note": ["x", "y"], "what to do": ["pick", "place"], "task_index": [0, 1]})
    told = {b"pandas": b'{"index_columns": ["what to do"]}'}
    content = made.parquet(table.replace_schema_metadata(told))
    assert meta_of(tmp_path, made.files() | {TASKS: content}).task_names == ["pick", "place"]


def test_a_task_is_that_of_its_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = made.parquet({"task_index": [1, 0], "task": ["pick", None]})
    assert meta_of(tmp_path, made.files() | {TASKS: content}).task_names == ["pick", ""]
    assert "task n is the one in row n" in caplog.text


def test_statistics_may_be_missing(tmp_path: Path) -> None:
    content = made.files()
    del content[STATS]
    assert meta_of(tmp_path, content).stats == {}


def test_leftovers_and_additions_do_no_harm(tmp_path: Path) -> None:
    more = made.features(
        depth=made.video(
            info={"video.is_depth_map": True, "depth_unit": "m", "video.depth_max": 4, "video.use_log": None}
        ),
        far={"dtype": "image", "shape": [8, 8, 1], "names": None, "video_info": {"is_depth_map": True}},
        note={"dtype": "string", "shape": [1], "names": None},
    )
    columns = made.episodes()
    columns |= {name.replace(TOP, "depth"): column for name, column in columns.items() if TOP in name}
    values = made.info(features=more, total_videos=8, total_chunks=1, fps=10.0, robot_type=None, tools=[], splits={})
    for name in ("total_episodes", "total_frames", "data_path", "video_path"):
        del values[name]
    meta = meta_of(tmp_path, made.files(info=values, episodes=columns))
    assert (meta.total_episodes, meta.total_frames, meta.fps) == (4, 18, 10)
    assert type(meta.fps) is int
    assert meta.depth_keys == ["depth", "far"]
    assert meta.image_keys == ["far"]
    assert meta.info.features["depth"].depth == Depth("m", 0.01, 4.0, 3.5, True)
    assert meta.get_data_file_path(0) == Path("data/chunk-000/file-000.parquet")


def test_a_data_set_without_videos_needs_no_template_for_them(tmp_path: Path) -> None:
    plain = {"action": {"dtype": "float32", "shape": [2], "names": None}}
    meta = meta_of(tmp_path, with_info(features=plain, video_path=None))
    assert meta.video_keys == []
    assert meta.episodes.videos == {}


# --- as it must be refused

INFOS: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{", r"meta/info\.json: it is not JSON"),
    "not text": (b"\xff\xfe{}", "it is not JSON"),
    "deep": (b"[" * 100_000, "it is not JSON"),
    "a list": (b"[1]", "it holds a list of 1, where an object"),
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "v2.1": ({"codebase_version": "v2.1"}, r"format v2\.1, .*convert_dataset_v21_to_v30 --repo-id="),
    "v2.0": ({"codebase_version": "v2.0"}, r"format v2\.0, .*convert_dataset_v21_to_v30"),
    "v4.0": ({"codebase_version": "v4.0"}, r"format v4\.0, which is newer.*update headrace"),
    "no version": ({"codebase_version": ...}, "codebase_version is missing, not a version like 'v3.0'"),
    "odd version": (
        {"codebase_version": "\x1b[31m"},
        r"codebase_version is text of 5 characters, not a version like 'v3\.0'",
    ),
    "other storage": ({"storage_format": "lance"}, "storage_format is text of 5 characters, not 'parquet'; only"),
    "no fps": ({"fps": ...}, "fps is missing, not a"),
    "fps 0": ({"fps": 0}, "fps is 0, not a whole number of frames per second above 0"),
    "fps NaN": ({"fps": math.nan}, "fps is nan"),
    "fps inf": ({"fps": math.inf}, "fps is inf"),
    "fps 29.97": ({"fps": 29.97}, r"fps is 29\.97"),
    "fps below 0": ({"fps": -30}, "fps is -30"),
    "fps true": ({"fps": True}, "fps is true, not a"),
    "fps text": ({"fps": "30"}, "fps is text of 2 characters, not a"),
    "fps huge": ({"fps": 10**30}, "fps is 1000000"),
    "no features": ({"features": ...}, "features is missing, where an object"),
    "features []": ({"features": []}, "features is a list of 0, where"),
    "features {}": ({"features": {}}, "features is an object of 0 keys, where"),
    "a feature of text": (
        {"features": {"a": "float32"}},
        "feature 'a' is text of 7 characters, where an object with dtype",
    ),
    "a name with /": (
        {"features": made.features(**{"a/b": made.video()})},
        "feature 'a/b': its name is empty or has a",
    ),
    "no name": ({"features": made.features(**{"": made.video()})}, "feature '': its name is empty"),
    "no dtype": ({"features": {"a": {"shape": [1]}}}, "feature 'a': its dtype is missing, not text"),
    "no shape": ({"features": {"a": {"dtype": "int64"}}}, "feature 'a': its shape is missing, not a list"),
    "odd shape": (
        {"features": {"a": {"dtype": "int64", "shape": [-1]}}},
        "its shape is a list of 1 with -1 in it, not a list of sizes",
    ),
    "huge shape": ({"features": {"a": {"dtype": "int64", "shape": [2**40]}}}, "not a list of sizes"),
    "odd unit": (
        {"features": {"d": made.video(info={"is_depth_map": True, "depth_unit": "ft"})}},
        "depth_unit is text of 2 characters, not 'm' or 'mm'",
    ),
    "odd depth": (
        {"features": {"d": made.video(info={"is_depth_map": True, "video.shift": "x"})}},
        r"video\.shift is text of 1 character, not a number of metres",
    ),
    "no log of it": (
        {"features": {"d": made.video(info={"is_depth_map": True, "video.shift": -5})}},
        "cannot be codes",
    ),
    "frames": ({"total_frames": -1}, "total_frames is -1"),
    "episodes": ({"total_episodes": "4"}, "total_episodes is text of 1 character, not a whole number"),
    "no videos": ({"video_path": None}, "video_path is null, but there are features of dtype video"),
    "cameras in one": (
        {"video_path": "v/{file_index}.mp4"},
        r"has no \{video_key\}, so that all 2 cameras were one",
    ),
    "data_path": ({"data_path": 7}, "path template data_path in meta/info.json: it is 7, not text of 1 to"),
}


@pytest.mark.parametrize("case", INFOS)
def test_what_is_no_info_is_refused(tmp_path: Path, case: str) -> None:
    content, said = INFOS[case]
    check_refused(refusal(lambda: meta_of(tmp_path, made.files() | {INFO: content})), DataError, said)


@pytest.mark.parametrize("case", WRONG)
def test_info_with_a_wrong_field_names_the_file_and_the_field(tmp_path: Path, case: str) -> None:
    fields, said = WRONG[case]
    error = refusal(lambda: meta_of(tmp_path, with_info(**fields)))
    check_refused(error, DataError, said)
    assert str(error).startswith(f"{tmp_path}/set, meta/info.json: ")


HOSTILE_KEYS = ["..", ".", "a\\..\\b", "a\0b", "a\nb", "\x1b[2J", "x" * 300, ".x.part", "a\ud800"]


@pytest.mark.parametrize("key", HOSTILE_KEYS)
def test_a_camera_whose_name_is_no_name_of_a_folder_is_refused(key: str) -> None:
    raw = json.dumps(made.info(features=made.features(**{key: made.video()}))).encode()
    check_refused(refusal(lambda: Info.parse(raw, "here")), NotAllowed, "^here: feature '.*file name '.*' is refused")
    # Of anything else it is only the name of a column.
    Info.parse(json.dumps(made.info(features=made.features(**{key: {"dtype": "int64", "shape": [1]}}))).encode(), "x")


TEMPLATES: dict[str, type[HeadraceError]] = {
    "../{file_index:03d}.parquet": NotAllowed,
    "data/../../{file_index}": NotAllowed,
    "/data/{chunk_index:03d}/{file_index:03d}.parquet": NotAllowed,
    "data//{file_index}": NotAllowed,
    "./{file_index}": NotAllowed,
    "data\\{file_index}": NotAllowed,
    "data/\0{file_index}": NotAllowed,
    "data/{file_index}\n": NotAllowed,
    "data/.rev-{file_index}": NotAllowed,
    "data/{chunk_index:099d}{chunk_index:099d}{chunk_index:099d}": NotAllowed,
    "data/{0.__class__}": DataError,
    "data/{chunk_index.__class__}": DataError,
    "data/{chunk_index[0]}": DataError,
    "data/{chunk_index!r}": DataError,
    "data/{chunk_index!s:03d}": DataError,
    "data/{chunk_index:0999999999d}": DataError,
    "data/{chunk_index:0100d}": DataError,
    "data/{chunk_index:3d}": DataError,
    "data/{chunk_index:00d}": DataError,
    "data/{chunk_index:x}": DataError,
    "data/{chunk_index:{file_index}}": DataError,
    "data/{episode_index:06d}": DataError,
    "data/{}": DataError,
    "data/{0}": DataError,
    "data/{video_key}": DataError,
    "data/{": DataError,
    "data/}": DataError,
    "data/{chunk_index": DataError,
    "data/{chunk_index!}": DataError,
    "": DataError,
    "x" * 2000: DataError,
}


@pytest.mark.parametrize("text", TEMPLATES)
def test_a_template_can_do_nothing_but_place_numbers(tmp_path: Path, text: str) -> None:
    error = refusal(lambda: meta_of(tmp_path, with_info(data_path=text)))
    check_refused(error, TEMPLATES[text], r"set, meta/info\.json: path template data_path in meta/info\.json")


def test_a_template_gives_what_format_gives() -> None:
    text = "v/{video_key}/c-{chunk_index:03d}/{{{file_index:012d}}}-{file_index}.mp4"
    template = Template.parse("video_path", text, ("video_key", "chunk_index", "file_index"))
    for numbers in ({"chunk_index": 0, "file_index": 7}, {"chunk_index": 12345, "file_index": 10**9}):
        assert template.format(video_key="a.b", **numbers) == text.format(video_key="a.b", **numbers)
    assert template.fields == {"video_key", "chunk_index", "file_index"}
    check_refused(
        refusal(lambda: template.format(video_key="..", chunk_index=0, file_index=0)), NotAllowed, "leads out"
    )
    check_refused(
        refusal(lambda: template.format(video_key="a", chunk_index=-1, file_index=0)), DataError, "chunk_index=-1"
    )
    check_refused(refusal(lambda: Template.parse("p", "{video_key:03d}", ("video_key",))), DataError, "field 1")


def test_two_files_never_have_one_name() -> None:
    template = Template.parse("data_path", "data/{file_index}", ("chunk_index", "file_index"))
    assert template.format(chunk_index=0, file_index=3) == "data/3"
    error = refusal(lambda: template.format(chunk_index=1, file_index=3))
    check_refused(error, DataError, "has no place for chunk_index=1")


ROWS: dict[str, tuple[dict[str, list[Any]], str]] = {
    "length 0": ({"length": [5, 0, 4, 6]}, "episode 1: its length is 0 frames"),
    "length below 0": ({"length": [5, -3, 4, 6]}, "episode 1: its length is -3"),
    "length huge": ({"length": [5, 3, 2**62, 6]}, "episode 2: its length is 4611686018427387904"),
    "another length": ({"length": [5, 3, 5, 6]}, "episode 2: its length is 5, but its rows go from 8 to 12"),
    "several": ({"length": [5, 4, 5, 6]}, r"episode 1: .* \(and 1 more episodes\); mend"),
    "overlap": (
        {"from_index": [0, 4, 8, 12], "length": [5, 4, 4, 6]},
        "episode 1: its rows 4 to 8 are those of another",
    ),
    "twice": ({"from_index": [0, 5, 12, 12], "to_index": [5, 8, 18, 18], "length": [5, 3, 6, 6]}, "rows 12 to 18 are"),
    "below 0": ({"from_index": [-1, 5, 8, 12]}, "episode 0: its rows -1 to 5 are outside the 18 frames"),
    "beyond": ({"to_index": [5, 8, 12, 19]}, "episode 3: its rows 12 to 19 are outside the 18 frames"),
    "backwards": ({"to_index": [5, -(2**63), 12, 18]}, "episode 1: its rows 5 to -92"),
    "number below 0": ({"episode_index": [-1, 1, 2, 3]}, "episode -1: its number is below 0"),
    "file below 0": ({"data_file_index": [0, 0, -1, 1]}, "episode 2: its data/file_index is -1"),
    "chunk huge": ({"data_chunk_index": [0, 0, 0, 2**40]}, "episode 3: its data/chunk_index is 1099511627776"),
    "video file": ({"top_file_index": [0, -7, 1, 1]}, rf"episode 1: its videos/{TOP}/file_index is -7"),
    "NaN": (
        {"top_from_timestamp": [0, math.nan, 0, 0]},
        rf"episode 1: its videos/{TOP}/from_timestamp is nan, which is",
    ),
    "inf": ({"wrist_from_timestamp": [0, 0, math.inf, 0]}, "episode 2: its videos/.*from_timestamp is inf"),
    "time below 0": ({"wrist_from_timestamp": [0, 0, -1.0, 0]}, "episode 2: its videos/.*from_timestamp is -1.0"),
    "time huge": ({"wrist_from_timestamp": [0, 0, 1e300, 0]}, r"from_timestamp is 1e\+300, which is no time"),
    "null": ({"length": [5, None, 4, 6]}, "column 'length' has 1 nulls"),
    "text": ({"length": ["5", "3", "4", "6"]}, "column 'length' holds string, where numbers"),
    "half": ({"length": [5.5, 3.0, 4.0, 6.0]}, "column 'length' holds numbers that are not whole"),
    "no number": ({"length": [math.nan, 3.0, 4.0, 6.0]}, "column 'length' holds numbers that are not whole"),
}


@pytest.mark.parametrize("case", ROWS)
def test_an_episode_that_cannot_be_is_named(tmp_path: Path, case: str) -> None:
    columns, said = ROWS[case]
    error = refusal(lambda: meta_of(tmp_path, with_episodes(**columns)))
    check_refused(error, DataError, said)
    assert "set/meta/episodes" in str(error)


@pytest.mark.parametrize("column", ["length", "data/file_index", f"videos/{WRIST}/from_timestamp"])
def test_a_column_that_is_missing_is_named(tmp_path: Path, column: str) -> None:
    shape = made.episodes()
    del shape[column]
    error = refusal(lambda: meta_of(tmp_path, made.files() | {EPISODES: made.parquet(shape)}))
    check_refused(error, DataError, f"file-000.parquet has no column '{column}'; without it")


PARTS: dict[str, tuple[dict[str, bytes | None], type[HeadraceError], str]] = {
    "no info": ({INFO: None}, NotFound, "set is no LeRobot data set: it has no meta/info.json"),
    "no episodes": ({EPISODES: None}, NotFound, "no parquet files in meta/episodes"),
    "no tasks": ({TASKS: None}, NotFound, "meta/tasks.parquet: no such file"),
    "no parquet": ({EPISODES: b"PAR0" * 9}, DataError, "file-000.parquet has no parquet footer"),
    "empty": ({EPISODES: b""}, DataError, "has 0 bytes and so is no parquet file"),
    "cut": ({TASKS: made.tasks()[:-20]}, DataError, "tasks.parquet has no parquet footer"),
    "no texts": (
        {TASKS: made.parquet({"task_index": [0]})},
        DataError,
        "no column of texts, which tasks are, but task_index",
    ),
    "stats": ({STATS: b"nothing"}, DataError, r"meta/stats\.json is not JSON"),
    "stats []": ({STATS: b"[]"}, DataError, "is not an object of statistics by feature"),
    "ragged stats": (
        {STATS: b'{"a": {"min": [[1], [2, 3]]}}'},
        DataError,
        "'min' of feature 'a' is not an array of num",
    ),
    "stats of text": ({STATS: b'{"a": {"min": ["x"]}}'}, DataError, "is not an array of numbers"),
}


@pytest.mark.parametrize("case", PARTS)
def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path, case: str) -> None:
    parts, kind, said = PARTS[case]
    content = {path: data for path, data in (made.files() | parts).items() if data is not None}
    check_refused(refusal(lambda: meta_of(tmp_path, content)), kind, said)


def test_a_broken_byte_is_a_data_error_or_nothing(tmp_path: Path) -> None:
    """Whatever stands in the files, there is metadata or an error of the family."""
    content, whole = made.files(), made.files()[EPISODES]
    outcomes = set()
    for at in range(0, len(whole), 37):
        content[EPISODES] = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        try:
            meta_of(tmp_path, content)
            outcomes.add("read")
        except HeadraceError as error:
            outcomes.add("refused" if str(error).isprintable() else str(error))
    assert outcomes == {"read", "refused"}


def test_a_file_of_more_rows_than_anyone_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "MOST_ROWS", 3)
    check_refused(refusal(lambda: meta_of(tmp_path)), DataError, "says it has 4 rows, more than the 3")


# --- sizes


MEASURE = """
import sys, time, numpy, pyarrow.parquet
from headrace.lerobot.meta import Meta
from headrace.lerobot.root import Root
from headrace.run import Run

def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024

before, start = peak(), time.process_time()
meta = Meta.open(Root.open(sys.argv[1], Run()))
print(len(meta.episodes), time.process_time() - start, peak() - before)
print(sorted({"pandas", "torch", "datasets"} & set(sys.modules)))
"""


def test_a_hundred_thousand_episodes_take_less_than_a_second_and_60_mb(tmp_path: Path) -> None:
    lengths = np.full(100_000, 10)
    starts = np.arange(100_000) * 10
    columns: dict[str, Any] = {
        "stats/action/mean": pa.FixedSizeListArray.from_arrays(pa.array(np.random.default_rng(0).random(800_000)), 8),
        "episode_index": np.arange(100_000),
        "length": lengths,
        "data/chunk_index": starts * 0,
        "data/file_index": starts // 10_000,
        "dataset_from_index": starts,
        "dataset_to_index": starts + 10,
    }
    for key in (TOP, WRIST):
        columns |= {f"videos/{key}/chunk_index": starts * 0, f"videos/{key}/file_index": starts // 1000}
        columns |= {f"videos/{key}/from_timestamp": starts / 10, f"videos/{key}/to_timestamp": starts / 10 + 1}
    content = made.files(info=made.info(total_frames=1_000_000), episodes=None)
    content[EPISODES] = made.parquet(columns, row_group_size=1000)
    folder = made.write(tmp_path / "set", content)
    done = subprocess.run([sys.executable, "-c", MEASURE, str(folder)], capture_output=True, text=True, check=True)
    numbers, heavy = done.stdout.splitlines()
    count, seconds, megabytes = map(float, numbers.split())
    assert count == 100_000
    assert seconds < 1
    assert megabytes < 60
    assert heavy == "[]"


def test_paths_are_those_of_the_files_in_the_data_set(tmp_path: Path) -> None:
    meta = meta_of(tmp_path)
    for place, number in enumerate(meta.episodes.index.tolist()):
        path = meta.get_data_file_path(number)
        chunk, file = int(meta.episodes.data_chunk[place]), int(meta.episodes.data_file[place])
        assert PurePosixPath(path) == PurePosixPath(meta.info.data_file(chunk, file))
        assert meta.files.has(str(path))
