"""What Arrow rows take as Python values, from their lengths, before any is made.

A struct of one bit in Arrow is a dict in Python, a thousand times as large, and nothing in the file shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from headrace.fetch.values import FEW_WORDS, are_few, is_whole

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
    word: Sizes = 0
    """Bytes of those of them that each row has, at most."""

    def with_field(self, other: PythonSize) -> PythonSize:
        """Of rows that have both."""
        return PythonSize(_sum(self.each, other.each), self.shared + other.shared, _sum(self.word, other.word))

    def in_lists(self, together: Callable[[Sizes], Sizes]) -> PythonSize:
        """Of lists of these. `together`: what the values of each list take, from what each value takes."""
        import numpy as np

        word = together(self.word) if self.shared else 0
        word = min(word, self.shared) if isinstance(word, int) else np.minimum(word, self.shared)
        return PythonSize(_sum(SLOT + LIST, together(self.each)), self.shared, word)


def python_size(batch: Any, arrays: str | None = None) -> PythonSize:
    """Of a RecordBatch. Estimates are high rather than low. `arrays`: a column that stays out of Python."""
    named = zip(batch.schema.names, batch.columns, strict=True)
    columns = [column for name, column in named if name != arrays or not is_whole(column)]
    return reduce(PythonSize.with_field, map(size_of, columns), PythonSize(0))


def row_bytes(batch: Any, place: int, arrays: str | None = None) -> int:
    """What one row of a RecordBatch takes, with what it alone has of a dictionary."""
    size = python_size(batch.slice(place, 1), arrays)
    return total(size.each, 1) + size.shared


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
        self._size, self._order = size, order
        self._each = size.each if isinstance(size.each, int) else size.each[order]
        self._word = size.word if isinstance(size.word, int) else size.word[order]
        self._ends, self._word_ends = _ends(self._each), _ends(self._word)
        self.total = self.bytes_of(0, len(order))

    @property
    def shared(self) -> int:
        """Bytes of what rows share."""
        return self._size.shared

    def bytes_of(self, first: int, count: int) -> int:
        """Of rows [first, first + count) of the order, about, if all are there at once."""
        words = _between(self._word, self._word_ends, first, count)
        return _between(self._each, self._ends, first, count) + min(self._size.shared, FEW_WORDS * words)

    def fitting(self, first: int, most: int) -> int:
        """How many rows from `first` on take at most `most` bytes together; at least one."""
        left = len(self._order) - first
        if self._size.shared > most // 2:  # a few rows do not use all that is shared, so it counts for each
            left = min(left, _as_many(self._word, self._word_ends, first, most // FEW_WORDS))
            most //= 2
        elif self._size.shared:
            most -= self._size.shared
        return max(1, min(left, _as_many(self._each, self._ends, first, most)))

    def over(self, most: int) -> dict[int, int]:
        """Rows that may each take more than `most` bytes: their places in the file's order, and their bytes."""
        import numpy as np

        if largest(self._each) + largest(self._word) <= most:
            return {}
        each = np.broadcast_to(_sum(self._each, self._word), len(self._order))
        turns = np.flatnonzero(each > most)
        return dict(zip(self._order[turns].tolist(), each[turns].tolist(), strict=True))


def total(each: Sizes, count: int) -> int:
    return each * count if isinstance(each, int) else int(each.sum())


def largest(each: Sizes) -> int:
    return each if isinstance(each, int) else int(each.max(initial=0))


def _ends(each: Sizes) -> I64 | None:
    """Bytes of all rows up to each; None where all rows take the same."""
    import numpy as np

    return None if isinstance(each, int) else np.concatenate([np.zeros(1, np.int64), np.cumsum(each)])


def _between(each: Sizes, ends: I64 | None, first: int, count: int) -> int:
    """Bytes of the rows [first, first + count)."""
    return total(each, count) if ends is None else int(ends[first + count] - ends[first])


def _as_many(each: Sizes, ends: I64 | None, first: int, most: int) -> int:
    """How many rows from `first` on take at most `most` bytes together."""
    import numpy as np

    if ends is None:
        return most // max(total(each, 1), 1)
    return int(np.searchsorted(ends, ends[first] + most, "right")) - 1 - first


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
    used = None if are_few(words, len(array)) else array.indices.unique().drop_null()
    if used is not None and len(words) > FEW_WORDS * len(used):
        words, used = words.take(used), None  # to measure all of them would take longer
    size = size_of(words)
    each = size.each if used is None or isinstance(size.each, int) else size.each[_numbers(used)]
    count = len(words) if used is None else len(used)
    # The numbers of the words become Python values too, for a moment.
    return PythonSize(SLOT + SLOT + NUMBER, size.shared + total(each, count), largest(each) + largest(size.word))


def _numbers(indices: Any) -> I64:
    """Arrow's whole numbers, of which none is null."""
    import numpy as np

    found = np.frombuffer(indices.buffers()[1] or b"", f"{indices.type}")[indices.offset :][: len(indices)]
    return found.astype(np.int64)


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
    return inner.in_lists(lambda each: _sums(each, edges - first))


def _of_fixed_lists(array: Any) -> PythonSize:
    length = array.type.list_size
    inner = size_of(array.values.slice(array.offset * length, len(array) * length))
    return inner.in_lists(
        lambda each: length * each if isinstance(each, int) else each.reshape(len(array), length).sum(axis=1)
    )


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
