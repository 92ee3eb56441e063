"""How a container file is laid out: whether it is all there, and whether its index may be believed."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from headrace.errors import DataError, Refused
from headrace.fetch.media.budget import Budget, over
from headrace.fetch.media.mp3 import require_whole_mp3

MAX_EDITS = 1000
_MAX_PCM = 1 << 24
_UNKNOWN = (0, 0xFFFFFFFF, 0x7FFFFFFF)
"""What writers put where they do not know the size yet, and never come back to."""

# Boxes of an MP4 whose numbers FFmpeg believes, and makes a table for, before it has read a single sample.
_COUNTS = re.compile(rb"stsz|stz2|trun|elst|cmov|dref")


def require_whole(data: bytes, name: str) -> None:
    """Refuse a file that is cut short, where its layout tells: FFmpeg would give what is left as if it were all."""
    need = 0
    if name in ("avi", "wav") and data[:4] == b"RIFF":
        (size,) = struct.unpack_from("<I", data.ljust(8, b"\0"), 4)
        need = 0 if size in _UNKNOWN else size + 8
    elif name == "aiff":
        need = int.from_bytes(data[4:8], "big") + 8
    elif name == "mov":
        need = max((stop for kind, _, stop in _boxes(data) if kind in (b"mdat", b"moov", b"moof")), default=0)
    elif name == "matroska":
        need = _segment_end(data)
    elif name == "mp3":
        require_whole_mp3(data)
    elif name == "ogg":
        _require_one_link(data)
    if need > len(data):
        raise DataError(f"the file is cut short: it has {len(data):,} of {need:,} bytes")


def _require_one_link(data: bytes) -> None:
    """Refuse an Ogg file with several recordings one after the other: decoders give the first as if it were all."""
    at, begun = 0, False
    while data[at : at + 4] == b"OggS" and at + 27 <= len(data):
        is_first, segments = data[at + 5] & 2, data[at + 26]
        if is_first and begun:
            raise DataError(
                f"the Ogg file is a chain: another recording begins at byte {at:,}, and only the first would be "
                f"decoded; keep each in a file of its own"
            )
        begun = begun or not is_first
        at += 27 + segments + sum(data[at + 27 : at + 27 + segments])


def require_all_samples(data: bytes, found: int) -> None:
    """Refuse a FLAC of which fewer samples could be decoded than it says that it has."""
    said = int.from_bytes(data[18:26].ljust(8, b"\0"), "big") & ((1 << 36) - 1)
    if found < said:
        raise DataError(f"the FLAC audio is cut short or damaged: {found:,} of {said:,} samples can be read")


def require_plausible(data: bytes, budget: Budget) -> None:
    """Refuse an MP4 that names other files, or more samples than may be: FFmpeg makes room for them all at once."""
    for start, stop in _outside_of_mdat(data):
        for found in _COUNTS.finditer(data, start, stop):
            at, kind = found.end(), found.group()
            if kind == b"cmov":
                raise Refused("the MP4 has a packed index, of a size that nobody knows before; it is not decoded")
            if kind == b"dref":
                _require_own_samples(data, at)
                continue
            place = at + (8 if kind in (b"stsz", b"stz2") else 4)
            if place + 4 > len(data):
                continue
            (count,) = struct.unpack_from(">I", data, place)
            if kind == b"elst" and count > MAX_EDITS:
                raise Refused(f"the MP4 has a list of {count:,} edits; more than {MAX_EDITS:,} are not followed")
            if count > budget.max_frames and not (kind == b"stsz" and _is_pcm(data, at, count)):
                raise over(f"an MP4 index of {count:,} samples", "max_frames", budget.max_frames)


def _require_own_samples(data: bytes, at: int) -> None:
    """Each entry of a list of data references says that the samples are in the file itself."""
    (count,) = struct.unpack_from(">I", data.ljust(at + 8, b"\0"), at + 4)
    at += 8
    for _ in range(min(count, 64)):
        if at + 12 > len(data):
            return
        size, _, flags = struct.unpack_from(">I4sI", data, at)
        if not flags & 1:
            raise Refused("the MP4 names another file that is to have its samples, which is not opened")
        at += max(size, 12)


def _is_pcm(data: bytes, at: int, count: int) -> bool:
    """Whether samples of one size each would fit into the file, as those of plain sound do."""
    return bool(count * max(struct.unpack_from(">I", data, at + 4)[0], 1) <= len(data) <= _MAX_PCM)


def _boxes(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The outermost boxes of an MP4: kind, start, announced stop."""
    at = 0
    while at + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        head = 8
        if size == 1 and at + 16 <= len(data):
            (size,) = struct.unpack_from(">Q", data, at + 8)
            head = 16
        if size == 0:
            size = len(data) - at
        if size < head:
            return
        yield kind, at, at + size
        at += size


def _outside_of_mdat(data: bytes) -> Iterator[tuple[int, int]]:
    """The parts of an MP4 that are not samples; after something that is no box, all of the rest."""
    begun = 0
    for kind, start, stop in _boxes(data):
        if kind == b"mdat":
            yield begun, start
            begun = stop
    if begun < len(data):
        yield begun, len(data)


def _segment_end(data: bytes) -> int:
    """Where the segment of a Matroska file ends, as it says; 0 if it does not."""
    size, at = _ebml_size(data, 4)
    if size is None or data[at + size : at + size + 4] != b"\x18\x53\x80\x67":
        return 0
    length, begin = _ebml_size(data, at + size + 4)
    return 0 if length is None else begin + length


def _ebml_size(data: bytes, at: int) -> tuple[int | None, int]:
    """A number in EBML's form, None for "unknown", and where it ends."""
    if at >= len(data) or not data[at]:
        return None, at
    width = 9 - data[at].bit_length()
    value = int.from_bytes(data[at : at + width], "big") & ((1 << 7 * width) - 1)
    return (None if value == (1 << 7 * width) - 1 else value), at + width
