"""Where an epoch of the trainer's ends: for all ranks at the same step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.errors import SpecError
from headrace.serve.peers import Vote, group_is_up
from headrace.serve.pipeline import Pipeline
from headrace.serve.redeal import rows_left
from headrace.serve.resume import Place
from headrace.serve.state import canonical
from headrace.stage import State

if TYPE_CHECKING:
    from headrace.serve.loader import Loader

VOTES_BEHIND = 2
"""The answer to a vote is read so many steps later: by then it has come, and nobody waits."""
VOTES_KEPT = 8
"""...and kept for so many: what was read ahead, to a device, may have to be made again."""


class Ending:
    """Says before each step whether the epoch is over.

    Endless runs end after `steps_per_epoch`, if at all. Where rows can be counted, the last step follows from the
    counts. One rank alone sees for itself when its lanes are over. Several ranks that cannot count vote.
    """

    def __init__(self, loader: Loader, place: Place) -> None:
        pipeline, steps = loader.pipeline, loader.serving.steps_per_epoch
        self._ranks, tail = loader.ranks, pipeline.recipe.tail
        self._drop = tail == "drop"
        self._last: int | None = None
        """The first micro-batch that is not given any more."""
        self._votes: dict[int, Vote] | None = None
        """By the micro-batch that they are about: a step that failed and is tried again is not voted on twice."""
        self._loader = loader
        self._finite = not pipeline.is_endless
        if steps is not None:
            self._last = place.m_epoch + steps * self._ranks
        elif self._finite and is_sized(pipeline) and (self._ranks > 1 or self._drop):
            self._last = last_slot(pipeline, place)
        elif self._finite and self._ranks > 1:
            if not group_is_up():
                raise SpecError(
                    f"one exact pass over data that cannot be counted, on {self._ranks} ranks: they must agree on the "
                    f"last step; call torch.distributed.init_process_group first (gloo will do), or set "
                    f"steps_per_epoch"
                )
            self._votes = {}
            self._first = place.m

    def is_here(self, m: int, going: set[int]) -> bool:
        """`m`: the first micro-batch of the step to come; `going`: lanes of this rank that are not over."""
        if self._last is not None:
            return m >= self._last or (self._ranks == 1 and not going)
        if not self._finite:
            return False
        if self._votes is None:
            return m % self._lanes_of() not in going if self._drop else not going
        mine = len(going) < self._own_lanes() if self._drop else bool(going)
        if m not in self._votes:
            self._votes[m] = self._loader.peers().ask(mine)
        about = m - VOTES_BEHIND * self._ranks
        if about < self._first:
            return False
        self._votes.pop(about - VOTES_KEPT * self._ranks, None)
        return self._votes[about].answer() == self._drop

    def _lanes_of(self) -> int:
        return len(self._loader.place.lanes)

    def _own_lanes(self) -> int:
        return self._lanes_of() // self._ranks


def is_sized(pipeline: Pipeline) -> bool:
    """Whether the length of an epoch is known beforehand: from row counts, or because it was set."""
    return pipeline.is_counted or (pipeline.samples is not None and pipeline.samples.packing is None)


def last_slot(pipeline: Pipeline, place: Place) -> int | None:
    """The first micro-batch that is not given any more in this epoch, where that is known."""
    if not is_sized(pipeline):
        return None
    ranks, drop = pipeline.run.world_size, pipeline.recipe.tail == "drop"
    states = [json.loads(lane) for lane in place.lanes]
    slots = place.m_plan + len(states) * num_slots(pipeline, states, place.epoch)
    return place.m + _steps(slots - place.m, ranks, drop) * ranks


def num_slots(pipeline: Pipeline, states: Sequence[State], epoch: int) -> int:
    """Micro-batches of a lane from the start of its plan to the epoch's end: of the longest, or (drop) the shortest."""
    size, drop = pipeline.recipe.batch_size, pipeline.recipe.tail == "drop"
    totals: list[int] = [
        state["n"] + _steps(rows, size, drop)
        for state, rows in zip(states, _rows(pipeline, states, epoch), strict=True)
    ]
    return min(totals) if drop else max(totals)


def _rows(pipeline: Pipeline, states: Sequence[State], epoch: int) -> list[int]:
    """Rows that each lane has still to give in the epoch."""
    return [num_rows_left(pipeline, number, state, len(states), epoch) for number, state in enumerate(states)]


def num_rows_left(pipeline: Pipeline, number: int, state: State, lanes: int, epoch: int) -> int:
    if pipeline.samples is not None:
        return pipeline.samples.items_left(state)
    rows = len(state["rest"])
    for i, one in enumerate(state["src"]):
        pool = pipeline.pool(i, number, lanes, epoch)
        pool.load_state_dict(one)
        rows += rows_left(pool)
    return rows


def _steps(things: int, of: int, drop: bool) -> int:
    return things // of if drop else -(-things // of)


def epoch_steps(loader: Loader) -> int:
    """Steps of a whole epoch, on this rank."""
    pipeline, place = loader.pipeline, loader.place
    if loader.serving.steps_per_epoch is not None:
        return loader.serving.steps_per_epoch
    if not is_sized(pipeline):
        why = "the run is endless" if pipeline.is_endless else "its length is not known before it is read"
        raise TypeError(f"len() of this loader: {why}; set steps_per_epoch=")
    lanes, drop = len(place.lanes), pipeline.recipe.tail == "drop"
    fresh = [pipeline.fresh_lane(lane, lanes, place.epoch) for lane in range(lanes)]
    if loader.ranks == 1 and not drop:
        return sum(_steps(rows, pipeline.recipe.batch_size, drop) for rows in _rows(pipeline, fresh, place.epoch))
    return num_slots(pipeline, fresh, place.epoch) * lanes // loader.ranks


def repeats(pipeline: Pipeline) -> bool:
    """Whether the lengths of epochs are counted and come again after as many epochs as there are lanes."""
    return pipeline.is_counted and not any(part.limit or part.passes for part in pipeline.recipe.parts)


def next_epoch(pipeline: Pipeline, place: Place, epoch: int | None = None) -> Place:
    """The start of the next epoch, or of another. An endless run just goes on."""
    epoch = place.epoch + 1 if epoch is None else epoch
    if pipeline.passes is not None:
        pipeline.start_digests([(epoch * pipeline.passes, 0)] * len(pipeline.recipe.parts))
    return epoch_start(pipeline, place, epoch)


def epoch_start(pipeline: Pipeline, place: Place, epoch: int) -> Place:
    if pipeline.is_endless:
        return replace(place, epoch=epoch, m_epoch=place.m)
    lanes = len(place.lanes)
    states = [pipeline.fresh_lane(lane, lanes, epoch) for lane in range(lanes)]
    if pipeline.samples is not None:  # counts start anew, the sources go on
        kept = [json.loads(lane) for lane in place.lanes]
        # What waits for its sequence is there only where the epoch was cut short, by steps_per_epoch.
        names = ("src", "tok", "held", "bad", *(["rest"] if pipeline.samples.packing is not None else []))
        states = [{**one, **{k: old[k] for k in names}} for one, old in zip(states, kept, strict=True)]
    else:  # limits in tokens hold for the whole run
        states = [{**one, "tok": json.loads(old)["tok"]} for one, old in zip(states, place.lanes, strict=True)]
    m = -(-place.m // lanes) * lanes  # the same on any number of ranks
    if pipeline.samples is not None:  # a rank knows where its own lanes are: it must have them again
        m += (place.m - m) % pipeline.run.world_size
    _keep_faults(place, states, m)
    return Place(lanes=[canonical(state) for state in states], m=m, m_plan=m, m_epoch=m, epoch=epoch)


def _keep_faults(place: Place, states: Sequence[State], m: int) -> None:
    """Rows that were left out count over the whole run. A rank knows those of its own lanes, so they go to lanes that
    are its own from micro-batch `m` on."""
    for number, lane in enumerate(place.lanes):
        rows = json.loads(lane).get("faults", [])
        if rows:
            states[(number + m - place.m) % len(states)]["faults"] = rows


def first_place(pipeline: Pipeline, lanes: int) -> Place:
    """Where a run begins."""
    states = [canonical(pipeline.fresh_lane(lane, lanes, 0)) for lane in range(lanes)]
    return Place(lanes=states, m=0, m_plan=0, m_epoch=0, epoch=0)


def token_counts(pipeline: Pipeline, place: Place) -> list[int] | None:
    """Tokens that each lane has given of each source, one after the other; None where no limit depends on them."""
    if pipeline.is_endless or all(part.tokens is None for part in pipeline.recipe.parts):
        return None
    return [count for lane in place.lanes for count in json.loads(lane)["tok"]]


def with_token_counts(place: Place, counts: Sequence[int]) -> Place:
    """The same place with what all ranks know of the tokens of their own lanes."""
    states = [json.loads(lane) for lane in place.lanes]
    each = len(states[0]["tok"])
    found = [{**state, "tok": list(counts[n * each : (n + 1) * each])} for n, state in enumerate(states)]
    return replace(place, lanes=[canonical(state) for state in found])
