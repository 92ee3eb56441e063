"""What rows of a parquet file become in memory, from the headers of their pages, before they are decoded.

The sizes in a footer are of the file: a value that stands once in a dictionary may come again in every row, and values
that share their beginnings are stored without them. Here is the most that the rows of a chunk can take.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple

from headrace.catalog.footer import Leaf
from headrace.catalog.thrift import Malformed
from headrace.fetch.levels import check_count, count_of, sum_of_deltas
from headrace.fetch.pages import DELTA_BYTES, DELTA_LENGTHS, DICTIONARY, PLAIN_DICTIONARY, Page, Read, pages_of

WIDTHS = {"BOOLEAN": 1, "INT32": 8, "INT64": 8, "INT96": 12, "FLOAT": 8, "DOUBLE": 8}
"""Bytes of a value in memory."""
STORED = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
"""Bytes of a value in a dictionary page, at least."""
FLAT, NESTED = 5, 8
"""Bytes that come with each value: where a text begins, whether it is null; in lists, with each list around it."""
CHARACTER, PYTHON = 4, 200
"""Bytes of a character of a Python text at most, and of a value in a Python list or dictionary, roughly."""
INDEX = 4
"""Bytes of a value that stands in a dictionary."""
LARGEST_PAGE = 1 << 31
UNKNOWN = 1 << 60
LARGE, MOST_WORDS = 16 << 20, 1 << 18
"""Dictionaries of more bytes, or more values, are not looked at for their longest value."""


class Part(NamedTuple):
    """Of one column, in the rows of a chunk."""

    path: str
    plain: int
    """Bytes, if each row gets its own values."""
    coded: int
    """Bytes, if values stay in their dictionary; the same where there is none."""
    passing: int
    """Bytes of the largest page, while it is decoded, or of a row as Python values: one column comes after another."""


class Rows(NamedTuple):
    """Some rows of a row group that are decoded together."""

    first: int
    num_rows: int
    is_slice: bool
    """Read page by page, with a page of each column in memory; otherwise one column is read after another."""


class Form:
    """What a column is in all row groups. `schema`: pyarrow's of the file; `kind`: of the column that it is part of,
    the Arrow type."""

    def __init__(self, leaf: Leaf, schema: Any, kind: Any) -> None:
        self.leaf = leaf
        self.levels = schema.max_repetition_level, schema.max_definition_level
        """The highest: of lists inside each other, and of what may be null."""
        decimal = 16 if schema.converted_type == "DECIMAL" and schema.physical_type != "BYTE_ARRAY" else 0
        self.width = max(WIDTHS.get(schema.physical_type) or max(schema.length, 0), decimal)
        """Bytes of a value; 0 where each has its own length."""
        self.stored = STORED.get(schema.physical_type) or max(schema.length, 1)
        """The fewest bytes of a value in a dictionary page."""
        self.fixed = 1 if leaf.flat else fixed_length(kind)
        self.per_row = self.fixed if only_fixed(kind) else 0
        """Values of a row, where no list of it has a length of its own."""
        self.character = CHARACTER if schema.converted_type == "UTF8" else 1
        """Bytes in Python of one byte of a value."""
        self.can_be_coded = not self.width and schema.converted_type != "DECIMAL" and not has_extension(kind)
        """Whether pyarrow can leave its values in their dictionary."""


class ColumnWeight:
    """One column in one row group, looked at as closely as is needed: by its size in the file, by the headers of its
    pages, by what is in them."""

    def __init__(self, form: Form, read: Read, column: Any) -> None:
        """`column`: pyarrow's, of this row group."""
        self._form, self._column = form, column
        self._fixed, self._levels, self._width = form.fixed, form.levels, form.width
        self.leaf, self._read = form.leaf, read
        self.is_sized = bool(form.width) and form.leaf.flat
        """Whether the number of rows says what they take."""
        self.is_walked = False

    @property
    def offset(self) -> int:
        """Where it begins in the file."""
        return int(self._column.dictionary_page_offset or self._column.data_page_offset)

    def walk(self) -> None:
        """Read the headers of its pages. Raises `Malformed` where they cannot be what they say."""
        if self.is_walked:
            return
        column, start = self._column, self.offset
        if 0 < column.data_page_offset < start:
            start = column.data_page_offset
        found = pages_of(self._read, start, start + column.total_compressed_size, column.num_values)
        self._pages, self._dictionary = found.data, found.dictionary
        self._longest, self._found = found.dictionary, found
        if found.words * self._form.stored > found.dictionary:
            raise Malformed(f"a dictionary of {found.dictionary:,} bytes cannot have {found.words:,} values")
        self._largest = max((page.plain for page in self._pages), default=0)
        self._has_lengths = any(page.encoding in (DELTA_LENGTHS, DELTA_BYTES) for page in self._pages)
        self._longest_plain = max((page.plain // page.values for page in self._pages), default=0)
        """Of the texts that stand in no dictionary, going by the middle of their page."""
        self._deltas = sum(page.plain for page in self._pages if page.encoding == DELTA_BYTES)
        self._sums: dict[int, int] = {}
        """Of pages by their places: what values that share their beginnings have in all, where it was looked at."""
        self._nulls: dict[int, int] = {}
        """The same: how many nulls they have. In a list of fixed length one stands for the whole list."""
        self._starts: list[int] | None = None
        if self.leaf.flat:
            self._starts = list(accumulate((page.values for page in self._pages), initial=0))[:-1]
        self.is_walked = True

    @property
    def _can_be_coded(self) -> bool:
        return self._form.can_be_coded and not self.has_lengths

    @property
    def has_lengths(self) -> bool:
        """Whether pages tell the lengths of their texts ahead of the texts. pyarrow leaves no such column coded."""
        return self._has_lengths

    def check_lengths(self, most: int) -> None:
        """pyarrow makes room for as many lengths as a page says it has, whatever its header says."""
        for page in self._pages:
            if page.encoding in (DELTA_LENGTHS, DELTA_BYTES) and page.plain <= most:
                check_count(self._split(page, most)[2], page.values)

    def of(self, rows: Rows) -> Part:
        part = self._by_pages(rows.first, rows.num_rows) if self.is_walked else self._by_footer(rows.num_rows)
        if not rows.is_slice:
            return part
        page = self._largest if self.is_walked else LARGEST_PAGE
        return Part(part.path, part.plain + page, part.coded + page, part.passing)

    def _by_footer(self, rows: int) -> Part:
        """Numbers take what they take; of texts and lists nothing is known yet."""
        if not self.is_sized:
            return Part(self.leaf.path, UNKNOWN, UNKNOWN, LARGEST_PAGE)
        nbytes = rows * (self._width + FLAT)
        return Part(self.leaf.path, nbytes, nbytes, LARGEST_PAGE)

    def _by_pages(self, first: int, rows: int) -> Part:
        total, coded, count = 2 * self._dictionary, 2 * self._dictionary, 0
        each = NESTED * self._levels[0] or FLAT
        left = rows * self._form.per_row or UNKNOWN
        for i, values in self._overlapping(first, rows):
            page = self._pages[i]
            if self._fixed > 1:
                values = min(values + self._nulls.get(i, values) * self._fixed, left)
                left -= values
            if self._width:
                nbytes = packed = values * (self._width + each)
            elif page.encoding in (DICTIONARY, PLAIN_DICTIONARY):
                nbytes = values * (self._longest + each)
                packed = values * (INDEX + each) if self._can_be_coded else nbytes
            elif page.encoding == DELTA_BYTES:
                nbytes = packed = self._sums.get(i, values * self._deltas) + values * each
            else:
                nbytes = packed = page.plain + values * (INDEX + each)
            total, coded, count = total + nbytes, coded + packed, count + values
        return Part(self.leaf.path, total, coded, max(self._largest, self._in_python(rows, count)))

    def _in_python(self, rows: int, values: int) -> int:
        """Bytes of a row as Python values, as far as the headers tell: of one with a text, or with values in lists."""
        text = 0 if self._width else self._form.character * max(self._longest_plain, self._longest)
        return text if self.leaf.flat else text + PYTHON * values // max(rows, 1)

    def measure_words(self) -> None:
        """Find the longest value of the dictionary; until then all of it may be one value."""
        found, unpack = self._found, struct.Struct("<I").unpack_from
        if (
            self._longest != found.dictionary
            or self._width
            or not found.dictionary
            or found.words > MOST_WORDS
            or found.dictionary > LARGE
        ):
            return
        with suppress(Malformed):
            data = self._unpacked(self._read(found.place[0], sum(found.place)), found.dictionary)
            at, longest, last = 0, 0, len(data) - 4
            for _ in range(found.words):
                if at > last:
                    break
                (size,) = unpack(data, at)
                at += 4 + size
                if size > longest:
                    longest = size
            self._longest = min(longest, found.dictionary)

    def look_closer(self, most: int) -> None:
        """Find out what the headers do not say, by unpacking the pages one by one, none of more than `most` bytes."""
        if self._starts is None:
            with suppress(Malformed):
                self._starts = self._row_starts(most)
        for i, page in enumerate(self._pages):
            with suppress(Malformed):
                if page.encoding == DELTA_BYTES and i not in self._sums:
                    self._sums[i] = self._sum_of(page, most)
                if self._fixed > 1:
                    self._nulls[i] = page.values - count_of(self._levels[1], *self._level(1, page, most))[0]

    def _overlapping(self, first: int, rows: int) -> Iterator[tuple[int, int]]:
        """The pages that have some of these rows, by their places, and how many values of each may be wanted."""
        if self._starts is None:
            yield from ((i, page.values) for i, page in enumerate(self._pages))
            return
        starts, stop = self._starts, first + rows
        for i in range(max(0, bisect_left(starts, first) - 1), len(starts)):
            if starts[i] >= stop:
                return
            values = self._pages[i].values
            if self.leaf.flat:
                values = min(stop, starts[i] + values) - max(first, starts[i])
            if values > 0:
                yield i, values

    def _row_starts(self, most: int) -> list[int]:
        """Of each page of a column of lists, the first row that it has a part of."""
        starts, rows = [], 0
        for page in self._pages:
            zeros, begins = count_of(0, *self._level(0, page, most))
            starts.append(rows if begins or not rows else rows - 1)
            rows += zeros
        return starts

    def _sum_of(self, page: Page, most: int) -> int:
        data = self._split(page, most)[2]
        beginnings, at = sum_of_deltas(data, 0, page.values)
        rests, _ = sum_of_deltas(data, at, page.values)
        return beginnings + rests

    def _level(self, which: int, page: Page, most: int) -> tuple[bytes, int, int]:
        """Levels of a page, how many there are, and the highest."""
        return self._split(page, most)[which], page.values, self._levels[which]

    def _split(self, page: Page, most: int) -> tuple[bytes, bytes, bytes]:
        """The levels of a page that tell where rows begin, those that tell what is null, and the values."""
        if page.plain > most:
            raise Malformed("a page larger than all that may be read")
        data = self._read(page.at, page.at + page.packed)
        if page.levels is not None:
            first, second = page.levels
            rest = data[first + second :]
            rest = self._unpacked(rest, page.plain - first - second) if page.is_packed else rest
            return data[:first], data[first : first + second], rest
        data, at, found = self._unpacked(data, page.plain), 0, [b"", b""]
        for i, level in enumerate(self._levels):
            if level:
                size = int.from_bytes(data[at : at + 4], "little")
                found[i] = data[at + 4 : at + 4 + size]
                at += 4 + size
        return found[0], found[1], data[at:]

    def _unpacked(self, data: bytes, size: int) -> bytes:
        import pyarrow as pa

        codec = self._column.compression
        if codec == "UNCOMPRESSED":
            return data
        try:
            name = "lz4_raw" if codec == "LZ4" else codec.lower()
            return pa.Codec(name).decompress(data, size, asbytes=True)  # type: ignore[no-any-return]
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Malformed("a page that cannot be unpacked") from error


def fixed_length(kind: Any) -> int:
    """Values that one null of a type may stand for: the lengths of its lists of fixed length."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return fixed_length(kind.storage_type)
    inside = max((fixed_length(kind.field(i).type) for i in range(kind.num_fields)), default=1)
    return inside * kind.list_size if pa.types.is_fixed_size_list(kind) else inside


def only_fixed(kind: Any) -> bool:
    """Whether a type has no lists but those of fixed length."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return only_fixed(kind.storage_type)
    plain = not kind.num_fields or pa.types.is_struct(kind) or pa.types.is_fixed_size_list(kind)
    return plain and all(only_fixed(kind.field(i).type) for i in range(kind.num_fields))


def has_extension(kind: Any) -> bool:
    """Whether a type, or one inside it, stands for another that it is stored as, such as JSON for text."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return True
    return any(has_extension(kind.field(i).type) for i in range(kind.num_fields))


class GroupWeight:
    """All columns of a row group that are read."""

    def __init__(self, columns: list[ColumnWeight], largest: int, check_codecs: Callable[[], None]) -> None:
        """`largest`: pages of no more bytes are unpacked to look into them. `check_codecs`: raises where pyarrow cannot
        unpack a column."""
        self._columns, self._largest, self._check_codecs = columns, largest, check_codecs
        self.at: ColumnWeight | None = None
        """The column that was looked at last."""
        self._may_unpack = self._is_searched = False

    def of(self, rows: Rows, most: int) -> list[Part]:
        """The columns of some rows. Where that may be more than `most` bytes, all is found out that can be."""
        parts = [column.of(rows) for column in self._columns]
        if total_of(parts) <= most:
            return parts
        for columns in ([column for column in self._columns if not column.is_sized], self._columns):
            if total_of(parts) > most and not all(column.is_walked for column in columns):
                for self.at in columns:
                    self.at.walk()
                    if self.at.has_lengths:
                        self._require_codecs()
                        self.at.check_lengths(self._largest)
                parts = [column.of(rows) for column in self._columns]
        if total_of(parts) > most:
            self._require_codecs()
            parts = self._with_words_measured(parts, rows, most)
        if to_be_coded(parts, set(), most)[1] > most and not self._is_searched:
            self._is_searched = True
            for column in self._columns:
                column.look_closer(self._largest)
            parts = [column.of(rows) for column in self._columns]
        return parts

    def _require_codecs(self) -> None:
        if not self._may_unpack:
            self._check_codecs()
            self._may_unpack = True

    def _with_words_measured(self, parts: list[Part], rows: Rows, most: int) -> list[Part]:
        """The heaviest columns are looked at, one after another, until all may fit."""
        for i in sorted(range(len(parts)), key=lambda i: -parts[i].plain):
            if total_of(parts) > most:
                self._columns[i].measure_words()
                parts[i] = self._columns[i].of(rows)
        return parts


def total_of(parts: list[Part], coded: Container[str] = ()) -> int:
    """Bytes of all columns. `coded`: those whose values stay in dictionaries."""
    return kept_of(parts, coded) + max((part.passing for part in parts), default=0)


def kept_of(parts: list[Part], coded: Container[str]) -> int:
    """The same without what is only there while a column is decoded."""
    return sum(part.coded if part.path in coded else part.plain for part in parts)


def to_be_coded(parts: list[Part], coded: set[str], most: int) -> tuple[set[str], int]:
    """The columns whose values are left in dictionaries for all to fit into `most` bytes, those that gain most first,
    and what is taken then. `coded`: those that are already."""
    total = total_of(parts, coded)
    chosen: set[str] = set()
    if total <= most:
        return chosen, total
    for part in sorted(parts, key=lambda part: part.coded - part.plain):
        if total <= most or part.coded >= part.plain:
            break
        if part.path not in coded:
            total -= part.plain - part.coded
            chosen.add(part.path)
    return chosen, total
