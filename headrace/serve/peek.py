"""What a run gives at a micro-batch, before or after a state of it: the addresses of what is in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from headrace.address import Address
from headrace.batch import Span
from headrace.errors import StateError
from headrace.make.prepare import Ready
from headrace.sequence.piece import Piece
from headrace.serve.epoch import Ending, Walk, first_place, is_sized, last_slot, next_epoch, repeats
from headrace.serve.going import job_of
from headrace.serve.lane import Lane
from headrace.serve.pipeline import Pipeline
from headrace.serve.resume import Place, check_same_order, placed
from headrace.serve.state import Saved
from headrace.serve.worker import Maker

Progress: TypeAlias = Callable[[int, int], None]
"""Is told how many micro-batches were passed, and how many there are to pass."""


@dataclass(frozen=True, kw_only=True)
class Peek:
    m: int
    lane: int
    rows: tuple[Address, ...] = ()
    sequences: tuple[tuple[Span, ...], ...] = ()
    """Of packed data, instead of rows."""
    is_filler: bool = False
    """The lane is over: with several ranks its slot is filled up, with one it is passed by."""


def peek(saved: Saved, pipeline: Pipeline, m: int, progress: Progress = lambda done, total: None) -> Peek:
    """Micro-batch `m` of the run. Where rows can be counted they are; else the lane's batches are made up to there.

    One that was delivered before the state was taken is found from the start of its epoch or of the run, which follows
    from the recipe and the lanes as long as these were not dealt anew.
    """
    if m >= saved.m:
        place = _in_its_epoch(pipeline, placed(saved, pipeline, 1, len(saved.lanes)), m)
    else:
        place = _before(saved, pipeline, m, progress)
    lanes, number = len(place.lanes), m % len(place.lanes)
    recipe = pipeline.recipe
    lane = Lane(pipeline, number, lanes, place.epoch, counting=recipe.pack is None and not pipeline.may_drop)
    try:
        lane.load(place.lanes[number])
        for before in range(place.m + (number - place.m) % lanes, m, lanes):
            lane.pass_by(before)
            progress(before - place.m, m - place.m)
            if lane.is_over:
                break
        items = lane.advance(m)
    finally:
        lane.close()
    if items is None:
        return Peek(m=m, lane=number, is_filler=True)
    if recipe.pack is None:
        return Peek(m=m, lane=number, rows=tuple(_address(pipeline, row) for row in items))
    return Peek(m=m, lane=number, sequences=tuple(_spans(pipeline, pieces) for pieces in items))


def _before(saved: Saved, pipeline: Pipeline, m: int, progress: Progress) -> Place:
    """The start of the epoch of a micro-batch that was delivered before the state was taken."""
    states = saved.lane_states()
    told = f"micro-batch {m} was delivered before this state was taken, at m={saved.m}"
    if any(fact.digest for fact in saved.facts) or any(one["g"] for state in states for one in state["src"]):
        raise StateError(f"{told}, and the lanes were dealt anew at m={saved.m_plan}; ask a state from before that")
    check_same_order(saved, pipeline.recipe, pipeline.numbers)
    pipeline.fix(len(states))
    pipeline.start_digests([(0, 0)] * len(saved.facts))
    place = first_place(pipeline, len(states))
    if pipeline.is_endless:
        return replace(place, epoch=saved.epoch)
    limited = any(part.tokens is not None for part in pipeline.recipe.parts)
    if m >= saved.m_epoch and not limited:  # nothing of the epochs before it is needed
        return next_epoch(pipeline, replace(place, m=saved.m_epoch), saved.epoch) if saved.epoch else place
    if is_sized(pipeline):
        reached = _in_its_epoch(pipeline, place, saved.m_epoch)
        if (reached.epoch, reached.m_epoch) == (saved.epoch, saved.m_epoch):
            return _in_its_epoch(pipeline, first_place(pipeline, len(states)), m)
    else:
        place = _made_epochs(pipeline, place, m, progress)
        if place.epoch < saved.epoch or (place.epoch, place.m_epoch) == (saved.epoch, saved.m_epoch):
            return place
    raise StateError(
        f"{told}, and from the start of the run with {len(states)} lanes epoch {saved.epoch} does not begin at "
        f"m={saved.m_epoch}: the lanes or the recipe were others then; ask a state from that time"
    )


def _made_epochs(pipeline: Pipeline, place: Place, m: int, progress: Progress) -> Place:
    """The start of the epoch of a micro-batch where only the data itself says how long an epoch is: all is made."""
    while True:
        job, ending = job_of(place, pipeline.run, 0, 1), Ending(pipeline, place, None)
        maker, walk = Maker(pipeline, job), Walk(ending, pipeline.run, job)
        try:
            while (now := walk.next()) is not None and now < m:
                lane = maker.lane(now % job.lanes)
                lane.pass_by(now)
                walk.took(over=lane.is_over, filling=lane.is_filling)
                progress(now, m)
            receipts = maker.receipts()
        finally:
            maker.close()
        if now is not None:
            return place
        lanes = [receipts.get(lane, state) for lane, state in enumerate(place.lanes)]
        after = next_epoch(pipeline, replace(place, lanes=lanes, m=walk.m), end=ending.end)
        if m < after.m:
            return place
        if after.m == place.m:
            raise StateError(f"the data ends before micro-batch {m}, at m={place.m}")
        place = after


def _in_its_epoch(pipeline: Pipeline, place: Place, m: int) -> Place:
    """The start of the epoch that a later micro-batch is in, where epochs can be counted."""
    lanes = len(place.lanes)
    starts: list[int] = []
    while (last := last_slot(pipeline, place)) is not None:
        end = -(-last // lanes) * lanes
        if m < end:
            break
        if place.m == place.m_epoch:
            starts.append(place.m)
            if end == place.m:
                raise StateError(f"the data ends before micro-batch {m}, at m={place.m}")
        place = next_epoch(pipeline, replace(place, m=end))
        if len(starts) > lanes and repeats(pipeline):
            size = place.m - starts[-lanes]
            rounds = (m - place.m) // size
            ahead = replace(place, m=place.m + rounds * size)
            place = next_epoch(pipeline, ahead, place.epoch + rounds * lanes)
            starts.clear()
    return place


def _address(pipeline: Pipeline, row: Ready) -> Address:
    name = pipeline.recipe.parts[row.source].name
    if row.row >= 0:
        return Address(name, row.epoch, row.shard, row.row)
    shard, number = pipeline.orders[row.source](row.epoch).row_of(row.position)
    return Address(name, row.epoch, pipeline.sources[row.source].label(shard), number)


def _spans(pipeline: Pipeline, pieces: Sequence[Piece]) -> tuple[Span, ...]:
    def span(piece: Any) -> Span:
        address = Address(pipeline.recipe.parts[piece.source].name, piece.epoch, piece.shard, piece.row)
        return Span(address, piece.sub, piece.start, piece.stop)

    return tuple(span(piece) for piece in pieces)
