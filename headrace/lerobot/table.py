"""Where an episode's rows lie in the data files, and the rows by columns.

The metadata says which file; where it is wrong, as in public data sets it may be, the other files are searched. Rows
that no episode in the metadata owns are never given out.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.catalog.plain import is_stale
from headrace.errors import Changed, DataError, HeadraceError, NoSpace, NotFound, shown
from headrace.fetch.cache import ShardCache
from headrace.fetch.leases import Lease
from headrace.fetch.memory import MemoryBudget, MemoryUse, NoRoom
from headrace.fetch.parquet import ParquetReader
from headrace.fetch.plan import Chunk
from headrace.fetch.python_size import python_bytes
from headrace.lazy import cached_property
from headrace.lerobot.columns import Column, column_of, is_python, numbers_of

if TYPE_CHECKING:
    from headrace.lerobot.meta import Meta

log = logging.getLogger("headrace")

WHOLE_BYTES = 8 << 20
"""A remote data file up to this size is fetched whole; of a larger one only the row groups that are needed..."""
RANGE_SHARE = 4
"""...as long as those of an episode are no more than 1/4 of the file."""
MOST_OPEN = 64
"""Data files that are open at once; where they lie stays known, and what was fetched of them stays."""
KEPT_BYTES = 256 << 20
"""Row groups that several episodes share are kept, decoded, up to so many bytes..."""
KEPT_SHARE = 4
"""...and a quarter of the budget; a larger one is kept alone."""


class Tables:
    """The tabular rows of episodes. Several threads may ask at once."""

    def __init__(self, meta: Meta, cache: ShardCache, memory_bytes: int) -> None:
        self._meta, self._cache, self._memory_bytes = meta, cache.strict(), memory_bytes
        self._files: OrderedDict[str, DataFile] = OrderedDict()
        """The one that was used last is last."""
        self._lock = threading.Lock()
        self._kept = KeptGroups(MemoryBudget(memory_bytes))
        self._moved: dict[int, str] = {}
        """Episodes that lie in another file than the metadata says."""

    def read(self, number: int) -> dict[str, Column]:
        """The rows of the episode at place `number` in the metadata."""
        index, length = int(self._meta.episodes.index[number]), int(self._meta.episodes.length[number])
        name, found = self._found(number)
        where = f"{self._meta.files.name}, {shown(name)}, episode {index}"
        if found.num_rows != length:
            raise DataError(
                f"{where}: {found.num_rows} rows were found, where meta/episodes says {length}; mend the metadata, or "
                f"leave the episode out with episodes="
            )
        own = {f.name: f for f in self._meta.info.features.values() if not f.is_video}
        self._check_python({key: found.column(key).chunk(0) for key, f in own.items() if is_python(f)}, where)
        return {key: column_of(found.column(key).chunk(0), feature, where) for key, feature in own.items()}

    def _check_python(self, columns: dict[str, Any], where: str) -> None:
        """Refuse an episode that would be too much as Python values."""
        sizes = {name: python_bytes(array) for name, array in columns.items()}
        budget = MemoryBudget(self._memory_bytes)
        if sizes and (total := sum(sizes.values())) > (most := budget.most(total)):
            worst = max(sizes, key=sizes.__getitem__)
            raise NoRoom(
                f"{where}, column {shown(worst)!r}: its rows take about {total:,} bytes as Python values, "
                f"{sizes[worst]:,} of them this column, and they may take {max(0, most):,}: other episodes "
                f"hold {budget.in_use():,} and the budget is {budget.nbytes:,} (HEADRACE_MEMORY_BYTES). Raise it, "
                f"take a smaller episode_pool_size, or leave the episode out with episodes="
            )

    def close(self) -> None:
        with self._lock:
            files, self._files = list(self._files.values()), OrderedDict()
        self._kept.clear()
        for file in files:
            file.close()

    def _found(self, number: int) -> tuple[str, Any]:
        """The file that has rows of an episode, and the rows."""
        episodes, info = self._meta.episodes, self._meta.info
        index, first, length = (int(column[number]) for column in (episodes.index, episodes.first, episodes.length))
        said = info.data_file(int(episodes.data_chunk[number]), int(episodes.data_file[number]))
        likely = self._moved.get(number, said)
        for name in self._places(likely):
            if self._file(name).may_have(index):
                rows = self._file(name).rows(index, first, length)
                if rows.num_rows:
                    if name != likely:
                        self._moved[number] = name
                    return name, rows
        raise DataError(
            f"{self._meta.files.name}: episode {index} should be in {shown(said)}, and is in none of the data files; "
            f"mend the data set, or leave the episode out with episodes="
        )

    def _places(self, likely: str) -> Iterator[str]:
        """Where an episode may be; all files are only looked at where it is not in the likely one."""
        if self._meta.files.has(likely):
            yield likely
        yield from self._data_files

    @cached_property
    def _data_files(self) -> list[str]:
        paths = self._meta.files.paths()
        return sorted(path for path in paths if path.startswith("data/") and path.endswith(".parquet"))

    def _file(self, name: str) -> DataFile:
        with self._lock:
            if name not in self._files:
                columns = [f.name for f in self._meta.info.features.values() if not f.is_video]
                budget = MemoryBudget(self._memory_bytes)
                self._files[name] = DataFile(self._meta, name, columns, self._cache, self._kept, budget)
            self._files.move_to_end(name)
            found = self._files[name]
            resting = [file for file in self._files.values() if file.is_open and file is not found]
        for file in resting[: max(0, len(resting) + 1 - MOST_OPEN)]:
            file.rest()
        return found


class _KeptGroup(NamedTuple):
    batches: list[Any]
    """It, until it is let go."""
    memory: MemoryUse


class KeptGroups:
    """Row groups that have more than one episode, for the next of them; those unused for longest go first.

    They count as memory, are only kept while everything stays within the budget, and are let go before anything is
    refused for want of room.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._found: OrderedDict[tuple[str, int], _KeptGroup] = OrderedDict()
        self.is_told = False
        """Whether it was said that there is no room on the disk for files."""
        self._lock = threading.Lock()

    def get(self, key: tuple[str, int]) -> Any:
        with self._lock:
            found = self._found.get(key)
            if found is None:
                return None
            self._found.move_to_end(key)
            return next(iter(found.batches), None)

    def keep(self, key: tuple[str, int], batch: Any) -> None:
        import pyarrow as pa

        pa.default_memory_pool().release_unused()  # it keeps what decoding took, which may be as much as was decoded
        nbytes = batch.get_total_buffer_size()
        most = min(KEPT_BYTES, self._budget.nbytes // KEPT_SHARE)
        if nbytes > KEPT_BYTES:
            return
        with self._lock:
            self._found.pop(key, None)
            while self._found and (self._num_bytes() + nbytes > most or self._budget.preferred() < nbytes):
                self._found.popitem(last=False)
            if self._budget.preferred() >= nbytes:
                self._found[key] = kept = _KeptGroup([batch], MemoryUse(nbytes))
                kept.memory.measure_by(partial(_let_go, kept.batches))

    def forget(self, name: str) -> None:
        """Let go of all row groups of a file."""
        with self._lock:
            for key in [key for key in self._found if key[0] == name]:
                del self._found[key]

    def clear(self) -> None:
        with self._lock:
            self._found.clear()

    def _num_bytes(self) -> int:
        return sum(kept.memory.nbytes for kept in self._found.values())


def _let_go(batches: list[Any], most: int) -> int:
    """It gets only this list: who counts a use of memory must not keep it alive."""
    batches.clear()
    return 0


class DataFile:
    """One parquet file of episodes."""

    def __init__(
        self,
        meta: Meta,
        name: str,
        columns: list[str],
        cache: ShardCache,
        kept: KeptGroups,
        budget: MemoryBudget,
    ) -> None:
        self._name, self._columns, self._cache, self._kept, self._budget = name, columns, cache, kept, budget
        self._shard = meta.files.shard(name)
        self._lock = threading.Lock()
        self._reader: ParquetReader | None = None
        self._lease: Lease | None = None
        self._rows: list[int] = []
        self._bounds: list[tuple[int, int] | None] = []

    @property
    def is_open(self) -> bool:
        return self._reader is not None

    def rest(self) -> None:
        """Keep nothing open; it is opened again when it is needed."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    def may_have(self, episode: int) -> bool:
        """Whether the footer lets an episode be in here. Where it does not say, the rows are looked at."""
        with self._lock:
            if not self._bounds:
                self._opened()
            groups = self._groups(episode)
            if all(self._bounds[g] is not None for g in groups):
                return bool(groups)
            return bool(self._selected(groups, episode, None).num_rows)

    def rows(self, episode: int, first: int, length: int) -> Any:
        """Its rows, as one Arrow table; those whose `index` the metadata names, where there are others too."""
        with self._lock:
            self._opened()
            groups = self._groups(episode)
            self._fetch_if_large(groups)
            found = self._selected(groups, episode, None)
            if found.num_rows > length:
                found = self._selected(groups, episode, (first, first + length))
            return found

    def close(self) -> None:
        with self._lock:
            if self._reader is not None:
                self._reader.close()
            if self._lease is not None:
                with suppress(OSError):
                    self._lease.release()
            self._reader = self._lease = None

    def _groups(self, episode: int) -> list[int]:
        """The row groups that may have rows of it."""
        return [g for g, b in enumerate(self._bounds) if self._rows[g] and (b is None or b[0] <= episode <= b[1])]

    def _opened(self) -> ParquetReader:
        if self._reader is None:
            remote = self._shard.origin.local_path(self._shard) is None
            if self._lease is None and not (remote and self._shard.size > WHOLE_BYTES):
                self._fetch(remote)
            self._reader = self._open()
        return self._reader

    def _fetch(self, remote: bool) -> None:
        """Have the whole file here. A remote one that finds no room is read by range."""
        try:
            self._lease = self._cache.acquire(self._shard)
        except NoSpace as error:
            if not remote:
                raise
            if not self._kept.is_told:
                self._kept.is_told = True
                log.warning("%s; its rows, and those of others that find no room, are read by range", error)

    def _read(self, chunk: Chunk) -> Any:
        try:
            return self._opened().read(chunk)
        except HeadraceError as error:
            # A file that is gone or another may have been put in its place again since.
            is_gone = self._lease is not None and (is_stale(error) or isinstance(error, Changed | NotFound))
            if not is_gone and not (isinstance(error, DataError) and self._is_harmed()):
                raise
            log.info("%s; it is read again", error)
        self._fetch_again()
        return self._opened().read(chunk)

    def _is_harmed(self) -> bool:
        """Whether somebody has touched our copy of a remote file since it was fetched."""
        remote = self._shard.origin.local_path(self._shard) is None
        return remote and self._lease is not None and not self._cache.looks_right(self._shard, self._lease.path)

    def _fetch_again(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._lease is not None:
            self._lease.release(keep=True)
        self._reader = self._lease = None
        self._fetch(remote=True)

    def _open(self) -> ParquetReader:
        if self._is_harmed():
            self._fetch_again()
        path = self._lease.path if self._lease is not None else None
        reader = ParquetReader(self._shard, path, None, budget=self._budget)
        lost = [name for name in [*self._columns, "episode_index", "index"] if name not in reader.names]
        if lost:
            reader.close()
            raise DataError(f"{self._shard} has no column {shown(lost[0])!r}, which meta/info.json declares")
        reader.only(self._columns)
        self._rows, self._bounds = reader.group_rows(), reader.bounds("episode_index")
        return reader

    def _fetch_if_large(self, groups: list[int]) -> None:
        """Fetch the whole file where an episode's row groups are a large part of it."""
        reader = self._opened()
        if self._lease is None and RANGE_SHARE * sum(map(reader.group_bytes, groups)) > self._shard.size:
            self._fetch(remote=True)
            if self._lease is not None:
                reader.close()
                self._reader = None

    def _selected(self, groups: list[int], episode: int, index: tuple[int, int] | None) -> Any:
        """The rows of an episode in some row groups, as one Arrow table. `index`: only those with these numbers."""
        import pyarrow as pa

        while (parts := self._parts(groups, episode, index)) is None:
            self._kept.forget(self._name)  # all are read again, in the new way
        table = pa.Table.from_batches(parts, schema=parts[0].schema if parts else pa.schema([]))
        return table.combine_chunks()

    def _parts(self, groups: list[int], episode: int, index: tuple[int, int] | None) -> list[Any] | None:
        """The same by row groups. None: where memory is short the reader leaves more values in their dictionaries from
        some row group on, which then has other types than those before it."""
        import numpy as np

        parts: list[Any] = []
        nbytes, memory = 0, MemoryUse()
        for group in groups:
            batch = self._group(group, keep=self._bounds[group] != (episode, episode))
            if parts and batch.schema != parts[0].schema:
                return None
            own = _whole_numbers(batch.column("episode_index")) == episode
            if index is not None:
                numbers = _whole_numbers(batch.column("index"))
                own &= (numbers >= index[0]) & (numbers < index[1])
            rows = np.flatnonzero(own)
            is_slice = len(rows) and rows[-1] - rows[0] + 1 == len(rows)
            if is_slice and (len(groups) == 1 or len(rows) == batch.num_rows):
                parts.append(batch.slice(int(rows[0]), len(rows)))
            elif len(rows):  # a copy: a slice would hold the whole row group
                parts.append(batch.filter(_mask(own)))
            if len(rows) and len(groups) > 1:
                nbytes += parts[-1].get_total_buffer_size()
                memory.release()
                self._check_size(nbytes, episode)
                memory.change(nbytes)
        return parts

    def _check_size(self, nbytes: int, episode: int) -> None:
        """Refuse an episode whose row groups are too much together; each was weighed for itself."""
        if nbytes > (most := self._budget.most(nbytes)):
            raise NoRoom(
                f"{self._shard}, episode {episode}: its rows take more than {nbytes:,} bytes, and they may take "
                f"{max(0, most):,}: other episodes hold {self._budget.in_use():,} and the budget is "
                f"{self._budget.nbytes:,} (HEADRACE_MEMORY_BYTES). Raise it, take a smaller episode_pool_size, or "
                f"leave the episode out with episodes="
            )

    def _group(self, group: int, *, keep: bool) -> Any:
        found = self._kept.get((self._name, group))
        if found is None:
            found = self._read(Chunk(0, self._rows[group], 0, group, 0, 0, 0))
            if keep:
                self._kept.keep((self._name, group), found)
        return found


def _mask(chosen: Any) -> Any:
    """An Arrow array of truth values: to have pyarrow convert them is to load pandas."""
    import numpy as np
    import pyarrow as pa

    bits = pa.py_buffer(np.packbits(chosen, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(chosen), [None, bits])


def _whole_numbers(column: Any) -> Any:
    import numpy as np

    return numbers_of(column.cast("int64"), np.int64)
