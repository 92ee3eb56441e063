"""The state of a lane as text: canonical JSON, the same bytes for the same state.

A lane of many sources is written by columns, because what a source takes is mostly the names of its fields: `src` is
then a dict of lists, one for each field, with one value in it where all sources have the same, and a piece in `held`
that is the start of the first sample of a row in the pass that its source is in is `[source, position, to]`. Both forms
are read, whatever the number of sources. In a program a lane always has the long form.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from headrace.errors import StateError, shown
from headrace.stage import State

MANY_SOURCES = 32
"""A lane of more sources is written by columns. Up to here its long form takes 4 KiB, and states stay as they were."""
OVER_LATE = 2
"""`o` of a lane that was found to be over only when nothing was left for its next micro-batch: its last rows gave
nothing. 0: it is not over; 1: its last micro-batch left nothing."""
SOURCE_FIELDS = frozenset("eckfgydsx")


def as_json(value: Any) -> str:
    """The one text of a value, which checksums are over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def canonical(lane: State) -> bytes:
    return as_json(by_columns(lane)).encode()


def lane_of(text: bytes | str) -> State:
    """Back from `canonical`."""
    return in_full(json.loads(text))


def by_columns(lane: State) -> State:
    """The form in which a lane of many sources is written. What is not the state of a lane stays as it is."""
    sources = lane.get("src")
    if not isinstance(sources, list) or len(sources) <= MANY_SOURCES or not isinstance(lane.get("held"), list):
        return lane
    if not all(isinstance(source, dict) and source.keys() == SOURCE_FIELDS for source in sources):
        return lane
    columns = {name: [source[name] for source in sources] for name in SOURCE_FIELDS}
    passes = dict(enumerate(columns["e"]))
    short = {name: values[:1] if values.count(values[0]) == len(values) else values for name, values in columns.items()}
    held = []
    for piece in lane["held"]:
        match piece:
            case [int(source), epoch, position, 0, 0, stop] if passes.get(source) == epoch:
                held.append([source, position, stop])
            case _:
                held.append(piece)
    return {**lane, "src": short, "held": held}


def in_full(lane: Any) -> State:
    """A lane with a dict for each source and six numbers for each piece; a StateError where it cannot be one."""
    if not isinstance(lane, dict) or not isinstance(lane.get("src"), dict):
        found: State = lane
        return found
    columns, pieces = _spread_columns(lane)
    for name in ("s", "x"):  # no source has a list in common with another
        columns[name] = [deepcopy(value) if value else [] for value in columns[name]]
    rows = zip(*columns.values(), strict=True)
    return {**lane, "src": [dict(zip(columns, row, strict=True)) for row in rows], "held": pieces}


def columns_of(text: bytes) -> tuple[dict[str, list[Any]], list[list[int]]]:
    """Of a lane: each field of all its sources, to be read only, and all pieces that wait. Cheaper than `lane_of`."""
    lane = json.loads(text)
    if isinstance(lane["src"], dict):
        columns, held = _spread_columns(lane)
    else:
        columns, held = {name: [source[name] for source in lane["src"]] for name in SOURCE_FIELDS}, lane["held"]
    return columns, [*held, *lane["rest"]]


def _spread_columns(lane: State) -> tuple[dict[str, list[Any]], list[Any]]:
    """The fields of sources by name, a value for each source; and what is held, in full."""
    columns, counts, held = lane["src"], lane.get("tok"), lane.get("held")
    if not isinstance(counts, list) or not isinstance(held, list):
        raise StateError("lanes: tok, held: lists are expected; nothing was changed")
    n = len(counts)
    if columns.keys() != SOURCE_FIELDS or not all(isinstance(v, list) and len(v) in (1, n) for v in columns.values()):
        raise StateError(
            f"lanes: src: a list of {n} values, or of one, is expected for each field of a source, not "
            f"{shown(columns)!r}; nothing was changed"
        )
    spread = {name: values if len(values) == n else values * n for name, values in columns.items()}
    passes = dict(enumerate(spread["e"]))
    return spread, [
        # by index: a match statement takes six times as long, and a state has thousands of pieces
        [piece[0], passes[piece[0]], piece[1], 0, 0, piece[2]]
        if isinstance(piece, list) and len(piece) == 3 and isinstance(piece[0], int) and piece[0] in passes
        else piece
        for piece in held
    ]
