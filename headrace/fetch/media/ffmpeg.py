"""FFmpeg by way of PyAV, held short: bytes in, frames out, and nothing else in the world is touched.

The demuxer is named, the decoders are listed, nested opens are refused, one thread does the work, and every read looks
at the clock. FFmpeg never sees a name or an address that came from a row.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.errors import DataError, HeadraceError, NotAllowed, Refused, SpecError, shown
from headrace.fetch.media.budget import WALL, Budget, Clock
from headrace.fetch.media.layout import require_plausible, require_whole
from headrace.fetch.media.sniff import Kind, container_format
from headrace.floors import note_floor

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.stream import Stream

# fmt: off
VIDEO_DECODERS = frozenset((
    "av1", "libdav1d", "h263", "h264", "hevc", "libvpx", "libvpx-vp9", "mjpeg", "mpeg1video", "mpeg2video", "mpeg4",
    "msmpeg4", "msmpeg4v2", "theora", "vp8", "vp9",
))
AUDIO_DECODERS = frozenset((
    "aac", "ac3", "adpcm_ima_wav", "adpcm_ms", "alac", "eac3", "flac", "libopus", "mp2", "mp2float", "mp3", "mp3float",
    "opus", "pcm_alaw", "pcm_f32be", "pcm_f32le", "pcm_f64be", "pcm_f64le", "pcm_mulaw", "pcm_s16be", "pcm_s16le",
    "pcm_s24be", "pcm_s24le", "pcm_s32be", "pcm_s32le", "pcm_s8", "pcm_u8", "vorbis",
))
# fmt: on
BUFFER = 64 << 10
INSTALL = "pip install 'headrace[video]'"


class LostWay(Exception):
    """A seek led past the frame that was wanted, or to where it cannot be decoded."""


@contextmanager
def opened(data: bytes, kind: Kind, clock: Clock) -> Iterator[InputContainer]:
    """A container over `data`. Whatever goes wrong inside comes out as an error of the family."""
    av = _av()
    budget = clock.budget
    name = container_format(data, kind)
    budget.require("max_bytes", len(data), f"the size in bytes of the {kind}")
    require_whole(data, name)
    if name == "mov":
        require_plausible(data, budget)
    options = {
        "protocol_whitelist": "",
        "format_whitelist": name,
        "codec_whitelist": ",".join(sorted(VIDEO_DECODERS | AUDIO_DECODERS)),
        "max_pixels": str(int(budget.max_pixels)),
        "max_streams": "64",
        "threads": "1",
    }
    try:
        with av.open(
            _Source(data, clock),
            mode="r",
            format=name,
            options=options,
            metadata_errors="replace",
            buffer_size=BUFFER,
            timeout=budget.timeout * WALL,
            io_open=_refuse_open,
        ) as container:
            yield container
    except (HeadraceError, LostWay):
        raise
    except Exception as error:  # a decoder may fail in any way when bytes are wrong
        # Python's own means what it says; that of FFmpeg is also the answer to a size that cannot be.
        if isinstance(error, MemoryError) and not isinstance(error, av.FFmpegError):
            raise
        clock.check()
        raise DataError(f"the {kind} cannot be decoded: {_said(error)}") from error


def prepare(stream: Stream, budget: Budget) -> Any:
    """Refuse a stream that may not be decoded; set up the decoder of one that may."""
    context: Any = stream.codec_context
    allowed = VIDEO_DECODERS if stream.type == "video" else AUDIO_DECODERS
    if context is None or context.name not in allowed:
        found = "unknown" if context is None else shown(context.name)
        raise Refused(
            f"its {stream.type} codec is {found}, which is not decoded; those that are: {', '.join(sorted(allowed))}"
        )
    context.thread_count = 1
    context.options = {"max_pixels": str(int(budget.max_pixels))}
    for other in stream.container.streams:
        if other.index != stream.index and hasattr(other, "discard"):  # without, its packets are read for nothing
            other.discard = type(other.discard)["all"]
    return context


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise SpecError(f"this takes the package av, which is not installed; {INSTALL}") from error
    note_floor("FFmpeg", str(av.ffmpeg_version_info))
    return av


class _Source:
    """The bytes as a file. After the deadline it has ended, so that no demuxer can go on for ever."""

    def __init__(self, data: bytes, clock: Clock) -> None:
        self._file = io.BytesIO(data)
        self._clock = clock
        self.seek, self.tell = self._file.seek, self._file.tell

    def read(self, size: int) -> bytes:
        return b"" if self._clock.is_over() else self._file.read(size)


def _refuse_open(url: str, flags: int, options: dict[str, str]) -> NoReturn:
    raise NotAllowed(f"the media names {shown(url)!r} to be opened in its turn, which is refused")


def _said(error: Exception) -> str:
    return shown(" ".join(str(getattr(error, "strerror", None) or error).split()))
