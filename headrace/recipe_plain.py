"""Descriptions as plain values, which is how states and fingerprints hold them. Needs no YAML."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from headrace.catalog.source import Source
from headrace.errors import SpecError
from headrace.mix.describe import Change, Part

LATER = frozenset({"frames", "faults"})
"""Fields that came after the first fingerprints: left out while they are at their default, so that those still hold."""


def plain(value: Any, *, defaults: bool) -> Any:
    """A description as JSON values; with `defaults`, all its fields, else those that differ from them."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Source) and _reads_back(value):
        return str(value)
    if isinstance(value, tuple | list):
        return [plain(item, defaults=defaults) for item in value]
    if isinstance(value, Mapping):
        return {name: plain(item, defaults=defaults) for name, item in value.items()}
    if not dataclasses.is_dataclass(value):
        return value
    out: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if (defaults and field.name not in LATER) or item != _default(value, field):
            out[field.name] = plain(item, defaults=defaults)
    if isinstance(value, Change):
        out["weights"] = dict(value.weights)
    if isinstance(value, Part) and not defaults and list(out) == ["source"] and isinstance(out["source"], str):
        return out["source"]
    return out


def _reads_back(source: Source) -> bool:
    try:
        return Source.parse(str(source)) == source
    except SpecError:
        return False


def _default(value: Any, field: dataclasses.Field[Any]) -> Any:
    if isinstance(value, Part) and field.name == "name":
        return str(value.source)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
