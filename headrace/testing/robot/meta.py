"""The files under meta/: info, episodes, tasks and stats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import rng
from headrace.testing.robot.pixels import FrameIdentity
from headrace.testing.robot.plan import Camera, RobotPlan
from headrace.testing.robot.table import features_of, values
from headrace.testing.robot.video import DEPTH_MAX, DEPTH_MIN, DEPTH_SHIFT, frames_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
ROWS_AT_ONCE = 10
"""LeRobot writes the rows of so many episodes at once, each time as one row group."""
EPISODES = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"


def write_meta(folder: Path, plan: RobotPlan) -> None:
    (folder / "meta").mkdir(parents=True, exist_ok=True)
    (folder / "meta/info.json").write_text(json.dumps(_info(plan), indent=4))
    _write_tasks(folder / "meta/tasks.parquet", plan.tasks, "task_index", plan.tasks_index)
    if plan.subtasks:
        _write_tasks(folder / "meta/subtasks.parquet", plan.subtasks, "subtask_index", "subtask")
    _write_episodes(folder, plan)
    if not plan.dirt.no_stats:
        everywhere = _stats(plan, range(len(plan.episodes)))
        (folder / "meta/stats.json").write_text(json.dumps(everywhere, indent=4))


def _info(plan: RobotPlan) -> dict[str, Any]:
    plain: dict[str, Any] = {
        name: {"dtype": dtype, "shape": list(shape), "names": None}
        for name, (dtype, shape) in features_of(plan).items()
    }
    plain |= {key: _camera(camera, plan.fps) for key, camera in plan.cameras.items()}
    last = list(features_of(plan))[-5:]
    order = [name for name in plain if name not in last] + last
    return {
        "codebase_version": "v3.0",
        "robot_type": "so101",
        "total_episodes": len(plan.episodes),
        "total_frames": sum(plan.episodes),
        "total_tasks": len(plan.tasks),
        "chunks_size": plan.files_per_chunk,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": plan.fps,
        "splits": {"train": f"0:{len(plan.episodes)}"},
        "data_path": plan.data_path,
        "video_path": plan.video_path if plan.videos else None,
        "features": {name: plain[name] for name in order},
    }


def _camera(camera: Camera, fps: int) -> dict[str, Any]:
    shape, names = [camera.height, camera.width, camera.channels], ["height", "width", "channels"]
    if camera.channels_first:
        shape, names = [camera.channels, camera.height, camera.width], ["c", "h", "w"]
    found: dict[str, Any] = {"dtype": camera.kind, "shape": shape, "names": names}
    told: dict[str, Any] = {}
    if camera.is_video:
        told = {
            "video.height": camera.height,
            "video.width": camera.width,
            "video.codec": camera.stored_codec,
            "video.pix_fmt": "gray12le" if camera.depth else "yuv420p",
            "video.fps": fps,
            "video.channels": camera.channels,
            "has_audio": False,
            "is_depth_map": camera.depth,
        }
    if camera.depth:
        told |= {"is_depth_map": True, "depth_unit": camera.depth_unit}
    if camera.depth and camera.is_video:
        told |= {"video.depth_min": DEPTH_MIN, "video.depth_max": DEPTH_MAX}
        told |= {"video.shift": DEPTH_SHIFT, "video.use_log": True}
    return found | ({"info": told} if told else {})


def _write_tasks(path: Path, tasks: Sequence[str], number: str, name: str | None) -> None:
    """The table of a pandas frame whose index is the task, with the metadata that says so."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    field = name or "__index_level_0__"
    numbers = {"name": number, "field_name": number, "pandas_type": "int64", "numpy_type": "int64"}
    index = {"name": name, "field_name": field, "pandas_type": "unicode", "numpy_type": "object"}
    told = {
        "index_columns": [field],
        "column_indexes": [],
        "columns": [{**column, "metadata": None} for column in (numbers, index)],
        "attributes": {},
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.3.3",
    }
    schema = pa.schema([(number, pa.int64()), (field, pa.string())], metadata={"pandas": json.dumps(told)})
    columns = [pa.array(range(len(tasks)), pa.int64()), pa.array(tasks, pa.string())]
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), path)


def _write_episodes(folder: Path, plan: RobotPlan) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    places = _places(plan)
    for number, (chunk, file, episodes) in enumerate(plan.files(plan.episodes_per_meta_file)):
        here = {"meta/episodes/chunk_index": chunk, "meta/episodes/file_index": file}
        rows = [places[e] | _flat_stats(plan, e) | here for e in episodes]
        table = pa.Table.from_pylist(rows)
        if plan.dirt.shuffled_columns:
            order = rng.permutation(rng.key("robot columns", plan.seed, number), table.num_columns)
            table = table.select(order.tolist())
        path = folder / EPISODES.format(chunk_index=chunk, file_index=file)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=ROWS_AT_ONCE)


def _places(plan: RobotPlan) -> list[dict[str, Any]]:
    """The row of each episode in meta/episodes, without its stats."""
    rows: list[dict[str, Any]] = []
    for episode, length in enumerate(plan.episodes):
        numbers = dict.fromkeys(plan.task_of(episode, frame) for frame in range(length))
        rows.append({"episode_index": episode, "tasks": [plan.tasks[n] for n in numbers], "length": length})
    for chunk, file, episodes in plan.files(plan.episodes_per_data_file):
        for episode in episodes:
            stale = plan.dirt.stale_file_index
            rows[episode] |= {"data/chunk_index": 0 if stale else chunk, "data/file_index": 0 if stale else file}
            first = plan.first(episode)
            rows[episode] |= {"dataset_from_index": first, "dataset_to_index": first + plan.episodes[episode]}
    for key, camera in plan.videos.items():
        for chunk, file, episodes in plan.files(camera.episodes_per_file):
            at = 0.0
            for episode in episodes:
                # A running sum of durations, as LeRobot keeps it: rounding errors gather, and drift if there is any.
                begin, at = at, at + plan.frames(episode) / plan.fps
                rows[episode] |= {f"videos/{key}/chunk_index": chunk, f"videos/{key}/file_index": file}
                rows[episode] |= {f"videos/{key}/from_timestamp": begin, f"videos/{key}/to_timestamp": at}
                at += plan.dirt.drift_s
    return rows


def _flat_stats(plan: RobotPlan, episode: int) -> dict[str, Any]:
    if plan.dirt.no_stats:
        return {}
    found = _stats(plan, range(episode, episode + 1))
    return {f"stats/{name}/{stat}": value for name, stats in found.items() for stat, value in stats.items()}


def _stats(plan: RobotPlan, episodes: range) -> dict[str, dict[str, Any]]:
    """Of each feature but strings: over all frames of these episodes; of cameras, over the first frame of each."""
    import numpy as np

    found = {}
    for name, (dtype, shape) in features_of(plan).items():
        if dtype in ("string", "image"):
            continue
        rows = [np.asarray(values(plan, name, e, plan.episodes[e]), np.float64) for e in episodes]
        found[name] = _summary(np.concatenate(rows).reshape(-1, shape[-1]), sum(plan.episodes[e] for e in episodes))
    for key, camera in plan.cameras.items():
        drawn = [frames_of(camera, FrameIdentity(e, 0, plan.number(key)), 1, plan.seed) for e in episodes]
        pixels = np.concatenate(drawn).reshape(-1, camera.channels) / (1 if camera.depth else 255)
        stats = _summary(pixels, len(drawn))
        found[key] = {k: v if k == "count" else [[[x]] for x in v] for k, v in stats.items()}
    return found


def _summary(rows: NDArray[np.float64], count: int) -> dict[str, list[Any]]:
    import numpy as np

    found: dict[str, list[Any]] = {name: getattr(rows, name)(axis=0).tolist() for name in ("min", "max", "mean", "std")}
    found["count"] = [count]
    quantiles = np.quantile(rows, list(QUANTILES.values()), axis=0)
    return found | {name: row.tolist() for name, row in zip(QUANTILES, quantiles, strict=True)}
