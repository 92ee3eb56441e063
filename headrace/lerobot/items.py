"""A frame made an item: tabular values and time windows out of RAM, and cameras decoded, which happens here only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.address import Unmade
from headrace.catalog.frames import Frames
from headrace.errors import DataError, SpecError, shown
from headrace.fetch.memory import MemoryUse
from headrace.lerobot.cameras import colours, depths, image
from headrace.lerobot.columns import Column, bytes_of
from headrace.lerobot.info import Feature
from headrace.lerobot.windows import frame_offsets, window

if TYPE_CHECKING:
    import torch

    from headrace.lerobot.meta import Meta
    from headrace.lerobot.videos import Videos
    from headrace.rng import I64


@dataclass(eq=False)
class Episode:
    """An episode in RAM. What it holds on disk is let go when nobody has it any more."""

    number: int
    """Its place in the metadata."""
    index: int
    columns: dict[str, Column]
    items: Items
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """The numbers among the columns, as tensors over the same memory."""
    memory: MemoryUse = field(init=False)
    """What the columns take, which counts as long as we are there."""

    def __post_init__(self) -> None:
        import numpy as np
        import torch

        self.memory = MemoryUse(bytes_of(self.columns))
        self.tensors = {k: torch.from_numpy(c) for k, c in self.columns.items() if isinstance(c, np.ndarray)}

    @property
    def length(self) -> int:
        return len(self.columns["index"])


@dataclass(frozen=True, slots=True)
class Frame(Unmade):
    episode: Episode
    row: int

    def made(self) -> dict[str, Any]:
        return self.episode.items.make(self.episode, self.row)


@dataclass(frozen=True, slots=True)
class Unread(Unmade):
    """A frame of an episode whose rows cannot be read."""

    why: str

    def made(self) -> dict[str, Any]:
        raise DataError(self.why)


class Items:
    """Makes the items of one data set."""

    def __init__(
        self, meta: Meta, frames: Frames, videos: Videos | None, transforms: Callable[[Any], Any] | None = None
    ) -> None:
        """`videos`: None leaves them out."""
        self._meta, self._videos, self._transforms = meta, videos, transforms
        self._features, self._fps = meta.info.features, meta.info.fps
        if videos is None:
            asked = [*frames.delta_timestamps, *frames.rename, *frames.normalize]
            lost = next((name for name in asked if name in meta.info.video_keys), None)
            if lost is not None:
                raise SpecError(
                    f"{shown(lost)!r} is a video, and download_videos=False leaves those out; name it nowhere"
                )
            self._features = {name: feature for name, feature in self._features.items() if not feature.is_video}
        self._frames = frames
        self.offsets = frame_offsets(frames.delta_timestamps, self._features, self._fps, frames.tolerance_s)
        self._rename = dict(frames.rename)
        texts = ["task", *["subtask"] * ("subtask_index" in self._features and meta.subtask_names is not None)]
        _check_names(self._rename, list(self._features), list(self.offsets), texts)
        self._scales = {name: _scale(meta, name, how, self._features) for name, how in frames.normalize.items()}
        cameras = [name for name in self._scales if self._features[name].is_video]
        if cameras and frames.return_uint8:
            raise SpecError(
                f"normalize[{shown(cameras[0])!r}]: statistics of a camera are of values from 0 to 1, and with "
                f"return_uint8 they go up to 255; leave one of them out"
            )

    def make(self, episode: Episode, row: int) -> dict[str, Any]:
        """The item of one frame, with exactly the keys that LeRobot gives it."""
        item: dict[str, Any] = {}
        for name, feature in self._features.items():
            offsets = self.offsets.get(name)
            rows, missing = (None, None) if offsets is None else window(row, offsets, episode.length)
            if feature.is_video:
                item[name] = self._video(episode, feature, row, rows)
            else:
                item[name] = self._value(episode, feature, row, rows)
            if missing is not None:
                import torch

                item[f"{name}_is_pad"] = torch.from_numpy(missing)
        item["task"] = self._text(episode, row, "task", self._meta.task_names)
        if "subtask_index" in self._features and self._meta.subtask_names is not None:
            item["subtask"] = self._text(episode, row, "subtask", self._meta.subtask_names)
        return self._finished(item)

    def _value(self, episode: Episode, feature: Feature, row: int, rows: I64 | None) -> Any:
        import torch

        tensor = episode.tensors.get(feature.name)
        if tensor is not None:
            return tensor[row].clone() if rows is None else tensor[torch.from_numpy(rows)]
        column = episode.columns[feature.name]
        if feature.is_image:
            try:
                if rows is None:
                    return image(column[row], feature, self._frames.depth_unit)
                return torch.stack([image(column[r], feature, self._frames.depth_unit) for r in rows.tolist()])
            except DataError as error:
                error.add_note(f"in {self._place(episode, row)}, feature {shown(feature.name)!r}")
                raise
        return column[row] if rows is None else [column[r] for r in rows.tolist()]

    def _video(self, episode: Episode, feature: Feature, row: int, rows: I64 | None) -> torch.Tensor:
        asked = [row] if rows is None else rows.tolist()
        numbers = [int(episode.columns["frame_index"][r]) for r in asked]
        assert self._videos is not None, "a feature that was left out"
        pixels = self._videos.pixels(episode.number, feature, numbers, self._place(episode, row))
        if feature.is_depth:
            found = depths(pixels, feature, self._frames.depth_unit)
        else:
            found = colours(pixels, as_bytes=self._frames.return_uint8)
        return found[0] if len(asked) == 1 else found

    def _text(self, episode: Episode, row: int, what: str, texts: list[str]) -> str:
        number = int(episode.columns[f"{what}_index"][row])
        if not 0 <= number < len(texts):
            raise DataError(
                f"{self._place(episode, row)}: {what}_index is {number}, and meta/{what}s.parquet has {len(texts)} "
                f"{what}s"
            )
        return texts[number]

    def _place(self, episode: Episode, row: int) -> str:
        return f"{self._meta.files.name}, episode {episode.index}, frame {row}"

    def _finished(self, item: dict[str, Any]) -> dict[str, Any]:
        for name, (low, span) in self._scales.items():
            value = item[name]
            scaled = (value.float() - low) / span
            item[name] = scaled.reshape(value.shape) if scaled.numel() == value.numel() else scaled
        if self._transforms is not None:
            for name, feature in self._features.items():
                if (feature.is_image or feature.is_video) and not feature.is_depth:
                    item[name] = self._transforms(item[name])
        if not self._rename:
            return item
        names = self._rename | {f"{old}_is_pad": f"{new}_is_pad" for old, new in self._rename.items()}
        return {names.get(name, name): value for name, value in item.items()}


def _check_names(rename: Mapping[str, str], features: list[str], windows: list[str], texts: list[str]) -> None:
    """That no two values of an item get one name."""
    lost = [name for name in rename if name not in features]
    if lost:
        raise SpecError(f"rename: the data set has no feature {shown(lost[0])!r}")
    taken = {name: name for name in texts}
    for name in features:
        new = rename.get(name, name)
        for found in (new, f"{new}_is_pad") if name in windows else (new,):
            if found in taken:
                raise SpecError(
                    f"rename: {shown(name)!r} becomes {shown(found)!r}, and so is {shown(taken[found])!r} called; "
                    f"give them different names"
                )
            taken[found] = name


def _scale(meta: Meta, name: str, how: str, features: Mapping[str, Feature]) -> tuple[torch.Tensor, torch.Tensor]:
    """What is taken off the values of a feature, and what they are divided by, from the data set's own statistics."""
    import torch

    stats: Mapping[str, Any] = meta.stats.get(name, {})
    wanted = ("mean", "std") if how == "mean_std" else ("min", "max")
    if name not in features or any(one not in stats for one in wanted):
        raise SpecError(f"normalize[{shown(name)!r}]: meta/stats.json has no {' and '.join(wanted)} of it")
    first, second = (torch.tensor(stats[one], dtype=torch.float32) for one in wanted)
    span = second if how == "mean_std" else second - first
    return first, torch.where(span > 0, span, torch.ones_like(span))
