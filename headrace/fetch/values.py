"""Arrow columns to Python values, by whole columns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.rng import I64

FEW_WORDS, FEW_BYTES = 4, 1 << 20
"""A dictionary of no more than so many times the values that are wanted, and so many bytes, becomes Python values as a
whole."""

# Neither function goes by way of `pa.array(numpy)` or `to_numpy`: pyarrow imports pandas for these, where it is
# installed, which costs a quarter of a second and 43 MB and is no faster.


def taken(data: Any, order: I64) -> Any:
    """The rows of an Arrow batch or table by their numbers."""
    import pyarrow as pa

    numbers = pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])
    return data.take(numbers)


class Words:
    """Dictionaries of which some values became Python values: one that comes again is the same value.

    Only values that are used are made, so that a bad one harms only the rows that have it.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Any, dict[int | None, Any]]] = {}
        """By where a dictionary lies in memory; each is kept, so that nothing else may lie there."""

    def of(self, column: Any) -> list[Any]:
        """The values of an Arrow array that is a dictionary's."""
        dictionary, numbers = column.dictionary, column.indices.to_pylist()
        places = [None if part is None else part.address for part in dictionary.buffers()]
        place = (*places, dictionary.offset, dictionary.type)
        _, known = self._known.setdefault(place, (dictionary, {None: None}))
        for number in dict.fromkeys(numbers):
            if number not in known:  # one by one: those before a bad one are not made again for the next row
                known[number] = dictionary[number].as_py()
        return [known[number] for number in numbers]


def to_python(column: Any, words: Words | None = None) -> list[Any]:
    """The values of an Arrow array as a list. Nothing is decoded: an image stays a struct of bytes and path.

    A dictionary's values are made once and shared; with `words`, also with what was made with them before.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        return _words(column) if words is None else words.of(column)
    if has_dictionary(column.type):
        return _nested(column, words)
    return column.to_pylist()  # type: ignore[no-any-return]


def few_of(column: Any, rows: Sequence[int]) -> list[Any]:
    """The values of a few rows, as `to_python` gives them: to take rows out of an Arrow array first would be slower."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        numbers, dictionary = [column.indices[i].as_py() for i in rows], column.dictionary
        words = {number: dictionary[number].as_py() for number in {*numbers} - {None}}
        return [words.get(number) for number in numbers]
    if has_dictionary(column.type):
        return to_python(column.take(pa.array(rows, pa.int64())))
    return [column[i].as_py() for i in rows]


def has_dictionary(kind: Any) -> bool:
    """Whether values of a type, or some inside of it, stand in a dictionary."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return True
    return any(has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


def check_dictionaries(batch: Any) -> None:
    """pyarrow does not look whether the values it reads are in their dictionary, except when it puts one together."""
    import pyarrow as pa

    waiting = [batch.column(i) for i, kind in enumerate(batch.schema.types) if has_dictionary(kind)]
    while waiting and batch.num_rows:
        column = waiting.pop()
        if pa.types.is_dictionary(column.type):
            pa.DictionaryArray.from_arrays(column.indices, column.dictionary)
        else:
            waiting += [part for part in _inside(column) if has_dictionary(part.type)]


def are_few(dictionary: Any, wanted: int) -> bool:
    """Whether all of a dictionary's values may be made where some are wanted, without a look at which."""
    return len(dictionary) <= FEW_WORDS * wanted and dictionary.nbytes <= FEW_BYTES


def _words(column: Any) -> list[Any]:
    """Of a dictionary, only what is used becomes Python values, each of them once."""
    indices, dictionary = column.indices, column.dictionary
    if are_few(dictionary, len(indices)):
        words = to_python(dictionary)
        return [None if i is None else words[i] for i in indices.to_pylist()]
    used = indices.unique().drop_null()
    found = dict(zip(used.to_pylist(), to_python(dictionary.take(used)), strict=True))
    found[None] = None
    return [found[i] for i in indices.to_pylist()]


def _inside(column: Any) -> list[Any]:
    """The arrays that a nested one is made of, as far as its own rows reach."""
    import pyarrow as pa

    if pa.types.is_struct(column.type):
        return [column.field(i) for i in range(column.type.num_fields)]
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
        return [column.values.slice(column.offset * size, len(column) * size)]
    edges = column.offsets
    first, last = edges[0].as_py(), edges[len(column)].as_py()
    parts = [column.keys, column.items] if pa.types.is_map(column.type) else [column.values]
    return [part.slice(first, last - first) for part in parts]


def _nested(column: Any, words: Words | None) -> list[Any]:
    """Rows of a nested column, as `to_pylist` gives them, with values out of dictionaries shared."""
    import pyarrow as pa

    inside = [to_python(part, words) for part in _inside(column)]
    found: list[Any]
    if pa.types.is_struct(column.type):
        names = [field.name for field in column.type]
        found = [dict(zip(names, values, strict=True)) for values in zip(*inside, strict=True)]
    else:
        values = list(zip(*inside, strict=True)) if pa.types.is_map(column.type) else inside[0]
        if pa.types.is_fixed_size_list(column.type):
            edges = list(range(0, len(values) + 1, column.type.list_size)) or [0]
        else:
            starts = column.offsets.to_pylist()
            edges = [edge - starts[0] for edge in starts]
        found = [values[a:b] for a, b in pairwise(edges)]
    if column.null_count:
        found = [x if valid else None for x, valid in zip(found, column.is_valid().to_pylist(), strict=True)]
    return found


def is_whole(column: Any) -> bool:
    """Whether a column has lists of whole numbers, and no null in them."""
    import pyarrow as pa

    kind = column.type
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return listed and pa.types.is_integer(kind.value_type) and not column.values.null_count


def slices_of(column: Any) -> list[Any]:
    """Lists of whole numbers as int32 arrays, without a Python number made; None where there is no list.

    What does not fit (no list, a null in it, a number out of range) comes as Python values, for the reader to name it.
    """
    import numpy as np
    import pyarrow as pa

    kind = column.type
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not listed or not pa.types.is_integer(kind.value_type) or not len(column):
        return to_python(column)
    wide = np.int64 if pa.types.is_large_list(kind) else np.int32
    edges = np.frombuffer(column.buffers()[1], dtype=wide)[column.offset : column.offset + len(column) + 1]
    inner = column.values.slice(int(edges[0]), int(edges[-1] - edges[0]))
    if inner.null_count:
        return to_python(column)
    if len(inner):
        dtype = np.dtype(kind.value_type.to_pandas_dtype())
        flat = np.frombuffer(inner.buffers()[1], dtype=dtype)[inner.offset : inner.offset + len(inner)]
        if not np.can_cast(dtype, np.int32) and (int(flat.min()) < 0 or int(flat.max()) >= 1 << 31):
            return to_python(column)
        flat = flat.astype(np.int32, copy=False)
    else:
        flat = np.zeros(0, np.int32)
    ends = (edges - edges[0]).tolist()
    found: list[Any] = [flat[a:b] for a, b in pairwise(ends)]
    if column.null_count:
        found = [x if valid else None for x, valid in zip(found, column.is_valid().to_pylist(), strict=True)]
    return found


def give_back_memory() -> None:
    """Have Arrow return what a pool of chunks took; its allocator would keep it for a while."""
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
