"""Chunks of parquet files: a row group, or the next slice of a large one. Opened by seeking, on disk or by range."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.catalog.footer import footer_bytes, parse_footer
from headrace.catalog.local import LocalOrigin, open_listed
from headrace.catalog.shard import Shard
from headrace.errors import Changed, DataError, HeadraceError, shown
from headrace.fetch.plan import Chunk

DICTIONARY_BYTES = 8
"""A dictionary column with no more bytes per value is read as one: the footer counts each of its values only once."""


class ParquetReader:
    """The chunks of one shard. Slices of a large row group are served by one pass while they are asked for in order."""

    def __init__(self, shard: Shard, path: Path | None, columns: list[str] | None) -> None:
        """`path`: the shard on disk; None: its bytes are read by range from where it lies."""
        self.shard, self.columns = shard, columns
        meta = None
        if path is None:
            meta = parse_footer(shard, footer_bytes(shard))
        with _explained(shard, "its footer"):
            self._file = self._open(path, meta, [])
            names = _dictionaries(self._file.metadata)
            if names:
                self._file.close(force=True)
                self._file = self._open(path, meta or self._file.metadata, names)
        self._group = -1
        self._next = 0
        self._batches: Iterator[Any] = iter(())
        self._left: Any = None

    def read(self, chunk: Chunk) -> Any:
        """The rows of a chunk in file order, as one RecordBatch."""
        meta = self._file.metadata
        if chunk.group >= meta.num_row_groups:
            raise Changed(f"{self.shard} has {meta.num_row_groups} row groups; the index says there are more")
        where = f"row group {chunk.group} at offset {_offset(meta, chunk.group)}"
        _check_inside(self.shard, meta, chunk.group)
        with _explained(self.shard, where):
            if chunk.skip == 0 and chunk.rows >= meta.row_group(chunk.group).num_rows:
                batch = _one_batch(self._file.read_row_group(chunk.group, columns=self.columns, use_threads=False))
            else:
                batch = self._slice(chunk)
        if batch.num_rows != chunk.rows:
            raise DataError(f"{self.shard}, {where}: {batch.num_rows} rows were read where {chunk.rows} are declared")
        return batch

    def close(self) -> None:
        self._batches, self._left = iter(()), None
        self._file.close(force=True)

    def _open(self, path: Path | None, meta: Any, dictionaries: list[str]) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if path is None:
            source = pa.PythonFile(_RangeFile(self.shard), mode="r")
        else:
            # Not mapped into memory: a file that shrinks under a map is a SIGBUS.
            source = pa.OSFile(str(path))
            if isinstance(self.shard.origin, LocalOrigin):
                open_listed(self.shard).close()
        return pq.ParquetFile(
            source,
            metadata=meta,
            read_dictionary=dictionaries or None,
            pre_buffer=path is None,
            page_checksum_verification=True,
        )

    def _slice(self, chunk: Chunk) -> Any:
        import pyarrow as pa

        if chunk.group != self._group or chunk.skip < self._next:
            self._group, self._next, self._left = chunk.group, 0, None
            # The dataset's own slice length would do too; batches are cut to what is asked for below.
            self._batches = self._file.iter_batches(
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


class _RangeFile(io.RawIOBase):
    """A shard that is not on disk as a file that can be read from."""

    def __init__(self, shard: Shard) -> None:
        self._shard, self._at = shard, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (self._at if whence == 1 else self._shard.size if whence == 2 else 0)
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._shard.size if size < 0 else min(self._at + size, self._shard.size)
        data = self._shard.origin.read(self._shard, self._at, stop) if stop > self._at else b""
        self._at += len(data)
        return data


def _one_batch(table: Any) -> Any:
    import pyarrow as pa

    batches = table.to_batches()
    if len(batches) > 1:
        batches = table.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    return pa.RecordBatch.from_pylist([], schema=table.schema)


def _dictionaries(meta: Any) -> list[str]:
    """Top-level text columns that are dictionaries throughout the row groups looked at."""
    if not meta.num_row_groups:
        return []
    names = []
    groups = [meta.row_group(g) for g in sorted({0, meta.num_row_groups // 2, meta.num_row_groups - 1})]
    for c in range(meta.num_columns):
        columns = [g.column(c) for g in groups]
        if (
            "." not in columns[0].path_in_schema
            and columns[0].physical_type == "BYTE_ARRAY"
            and all(x.has_dictionary_page for x in columns)
            and all(x.total_uncompressed_size <= DICTIONARY_BYTES * max(x.num_values, 1) for x in columns)
        ):
            names.append(columns[0].path_in_schema)
    return names


def _offset(meta: Any, group: int) -> int:
    found = meta.row_group(group)
    if not found.num_columns:
        return 0
    first = found.column(0)
    return int(first.dictionary_page_offset or first.data_page_offset)


def _check_inside(shard: Shard, meta: Any, group: int) -> None:
    found = meta.row_group(group)
    for c in range(found.num_columns):
        column = found.column(c)
        start = column.dictionary_page_offset or column.data_page_offset
        if start < 0 or column.total_compressed_size < 0 or start + column.total_compressed_size > shard.size:
            raise DataError(
                f"{shard}: column {shown(column.path_in_schema)!r} of row group {group} claims bytes "
                f"{start} to {start + column.total_compressed_size} of a file of {shard.size}; it is damaged"
            )


class _explained:
    """What pyarrow says, with the file and the place in front."""

    def __init__(self, shard: Shard, where: str) -> None:
        self.shard, self.where = shard, where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, tb: Any) -> None:
        import pyarrow as pa

        if error is None or isinstance(error, HeadraceError):
            return
        if isinstance(error, pa.ArrowNotImplementedError):
            raise DataError(f"{self.shard}, {self.where}: this pyarrow cannot read it: {shown(error)}") from error
        if isinstance(error, pa.ArrowException | OSError | ValueError | UnicodeDecodeError):
            raise DataError(f"{self.shard}, {self.where}: damaged, or changed while reading: {shown(error)}") from error
