"""What a run gives at a later micro-batch, told from a state: the addresses of what will be in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.address import Address
from headrace.batch import Span
from headrace.errors import StateError
from headrace.make.prepare import Ready
from headrace.sequence.piece import Piece
from headrace.serve.epoch import last_slot, next_epoch, repeats
from headrace.serve.lane import Lane
from headrace.serve.pipeline import Pipeline
from headrace.serve.resume import Place, placed
from headrace.serve.state import Saved


@dataclass(frozen=True, kw_only=True)
class Peek:
    m: int
    lane: int
    rows: tuple[Address, ...] = ()
    sequences: tuple[tuple[Span, ...], ...] = ()
    """Of packed data, instead of rows."""
    is_filler: bool = False
    """The lane is over: with several ranks its slot is filled up, with one it is passed by."""


def peek(saved: Saved, pipeline: Pipeline, m: int) -> Peek:
    """Micro-batch `m` of the run. Where rows can be counted they are; else the lane's batches are made up to there."""
    if m < saved.m:
        raise StateError(
            f"micro-batch {m} was delivered before this state was taken, at m={saved.m}; ask an earlier state for it"
        )
    place = _in_its_epoch(pipeline, placed(saved, pipeline, 1, len(saved.lanes)), m)
    lanes, number = len(place.lanes), m % len(place.lanes)
    recipe = pipeline.recipe
    lane = Lane(pipeline, number, lanes, place.epoch, counting=recipe.pack is None and not pipeline.may_drop)
    try:
        lane.load(place.lanes[number])
        for before in range(place.m + (number - place.m) % lanes, m, lanes):
            lane.pass_by(before)
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
