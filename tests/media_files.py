"""Images, sounds and videos for the tests of media, made on the spot."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import av
import numpy as np
import soundfile
from numpy.typing import NDArray
from PIL import Image

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]


def photo(width: int = 64, height: int = 48) -> U8:
    """A smooth picture with different corners."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 100 * np.sin(x / 9 + y / 23), 127 + 100 * np.cos(x / 13 - y / 10), 2 * x + y]
    found: U8 = np.clip(np.stack(waves, -1), 0, 255).astype(np.uint8)
    return found


def encoded(image: Image.Image | NDArray[Any], form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, form, **options)
    return file.getvalue()


def png(width: int, height: int, depth: int, color: int, rows: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """A PNG by hand, of scan lines as they are stored (each begins with its filter)."""
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    chunks = [(b"IHDR", head), *more, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, body) for kind, body in chunks)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def clip(
    numbers: list[int],
    *,
    codec: str = "libx264",
    form: str = "mp4",
    size: tuple[int, int] = (64, 48),
    options: Mapping[str, str] | None = None,
    movflags: str = "",
    times: list[int] | None = None,
    audio: bool = False,
) -> bytes:
    """A video of grey frames, whose brightness tells their number below 64; `times` are milliseconds."""
    file = io.BytesIO()
    with av.open(file, "w", format=form, options={"movflags": movflags} if movflags else {}) as container:
        stream: Any = container.add_stream(codec, rate=30, options=dict(options or {}))
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        if times:
            stream.codec_context.time_base = Fraction(1, 1000)
        sound: Any = container.add_stream("aac", rate=16_000, layout="mono") if audio else None
        container.start_encoding()
        for i, number in enumerate(numbers):
            frame = av.VideoFrame.from_ndarray(
                np.full((size[1], size[0], 3), 4 * (number % 64), np.uint8), format="rgb24"
            )
            if times:
                frame.pts, frame.time_base = times[i], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if sound is not None:
            wave = av.AudioFrame.from_ndarray(tone(16_000, 1)[None], format="fltp", layout="mono")
            wave.sample_rate = 16_000
            container.mux(sound.encode(wave))
            container.mux(sound.encode())
    return file.getvalue()


def numbers_of(frames: U8) -> list[int]:
    """Which frames of a `clip` these are."""
    return [round(float(frame.mean()) / 4) for frame in frames]


def turned(data: bytes) -> bytes:
    """An MP4 to be shown with a quarter turn, clockwise."""
    at = data.index(b"tkhd") + 44
    return data[:at] + struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30) + data[at + 36 :]


def index_first(data: bytes) -> bytes:
    """An MP4 with its index before its frames, as it is written to be played while it arrives."""
    at = data.index(b"moov") - 4
    head, index = data[: data.index(b"mdat") - 4], bytearray(data[at:])
    place = index.index(b"stco") + 8
    (count,) = struct.unpack_from(">I", index, place)
    for i in range(count):
        (offset,) = struct.unpack_from(">I", index, place + 4 + 4 * i)
        struct.pack_into(">I", index, place + 4 + 4 * i, offset + len(index))
    return head + bytes(index) + data[len(head) : at]


def tone(rate: int = 16_000, seconds: float = 1.0, hertz: float = 440.0) -> F32:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def sound(wave: NDArray[Any], rate: int, form: str = "WAV", subtype: str | None = None) -> bytes:
    """`wave` is [samples] or [samples, channels]."""
    file = io.BytesIO()
    soundfile.write(file, wave, rate, format=form, subtype=subtype)
    return file.getvalue()


def mutants(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """The same bytes with something wrong: flipped, cut out, doubled, overwritten, cut short."""
    rng = random.Random(seed)
    for _ in range(count):
        body = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at, size = rng.randrange(len(body)), rng.choice((1, 2, 4, 16))
            match rng.randrange(5):
                case 0:
                    body[at] ^= 1 << rng.randrange(8)
                case 1:
                    del body[at : at + size]
                case 2:
                    body[at:at] = body[at : at + size]
                case 3:
                    body[at : at + size] = rng.choice((b"\0", b"\xff", rng.randbytes(1))) * size
                case _:
                    del body[max(at, len(body) // 2) :]
            body = body or bytearray(b"\0")
        yield bytes(body)
