"""Rows that belong together: those that follow each other in a file with the same value in one column.

The first row of a group stands for all of it, and the others give nothing. That depends on the file alone, so shuffle,
lanes, resume and re-deal need to know nothing about groups.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from headrace.errors import DataError, shown
from headrace.fetch.chunk import Columns, OpenChunk
from headrace.fetch.memory import MemoryUse, NoRoom
from headrace.fetch.plan import WINDOW_BITS, Chunk, Counts, Order, Rules

if TYPE_CHECKING:
    from headrace.rng import I64

KEPT_CHUNKS = 32
"""At most, and of no more bytes than a chunk may take in memory, except the last one."""
MOST_ROWS = 10_000
"""A group of more rows is refused: the column is no group column, or someone means us ill."""


Rows: TypeAlias = "list[dict[str, Any] | DataError]"
"""All rows of a chunk, or where one cannot be read why."""


class _KeptRows(NamedTuple):
    rows: list[Rows]
    """They, until they are let go: before anything is refused for want of room."""
    memory: MemoryUse


class Groups:
    def __init__(self, counts: Counts, rules: Rules, column: str, read: Callable[[Chunk, I64, int], OpenChunk]) -> None:
        """`read`: a chunk, the order of its rows, an epoch."""
        in_file_order = replace(rules, shuffle=False, shard_window=1, coordinate="windows", limit=None)
        self._order = Order(counts, in_file_order, 0)
        self._counts, self._column, self._read = counts, column, read
        self._kept: OrderedDict[int, _KeptRows] = OrderedDict()
        self._most_bytes = 0

    def of(self, shard: int, row: int) -> list[dict[str, Any]] | None:
        """The rows of the group that begins with this row; None: it begins before."""
        value = self._value(shard, row)
        if row and self._value(shard, row - 1) == value:
            return None
        found = [self._row(shard, row)]
        rows = int(self._counts.groups(shard)[0].sum())
        while row + len(found) < rows and self._value(shard, row + len(found)) == value:
            found.append(self._row(shard, row + len(found)))
            if len(found) > MOST_ROWS:
                raise DataError(
                    f"more than {MOST_ROWS} rows from row {row} on have the same {shown(self._column)!r}; "
                    f"rows are grouped by a column that changes more often"
                )
        return found

    def _value(self, shard: int, row: int) -> Any:
        found = self._row(shard, row)
        if self._column not in found:
            raise DataError(f"row {row} has no column {shown(self._column)!r} to group rows by")
        return found[self._column]

    def _row(self, shard: int, row: int) -> dict[str, Any]:
        chunk = self._order.chunk_at((shard << WINDOW_BITS) + row)
        kept = self._kept.pop(chunk.start, None)
        rows = None if kept is None else next(iter(kept.rows), None)
        if kept is None or rows is None:
            rows, nbytes = self._rows(chunk)
            kept = _KeptRows([rows], MemoryUse(nbytes))
            kept.memory.measure_by(partial(_let_go, kept.rows))
        self._kept[chunk.start] = kept
        while len(self._kept) > 1 and self._is_full():
            self._kept.popitem(last=False)
        found = rows[row - chunk.first]
        if isinstance(found, DataError):
            raise DataError(str(found))
        return found

    def _is_full(self) -> bool:
        nbytes = sum(kept.memory.nbytes for kept in self._kept.values())
        return len(self._kept) > KEPT_CHUNKS or nbytes > self._most_bytes

    def _rows(self, chunk: Chunk) -> tuple[Rows, int]:
        """The rows of a chunk, and the bytes that they take."""
        opened = self._read(chunk, self._order.rows_of(chunk), 0)
        try:
            opened.sizes()
            nbytes, self._most_bytes = opened.python_bytes, opened.most_bytes
            if nbytes > opened.most_bytes:
                raise NoRoom(
                    f"rows {chunk.first} to {chunk.first + chunk.rows - 1} of {shown(opened.label)} are read at once "
                    f"to group them; they take about {nbytes:,} bytes and may take {opened.most_bytes:,}, half of "
                    f"HEADRACE_MEMORY_BYTES: raise it, or write the file with smaller row groups"
                )
            opened.make_room(nbytes)
            return self._read_all(opened), nbytes
        finally:
            opened.close()

    def _read_all(self, opened: OpenChunk) -> Rows:
        rows = opened.chunk.rows
        try:
            return _dicts(opened.part(0, rows))
        except DataError:
            return [_dict_or_error(opened, i) for i in range(rows)]


def _let_go(rows: list[Rows], most: int) -> int:
    """It gets only this list: who counts a use of memory must not keep it alive."""
    rows.clear()
    return 0


def _dicts(part: Columns | list[dict[str, Any]]) -> Rows:
    if isinstance(part, list):
        return list(part)
    return [dict(zip(part, values, strict=True)) for values in zip(*part.values(), strict=True)]


def _dict_or_error(opened: OpenChunk, i: int) -> dict[str, Any] | DataError:
    try:
        return _dicts(opened.part(i, 1))[0]
    except DataError as error:
        return DataError(str(error))  # not with its cause, which may have the whole value
