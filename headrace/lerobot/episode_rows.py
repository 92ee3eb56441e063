"""The rows of `meta/episodes` as they stand in the files, for who asks for them: what LeRobot calls `meta.episodes`.

They are read when the first is asked for. The statistics that stand in the same files are left out, as LeRobot does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from headrace.catalog.shard import Shard
from headrace.fetch.values import to_python
from headrace.lerobot.projection import Allowance, read_columns

if TYPE_CHECKING:
    from headrace.rng import I64

STATS = "stats/"


class EpisodeRows:
    """The tables of some files as one, by the numbers of episodes."""

    def __init__(self, files: Sequence[Shard], memory_bytes: int) -> None:
        self._files, self._memory_bytes = list(files), memory_bytes
        self._table: Any = None
        self._places: dict[int, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None, "_places": {}}

    @property
    def column_names(self) -> list[str]:
        return list(self._read().column_names)

    def row(self, number: int) -> dict[str, Any]:
        """Of the episode with this number."""
        table = self._read()
        return {name: table.column(name)[self._places[number]].as_py() for name in table.column_names}

    def column(self, name: str, numbers: I64) -> list[Any]:
        """A column, of the episodes with these numbers."""
        table = self._read()
        if name not in table.column_names:
            raise KeyError(name)
        values = [value for chunk in table.column(name).chunks for value in to_python(chunk)]
        return [values[self._places[number]] for number in numbers.tolist()]

    def _read(self) -> Any:
        import pyarrow as pa

        if self._table is None:
            allowance = Allowance(self._memory_bytes)
            tables = [read_columns(shard, _own_columns, allowance) for shard in self._files]
            self._table = pa.concat_tables(tables, promote_options="permissive")
            numbers = self._table.column("episode_index").to_pylist()
            self._places = {int(number): place for place, number in reversed(list(enumerate(numbers)))}
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
            return rows.column(key, self.index)
        if isinstance(key, slice | list | tuple | range):
            places = list(range(len(self)))[key] if isinstance(key, slice) else [self._place(one) for one in key]
            return {name: rows.column(name, self.index[places]) for name in rows.column_names}
        return rows.row(int(self.index[self._place(key)]))

    def _place(self, key: Any) -> int:
        place = index(key)
        if not -len(self) <= place < len(self):
            raise IndexError(f"there is no episode at place {place}: there are {len(self)}")
        return place % len(self)

    def _rows(self) -> EpisodeRows:
        assert self.rows is not None, "episodes that were read from files"
        return self.rows
