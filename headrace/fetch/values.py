"""Arrow columns to Python values, by whole columns."""

from __future__ import annotations

from typing import Any


def to_python(column: Any) -> list[Any]:
    """The values of an Arrow array as a list. The same values as `to_pylist`, sooner where the type allows it.

    Nothing is decoded: an image column stays a struct of bytes and path.
    """
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        values = to_python(column.dictionary)
        if column.null_count:
            return [None if i is None else values[i] for i in column.indices.to_pylist()]
        return [values[i] for i in column.indices.to_numpy().tolist()]
    if _is_text(kind) or (not column.null_count and (_is_number(kind) or pa.types.is_boolean(kind))):
        return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    t = pa.types
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_binary(kind) or t.is_large_binary(kind))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))
