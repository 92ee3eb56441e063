"""States taken apart, changed in one place and put together again: what the tests of bad states share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

import pytest
from near import Data
from near import key as key_of

from headrace.errors import HeadraceError, StateError
from headrace.serve.loader import Loader
from headrace.serve.state import stamped
from headrace.serve.verify import Report, verify
from headrace.stage import State

Edit: TypeAlias = Callable[[State, list[State], list[State]], object]
"""Is given a state, its lanes and its facts, and changes them in place."""
Path: TypeAlias = tuple[Any, ...]

TEXTS = ("lanes", "sources", "recipe")
"""The fields of a state that are JSON of their own."""


def edited(state: State, edit: Edit) -> State:
    found = opened(state)
    edit(found, found["lanes"], found["sources"])
    return closed(found)


def opened(state: State) -> State:
    return {**deepcopy(state), **{name: json.loads(state[name]) for name in TEXTS}}


def closed(found: State) -> State:
    texts = {name: json.dumps(found[name], sort_keys=True, separators=(",", ":")) for name in TEXTS if name in found}
    return restamped({**found, **texts})


def restamped(state: State) -> State:
    """With a checksum that fits again, where there is something to make it of: other checks have to find the change."""
    try:
        return stamped(state)
    except (KeyError, TypeError, ValueError):
        return state


def changed(state: State, path: Path, value: Any) -> State:
    """With another value at one place of an opened state."""
    found = opened(state)
    at(found, path[:-1])[path[-1]] = value
    return closed(found)


def at(value: Any, path: Sequence[Any]) -> Any:
    for key in path:
        value = value[key]
    return value


def numbers(value: Any) -> Iterator[Path]:
    """Where the whole numbers are."""
    return (path for path, one in everywhere(value) if type(one) is int)


def everywhere(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All places of a value but the whole, with what is there."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*path, key), value[key]
            yield from everywhere(value[key], (*path, key))


def verified(state: State, data: Sequence[Data], **options: Any) -> Report:
    sources = {one.spec: one.memory for one in data}
    return verify(state, opener=lambda source, run, revision: sources[str(source)], **options)


def stream(loader: Loader, most: int = 6) -> list[Any]:
    """What the trainer gets next."""
    return [key_of(batch)[:3] for _, batch in zip(range(most), loader, strict=False)]


def refused(make: Callable[[], object], kind: type[HeadraceError] = StateError) -> str:
    """The message of a refusal."""
    with pytest.raises(kind) as caught:
        make()
    return fit_to_show(caught.value)


def fit_to_show(error: HeadraceError) -> str:
    message = str(error)
    assert all(c.isprintable() or c == "\n" for c in message), repr(message)
    assert len(message) < 1500, message
    return message
