"""Arguments and attributes that LeRobot's own data sets have are here under the same names, with the same meaning."""

from __future__ import annotations

import inspect
import logging
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from robots import EPISODES, FPS, NUM_FRAMES, assert_same, numbers, small_set

from headrace import StreamingLeRobotDataset
from headrace.errors import SpecError
from headrace.testing import Camera, LocalHub, MapStyleRobotDataset, write_robot_dataset

TOP = "observation.images.top"
SUBTASKS = ("reach", "grasp", "lift")
THEIRS = (
    "repo_id root episodes image_transforms delta_timestamps tolerance_s revision force_cache_sync streaming "
    "buffer_size max_num_shards seed rng shuffle return_uint8 depth_output_unit repo_type download_videos video_backend"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_set(tmp_path_factory.mktemp("robots") / "set", subtasks=SUBTASKS)


def stream(folder: Path, tmp_path: Path, **options: Any) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset("org/robot", root=folder, cache_dir=tmp_path / "cache", **options)


# --- arguments


def test_all_of_their_arguments_are_taken() -> None:
    ours = inspect.signature(StreamingLeRobotDataset).parameters
    assert [name for name in THEIRS.split() if name not in ours] == []


def test_their_factory_s_call(folder: Path, tmp_path: Path) -> None:
    """As `lerobot.datasets.factory.make_dataset` calls it; without workers, `max_num_shards` is 0."""
    data = StreamingLeRobotDataset(
        "org/robot",
        root=folder,
        episodes=None,
        delta_timestamps={"action": [i / FPS for i in range(4)]},
        image_transforms=None,
        revision="v3.0",
        max_num_shards=0,
        tolerance_s=1e-4,
        cache_dir=tmp_path / "cache",
    )
    assert sorted(numbers(data)) == list(range(NUM_FRAMES))
    assert data.num_shards == 3
    stats: dict[str, Any] = data.meta.stats
    for key in data.meta.camera_keys:  # and then it puts ImageNet's statistics there
        stats[key]["mean"] = torch.tensor([[[0.485]], [[0.456]], [[0.406]]])
    next(iter(data))
    assert torch.is_tensor(data.meta.stats[TOP]["mean"])
    assert torch.is_tensor(data.stats[TOP]["mean"])


def test_no_shards_is_no_limit(folder: Path, tmp_path: Path) -> None:
    wanted = numbers(stream(folder, tmp_path))
    assert numbers(stream(folder, tmp_path, max_num_shards=0)) == wanted
    assert numbers(stream(folder, tmp_path, max_num_shards=np.int64(0))) == wanted


@pytest.mark.parametrize("revision", ["main", "v3.0", "0" * 40])
def test_a_revision_beside_a_root_is_for_what_would_be_fetched(folder: Path, tmp_path: Path, revision: str) -> None:
    data = stream(folder, tmp_path, revision=revision)
    assert data.revision == data.meta.revision == revision
    assert sorted(numbers(data)) == list(range(NUM_FRAMES))


@pytest.mark.parametrize("backend", [None, "pyav", "torchcodec", "video_reader"])
def test_backends_of_videos_make_no_difference(folder: Path, tmp_path: Path, backend: str | None) -> None:
    plain, other = stream(folder, tmp_path), stream(folder, tmp_path, video_backend=backend)
    assert_same(next(iter(other)), next(iter(plain)))
    assert other.video_backend == (backend or "pyav")


def test_without_videos_none_is_read(folder: Path, tmp_path: Path) -> None:
    (empty := tmp_path / "set").mkdir()
    for part in ("meta", "data"):
        (empty / part).symlink_to(folder / part)
    data = stream(empty, tmp_path, download_videos=False)
    items = {int(item["index"]): item for item in data}
    oracle = MapStyleRobotDataset(folder)
    for number in range(NUM_FRAMES):
        assert_same(items[number], {name: value for name, value in oracle[number].items() if name != TOP})
    assert data.counters()["frames_decoded"] == 0
    with pytest.raises(SpecError, match=f"'{TOP}' is a video, and download_videos=False leaves those out"):
        stream(folder, tmp_path, download_videos=False, delta_timestamps={TOP: [0.0]})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"repo_type": "model"}, "repo_type='model': a data set lies in a 'dataset' repo or in a 'bucket'"),
        ({"video_backend": "magic"}, "video_backend='magic': one of pyav, torchcodec, video_reader is expected"),
        ({"download_videos": "no"}, "download_videos='no' is not True or False"),
        ({"rng": object()}, "is no source of random numbers"),
        ({"rng": "dice"}, "is no source of random numbers"),
    ],
)
def test_what_cannot_be_meant_is_said(folder: Path, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        stream(folder, tmp_path, **options)


def test_a_data_set_repo_is_what_is_meant(folder: Path, tmp_path: Path) -> None:
    assert numbers(stream(folder, tmp_path, repo_type="dataset")) == numbers(stream(folder, tmp_path))


GENERATORS: dict[str, Any] = {
    "numpy": lambda seed: np.random.default_rng(seed),
    "numpy's old": lambda seed: np.random.RandomState(seed),
    "a bit generator": lambda seed: np.random.PCG64(seed),
    "a seed sequence": lambda seed: np.random.SeedSequence(seed),
    "python": lambda seed: random.Random(seed),
    "torch": lambda seed: torch.Generator().manual_seed(seed),
    "a number": lambda seed: seed,
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_generators_of_any_kind(folder: Path, tmp_path: Path, kind: str) -> None:
    made = GENERATORS[kind]
    drawn = [numbers(stream(folder, tmp_path, rng=made(seed), download_videos=False)) for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]
    rng = made(5)
    data = stream(folder, tmp_path, rng=rng)
    assert data.rng is rng
    assert numbers(pickle.loads(pickle.dumps(data))) == numbers(data)  # noqa: S301 - our own


def test_a_generator_on_several_ranks_is_warned_of(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "headrace"):
        stream(folder, tmp_path, rng=np.random.default_rng(0), rank=0, world_size=2)
    assert "frames are split rightly only where all ranks drew it" in caplog.text


# --- attributes


def test_what_was_asked_for_can_be_asked_back(folder: Path, tmp_path: Path) -> None:
    def transform(image: Any) -> Any:
        return image

    windows = {"action": [-1 / FPS, 0.0, 2 / FPS], TOP: [0.0]}
    data = stream(
        folder,
        tmp_path,
        episodes=[4, 1],
        image_transforms=transform,
        delta_timestamps=windows,
        tolerance_s=1e-3,
        seed=7,
        shuffle=False,
        streaming=False,
    )
    assert (data.repo_id, data.root, data.revision) == ("org/robot", folder, "v3.0")
    assert isinstance(data.root, Path)
    assert data.delta_timestamps is windows
    assert data.delta_indices == {"action": [-1, 0, 2], TOP: [0]}
    assert data.image_transforms is transform
    assert (data.tolerance_s, data.seed, data.shuffle, data.streaming) == (1e-3, 7, False, False)
    assert data.episodes == [4, 1]
    assert data.rng.integers(1000) == np.random.default_rng(7).integers(1000)
    assert (data.num_episodes, data.num_frames) == (2, EPISODES[4] + EPISODES[1])
    assert (data.meta.total_episodes, data.meta.total_frames) == (len(EPISODES), NUM_FRAMES)
    plain = stream(folder, tmp_path)
    assert (plain.delta_timestamps, plain.delta_indices, plain.episodes, plain.image_transforms) == (None,) * 4
    assert (plain.seed, plain.shuffle) == (42, True)


def test_a_repo_lies_in_the_cache(folder: Path, tmp_path: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.push("org/robot", folder)
    hub.push("org/robot", folder, branch="refs/tags/v3.0")
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    data = StreamingLeRobotDataset("org/robot", cache_dir=tmp_path / "cache")
    assert data.root == tmp_path / "cache/hf_shards/org/robot"
    assert data.revision == "v3.0"
    assert len(data.pinned) == len(commit) == 40
    assert data.meta.episodes[1]["length"] == EPISODES[1]


def test_episodes_by_place_column_and_slice(folder: Path, tmp_path: Path) -> None:
    """`meta.episodes` has all episodes, also where some are chosen: theirs is subscripted by the episode's number."""
    for data in (stream(folder, tmp_path), stream(folder, tmp_path, episodes=[1, 4])):
        episodes, oracle = data.meta.episodes, MapStyleRobotDataset(folder).episodes
        assert len(episodes) == len(EPISODES)
        names = [name for name in oracle[0] if not name.startswith("stats/")]
        assert sorted(episodes.column_names) == sorted(names)
        for number, row in oracle.items():
            wanted = {name: row[name] for name in names}
            assert episodes[number] == wanted
            assert episodes[torch.tensor(number)] == episodes[np.int64(number)] == wanted
        assert episodes[-1] == episodes[len(EPISODES) - 1]
        starts = [sum(EPISODES[:i]) for i in range(len(EPISODES))]
        assert list(episodes["dataset_from_index"]) == starts
        assert episodes["tasks"][1] == oracle[1]["tasks"]
        assert episodes[1:3]["length"] == list(EPISODES[1:3]) == episodes[[1, 2]]["length"]
        assert [row["episode_index"] for row in episodes] == list(range(len(EPISODES)))
        with pytest.raises(IndexError):
            episodes[len(EPISODES)]
        with pytest.raises(KeyError):
            episodes["nothing"]


def test_metadata_has_their_names(folder: Path, tmp_path: Path) -> None:
    meta = stream(folder, tmp_path).meta
    assert (meta.repo_id, meta.root, meta.revision) == ("org/robot", folder, "v3.0")
    assert (meta.total_tasks, meta.chunks_size) == (3, 1000)
    assert (meta.data_files_size_in_mb, meta.video_files_size_in_mb) == (100, 200)
    assert meta.data_path == "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    assert meta.video_path == "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    assert meta.info["fps"] == meta.fps == FPS
    assert meta.info["features"][TOP]["shape"] == meta.features[TOP]["shape"] == (32, 64, 3)
    assert meta.info.get("nothing") is None
    assert not meta.has_language_columns
    tasks = meta.tasks
    assert tasks.iloc[1].name == "put it into the box"
    assert int(tasks.loc["wait"].task_index) == meta.get_task_index("wait") == 2
    assert list(tasks.index) == ["pick up the cube", "put it into the box", "wait"]
    assert meta.get_task_index("dance") is None
    assert meta.subtasks is not None
    assert [meta.subtasks.iloc[i].name for i in range(3)] == list(SUBTASKS)


def test_tasks_are_as_pandas_reads_them(folder: Path, tmp_path: Path) -> None:
    import pandas as pd

    meta = stream(folder, tmp_path).meta
    pd.testing.assert_frame_equal(meta.tasks, pd.read_parquet(folder / "meta/tasks.parquet"), check_index_type=False)
    read = pd.read_parquet(folder / "meta/subtasks.parquet")
    pd.testing.assert_frame_equal(meta.subtasks, read, check_index_type=False)


def test_a_data_set_of_language_and_without_videos_or_subtasks(tmp_path: Path) -> None:
    folder = write_robot_dataset(tmp_path / "set", episodes=(3, 4), cameras={"still": Camera(kind="image")})
    info = folder / "meta/info.json"
    told = '"features": {"language_events": {"dtype": "language", "shape": [1], "names": null},'
    info.write_text(info.read_text().replace('"features": {', told, 1))
    data = StreamingLeRobotDataset("org/robot", root=folder, cache_dir=tmp_path / "cache")
    assert data.meta.has_language_columns
    assert data.meta.video_path is None
    assert data.meta.subtasks is None


def test_statistics_are_the_data_set_s_own(folder: Path, tmp_path: Path) -> None:
    data = stream(folder, tmp_path)
    assert set(data.stats["action"]) >= {"mean", "std", "min", "max", "count"}
    assert data.stats is data.meta.stats
    assert set(data.counters()) == {"frames_decoded", "video_seconds", "video_decoder_cache", "video_files"}


# --- items


def test_items_have_subtasks_where_there_are_any(folder: Path, tmp_path: Path) -> None:
    oracle = MapStyleRobotDataset(folder)
    seen = set()
    for item in stream(folder, tmp_path):
        assert_same(item, oracle[int(item["index"])])
        assert item["subtask"] == SUBTASKS[int(item["subtask_index"])]
        seen.add(item["subtask"])
    assert seen == set(SUBTASKS)
    with stream(folder, tmp_path).loader(4) as loader:
        assert all(isinstance(text, str) for text in next(iter(loader))["subtask"])


def test_a_subtask_that_there_is_not_is_named(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set", subtasks=SUBTASKS, cameras={})
    small_set(tmp_path / "other", subtasks=SUBTASKS[:1], cameras={})
    (tmp_path / "other/meta/subtasks.parquet").replace(folder / "meta/subtasks.parquet")
    with pytest.raises(Exception, match=r"subtask_index is \d, and meta/subtasks.parquet has 1 subtasks"):
        list(stream(folder, tmp_path))
