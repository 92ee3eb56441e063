"""What Arrow rows take as Python values, from their lengths, before any is made.

A struct of one bit in Arrow is a dict in Python, a thousand times as large, and nothing in the file shows it.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from headrace.fetch.values import FEW_WORDS, is_whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.rng import I64

SLOT = 8
"""Bytes of a place in a list, and of None, True or False."""
NUMBER, OTHER = 32, 104
"""Bytes of a number; of a date, a decimal and whatever else there is."""
TEXT, LIST, TUPLE = 64, 72, 72
"""Bytes of one that is empty."""
DICT, KEY = 176, 48
"""Bytes of a dict that is empty, and of each of its keys."""
TWO_BYTES, FOUR_BYTES = 0xC4, 0xF0
"""A UTF-8 text with a byte from here on has two, or four, bytes for each character in Python."""

Sizes: TypeAlias = "int | I64"
"""Bytes of each value, or of every value."""


class PythonSize(NamedTuple):
    """Of some rows of an Arrow batch."""

    each: Sizes
    """Bytes of each row, without what rows share."""
    shared: int = 0
    """Bytes of the values in dictionaries. Each becomes one Python value, however many rows have it."""
    word: int = 0
    """Bytes of the largest of these; of all, where a row may have many."""

    def with_field(self, other: PythonSize) -> PythonSize:
        """Of rows that have both."""
        return PythonSize(_sum(self.each, other.each), self.shared + other.shared, self.word + other.word)

    def in_lists(self, each: Sizes) -> PythonSize:
        """Of lists of these."""
        return PythonSize(each, self.shared, self.shared)


def python_size(batch: Any, arrays: str | None = None) -> PythonSize:
    """Of a RecordBatch. Estimates are high rather than low. `arrays`: a column that stays out of Python."""
    named = zip(batch.schema.names, batch.columns, strict=True)
    columns = [column for name, column in named if name != arrays or not is_whole(column)]
    return reduce(PythonSize.with_field, map(size_of, columns), PythonSize(0))


def size_of(array: Any) -> PythonSize:
    """Of the values of an Arrow array."""
    import pyarrow as pa

    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return size_of(array.storage).with_field(PythonSize(OTHER))
    if pa.types.is_dictionary(kind):
        return _of_words(array)
    if pa.types.is_struct(kind):
        return _of_structs(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _of_lists(array)
    if pa.types.is_fixed_size_list(kind):
        return _of_fixed_lists(array)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return PythonSize(_plus(_of_texts(array), SLOT + TEXT))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        edges = _edges(array)
        return PythonSize(_plus(edges[1:] - edges[:-1], SLOT + TEXT))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return PythonSize(_plus(_of_views(array), SLOT + TEXT))
    if kind.num_fields:  # lists in views
        inner = array.flatten()
        return PythonSize(SLOT + LIST + python_bytes(inner) // max(len(array), 1))
    return PythonSize(SLOT + _of_plain(kind))


def python_bytes(array: Any) -> int:
    """What all values of an Arrow array take as Python values."""
    size = size_of(array)
    return total(size.each, len(array)) + size.shared


class RowSizes:
    """Rows as Python values, in the order in which a chunk gives them."""

    def __init__(self, size: PythonSize, order: I64) -> None:
        import numpy as np

        self._size, self._order = size, order
        self._each = size.each if isinstance(size.each, int) else size.each[order]
        self._ends: I64 | None = None
        """Bytes of all rows up to each; None where all rows take the same."""
        if not isinstance(self._each, int):
            self._ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._each)])
        self.total = self.bytes_of(0, len(order))

    @property
    def shared(self) -> int:
        """Bytes of what rows share."""
        return self._size.shared

    def bytes_of(self, first: int, count: int) -> int:
        """Of rows [first, first + count) of the order, about, if all are there at once."""
        own = total(self._each, count) if self._ends is None else int(self._ends[first + count] - self._ends[first])
        return own + min(self._size.shared, FEW_WORDS * count * self._size.word)

    def fitting(self, first: int, most: int) -> int:
        """How many rows from `first` on take at most `most` bytes together; at least one."""
        import numpy as np

        left = len(self._order) - first
        if self._size.shared > most // 2:  # a few rows do not use all that is shared, so it counts for each
            left = min(left, most // (FEW_WORDS * self._size.word))
            most //= 2
        elif self._size.shared:
            most -= self._size.shared
        if self._ends is None:
            return max(1, min(left, most // max(total(self._each, 1), 1)))
        return max(1, min(left, int(np.searchsorted(self._ends, self._ends[first] + most, "right")) - 1 - first))

    def over(self, most: int) -> dict[int, int]:
        """Rows that each take more than `most` bytes: their places in the file's order, and their bytes."""
        import numpy as np

        if largest(self._each) + self._size.word <= most:
            return {}
        each = np.broadcast_to(self._each, len(self._order)) + self._size.word
        turns = np.flatnonzero(each > most)
        return dict(zip(self._order[turns].tolist(), each[turns].tolist(), strict=True))


def total(each: Sizes, count: int) -> int:
    return each * count if isinstance(each, int) else int(each.sum())


def largest(each: Sizes) -> int:
    return each if isinstance(each, int) else int(each.max(initial=0))


def _sum(each: Sizes, other: Sizes) -> Sizes:
    import numpy as np

    if isinstance(each, int) and isinstance(other, int):
        return each + other
    found: I64 = np.add(each, other, dtype=np.int64)
    return found


def _plus(lengths: I64, nbytes: int) -> I64:
    """In place: there may be very many."""
    lengths += nbytes
    return lengths


def _of_plain(kind: Any) -> int:
    import pyarrow as pa

    if pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return 0
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return NUMBER
    return TEXT + int(kind.byte_width) if pa.types.is_fixed_size_binary(kind) else OTHER


def _of_words(array: Any) -> PythonSize:
    """Of the values of a dictionary those that become Python values."""
    words = array.dictionary
    if len(words) > FEW_WORDS * len(array):
        words = words.take(array.indices.unique().drop_null())
    size = size_of(words)
    # The numbers of the words become Python values too, for a moment.
    return PythonSize(SLOT + SLOT + NUMBER, size.shared + total(size.each, len(words)), largest(size.each))


def _of_views(array: Any) -> I64:
    """Bytes of the characters of each text, at most. Each has its length in the first 4 of its 16 bytes."""
    import numpy as np
    import pyarrow as pa

    views = np.frombuffer(array.buffers()[1] or b"", np.int32)[4 * array.offset : 4 * (array.offset + len(array)) : 4]
    return views.astype(np.int64) * (4 if pa.types.is_string_view(array.type) else 1)


def _of_structs(array: Any) -> PythonSize:
    count = array.type.num_fields
    return reduce(PythonSize.with_field, map(size_of, map(array.field, range(count))), PythonSize(DICT + KEY * count))


def _of_lists(array: Any) -> PythonSize:
    import pyarrow as pa

    edges = _edges(array)
    first, last = int(edges[0]), int(edges[-1])
    if pa.types.is_map(array.type):
        keys = size_of(array.keys.slice(first, last - first))
        inner = PythonSize(TUPLE).with_field(keys).with_field(size_of(array.items.slice(first, last - first)))
    else:
        inner = size_of(array.values.slice(first, last - first))
    return inner.in_lists(SLOT + LIST + _sums(inner.each, edges - first))


def _of_fixed_lists(array: Any) -> PythonSize:
    length = array.type.list_size
    inner = size_of(array.values.slice(array.offset * length, len(array) * length))
    values = length * inner.each if isinstance(inner.each, int) else inner.each.reshape(len(array), length).sum(axis=1)
    return inner.in_lists(SLOT + LIST + values)


def _sums(each: Sizes, edges: I64) -> I64:
    """What the values from each edge to the next take together."""
    import numpy as np

    if isinstance(each, int):
        found: I64 = np.multiply(edges[1:] - edges[:-1], each, dtype=np.int64)
    else:
        sums = np.zeros(len(each) + 1, np.int64)
        np.cumsum(each, out=sums[1:])
        found = sums[edges[1:]] - sums[edges[:-1]]
    return found


def _of_texts(array: Any) -> I64:
    """Bytes of the characters of each text."""
    import numpy as np

    edges, data = _edges(array), array.buffers()[2]
    lengths = edges[1:] - edges[:-1]
    if data is None or not len(lengths) or edges[0] == edges[-1]:
        return lengths
    text: NDArray[np.uint8] = np.frombuffer(data, np.uint8)[edges[0] : edges[-1]]
    if text.max() < TWO_BYTES:  # one look at all of it, as fast as memory is read
        return lengths
    lengths = lengths.astype(np.int64)
    filled = lengths > 0
    highest = np.maximum.reduceat(text, (edges[:-1] - edges[0])[filled])
    lengths[filled] *= 1 + (highest >= TWO_BYTES) + 2 * (highest >= FOUR_BYTES)
    return lengths


def _edges(array: Any) -> I64:
    """Where the values of an array of texts or lists begin and end: one number more than there are values."""
    import numpy as np
    import pyarrow as pa

    kind = array.type
    is_large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_list(kind)
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.zeros(len(array) + 1, np.int64)
    found = np.frombuffer(data, np.int64 if is_large else np.int32)[array.offset : array.offset + len(array) + 1]
    # There may be as many as there are bytes in the chunk: no copy, unless sums of them would not fit.
    edges: I64 = found if int(found[-1]) < 1 << 30 else found.astype(np.int64)  # type: ignore[assignment]
    return edges
