"""The video frames of episodes: one time says where an episode begins in its file, whole numbers all the rest."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.errors import DataError, shown
from headrace.fetch.media.frames import FrameReader, gray16, rgb
from headrace.lerobot.decoders import VideoDecoderCache
from headrace.lerobot.files import VideoFiles
from headrace.lerobot.info import Feature

if TYPE_CHECKING:
    from headrace.fetch.media.mp4 import Track
    from headrace.lerobot.meta import Meta
    from headrace.rng import I64

SAME_RATE = 0.02
"""A video whose rate differs by no more than this share has the rate of the data set; written times have gaps."""


class Videos:
    def __init__(self, meta: Meta, files: VideoFiles, decoders: VideoDecoderCache, tolerance_s: float) -> None:
        self._meta, self._files, self._decoders, self._tolerance_s = meta, files, decoders, tolerance_s
        self._clocks: dict[str, tuple[bool, float]] = {}
        self._paths: dict[tuple[str, int, int], str] = {}
        self.decoded = 0
        """Frames that were decoded and given out."""
        self.seconds = 0.0
        """What that took, the wait for their bytes included."""

    def pixels(self, number: int, feature: Feature, frames: Sequence[int], place: str) -> list[Any]:
        """Frames of an episode by their numbers in it: each [height, width, 3] of bytes, or the codes of depths."""
        began = time.perf_counter()
        path, length = self._file(number, feature.name), int(self._meta.episodes.length[number])
        start, end = (
            float(one[feature.name][number]) for one in (self._meta.episodes.starts, self._meta.episodes.ends)
        )
        if max(frames) >= (end - start) * self._meta.info.fps - 0.5:
            raise DataError(
                f"{place}, {shown(path)}: the episode has {length} frames, but in the video another one begins after "
                f"{round((end - start) * self._meta.info.fps)}; mend the data set, or leave it out with episodes="
            )
        for frame in frames:
            if not 0 <= frame < length:
                why = f"frame_index is {frame}, and the episode has {length} frames; mend the data file"
                raise DataError(f"{place}, {shown(path)}: {why}")
        try:
            with self._decoders.get_decoder(path, partial(self._reader, path)) as reader:
                found = reader.frames(self._numbers(reader.track, path, start, frames))
        except DataError as error:
            error.add_note(f"in {place}, {shown(path)}")
            raise
        # A window that is padded has the same frame several times.
        turned = {id(one): gray16(one) if feature.is_depth else rgb(one) for one in found}
        pixels = [turned[id(one)] for one in found]
        if len(sizes := {one.shape[:2] for one in pixels}) > 1:
            raise DataError(f"{place}, {shown(path)}: its frames have different sizes: {sorted(sizes)}")
        self.decoded += len(frames)
        self.seconds += time.perf_counter() - began
        return pixels

    def _file(self, number: int, key: str) -> str:
        """The video that an episode's frames are in."""
        chunks, files, _ = self._meta.episodes.videos[key]
        at = (key, int(chunks[number]), int(files[number]))
        path = self._paths.get(at)
        if path is None:
            path = self._paths[at] = self._meta.info.video_file(*at)
        return path

    def _reader(self, path: str) -> FrameReader:
        return FrameReader(self._files.open(path), self._files.track(path))

    def _numbers(self, track: Track, path: str, start: float, frames: Sequence[int]) -> list[int]:
        """The numbers in the video of an episode's frames. The first is the one that is shown at `start` seconds, or
        nearest to that: written times drift, and so may those of a video that was put together of many. A video of
        another rate than the data set's has the others at their times, as LeRobot reads it; one of the same rate has
        them one by one."""
        fps, scale = self._meta.info.fps, track.timescale
        in_order, rate = self._clock(path, track)
        times = track.times if in_order else track.times[track.order]
        first = _nearest(times, start * scale)
        if abs(rate / fps - 1) < SAME_RATE:
            wanted = [first + frame for frame in frames]
        else:
            wanted = [_nearest(times, times[first] + frame * scale / fps) for frame in frames]
        if 2 * fps * (start - times[-1] / scale) > 1 or max(wanted) >= track.num_frames:
            raise DataError(
                f"frame {round(start * fps) + max(frames)} of the video is wanted, which has {track.num_frames}; it is "
                f"shorter than meta/episodes says; mend the data set, or leave the episode out with episodes="
            )
        for frame, number in zip([0, *frames], [first, *wanted], strict=True):
            origin = start if frame == 0 else times[first] / scale
            off = float(times[number] / scale - origin - frame / fps)
            if abs(off) > (0.5 / fps if frame == 0 else self._tolerance_s):
                raise DataError(
                    f"frame {number} of the video is shown {off:+.6f} s off the time of frame {frame} of the episode, "
                    f"and tolerance_s is {self._tolerance_s:g}; the video has {rate:.4g} frames a second, and the data "
                    f"set {fps} by its meta/info.json; mend the one that is wrong, raise tolerance_s to have the "
                    f"nearest frame, or leave the episode out with episodes="
                )
        return wanted

    def _clock(self, path: str, track: Track) -> tuple[bool, float]:
        """Whether the frames of a video are decoded in the order they are shown; and how many are shown a second."""
        if path not in self._clocks:
            in_order = bool((track.order[1:] == track.order[:-1] + 1).all()) and not track.order[0]
            span = float(track.times.max() - track.times.min()) / track.timescale
            self._clocks[path] = in_order, (track.num_frames - 1) / span if span > 0 else float(self._meta.info.fps)
        return self._clocks[path]


def _nearest(times: I64, wanted: float) -> int:
    """The number of the frame that is shown nearest to a time."""
    number = int(times.searchsorted(wanted))
    if number and (number == len(times) or wanted - times[number - 1] <= times[number] - wanted):
        number -= 1
    return number
