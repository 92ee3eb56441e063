"""Numbers as parquet packs them in pages: runs of levels, and the lengths of values that share their beginnings.

They are only added up here, without a list of them being made: a few bytes may stand for a billion.
"""

from __future__ import annotations

from typing import Any

from headrace.catalog.thrift import Malformed

LARGEST_BLOCK = 1 << 16
STEP = 1 << 16
"""Levels are unpacked piece by piece: each takes eight bytes then."""


def count_of(level: int, data: bytes, count: int, most: int) -> tuple[int, bool]:
    """How many of the first `count` levels are this one, and whether the first is. `most`: the highest level.

    They stand in runs of equal ones, or as packed bits.
    """
    import numpy as np

    at, seen, found, first, width = 0, 0, 0, True, most.bit_length()
    while seen < count:
        head, at = _varint(data, at)
        if head & 1:
            here = min(8 * (head >> 1), count - seen)
            packed = data[at : at + (head >> 1) * width]
            if not here or len(packed) * 8 < here * width:
                raise Malformed("levels end too early")
            equal, is_first = 0, False
            for begin in range(0, here, STEP):
                n = min(STEP, here - begin)
                piece = np.frombuffer(packed, np.uint8, -(-n * width // 8), begin * width // 8)
                same = _unpacked(piece, width, n) == level
                equal, is_first = equal + int(same.sum()), bool(same[0]) if not begin else is_first
            at += len(packed)
        else:
            here, size = min(head >> 1, count - seen), -(-width // 8)
            value = int.from_bytes(data[at : at + size], "little")
            if not here or at + size > len(data):
                raise Malformed("levels end too early")
            at, equal, is_first = at + size, here if value == level else 0, value == level
        first = is_first if not seen else first
        seen, found = seen + here, found + equal
    return found, first


def check_count(data: bytes, most: int) -> None:
    """Refuse numbers that are given by their differences where there are more than `most`."""
    _, at = _varint(data, 0)
    _, at = _varint(data, at)
    count, _ = _varint(data, at)
    if count > most:
        raise Malformed(f"a page of {most:,} values has the lengths of {count:,}")


def sum_of_deltas(data: bytes, at: int, most: int) -> tuple[int, int]:
    """The sum of numbers that are given by their differences, at most so many of them, and where they end."""
    import numpy as np

    block, at = _varint(data, at)
    parts, at = _varint(data, at)
    count, at = _varint(data, at)
    first, at = _signed(data, at)
    if not 0 < parts <= block <= LARGEST_BLOCK or block % parts or (block // parts) % 8 or count > most:
        raise Malformed("lengths in blocks that cannot be")
    total, last, left, size = (first if count else 0), first, count - 1, block // parts
    while left > 0:
        least, at = _signed(data, at)
        widths = data[at : at + parts]
        at += parts
        for width in widths:
            if left <= 0:
                break
            if width > 64 or at + size * width // 8 > len(data):
                raise Malformed("lengths end too early")
            n = min(size, left)
            added = _unpacked(np.frombuffer(data, np.uint8, size * width // 8, at), width, n)
            lengths = last + np.cumsum(added + least)
            if len(lengths) and (int(lengths.min()) < 0 or int(lengths.max()) > 1 << 31):
                raise Malformed("lengths that cannot be")
            total, last, left = total + int(lengths.sum()), int(lengths[-1]), left - n
            at += size * width // 8
        if len(widths) < parts:
            raise Malformed("lengths end too early")
    return total, at


def _unpacked(data: Any, width: int, count: int) -> Any:
    import numpy as np

    if not width:
        return np.zeros(count, np.int64)
    if width > 32:
        raise Malformed("lengths that cannot be")
    bits = np.unpackbits(data, bitorder="little")[: count * width].reshape(count, width)
    return bits.astype(np.int64) @ (1 << np.arange(width, dtype=np.int64))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        if at >= len(data):
            raise Malformed("numbers end too early")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128 and value < 1 << 64:
            return value, at
        shift += 7
    raise Malformed("a number of more than 64 bits")


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at
