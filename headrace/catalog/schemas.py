"""The columns of a source: what its shards must agree on, as far as they are read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from headrace.catalog.shard import Shard
from headrace.errors import DataError, SpecError, shown

Schema: TypeAlias = tuple[tuple[str, str], ...]
"""Column names and types, as text."""

_NULL = re.compile(r"null(?=[,>]|$)")


class Agreement:
    """The columns of the shards seen so far, and the first shard that said what a column is."""

    def __init__(self, columns: Sequence[str] | None) -> None:
        self.columns = columns
        self._passed: set[int] = set()
        self._first: tuple[Shard, Schema] | None = None
        self._types: dict[str, tuple[Shard, str]] = {}
        """Per column that is read, its type, and who said so: nulls say nothing about it."""

    def __contains__(self, number: int) -> bool:
        return number in self._passed

    def add(self, number: int, shard: Shard, schema: Schema) -> None:
        """One more shard; an error where it does not fit those before it."""
        if self._first is None:
            check_names(self.columns, [name for name, _ in schema], shard)
            self._check(shard, dict(schema), shard, schema)
            self._first = shard, schema
        elif schema != self._first[1]:
            self._check(self._first[0], dict(self._first[1]), shard, schema)
        self._passed.add(number)

    def _check(self, one: Shard, first: dict[str, str], shard: Shard, schema: Schema) -> None:
        found = dict(schema)
        names = self.columns if self.columns is not None else [*first, *(name for name in found if name not in first)]
        _refuse_twice(shard, schema, names)
        for name in names:
            if name not in first or name not in found:
                has, lacks = (one, shard) if name in first else (shard, one)
                raise DataError(
                    f"column {shown(name)!r} is in {has} but not in {lacks}; the shards of a source must agree: "
                    f"read the files as two sources, or name the columns to read: headrace.rows(..., columns=[...])"
                )
            before, known = self._types.get(name, (shard, found[name]))
            if not same_values(known, found[name]):
                raise DataError(
                    f"column {shown(name)!r} is {shown(known)} in {before} but {shown(found[name])} in {shard}; the "
                    f"shards of a source must agree: read the files as two sources, or leave it out: "
                    f"headrace.rows(..., columns=[...])"
                )
            if name not in self._types or found[name].count("null") < known.count("null"):
                self._types[name] = shard, found[name]


def check_names(columns: Sequence[str] | None, names: Sequence[str], where: object) -> None:
    for name in columns or []:
        if name not in names:
            raise SpecError(f"no column {shown(name)!r} in {where}; it has {', '.join(shown(n) for n in names)}")


def _refuse_twice(shard: Shard, schema: Schema, names: Sequence[str]) -> None:
    if len({name for name, _ in schema}) == len(schema):
        return
    counts = Counter(name for name, _ in schema)
    for name in names:
        if counts[name] > 1:
            raise DataError(
                f"{shard}: {counts[name]} columns are named {shown(name)!r}, and a row can hold only one; rename them, "
                f"or name the columns to read: headrace.rows(..., columns=[...])"
            )


def same_values(one: str, other: str) -> bool:
    """Whether two types give the same kind of Python values. Nulls, also inside a type, fit every type."""
    if one == other:
        return True
    a, b = _plain(one), _plain(other)
    while a != b:
        start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), -1)
        if start < 0 or (start and not a[:start].endswith(": ")):
            return False
        a, b = a[start:], b[start:]
        if not (_NULL.match(a) or _NULL.match(b)):
            return False
        a, b = _after_type(a), _after_type(b)
    return True


def _plain(text: str) -> str:
    """A type as text, without what makes no difference to the values."""
    text = re.sub(r"dictionary<values=(\w+), indices=\w+, ordered=\d>", r"\1", text)
    text = re.sub(r"\b(?:large_)?(string|binary|list)(?:_view)?\b", r"\1", text.replace(" not null", ""))
    return re.sub(r"list<\w+: ", "list<element: ", text)


def _after_type(text: str) -> str:
    """What follows the type that a text begins with."""
    depth = 0
    for i, c in enumerate(text):
        if depth == 0 and c in ",>":
            return text[i:]
        depth += {"<": 1, "[": 1, "(": 1, ">": -1, "]": -1, ")": -1}.get(c, 0)
    return ""
