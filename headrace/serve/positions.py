"""Rows delivered of each source, by name: for people, and for checkpoints that know nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.errors import StateError, shown
from headrace.fetch.pool import Pool
from headrace.mix.turns import MODALITIES
from headrace.sequence.samples import is_untouched
from headrace.serve.epoch import first_place
from headrace.serve.lane_state import canonical, lane_of
from headrace.serve.pipeline import Pipeline
from headrace.serve.resume import Place
from headrace.stage import State

log = logging.getLogger("headrace")

MOST = 1 << 40
MOST_DRAWN = 1 << 32
"""Rows of a source that are drawn to get there, where they cannot be counted; it takes minutes."""


def streaming_view(pipeline: Pipeline, place: Place) -> dict[str, Any]:
    """What has been given in this epoch, and how far each source has come."""
    assert pipeline.samples is not None
    states = [lane_of(lane) for lane in place.lanes]
    taken, *kinds = [sum(values) for values in zip(*(state["num"] for state in states), strict=True)]
    waiting = [part[0] for state in states for part in state["rest"] if is_untouched(part)]
    for i in waiting:
        kinds[MODALITIES.index(pipeline.samples.shapes[i].modality)] -= 1
    copies = sum(pipeline.samples.copies_waiting(state) for state in states)
    rows = [sum(_rows(state, i) for state in states) for i in range(len(pipeline.facts))]
    return {
        "epoch": place.epoch,
        "unique_samples": taken - len(waiting),
        "total_yields": taken * pipeline.samples.repeat - copies,
        "dataset_positions": {part.name: count for part, count in zip(pipeline.recipe.parts, rows, strict=True)},
        "modality_counts": dict(zip(MODALITIES, kinds, strict=True)),
        "skipped_rows": sum(state["bad"] for state in states),
    }


def no_view(names: Sequence[str]) -> dict[str, Any]:
    """The same where nothing has been given yet."""
    return {
        "epoch": 0,
        "unique_samples": 0,
        "total_yields": 0,
        "dataset_positions": dict.fromkeys(names, 0),
        "modality_counts": dict.fromkeys(MODALITIES, 0),
        "skipped_rows": 0,
    }


def _rows(state: State, i: int) -> int:
    """Rows that a lane has taken of a source, less those that it still has samples of."""
    waiting = {(part[1], part[2]) for part in [*state["held"], *state["rest"]] if part[0] == i}
    return max(0, int(state["tok"][i]) - len(waiting))


def positions(state: State, names: Sequence[str]) -> dict[str, int]:
    """`dataset_positions` of a checkpoint, checked."""
    found = state.get("dataset_positions")
    if not isinstance(found, dict):
        raise StateError(f"dataset_positions: rows by data set are expected, not {shown(found)!r}; nothing was changed")
    for name, rows in found.items():
        if type(rows) is not int or not 0 <= rows < MOST:
            raise StateError(f"dataset_positions[{shown(name)!r}] is {shown(rows)!r}, not a count of rows")
    odd = [name for name in found if name not in names]
    if odd and len(odd) == len(found):
        raise StateError(
            f"dataset_positions is of {', '.join(map(shown, odd[:8]))}, here the data sets are "
            f"{', '.join(map(shown, names[:8]))}: none is the same; nothing was changed"
        )
    for name in odd:
        log.warning("resume: %s is not among the data sets here; its rows are left where they are", shown(name))
    return {name: found.get(name, 0) for name in names}


def skipped_to(pipeline: Pipeline, state: State) -> Place:
    """One lane that has taken so many rows of each source. Nothing is read for that."""
    place = first_place(pipeline, 1)
    lane = lane_of(place.lanes[0])
    origins = []
    counts = list(positions(state, [part.name for part in pipeline.recipe.parts]).values())
    epoch = state.get("epoch", 0)
    epoch = epoch if type(epoch) is int and 0 <= epoch < MOST else 0
    if pipeline.passes is not None:
        epoch = _pass_of(pipeline, counts)
    for i, rows in enumerate(counts):
        pool = _skipped(pipeline, i, rows, epoch if pipeline.passes is not None else None)
        lane["src"][i], lane["tok"][i] = pool.state_dict(), rows
        origins.append((pool.ruled_from, 0))
    pipeline.start_digests(origins)
    return replace(place, lanes=[canonical(lane)], epoch=epoch)


def _pass_of(pipeline: Pipeline, counts: Sequence[int]) -> int:
    """The pass that a run is in whose epochs are passes: no source is ahead of it, and none behind."""
    sizes = [pipeline.rows(i) if fact.coordinate == "rows" else 0 for i, fact in enumerate(pipeline.facts)]
    pairs = [(rows, size) for rows, size in zip(counts, sizes, strict=True) if size]
    found = max([(rows - 1) // size for rows, size in pairs if rows], default=0)
    for fact, rows, size in zip(pipeline.facts, counts, sizes, strict=True):
        if size and rows < found * size:
            raise StateError(
                f"dataset_positions[{shown(fact.name)!r}]: {rows} rows are less than the {found} passes over {size} "
                f"rows that other data sets have behind them; with max_per_epoch=None and max_per_dataset=None each "
                f"epoch reads all of them once; nothing was changed"
            )
    return found


def _skipped(pipeline: Pipeline, i: int, rows: int, current: int | None = None) -> Pool:
    """The pool of one lane after so many rows. Whole passes are arithmetic, where rows are counted. `current`: the pass
    that it is in, or at the end of."""
    fact, orders = pipeline.facts[i], pipeline.orders[i]
    per_pass = orders(0).num_rows if fact.coordinate == "rows" else 0
    if not per_pass and rows > MOST_DRAWN:
        raise StateError(f"dataset_positions[{shown(fact.name)!r}]: {rows} rows cannot be counted off here")
    passes, rows = divmod(rows, per_pass) if per_pass else (0, rows)
    if current is not None and passes > current:
        passes, rows = current, rows + (passes - current) * per_pass
    pool = Pool(orders, pipeline.size, 0, 1, passes)
    pool.skip(rows)
    return pool
