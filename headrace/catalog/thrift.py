"""Structures of parquet files in thrift's compact form, read within bounds.

pyarrow before 26 calls itself once for each level of columns inside each other, and so dies of a footer with many.
"""

from __future__ import annotations

from typing import Any

MOST_DEPTH = 32
"""Structures and lists inside each other; a sound footer has eight."""
MOST_FIELDS = 1000
"""The highest number of a field; sound structures stay far below."""
MOST_LEVELS = 100
"""Columns inside each other: as many as pyarrow 26 takes."""

_STRUCT, _MAP, _LISTS, _TEXT, _DOUBLE, _BYTE = 12, 11, (9, 10), 8, 7, 3
_ROOT, _SCHEMA, _CHILDREN = 1, 2, 5
"""The number of a footer's list of columns, and of the field that says how many are inside one."""


class Malformed(ValueError):
    """Bytes that are no such structure, or one that is nested too deeply."""


def check_footer(data: bytes) -> None:
    """Refuse a footer whose structures, or whose columns, are nested too deeply to be handed on."""
    try:
        at, field = 0, 0
        while kind := data[at] & 15:
            field, at = _field(data, at, field)
            if field == _SCHEMA and kind in _LISTS and data[at] & 15 == _STRUCT:
                at = _check_levels(data, at)
            else:
                at = _after(data, at, kind, 1)
    except IndexError:
        raise Malformed("it ends in the middle of a structure") from None


def fields_of(data: bytes, at: int = 0, depth: int = 0) -> tuple[dict[int, Any], int]:
    """The fields of a structure by their numbers, and where it ends: whole numbers, truth values and structures.

    Raises IndexError where the bytes end before it does.
    """
    if depth > MOST_DEPTH:
        raise Malformed("its structures are too deeply nested")
    found: dict[int, Any] = {}
    field = 0
    while head := data[at]:
        kind = head & 15
        if head > 15:
            field, at = field + (head >> 4), at + 1
        else:
            field, at = _field(data, at, field)
        if not kind or not 0 < field <= MOST_FIELDS or field in found:
            # pyarrow would take it for the end, for another field, or for the later of two.
            raise Malformed(f"a field of kind {kind} with the number {field}, or twice")
        if 4 <= kind <= 6:
            value, at = _varint(data, at)
            found[field] = value >> 1 ^ -(value & 1)
        elif kind == _STRUCT:
            found[field], at = fields_of(data, at, depth + 1)
        elif kind in (1, 2):
            found[field] = kind == 1
        else:
            at = _after(data, at, kind, depth + 1)
    return found, at + 1


def _check_levels(data: bytes, at: int) -> int:
    """The columns stand in a row, each with the number of those inside it, which follow."""
    count, _, at = _list(data, at)
    open_: list[int] = []
    for _ in range(count):
        fields, at = fields_of(data, at, _ROOT)
        while open_ and not open_[-1]:
            open_.pop()
        if open_:
            open_[-1] -= 1
        if (inside := fields.get(_CHILDREN, 0)) > 0:
            open_.append(inside)
        if len(open_) > MOST_LEVELS:
            raise Malformed(f"its columns are too deeply nested, more than {MOST_LEVELS} inside each other")
    return at


def _field(data: bytes, at: int, before: int) -> tuple[int, int]:
    """The number of the field that begins here, and where its value does."""
    step = data[at] >> 4
    if step:
        return before + step, at + 1
    value, at = _varint(data, at + 1)
    return value >> 1 ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 128:
        return byte, at
    value, shift = byte & 127, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise Malformed("a number of more than 64 bits")


def _list(data: bytes, at: int) -> tuple[int, int, int]:
    """How many there are, of which kind, and where the first is."""
    head = data[at]
    if head >> 4 < 15:
        return head >> 4, head & 15, at + 1
    count, at = _varint(data, at + 1)
    return count, head & 15, at


def _after(data: bytes, at: int, kind: int, depth: int) -> int:
    """Where a value ends."""
    if kind <= 2:
        return at
    if 4 <= kind <= 6:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == _TEXT:
        length, at = _varint(data, at)
        return at + length
    if kind == _STRUCT:
        return _after_struct(data, at, depth)
    if kind in _LISTS:
        count, inner, at = _list(data, at)
        return _after_many(data, at, (inner,), count, depth)
    if kind == _MAP:
        count, at = _varint(data, at)
        if not count:
            return at
        return _after_many(data, at + 1, (data[at] >> 4, data[at] & 15), count, depth)
    if kind == _DOUBLE:
        return at + 8
    if kind == _BYTE:
        return at + 1
    raise Malformed(f"a field of the unknown kind {kind}")


def _after_struct(data: bytes, at: int, depth: int) -> int:
    if depth > MOST_DEPTH:
        raise Malformed("its structures are too deeply nested")
    while head := data[at]:
        at += 1
        if head < 16:
            _, at = _varint(data, at)
        kind = head & 15
        if 4 <= kind <= 6:  # most of them, so they are not handed on
            while data[at] > 127:
                at += 1
            at += 1
        elif kind > 2:
            at = _after(data, at, kind, depth + 1)
    return at + 1


def _after_many(data: bytes, at: int, kinds: tuple[int, ...], count: int, depth: int) -> int:
    """Where this many values, or pairs, end. Each takes a byte at least, so a false number ends with the data."""
    if depth > MOST_DEPTH:
        raise Malformed("its structures are too deeply nested")
    for _ in range(count):
        for kind in kinds:
            at = at + 1 if kind <= 2 else _after(data, at, kind, depth + 1)
        if at > len(data):
            raise IndexError(at)
    return at
