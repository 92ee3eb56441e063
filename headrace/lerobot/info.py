"""`meta/info.json` of a LeRobot v3 data set, checked: it comes from outside, and everything else is found by it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from headrace.catalog.shard import safe_parts
from headrace.errors import DataError, NotAllowed, described, shown
from headrace.lazy import cached_property
from headrace.lerobot.template import Template
from headrace.outside_json import TooManyValues, parse

VERSION = "v3.0"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
FASTEST = 100_000
MOST_FEATURES = 10_000
MOST_FRAMES = 1 << 48
"""A number of frames or rows beyond this is a mistake, and sums of such numbers stay within 64 bits."""


@dataclass(frozen=True)
class Depth:
    """How a depth map was made of metres: 12-bit codes in a video, or numbers of a unit in an image."""

    unit: Literal["m", "mm"] = "mm"
    """Of an image's numbers. A video's limits are in metres."""
    min: float = 0.01
    max: float = 10.0
    shift: float = 3.5
    use_log: bool = True


@dataclass(frozen=True)
class Feature:
    name: str
    dtype: str
    shape: tuple[int, ...]
    """As declared. Of a camera the axes may come in any order, and a video says better how large it is."""
    names: Any = None
    """Of its dimensions: a list, a mapping, or None."""
    depth: Depth | None = None
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """All that is declared, with the shape as a tuple: what LeRobot calls a feature."""

    @property
    def is_video(self) -> bool:
        return self.dtype == "video"

    @property
    def is_image(self) -> bool:
        return self.dtype == "image"

    @property
    def is_depth(self) -> bool:
        return self.depth is not None


@dataclass(frozen=True)
class Info:
    version: str
    fps: int
    features: dict[str, Feature]
    """In the order of the file."""
    total_episodes: int
    total_frames: int
    robot_type: str | None
    data_path: Template
    video_path: Template | None
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole file."""

    @classmethod
    def parse(cls, raw: bytes, where: str) -> Self:
        """`where` names the file in messages."""
        try:
            return cls._of(_json_object(raw))
        except (DataError, NotAllowed) as error:
            raise type(error)(f"{where}: {error}") from None

    @classmethod
    def _of(cls, values: dict[str, Any]) -> Self:
        version = _version(values)
        if values.get("storage_format") not in (None, "parquet"):
            raise DataError(
                f"storage_format is {_said(values, 'storage_format')}, not 'parquet'; only parquet and mp4 files are "
                f"read here"
            )
        features = _features(values)
        videos = [feature for feature in features.values() if feature.is_video]
        made = cls(
            version=version,
            fps=_fps(values),
            features=features,
            total_episodes=_count(values, "total_episodes"),
            total_frames=_count(values, "total_frames"),
            robot_type=None if values.get("robot_type") is None else str(values["robot_type"]),
            data_path=Template.parse("data_path", values.get("data_path", DATA_PATH), ("chunk_index", "file_index")),
            video_path=_video_path(values) if videos else None,
            raw=values,
        )
        if made.video_path is not None and len(videos) > 1 and "video_key" not in made.video_path.fields:
            raise DataError(f"video_path has no {{video_key}}, so that all {len(videos)} cameras were one file")
        for feature in videos:
            made.video_file(feature.name, 0, 0)
        return made

    def __getitem__(self, name: str) -> Any:
        """A field of the file as LeRobot reads it."""
        if name == "features":
            return {key: feature.raw for key, feature in self.features.items()}
        return self.raw[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self.raw else default

    def whole(self, name: str, default: int) -> int:
        """A number that nothing here depends on."""
        value = self.raw.get(name)
        return value if type(value) is int else default

    @cached_property
    def video_keys(self) -> list[str]:
        return [name for name, feature in self.features.items() if feature.is_video]

    @cached_property
    def image_keys(self) -> list[str]:
        return [name for name, feature in self.features.items() if feature.is_image]

    @cached_property
    def camera_keys(self) -> list[str]:
        return [name for name, feature in self.features.items() if feature.is_video or feature.is_image]

    @cached_property
    def depth_keys(self) -> list[str]:
        return [name for name, feature in self.features.items() if feature.is_depth]

    def speed(self, key: str) -> float:
        """How many frames a video says that it has for one of the data set's; 1 where it says nothing that can be."""
        raw = self.features[key].raw
        places = [found for name in ("info", "video_info") if isinstance(found := raw.get(name), dict)]
        said: Any = next((place["video.fps"] for place in places if "video.fps" in place), None)
        usable = isinstance(said, int | float) and not isinstance(said, bool) and 0 < said <= FASTEST
        return said / self.fps if usable else 1.0

    def data_file(self, chunk: int, file: int) -> str:
        return self.data_path.format(chunk_index=chunk, file_index=file)

    def video_file(self, key: str, chunk: int, file: int) -> str:
        assert self.video_path is not None, "a data set without videos"
        return self.video_path.format(video_key=key, chunk_index=chunk, file_index=file)


def old_version(version: str) -> str:
    """What to do with a data set of an older format."""
    return (
        f"it is of format {shown(version)}, and only v3 is read here; convert it with LeRobot: "
        f"python -m lerobot.datasets.v30.convert_dataset_v21_to_v30 --repo-id=<org/name>"
    )


def parse_version(text: object) -> tuple[int, int] | None:
    """`v3.0` as (3, 0); None where it is no version."""
    found = re.fullmatch(r"v?([0-9]{1,4})(?:\.([0-9]{1,4})(?:\.[0-9]{1,4})?)?", text) if isinstance(text, str) else None
    return (int(found[1]), int(found[2] or 0)) if found else None


# --- the fields


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        values = parse(raw.decode("utf-8-sig"))
    except TooManyValues as error:
        raise DataError(f"{error}; remove what does not belong there") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"it is not JSON ({shown(error)}); fetch it, or write it, again") from error
    if not isinstance(values, dict):
        raise DataError(f"it holds {described(values)}, where an object is expected")
    return values


def _said(values: dict[str, Any], name: str) -> str:
    """What a field is, without its text."""
    return described(values[name]) if name in values else "missing"


def _version(values: dict[str, Any]) -> str:
    text = values.get("codebase_version")
    version = parse_version(text)
    if version is None:
        raise DataError(f"codebase_version is {_said(values, 'codebase_version')}, not a version like {VERSION!r}")
    if version[0] < 3:
        raise DataError(old_version(str(text)))
    if version[0] > 3:
        raise DataError(f"it is of format {shown(text)}, which is newer than the v3 that is read here; update headrace")
    return str(text)


def _fps(values: dict[str, Any]) -> int:
    value: Any = values.get("fps")
    whole = type(value) is int or (isinstance(value, float) and math.isfinite(value) and value == int(value))
    if not whole or not 0 < value <= FASTEST:
        raise DataError(f"fps is {_said(values, 'fps')}, not a whole number of frames per second above 0")
    return int(value)


def _count(values: dict[str, Any], name: str) -> int:
    value = values.get(name, 0)
    if type(value) is not int or not 0 <= value < MOST_FRAMES:
        raise DataError(f"{name} is {described(value)}, not a whole number of at least 0 and below {MOST_FRAMES:,}")
    return value


def _video_path(values: dict[str, Any]) -> Template:
    text = values.get("video_path", VIDEO_PATH)
    if text is None:
        raise DataError("video_path is null, but there are features of dtype video")
    return Template.parse("video_path", text, ("video_key", "chunk_index", "file_index"))


def _features(values: dict[str, Any]) -> dict[str, Feature]:
    found = values.get("features")
    if not isinstance(found, dict) or not found:
        raise DataError(
            f"features is {_said(values, 'features')}, where an object with the name of each feature is expected"
        )
    if len(found) > MOST_FEATURES:
        raise DataError(f"it declares {len(found):,} features, which is more than the {MOST_FEATURES:,} that we read")
    return {name: _feature(name, value) for name, value in found.items()}


def _feature(name: str, value: Any) -> Feature:
    what = f"feature {shown(name)!r}"
    if not name or "/" in name:
        raise DataError(f"{what}: its name is empty or has a '/', which stands between folders and names only")
    if not isinstance(value, dict):
        raise DataError(f"{what} is {described(value)}, where an object with dtype and shape is expected")
    dtype, shape = value.get("dtype"), value.get("shape")
    if not isinstance(dtype, str) or not dtype:
        raise DataError(f"{what}: its dtype is {_said(value, 'dtype')}, not text like 'float32'")
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise DataError(f"{what}: its shape is {_shape(value)}, not a list of sizes")
    if dtype == "video":
        try:
            safe_parts(name)
        except NotAllowed as error:
            raise NotAllowed(f"{what} is a video, so its name is one of a folder: {error}") from None
    depth = _depth(what, value) if dtype in ("video", "image") else None
    return Feature(name, dtype, tuple(shape), value.get("names"), depth, {**value, "shape": tuple(shape)})


def _depth(what: str, value: dict[str, Any]) -> Depth | None:
    """Of a camera, where it says that it gives depth. Older data sets say it elsewhere."""
    places = [found for name in ("video_info", "info") if isinstance(found := value.get(name), dict)]
    if not any(place.get(key) is True for place in places for key in ("is_depth_map", "video.is_depth_map")):
        return None
    said = {key: item for place in places for key, item in place.items()}
    unit = said.get("depth_unit") or Depth.unit
    if unit not in ("m", "mm"):
        raise DataError(f"{what}: its depth_unit is {described(unit)}, not 'm' or 'mm'")
    numbers = {}
    for name, default in (("min", Depth.min), ("max", Depth.max), ("shift", Depth.shift)):
        key = "video.shift" if name == "shift" else f"video.depth_{name}"
        number = said.get(key)
        number = default if number is None else number
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < 1e9:
            raise DataError(f"{what}: its {key} is {described(number)}, not a number of metres")
        numbers[name] = float(number)
    use_log = said.get("video.use_log")
    made = Depth(unit, **numbers, use_log=True if use_log is None else use_log is True)
    if made.max <= made.min or (made.use_log and made.min + made.shift <= 0):
        raise DataError(f"{what}: depths from {made.min} to {made.max}, shifted by {made.shift}, cannot be codes")
    return made


def _shape(value: dict[str, Any]) -> str:
    shape = value.get("shape")
    if not isinstance(shape, list):
        return _said(value, "shape")
    wrong = next(size for size in shape if not _is_size(size))
    return f"{described(shape)} with {described(wrong)} in it"


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 31
