"""A chunk that was read: its rows in the order of the plan, one by one or by columns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat, starmap
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.address import Address, Row
from headrace.catalog.soundness import said
from headrace.errors import DataError, HeadraceError, shown
from headrace.fetch.memory import MemoryBudget, MemoryUse, NoRoom
from headrace.fetch.plan import Chunk
from headrace.fetch.python_size import RowSizes, python_size, row_bytes
from headrace.fetch.values import Words, few_of, slices_of, taken, to_python

if TYPE_CHECKING:
    from headrace.rng import I64

SEGMENT_BYTES = 4 << 20
SEGMENT_ROWS = 256
"""Rows become Python values in runs: at least one row, at most this many rows and bytes. Few values at a time stay in
the processor's cache until they are given out. The rest of the chunk stays Arrow data.
"""
ROOM_SHARE = 24
"""...or of this share of what is left of the memory budget, if that is less: each of the 24 chunks of a pool has such a
run, and Python gives the memory of those that are used up back late."""
SMALL_BYTES = 1 << 18
"""Chunks that take no more as Python values are not worth a look at the budget."""
NO_LIMIT = 1 << 62
FEW = 4
"""So many rows are picked out of a chunk as it was read; where more are asked for, all of it is put into order. For the
first batch after a resume many chunks are asked for a row or two.
"""

Columns: TypeAlias = dict[str, Sequence[Any]]

_new = tuple.__new__


class in_place:
    """What goes wrong in here says where, and is never taken for the end of the data.

    A class, because contextlib hands a StopIteration through as it came.
    """

    def __init__(self, label: str, chunk: Chunk) -> None:
        self._label, self._chunk = label, chunk

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, HeadraceError):
            return
        first = self._chunk.first
        where = f"rows {first} to {first + self._chunk.rows - 1} of {shown(self._label)}"
        if isinstance(error, StopIteration):
            raise RuntimeError(f"StopIteration while reading {where}: {error}") from error  # noqa: TRY004
        error.add_note(f"while reading {where}")


class OpenChunk:
    def __init__(
        self,
        chunk: Chunk,
        data: Any,
        order: I64,
        prefix: tuple[str, int, str],
        faults: Mapping[int, DataError] | None = None,
        budget: MemoryBudget | None = None,
        memory: MemoryUse | None = None,
    ) -> None:
        """`data`: the rows in file order, an Arrow batch or (JSON lines) a list of dicts; `order`: the plan's order of
        them; `prefix`: the start of their addresses; `faults`: rows that could not be read, by their numbers in the
        shard: whoever asks for one is told why; `budget`: of memory, for what rows become; `memory`: what a list
        takes, if that is known.
        """
        self.chunk, self._order, self._prefix = chunk, order, prefix
        self._faults, self._budget = dict(faults or {}), budget
        head = order[:8].tolist()
        in_order = head == sorted(head) and bool((order[1:] > order[:-1]).all())
        self._data, self._is_ordered = data, in_order
        self._picked = 0
        self._most = chunk.rows if in_order else SEGMENT_ROWS
        self._sizes: RowSizes | None = None
        self._words: Words | None = None
        """From the first value on that cannot be read: rows come one by one then, and share what they shared before."""
        self._memory = memory or MemoryUse(0 if isinstance(data, list) else data.get_total_buffer_size())
        self._nbytes = self._memory.nbytes
        self._at = -1
        self._feed: Iterator[Row] = iter(())

    def close(self) -> None:
        """Let go of the data now: the feed and we hold each other, and the garbage collector may take its time."""
        self._data, self._words, self._feed, self._at = None, None, iter(()), -1
        self._memory.release()

    @property
    def label(self) -> str:
        return self._prefix[2]

    def rows(self, first: int, count: int) -> Iterator[Row]:
        """An iterator that is good for rows [first, first + count) of the order."""
        if self._at != first:
            self._feed = chain.from_iterable(starmap(self._segment, self._segments(first)))
        self._at = first + count
        return self._feed

    def sizes(self, arrays: str | None = None) -> RowSizes | None:
        """What the rows take as Python values; None where they are some already. `arrays`: a column that stays out of
        Python. A row that takes more than half of the memory budget is one that cannot be read."""
        if self._sizes is None and not isinstance(self._data, list):
            self._sizes = RowSizes(python_size(self._data, arrays), self._order)
            for place in self._sizes.over(self.most_bytes):
                if (nbytes := row_bytes(self._data, place, arrays)) > self.most_bytes:
                    self._faults[self.chunk.first + place] = DataError(self._too_large(place, nbytes, self.most_bytes))
        return self._sizes

    @property
    def most_bytes(self) -> int:
        """What rows that are there at once may take as Python values."""
        return NO_LIMIT if self._budget is None else self._budget.nbytes // 2

    def make_room(self, nbytes: int) -> None:
        """Have what is only kept for later let go, if there is no room for so many bytes."""
        if self._budget is not None:
            self._budget.room(nbytes)

    @property
    def python_bytes(self) -> int:
        """What all rows take as Python values, once that was found out."""
        if isinstance(self._data, list):
            return self._nbytes
        return 0 if self._sizes is None else self._sizes.total

    def _too_large(self, place: int, nbytes: int, most: int) -> str:
        where, budget = shown(Address(*self._prefix, self.chunk.first + place), 1000), self._budget
        assert budget is not None
        return (
            f"{where}: this row takes about {nbytes:,} bytes as Python values, and it may take {max(most, 0):,}: "
            f"chunks hold {budget.in_use():,} and the budget is {budget.nbytes:,} (HEADRACE_MEMORY_BYTES). "
            f"Raise it, or leave the column out (columns=[...])"
        )

    def numbers(self, first: int, count: int) -> list[int]:
        """The numbers in the shard of these rows of the order."""
        return (self._order[first : first + count] + self.chunk.first).tolist()  # type: ignore[no-any-return]

    def part(self, first: int, count: int, arrays: str | None = None) -> Columns | list[dict[str, Any]]:
        """Rows [first, first + count) of the order by columns; of JSON lines, as the dicts they are. `arrays`: a column
        whose lists of whole numbers stay out of Python: they come as numpy arrays. A row that cannot be read raises a
        DataError: asked for alone, it is this row's."""
        self.sizes(arrays)
        if self._faults:
            self._refuse_faults(self.numbers(first, count))
        if not self._is_ordered and (self._picked + count > FEW or isinstance(self._data, list)):
            with in_place(self.label, self.chunk):
                self._data, self._is_ordered = _reordered(self._data, self._order), True
        if isinstance(self._data, list):
            return self._data[first : first + count]
        if self._is_ordered:
            batch = self._data.slice(first, count)
        else:
            self._picked += count
            if arrays is None and self._words is None and (few := self._few(first, count)) is not None:
                return few
            with in_place(self.label, self.chunk):
                batch = taken(self._data, self._order[first : first + count])
        return self._columns(batch, self.numbers(first, count), arrays)

    def picked(self, turns: Sequence[int], arrays: str | None = None) -> Columns | list[dict[str, Any]]:
        """The same of single rows, by their turns in the order."""
        import numpy as np

        self.sizes(arrays)
        places = np.array(turns, np.int64)
        numbers = (self._order[places] + self.chunk.first).tolist()
        self._refuse_faults(numbers)
        if not self._is_ordered:
            places = self._order[places]
        if isinstance(self._data, list):
            return [self._data[i] for i in places.tolist()]
        with in_place(self.label, self.chunk):
            batch = taken(self._data, places)
        return self._columns(batch, numbers, arrays)

    def _columns(self, batch: Any, numbers: Sequence[int], arrays: str | None) -> Columns:
        names = batch.schema.names
        return {
            name: slices_of(batch.column(i)) if name == arrays else self._values(batch.column(i), name, numbers)
            for i, name in enumerate(names)
        }

    def _refuse_faults(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number in self._faults:
                raise DataError(str(self._faults[number]))

    def _few(self, first: int, count: int) -> Columns | None:
        """The same, without rows taken out of the chunk first; None where one cannot be read."""
        batch, rows = self._data, self._order[first : first + count].tolist()
        try:
            return {name: few_of(column, rows) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        except _unreadable():
            return None

    def _segments(self, first: int) -> Iterator[tuple[int, int]]:
        """The rows from `first` on in runs that become Python values at once: where each begins, and its rows."""
        sizes, bad = self.sizes(), deque(self._bad_turns())
        while (left := min(self._most, self.chunk.rows - first)) > 0:
            count = left if sizes is None else min(left, self._fitting(sizes, first))
            while bad and bad[0] < first:
                bad.popleft()
            if bad:
                count = min(count, max(bad[0] - first, 1))
            yield first, count
            first += count

    def _bad_turns(self) -> list[int]:
        """The places of rows that cannot be read. Each is a run of its own, so that the rows before it are given."""
        import numpy as np

        if not self._faults:
            return []
        return np.flatnonzero(np.isin(self._order + self.chunk.first, list(self._faults))).tolist()

    def _fitting(self, sizes: RowSizes, first: int) -> int:
        """How many rows from `first` on become Python values at once. They count until the next ones do."""
        if self._budget is None or sizes.total <= SMALL_BYTES:
            return sizes.fitting(first, SEGMENT_BYTES)
        self._memory.change(self._nbytes)
        room = self._budget.preferred() // ROOM_SHARE
        count = sizes.fitting(first, max(SMALL_BYTES // ROOM_SHARE, min(SEGMENT_BYTES, room)))
        nbytes = sizes.bytes_of(first, count)
        if count == 1 and nbytes > SMALL_BYTES:
            nbytes = min(nbytes, row_bytes(self._data, first if self._is_ordered else int(self._order[first])))
            if nbytes > (most := self._budget.most(nbytes)):
                raise NoRoom(self._too_large(int(self._order[first]), nbytes, most))
        self._memory.change(self._nbytes + nbytes)
        return count

    def _segment(self, first: int, count: int) -> Iterator[Row]:
        """These rows, which become Python values at once."""
        numbers = self.numbers(first, count)
        with in_place(self.label, self.chunk):
            part = self.part(first, count)
        dicts = iter(part) if isinstance(part, list) else _dicts(part, len(numbers))
        return map(_new, repeat(Row), zip(repeat(self._prefix), numbers, dicts))

    def _values(self, column: Any, name: str, numbers: Sequence[int]) -> list[Any]:
        try:
            return to_python(column, self._words)
        except _unreadable():
            # One by one, to name the row; none fails where a dictionary has a bad value that no row here has.
            self._keep_words()
            return [self._value(column.slice(i, 1), name, number) for i, number in enumerate(numbers)]

    def _value(self, one: Any, name: str, number: int) -> Any:
        """Of one row."""
        try:
            return to_python(one, self._words)[0]
        except _unreadable() as cause:
            where = shown(Address(*self._prefix, number), 1000)
            raise DataError(
                f"{where}, column {shown(name)!r}: its value cannot be read: {said(cause)}; "
                f"leave the column out, headrace.rows(..., columns=[...]), or write the file again"
            ) from cause

    def _keep_words(self) -> None:
        """Values of dictionaries that are made from here on stay as long as the chunk."""
        if self._words is None:
            self._words, kept = Words(), 0 if self._sizes is None else self._sizes.shared
            self._nbytes += kept
            self._memory.change(self._memory.nbytes + kept)


def _unreadable() -> tuple[type[Exception], ...]:
    """What pyarrow raises on a value that Python cannot have."""
    import pyarrow as pa

    return (pa.ArrowException, ValueError, OverflowError, KeyError)  # the last: a time zone that is not known


def _reordered(data: Any, order: I64) -> Any:
    if not isinstance(data, list):
        return taken(data, order)
    data[:] = [data[i] for i in order.tolist()]  # the same list: it may be measured yet
    return data


def _dicts(columns: Columns, count: int) -> Iterator[dict[str, Any]]:
    """A dict per row out of the columns, made at the moment the row is drawn."""
    assert all(len(column) == count for column in columns.values())
    if not columns:
        return ({} for _ in range(count))
    if len(columns) == 1:
        ((name, values),) = columns.items()
        return ({name: value} for value in values)
    return map(dict, map(zip, repeat(tuple(columns)), zip(*columns.values(), strict=True)))  # in C, all of it
