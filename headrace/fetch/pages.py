"""The pages of a column in a row group, by their headers: how much is in them is known before any is unpacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from headrace.catalog.thrift import Malformed, fields_of

Read: TypeAlias = Callable[[int, int], bytes]
"""The bytes of a file from one place to another, fewer only at its end."""

PLAIN, PLAIN_DICTIONARY, DELTA_LENGTHS, DELTA_BYTES, DICTIONARY = 0, 2, 6, 7, 8
"""Encodings by their numbers."""
_DATA, _DICTIONARY_PAGE, _DATA_2 = 0, 2, 3

WINDOW = 16 << 10
HEAD = 256
"""Most headers are shorter; others have statistics with long values..."""
LARGEST_HEAD = 16 << 20
"""...which pyarrow takes up to this size."""
LARGEST = 2**31 - 1
"""Numbers in headers have 32 bits: pyarrow cuts larger ones."""
PADDING = 128
"""Old writers counted the header of a dictionary too few; pyarrow looks so much further."""


class Window:
    """Reads a file a little ahead: the headers of small pages lie near each other."""

    def __init__(self, read: Read) -> None:
        self._read, self._at, self._data = read, 0, b""

    def __call__(self, start: int, stop: int) -> bytes:
        first = start - self._at
        if first < 0 or stop > self._at + len(self._data):
            self._at, self._data, first = start, self._read(start, max(stop, start + WINDOW)), 0
        return self._data[first : first + stop - start]


class Page(NamedTuple):
    values: int
    """Nulls are counted too; of lists, their values."""
    encoding: int
    plain: int
    """Bytes when it is unpacked, as it is before it is decoded."""
    at: int
    """Where its bytes begin, behind the header."""
    packed: int
    levels: tuple[int, int] | None
    """Bytes of the levels, repetition and definition, that stand before the values (format 2 only)."""
    is_packed: bool


class Pages(NamedTuple):
    """Of one column in one row group."""

    dictionary: int
    """Bytes of the dictionary, unpacked."""
    words: int
    """Values in the dictionary."""
    place: tuple[int, int]
    """Where the dictionary begins, packed, and its bytes there."""
    data: list[Page]


def pages_of(read: Read, start: int, stop: int, values: int) -> Pages:
    """Read the headers of all pages that pyarrow will read for so many values. Raises `Malformed`."""
    at, seen, dictionary, words, place = start, 0, 0, 0, (0, 0)
    data: list[Page] = []
    while seen < values and at < stop:
        head, body = _header(read, at, stop + PADDING)
        kind, plain, packed = (head.get(number, -1) for number in (1, 2, 3))
        if type(plain) is not int or type(packed) is not int or not 0 <= plain <= LARGEST or not 0 <= packed <= LARGEST:
            raise Malformed(f"the page at offset {at} has no size")
        if kind == _DICTIONARY_PAGE:
            if place != (0, 0) or data:
                raise Malformed(f"a second dictionary, or a late one, at offset {at}")
            dictionary, words, place = max(plain, packed), _number(head.get(7), 1, at), (body, packed)
        elif kind in (_DATA, _DATA_2):
            page = _page(head, kind, body, at)
            seen += page.values
            if page.values:  # a file may have any number of those without
                data.append(page)
        at = body + packed
    return Pages(dictionary, words, place, data)


def _page(head: dict[int, Any], kind: int, body: int, at: int) -> Page:
    plain, packed = head[2], head[3]
    inner = head.get(5 if kind == _DATA else 8)
    values = _number(inner, 1, at)
    if kind == _DATA:
        return Page(values, _number(inner, 2, at), max(plain, packed), body, packed, None, True)
    levels = _number(inner, 6, at), _number(inner, 5, at)
    if sum(levels) > min(plain, packed):
        raise Malformed(f"the page at offset {at} is smaller than its levels")
    is_packed = not isinstance(inner, dict) or inner.get(7, True) is not False
    return Page(values, _number(inner, 4, at), max(plain, packed), body, packed, levels, is_packed)


def _number(fields: Any, number: int, at: int) -> int:
    found = fields.get(number, -1) if isinstance(fields, dict) else -1
    if type(found) is not int or not 0 <= found <= LARGEST:
        raise Malformed(f"the header of the page at offset {at} does not say what is in it")
    return found


def _header(read: Read, at: int, stop: int) -> tuple[dict[int, Any], int]:
    """The fields of a page's header, and where its bytes begin."""
    size = HEAD
    while True:
        data = read(at, min(at + size, stop))
        try:
            found, length = fields_of(data)
            return found, at + length
        except IndexError:
            if len(data) < size or size >= LARGEST_HEAD:
                raise Malformed(f"the header of the page at offset {at} does not end") from None
            size *= 16
