"""From a source to its index, and to what reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from headrace.catalog.footer import GroupRows
from headrace.catalog.index import Counts as IndexCounts
from headrace.catalog.index import Index
from headrace.catalog.open import open_index
from headrace.catalog.shard import Shard
from headrace.catalog.source import Source
from headrace.errors import NoSpace
from headrace.fetch.cache import ShardCache
from headrace.fetch.open_chunks import Shelves
from headrace.fetch.plan import Coordinate, Counts, Rules, choose_coordinate
from headrace.fetch.pool import PoolSize
from headrace.fetch.text import index_text_shard
from headrace.run import Run

LOOKED_AT = 16
"""Shards of a source that are looked at to know how many chunks a shard has."""


def cache_of(run: Run) -> ShardCache:
    return ShardCache(run.cache_dir, cleanup=run.cleanup, limit=run.cache_bytes)


def open_source(source: Source, run: Run, revision: str | None = None) -> Index:
    """The index of a source, at a pinned revision where one is given (a resume)."""
    if source.kind == "txt" or source.kind == "jsonl":
        count_lines = partial(index_text_shard, kind=source.kind, cache=cache_of(run))
        return open_index(source, run, revision, count_lines)
    return open_index(source, run, revision)


class Opened(Protocol):
    """A source that was opened: what a plan must know of it, and a shelf that its chunks are read from.

    `headrace.testing.MemorySource` is another one.
    """

    @property
    def spec(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def atomic(self) -> bool:
        """Whether a row group is one chunk that belongs to one lane, and rows are drawn evenly over a pool of them."""
        ...

    @property
    def window(self) -> int | None:
        """Shards whose row groups are mixed at a time; None: as many as the recipe says."""
        ...

    def coordinate(self, lanes: int) -> Coordinate: ...
    def counts(self, columns: list[str] | None) -> Counts: ...
    def label(self, shard: int) -> str: ...
    def shelf(self, columns: list[str] | None, by_range: bool = False) -> Shelves: ...
    def held_bytes(self, shards: int) -> int:
        """On disk, for a reader that holds so many shards; 0 where nothing is fetched."""
        ...

    @property
    def is_fetched(self) -> bool:
        """Whether its files are fetched into the cache."""
        ...

    def files_of(self, shard: int, group: int) -> Iterable[Shard]:
        """The files that a row group (-1: any) of a shard is read from, where they are fetched."""
        ...

    def has_lists(self, column: str) -> bool:
        """Whether a column holds lists of whole numbers: tokens already."""
        ...

    def has_text(self, column: str) -> bool:
        """Whether a column is known to hold text."""
        ...


class Indexed:
    """A source with its index."""

    atomic = False
    window: int | None = None

    def __init__(self, index: Index, run: Run) -> None:
        self.index, self.run = index, run

    @property
    def spec(self) -> str:
        return str(self.index.listing.source)

    @property
    def revision(self) -> str:
        return self.index.listing.revision

    def coordinate(self, lanes: int) -> Coordinate:
        return "rows" if self.index.is_text else choose_coordinate(self.index.num_shards, lanes)

    def counts(self, columns: list[str] | None) -> Counts:
        return IndexCounts(self.index, columns)

    def label(self, shard: int) -> str:
        return self.index.listing.label(shard)

    @property
    def is_fetched(self) -> bool:
        return self.index.listing.origin.folder is not None

    def files_of(self, shard: int, group: int) -> Iterable[Shard]:
        return [self.index.listing.shard(shard)]

    def has_lists(self, column: str) -> bool:
        return re.fullmatch(r"(large_)?list<[^<>:]*: u?int(8|16|32|64)( not null)?>", self._type(column)) is not None

    def has_text(self, column: str) -> bool:
        if self.index.listing.source.kind == "txt":
            return column == self.index.listing.source.column
        return self._type(column) in ("string", "large_string", "string_view")

    def _type(self, column: str) -> str:
        """As the first shard's footer has it; lines have none."""
        if self.index.is_text or not self.index.num_shards:
            return ""
        found = self.index.shard(0)
        return dict(found.schema).get(column, "") if isinstance(found, GroupRows) else ""

    def shelf(self, columns: list[str] | None, by_range: bool = False) -> Shelves:
        from headrace.fetch.shelf import Shelf

        self.index.check_known_columns(columns)
        return Shelf(self.index, self.run, columns, by_range)

    def held_bytes(self, shards: int) -> int:
        if self.index.listing.origin.folder is None or not self.index.num_shards:
            return 0
        sizes = self.index.shard_bytes
        return max(int(sizes.sum()) * shards // self.index.num_shards, int(sizes.max()))


def held_shards(counts: Counts, rules: Rules, size: PoolSize) -> int:
    """The shards that a lane has on disk: those that the chunks of its pool lie in, and the window being read or next.

    By shards all over the source, where their counts are known, else by the first.
    """
    import numpy as np

    n = counts.num_shards
    looked_at = np.linspace(0, n - 1, min(n, LOOKED_AT), dtype=int).tolist() if rules.coordinate == "rows" else [0][:n]
    chunks = read = 0
    for shard in looked_at:
        rows, nbytes, columns = counts.groups(shard)
        chunks += int(np.maximum(-(-rows // rules.chunk_rows), -(-nbytes // rules.chunk_bytes))[rows > 0].sum())
        read += int(columns.sum())
    if not chunks:
        return rules.shard_window + 1
    most = max(1, min(size.chunks, size.nbytes * chunks // max(read, 1)))
    return rules.shard_window + -(-most * len(looked_at) // chunks)


def check_room(index: Index, run: Run) -> None:
    """Shards that are fetched must fit into the cache one by one; better known before the first is on its way."""
    if run.cache_bytes is None or index.listing.origin.folder is None or not index.num_shards:
        return
    largest = int(index.shard_bytes.argmax())
    if int(index.shard_bytes[largest]) > run.cache_bytes:
        raise NoSpace(
            f"{index.listing.shard(largest)} needs {int(index.shard_bytes[largest]):,} bytes, but the cache limit is "
            f"{run.cache_bytes:,} bytes; raise HEADRACE_CACHE_BYTES to hold at least two shards"
        )
