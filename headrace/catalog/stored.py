"""Arrow columns as they are stored, whatever other packages are imported.

A file may name a type of another package for a column, such as the `Array2D` of `datasets`. pyarrow makes an extension
array of it once that package has registered the type, which its import does, and plain lists otherwise. The values are
the same; here the plain form is taken in both cases. Types that pyarrow itself always knows stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def stored_type(kind: Any) -> Any:
    """A type without the types of other packages, also inside of it."""
    import pyarrow as pa

    if isinstance(kind, pa.ExtensionType):
        return stored_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, stored_type(kind.value_type), kind.ordered)
    return _with_inside(kind, stored_type)


def stored_field(field: Any) -> Any:
    return field.with_type(stored_type(field.type))


def stored_schema(schema: Any) -> Any:
    import pyarrow as pa

    return pa.schema([stored_field(field) for field in schema], schema.metadata)


def as_stored(data: Any) -> Any:
    """A batch or a table with its columns as they are stored."""
    schema = stored_schema(data.schema)
    return data if schema.types == data.schema.types else data.cast(schema)


def without_views(batch: Any) -> Any:
    """A batch with plain texts, also inside of its columns: pyarrow cannot take rows out of views."""
    import pyarrow as pa

    schema = pa.schema([field.with_type(_without_views(field.type)) for field in batch.schema], batch.schema.metadata)
    return batch if schema.types == batch.schema.types else batch.cast(schema)


def _without_views(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else _with_inside(kind, _without_views)


def _with_inside(kind: Any, changed: Callable[[Any], Any]) -> Any:
    """A type with others in the place of those that are inside of it."""
    import pyarrow as pa

    def field_of(field: Any) -> Any:
        return field.with_type(changed(field.type))

    types = pa.types
    if types.is_struct(kind):
        return pa.struct(list(map(field_of, kind)))
    if types.is_map(kind):
        return pa.map_(field_of(kind.key_field), field_of(kind.item_field), kind.keys_sorted)
    if types.is_list(kind):
        return pa.list_(field_of(kind.value_field))
    if types.is_large_list(kind):
        return pa.large_list(field_of(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(field_of(kind.value_field), kind.list_size)
    return kind
