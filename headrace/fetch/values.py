"""Arrow columns to Python values, by whole columns."""

from __future__ import annotations

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


def give_back_memory() -> None:
    """Have Arrow return what a pool of chunks took; its allocator would keep it for a while."""
    import sys

    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
