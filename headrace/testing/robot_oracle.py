"""A plain map-style reader of LeRobot data sets: slow, all in memory, and easy to see to be right.

It shares no code with the reader under test. Every data file is read whole, every video is decoded from its first
frame to its last, and a frame is looked up by its number.
"""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import DataError, SpecError, shown

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

log = logging.getLogger(__name__)

Row = dict[str, Any]


class MapStyleRobotDataset:
    """Items by number, with the keys, types, shapes, padding and masks of LeRobot's own map-style data set."""

    def __init__(
        self,
        folder: str | Path,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        episodes: Iterable[int] | None = None,
        image_transforms: Callable[[torch.Tensor], torch.Tensor] | None = None,
        tolerance_s: float = 1e-4,
        return_uint8: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self.info: dict[str, Any] = json.loads((self.folder / "meta/info.json").read_text())
        self.fps: int = self.info["fps"]
        self.features: dict[str, dict[str, Any]] = self.info["features"]
        self.episodes = _episode_rows(self.folder)
        self.tasks = _task_names(self.folder / "meta/tasks.parquet")
        told = self.folder / "meta/subtasks.parquet"
        self.subtasks = _task_names(told) if told.exists() else None
        self._deltas = {
            key: _steps(key, seconds, self.fps, tolerance_s) for key, seconds in (delta_timestamps or {}).items()
        }
        self._transform = image_transforms
        self._tolerance_s = tolerance_s
        self._uint8 = return_uint8
        self._videos: dict[str, list[NDArray[Any]]] = {}

        chosen = set(self.episodes) if episodes is None else set(episodes)
        if chosen - set(self.episodes):
            log.warning("%s has no episodes %s: they are left out", self.folder, sorted(chosen - set(self.episodes)))
        rows = self._rows_by_episode()
        self._rows: dict[int, Row] = {row["index"]: row for e in self.episodes for row in rows[e]}
        self._order: list[int] = [row["index"] for e in self.episodes if e in chosen for row in rows[e]]

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, number: int) -> dict[str, Any]:
        import torch

        row = self._rows[self._order[number]]
        episode = self.episodes[row["episode_index"]]
        first, stop = episode["dataset_from_index"], episode["dataset_to_index"]
        item: dict[str, Any] = {}
        for key in dict.fromkeys([*self.features, *self._deltas]):
            steps = self._deltas.get(key)
            wanted = [row["index"] + step for step in steps or [0]]
            taken = [self._rows[min(max(index, first), stop - 1)] for index in wanted]
            found = [self._value(key, one, episode) for one in taken]
            if steps is None:
                item[key] = found[0]
            elif self._is_video(key) and len(steps) == 1:
                item[key] = found[0]  # a window of one frame loses its first axis; other windows of one keep it
            else:
                item[key] = torch.stack(found)
            if self._transform is not None and self.is_camera(key) and not self.is_depth(key):
                item[key] = self._transform(item[key])
            if steps is not None:
                item[f"{key}_is_pad"] = torch.tensor([index < first or index >= stop for index in wanted])
        item["task"] = self.tasks[row["task_index"]]
        if self.subtasks is not None and "subtask_index" in self.features:
            item["subtask"] = self.subtasks[row["subtask_index"]]
        return item

    def is_camera(self, key: str) -> bool:
        return self.features[key]["dtype"] in ("image", "video")

    def is_depth(self, key: str) -> bool:
        told = self._told(key)
        return bool(told.get("is_depth_map") or told.get("video.is_depth_map"))

    def _is_video(self, key: str) -> bool:
        return bool(self.features[key]["dtype"] == "video")

    def _told(self, key: str) -> dict[str, Any]:
        feature = self.features[key]
        return {**(feature.get("video_info") or {}), **(feature.get("info") or {})}

    def _value(self, key: str, row: Row, episode: Row) -> Any:
        """The value of a feature in one row of its episode, as a tensor or a string."""
        import torch

        if self._is_video(key):
            return self._video_frame(key, row, episode)
        value = row[key]
        if self.is_camera(key):
            return _image(value["bytes"], self._told(key))
        # Floats become float32, whole numbers int64 and truths bool, however narrow or wide they are stored.
        return value if isinstance(value, str) else torch.tensor(value)

    def _video_frame(self, key: str, row: Row, episode: Row) -> torch.Tensor:
        import torch

        first = round(episode[f"videos/{key}/from_timestamp"] * self.fps)
        stop = round(episode[f"videos/{key}/to_timestamp"] * self.fps)
        path = self.info["video_path"].format(
            video_key=key,
            chunk_index=episode[f"videos/{key}/chunk_index"],
            file_index=episode[f"videos/{key}/file_index"],
        )
        number = first + row["frame_index"]
        frames = self._frames(path, self.is_depth(key))
        if number >= min(stop, len(frames)):
            raise DataError(
                f"frame {row['frame_index']} of episode {row['episode_index']} is not in {path}: there the episode has "
                f"the frames {first} to {min(stop, len(frames)) - 1}; leave the episode out or mend the data set"
            )
        pixels = torch.from_numpy(frames[number])
        if self.is_depth(key):
            return _millimetres(pixels, self._told(key))[None]
        pixels = pixels.permute(2, 0, 1)
        return pixels.contiguous() if self._uint8 else pixels.contiguous().to(torch.float32) / 255

    def _frames(self, path: str, depth: bool) -> list[NDArray[Any]]:
        """Every frame of a video, in the order in which they are shown."""
        import av

        if path not in self._videos:
            with av.open(str(self.folder / path), format="mp4") as container:
                frames = sorted(container.decode(video=0), key=lambda frame: frame.pts or 0)
            for number, frame in enumerate(frames):
                if frame.time is None or abs(frame.time - number / self.fps) > self._tolerance_s:
                    raise DataError(
                        f"frame {number} of {path} is shown at {frame.time} s, not at {number / self.fps} s"
                    )
            form = "gray12le" if depth else "rgb24"
            self._videos[path] = [frame.to_ndarray(format=form) for frame in frames]
        return self._videos[path]

    def _rows_by_episode(self) -> dict[int, list[Row]]:
        """The rows that meta/episodes refers to. A file it does not name counts only where the named one lacks rows."""
        files = {path: _rows(path, self.features) for path in sorted((self.folder / "data").glob("*/*.parquet"))}
        found = {}
        for number, episode in self.episodes.items():
            place = {"chunk_index": episode["data/chunk_index"], "file_index": episode["data/file_index"]}
            named = self.folder / self.info["data_path"].format(**place)
            rows = _own_rows(files.get(named, []), episode)
            if len(rows) != episode["length"]:
                rows = _own_rows((row for others in files.values() for row in others), episode)
            indices = list(range(episode["dataset_from_index"], episode["dataset_to_index"]))
            if [row["index"] for row in rows] != indices:
                raise DataError(f"episode {number} has {len(rows)} rows in the data files, not those of {indices}")
            found[number] = rows
        return found


def _episode_rows(folder: Path) -> dict[int, Row]:
    import pyarrow.parquet as pq

    rows: list[Row] = []
    for path in sorted((folder / "meta/episodes").glob("*/*.parquet")):
        rows += pq.read_table(path).to_pylist()
    return {row["episode_index"]: row for row in sorted(rows, key=lambda row: int(row["episode_index"]))}


def _task_names(path: Path) -> list[str]:
    """The index of the pandas frame, whatever its name."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    told = json.loads((table.schema.metadata or {}).get(b"pandas", b'{"index_columns": ["task"]}'))
    names: list[str] = table.column(told["index_columns"][0]).to_pylist()
    return names


def _rows(path: Path, features: Mapping[str, Any]) -> list[Row]:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    rows: list[Row] = table.select([name for name in table.column_names if name in features]).to_pylist()
    return rows


def _own_rows(rows: Iterable[Row], episode: Row) -> list[Row]:
    wanted = range(episode["dataset_from_index"], episode["dataset_to_index"])
    own = [row for row in rows if row["episode_index"] == episode["episode_index"] and row["index"] in wanted]
    return sorted(own, key=lambda row: int(row["index"]))


def _steps(key: str, seconds: Sequence[float], fps: int, tolerance_s: float) -> list[int]:
    """Frames instead of seconds."""
    for second in seconds:
        if abs(second * fps - round(second * fps)) / fps > tolerance_s:
            raise SpecError(
                f"delta_timestamps[{shown(key)!r}] has {second} s, which is no whole number of frames at {fps} fps: "
                f"give multiples of 1/{fps}, or a tolerance_s above {tolerance_s}"
            )
    return [round(second * fps) for second in seconds]


def _image(data: bytes, told: Mapping[str, Any]) -> torch.Tensor:
    """A picture as [3, H, W] from 0 to 1; a depth map as [1, H, W] in millimetres."""
    import numpy as np
    import torch
    from PIL import Image

    pixels = np.array(Image.open(io.BytesIO(data)))
    if pixels.ndim == 2 and pixels.dtype != np.uint8:
        scale = 1000 if told.get("depth_unit") == "m" else 1
        return torch.from_numpy(pixels.astype(np.float32))[None] * scale
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous().to(torch.float32) / 255


def _millimetres(codes: torch.Tensor, told: Mapping[str, Any]) -> torch.Tensor:
    """Depth out of 12-bit codes: codes are even steps of depth, or of the logarithm of the shifted depth."""
    import torch

    low, high = float(told.get("video.depth_min", 0.01)), float(told.get("video.depth_max", 10.0))
    shift = float(told.get("video.shift", 3.5))
    steps = codes.to(torch.float32)
    if told.get("video.use_log", True):
        begin, end = math.log(low + shift), math.log(high + shift)
        metres = torch.exp(steps * ((end - begin) / 4095) + begin) - shift
    else:
        metres = steps * ((high - low) / 4095) + low
    return torch.round(metres.clamp(low, high) * 1000).clamp(0, 65535)


def item_differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What tells two items apart, key by key, to the bit: types, shapes, values. Nothing if they are equal."""
    import torch

    said = [f"{key}: only one of the two has it" for key in sorted(set(found) ^ set(wanted))]
    for key in sorted(set(found) & set(wanted)):
        one, other = found[key], wanted[key]
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            if type(one) is not type(other) or one != other:
                said.append(f"{key}: {one!r} is not {other!r}")
        elif one.dtype != other.dtype or one.shape != other.shape:
            said.append(f"{key}: {one.dtype} {tuple(one.shape)} is not {other.dtype} {tuple(other.shape)}")
        elif not torch.equal(one, other):
            at = (one != other).nonzero()[0].tolist()
            said.append(f"{key}: at {at} it is {one[tuple(at)].item()}, not {other[tuple(at)].item()}")
    return said
