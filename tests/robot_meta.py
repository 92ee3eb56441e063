"""The metadata of small LeRobot data sets, without a frame: what the tests of metadata share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TOP, WRIST = "observation.images.top", "observation.images.wrist"
INFO = "meta/info.json"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
TASKS = "meta/tasks.parquet"
STATS = "meta/stats.json"
LENGTHS = (5, 3, 4, 6)


def video(**more: Any) -> dict[str, Any]:
    return {"dtype": "video", "shape": [8, 8, 3], "names": ["height", "width", "channels"], **more}


def features(**more: Any) -> dict[str, Any]:
    own = {
        "action": {"dtype": "float32", "shape": [2], "names": {"motors": ["a", "b"]}, "fps": 30},
        TOP: video(),
        WRIST: video(info=None, video_info={"video.fps": 30.0}),
    }
    plain = {name: {"dtype": "int64", "shape": [1], "names": None} for name in ("frame_index", "index", "task_index")}
    return {**own, **more, **plain}


def info(**more: Any) -> dict[str, Any]:
    """As a file of LeRobot has it; a field that is given as ... is left out."""
    values = {
        "codebase_version": "v3.0",
        "robot_type": "so101",
        "total_episodes": len(LENGTHS),
        "total_frames": sum(LENGTHS),
        "total_tasks": 2,
        "chunks_size": 1000,
        "fps": 10,
        "splits": {"train": "0:4"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features(),
    }
    return {name: value for name, value in {**values, **more}.items() if value is not ...}


def episodes(lengths: Sequence[int] = LENGTHS, first: int = 0, row: int = 0, fps: int = 10) -> dict[str, list[Any]]:
    """Columns of meta/episodes. The top camera has a video for each two episodes, the other one for all."""
    starts = [row + sum(lengths[:i]) for i in range(len(lengths))]
    numbers = list(range(first, first + len(lengths)))
    before = [sum(lengths[i - i % 2 : i]) / fps for i in range(len(lengths))]
    out: dict[str, list[Any]] = {
        "episode_index": numbers,
        "tasks": [["do it"] for _ in lengths],
        "length": list(lengths),
        "data/chunk_index": [0 for _ in lengths],
        "data/file_index": [number // 3 for number in numbers],
        "dataset_from_index": starts,
        "dataset_to_index": [start + length for start, length in zip(starts, lengths, strict=True)],
        "meta/episodes/chunk_index": [0 for _ in lengths],
        "stats/action/mean": [[0.5, 0.5] for _ in lengths],
    }
    for key, files, times in (
        (TOP, [number // 2 for number in numbers], before),
        (WRIST, [0 for _ in lengths], [start / fps for start in starts]),
    ):
        out[f"videos/{key}/chunk_index"] = [1 for _ in lengths]
        out[f"videos/{key}/file_index"] = files
        out[f"videos/{key}/from_timestamp"] = times
        out[f"videos/{key}/to_timestamp"] = [t + n / fps for t, n in zip(times, lengths, strict=True)]
    return out


def parquet(columns: Mapping[str, Any] | pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(dict(columns)), sink, **options)
    return bytes(sink.getvalue())


def tasks(texts: Sequence[str] = ("pick", "place"), index: str = "task", pandas: bool = True) -> bytes:
    table = pa.table({"task_index": list(range(len(texts))), index: list(texts)})
    told = {"index_columns": [index], "columns": [], "pandas_version": "2.2.0"}
    return parquet(table.replace_schema_metadata({"pandas": json.dumps(told)}) if pandas else table)


def files(**more: Any) -> dict[str, bytes]:
    """Of a whole data set. `info`, `episodes`: other values; data files and videos are empty."""
    shape = more.get("episodes") or episodes()
    return {
        INFO: json.dumps(more.get("info") or info(), indent=4).encode(),
        EPISODES: parquet(shape),
        TASKS: tasks(),
        STATS: json.dumps({"action": {"mean": [0.5, 1.5], "std": [1, 2], "count": [18]}}).encode(),
        "data/chunk-000/file-000.parquet": b"0",
        "data/chunk-000/file-001.parquet": b"1",
        f"videos/{TOP}/chunk-001/file-000.mp4": b"2",
        "README.md": b"# a robot",
    }


def write(folder: Path, content: Mapping[str, bytes] | None = None) -> Path:
    for path, data in (files() if content is None else content).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return folder
