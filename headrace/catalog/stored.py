"""Arrow columns as they are stored, whatever other packages are imported.

A file may name a type of another package for a column, such as the `Array2D` of `datasets`. pyarrow makes an extension
array of it once that package has registered the type, which its import does, and plain lists otherwise. The values are
the same; here the plain form is taken in both cases. Types that pyarrow itself always knows stay as they are.
"""

from __future__ import annotations

from typing import Any


def stored_type(kind: Any) -> Any:
    """A type without the types of other packages, also inside of it."""
    import pyarrow as pa

    types = pa.types
    if isinstance(kind, pa.ExtensionType):
        return stored_type(kind.storage_type)
    if types.is_struct(kind):
        return pa.struct([stored_field(field) for field in kind])
    if types.is_map(kind):
        return pa.map_(stored_field(kind.key_field), stored_field(kind.item_field), kind.keys_sorted)
    if types.is_list(kind):
        return pa.list_(stored_field(kind.value_field))
    if types.is_large_list(kind):
        return pa.large_list(stored_field(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(stored_field(kind.value_field), kind.list_size)
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, stored_type(kind.value_type), kind.ordered)
    return kind


def stored_field(field: Any) -> Any:
    return field.with_type(stored_type(field.type))


def stored_schema(schema: Any) -> Any:
    import pyarrow as pa

    return pa.schema([stored_field(field) for field in schema], schema.metadata)


def as_stored(data: Any) -> Any:
    """A batch or a table with its columns as they are stored."""
    schema = stored_schema(data.schema)
    return data if schema.types == data.schema.types else data.cast(schema)
