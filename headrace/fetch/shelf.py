"""Chunks to rows: shards are fetched, opened and let go here, as the pool needs them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.catalog.footer import GroupRows
from headrace.catalog.index import Index
from headrace.catalog.lines import LineIndex
from headrace.catalog.plain import is_stale
from headrace.catalog.stop import Stop
from headrace.errors import Changed, DataError, HeadraceError, NotFound, shown
from headrace.fetch.chunk import OpenChunk
from headrace.fetch.lines import LineReader, Objects, RowFaults
from headrace.fetch.memory import MemoryBudget
from headrace.fetch.parquet import ParquetReader
from headrace.fetch.plan import Chunk
from headrace.fetch.prefetch import ShardPrefetcher, sweep_once
from headrace.fetch.sources import cache_of, check_room
from headrace.fetch.text import open_text_shard
from headrace.fetch.values import give_back_memory
from headrace.run import Run

if TYPE_CHECKING:
    from headrace.rng import I64

log = logging.getLogger(__name__)

RANGE_SHARE = 4
"""A row group is read by range, while its shard downloads, if it is no more than 1/4 of the shard."""
OPEN_TRIES = 5
"""Where locks do not work, every process that fetches a shard puts it in its place, also under those that open it."""


class Shelf:
    """The shards a reader has open. What is not needed any more is closed and let go."""

    def __init__(self, index: Index, run: Run, columns: list[str] | None, by_range: bool = False) -> None:
        """`by_range`: chunks are read where they lie, and no shard is fetched whole: there is no room for it."""
        self.index, self.run, self.columns, self._never_whole = index, run, columns, by_range
        if not by_range:
            check_room(index, run)
        self._cache, self._budget = cache_of(run), MemoryBudget(run.memory_bytes)
        if by_range:
            sweep_once(self._cache, Stop())  # what earlier runs left; nothing will be fetched here
        self._prefetch: ShardPrefetcher | None = None
        self._readers: dict[int, ParquetReader | LineReader] = {}
        self._held: set[int] = set()
        self._by_range: dict[int, ParquetReader] = {}
        self._cold = 0

    @property
    def side_by_side(self) -> bool:
        """Parquet files on disk, all counted: what two threads have in common is only looked at."""
        return self._prefetch is None and self.index.is_complete and not self.index.is_text

    @property
    def is_counted(self) -> bool:
        return self._prefetch is None or self.index.is_complete

    def is_near(self, chunk: Chunk) -> bool:
        return self._prefetch is None or chunk.shard in self._readers

    def plan(self, numbers: I64, cold: int) -> None:
        """The shards to come, in order. `cold`: so many chunks may be read by range before their shard is on disk."""
        self._leave_prefetcher()
        self._held.clear()
        if self.index.listing.origin.folder is not None:
            shards = self.index.listing.ordered(self.index.without_empty(numbers))
            ahead = 0 if self._never_whole else 1
            self._prefetch = ShardPrefetcher(
                shards, self.run.cache_dir, lookahead=ahead, auto_release=False, cache=self._cache
            )
        self._cold = cold

    def want(self, chunks: Iterable[Chunk]) -> None:
        """Have the shards of these chunks fetched in the background."""
        if self._prefetch is not None and not self._never_whole:
            for number in (chunk.shard for chunk in chunks):
                if number not in self._held:
                    self._held.add(number)
                    self._prefetch.want(self.index.listing.shard(number))

    def open(self, chunk: Chunk, order: I64, epoch: int) -> OpenChunk:
        listing = self.index.listing
        prefix = (str(listing.source), epoch, listing.label(chunk.shard))
        faults: RowFaults = {}
        data = self._read(chunk, faults)
        memory = data.memory if isinstance(data, Objects) else None
        return OpenChunk(chunk, data, order, prefix, faults, self._budget, memory)

    def keep_only(self, needed: set[int], saved: set[int]) -> None:
        """Close what is not needed; let go of what is neither needed nor part of the state that was saved last, and put
        by what is only part of that."""
        for number in [n for n in self._readers if n not in needed]:
            self._readers.pop(number).close()
        for number in [n for n in self._by_range if n not in needed]:
            self._by_range.pop(number).close()
        for number in [n for n in self._held if n not in needed]:
            if self._prefetch is not None and number in saved:
                self._prefetch.put_by(self.index.listing.shard(number))
            elif self._prefetch is not None:
                self._prefetch.release(self.index.listing.shard(number))
            if number not in saved:
                self._held.discard(number)

    def finished(self, number: int) -> None:
        """All chunks of this shard that are in sight are in memory: a resume would read from it again, nobody else."""
        if number in self._readers:
            self._readers.pop(number).close()
        if self._prefetch is not None:
            self._prefetch.put_by(self.index.listing.shard(number))

    def close(self) -> None:
        self.keep_only(set(), self._held.copy())
        self._leave_prefetcher()
        self._held.clear()
        give_back_memory()

    def _leave_prefetcher(self) -> None:
        if self._prefetch is not None:
            self._prefetch.close()
            self._prefetch = None

    def _read(self, chunk: Chunk, faults: RowFaults) -> Any:
        if chunk.shard not in self._readers and self._pays_by_range(chunk):
            return self._read_by_range(chunk, faults)
        try:
            return self._read_whole(chunk, faults)
        except HeadraceError as error:
            if not self._is_harmed(chunk.shard, error):
                raise
            log.info("%s; it is read again", error)
        self._fetch_again(chunk.shard)
        return self._read_whole(chunk, faults)

    def _read_by_range(self, chunk: Chunk, faults: RowFaults) -> Any:
        try:
            return self._read_range(chunk)
        except DataError as error:
            # No hash goes with a range. It is asked for again; where there is room, with all of its shard.
            log.warning("%s; once more", error)
        return self._read_range(chunk) if self._never_whole else self._read_whole(chunk, faults)

    def _read_range(self, chunk: Chunk) -> Any:
        try:
            return self._range_reader(chunk.shard).read(chunk)
        except DataError:
            # A reader keeps the bytes it has read, so this one would fail again without asking for them.
            if chunk.shard in self._by_range:
                self._by_range.pop(chunk.shard).close()
            raise

    def _is_harmed(self, number: int, error: HeadraceError) -> bool:
        """Whether an error comes from what became of a file of ours since it was fetched."""
        shard = self.index.listing.shard(number)
        if self._prefetch is None or is_stale(error):
            return is_stale(error)
        if not isinstance(error, DataError):
            return isinstance(error, Changed | NotFound)  # another may have been put in its place since
        return not self._cache.looks_right(shard, self._prefetch.wait_for(shard))

    def _fetch_again(self, number: int) -> None:
        """Let go of a shard, as it is now; whoever takes it up looks at it closely."""
        if number in self._readers:
            self._readers.pop(number).close()
        if self._prefetch is not None:
            self._prefetch.release(self.index.listing.shard(number), keep=True)

    def _read_whole(self, chunk: Chunk, faults: RowFaults) -> Any:
        if chunk.shard not in self._readers:
            reader = self._by_range.pop(chunk.shard, None)
            if reader is not None:
                reader.close()
            self._readers[chunk.shard] = self._new_reader(chunk.shard)
        reader_ = self._readers[chunk.shard]
        if isinstance(reader_, ParquetReader):
            return reader_.read(chunk)
        return _line_batch(reader_.read(chunk.first, chunk.first + chunk.rows, faults), self.columns)

    def _pays_by_range(self, chunk: Chunk) -> bool:
        """Whether to read this chunk where it lies: the first rows should not wait for a whole shard."""
        if self._prefetch is None or (self._cold <= 0 and not self._never_whole):
            return False
        shard = self.index.listing.shard(chunk.shard)
        found = self.index.shard(chunk.shard)
        if not isinstance(found, GroupRows):
            return False
        if int(found.kib[chunk.group]) * RANGE_SHARE > int(found.kib.sum()) and not self._never_whole:
            return False
        if self.run.offline or self._prefetch.poll(shard) is not None:
            return False
        self._cold -= 1
        return True

    def _range_reader(self, number: int) -> ParquetReader:
        if number not in self._by_range:
            self._by_range[number] = self._parquet_reader(number, None)
        return self._by_range[number]

    def _new_reader(self, number: int) -> ParquetReader | LineReader:
        shard, found = self.index.listing.shard(number), self.index.shard(number)
        if isinstance(found, LineIndex):
            source = self.index.listing.source
            text = open_text_shard(shard, self._cache)
            label = self.index.listing.label(number)
            return LineReader(text, found, kind=found.kind, column=source.column, label=label, budget=self._budget)
        if self._prefetch is None:
            return self._parquet_reader(number, Path(shard.path))
        for _ in range(OPEN_TRIES):
            path = self._prefetch.wait_for(shard)
            self._held.add(number)
            reader = self._parquet_reader(number, path)
            if self._cache.looks_right(shard, path):  # from here on the reader sees for itself that nobody writes to it
                return reader
            reader.close()
            self._fetch_again(number)  # harmed, or put in its place once more by another process
        raise Changed(f"{shard}: its file {shown(path)} is not what was fetched")

    def _parquet_reader(self, number: int, path: Path | None) -> ParquetReader:
        shard, found = self.index.listing.shard(number), self.index.shard(number)
        self.index.check_columns(number, self.columns)
        digest = found.digest if isinstance(found, GroupRows) else ""
        reader = ParquetReader(shard, path, self.columns, digest, budget=self._budget)
        if isinstance(found, GroupRows) and reader.group_rows() != found.rows.tolist():
            reader.close()
            raise Changed(
                f"{shard} has row groups of other lengths than were counted; if it was replaced by a file of the same "
                f"size and time, remove {shown(self.index.path)} and start anew"
            )
        return reader


def _line_batch(rows: Any, columns: list[str] | None) -> Any:
    if not isinstance(rows, Objects):
        batches = rows.combine_chunks().to_batches()
        return batches[0] if columns is None else batches[0].select(columns)
    if columns is None:
        return rows
    return Objects(_projected(row, columns) for row in rows).count_as(rows.memory)


def _projected(row: dict[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    return {name: row.get(name) for name in columns}
