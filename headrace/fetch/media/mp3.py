"""Whether an MP3 is all there: most tell in their first frame how many bytes and frames they have."""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace.errors import DataError

_BITRATES = (
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
)
"""Of MPEG 2 and 2.5, and of MPEG 1, in thousands of bits a second."""
_RATES = (11_025, 0, 22_050, 44_100), (12_000, 0, 24_000, 48_000), (8_000, 0, 16_000, 32_000)
_OTHERS = (b"RIFF", b"RF64", b"RIFX", b"FORM", b"fLaC", b"OggS")
MAX_TAGS, MAX_ZEROS, MAX_FRAMES = 8, 1 << 16, 1 << 20
"""So far is looked; what goes on longer is left to the decoder, and its budget."""


class Frame(NamedTuple):
    size: int
    side: int
    """How many bytes lie between its head and what is in it."""


class Said(NamedTuple):
    """What an MP3 says of itself. 0: nothing."""

    num_bytes: int
    """With the frame that says so."""
    num_frames: int
    """Without it, mostly."""


def require_whole_mp3(data: bytes) -> None:
    """Refuse an MP3 that is cut short, if it says how long it is: decoders give what is left as if it were all.

    Some writers count the tags along, or the frame that says how many there are. So where bytes are missing, the frames
    are counted that are there: one of those that are announced may be missing, and the last must not be cut in two.
    """
    start = _after_tags(data)
    first = frame_at(data, start)
    said = None if first is None else _said(data, start, first)
    if first is None or said is None:
        return
    if said.num_bytes and start + said.num_bytes <= len(data):
        return
    found, is_cut = _count(data, start + first.size)
    if is_cut or found + 1 < min(said.num_frames, MAX_FRAMES):
        raise DataError(
            f"the MP3 audio is cut short or damaged: it has {found:,} of {said.num_frames or 'more'} frames, "
            f"{len(data) - start:,} of {said.num_bytes or 'more'} bytes"
        )


def frame_at(data: bytes, at: int) -> Frame | None:
    """What the four bytes there say, if they are the head of a frame of layer III."""
    head = int.from_bytes(data[at : at + 4], "big") if at + 4 <= len(data) else 0
    version, layer, crc = head >> 19 & 3, head >> 17 & 3, not head >> 16 & 1
    bitrate, rate, pad, mono = head >> 12 & 15, head >> 10 & 3, head >> 9 & 1, head >> 6 & 3 == 3
    if head >> 21 != 0x7FF or version == 1 or layer != 1 or bitrate in (0, 15) or rate == 3:
        return None
    is_1 = version == 3
    size = (144_000 if is_1 else 72_000) * _BITRATES[is_1][bitrate] // _RATES[rate][version] + pad
    side = (17 if mono else 32) if is_1 else (9 if mono else 17)
    return Frame(size, side + 2 * crc)


def without_tags(data: bytes) -> bytes:
    """What tags of ID3 stand before, unless it is an MP3: some put them before other files, where readers differ."""
    if data[:3] != b"ID3":
        return data
    at = _after_tags(data)
    return data[at:] if data[at : at + 4] in _OTHERS else data


def _after_tags(data: bytes) -> int:
    """Where the first frame should be: after tags of ID3, and the zeros that some leave behind them."""
    at = 0
    for _ in range(MAX_TAGS):
        if data[at : at + 3] != b"ID3" or at + 10 > len(data):
            break
        size = 0
        for byte in data[at + 6 : at + 10]:
            size = size << 7 | byte & 0x7F
        at += 10 + size + (10 if data[at + 5] & 0x10 else 0)
    after = data[at : at + MAX_ZEROS]
    return at + len(after) - len(after.lstrip(b"\0"))


def _said(data: bytes, start: int, first: Frame) -> Said | None:
    for place in (start + 4 + first.side, start + 4 + first.side - 2):  # some forget that a checksum is there
        if data[place : place + 4] in (b"Xing", b"Info") and place + 16 <= len(data):
            (flags,) = struct.unpack_from(">I", data, place + 4)
            numbers = struct.unpack_from(">II", data, place + 8)
            frames = numbers[0] if flags & 1 else 0
            return Said(numbers[flags & 1] if flags & 2 else 0, frames) if flags & 3 else None
    place = start + 36
    if data[place : place + 4] == b"VBRI" and place + 18 <= len(data):
        return Said(*struct.unpack_from(">II", data, place + 10))
    return None


def _count(data: bytes, at: int) -> tuple[int, bool]:
    """The frames from there on that are whole, and whether one after them is not."""
    count = 0
    while count < MAX_FRAMES and (frame := frame_at(data, at)) is not None:
        if at + frame.size > len(data):
            return count, True
        count, at = count + 1, at + frame.size
    return count, 0 < len(data) - at < 4
