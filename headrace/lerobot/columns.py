"""An episode's rows by columns, with the types that LeRobot's items have: floats of 32 bits, whole numbers of 64."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.errors import DataError, described, shown
from headrace.fetch.values import to_python

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.lerobot.info import Feature

Column: TypeAlias = "NDArray[np.float32] | NDArray[np.int64] | NDArray[np.bool_] | list[Any]"
"""Numbers as one array, its first axis the frame; texts and whatever else has no fixed shape as a list."""

_NUMBERS = re.compile(r"u?int(8|16|32|64)|float(16|32|64)|bool")
"""Types that a message may name. Other text of meta/info.json is not quoted: the file may be a link to any other."""


def is_python(feature: Feature) -> bool:
    """Whether the values of a feature come as Python's."""
    return feature.is_image or feature.dtype in ("string", "language")


def column_of(array: Any, feature: Feature, where: str) -> Column:
    """An Arrow array as a column. Images stay as they lie in the file: structs of bytes and path."""
    import pyarrow as pa

    if is_python(feature):
        return to_python(array)
    flat, shape = array, [len(array)]
    while pa.types.is_list(flat.type) or pa.types.is_large_list(flat.type) or pa.types.is_fixed_size_list(flat.type):
        _require_whole(flat, feature, where)
        inner = flat.flatten()
        size, odd = divmod(len(inner), len(flat)) if len(flat) else (0, 0)
        if odd or not _is_even(flat, size):
            raise DataError(
                f"{where}, column {shown(feature.name)!r}: its lists differ in length, where the shape "
                f"{list(feature.shape)} is declared; mend the file, or take the column out of meta/info.json"
            )
        shape.append(size)
        flat = inner
    _require_whole(flat, feature, where)
    found: Column = _numbers(flat, feature, where).reshape(shape)
    return found


def bytes_of(columns: Mapping[str, Column]) -> int:
    """What columns take in memory. A value that several frames share counts once."""
    lists = [column for column in columns.values() if isinstance(column, list)]
    seen: dict[int, int] = {}
    waiting: list[Any] = list(chain.from_iterable(lists))
    while waiting:
        value = waiting.pop()
        if id(value) not in seen:
            seen[id(value)] = sys.getsizeof(value)
            waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(seen.values()) + sum(column.nbytes for column in columns.values() if not isinstance(column, list))


def numbers_of(array: Any, dtype: Any) -> Any:
    """The values of an Arrow array of plain numbers without nulls, where they lie."""
    import numpy as np

    return np.frombuffer(array.buffers()[1] or b"", dtype=dtype)[array.offset : array.offset + len(array)]


def _is_even(lists: Any, size: int) -> bool:
    """Whether all have so many items."""
    import numpy as np
    import pyarrow as pa

    if pa.types.is_fixed_size_list(lists.type) or not len(lists):
        return True
    wide = np.int64 if pa.types.is_large_list(lists.type) else np.int32
    edges = np.frombuffer(lists.buffers()[1], dtype=wide)[lists.offset : lists.offset + len(lists) + 1]
    return bool((np.diff(edges) == size).all())


def _require_whole(array: Any, feature: Feature, where: str) -> None:
    if array.null_count:
        raise DataError(
            f"{where}, column {shown(feature.name)!r}: {array.null_count} of its values are null; mend the file, or "
            f"take the column out of meta/info.json"
        )


def _numbers(flat: Any, feature: Feature, where: str) -> Any:
    """A new array: what is given out later is not the file's memory."""
    import numpy as np
    import pyarrow as pa

    kind = flat.type
    if pa.types.is_boolean(kind):
        bits = np.unpackbits(np.frombuffer(flat.buffers()[1] or b"", np.uint8), bitorder="little")
        return bits[flat.offset : flat.offset + len(flat)].astype(np.bool_)
    if not pa.types.is_integer(kind) and not pa.types.is_floating(kind):
        raise DataError(
            f"{where}, column {shown(feature.name)!r} holds {shown(kind)} where meta/info.json declares "
            f"{shown(feature.dtype) if _NUMBERS.fullmatch(feature.dtype) else described(feature.dtype)}"
        )
    letter = "f" if pa.types.is_floating(kind) else "u" if pa.types.is_unsigned_integer(kind) else "i"
    values = numbers_of(flat, np.dtype(f"{letter}{kind.bit_width // 8}"))
    return values.astype(np.float32 if letter == "f" else np.int64)
