"""Structures of parquet files in thrift's compact form, read within bounds.

pyarrow before 26 calls itself once for each level of columns inside each other, and of JSON that describes them, and so
dies of a footer with many. The check of a footer is of use only where it finds the columns that pyarrow will find.
pyarrow passes over fields that it does not know by what they say they are, and reads the items of lists that it knows
by what they should be. So the check knows the same fields, and refuses those of other kinds.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from headrace.catalog import brackets

MOST_DEPTH = 32
"""Structures and lists inside each other; a sound footer has eight."""
MOST_FIELDS = 1000
"""The highest number of a field; sound structures stay far below..."""
EXTENSION = 32767
"""...but for this one, which the format keeps for others to put their own into."""
MOST_LEVELS = 100
"""Columns inside each other: as many as pyarrow 26 takes."""
MOST_ITEMS = 2**31 - 1
"""Of a list, and bytes of a text: pyarrow cuts larger numbers to 32 bits."""
MOST_ARROW = 128 << 20
"""Bytes of the Arrow schema in a footer, in base64."""

_BASE64 = re.compile(rb"[A-Za-z0-9+/]*")
_LONGEST = 10
"""Bytes of a number."""
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _TEXT, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


Fields: TypeAlias = "dict[int, Field]"
_UNKNOWN: Fields = {}


class Field(NamedTuple):
    """What pyarrow takes a field for."""

    kind: int
    """Truth values are `_TRUE`, whichever they are."""
    item: int = 0
    """The kind of a list's items."""
    inner: Fields = _UNKNOWN
    """The fields of a structure, or of the structures in a list."""


def _fields(*kinds: int | Field) -> Fields:
    """Fields from number 1 on."""
    return {i + 1: kind if isinstance(kind, Field) else Field(kind) for i, kind in enumerate(kinds)}


def _struct(*kinds: int | Field) -> Field:
    return Field(_STRUCT, 0, _fields(*kinds))


def _structs(*kinds: int | Field) -> Field:
    return Field(_LIST, _STRUCT, _fields(*kinds))


_KEY_VALUES = _structs(_TEXT, _TEXT)
_TEXTS, _NUMBERS = Field(_LIST, _TEXT), Field(_LIST, _I64)
_ELEMENTS = _structs(_I32, _I32, _I32, _TEXT, _I32, _I32, _I32, _I32, _I32, _STRUCT)
_SCHEMA, _CHILDREN, _PAIRS = 2, 5, 5
"""The number of a footer's list of columns, of the field that says how many are inside one, and of the footer's list of
keys with values."""
_STATISTICS = _struct(_TEXT, _TEXT, _I64, _I64, _TEXT, _TEXT, _TRUE, _TRUE)
_COLUMN = _struct(
    _I32,
    Field(_LIST, _I32),
    _TEXTS,
    _I32,
    _I64,
    _I64,
    _I64,
    _KEY_VALUES,
    _I64,
    _I64,
    _I64,
    _STATISTICS,
    _structs(_I32, _I32, _I32),
    _I64,
    _I32,
    _struct(_I64, _NUMBERS, _NUMBERS),
    _struct(_STRUCT, Field(_LIST, _I32)),
)
_CRYPTO = _struct(_STRUCT, _struct(_TEXTS, _TEXT))
_CHUNK = _structs(_TEXT, _I64, _COLUMN, _I64, _I32, _I64, _I32, _CRYPTO, _TEXT)
_GROUP = _structs(_CHUNK, _I64, _I64, _structs(_I32, _TRUE, _TRUE), _I64, _I64, _I16)
_FOOTER = _fields(_I32, _ELEMENTS, _I64, _GROUP, _KEY_VALUES, _TEXT, _structs(_STRUCT), _STRUCT, _TEXT)
"""As in parquet.thrift, of which other structures have no lists. Unknown fields may be anything."""


class Malformed(ValueError):
    """Bytes that are no such structure, or one that is nested too deeply."""


def check_footer(data: bytes) -> int:
    """Refuse a footer whose structures, whose columns or whose JSON is nested too deeply to be handed on. It gives the
    number of levels of its columns."""
    try:
        deepest, at, field, seen = 0, 0, 0, 0
        while data[at]:
            kind, field, seen, at = _begun(data, at, field, seen)
            known = _FOOTER.get(field)
            if field == _SCHEMA:
                _after_known(data, at, kind, _FOOTER[field], 1)
                start = at
                deepest, at = _check_levels(data, at)
                _check_json(data[start:at])
            elif known is not None:
                start, at = at, _after_known(data, at, kind, known, 1)
                if field == _PAIRS:
                    _check_pairs(data, start, at)
            else:
                at = _after(data, at, kind, 1)
    except IndexError:
        raise Malformed("it ends in the middle of a structure") from None
    return deepest


def fields_of(data: bytes, at: int = 0, depth: int = 0) -> tuple[dict[int, Any], int]:
    """The fields of a structure by their numbers, and where it ends: whole numbers, truth values and structures.

    Raises IndexError where the bytes end before it does.
    """
    if depth > MOST_DEPTH:
        raise Malformed("its structures are too deeply nested")
    found: dict[int, Any] = {}
    field = seen = 0
    while data[at]:
        kind, field, seen, at = _begun(data, at, field, seen)
        if _I16 <= kind <= _I64:
            value, at = _varint(data, at)
            found[field] = value >> 1 ^ -(value & 1)
        elif kind == _STRUCT:
            found[field], at = fields_of(data, at, depth + 1)
        elif kind <= _FALSE:
            found[field] = kind == _TRUE
        else:
            at = _after(data, at, kind, depth + 1)
    return found, at + 1


def _check_levels(data: bytes, at: int) -> tuple[int, int]:
    """How many levels there are, and where they end. The columns stand in a row, each with the number of those inside
    it, which follow."""
    count, _, at = _list(data, at)
    open_: list[int] = []
    deepest = 0
    for _ in range(count):
        fields, at = fields_of(data, at, 1)
        while open_ and not open_[-1]:
            open_.pop()
        deepest = max(deepest, len(open_))
        if open_:
            open_[-1] -= 1
        inside = fields.get(_CHILDREN, 0)
        if not 0 <= inside <= MOST_ITEMS:
            raise Malformed(f"a column with {inside} inside it")
        if inside:
            open_.append(inside)
        if len(open_) > MOST_LEVELS:
            raise Malformed(f"its columns are too deeply nested, more than {MOST_LEVELS} inside each other")
    return deepest, at


def _check_pairs(data: bytes, at: int, stop: int) -> None:
    """pyarrow reads the Arrow schema, and JSON in it; with some of its extensions also JSON that has a key of its
    own."""
    _check_json(data[at:stop])
    for key, value in _pairs(data, at):
        if key == b"ARROW:schema":
            if len(value) > MOST_ARROW:
                raise Malformed(f"an Arrow schema of {len(value):,} bytes, more than {MOST_ARROW:,}")
            _check_json(_from_base64(value))


def _check_json(data: bytes) -> None:
    if brackets.is_deep(data):
        raise Malformed(
            f"JSON in its metadata is too deeply nested, more than {brackets.MOST_LEVELS} levels (pyarrow 26 reads it)"
        )


def _pairs(data: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values, of a list that was found to be one of them."""
    count, _, at = _list(data, at)
    for _ in range(count):
        found = {1: b"", 2: b""}
        field = seen = 0
        while data[at]:
            kind, field, seen, at = _begun(data, at, field, seen)
            start, at = at, _after(data, at, kind, 3)
            if kind == _TEXT:
                found[field] = data[_size(data, start)[1] : at]
        at += 1
        yield found[1], found[2]


def _from_base64(value: bytes) -> bytes:
    """As pyarrow reads it, as far as it is base64."""
    found = _BASE64.match(value)
    text = found[0] if found else b""
    text = text[: len(text) - (len(text) % 4 == 1)]
    return binascii.a2b_base64(text + b"=" * (-len(text) % 4))


def _begun(data: bytes, at: int, field: int, seen: int) -> tuple[int, int, int, int]:
    """The kind and the number of the field that begins here, the numbers so far as bits, and where its value begins."""
    head = data[at]
    kind = head & 15
    if head > 15:
        field, at = field + (head >> 4), at + 1
    else:
        value, at = _varint(data, at + 1)
        field = value >> 1 ^ -(value & 1)
    if not kind or not (0 < field <= MOST_FIELDS or field == EXTENSION) or seen >> field & 1:
        # pyarrow would take it for the end, for another field, or for the later of two.
        raise Malformed(f"a field of kind {kind} with the number {field}, or twice")
    return kind, field, seen | 1 << field, at


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
        if byte < 128 and value < 1 << 64:
            return value, at
        shift += 7
        if shift > 63:
            raise Malformed("a number of more than 64 bits")


def _list(data: bytes, at: int) -> tuple[int, int, int]:
    """How many there are, of which kind, and where the first is."""
    head = data[at]
    if head >> 4 < 15:
        return head >> 4, head & 15, at + 1
    count, at = _size(data, at + 1)
    return count, head & 15, at


def _size(data: bytes, at: int) -> tuple[int, int]:
    count, at = _varint(data, at)
    if count > MOST_ITEMS:
        raise Malformed(f"a list, a map or a text of {count} items")
    return count, at


def _after_known(data: bytes, at: int, kind: int, known: Field, depth: int) -> int:
    """Where the value of a field ends that is read by what it has to be."""
    if (kind if kind != _FALSE else _TRUE) != known.kind:
        raise Malformed(f"a field of kind {kind}, which in parquet files is of kind {known.kind}")
    if kind == _STRUCT:
        return _after_struct(data, at, depth, known.inner)
    if kind != _LIST:
        return _after(data, at, kind, depth)
    count, item, at = _list(data, at)
    if count and item != known.item:  # an empty list may be one of anything
        raise Malformed(f"a list of kind {item}, which in parquet files is of kind {known.item}")
    return _after_many(data, at, (item,), count, depth, known.inner)


def _after(data: bytes, at: int, kind: int, depth: int) -> int:
    """Where a value ends of which nothing is known but its kind."""
    if kind <= _FALSE:
        return at
    if _I16 <= kind <= _I64:
        return _varint(data, at)[1]
    if kind == _TEXT:
        length, at = _size(data, at)
        return at + length
    if kind == _STRUCT:
        return _after_struct(data, at, depth, _UNKNOWN)
    if kind in (_LIST, _SET):
        count, inner, at = _list(data, at)
        return _after_many(data, at, (inner,), count, depth, _UNKNOWN)
    if kind == _MAP:
        count, at = _size(data, at)
        if not count:
            return at
        return _after_many(data, at + 1, (data[at] >> 4, data[at] & 15), count, depth, _UNKNOWN)
    if kind == _DOUBLE:
        return at + 8
    if kind == _BYTE:
        return at + 1
    raise Malformed(f"a field of the unknown kind {kind}")


def _after_struct(data: bytes, at: int, depth: int, known: Fields) -> int:
    if depth > MOST_DEPTH:
        raise Malformed("its structures are too deeply nested")
    field = seen = 0
    while head := data[at]:
        kind, field = head & 15, field + (head >> 4)
        if head > 15 and kind and field <= MOST_FIELDS and not seen >> field & 1:  # most of them: no call is made
            seen, at = seen | 1 << field, at + 1
        else:
            kind, field, seen, at = _begun(data, at, field - (head >> 4), seen)
        wanted = known.get(field)
        if wanted is None:
            at = _after(data, at, kind, depth + 1)
        elif kind == wanted[0] and _I16 <= kind <= _I64:
            start = at
            while data[at] > 127:
                at += 1
            at += 1
            if at > start + _LONGEST:
                raise Malformed("a number of more than 64 bits")
        else:
            at = _after_known(data, at, kind, wanted, depth + 1)
    return at + 1


def _after_many(data: bytes, at: int, kinds: tuple[int, ...], count: int, depth: int, known: Fields) -> int:
    """Where this many values, or pairs, end. Each takes a byte at least, so a false number ends with the data."""
    if depth > MOST_DEPTH:
        raise Malformed("its structures are too deeply nested")
    if count and 0 in kinds:
        raise Malformed("a list or a map of the unknown kind 0")
    for _ in range(count):
        for kind in kinds:
            if kind == _STRUCT:
                at = _after_struct(data, at, depth + 1, known)
            else:
                at = at + 1 if kind <= _FALSE else _after(data, at, kind, depth + 1)
        if at > len(data):
            raise IndexError(at)
    return at
