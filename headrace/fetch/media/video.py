"""Videos: some frames, evenly spread over the whole or over a clip of it, resized while they are decoded.

Upright, as the file's rotation says. A video with fewer frames than are asked for gives all it has. One pass over the
packets counts the frames and finds the key frames; one pass forward decodes, and leaps over what no frame needs. What
the decoder makes up where data is damaged is an error, if the decoder says so: those of H.264 and MPEG-4 do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from headrace.errors import DataError, SpecError, shown
from headrace.fetch.media.budget import DEFAULT, Budget, Clock
from headrace.fetch.media.clip import Clip, frames_in
from headrace.fetch.media.ffmpeg import LostWay, opened, prepare
from headrace.fetch.media.reformat import to_rgb_options

if TYPE_CHECKING:
    import numpy as np
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream
    from numpy.typing import NDArray

    U8 = NDArray[np.uint8]

Made = TypeVar("Made")
Size = int | tuple[int, int] | None
Backend = Literal["pyav", "torchcodec"]


def decode_video(
    data: bytes,
    max_frames: int,
    size: Size = None,
    budget: Budget = DEFAULT,
    clip: Clip | None = None,
    *,
    backend: Backend = "pyav",
) -> U8:
    """At most `max_frames` frames, [T, height, width, 3]: the first, the last, and evenly chosen ones in between.

    `size` is the side of a square, (height, width), or None for the video's own; frames are stretched to it. Frames
    are counted, not timed, so one that stays for long counts once; of a `clip` they are timed.
    """
    _require_above_0(max_frames)
    if backend == "torchcodec":
        from headrace.fetch.media.torch_video import decode_by_torchcodec

        return decode_by_torchcodec(data, max_frames, size, budget, clip)
    if backend != "pyav":
        raise SpecError(f"backend={shown(backend)!r}: 'pyav' or 'torchcodec' is expected")
    import numpy as np

    found: list[U8] = each_frame(lambda frame: frame, data, max_frames, size, budget, clip)
    if len({frame.shape for frame in found}) > 1:
        raise DataError("the video changes its size on the way; give a size to have all frames alike")
    return np.stack(found)


def each_frame(
    make: Callable[[U8], Made],
    data: bytes,
    max_frames: int,
    size: Size = None,
    budget: Budget = DEFAULT,
    clip: Clip | None = None,
) -> list[Made]:
    """What `make` makes of the frames of `decode_video`: of each when it is decoded, so that they are never all there.

    It may get some of them again, where a leap led astray. Its time is not of the budget.
    """
    _require_above_0(max_frames)
    try:
        return _decode(make, data, (max_frames, clip), size, budget, seeks=True)
    except LostWay:
        return _decode(make, data, (max_frames, clip), size, budget, seeks=False)


def _require_above_0(max_frames: Any) -> None:
    if isinstance(max_frames, bool) or not isinstance(max_frames, int) or max_frames < 1:
        raise SpecError(f"max_frames={shown(max_frames)}: a whole number above 0 is expected")


def spread(count: int, most: int) -> list[int]:
    """`most` numbers below `count`, from first to last, as even as whole numbers can be; all if there are fewer."""
    if most >= count:
        return list(range(count))
    if most == 1:
        return [(count - 1) // 2]
    return [i * (count - 1) // (most - 1) for i in range(most)]


class Index(NamedTuple):
    """What a look at all packets tells."""

    times: list[int] | None
    """Of all frames, in order of showing; None where packets do not tell them, or tell the order of decoding."""
    keys: list[int]
    """Of key frames."""
    num_frames: int
    seconds: list[float] | None
    """When each frame is shown, from the first on; None: nobody knows."""

    def chosen(self, most: int, clip: Clip | None) -> list[int]:
        """Numbers of frames, in order; one may come several times."""
        if clip is None:
            return spread(self.num_frames, most)
        if self.seconds is None:
            raise DataError(f"its frames have no times, so that {clip} cannot be found")
        return frames_in(self.seconds, clip, most)


def index_frames(container: InputContainer, stream: VideoStream, clock: Clock) -> Index:
    times: list[int | None] = []
    keys: list[int] = []
    for packet in container.demux(stream):
        if not packet.size or packet.is_discard:
            continue
        if packet.is_corrupt:
            raise DataError(f"the video is damaged at frame {len(times)}")
        times.append(packet.pts)
        if packet.is_keyframe and packet.pts is not None:
            keys.append(packet.pts)
        if not len(times) % 256:
            clock.check()
            clock.budget.require("max_frames", len(times), "the number of frames")
    clock.check()
    clock.budget.require("max_frames", len(times), "the number of frames")
    if not times:
        raise DataError("the video has no frames")
    known = sorted(time for time in times if time is not None)
    if known and stream.time_base is not None:
        seconds = float((known[-1] - known[0]) * stream.time_base)
        clock.budget.require("max_seconds", seconds, "the length in seconds of the video")
    exact = len(set(known)) == len(times) and container.format.name != "avi"
    return Index(known if exact else None, sorted(keys), len(times), _seconds(stream, known if exact else len(times)))


def _seconds(stream: VideoStream, frames: list[int] | int) -> list[float] | None:
    """Of frames by their times; of a number of frames, by the rate that the file has."""
    if isinstance(frames, list):
        base = stream.time_base
        return None if base is None else [float((time - frames[0]) * base) for time in frames]
    rate = stream.average_rate
    return [float(i / rate) for i in range(frames)] if rate else None


def video_stream(container: InputContainer) -> VideoStream:
    cover = 0x400  # a still picture, such as the cover of a record
    found = next((one for one in container.streams.video if not one.disposition.value & cover), None)
    if found is None:
        raise DataError("the file has no video in it")
    return found


def _decode(
    make: Callable[[U8], Made], data: bytes, what: tuple[int, Clip | None], size: Size, budget: Budget, *, seeks: bool
) -> list[Made]:
    clock = Clock(budget)
    with opened(data, "video", clock) as container:
        stream = video_stream(container)
        prepare(stream, budget)
        index = index_frames(container, stream, clock)
    chosen = index.chosen(*what)
    wanted = sorted(set(chosen))
    # Outside of what opens the container: there, whatever goes wrong is the video's fault.
    with closing(_pictures(data, index if seeks else index._replace(times=None), wanted, size, clock)) as pictures:
        found = [make(picture) for picture in pictures]
    if not found:
        raise DataError("the video has no frames that can be decoded")
    if len(found) == len(wanted) < len(chosen):
        return [found[wanted.index(number)] for number in chosen]
    return found


def _pictures(data: bytes, index: Index, wanted: list[int], size: Size, clock: Clock) -> Generator[U8, None, None]:
    with opened(data, "video", clock) as container:
        stream = video_stream(container)
        prepare(stream, clock.budget)
        if index.times is None:
            frames = _by_count(container.decode(stream), wanted, index.keys)
        else:
            frames = _by_time(container, stream, [index.times[i] for i in wanted], index.keys)
        for frame in frames:
            clock.check()
            pixels = _pixels(frame, size, clock.budget)
            with clock.stopped():
                yield pixels


def _by_count(frames: Iterator[VideoFrame], wanted: list[int], keys: list[int]) -> Iterator[VideoFrame]:
    left = deque(wanted)
    for i, frame in enumerate(frames):
        if frame.is_corrupt:
            if _is_led(frame, keys[0] if keys else None):
                continue
            raise DataError(f"the video is damaged at frame {i}: what the decoder makes of it is a guess")
        if i >= left[0]:
            yield frame
            while left and left[0] <= i:
                left.popleft()
            if not left:
                return


def _is_led(frame: VideoFrame, key: int | None) -> bool:
    """Whether it is shown before the key frame, and so may lean on frames before that, which are not there."""
    return key is not None and frame.pts is not None and frame.pts < key


def _by_time(
    container: InputContainer, stream: VideoStream, wanted: list[int], keys: list[int]
) -> Iterator[VideoFrame]:
    frames: Iterator[VideoFrame] = container.decode(stream)
    at: int | None = None
    for time in wanted:
        if at is not None and at >= time:
            continue  # a frame in between was missing, and the one after it has been given
        here = bisect_right(keys, time) - 1
        leapt = here > 0 and (at is None or keys[here] > at)
        if leapt:
            container.seek(keys[here], stream=stream)
            frames = container.decode(stream)
        for frame in frames:
            if frame.pts is None or (frame.pts > time if leapt else at is not None and frame.pts <= at):
                raise LostWay
            at, leapt = frame.pts, False
            if frame.is_corrupt and not _is_led(frame, keys[max(here, 0)] if keys else None):
                raise LostWay  # damaged, or no key frame where one is said to be: without leaps it will be seen
            if at >= time and not frame.is_corrupt:
                yield frame
                break


_HOW = 0x2 | 0x2000 | 0x40000
"""SWS_BILINEAR, SWS_FULL_CHR_H_INT and SWS_ACCURATE_RND, of which old versions of PyAV name only the first. Without
the last two, frames come out darker by one or two levels."""


def _pixels(frame: VideoFrame, size: Size, budget: Budget) -> U8:
    import numpy as np

    budget.require("max_pixels", frame.width * frame.height, "the number of pixels of a frame")
    turns = round(frame.rotation / 90) % 4
    height, width = (size, size) if isinstance(size, int) else size or (0, 0)
    if turns % 2:
        height, width = width, height
    shape: dict[str, Any] = {"width": width, "height": height} if width else {}
    pixels: Any = frame.reformat(**shape, format="rgb24", interpolation=_HOW, **to_rgb_options(frame)).to_ndarray()
    return np.ascontiguousarray(np.rot90(pixels, turns)) if turns else pixels
