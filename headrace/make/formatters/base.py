"""What every formatter shares: rows under a map, groups of rows, and the shape of what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeAlias

from headrace.errors import DataError, SpecError, described
from headrace.make.draft import Draft, Formatted, rendered
from headrace.make.fields import Row, check_fields
from headrace.make.values import said_of

Tokens: TypeAlias = Mapping[str, str]
Format: TypeAlias = Callable[[Mapping[str, Any], Tokens], Formatted | list[Formatted] | None]
"""A row (or `{"rows": [...]}`, a group of them) and the token strings; one sample, several, or none."""
Inner: TypeAlias = Callable[[Row, Tokens], Iterable[Formatted | None]]
Grouped: TypeAlias = Callable[[list[Row], Tokens], Iterable[Formatted | None] | None]
"""Samples of a group as a whole; None: this is no such group."""

_BAD = frozenset({"1", "true", "yes", "nsfw", "toxic", "unsafe"})


def formatter(inner: Inner) -> Format:
    """Makes a formatter of a function that gives samples of a row. The rows of a group come one by one."""
    return _made(inner, None)


def grouped_formatter(grouped: Grouped) -> Callable[[Inner], Format]:
    """The same, where a group of rows may be understood as a whole."""
    return lambda inner: _made(inner, grouped)


def _made(inner: Inner, grouped: Grouped | None) -> Format:
    @wraps(inner)
    def run(sample: Mapping[str, Any], tokens: Tokens) -> Formatted | list[Formatted] | None:
        rows, is_group = _rows(sample)
        if not isinstance(tokens, Mapping):
            raise SpecError(f"tokens is a {type(tokens).__name__}; a mapping of names to strings is expected")
        try:
            given = grouped(rows, tokens) if grouped is not None and is_group else None
            if given is None:
                given = (found for row in rows if not _is_filtered(row) for found in inner(row, tokens))
            samples = [found for found in given if found is not None]
        except RecursionError as error:
            raise DataError("a row is nested too deep to be made a sample of") from error
        return samples if len(samples) > 1 else samples[0] if samples else None

    return run


def _rows(sample: Any) -> tuple[list[Row], bool]:
    if not isinstance(sample, Mapping):
        raise DataError(f"a row is a mapping of columns to values; got {described(sample)}")
    if isinstance(sample, Row):
        return [sample], False
    group = group_of(sample)
    if group is None:
        return [Row(sample)], False
    return [row if isinstance(row, Row) else Row(row) for row in group], True


def group_of(sample: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """The rows of a group; None where it is a row."""
    if len(sample) != 1 or "rows" not in sample:
        return None
    rows = sample["rows"]
    return rows if isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows) else None


def _is_filtered(row: Row) -> bool:
    """Whether one of the columns under `filter` says that the row is not fit to be shown: a flag that is set, a score
    of one half or more, a word like NSFW."""
    return any(_is_bad(value) for value in row.each("filter"))


def _is_bad(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in _BAD
    return isinstance(value, bool | int | float) and value >= 0.5


@dataclass(frozen=True)
class Mapped:
    """A formatter that finds its fields where a map says they are."""

    format: Format
    fields: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, sample: Mapping[str, Any], tokens: Tokens) -> Formatted | list[Formatted] | None:
        if not isinstance(sample, Mapping):
            raise DataError(f"a row is a mapping of columns to values; got {described(sample)}")
        group = group_of(sample)
        if group is not None:
            return self.format({"rows": [Row(row, self.fields) for row in group]}, tokens)
        return self.format(Row(sample, self.fields), tokens)


def with_fields(format_fn: Format, field_map: Mapping[str, str]) -> Format:
    """A formatter under an explicit map (`make/fields.py` says what it can hold). What it names comes first."""
    fields = check_fields(field_map)
    return Mapped(format_fn, fields) if fields else format_fn


# --- what several of them do


def flag_of(row: Row) -> bool | None:
    """What the row itself says about being trained on."""
    return said_of("is_training", row.find("is_training"))


def text_sample(row: Row, tokens: Tokens, dtype: str, text: str) -> Formatted | None:
    """A text that is learned as it is, or, where our marks are in it already, in its assistant's spans."""
    draft = Draft(tokens)
    for part, learned in rendered(text, tokens):
        draft.put(part, learned)
    return draft.sample(dtype, is_training=flag_of(row))
