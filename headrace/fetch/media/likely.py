"""What a media value is likely to be, before anything is opened: by its first bytes, else by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from numbers import Number
from typing import Any

from headrace.errors import DataError
from headrace.fetch.media.sniff import BYTES, Kind, container_format, image_format

_ENDINGS: dict[str, Kind] = {
    **dict.fromkeys(["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"], "image"),
    **dict.fromkeys(["mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "flv", "wmv", "ts", "ogv"], "video"),
    **dict.fromkeys(["wav", "flac", "mp3", "ogg", "oga", "opus", "m4a", "aac", "aif", "aiff"], "audio"),
}
_ENDING = re.compile(r"\.(\w{2,4})$")
_ADDRESS = re.compile(r"(?:https?|hf|s3|gs)://")
_LISTS = (list, tuple)


def named_kind(name: str) -> Kind | None:
    """What a file should be by the ending of its name; None where that does not tell."""
    if _ADDRESS.match(name):
        name = name.partition("#")[0].partition("?")[0]
    found = _ENDING.search(name.strip())
    return _ENDINGS.get(found[1].lower()) if found else None


def is_frames(value: Any) -> bool:
    """Whether a list is the frames of one video. A list with a video in it is a list of videos."""
    return isinstance(value, _LISTS) and not any(_is_video(item) for item in value)


def _is_video(item: Any) -> bool:
    """Whether an item of a list is a video by itself: so is a list of frames, an array of them, and any name that is
    not an image's."""
    if isinstance(item, BYTES):
        return _kind_of_bytes(item) == "video"
    if isinstance(item, str):
        return named_kind(item) != "image"
    if isinstance(item, Mapping):
        return _is_video_struct(item)
    if isinstance(item, _LISTS):
        while isinstance(item, _LISTS) and item:
            item = item[0]
        return not isinstance(item, Number | list | tuple)
    return getattr(item, "ndim", 0) == 4


def _is_video_struct(item: Mapping[Any, Any]) -> bool:
    data, name = item.get("bytes"), item.get("path") or item.get("url")
    name = name if isinstance(name, str) else ""
    if isinstance(data, BYTES) and len(data):
        return (_kind_of_bytes(data) or named_kind(name)) == "video"
    return bool(name) and _is_video(name)


def _kind_of_bytes(data: bytes | bytearray | memoryview) -> Kind | None:
    head = bytes(data[:64])
    try:
        image_format(head)
    except DataError:
        pass
    else:
        return "image"
    try:
        container_format(head, "video")
    except DataError:
        return None
    return "video"
