"""The video frames of episodes, by whole numbers: no second is compared with another but to find a broken file."""

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
    from headrace.lerobot.meta import Meta


class Videos:
    def __init__(self, meta: Meta, files: VideoFiles, decoders: VideoDecoderCache, tolerance_s: float) -> None:
        self._meta, self._files, self._decoders, self._tolerance_s = meta, files, decoders, tolerance_s
        self._uneven: dict[str, bool] = {}
        """Whether frames of a file are not where their number says."""
        self._paths: dict[tuple[str, int, int], str] = {}
        self.decoded = 0
        """Frames that were decoded and given out."""
        self.seconds = 0.0
        """What that took, the wait for their bytes included."""

    def pixels(self, number: int, feature: Feature, frames: Sequence[int], place: str) -> list[Any]:
        """Frames of an episode by their numbers in it: each [height, width, 3] of bytes, or the codes of depths."""
        began = time.perf_counter()
        (path, first), length = self._file(number, feature.name), int(self._meta.episodes.length[number])
        for frame in frames:
            if not 0 <= frame < length:
                why = f"frame_index is {frame}, and the episode has {length} frames; mend the data file"
                raise DataError(f"{place}, {shown(path)}: {why}")
        wanted = [first + frame for frame in frames]
        try:
            with self._decoders.get_decoder(path, partial(self._reader, path)) as reader:
                self._check(reader, path, wanted, place)
                found = reader.frames(wanted)
        except DataError as error:
            error.add_note(f"in {place}, {shown(path)}")
            raise
        # A window that is padded has the same frame several times.
        turned = {id(one): gray16(one) if feature.is_depth else rgb(one) for one in found}
        pixels = [turned[id(one)] for one in found]
        if len(sizes := {one.shape[:2] for one in pixels}) > 1:
            raise DataError(f"{place}, {shown(path)}: its frames have different sizes: {sorted(sizes)}")
        self.decoded += len(wanted)
        self.seconds += time.perf_counter() - began
        return pixels

    def _file(self, number: int, key: str) -> tuple[str, int]:
        """The video that an episode's frames are in, and the number of the first."""
        chunks, files, firsts = self._meta.episodes.videos[key]
        at = (key, int(chunks[number]), int(files[number]))
        path = self._paths.get(at)
        if path is None:
            path = self._paths[at] = self._meta.info.video_file(*at)
        return path, int(firsts[number])

    def _reader(self, path: str) -> FrameReader:
        return FrameReader(self._files.open(path), self._files.track(path))

    def _check(self, reader: FrameReader, path: str, wanted: Sequence[int], place: str) -> None:
        """That the video has these frames, and shows them when it should."""
        import numpy as np

        track, fps = reader.track, self._meta.info.fps
        last = max(wanted)
        if last >= track.num_frames:
            raise DataError(
                f"{place}, {shown(path)}: frame {last} of the video is wanted, which has {track.num_frames}; it is "
                f"shorter than meta/episodes says; mend the data set, or leave the episode out with episodes="
            )
        if path not in self._uneven:
            seconds = track.times[track.order] / track.timescale
            late = np.abs(seconds - np.arange(track.num_frames) / fps)
            self._uneven[path] = bool((late > self._tolerance_s).any())
        if self._uneven[path]:
            for frame in wanted:
                off = float(track.times[track.order[frame]] / track.timescale - frame / fps)
                if abs(off) > self._tolerance_s:
                    raise DataError(
                        f"{place}, {shown(path)}: frame {frame} of the video is shown {off:+.6f} s off {frame}/{fps} "
                        f"s, and tolerance_s is {self._tolerance_s:g}; the video has another rate than meta/info.json "
                        f"says"
                    )
