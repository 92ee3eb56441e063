"""Chunks of parquet files: a row group, or the next slice of a large one. Opened by seeking, on disk or by range."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from headrace.catalog.filelike import FileLike
from headrace.catalog.footer import Leaf, check_num_values, footer_bytes, leaves, parse_footer, top_of
from headrace.catalog.local import LocalOrigin, open_listed
from headrace.catalog.plain import PlainFile
from headrace.catalog.shard import Shard
from headrace.catalog.soundness import AGAIN, require_codecs, said
from headrace.catalog.stored import as_stored, without_views
from headrace.catalog.thrift import Malformed
from headrace.errors import DataError, HeadraceError, shown
from headrace.fetch.few_files import forget, in_use, make_room
from headrace.fetch.memory import MemoryBudget, MemoryUse, NoRoom
from headrace.fetch.pages import Window
from headrace.fetch.plan import Chunk
from headrace.fetch.values import check_dictionaries
from headrace.fetch.weight import ColumnWeight, Form, GroupWeight, Part, Rows, kept_of, to_be_coded

MAX_RATIO = 200
MIN_CAP = 1 << 30
"""A row group that decompresses to more than this and to more than 200 times its size is refused."""
PAGES = 1 << 20
FEW_ROWS = 4
"""Read at a time where they were not weighed, to find the column that cannot be read."""
HOLE, LARGEST_SPAN = 8 << 10, 32 << 20
"""Columns that lie so near each other are read by range together, up to so many bytes."""
DICTIONARY_BYTES = 8
"""A dictionary column with no more bytes per value is read as one: the footer counts each of its values only once."""


class ParquetReader:
    """The chunks of one shard. Slices of a large row group are served by one pass while they are asked for in order."""

    def __init__(
        self,
        shard: Shard,
        path: Path | None,
        columns: list[str] | None,
        digest: str = "",
        *,
        budget: MemoryBudget,
    ) -> None:
        """`path`: the shard on disk; None: its bytes are read by range from where it lies. `digest`: of its footer, as
        it was found to be sound. `budget`: what chunks may take in memory."""
        self.shard, self.columns, self._path, self._digest = shard, columns, path, digest
        self._budget = budget
        self._ranges: _RangeFile | None = None
        self._spans: list[tuple[int, bytes]] = []
        """What was read by range of the row group at hand."""
        self._pages: Any = None
        self._leaves: list[tuple[int, Leaf]] = []
        self._dictionaries: list[str] = []
        self._plain: PlainFile | None = None
        """A file is held open beside pyarrow, to notice when it is written to."""
        self.num_files = 0 if path is None else 2
        make_room(self.num_files)
        if isinstance(shard.origin, LocalOrigin):
            self._plain = open_listed(shard)
        elif path is not None:
            self._plain = PlainFile(path, label=str(shard))
        try:
            self._file, self._meta = self._open_checked()
        except BaseException:
            self._let_go()
            raise
        self._names = list(self._file.schema_arrow.names)
        self._is_resting = False
        self._checked = -1
        self._weight = GroupWeight([], 0, check_codecs=lambda: None)
        self._known_forms: list[Form] | None = None
        self._group = -1
        self._step = 0
        self._next = 0
        self._batches: Iterator[Any] = iter(())
        self._left: Any = None

    def group_rows(self) -> list[int]:
        meta = self._meta
        return [meta.row_group(g).num_rows for g in range(meta.num_row_groups)]

    def bounds(self, column: str) -> list[tuple[int, int] | None]:
        """Of each row group, the least and the greatest number in a column, where the footer says."""
        meta = self._meta
        at = next((c for c, leaf in self._leaves if leaf.path == column), None)
        found: list[tuple[int, int] | None] = []
        for group in range(meta.num_row_groups if at is not None else 0):
            told = meta.row_group(group).column(at).statistics
            whole = told is not None and told.has_min_max and not told.null_count and type(told.min) is int
            found.append((told.min, told.max) if whole else None)
        return found

    @property
    def names(self) -> list[str]:
        """The columns of the file."""
        return list(self._names)

    def group_bytes(self, group: int) -> int:
        """Of the columns that are read, as they lie in the file."""
        found = self._meta.row_group(group)
        return sum(found.column(c).total_compressed_size for c, _ in self._leaves)

    def only(self, columns: list[str]) -> None:
        """From here on no other columns are read."""
        self.columns = columns
        self._leaves = [(c, leaf) for c, leaf in self._leaves if _is_read(leaf, columns)]
        self._dictionaries = [name for name in self._dictionaries if name in columns]
        self._checked, self._known_forms = -1, None

    def read(self, chunk: Chunk) -> Any:
        """The rows of a chunk in file order, as one RecordBatch."""
        if self._path is None:
            return self._read(chunk)
        with in_use(self):
            return self._read(chunk)

    def rest(self) -> None:
        """Keep no file open until the next read."""
        if not self._is_resting:
            self._is_resting = True
            self._close_files()

    def wake(self) -> None:
        if not self._is_resting:
            return
        assert self._plain is not None
        try:
            self._plain = PlainFile(self._plain.path, label=self._plain.label, signature=self._plain.signature)
            self._file = self._open(self._meta, self._dictionaries)
        except HeadraceError:
            self._let_go()
            raise
        except _arrow_errors() as error:
            self._let_go()
            raise DataError(f"{self.shard} cannot be opened again: {said(error)}; {AGAIN}") from error
        self._is_resting = False

    def _read(self, chunk: Chunk) -> Any:
        memory = MemoryUse()
        try:
            self._check_group(chunk.group)
            memory.change(self._weigh(chunk))
            batch = self._batch(chunk)
            check_dictionaries(batch)
        except BaseException as error:
            self._group = -1
            if self._ranges is not None and (cause := self._ranges.taken_error()) is not None:
                raise cause from None
            if isinstance(error, HeadraceError) or not isinstance(error, _arrow_errors()):
                raise
            self._check_plain()
            raise self._explained(chunk.group, error) from error
        finally:
            memory.release()
        self._check_plain()
        if batch.num_rows != chunk.rows:
            at = _offset(self._file.metadata, chunk.group, 0)
            raise DataError(
                f"{self.shard}, row group {chunk.group} at offset {at}: {batch.num_rows} rows were read where "
                f"{chunk.rows} are declared; it is damaged: {AGAIN}"
            )
        return batch

    def close(self) -> None:
        forget(self)
        self._close_files()

    def _end_pass(self) -> None:
        self._batches, self._left, self._group = iter(()), None, -1
        if self._pages is not None:
            self._pages.close(force=True)
            self._pages = None

    def _close_files(self) -> None:
        self._end_pass()
        self._file.close(force=True)
        self._let_go()

    def _let_go(self) -> None:
        if self._plain is not None:
            self._plain.close()

    def _check_plain(self) -> None:
        if self._plain is not None:
            self._plain.check_content()

    def _open_checked(self) -> tuple[Any, Any]:
        """The file, once its footer is known to be sound, and that footer."""
        shard = self.shard
        footer = footer_bytes(shard, None if self._plain is None else self._plain.read_bytes)
        meta = parse_footer(shard, footer, sound=self._digest)
        try:
            found = list(enumerate(leaves(shard, meta)))
            self._leaves = [(c, leaf) for c, leaf in found if _is_read(leaf, self.columns)]
            self._dictionaries = _dictionaries(meta, self._leaves)
            file = self._open(meta, self._dictionaries)
        except HeadraceError:
            raise
        except _arrow_errors() as error:
            self._check_plain()
            raise DataError(f"{shard}: its footer cannot be read: {said(error)}; it is damaged: {AGAIN}") from error
        return file, meta

    def _open(self, meta: Any, dictionaries: list[str], buffer_size: int = 0) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        # Not mapped into memory: a file that shrinks under a map is a SIGBUS.
        if self._path is None:
            self._ranges = _RangeFile(self.shard, self._spans)
            source = pa.PythonFile(self._ranges, mode="r")
        else:
            source = pa.OSFile(os.fsencode(self._plain.open_path if self._plain is not None else self._path))
        return pq.ParquetFile(
            source,
            metadata=meta,
            read_dictionary=dictionaries or None,
            pre_buffer=False,
            buffer_size=buffer_size,
            page_checksum_verification=True,
        )

    def _by_pages(self) -> Any:
        """The file again, read page by page: without a buffer pyarrow holds the whole row group, slices or not."""
        if self._pages is None and self._path is not None:
            self._pages = self._open(self._file.metadata, self._dictionaries, buffer_size=PAGES)
        return self._pages or self._file

    def _batch(self, chunk: Chunk) -> Any:
        if chunk.skip == 0 and chunk.rows >= self._file.metadata.row_group(chunk.group).num_rows:
            return _one_batch(self._file.read_row_group(chunk.group, columns=self.columns, use_threads=False))
        return self._slice(chunk)

    def _check_group(self, group: int) -> None:
        """What is read of a row group lies inside the file, has a value for each row, and is no bomb."""
        if group == self._checked:
            return
        found, size = self._meta.row_group(group), self.shard.size
        packed = plain = 0
        columns, spans = [found.column(c) for c, _ in self._leaves], []
        for (_, leaf), column in zip(self._leaves, columns, strict=True):
            check_num_values(self.shard, leaf, group, column.num_values, found.num_rows)
            start = column.dictionary_page_offset or column.data_page_offset
            stop = start + column.total_compressed_size
            if not 0 <= start <= stop <= size:
                raise DataError(
                    f"{self.shard}: column {shown(leaf.path)!r} of row group {group} claims bytes {start} to {stop} of "
                    f"a file of {size}; it is damaged: {AGAIN}"
                )
            spans.append((start, stop))
            packed += column.total_compressed_size
            plain += column.total_uncompressed_size
        if plain > max(MAX_RATIO * packed, MIN_CAP):
            raise DataError(
                f"{self.shard}: the {packed:,} bytes of row group {group} decompress to {plain:,}, which looks like a "
                f"bomb; if they should, write the file with smaller row groups, or leave a column out: "
                f"headrace.rows(..., columns=[...])"
            )
        if self._path is None:
            self._spans[:] = [(start, self.shard.origin.read(self.shard, start, stop)) for start, stop in merged(spans)]
        read = Window(self._bytes)
        pairs = zip(self._forms, columns, strict=True)
        check = partial(require_codecs, self._meta, group, self.columns)
        weights = [ColumnWeight(form, read, column) for form, column in pairs]
        self._weight = GroupWeight(weights, self._budget.nbytes // 2, check)
        self._checked = group

    @property
    def _forms(self) -> list[Form]:
        """Of the columns that are read."""
        if self._known_forms is None:
            kinds = {field.name: field.type for field in self._file.schema_arrow}
            schema = self._meta.schema
            self._known_forms = [
                Form(leaf, schema.column(c), kinds[top_of(leaf.path, kinds)]) for c, leaf in self._leaves
            ]
        return self._known_forms

    def _bytes(self, start: int, stop: int) -> bytes:
        """Of the file, as far as it goes."""
        stop = min(stop, self.shard.size)
        if self._plain is not None:
            return self._plain.read_bytes(start, stop)
        return span_bytes(self._spans, start, stop) or self.shard.origin.read(self.shard, start, stop)

    def _weigh(self, chunk: Chunk) -> int:
        """What a chunk may take in memory. Where that is too much, values are left in their dictionaries."""
        preferred, heaviest = self._budget.preferred(), 0
        for rows in self._decoded_for(chunk):
            try:
                parts = self._weight.of(rows, preferred)
            except Malformed as error:
                self._check_plain()
                raise self._damaged(chunk.group, error) from error
            chosen, total = to_be_coded(parts, set(self._dictionaries), preferred)
            if total > preferred and total > (most := self._budget.most(total)):
                raise self._too_heavy(chunk.group, rows.num_rows, parts, total, most)
            if chosen:
                self._read_coded(chosen)
            heaviest = max(heaviest, kept_of(parts, self._dictionaries))
        return heaviest

    def _damaged(self, group: int, error: Malformed) -> DataError:
        column = self._weight.at
        assert column is not None
        return DataError(
            f"{self.shard}, row group {group}, column {shown(column.leaf.path)!r} at offset {column.offset}: it is "
            f"damaged: {error}; {AGAIN}"
        )

    def _decoded_for(self, chunk: Chunk) -> Iterator[Rows]:
        """The rows that are decoded to get at a chunk, in one go after another."""
        rows = self._meta.row_group(chunk.group).num_rows
        if chunk.skip == 0 and chunk.rows >= rows:
            yield Rows(0, rows, is_slice=False)
            return
        is_next = chunk.group == self._group and chunk.skip >= self._next
        step = self._step if is_next else chunk.rows
        for first in range(self._next // step * step if is_next else 0, chunk.skip + chunk.rows, step):
            yield Rows(first, min(step, rows - first), is_slice=True)

    def _read_coded(self, paths: set[str]) -> None:
        """From here on the values of these columns stay in dictionaries."""
        self._dictionaries = sorted({*self._dictionaries, *paths})
        self._end_pass()
        self._file.close(force=True)
        self._file = self._open(self._meta, self._dictionaries)

    def _too_heavy(self, group: int, rows: int, parts: list[Part], total: int, most: int) -> NoRoom:
        worst = max(parts, key=lambda part: min(part.plain, part.coded))
        return NoRoom(
            f"{self.shard}, row group {group}, column {shown(worst.path)!r}: {rows:,} rows take up to {total:,} bytes "
            f"in memory, {min(worst.plain, worst.coded):,} of them this column, and they may take {max(most, 0):,}: "
            f"other chunks hold {self._budget.in_use():,} and the budget is {self._budget.nbytes:,} "
            f"(HEADRACE_MEMORY_BYTES). Raise it, "
            f"lower pool_chunks, leave the column out (columns=[...]), or write the file with smaller row groups"
        )

    def _explained(self, group: int, error: Exception) -> DataError:
        """pyarrow's error with the file and the place in front: where it can be found out, the column."""
        import pyarrow as pa

        name, error = self._culprit(group, error)
        first = next((c for c, leaf in self._leaves if name is None or _is_read(leaf, [name])), 0)
        what, todo = "it is damaged", AGAIN
        if isinstance(error, pa.ArrowNotImplementedError) or "support" in str(error):
            what, todo = "this pyarrow cannot read it", "write it again, with other settings or smaller row groups"
        return DataError(
            f"{self.shard}, row group {group}{'' if name is None else f', column {shown(name)!r}'} at offset "
            f"{_offset(self._file.metadata, group, first)}: {what}: {said(error)}; {todo}"
        )

    def _culprit(self, group: int, error: Exception) -> tuple[str | None, Exception]:
        """The first column that fails by itself, and how."""
        if self._path is None:
            return None, error
        try:
            file = self._open(self._meta, self._dictionaries, buffer_size=PAGES)
            for name in self.columns or self._file.schema_arrow.names:
                for _ in file.iter_batches(FEW_ROWS, row_groups=[group], columns=[name], use_threads=False):
                    pass
        except _arrow_errors() as cause:
            return name, cause
        return None, error

    def _slice(self, chunk: Chunk) -> Any:
        import pyarrow as pa

        if chunk.group != self._group or chunk.skip < self._next:
            self._group, self._next, self._left, self._step = chunk.group, 0, None, chunk.rows
            # The dataset's own slice length would do too; batches are cut to what is asked for below.
            self._batches = self._by_pages().iter_batches(
                chunk.rows, row_groups=[chunk.group], columns=self.columns, use_threads=False
            )
        parts, skip, need = [], chunk.skip - self._next, chunk.rows
        while need:
            batch = self._left if self._left is not None else next(self._batches, None)
            self._left = None
            if batch is None:
                break
            passed = min(skip, batch.num_rows)
            skip -= passed
            self._next += passed
            batch = batch.slice(passed)
            if batch.num_rows:
                part = batch.slice(0, need)
                parts.append(part)
                need -= part.num_rows
                self._next += part.num_rows
                if part.num_rows < batch.num_rows:
                    self._left = batch.slice(part.num_rows)
        return _one_batch(pa.Table.from_batches(parts)) if parts else pa.RecordBatch.from_pylist([])


class _RangeFile(FileLike):
    """A shard that is not on disk as a file that can be read from."""

    def __init__(self, shard: Shard, spans: list[tuple[int, bytes]]) -> None:
        """`spans`: what was already read of it."""
        super().__init__(shard.size)
        self._shard, self._spans = shard, spans
        self._error: BaseException | None = None

    def taken_error(self) -> BaseException | None:
        """What went wrong in a read, once."""
        error, self._error = self._error, None
        return error

    def read(self, size: int = -1) -> bytes:
        stop = self.size if size < 0 else min(self.at + size, self.size)
        try:
            data = span_bytes(self._spans, self.at, stop)
            if len(data) < stop - self.at:
                data += self._shard.origin.read(self._shard, self.at + len(data), stop)
        except BaseException as error:
            # Kept, not raised: pyarrow never lets go of an exception that passed through it. It notices missing bytes.
            self._error = error
            return b""
        self.at += len(data)
        return data


def _is_read(leaf: Leaf, columns: list[str] | None) -> bool:
    return columns is None or any(leaf.path == name or leaf.path.startswith(f"{name}.") for name in columns)


def _one_batch(table: Any) -> Any:
    import pyarrow as pa

    batches = table.to_batches()
    if len(batches) > 1:
        batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise pa.ArrowNotImplementedError("a column of these rows has more than 2 GiB")
    found = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
    return without_views(as_stored(found))


def _dictionaries(meta: Any, read: list[tuple[int, Leaf]]) -> list[str]:
    """Top-level text columns that are dictionaries throughout the row groups looked at."""
    if not meta.num_row_groups:
        return []
    names = []
    groups = [meta.row_group(g) for g in sorted({0, meta.num_row_groups // 2, meta.num_row_groups - 1})]
    for c, leaf in read:
        columns = [g.column(c) for g in groups]
        if (
            "." not in leaf.path
            and columns[0].physical_type == "BYTE_ARRAY"
            and all(x.has_dictionary_page for x in columns)
            and all(x.total_uncompressed_size <= DICTIONARY_BYTES * max(x.num_values, 1) for x in columns)
        ):
            names.append(leaf.path)
    return names


def merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Places in a file to be read by few requests: those that nearly touch are one, up to a size."""
    out: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if out and start - out[-1][1] <= HOLE and stop - out[-1][0] <= LARGEST_SPAN:
            out[-1] = (out[-1][0], max(stop, out[-1][1]))
        else:
            out.append((start, stop))
    return out


def span_bytes(spans: list[tuple[int, bytes]], start: int, stop: int) -> bytes:
    """The bytes of a file from one place to another, as far as the span has them that the first is in."""
    for at, data in spans:
        if at <= start < at + len(data):
            return data[start - at : stop - at]
    return b""


def _offset(meta: Any, group: int, c: int) -> int:
    found = meta.row_group(group)
    if c >= meta.num_columns:
        return 0
    column = found.column(c)
    return int(column.dictionary_page_offset or column.data_page_offset)


def _arrow_errors() -> tuple[type[Exception], ...]:
    """What pyarrow raises on data that is not what it says it is."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, LookupError)
