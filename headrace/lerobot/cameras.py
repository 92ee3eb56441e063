"""Pixels of cameras as LeRobot gives them: colours as [3, height, width], depths in millimetres or metres."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import DataError, shown
from headrace.fetch.media.load import load_image
from headrace.fetch.media.policy import MediaPolicy
from headrace.lerobot.info import Feature

if TYPE_CHECKING:
    import torch

DEEPEST = 4095
"""Depths are coded with 12 bits..."""
MOST_MM = 65535
"""...and are whole millimetres, as cameras give them."""
_MM = {"mm": 1.0, "m": 1000.0}


def colours(frames: Sequence[Any], *, as_bytes: bool) -> torch.Tensor:
    """Frames [height, width, 3] of bytes as [T, 3, height, width]; from 0 to 1 unless they stay bytes."""
    import torch

    height, width, _ = frames[0].shape
    planes = torch.empty((len(frames), 3, height, width), dtype=torch.uint8)
    for plane, frame in zip(planes, frames, strict=True):
        plane.copy_(torch.from_numpy(frame).permute(2, 0, 1))
    # Bytes are turned, and not floats, which takes twice as long.
    return planes if as_bytes else planes.to(torch.float32).div_(255)


def depths(codes: Sequence[Any], feature: Feature, unit: str) -> torch.Tensor:
    """Codes [height, width] as depths, [T, 1, height, width]."""
    import numpy as np
    import torch

    depth = feature.depth
    if depth is None:
        raise DataError(f"{shown(feature.name)}: meta/info.json says that it is a depth map, but not how it is coded")
    steps = torch.from_numpy(np.stack(codes).astype(np.float32))
    if depth.use_log:
        low, high = math.log(depth.min + depth.shift), math.log(depth.max + depth.shift)
        metres = torch.exp(steps * ((high - low) / DEEPEST) + low) - depth.shift
    else:
        metres = steps * ((depth.max - depth.min) / DEEPEST) + depth.min
    metres = metres.clamp(depth.min, depth.max)[:, None]
    return metres if unit == "m" else torch.round(metres * 1000).clamp(0, MOST_MM)


def image(value: Any, feature: Feature, unit: str) -> torch.Tensor:
    """An image that lies in a row: [3, height, width] from 0 to 1, or a depth map, [1, height, width]."""
    if feature.is_depth:
        return _depth_image(value, feature, unit)
    return colours([load_image(value, POLICY)], as_bytes=False)[0]


def _depth_image(value: Any, feature: Feature, unit: str) -> torch.Tensor:
    """Depth images hold depths themselves, whole numbers or floats, in the unit that the metadata names."""
    import io

    import numpy as np
    import torch
    from PIL import Image

    from headrace.fetch.media.policy import open_media

    try:
        with Image.open(io.BytesIO(open_media(value, POLICY, "image")), formats=("TIFF", "PNG")) as found:
            if found.width * found.height > POLICY.max_pixels:
                raise DataError(f"{shown(feature.name)}: a depth map of {found.width} x {found.height} pixels")
            pixels = np.asarray(found)
    except (OSError, ValueError, SyntaxError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{shown(feature.name)}: the depth map cannot be decoded: {shown(error)}") from error
    stored = (feature.depth.unit if feature.depth is not None else None) or "mm"
    scale = _MM[stored] / _MM[unit]
    return torch.from_numpy(pixels.astype(np.float32) * np.float32(scale))[None]


POLICY = MediaPolicy()
"""Images of a data set are bytes in its rows, and nothing else is opened."""
