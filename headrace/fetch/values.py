"""Arrow columns to Python values, by whole columns."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.rng import I64


# Neither function goes by way of `pa.array(numpy)` or `to_numpy`: pyarrow imports pandas for these, where it is
# installed, which costs a quarter of a second and 43 MB and is no faster.


def taken(data: Any, order: I64) -> Any:
    """The rows of an Arrow batch or table by their numbers."""
    import pyarrow as pa

    numbers = pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])
    return data.take(numbers)


def to_python(column: Any) -> list[Any]:
    """The values of an Arrow array as a list. Nothing is decoded: an image stays a struct of bytes and path.

    A dictionary's values are made once and shared.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        values = to_python(column.dictionary)
        return [None if i is None else values[i] for i in column.indices.to_pylist()]
    return column.to_pylist()  # type: ignore[no-any-return]


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
