"""The boxes of an MP4: finding its index (moov) in a few small reads, and walking what is in it.

No number is believed before it is checked against the bytes that are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from headrace.errors import DataError, Refused, shown
from headrace.fetch.media.budget import Budget, over
from headrace.fetch.media.sniff import CONTAINERS, container_format

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

HEAD = 64 << 10
"""Bytes of a read that looks for the index."""
MAX_BOXES = 1000
"""Boxes beside each other that are looked at."""
_KINDS = frozenset(
    b"ftyp moov mdat free udta meta mvhd mvex moof styp sidx trak tkhd edts elst mdia mdhd hdlr minf vmhd smhd dinf "
    b"dref stbl stsd stts ctts stss stsc stsz stz2 stco co64".split()
)


class Bytes(Protocol):
    """Where the bytes of a file are."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, stop: int) -> bytes:
        """Exactly these, or an error of the family."""


@contextmanager
def named(name: str) -> Iterator[None]:
    """Errors gain the name of the file."""
    try:
        yield
    except DataError as error:
        raise type(error)(f"{shown(name)}: {error}") from error


def read_index(data: Bytes, budget: Budget) -> bytes:
    """The body of the box moov."""
    held, begun, at, need, kinds = data.read(0, min(HEAD, data.size)), 0, 0, 0, set()
    with named(data.name):
        form = container_format(held, "video")
        if form != "mov":
            raise Refused(f"bytes given as MP4 are {CONTAINERS[form]}, which is not read frame by frame; write an MP4")
    for _ in range(MAX_BOXES):
        if at + 8 > data.size:
            break
        if at + 16 > begun + len(held) < data.size:
            begun, held = at, data.read(at, min(at + HEAD, data.size))
        with named(data.name):
            kind, body, stop = _head(held, at - begun, data.size - begun)
        need = max(need, begun + stop)
        if kind == b"moov":
            return _body(data, held, begun, (begun + body, begun + stop), budget)
        kinds.add(kind)
        at = begun + stop
    why = "without which no frame can be found"
    if need > data.size:
        why = f"and it is cut short: it has {data.size:,} of {need:,} bytes or more"
    elif kinds & {b"moof", b"styp", b"sidx"}:
        why = "it is a fragment of a video in pieces"
    raise DataError(f"{shown(data.name)}: the MP4 has no index (moov), {why}; fetch or write it again, whole")


def _body(data: Bytes, held: bytes, begun: int, where: tuple[int, int], budget: Budget) -> bytes:
    start, stop = where
    if stop > data.size:
        raise DataError(
            f"{shown(data.name)}: the MP4 is cut short within its index (moov): it has {data.size:,} of {stop:,} bytes "
            f"or more; fetch or write it again, whole"
        )
    with named(data.name):
        budget.require("max_bytes", stop - start, "an MP4 index (moov) in bytes")
    there = held[start - begun : stop - begun]
    return there if len(there) == stop - start else there + data.read(start + len(there), stop)


def _head(data: bytes | memoryview, at: int, size: int) -> tuple[bytes, int, int]:
    """Of the box at `at`: its kind, where its body begins, where it ends. `size` is where the last one ends."""
    length, kind, body = int.from_bytes(data[at : at + 4], "big"), bytes(data[at + 4 : at + 8]), at + 8
    if length == 1:
        length, body = int.from_bytes(data[at + 8 : at + 16], "big"), at + 16
    elif length == 0:
        length = size - at
    if length < body - at:
        raise DataError(f"the MP4 has a box {_known(kind)} of {length} bytes, which cannot be: its index is damaged")
    return kind, body, at + length


def children(data: memoryview) -> list[tuple[bytes, memoryview]]:
    """The boxes in a box: kind and body."""
    found: list[tuple[bytes, memoryview]] = []
    at = 0
    while at + 8 <= len(data):
        kind, body, stop = _head(data, at, len(data))
        if stop > len(data):
            raise DataError(f"the MP4 has a box {_known(kind)} that ends after the one it is in: its index is damaged")
        if len(found) == MAX_BOXES:
            raise Refused(f"the MP4 has more than {MAX_BOXES:,} boxes in one; such an index is not read")
        found.append((kind, data[body:stop]))
        at = stop
    return found


def child(data: memoryview, kind: bytes) -> memoryview | None:
    return next((body for found, body in children(data) if found == kind), None)


def need(data: memoryview, *path: bytes) -> memoryview:
    for kind in path:
        body = child(data, kind)
        if body is None:
            raise DataError(f"the MP4 has no box {name_of(kind)} where one must be: its index is damaged")
        data = body
    return data


def _known(kind: bytes) -> str:
    """The name of a box that MP4 files have. Of another file it would be four of its characters."""
    return name_of(kind) if kind in _KINDS else "of unknown kind"


def name_of(kind: bytes) -> str:
    return shown(kind.decode("latin-1"))


def number(data: memoryview, at: int, width: int = 4) -> int:
    if at + width > len(data):
        raise DataError(f"the MP4 has a box of {len(data)} bytes where {at + width} are needed: its index is damaged")
    return int.from_bytes(data[at : at + width], "big")


def entries(box: memoryview, kind: str, columns: int, budget: Budget) -> Ints:
    """The entries of a table, [entries, columns] of 32 bits each."""
    import numpy as np

    count = number(box, 4)
    require_room(box, kind, count, 8 + 4 * columns * count, budget)
    return np.frombuffer(box, ">u4", count * columns, 8).reshape(count, columns).astype(np.int64)


def require_room(box: memoryview, kind: str, count: int, need: int, budget: Budget) -> None:
    if count > budget.max_frames:
        raise over(f"an MP4 index with {count:,} entries in {kind}", "max_frames", budget.max_frames)
    if need > len(box):
        raise DataError(f"its table {kind} has {len(box):,} bytes for {count:,} entries, which take {need:,}")
