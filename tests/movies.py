"""Small real videos for the tests of frames, and a way to change one box of an MP4."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from headrace.fetch.media.reformat import to_rgb_options

INSIDE = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"dinf")
QUIET = "log-level=none"

Change = Callable[[bytes], bytes]


class Held:
    """Bytes in memory, that notes what is read of them."""

    def __init__(self, data: bytes, name: str = "top/file-000.mp4") -> None:
        self.data, self.name, self.size = data, name, len(data)
        self.reads: list[tuple[int, int]] = []

    def read(self, start: int, stop: int) -> bytes:
        assert 0 <= start <= stop <= self.size
        self.reads.append((start, stop))
        return self.data[start:stop]


def picture(number: int, seed: int = 0, size: tuple[int, int] = (64, 48)) -> NDArray[np.uint8]:
    """Waves that move, under a little noise, so that no two are alike."""
    width, height = size
    y, x = np.mgrid[0:height, 0:width]
    turn = number / 3 + seed
    waves = np.stack([np.sin(x / 9 + y / 23 + turn), np.cos(x / 13 - y / 10 + turn), np.sin(x * y / 99 - turn)], -1)
    noise = np.random.default_rng([seed, number]).normal(0, 6, waves.shape)
    found: NDArray[np.uint8] = np.clip(127 + 100 * waves + noise, 0, 255).astype(np.uint8)
    return found


def movie(
    codec: str = "libx264",
    frames: int = 40,
    *,
    form: str = "yuv420p",
    seed: int = 0,
    times: tuple[int, ...] = (),
    size: tuple[int, int] = (64, 48),
    movflags: str = "",
    **options: str,
) -> bytes:
    """An MP4 of `picture`s. `times` are milliseconds; without them there are 30 a second."""
    return _movie(codec, frames, form, seed, times, size, movflags, tuple(options.items()))


@cache
def _movie(
    codec: str,
    frames: int,
    form: str,
    seed: int,
    times: tuple[int, ...],
    size: tuple[int, int],
    movflags: str,
    options: tuple[tuple[str, str], ...],
) -> bytes:
    with TemporaryDirectory() as folder:  # an index at the front is written by going back in a file
        path = Path(folder) / "out.mp4"
        with av.open(str(path), "w", options={"movflags": movflags} if movflags else {}) as container:
            stream: Any = container.add_stream(codec, rate=30, options=dict(options))
            stream.width, stream.height = size
            stream.pix_fmt = form
            if times:
                stream.codec_context.time_base = Fraction(1, 1000)
            for number in range(frames):
                frame = _frame(picture(number, seed, size), form)
                if times:
                    frame.pts, frame.time_base = times[number], Fraction(1, 1000)
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return path.read_bytes()


def depths(number: int) -> NDArray[np.uint16]:
    """What the depth video shows: 12 bits of a picture."""
    return _depths(picture(number))


def _depths(pixels: NDArray[np.uint8]) -> NDArray[np.uint16]:
    found: NDArray[np.uint16] = pixels[..., 0].astype(np.uint16) * 16 + pixels[..., 1] % 16
    return found


def _frame(pixels: NDArray[np.uint8], form: str) -> av.VideoFrame:
    if form == "gray12le":
        return av.VideoFrame.from_ndarray(_depths(pixels), format=form)
    return av.VideoFrame.from_ndarray(pixels, format="rgb24")


def joined(*parts: bytes, movflags: str = "faststart") -> bytes:
    """Videos put together by copying their packets, as LeRobot does with episodes."""
    with TemporaryDirectory() as folder:
        names = [f"{i}.mp4" for i in range(len(parts))]
        for name, part in zip(names, parts, strict=True):
            (Path(folder) / name).write_bytes(part)
        listed = Path(folder) / "list.txt"
        listed.write_text("ffconcat version 1.0\n" + "".join(f"file '{name}'\n" for name in names))
        path = Path(folder) / "out.mp4"
        with (
            av.open(str(listed), format="concat", options={"safe": "0"}) as source,
            av.open(str(path), "w", options={"movflags": movflags}) as container,
        ):
            stream: Any = container.add_stream_from_template(source.streams.video[0], opaque=True)
            for packet in source.demux(source.streams.video[0]):
                if packet.dts is not None:
                    packet.stream = stream
                    container.mux(packet)
        return path.read_bytes()


def plain(data: bytes, form: str = "rgb24") -> list[tuple[int | None, NDArray[Any]]]:
    """All frames of a file as PyAV alone gives them, told of their colours: time and pixels."""
    with av.open(io.BytesIO(data), "r") as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        frames = [(frame, to_rgb_options(frame) if form == "rgb24" else {}) for frame in container.decode(stream)]
        return [(frame.pts, frame.to_ndarray(format=form, **options)) for frame, options in frames]


def box(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", 8 + len(body)) + kind + body


def boxes(data: bytes) -> list[tuple[bytes, bytes]]:
    found, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        found.append((data[at + 4 : at + 8], data[at + 8 : at + size]))
        at += size
    return found


def changed(data: bytes, kind: bytes, change: Change) -> bytes:
    """The MP4 with the body of a box changed, wherever in the index it is. For files with their index at the end."""
    out = []
    for name, body in boxes(data):
        if name in INSIDE:
            body = changed(body, kind, change)
        out.append(box(name, change(body) if name == kind else body))
    return b"".join(out)


def without(data: bytes, *kinds: bytes) -> bytes:
    """The MP4 without the boxes of these kinds."""
    out = []
    for name, body in boxes(data):
        if name not in kinds:
            out.append(box(name, without(body, *kinds) if name in INSIDE else body))
    return b"".join(out)


def with_box(data: bytes, parent: bytes, kind: bytes, body: bytes) -> bytes:
    """The MP4 with one more box, at the end of every `parent`."""
    return changed(data, parent, lambda inside: inside + box(kind, body))


def table(*entries: tuple[int, ...], version: int = 0) -> bytes:
    """The body of a box that is a list: 32 bits for each number."""
    return struct.pack(">II", version << 24, len(entries)) + b"".join(
        struct.pack(">I", number % (1 << 32)) for entry in entries for number in entry
    )
