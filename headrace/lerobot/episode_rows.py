"""The rows of `meta/episodes` as they stand in the files, for who asks for them: what LeRobot calls `meta.episodes`.

They are read when the first is asked for. The statistics that stand in the same files are left out, as LeRobot does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from headrace.catalog.shard import Shard
from headrace.fetch.values import to_python
from headrace.lerobot.projection import Allowance, read_columns, whole_numbers

if TYPE_CHECKING:
    from headrace.rng import I64

STATS = "stats/"


class EpisodeRows:
    """The tables of some files as one, by the numbers of episodes."""

    def __init__(self, files: Sequence[Shard], memory_bytes: int) -> None:
        self._files, self._memory_bytes = list(files), memory_bytes
        self._allowance = Allowance(memory_bytes)
        self._table: Any = None
        self._order: Any = None
        """The places of the rows by the numbers of their episodes; of those with one number the first comes first."""
        self._numbers: Any = None
        """The numbers in this order."""
        self._nested: list[str] = []
        """The columns whose values may be large in Python, however small a row is in the file."""
        self._is_light = False
        """Whether all rows of these would fit as Python values, so that no single one is counted."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None, "_order": None, "_numbers": None}

    @property
    def column_names(self) -> list[str]:
        return list(self._read().column_names)

    def row(self, number: int) -> dict[str, Any]:
        """Of the episode with this number."""
        table = self._read()
        (place,) = self._places([number]).tolist()
        row = {name: table.column(name)[place].as_py() for name in table.column_names if name not in self._nested}
        nested = self._python(table.select(self._nested).slice(place, 1), [0], is_light=self._is_light)
        return {name: nested[name][0] if name in nested else row[name] for name in table.column_names}

    def columns(self, names: Sequence[str], numbers: I64) -> dict[str, list[Any]]:
        """These columns, of the episodes with these numbers."""
        table = self._read()
        for name in names:
            if name not in table.column_names:
                raise KeyError(name)
        return self._python(table.select(names), self._places(numbers))

    def _python(self, table: Any, places: Iterable[int], *, is_light: bool = False) -> dict[str, list[Any]]:
        """The columns of a table as lists, with the values at these places."""
        columns = {name: table.column(name) for name in table.column_names}
        if not is_light:
            self._allowance.check_python(columns, self._where)
        found = {}
        for name, column in columns.items():
            values = [value for chunk in column.chunks for value in to_python(chunk)]
            found[name] = [values[place] for place in places]
        return found

    def _places(self, numbers: Any) -> Any:
        """Where the rows of the episodes with these numbers are."""
        import numpy as np

        at = np.searchsorted(self._numbers, numbers)
        if (self._numbers.take(at, mode="clip") != numbers).any():
            raise KeyError("an episode that is not in the files")
        return self._order[at]

    @property
    def _where(self) -> str:
        more = len(self._files) - 1
        return f"{self._files[0]} and {more} more files" if more else str(self._files[0])

    def _read(self) -> Any:
        import numpy as np
        import pyarrow as pa

        if self._table is None:
            self._allowance = allowance = Allowance(self._memory_bytes)
            tables = [read_columns(shard, _own_columns, allowance) for shard in self._files]
            table = pa.concat_tables(tables, promote_options="permissive")
            numbers = whole_numbers(table, "episode_index", self._where)
            self._nested = [field.name for field in table.schema if field.type.num_fields]
            self._is_light = allowance.fits_python(table.select(self._nested).columns)
            self._order = np.argsort(numbers, kind="stable")
            self._numbers, self._table = numbers[self._order], table
        return self._table


def _own_columns(schema: Any) -> list[str]:
    return [name for name in schema.names if not name.startswith(STATS)]


class Subscripted:
    """Episodes by place, column or slice, as a table of `datasets` has them."""

    index: I64
    rows: EpisodeRows | None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def column_names(self) -> list[str]:
        return self._rows().column_names

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        """A row by its place, as a dict; a column by its name, as a list; of a slice or a list of places, a dict of
        columns."""
        rows = self._rows()
        if isinstance(key, str):
            return rows.columns([key], self.index)[key]
        if isinstance(key, slice | list | tuple | range):
            places = list(range(len(self)))[key] if isinstance(key, slice) else [self._place(one) for one in key]
            return rows.columns(rows.column_names, self.index[places])
        return rows.row(int(self.index[self._place(key)]))

    def _place(self, key: Any) -> int:
        place = index(key)
        if not -len(self) <= place < len(self):
            raise IndexError(f"there is no episode at place {place}: there are {len(self)}")
        return place % len(self)

    def _rows(self) -> EpisodeRows:
        assert self.rows is not None, "episodes that were read from files"
        return self.rows
