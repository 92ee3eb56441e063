"""Frames of a video by their number: bytes of samples to a decoder, and no demuxer in between.

The frame table says which samples a frame takes; they are read, and decoded forward from a key frame. A decoder that
has come past a frame, or that is far before it, begins again at a later key frame.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from headrace.errors import DataError, HeadraceError, Refused, SpecError, StateError, shown
from headrace.fetch.media.boxes import Bytes
from headrace.fetch.media.budget import DEFAULT, Budget, Clock
from headrace.fetch.media.ffmpeg import INSTALL, _av, _said
from headrace.fetch.media.mp4 import Track, read_track
from headrace.fetch.media.reformat import one_thread, to_rgb_options

if TYPE_CHECKING:
    import numpy as np
    from av.video.frame import VideoFrame
    from numpy.typing import NDArray

DECODERS = {"h264": "h264", "hevc": "hevc", "av1": "libdav1d", "vp9": "vp9"}
"""FFmpeg's, by codec. The one that is called av1 decodes on graphics cards only."""
READ = 8 << 20
"""Bytes of one read, unless a sample alone has more."""
GAP = 16 << 10
"""So many bytes between two samples are read along: those of sound, mostly."""
PADDING = 64


class FrameReader:
    """Decodes frames of one video. One thread at a time; nothing is read or made before the first frame."""

    def __init__(self, data: Bytes, track: Track | None = None, budget: Budget = DEFAULT) -> None:
        self._data, self._track, self._budget = data, track, budget
        self._context: Any = None
        self._place: _Leg | None = None
        """Where the decoder stands; None before it is used, after it was emptied, and after an error."""
        self._closed = False

    @property
    def track(self) -> Track:
        if self._track is None:
            self._track = read_track(self._data, self._budget)
        return self._track

    def frames(self, numbers: Sequence[int]) -> list[VideoFrame]:
        """These frames, in this order; a number that comes twice gives the same frame twice.

        Their `pts` and `time_base` are the ones that the file says.
        """
        if self._closed:
            raise StateError("the reader of a video is closed; open another one")
        wanted = self._checked(numbers)
        found: dict[int, VideoFrame] = {}
        for leg in self._legs(sorted(set(wanted))):
            place, self._place = self._place, None
            try:
                self._run(leg, place, found)
            except BaseException as error:
                self._context = None  # whatever it is in the middle of
                if isinstance(error, Refused):
                    text = f"{shown(self._data.name)}: on the way to frame {min(leg.wanted.values())}: {error}"
                    raise Refused(text) from error
                raise
        return [found[number] for number in wanted]

    def close(self) -> None:
        self._closed, self._context, self._place = True, None, None

    def _checked(self, numbers: Sequence[int]) -> list[int]:
        try:
            wanted = [operator.index(number) for number in numbers]
        except TypeError as error:
            raise SpecError(f"numbers of frames are whole numbers, not {shown(numbers)}") from error
        count = self.track.num_frames
        off = next((number for number in wanted if not 0 <= number < count), None)
        if off is not None:
            raise DataError(f"{shown(self._data.name)}: frame {off} is not in it: it has {count:,} frames, from 0 on")
        return wanted

    def _legs(self, wanted: list[int]) -> Iterator[_Leg]:
        """Ways forward through the samples, each from a key sample, or on from where the decoder stands."""
        samples, starts = self.track.order[wanted].tolist(), self.track.starts[wanted].tolist()
        place = self._place
        leg = None if place is None else _Leg(place.base, place.stop, place.stop)
        for number, sample, start in zip(wanted, samples, starts, strict=True):
            if leg is None or not (leg.base <= start <= leg.stop and leg.first <= sample):
                if leg is not None and leg.wanted:
                    yield leg
                leg = _Leg(start, start, start)
            leg.stop = max(leg.stop, sample + 1)
            leg.wanted[sample] = number
        if leg is not None and leg.wanted:
            yield leg

    def _run(self, leg: _Leg, place: _Leg | None, found: dict[int, VideoFrame]) -> None:
        """Decode one leg. Afterwards the decoder stands at its end, unless it had to be emptied."""
        self._require_there(leg)
        if self._context is None:
            self._context = self._opened()
        elif place is None or place.stop != leg.first:
            self._context.flush_buffers()
        left, clock = dict(leg.wanted), Clock(self._budget)
        for sample, body in self._samples(leg.first, leg.stop):
            with self._telling(sample, left):
                frames = self._context.decode(_packet(body, sample))
            if self._take(frames, leg, left, found):
                clock = Clock(self._budget)
            clock.check()
        if not left:
            self._place = leg
            return
        with self._telling(leg.stop - 1, left):
            frames = self._context.decode(None)
        self._take(frames, leg, left, found)
        if left:
            raise self._bad(min(left), left, "the decoder gives no picture for it: the video is damaged there")

    def _take(self, frames: list[VideoFrame], leg: _Leg, left: dict[int, int], found: dict[int, VideoFrame]) -> bool:
        """Keep what was asked for, and say whether there was any."""
        times, before = self.track.times, len(left)
        for frame in frames:
            sample = frame.pts
            if sample is None:
                continue
            # What is shown before the key frame may lean on what was before it, and is not what was asked for.
            if frame.is_corrupt and times[sample] >= times[leg.base]:
                raise self._bad(sample, left, "its data is damaged: what the decoder makes of it is a guess")
            if sample not in left:
                continue
            self._budget.require("max_pixels", frame.width * frame.height, "the number of pixels of a frame")
            frame.pts, frame.time_base = int(times[sample]), Fraction(1, self.track.timescale)
            found[left.pop(sample)] = frame
        return len(left) < before

    def _samples(self, first: int, stop: int) -> Iterator[tuple[int, memoryview]]:
        """Samples and their bytes, of which those that lie together are read at once."""
        offsets, sizes = self.track.offsets[first:stop].tolist(), self.track.sizes[first:stop].tolist()
        at = 0
        while at < len(offsets):
            begin, end, last = offsets[at], offsets[at] + sizes[at], at + 1
            while last < len(offsets) and 0 <= offsets[last] - end <= GAP:
                if offsets[last] + sizes[last] - begin > READ:
                    break
                end, last = offsets[last] + sizes[last], last + 1
            body = memoryview(self._data.read(begin, end))
            if len(body) != end - begin:
                raise DataError(f"{shown(self._data.name)}: {len(body):,} of bytes {begin:,} to {end:,} were read")
            for i in range(at, last):
                if sizes[i]:  # a decoder takes nothing for the end
                    yield first + i, body[offsets[i] - begin : offsets[i] - begin + sizes[i]]
            at = last

    def _require_there(self, leg: _Leg) -> None:
        """That the file has every byte of the leg, and that no sample is too large."""
        offsets, sizes = self.track.offsets[leg.first : leg.stop], self.track.sizes[leg.first : leg.stop]
        self._budget.require("max_bytes", int(sizes.max()), "the size in bytes of a frame")
        if int((offsets + sizes).max()) <= self._data.size:
            return
        first = leg.first + int((offsets + sizes > self._data.size).argmax())
        track = self.track
        lost = ((track.offsets + track.sizes)[track.order] > self._data.size).nonzero()[0]
        why = (
            f"the file is cut short: it has {self._data.size:,} of {track.end:,} bytes, and {len(lost):,} of "
            f"{track.num_frames:,} frames are lost"
        )
        if len(lost):
            why += f", from {int(lost[0])} to {int(lost[-1])}"
        why += "; fetch or write it again, whole"
        raise self._bad(first, leg.wanted, why)

    def _opened(self) -> Any:
        av, track = _av(), self.track
        name = DECODERS[track.codec]
        try:
            context = av.CodecContext.create(name, "r")
        except av.codec.codec.UnknownCodecError as error:
            raise SpecError(
                f"{shown(self._data.name)}: the video is {track.codec}, for which PyAV {av.__version__} has no decoder "
                f"{name} here; {INSTALL}"
            ) from error
        if track.extradata:
            # PyAV leaves what is after it as it was; the decoder may look there, and is to find nothing.
            context.extradata = bytes(len(track.extradata) + PADDING)
            context.extradata = track.extradata
        context.thread_count = 1
        context.width, context.height = track.width, track.height
        if track.color is not None:
            context.color_primaries, context.color_trc, context.colorspace = track.color[:3]
            if track.color.full is not None:
                context.color_range = 2 if track.color.full else 1
        context.options = {"max_pixels": str(int(self._budget.max_pixels))}
        if name == "libdav1d":
            context.options = {**context.options, "max_frame_delay": "1"}
        with self._telling(0, {}):
            context.open()
        return context

    @contextmanager
    def _telling(self, sample: int, left: dict[int, int]) -> Iterator[None]:
        """What FFmpeg raises comes out as an error that names the frame."""
        try:
            yield
        except HeadraceError:
            raise
        except Exception as error:  # a decoder may fail in any way when bytes are wrong
            if isinstance(error, MemoryError) and not isinstance(error, _av().FFmpegError):
                raise
            raise self._bad(sample, left, f"it cannot be decoded: {_said(error)}") from error

    def _bad(self, sample: int, wanted: dict[int, int], why: str) -> DataError:
        """An error about a sample, on the way to the frames that are wanted."""
        at = (self.track.order == sample).nonzero()[0]
        numbers = sorted(number for later, number in wanted.items() if later >= sample) or sorted(wanted.values())
        frame = f"frame {int(at[0])}" if len(at) else f"sample {sample}, which is not shown"
        if numbers and (not len(at) or numbers[0] != at[0]):
            frame += f" (on the way to frame {numbers[0]})"
        return DataError(f"{shown(self._data.name)}: {frame}, of {self.track.num_frames:,}: {why}")


@dataclass
class _Leg:
    base: int
    """The sample at which decoding began."""
    first: int
    """The sample with which it goes on."""
    stop: int
    wanted: dict[int, int] = field(default_factory=dict)
    """Numbers of frames, by their samples."""


def _packet(body: memoryview, sample: int) -> Any:
    """A packet that has its own bytes, and as many zeros after them as FFmpeg may read beyond the end."""
    from av.packet import Packet

    packet: Any = Packet(len(body))
    packet.update(body)
    packet.pts = sample
    return packet


_LOCAL = threading.local()


def rgb(frame: VideoFrame) -> NDArray[np.uint8]:
    """[height, width, 3], with the pixels that `frame.to_ndarray(format="rgb24")` gives."""
    found: NDArray[np.uint8] = _reshaped(frame, "rgb24", to_rgb_options(frame))
    return found


def gray16(frame: VideoFrame) -> NDArray[np.uint16]:
    """[height, width], with the 12 bits that `frame.to_ndarray(format="gray12le")` gives: depths are kept so."""
    found: NDArray[np.uint16] = _reshaped(frame, "gray12le", one_thread())
    return found


def _reshaped(frame: VideoFrame, form: str, options: dict[str, Any]) -> Any:
    """By reformatters that each thread keeps: a frame's own would be made for it, with threads, and thrown away."""
    kind = (frame.format.name, form, *options.values())  # old versions mix up the colours of what one is given
    shapers: dict[tuple[Any, ...], Any] = _LOCAL.__dict__.setdefault("shapers", {})
    shaper = shapers.get(kind)
    if shaper is None:
        from av.video.reformatter import VideoReformatter

        shaper = shapers[kind] = VideoReformatter()
    try:
        return shaper.reformat(frame, format=form, **options).to_ndarray()
    except (ValueError, OSError) as error:  # FFmpeg's are either
        raise DataError(f"a frame of the form {shown(frame.format.name)} cannot be read as {form}") from error
