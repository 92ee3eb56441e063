"""Checkpoints that only count: row offsets, samples, or batches consumed. What they lack is made up for by arithmetic,
or, where tokens decide, by making the batches once more."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.errors import Changed, SpecError, StateError, shown
from headrace.fetch.entries import find_entry, listed_entries, require_entries, same_spec
from headrace.fetch.pool import MOST_DRAWS, Pool
from headrace.fetch.sources import Opened
from headrace.recipe import Recipe
from headrace.sequence.pack import TO_THE_END
from headrace.serve.epoch import Ending, Walk, first_place, next_epoch, repeats
from headrace.serve.going import job_of
from headrace.serve.lane_state import canonical
from headrace.serve.pipeline import Pipeline
from headrace.serve.readable import position_of
from headrace.serve.redeal import MOST_APART
from headrace.serve.resume import Place, redealt
from headrace.serve.worker import Job, Maker
from headrace.stage import State
from headrace.validate import as_int

log = logging.getLogger("headrace")

KINDS = ("resume_state", "batches_consumed", "sample_index")


MOST = 1 << 40
"""No run has counted further."""
MOST_MADE = 1 << 28
"""So many steps take hours to be made once more."""
LEAP_EVERY = 64
"""After so many rounds one by one it is tried again to pass many at once."""


def is_offsets(state: Any) -> bool:
    return isinstance(state, dict) and "lanes" not in state and any(kind in state for kind in KINDS)


def from_offsets(state: State, pipeline: Pipeline, lanes: int, per_epoch: int | None = None) -> Place:
    """Where the run resumes that such a checkpoint speaks of. `per_epoch`: the steps of an epoch, where set."""
    kind = next((kind for kind in KINDS if state.get(kind) is not None), None)
    if kind is None:
        there = ", ".join(f"{name}: null" for name in KINDS if name in state)
        raise StateError(
            f"the checkpoint has {there}, so it does not say where to resume; give resume_state, batches_consumed with "
            f"batch_size, or sample_index a value, or start without a state; nothing was changed"
        )
    if kind == "resume_state":
        return _from_rows(state[kind], pipeline, lanes)
    pipeline.fix(lanes)
    size, ranks = pipeline.recipe.batch_size, pipeline.run.world_size
    count = _whole(kind, state[kind])
    if kind == "batches_consumed":
        if _whole("batch_size", state.get("batch_size")) != size:
            raise StateError(
                f"batch_size: the checkpoint counts batches of {state['batch_size']}, here they have {size}"
            )
        if state.get("epoch"):
            log.warning(
                "resume: batches_consumed=%d counts from the start of the run; epoch=%s beside it adds nothing to it",
                *(count, shown(state["epoch"])),
            )
        return forwarded(pipeline, first_place(pipeline, lanes), count, per_epoch)
    steps = -(-count // (size * ranks))
    if passed_over := steps * size * ranks - count:
        log.warning(
            "resume: sample_index=%d lies inside a step of %d samples (batch_size %d, %d ranks): the last %d of them "
            "are passed over, so that none comes twice; with a batch_size that divides it none would be",
            *(count, size * ranks, size, ranks, passed_over),
        )
    begun = _epoch_start(pipeline, lanes, _whole("epoch", state.get("epoch") or 0))
    return forwarded(pipeline, begun, steps, per_epoch)


def _epoch_start(pipeline: Pipeline, lanes: int, epoch: int) -> Place:
    """Where an epoch begins. In an endless run that is the same pass of every source."""
    place = first_place(pipeline, lanes)
    if not epoch:
        return place
    if not pipeline.is_endless:
        return next_epoch(pipeline, place, epoch)
    states = [pipeline.fresh_lane(lane, lanes, 0) for lane in range(lanes)]
    for state in states:
        state["src"] = [{**source, "e": epoch, "f": epoch} for source in state["src"]]
    pipeline.start_digests([(epoch, 0)] * len(pipeline.recipe.parts))
    return replace(place, lanes=[canonical(state) for state in states], epoch=epoch)


def forwarded(pipeline: Pipeline, place: Place, steps: int, per_epoch: int | None = None) -> Place:
    """So many steps of a rank later. Nothing is read where rows can be counted; else batches are made and dropped."""
    recipe = pipeline.recipe
    plain = recipe.pack is None and pipeline.samples is None and not pipeline.may_drop
    counted = pipeline.is_counted or (plain and pipeline.passes is None)
    ranks = pipeline.run.world_size
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
    if pipeline.is_endless:  # epochs are counted in steps, if at all
        epochs = steps // per_epoch if per_epoch else 0
        m_epoch = place.m_epoch + epochs * (per_epoch or 0) * ranks
        found, _ = _walked(pipeline, place, steps, None, counted)
        return replace(found, epoch=place.epoch + epochs, m_epoch=m_epoch)
    starts: list[tuple[int, int]] = []
    while steps:
        begins = place.m == place.m_epoch
        if begins and per_epoch is None:
            place, steps = _past_whole_epochs(pipeline, place, steps, starts)
            if not steps:
                break
        place, done = _walked(pipeline, place, steps, per_epoch, counted)
        if not done and begins:
            raise StateError(f"{steps} more batches were consumed than the data gives; did it change?")
        steps -= done
    return place


def _walked(pipeline: Pipeline, place: Place, steps: int, per_epoch: int | None, counted: bool) -> tuple[Place, int]:
    """Up to so many steps later in the same epoch, or at the start of the next where nothing is left of it; and how
    many they were."""
    run = pipeline.run
    job, ending = job_of(place, run, 0, 1), Ending(pipeline, place, per_epoch)
    maker, walk = Maker(pipeline, job, counting=counted), Walk(ending, run, job)
    done, after, leap_at = 0, place.m, 0
    try:
        while done < steps and (m := walk.next()) is not None:
            if counted and done >= leap_at:
                done += _leapt(pipeline, maker, walk, ending, steps - done)
                after, leap_at = walk.m - run.rank if done else after, done + LEAP_EVERY * job.lanes
                continue
            if _passed_by(maker, walk, m, job) or run.world_size > 1:
                done, after = done + 1, walk.m - run.rank
        lanes = {**job.states, **maker.receipts()}
        known = [lanes.get(lane, state) for lane, state in enumerate(place.lanes)]
        place = replace(place, lanes=known, m=after, is_whole=run.world_size == 1)
        # Whether something is left shows when it is made; one rank alone passes by what only fills a slot.
        while (m := walk.next()) is not None:
            if run.world_size > 1 or _passed_by(maker, walk, m, job):
                return place, done
    finally:
        maker.close()
    return next_epoch(pipeline, place, end=ending.end), done


def _passed_by(maker: Maker, walk: Walk, m: int, job: Job) -> bool:
    """Whether micro-batch `m` has something in it; and past it."""
    lane = maker.lane(m % job.lanes)
    lane.pass_by(m)
    walk.took(over=lane.is_over, filling=lane.is_filling)
    return not lane.is_filling


def _leapt(pipeline: Pipeline, maker: Maker, walk: Walk, ending: Ending, steps: int) -> int:
    """Past as many rounds of all lanes as can be at once: where rows are only counted, in whole blocks of draws.

    No lane and no source ends on the way. Gives the steps that they were."""
    recipe = pipeline.recipe
    if recipe.skip.steps or recipe.mix.schedule or any(part.tokens is not None for part in recipe.parts):
        return 0
    turns = walk.turns
    rounds = steps // turns
    if ending.last is not None:
        rounds = min(rounds, (ending.last - walk.m) // walk.lanes)
    for number in walk.going:
        spare = maker.lane(number).spare_rows()
        rounds = rounds if spare is None else min(rounds, (spare - 1) // recipe.batch_size)
    if rounds < 2:
        return 0
    for number in walk.given:
        maker.lane(number).leap(rounds, walk.m)
    walk.leapt(rounds)
    return rounds * turns


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


# --- row offsets


def revisions_in(state: State, recipe: Recipe) -> dict[str, str]:
    """The revision of each part that `resume_state` names one for, at the place where the part lies."""
    value = state.get("resume_state")
    listed = value.get("datasets") if isinstance(value, dict) else None
    found = {}
    for part in recipe.parts:
        entry = find_entry(part.source, [one for one in listed or () if isinstance(one, dict)])
        revision = (entry or {}).get("revision")
        if isinstance(revision, str):
            found[part.name] = revision
    return found


def _from_rows(value: Any, pipeline: Pipeline, wanted: int) -> Place:
    """`wanted`: the lanes to re-deal for, should the ranks not divide those of the entries."""
    listed = _listed(value, pipeline)
    entries = require_entries([part.source for part in pipeline.recipe.parts], listed, pipeline.trust)
    counts = {len(entry["per_lane"]) if isinstance(entry.get("per_lane"), list) else 1 for entry in listed}
    if len(counts) > 1 or 0 in counts:
        raise StateError(f"resume_state: per_lane: the sources speak of different numbers of lanes: {sorted(counts)}")
    lanes = counts.pop() if counts else 1
    pipeline.fix(lanes)
    found = []
    for part, entry in zip(pipeline.recipe.parts, entries, strict=True):
        per_lane = entry.get("per_lane")
        moved = pipeline.trust.moved or not same_spec(entry.get("spec"), part.source)
        found.append([_Offsets(one, moved) for one in (per_lane if isinstance(per_lane, list) else [entry])])
    low = min(one.epoch for offsets in found for one in offsets)
    epoch = 0 if pipeline.passes is None else low // pipeline.passes
    states = [pipeline.fresh_lane(lane, lanes, epoch) for lane in range(lanes)]
    for i, offsets in enumerate(found):
        for state, (pool, pieces) in zip(states, _placed(pipeline, i, offsets), strict=True):
            state["src"][i] = pool.state_dict()
            for piece in pieces:
                state["rest" if piece[5] == TO_THE_END or pipeline.recipe.pack is None else "held"].append(piece)
    pipeline.start_digests([(min(one.epoch for one in offsets), 0) for offsets in found])
    limited = [shown(part.name) for part in pipeline.recipe.parts if part.tokens is not None]
    if limited:
        log.warning("resume: resume_state alone does not count tokens: the limit of %s starts again", limited[0])
    if lanes % pipeline.run.world_size:
        states = redealt(pipeline, states, wanted)
    place = first_place(pipeline, len(states))
    return replace(place, lanes=[canonical(state) for state in states], epoch=epoch)


def _listed(value: Any, pipeline: Pipeline) -> list[State]:
    """The entries of `resume_state`, where they can place a run."""
    listed = listed_entries(value)
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
    return listed


class _Offsets:
    """What an entry says of one lane, checked."""

    def __init__(self, entry: Any, moved: bool) -> None:
        """`moved`: the files have another path than the entry says."""
        if not isinstance(entry, dict):
            entry = {}
        self.rows = _whole("row_offset", entry.get("row_offset"))
        self.epoch = _whole("epoch", entry.get("epoch") or 0)
        self.shard = entry.get("shard") if isinstance(entry.get("shard"), str) and not moved else ""
        self.offset = as_int(entry.get("offset"))
        self.pending: list[list[int]] | None = None
        if entry.get("pending") is not None:
            self.pending = [self._piece(piece) for piece in _list("pending", entry["pending"])]

    def _piece(self, value: Any) -> list[int]:
        """(row, sample, from, to, pass)"""
        numbers = [as_int(number) for number in value] if isinstance(value, list) else []
        *first, stop, epoch = (
            [*numbers, self.epoch] if len(numbers) == 4 else numbers if len(numbers) == 5 else [None] * 5
        )
        if any(n is None or not 0 <= n < MOST for n in (*first, epoch)) or stop is None or not -1 <= stop < MOST:
            raise StateError(f"resume_state: pending: [row, sample, from, to] is expected, not {shown(value)!r}")
        row, last = first[0] or 0, epoch or 0
        if last > self.epoch or (last == self.epoch and row >= self.rows):
            raise StateError(f"resume_state: pending: row {row} of pass {last} was not drawn before row {self.rows}")
        return [row, first[1] or 0, first[2] or 0, stop, last]


def _placed(pipeline: Pipeline, i: int, offsets: Sequence[_Offsets]) -> list[tuple[Pool, list[list[int]]]]:
    """Of each lane: its pool, gone forward in file order, and the pieces that wait for a batch."""
    source, low = pipeline.sources[i], min(one.epoch for one in offsets)
    if max(one.epoch for one in offsets) - low > MOST_APART:
        raise StateError(f"{shown(source.spec)}: epoch: the lanes are more than {MOST_APART} passes apart")
    if any(one.pending is None for one in offsets) and (pipeline.recipe.pack or pipeline.samples):
        log.warning(
            "resume: %s: the entry has no 'pending': rows that were read and did not reach a batch, if there were any, "
            "are not read again",
            shown(source.spec, 1000),
        )
    found = []
    for lane, one in enumerate(offsets):
        pool = Pool(pipeline.orders[i], pipeline.size, lane, len(offsets), low, one.epoch + 1)
        while pool.epoch < one.epoch and pool.fill() and pool.epoch < one.epoch:
            pool.draw(MOST_DRAWS)
        if pool.epoch < one.epoch or pool.skip(one.rows):
            raise StateError(f"row_offset: {one.rows} rows of {shown(source.spec)} were seen, there are fewer")
        _check_place(source, pool, one)
        pieces = []
        for row, sub, start, stop, epoch in one.pending or ():
            order = pipeline.orders[i](epoch)
            pieces.append([i, epoch, position_of(order, order.share(lane, len(offsets)), row), sub, start, stop])
        found.append((pool, pieces))
    return found


def _check_place(source: Opened, pool: Pool, offsets: _Offsets) -> None:
    """The next row lies where the checkpoint says."""
    place = pool.next_place()
    if place is None or not offsets.shard:
        return
    chunk, position = place
    shard, row = source.label(chunk.shard), chunk.first + position - chunk.start
    if shard != offsets.shard or offsets.offset not in (None, row):
        said = offsets.shard if offsets.offset is None else f"{offsets.shard}:{offsets.offset}"
        raise Changed(
            f"{shown(source.spec)}: row {offsets.rows} lies in {shown(shard)}:{row}, the checkpoint says "
            f"{shown(said)}; the files changed since it was written: go back to those, or start anew"
        )


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise StateError(f"resume_state: {name}: a list is expected, not {shown(value)!r}; nothing was changed")
    return value


def _whole(name: str, value: Any) -> int:
    found = as_int(value)
    if found is None or not 0 <= found < MOST:
        raise StateError(
            f"{name}: a whole number from 0 on below {MOST:,} is expected, not {shown(value)!r}; nothing was changed"
        )
    return found
