"""Rows by the block: columns of Python values, and the address of each row, made only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain, repeat
from operator import itemgetter
from typing import Any, TypeVar

from headrace.address import Address, Row
from headrace.fetch.chunk import Columns, OpenChunk
from headrace.fetch.draws import Draws, Slot, dealt

T = TypeVar("T")


class RowBlock:
    """Some rows in the order in which they were drawn, by columns. A JSON line without a column has None there."""

    def __init__(
        self, source: str, epoch: int, columns: Columns, shards: Sequence[str], numbers: Sequence[int]
    ) -> None:
        self.source, self.epoch, self.columns = source, epoch, columns
        self._shards, self._numbers = shards, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def places(self) -> list[tuple[str, int]]:
        """(shard, row in it) of each row."""
        return list(zip(self._shards, self._numbers, strict=True))

    @property
    def addresses(self) -> list[Address]:
        return [Address(self.source, self.epoch, shard, number) for shard, number in self.places]


def gather(opened: Callable[[Slot], OpenChunk], done: Draws, source: str, arrays: str | None = None) -> RowBlock:
    """The rows of a block of draws out of the chunks they come from. `arrays`: a column of lists of whole numbers that
    is given as numpy arrays."""
    used = [(opened(slot), first, count) for slot, first, count in done.parts() if count]
    parts = [chunk.part(first, count, arrays) for chunk, first, count in used]
    numbers = [chunk.numbers(first, count) for chunk, first, count in used]
    if len(used) == 1:
        return RowBlock(source, done.epoch, _columns(parts[0]), [used[0][0].label] * done.count, numbers[0])
    assert done.picks is not None
    order = dealt(done.picks, done.counts, list(accumulate(done.counts, initial=0))[:-1]).tolist()
    labels = list(chain.from_iterable(repeat(chunk.label, count) for chunk, _, count in used))
    return RowBlock(source, done.epoch, _joined(parts, order), _picked([labels], order), _picked(numbers, order))


def block_bytes(opened: Callable[[Slot], OpenChunk], done: Draws, arrays: str | None = None) -> int:
    """What the rows of a block of draws take as Python values, about."""
    found = ((opened(slot).sizes(arrays), first, count) for slot, first, count in done.parts() if count)
    return sum(sizes.bytes_of(first, count) for sizes, first, count in found if sizes is not None)


def pick(chunk: OpenChunk, turns: Sequence[int], source: str, epoch: int, arrays: str | None = None) -> RowBlock:
    """Single rows of a chunk, by their turns in its order."""
    numbers = [chunk.numbers(turn, 1)[0] for turn in turns]
    return RowBlock(source, epoch, _columns(chunk.picked(turns, arrays)), [chunk.label] * len(turns), numbers)


def as_block(rows: Sequence[Row]) -> RowBlock:
    """Rows that were already made, as a block."""
    first = rows[0].address
    shards, numbers = [row.address.shard for row in rows], [row.address.row for row in rows]
    return RowBlock(first.source, first.epoch, _columns([row.data for row in rows]), shards, numbers)


def _joined(parts: Sequence[Columns | list[dict[str, Any]]], order: Sequence[int]) -> Columns:
    if isinstance(parts[0], list):
        return _columns(_picked([part for part in parts if isinstance(part, list)], order))
    columns = [part for part in parts if isinstance(part, dict)]
    return {name: _picked([part[name] for part in columns], order) for name in columns[0]}


def _picked(parts: Sequence[Sequence[T]], order: Sequence[int]) -> list[T]:
    joined = list(chain.from_iterable(parts))
    return list(itemgetter(*order)(joined)) if len(order) > 1 else [joined[i] for i in order]


def _columns(part: Columns | list[dict[str, Any]]) -> Columns:
    if isinstance(part, dict):
        return part
    names = dict.fromkeys(name for row in part for name in row)
    return {name: [row.get(name) for row in part] for name in names}
