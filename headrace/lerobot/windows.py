"""Time windows: which rows of an episode come with a frame. Whole numbers only, once the seconds were checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headrace.errors import SpecError, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.rng import I64


def frame_offsets(
    delta_timestamps: Mapping[str, Iterable[float]], features: Iterable[str], fps: int, tolerance_s: float
) -> dict[str, I64]:
    """Seconds before and after a frame as numbers of frames, in the order given. Each must fall on a frame."""
    import numpy as np

    known = list(features)
    found: dict[str, I64] = {}
    for name, seconds in delta_timestamps.items():
        if name not in known:
            raise SpecError(
                f"delta_timestamps: the data set has no feature {shown(name)!r}; it has {', '.join(map(shown, known))}"
            )
        times = np.array(list(seconds), dtype=np.float64)
        frames = np.rint(times * fps)
        off = np.flatnonzero(np.abs(times - frames / fps) > tolerance_s)
        if len(off):
            raise SpecError(
                f"delta_timestamps[{shown(name)!r}]: {times[off[0]]:g} s is between two frames at {fps} frames a "
                f"second (the nearest is at {frames[off[0]] / fps:g} s); give multiples of 1/{fps} s, or raise "
                f"tolerance_s={tolerance_s:g}"
            )
        found[name] = frames.astype(np.int64)
    return found


def window(row: int, offsets: I64, length: int) -> tuple[I64, NDArray[np.bool_]]:
    """The rows of a window around `row`, and which of them are only there because the episode ends before: its first
    or its last row then comes in their place."""
    import numpy as np

    wanted = row + offsets
    return np.clip(wanted, 0, length - 1), (wanted < 0) | (wanted >= length)
