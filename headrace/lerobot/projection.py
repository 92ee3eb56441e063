"""Some columns of a whole parquet file, in memory. Remote files are read by few requests, each as small as pays."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.catalog.filelike import FileLike
from headrace.catalog.footer import Leaf, check_num_values, footer_bytes, leaves, parse_footer, top_of
from headrace.catalog.shard import Origin, Shard
from headrace.catalog.soundness import AGAIN, require_codecs, said
from headrace.catalog.stored import as_stored, stored_schema
from headrace.catalog.threads import Threads
from headrace.catalog.thrift import Malformed
from headrace.errors import DataError, HeadraceError, shown
from headrace.fetch.parquet import span_bytes
from headrace.fetch.python_size import python_bytes
from headrace.fetch.weight import ColumnWeight, Form, GroupWeight, Rows, kept_of, total_of
from headrace.limits import starting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.rng import I64

WHOLE = 1 << 20
"""A file up to this size is read by one request."""
HOLE = 512 << 10
"""So many bytes that are not needed are read too, rather than to ask twice."""
LOCAL_HOLE = 64 << 10
PIECE = 1 << 20
"""Row groups are read together up to so many bytes."""
AHEAD = 8
"""Such pieces of a remote file that are on their way..."""
READERS = 8
"""...by so many requests at a time."""
MARGIN = 128
"""pyarrow reads a little more of files by some old writers."""
LENGTHS = {"DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"}
MOST_ROWS = 5_000_000
MOST_BYTES = 2 << 30
"""In memory, of the columns that are read, however much there is of it."""


class Allowance:
    """What several files may take in memory together, of the columns that are read."""

    def __init__(self, memory_bytes: int) -> None:
        self.nbytes = self.left = min(memory_bytes, MOST_BYTES)

    def fits_python(self, columns: list[Any]) -> bool:
        """Whether columns, given in chunks, may become Python values all at once."""
        return sum(python_bytes(chunk) for column in columns for chunk in column.chunks) <= self.left

    def check_python(self, columns: Mapping[str, Any], where: str) -> None:
        """Refuse columns, given in chunks, that would be too much as Python values."""
        sizes = {name: sum(map(python_bytes, column.chunks)) for name, column in columns.items()}
        if (total := sum(sizes.values())) > self.left:
            worst = max(sizes, key=sizes.__getitem__)
            others = f" and {len(sizes) - 1} others" if len(sizes) > 1 else ""
            raise DataError(
                f"{where}, column {shown(worst)!r}{others}: what is asked for takes about {total:,} bytes as Python "
                f"values, {sizes[worst]:,} of them this column, and all metadata may take {self.nbytes:,} "
                f"(HEADRACE_MEMORY_BYTES), of which {self.left:,} are left; raise it, ask for single "
                f"columns or rows, or write the files with shorter values"
            )


def read_columns(shard: Shard, choose: Callable[[Any], list[str]], allowance: Allowance) -> Any:
    """The rows of a file as a pyarrow Table with the columns that `choose` takes of its schema."""
    import pyarrow as pa

    if shard.size <= WHOLE:
        data = shard.origin.read(shard, 0, shard.size)
        shard = replace(shard, origin=_Held(shard.origin.name, data))
    meta = parse_footer(shard, footer_bytes(shard))
    try:
        schema = stored_schema(meta.schema.to_arrow_schema())
        columns = choose(schema)
        parts = []
        wanted = [(c, leaf) for c, leaf in enumerate(leaves(shard, meta)) if top_of(leaf.path, columns) in columns]
        sizes = _Sizes(shard, meta, wanted, allowance)
        for piece, spans in _fetched(shard, list(_pieces(shard, meta, wanted))):
            sizes.check(piece.groups, spans)
            parts.append(_parse(meta, piece.groups, spans, columns, sizes.texts))
        return pa.concat_tables(parts) if parts else pa.Table.from_batches([], schema).select(columns)
    except HeadraceError:
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        raise DataError(f"{shard}: its rows cannot be read: {said(error)}; it is damaged: {AGAIN}") from error


class _Piece(NamedTuple):
    groups: list[int]
    spans: list[tuple[int, int]]


@dataclass(frozen=True)
class _Held(Origin):
    """A file whose bytes are here."""

    name: str
    data: bytes = field(repr=False)
    folder: tuple[str, ...] | None = None

    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        return self.data[start:stop]

    def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
        yield self.data[start:]


class _Spans(FileLike):
    """A file of which some places are known. What lies elsewhere is not there, which pyarrow notices."""

    def __init__(self, spans: list[tuple[int, bytes]]) -> None:
        super().__init__(1 << 62)
        self._spans = sorted(spans)
        self._starts = [start for start, _ in self._spans]

    def read(self, size: int = -1) -> bytes:
        place = bisect_right(self._starts, self.at) - 1
        if place < 0:
            return b""
        start, data = self._spans[place]
        found = data[self.at - start : self.at - start + max(size, 0)]
        self.at += len(found)
        return found


class _Sizes:
    """What the columns that are read become in memory. Texts stay in dictionaries: one that comes again in a million
    rows is not made a million times."""

    def __init__(self, shard: Shard, meta: Any, wanted: list[tuple[int, Leaf]], allowance: Allowance) -> None:
        self._shard, self._meta, self._wanted, self._allowance = shard, meta, wanted, allowance
        schema, kinds = meta.schema, {field.name: field.type for field in meta.schema.to_arrow_schema()}
        self._forms = [Form(leaf, schema.column(c), kinds[top_of(leaf.path, kinds)]) for c, leaf in wanted]
        self.texts = [
            leaf.path
            for (c, leaf), form in zip(wanted, self._forms, strict=True)
            if form.can_be_coded and self._can_stay_coded(c)
        ]

    def _can_stay_coded(self, c: int) -> bool:
        """Whether pyarrow can leave the values of a column in dictionaries in all row groups."""
        groups = (self._meta.row_group(g) for g in range(self._meta.num_row_groups))
        return all(LENGTHS.isdisjoint(group.column(c).encodings) for group in groups)

    def check(self, groups: list[int], spans: list[tuple[int, bytes]]) -> None:
        """Count what these row groups take, and refuse them where all that was read would be too much."""
        for group in groups:
            found = self._meta.row_group(group)
            columns = [
                ColumnWeight(form, partial(span_bytes, spans), found.column(c))
                for form, (c, _) in zip(self._forms, self._wanted, strict=True)
            ]
            weight = GroupWeight(columns, self._allowance.nbytes, partial(require_codecs, self._meta, group, None))
            try:
                parts = weight.of(Rows(0, found.num_rows, is_slice=False), self._allowance.left)
            except Malformed as error:
                name = "" if weight.at is None else f", column {shown(weight.at.leaf.path)!r}"
                raise DataError(f"{self._shard}, row group {group}{name}: it is damaged: {error}; {AGAIN}") from error
            if (total := total_of(parts, self.texts)) > self._allowance.left:
                worst = max(parts, key=lambda part: part.coded)
                raise DataError(
                    f"{self._shard}, row group {group}, column {shown(worst.path)!r}: its rows take up to {total:,} "
                    f"bytes in memory, {worst.coded:,} of them this column, and all metadata may take "
                    f"{self._allowance.nbytes:,} (HEADRACE_MEMORY_BYTES), of which {self._allowance.left:,} are left; "
                    f"raise it, or write the files with shorter values"
                )
            self._allowance.left -= kept_of(parts, self.texts)


def _pieces(shard: Shard, meta: Any, wanted: list[tuple[int, Leaf]]) -> Iterator[_Piece]:
    """Row groups that are read together, and the places in the file that hold their columns."""
    if meta.num_rows > MOST_ROWS:
        raise DataError(
            f"{shard} says it has {meta.num_rows:,} rows, more than the {MOST_ROWS:,} that are read of such a file"
        )
    hole = HOLE if shard.origin.local_path(shard) is None else LOCAL_HOLE
    groups: list[int] = []
    spans: list[tuple[int, int]] = []
    plain = 0
    for g in range(meta.num_row_groups):
        found = meta.row_group(g)
        for c, leaf in wanted:
            column = found.column(c)
            check_num_values(shard, leaf, g, column.num_values, found.num_rows)
            start = column.dictionary_page_offset or column.data_page_offset
            stop = start + column.total_compressed_size
            plain += column.total_uncompressed_size
            if not 0 <= start <= stop <= shard.size or plain > MOST_BYTES:
                raise DataError(
                    f"{shard}: column {shown(leaf.path)!r} of row group {g} claims bytes {start} to {stop} of a file "
                    f"of {shard.size}, and {plain:,} in memory; it is damaged: {AGAIN}"
                )
            spans.append((start, min(stop + MARGIN, shard.size)))
        groups.append(g)
        spans = _merged(spans, hole)
        if sum(stop - start for start, stop in spans) >= PIECE:
            yield _Piece(groups, spans)
            groups, spans = [], []
    if groups:
        yield _Piece(groups, spans)


def _merged(spans: list[tuple[int, int]], hole: int) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if out and start - out[-1][1] <= hole:
            out[-1] = (out[-1][0], max(stop, out[-1][1]))
        else:
            out.append((start, stop))
    return out


def _fetched(shard: Shard, pieces: list[_Piece]) -> Iterator[tuple[_Piece, list[tuple[int, bytes]]]]:
    """The pieces in order with their bytes; those of the next ones are on their way."""

    def read(span: tuple[int, int]) -> tuple[int, bytes]:
        return span[0], shard.origin.read(shard, *span)

    if isinstance(shard.origin, _Held) or shard.origin.local_path(shard) is not None:
        for piece in pieces:
            yield piece, [read(span) for span in piece.spans]
        return
    with starting("threads that read metadata"), Threads(READERS, "headrace-meta") as threads:
        waiting: deque[list[Future[tuple[int, bytes]]]] = deque()
        for k, piece in enumerate(pieces):
            for later in pieces[k + len(waiting) : k + AHEAD]:
                waiting.append([threads.submit(read, span) for span in later.spans])
            yield piece, [future.result() for future in waiting.popleft()]


def _parse(meta: Any, groups: list[int], spans: list[tuple[int, bytes]], columns: list[str], texts: list[str]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(
        pa.PythonFile(_Spans(spans), mode="r"),
        metadata=meta,
        read_dictionary=texts,
        pre_buffer=False,
        page_checksum_verification=True,
    )
    # One by one: pyarrow cannot put dictionaries inside lists together that come from several row groups.
    return as_stored(pa.concat_tables([file.read_row_group(g, columns=columns, use_threads=False) for g in groups]))


def texts(table: Any, column: str) -> list[str]:
    """A column of texts; null is no text."""
    import pyarrow as pa

    out: list[str] = []
    for chunk in table.column(column).chunks:
        if pa.types.is_dictionary(chunk.type):
            checked = pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary)
            words = checked.dictionary.to_pylist()
            out += ["" if i is None else words[i] or "" for i in checked.indices.to_pylist()]
        else:
            out += [word or "" for word in chunk.to_pylist()]
    return out


def whole_numbers(table: Any, column: str, where: str) -> I64:
    """A column as int64."""
    import numpy as np

    values = _numbers(table, column, where)
    if values.dtype.kind == "f" and not ((values == np.rint(values)) & (abs(values) < 2**53)).all():
        raise DataError(f"{where}: column {shown(column)!r} holds numbers that are not whole")
    if values.dtype == np.uint64 and (values >= 2**63).any():
        raise DataError(f"{where}: column {shown(column)!r} holds numbers of more than 63 bits")
    return values.astype(np.int64, copy=False)  # type: ignore[no-any-return]


def real_numbers(table: Any, column: str, where: str) -> NDArray[np.float64]:
    """A column as float64."""
    import numpy as np

    return _numbers(table, column, where).astype(np.float64, copy=False)  # type: ignore[no-any-return]


def _numbers(table: Any, column: str, where: str) -> Any:
    """As they lie in memory: to have pyarrow convert them is to load pandas."""
    import numpy as np
    import pyarrow as pa

    out = []
    for chunk in table.column(column).chunks:
        found = chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk
        kind = found.type
        if not pa.types.is_integer(kind) and not pa.types.is_floating(kind):
            raise DataError(f"{where}: column {shown(column)!r} holds {shown(kind)}, where numbers are expected")
        if found.null_count:
            raise DataError(
                f"{where}: column {shown(column)!r} has {found.null_count:,} nulls, where each episode has a number"
            )
        letter = "f" if pa.types.is_floating(kind) else "u" if pa.types.is_unsigned_integer(kind) else "i"
        values = np.frombuffer(found.buffers()[1] or b"", dtype=f"{letter}{kind.bit_width // 8}")
        out.append(values[found.offset : found.offset + len(found)])
    return np.concatenate(out) if out else np.zeros(0, dtype=np.int64)
