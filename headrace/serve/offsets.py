"""Checkpoints that only count: row offsets, samples, or batches consumed. What they lack is made up for by arithmetic,
or, where tokens decide, by making the batches once more."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from headrace.errors import SpecError, StateError, shown
from headrace.fetch.resume import same_spec
from headrace.serve.epoch import first_place, next_epoch, repeats
from headrace.serve.pipeline import Pipeline
from headrace.serve.resume import Place
from headrace.serve.state import canonical
from headrace.serve.worker import Job, Maker
from headrace.stage import State

log = logging.getLogger("headrace")

KINDS = ("resume_state", "batches_consumed", "sample_index")


MOST = 1 << 40
"""No run has counted further."""
MOST_MADE = 1 << 28
"""So many steps take hours to be made once more."""


def is_offsets(state: Any) -> bool:
    return isinstance(state, dict) and "lanes" not in state and any(kind in state for kind in KINDS)


def from_offsets(state: State, pipeline: Pipeline, lanes: int) -> Place:
    """Where the run goes on that such a checkpoint speaks of."""
    if "resume_state" in state:
        return _from_rows(state["resume_state"], pipeline, lanes)
    pipeline.fix(lanes)
    size, ranks = pipeline.recipe.batch_size, pipeline.run.world_size
    if "batches_consumed" in state:
        steps = _whole("batches_consumed", state["batches_consumed"])
        if _whole("batch_size", state.get("batch_size")) != size:
            raise StateError(
                f"batch_size: the checkpoint counts batches of {state['batch_size']}, here they have {size}"
            )
    else:
        samples = _whole("sample_index", state["sample_index"])
        steps, odd = divmod(samples, size * ranks)
        if odd:
            raise StateError(
                f"sample_index: {samples} is no multiple of the {size * ranks} samples of a step (batch_size {size}, "
                f"{ranks} ranks), so it lies inside a batch; use the batch size that it was written with"
            )
    return forwarded(pipeline, first_place(pipeline, lanes), steps)


def forwarded(pipeline: Pipeline, place: Place, steps: int) -> Place:
    """So many steps of a rank later. Nothing is read where rows can be counted; else batches are made and dropped."""
    recipe = pipeline.recipe
    plain = recipe.pack is None and pipeline.samples is None and not recipe.skip.addresses
    counted = pipeline.is_counted or (plain and pipeline.passes is None)
    ranks, rank = pipeline.run.world_size, pipeline.run.rank
    packed = pipeline.samples is not None and pipeline.samples.packing is not None
    if (pipeline.passes is not None or packed) and ranks > 1 and not pipeline.is_counted:
        raise SpecError(
            f"a count of batches alone does not place {ranks} ranks in one exact pass over data that cannot be "
            f"counted; resume from a whole state_dict()"
        )
    if steps > MOST_MADE and not pipeline.is_counted:
        raise StateError(f"{steps} steps are too many to be made once more; resume from a whole state_dict()")
    if steps and not counted:
        log.warning("resume: %d steps are made once more to get there; a whole state_dict() needs none of that", steps)
    starts: list[tuple[int, int]] = []
    while steps:
        if place.m == place.m_epoch:
            place, steps = _past_whole_epochs(pipeline, place, steps, starts)
            if not steps:
                break
        own = {lane: state for lane, state in enumerate(place.lanes) if (lane - place.m - rank) % ranks == 0}
        job = Job(number=0, epoch=place.epoch, states=own, lanes=len(place.lanes), m=place.m + rank, ranks=ranks)
        maker = Maker(pipeline, job, counting=counted)
        try:
            done, after = maker.skip(min(steps, _steps_left(pipeline, place)))
            receipts = maker.receipts()
        finally:
            maker.close()
        if not done and place.m == place.m_epoch and steps:
            raise StateError(f"{steps} more batches were consumed than the data gives; did it change?")
        steps -= done
        lanes = [receipts.get(lane, state) for lane, state in enumerate(place.lanes)]
        place = replace(place, lanes=lanes, m=after - rank)
        if not done or not _steps_left(pipeline, place):
            place = next_epoch(pipeline, place)
    return place


def _past_whole_epochs(
    pipeline: Pipeline, place: Place, steps: int, starts: list[tuple[int, int]]
) -> tuple[Place, int]:
    """At the start of an epoch. `starts`: m and the steps to go at the start of each one so far."""
    lanes = len(place.lanes)
    starts.append((place.m, steps))
    if len(starts) <= lanes or not repeats(pipeline):
        return place, steps
    m, to_go = starts[-1 - lanes]
    rounds = steps // (to_go - steps)
    if rounds:
        ahead = replace(place, m=place.m + rounds * (place.m - m))
        place = next_epoch(pipeline, ahead, place.epoch + rounds * lanes)
    return place, steps - rounds * (to_go - steps)


def _steps_left(pipeline: Pipeline, place: Place) -> int:
    from headrace.serve.epoch import last_slot

    last = last_slot(pipeline, place)
    return 1 << 60 if last is None else max(0, last - place.m) // pipeline.run.world_size


def _from_rows(value: Any, pipeline: Pipeline, lanes: int) -> Place:
    listed = value.get("datasets") if isinstance(value, dict) else None
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise StateError("resume_state.datasets: a list of entries with spec, shard and row_offset is expected")
    if pipeline.recipe.order.shuffle or any(entry.get("shuffled") for entry in listed):
        raise StateError(
            "resume_state alone cannot place a shuffled run: the checkpoint lacks 'lanes' (which chunks are half "
            "read); resume from the whole state_dict()"
        )
    if any(entry.get("dealt_anew") for entry in listed):
        raise StateError(
            "resume_state alone cannot place a run whose lanes were dealt anew: the checkpoint lacks 'lanes' (what is "
            "left for each); resume from the whole state_dict()"
        )
    counts = {len(entry["per_lane"]) if isinstance(entry.get("per_lane"), list) else 1 for entry in listed}
    if len(counts) > 1 or 0 in counts:
        raise StateError(f"resume_state: per_lane: the sources speak of different numbers of lanes: {sorted(counts)}")
    lanes = counts.pop() if counts else 1
    if lanes % pipeline.run.world_size:
        raise StateError(f"resume_state is of {lanes} lanes, which {pipeline.run.world_size} ranks do not divide")
    pipeline.fix(lanes)
    states = [pipeline.fresh_lane(lane, lanes, 0) for lane in range(lanes)]
    for i, part in enumerate(pipeline.recipe.parts):
        entry = next((e for e in listed if same_spec(e.get("spec"), part.source)), None)
        if entry is None:
            raise StateError(f"resume_state.datasets has no entry for {shown(part.source)}")
        for lane, state in enumerate(states):
            offsets = entry["per_lane"][lane] if lanes > 1 else entry
            rows = _whole("row_offset", offsets.get("row_offset") if isinstance(offsets, dict) else None)
            pool = pipeline.pool(i, lane, lanes)
            pool.last = pool.epoch + 1  # offsets count the rows of one pass
            if pool.skip(rows):
                raise StateError(f"row_offset: {rows} rows of {shown(part.source)} were seen, there are fewer")
            state["src"][i] = pool.state_dict()
    return replace(first_place(pipeline, lanes), lanes=[canonical(state) for state in states])


def _whole(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < MOST:
        raise StateError(
            f"{name}: a whole number from 0 on below {MOST:,} is expected, not {shown(value)!r}; nothing was changed"
        )
    return value
