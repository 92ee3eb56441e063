"""Parquet files written byte by byte, with headers that no writer would give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pyarrow as pa

PLAIN, DELTA_LENGTHS, DELTA_BYTES, DICTIONARY = 0, 6, 7, 8
INT32, BYTE_ARRAY, ZSTD = 1, 6, 6
REQUIRED, REPEATED = 0, 2


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def zigzag(number: int) -> bytes:
    return varint(number << 1)


class Struct:
    """A structure in thrift's compact form; fields come in the order of the calls."""

    def __init__(self) -> None:
        self._data, self._last = b"", 0

    def field(self, number: int, kind: int, value: bytes) -> Self:
        step = number - self._last
        self._data += (bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + zigzag(number)) + value
        self._last = number
        return self

    def i32(self, number: int, value: int) -> Self:
        return self.field(number, 5, zigzag(value))

    def i64(self, number: int, value: int) -> Self:
        return self.field(number, 6, zigzag(value))

    def text(self, number: int, value: str) -> Self:
        return self.field(number, 8, varint(len(value)) + value.encode())

    def struct(self, number: int, value: Struct) -> Self:
        return self.field(number, 12, value.end())

    def items(self, number: int, kind: int, values: list[bytes]) -> Self:
        return self.field(number, 9, bytes([len(values) << 4 | kind]) + b"".join(values))

    def end(self) -> bytes:
        return self._data + b"\0"


def packed(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def texts(*values: bytes) -> bytes:
    return b"".join(len(value).to_bytes(4, "little") + value for value in values)


def dictionary_page(words: int, body: bytes) -> bytes:
    data = packed(body)
    head = Struct().i32(1, 2).i32(2, len(body)).i32(3, len(data)).struct(7, Struct().i32(1, words).i32(2, PLAIN))
    return head.end() + data


def data_page(values: int, encoding: int, body: bytes, inner: Struct | None = None) -> bytes:
    """`inner`: the part of the header that tells what is in it, where it is to be another."""
    data = packed(body)
    inner = inner or Struct().i32(1, values).i32(2, encoding).i32(3, 3).i32(4, 3)
    return Struct().i32(1, 0).i32(2, len(body)).i32(3, len(data)).struct(5, inner).end() + data


def same_index(count: int) -> bytes:
    """The first word of a dictionary, `count` times."""
    return b"\x01" + varint(count << 1) + b"\0"


def level_runs(*runs: tuple[int, int]) -> bytes:
    """Levels in runs: how many, and which."""
    data = b"".join(varint(count << 1) + bytes([level]) for count, level in runs)
    return len(data).to_bytes(4, "little") + data


def write_column(path: Path, pages: bytes, rows: int, **more: Any) -> None:
    """A file of one row group with one column "t": texts, or with `kind` and `repetition` lists of numbers.
    `values`: how many the footer says there are."""
    kind, repetition = more.get("kind", BYTE_ARRAY), more.get("repetition", REQUIRED)
    element = Struct().i32(1, kind).i32(3, repetition).text(4, "t")
    if kind == BYTE_ARRAY:
        element.i32(6, 0)
    column = Struct().i32(1, kind).items(2, 5, [zigzag(PLAIN), zigzag(DICTIONARY)]).items(3, 8, [varint(1) + b"t"])
    column.i32(4, ZSTD).i64(5, more.get("values", rows)).i64(6, 10 * len(pages)).i64(7, len(pages)).i64(9, 4)
    if more.get("has_dictionary", kind == BYTE_ARRAY):
        column.i64(11, 4)
    group = Struct().items(1, 12, [Struct().i64(2, 4).struct(3, column).end()]).i64(2, len(pages)).i64(3, rows)
    schema = [Struct().text(4, "schema").i32(5, 1).end(), element.end()]
    footer = Struct().i32(1, 1).items(2, 12, schema).i64(3, rows).items(4, 12, [group.end()]).end()
    path.write_bytes(b"PAR1" + pages + footer + len(footer).to_bytes(4, "little") + b"PAR1")
