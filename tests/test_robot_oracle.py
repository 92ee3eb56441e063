"""The robot data sets of the tests are what LeRobot writes, and the plain reader of them is right at every frame."""

from __future__ import annotations

import ast
import json
import logging
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from headrace.errors import DataError, SpecError
from headrace.testing import (
    EVERY_KIND,
    Camera,
    Dirt,
    MapStyleRobotDataset,
    RobotPlan,
    frame_identity,
    item_differences,
    robot_oracle,
    write_robot_dataset,
)
from headrace.testing.robot.pixels import FrameIdentity, draw_frames
from headrace.testing.robot.table import values
from headrace.testing.robot.video import encoded_episode, frames_of

LENGTHS = (7, 12, 5, 9, 1, 6)
TOP, WRIST = "observation.images.top", "observation.images.wrist"
CAMERAS = {
    TOP: Camera(episodes_per_file=2),
    WRIST: Camera(codec="h264", episodes_per_file=(1, 3), channels_first=True),
    "still": Camera(kind="image"),
    "depth": Camera(height=50, width=70, depth=True, episodes_per_file=4),
    "depth.still": Camera(kind="image", depth=True),
    "depth.metres": Camera(kind="image", depth=True, depth_unit="m"),
}
PLAN = RobotPlan(episodes=LENGTHS, cameras=CAMERAS, extra_features=EVERY_KIND)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_robot_dataset(tmp_path_factory.mktemp("robot"), **vars(PLAN))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> MapStyleRobotDataset:
    return MapStyleRobotDataset(write_robot_dataset(tmp_path_factory.mktemp("plain"), episodes=LENGTHS))


def places() -> list[tuple[int, int]]:
    return [(episode, frame) for episode, length in enumerate(LENGTHS) for frame in range(length)]


def episode_rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("meta/episodes/*/*.parquet")):
        rows += pq.read_table(path).to_pylist()
    return rows


def boxes(path: Path) -> list[str]:
    """The top-level boxes of an mp4."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        found.append(data[at + 4 : at + 8].decode())
        at += int.from_bytes(data[at : at + 4], "big")
    return found


def packets(path: Path) -> list[tuple[int, bool]]:
    """Frame number and whether it is a key frame, of each packet in the order of decoding."""
    with av.open(str(path), "r") as container:
        stream: Any = container.streams.video[0]
        step = 1 / (stream.average_rate * stream.time_base)
        shown = [(p.pts / step, p.is_keyframe) for p in container.demux(stream) if p.pts is not None]
    assert all(number.denominator == 1 for number, _ in shown)
    return [(int(number), key) for number, key in shown]


def test_each_episode_is_one_row_group_and_never_in_two_files(folder: Path) -> None:
    groups = []
    for path in sorted(folder.glob("data/*/*.parquet")):
        meta = pq.read_metadata(path)
        groups.append([meta.row_group(i).num_rows for i in range(meta.num_row_groups)])
    assert groups == [[7, 12, 5, 9], [1, 6]]


@pytest.mark.parametrize(("row_groups", "wanted"), [("unaligned", [7, 7, 7, 3]), ("one", [24])])
def test_row_groups_need_not_end_where_episodes_do(tmp_path: Path, row_groups: str, wanted: list[int]) -> None:
    write_robot_dataset(
        tmp_path, episodes=(7, 12, 5), cameras={}, row_groups=row_groups, lists="plain", tasks_index=None
    )
    file = pq.ParquetFile(tmp_path / "data/chunk-000/file-000.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == wanted
    assert str(file.schema_arrow.field("action").type) == "list<element: float>"
    assert not file.schema_arrow.metadata
    read = MapStyleRobotDataset(tmp_path)
    assert [int(read[i]["index"]) for i in range(len(read))] == list(range(24))
    assert read.tasks == list(RobotPlan().tasks)


def test_columns_have_the_types_that_lerobot_writes(folder: Path) -> None:
    schema = pq.read_schema(folder / "data/chunk-000/file-000.parquet")
    info = json.loads((folder / "meta/info.json").read_text())
    types = {field.name: str(field.type) for field in schema}
    assert list(types) == [name for name, feature in info["features"].items() if feature["dtype"] != "video"]
    assert types["observation.state"] == "fixed_size_list<element: float>[6]"
    assert types["observation.grid"] == "list<element: list<element: float>>"
    assert types["observation.touch"] == "fixed_size_list<element: uint8>[4]"
    assert types["observation.buttons"] == "fixed_size_list<element: bool>[2]"
    assert types["still"] == types["depth.still"] == "struct<bytes: binary, path: string>"
    scalars = ("next.reward", "next.done", "note", "timestamp", "index")
    assert " ".join(types[name] for name in scalars) == "float bool string float int64"
    described = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert list(described) == list(types)
    assert described["observation.grid"] == {"shape": [3, 4], "dtype": "float32", "_type": "Array2D"}
    assert schema.field("observation.grid").metadata[b"ARROW:extension:metadata"] == b'[[3, 4], "float32"]'
    assert info["features"][WRIST]["shape"] == [3, 48, 64]
    assert info["features"]["depth"]["info"]["is_depth_map"] is True


def test_rows_count_frames_and_tasks_change_within_an_episode(folder: Path) -> None:
    rows = [row for path in sorted(folder.glob("data/*/*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert [row["index"] for row in rows] == list(range(sum(LENGTHS)))
    assert [(row["episode_index"], row["frame_index"]) for row in rows] == places()
    assert [row["timestamp"] for row in rows] == [float(np.float32(frame / 10)) for _, frame in places()]
    per_episode = [{r["task_index"] for r in rows if r["episode_index"] == e} for e in range(len(LENGTHS))]
    assert per_episode == [{0}, {1, 2}, {2}, {0, 1}, {1}, {2, 0}]
    assert [row["tasks"] for row in episode_rows(folder)][1] == ["put it into the box", "wait"]


def test_tasks_are_the_index_of_a_pandas_frame(folder: Path) -> None:
    pandas: Any = import_module("pandas")
    tasks = pandas.read_parquet(folder / "meta/tasks.parquet")
    assert list(tasks.index) == list(RobotPlan().tasks)
    assert tasks.index.name == "task"
    assert list(tasks["task_index"]) == [0, 1, 2]


def test_every_episode_begins_on_a_key_frame_and_frames_come_at_an_even_pace(folder: Path) -> None:
    for key, camera in PLAN.videos.items():
        paths = sorted(folder.glob(f"videos/{key}/*/*.mp4"))
        for path, (_, _, episodes) in zip(paths, PLAN.files(camera.episodes_per_file), strict=True):
            found = packets(path)
            lengths = [LENGTHS[e] for e in episodes]
            starts = {sum(lengths[:i]) for i in range(len(lengths))}
            assert sorted(number for number, _ in found) == list(range(sum(lengths)))
            keys = sorted(number for number, is_key in found if is_key)
            assert starts <= set(keys)
            assert max(np.diff([*keys, sum(lengths)])) <= 2


def test_the_index_of_an_mp4_is_in_front_if_it_holds_several_episodes_and_else_at_the_end(folder: Path) -> None:
    assert boxes(folder / f"videos/{TOP}/chunk-000/file-000.mp4")[:2] == ["ftyp", "moov"]
    assert boxes(folder / f"videos/{WRIST}/chunk-000/file-001.mp4")[:2] == ["ftyp", "moov"]
    assert boxes(folder / f"videos/{WRIST}/chunk-000/file-000.mp4")[-1] == "moov"


def test_cameras_and_data_files_roll_over_at_different_episodes(folder: Path) -> None:
    rows = episode_rows(folder)
    assert [row["data/file_index"] for row in rows] == [0, 0, 0, 0, 1, 1]
    assert [row[f"videos/{TOP}/file_index"] for row in rows] == [0, 0, 1, 1, 2, 2]
    assert [row[f"videos/{WRIST}/file_index"] for row in rows] == [0, 1, 1, 1, 2, 2]
    assert [row["videos/depth/file_index"] for row in rows] == [0, 0, 0, 0, 1, 1]
    for key in PLAN.videos:
        before: dict[str, Any] = {}
        for row, length in zip(rows, LENGTHS, strict=True):
            new = row[f"videos/{key}/file_index"] != before.get(f"videos/{key}/file_index")
            assert row[f"videos/{key}/from_timestamp"] == (0.0 if new else before[f"videos/{key}/to_timestamp"])
            assert row[f"videos/{key}/to_timestamp"] - row[f"videos/{key}/from_timestamp"] == pytest.approx(length / 10)
            before = row


def test_files_go_into_several_chunks_and_where_the_templates_say(tmp_path: Path) -> None:
    write_robot_dataset(
        tmp_path,
        episodes=(2, 3, 2),
        cameras={TOP: Camera(episodes_per_file=1)},
        episodes_per_data_file=1,
        episodes_per_meta_file=1,
        files_per_chunk=2,
        video_path="films/{video_key}-{chunk_index}-{file_index:02d}.mp4",
    )
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*") if path.suffix in (".mp4", ".parquet")}
    assert {f"films/{TOP}-0-00.mp4", f"films/{TOP}-1-00.mp4", "data/chunk-001/file-000.parquet"} < found
    assert "meta/episodes/chunk-001/file-000.parquet" in found
    assert frame_identity(MapStyleRobotDataset(tmp_path)[6][TOP]) == (2, 1, 0)


def test_the_same_options_give_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    def tree(name: str, seed: int) -> dict[str, bytes]:
        encoded_episode.cache_clear()
        made = write_robot_dataset(tmp_path / name, episodes=(4, 3), cameras=CAMERAS, seed=seed)
        return {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*.*") if path.is_file()}

    first, other = tree("a", 0), tree("c", 1)
    assert first == tree("b", 0)
    assert first.keys() == other.keys()
    assert {name for name in first if first[name] == other[name]} == {"meta/info.json", "meta/tasks.parquet"}


@pytest.mark.parametrize("gop", [2, 30])
@pytest.mark.parametrize("codec", ["av1", "h264", "hevc", "vp9"])
def test_identities_survive_every_codec(tmp_path: Path, codec: str, gop: int) -> None:
    lengths = (33, 1, 8, 2)
    camera = Camera(codec=codec, gop=gop, height=64, width=80, episodes_per_file=4)
    write_robot_dataset(tmp_path, episodes=lengths, fps=30, cameras={"eye": camera, "other": Camera(kind="image")})
    read = MapStyleRobotDataset(tmp_path, return_uint8=True)
    found = [frame_identity(read[i]["eye"]) for i in range(len(read))]
    assert found == [(e, f, 0) for e, n in enumerate(lengths) for f in range(n)]


def test_pixels_that_say_nothing_clear_are_refused() -> None:
    one, other = (draw_frames(FrameIdentity(3, frame, 1), 1, 48, 64, 0)[0] for frame in (100, 227))
    assert frame_identity(one) == (3, 100, 1)
    assert frame_identity(torch.from_numpy(one).permute(2, 0, 1) / 255) == (3, 100, 1)
    assert frame_identity(draw_frames(FrameIdentity(511, 8191, 15), 1, 32, 32, 9)[0]) == (511, 8191, 15)
    for spoilt in ((one.astype(int) + other) // 2, one[::-1], np.zeros_like(one)):
        with pytest.raises(DataError, match="do not say which frame"):
            frame_identity(spoilt)
    with pytest.raises(DataError, match="one frame at a time"):
        frame_identity(np.stack([one, one]))


def test_plans_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    for options in ({"episodes": ()}, {"episodes": (3, 0)}, {"row_groups": "two"}, {"lists": "ragged"}):
        with pytest.raises(SpecError):
            write_robot_dataset(tmp_path, **options)
    with pytest.raises(SpecError):
        write_robot_dataset(tmp_path, episodes=(3,), dirt=Dirt(missing_frames={0: 3}))
    assert list(tmp_path.iterdir()) == []


def test_it_gives_the_right_row_and_the_right_frames_everywhere(folder: Path) -> None:
    read = MapStyleRobotDataset(folder)
    assert len(read) == sum(LENGTHS)
    for number, (episode, frame) in enumerate(places()):
        item = read[number]
        assert set(item) == {*read.features, "task"}
        assert (item["index"], item["episode_index"], item["frame_index"]) == (number, episode, frame)
        assert item["task"] == PLAN.tasks[PLAN.task_of(episode, frame)]
        for key in CAMERAS:
            assert frame_identity(item[key]) == (episode, frame, PLAN.number(key))
        for name in ("observation.state", "action", "observation.pose", "observation.grid", "observation.touch"):
            wanted = values(PLAN, name, episode, frame + 1)[frame]
            assert np.array_equal(item[name].numpy(), wanted.astype(item[name].numpy().dtype))
        assert item["note"] == f"note of frame {frame} in episode {episode}"


def test_values_have_lerobots_types_and_shapes(folder: Path) -> None:
    item = MapStyleRobotDataset(folder)[20]
    tensors = {key: value for key, value in item.items() if not isinstance(value, str)}
    found = {key: (str(value.dtype).removeprefix("torch."), tuple(value.shape)) for key, value in tensors.items()}
    assert found == {
        "observation.state": ("float32", (6,)),
        "action": ("float32", (4,)),
        "observation.grid": ("float32", (3, 4)),
        "observation.pose": ("float32", (3,)),
        "observation.buttons": ("bool", (2,)),
        "observation.counts": ("int64", (3,)),
        "observation.touch": ("int64", (4,)),
        "next.done": ("bool", ()),
        "depth": ("float32", (1, 50, 70)),
        **dict.fromkeys(("depth.still", "depth.metres"), ("float32", (1, 48, 64))),
        **dict.fromkeys((TOP, WRIST, "still"), ("float32", (3, 48, 64))),
        **dict.fromkeys(("next.reward", "timestamp"), ("float32", ())),
        **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), ("int64", ())),
    }
    assert all(0 <= item[key].min() < 0.5 < item[key].max() <= 1 for key in (TOP, WRIST, "still"))


def test_windows_are_clamped_to_the_episode_and_say_so(folder: Path) -> None:
    steps = {TOP: [-9, -1, 0, 1, 4], WRIST: [2], "still": [-1, 1], "depth": [0, -2]}
    steps |= {"action": [0, 0, 3], "next.reward": [-1]}
    read = MapStyleRobotDataset(folder, {key: [s / 10 for s in own] for key, own in steps.items()})
    for number, (episode, frame) in enumerate(places()):
        item = read[number]
        assert set(item) == {*read.features, "task", *(f"{key}_is_pad" for key in steps)}
        for key, own in steps.items():
            wanted = [min(max(frame + s, 0), LENGTHS[episode] - 1) for s in own]
            masks = [not 0 <= frame + s < LENGTHS[episode] for s in own]
            assert item[f"{key}_is_pad"].dtype == torch.bool
            assert item[f"{key}_is_pad"].tolist() == masks
            if key in CAMERAS:
                stack = item[key][None] if key == WRIST else item[key]
                assert [frame_identity(x) for x in stack] == [(episode, f, PLAN.number(key)) for f in wanted]
            else:
                found = np.asarray(values(PLAN, key, episode, LENGTHS[episode]))[wanted].reshape(item[key].shape)
                assert np.array_equal(item[key].numpy(), found)
    shapes = [tuple(item[key].shape) for key in (TOP, WRIST, "depth", "action", "next.reward")]
    assert shapes == [(5, 3, 48, 64), (3, 48, 64), (2, 1, 50, 70), (3, 4), (1,)]


def test_windows_of_one_keep_their_axis_except_for_videos(folder: Path) -> None:
    keys = (TOP, "depth", "still", "depth.still", "action")
    item = MapStyleRobotDataset(folder, {key: [0.0] for key in keys})[3]
    shapes = [tuple(item[key].shape) for key in keys]
    assert shapes == [(3, 48, 64), (1, 50, 70), (1, 3, 48, 64), (1, 1, 48, 64), (1, 4)]


def test_depth_comes_in_millimetres_to_the_step_of_its_code(folder: Path) -> None:
    read = MapStyleRobotDataset(folder)
    for number, (episode, frame) in list(enumerate(places()))[::7]:
        for key in ("depth", "depth.still", "depth.metres"):
            drawn = frames_of(CAMERAS[key], FrameIdentity(episode, frame, PLAN.number(key)), 1, 0)[0].astype(np.float32)
            off = np.abs(read[number][key].numpy()[0] - drawn)
            assert off.max() <= (1e-3 if key != "depth" else 0.5 + drawn.max() / 4095 + 1)
            assert key != "depth" or off.max() > 0


def test_only_the_asked_episodes_come_in_the_order_of_the_data_set(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        read = MapStyleRobotDataset(folder, {"action": [-1.0, 1.0]}, episodes=[4, 1, 77])
    assert "no episodes [77]" in caplog.text
    assert [int(read[i]["index"]) for i in range(len(read))] == [*range(7, 19), 33]
    whole = MapStyleRobotDataset(folder, {"action": [-1.0, 1.0]})
    for i in range(len(read)):
        assert item_differences(read[i], whole[int(read[i]["index"])]) == []


def test_transforms_are_for_pictures_and_uint8_for_videos(folder: Path) -> None:
    plain = MapStyleRobotDataset(folder)[8]
    turned = MapStyleRobotDataset(folder, image_transforms=lambda picture: 1 - picture)[8]
    for key in CAMERAS:
        assert torch.equal(turned[key], plain[key] if "depth" in key else 1 - plain[key])
    narrow = MapStyleRobotDataset(folder, return_uint8=True)[8]
    for key in CAMERAS:
        assert narrow[key].dtype == (torch.uint8 if key in (TOP, WRIST) else torch.float32)
    assert torch.equal(narrow[TOP].float() / 255, plain[TOP])


def test_windows_that_fall_between_frames_or_name_no_feature_are_errors(folder: Path) -> None:
    with pytest.raises(SpecError, match="no whole number of frames"):
        MapStyleRobotDataset(folder, {"action": [0.05]})
    MapStyleRobotDataset(folder, {"action": [0.05]}, tolerance_s=0.05)
    read = MapStyleRobotDataset(folder, {"no such": [0.0]})
    with pytest.raises(KeyError):
        read[0]


@pytest.mark.parametrize(
    "dirt",
    [
        Dirt(stale_file_index=True, shuffled_columns=True),
        Dirt(orphan_rows=True, orphan_file=True, shadow_file=True),
        Dirt(stale_file_index=True, orphan_rows=True, orphan_file=True),
        Dirt(ragged_column=True, no_stats=True),
        Dirt(hardware_timestamps=True),
        Dirt(drift_s=1e-3),
    ],
)
@pytest.mark.parametrize("row_groups", ["episode", "unaligned"])
def test_dirt_changes_no_item(tmp_path: Path, plain: MapStyleRobotDataset, dirt: Dirt, row_groups: str) -> None:
    write_robot_dataset(tmp_path, episodes=LENGTHS, dirt=dirt, row_groups=row_groups, episodes_per_meta_file=2)
    read = MapStyleRobotDataset(tmp_path)
    assert len(read) == len(plain)
    for i in range(len(read)):
        found = item_differences(read[i], plain[i])
        assert [line.partition(":")[0] for line in found] == (["timestamp"] if dirt.hardware_timestamps else [])


def test_dirt_is_really_there(tmp_path: Path) -> None:
    orphans = Dirt(orphan_rows=True, orphan_file=True, shadow_file=True)
    dirt = replace(orphans, stale_file_index=True, ragged_column=True, no_stats=True)
    write_robot_dataset(tmp_path, episodes=LENGTHS, cameras={}, dirt=dirt)
    assert {row["data/file_index"] for row in episode_rows(tmp_path)} == {0}
    tables = [pq.read_table(path) for path in sorted(tmp_path.glob("data/*/*.parquet"))]
    assert [sorted(set(table["episode_index"].to_pylist())) for table in tables] == [[0, 1, 2, 3], [4, 5, 6], [7], [0]]
    assert tables[3]["index"].to_pylist() == tables[0]["index"].to_pylist()[:7]
    assert tables[3]["action"].to_pylist() != tables[0]["action"].to_pylist()[:7]
    assert {len(row) for row in tables[0]["language_events"].to_pylist()} == {0, 1, 2}
    assert not (tmp_path / "meta/stats.json").exists()


def test_frames_that_a_video_lacks_are_errors_and_the_others_stay_right(tmp_path: Path) -> None:
    write_robot_dataset(tmp_path, episodes=LENGTHS, dirt=Dirt(missing_frames={2: 2}))
    read = MapStyleRobotDataset(tmp_path)
    for number, (episode, frame) in enumerate(places()):
        if episode == 2 and frame >= 3:
            with pytest.raises(DataError, match=f"frame {frame} of episode 2 is not in"):
                read[number]
        else:
            assert frame_identity(read[number][WRIST]) == (episode, frame, 1)


def test_it_shares_no_code_with_the_reader_under_test() -> None:
    tree = ast.parse(Path(robot_oracle.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module for module in modules if module and module.startswith("headrace")} == {"headrace.errors"}
