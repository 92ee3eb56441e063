"""What values of Arrow columns take once they are Python's, from their counts, before one of them is made."""

from __future__ import annotations

from typing import Any

from headrace.fetch.values import FEW_WORDS

SLOT, NUMBER, TEXT, LIST, OTHER = 8, 32, 60, 64, 200
"""Bytes of a place in a list, of a number, of a text without its characters, of a list, and of what is none of
them, such as a date."""
DICT, FIELD = 168, 48
"""Bytes of a dict, and more for each of its values. An entry of a map counts as one."""
CHARACTER = 4
"""Bytes of what is one byte of a text in the file, at most."""


def python_bytes(array: Any) -> int:
    """About what `to_python` makes of an Arrow array, and needs while it does. What stands in a dictionary is made
    once."""
    import pyarrow as pa

    kind, types = array.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return len(array) * OTHER + python_bytes(array.storage)
    if types.is_dictionary(kind):
        return len(array) * (SLOT + NUMBER + SLOT) + python_bytes(_used(array))
    return len(array) * (SLOT + _each(kind)) + _characters(array) + sum(map(python_bytes, _inside(array)))


def _each(kind: Any) -> int:
    """Bytes of a value of a type, without what is in it."""
    import pyarrow as pa

    types = pa.types
    if types.is_null(kind) or types.is_boolean(kind):
        return 0
    if types.is_integer(kind) or types.is_floating(kind):
        return NUMBER
    if types.is_struct(kind):
        return DICT + FIELD * int(kind.num_fields)
    if kind.num_fields:
        return LIST
    return TEXT if _is_text(kind) else OTHER


def _is_text(kind: Any) -> bool:
    """Or bytes."""
    import pyarrow as pa

    types = pa.types
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return _is_view(kind) or any(test(kind) for test in tests)


def _is_view(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _characters(array: Any) -> int:
    """Bytes of the characters of all texts, if these are texts."""
    import numpy as np
    import pyarrow as pa

    kind = array.type
    if not _is_text(kind):
        return 0
    types = pa.types
    each = CHARACTER if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) else 1
    if not _is_view(kind):
        return each * int(array.nbytes)
    # Each has its length in the first 4 of its 16 bytes.
    views = np.frombuffer(array.buffers()[1] or b"", np.int32)[4 * array.offset : 4 * (array.offset + len(array)) : 4]
    return each * int(views.sum(dtype=np.int64))


def _used(array: Any) -> Any:
    """Of a dictionary, what becomes Python values."""
    words = array.dictionary
    return words if len(words) <= FEW_WORDS * len(array) else words.take(array.indices.unique().drop_null())


def _inside(array: Any) -> list[Any]:
    """The arrays that a nested one is made of, as far as its own rows reach."""
    import pyarrow as pa

    kind, types = array.type, pa.types
    if types.is_struct(kind):
        return [array.field(i) for i in range(kind.num_fields)]
    if types.is_fixed_size_list(kind):
        return [array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
        return [array.values.slice(first, last - first)]
    return [array.flatten()] if kind.num_fields else []
