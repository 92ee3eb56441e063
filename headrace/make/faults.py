"""Rows that are left out: those on the skip list, and those that fail where a policy allows it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.address import skip_text
from headrace.errors import DataError, StateError, shown
from headrace.fetch.draws import Draws
from headrace.fetch.plan import Chunk, Order
from headrace.make.describe import Faults
from headrace.stage import State

if TYPE_CHECKING:
    from headrace.make.prepare import Ready

log = logging.getLogger("headrace")

KEPT_CHUNKS = 1024
"""Chunks whose rows on the skip list are remembered by position."""


class SkipList:
    """The rows of a source that are never read, by shard and number."""

    def __init__(self, rows: Iterable[tuple[str, int]], label: Callable[[int], str]) -> None:
        """`label`: the name of a shard, by its number."""
        self._rows: dict[str, list[int]] = {}
        for shard, row in sorted(rows):
            self._rows.setdefault(shard, []).append(row)
        self._label = label
        self._positions: dict[tuple[int, int], frozenset[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def positions(self, chunk: Chunk, order: Order) -> frozenset[int]:
        """The positions in an epoch's order of those rows of a chunk that are on the list."""
        import numpy as np

        listed = np.array(self._rows.get(self._label(chunk.shard), []), dtype=np.int64) - chunk.first
        listed = listed[(listed >= 0) & (listed < chunk.rows)]
        if not len(listed):
            return frozenset()
        key = order.epoch, chunk.start
        if key not in self._positions:
            if len(self._positions) >= KEPT_CHUNKS:
                self._positions.clear()
            turns = np.flatnonzero(np.isin(order.rows_of(chunk), listed))
            self._positions[key] = frozenset((turns + chunk.start).tolist())
        return self._positions[key]

    def first_in(self, done: Draws, order: Order) -> int | None:
        """The number of the first of these draws that is on the list."""
        chunks = [slot.chunk for slot, _, count in done.parts() if count]
        listed = frozenset[int]().union(*(self.positions(chunk, order) for chunk in chunks))
        if not listed:
            return None
        return next((i for i, position in enumerate(done.positions.tolist()) if position in listed), None)


class Fault(NamedTuple):
    """Why a row was not made ready."""

    shard: int
    """The number of its shard in the source."""
    error: DataError


class Place(NamedTuple):
    """A row of a lane that failed: the same in each pass."""

    source: int
    shard: int
    row: int


class LaneFaults:
    """The rows that a lane left out because they failed. Each counts once, however often it comes.

    The rows are part of the lane's state. The reasons are not: they are logged, and known to the process that saw them.
    """

    def __init__(self, faults: Faults, names: Sequence[str], advice: str = "") -> None:
        """`names`: of the sources, as the skip list has them. `advice`: what to do where a row may not be left out;
        default: what works for `headrace.load`."""
        self._faults, self._names, self._advice = faults, names, advice
        self._places: dict[Place, None] = {}
        self._told: list[tuple[Place, str]] = []
        self._all_pass = False
        self.is_silent = False
        """Rows of a batch that is made a second time: they were logged before."""

    @property
    def skips(self) -> bool:
        return self._faults.skips or self._all_pass

    @contextmanager
    def all_pass(self) -> Iterator[None]:
        """For a batch that nobody gets: a row that fails in it is left out with it, and does not count."""
        self._all_pass = True
        try:
            yield
        finally:
            self._all_pass = False

    def meet(self, row: Ready) -> None:
        """A row that failed is the next one: it is left out and counted, or raises."""
        assert row.fault is not None
        place, error, budget = Place(row.source, row.fault.shard, row.row), row.fault.error, self._faults.budget
        if self._all_pass or place in self._places:
            return
        if len(self._places) >= budget:
            raise DataError(
                f"{error}; {len(self._places)} rows of this lane were left out before it, and "
                f"faults=Faults(policy='skip', budget={budget}) allows no more; raise the budget, or repair the data"
            ) from error
        self._places[place] = None
        self._told.append((place, str(error)))
        if not self.is_silent:
            log.warning("left out (%d of at most %d in a lane): %s", len(self._places), budget, shown(error, 1000))

    def told(self, error: DataError, row: Ready) -> DataError:
        """The error of a row that may not be left out, which also says what to do about it."""
        text = skip_text(self._names[row.source], row.shard, row.row)
        advice = self._advice or (
            f"to leave out this row: load(..., skip=Skip(addresses=[{text!r}])); to leave out every row that fails, "
            f"up to a bound: load(..., faults=Faults(policy='skip'))"
        )
        error.args = (f"{error}; {advice}",)
        return error

    def take_told(self) -> tuple[tuple[Place, str], ...]:
        """The rows left out since the last call, and why."""
        told, self._told = tuple(self._told), []
        return told

    # --- state

    def state_dict(self) -> State:
        if not self._places and not self._faults.skips:
            return {}
        return {"faults": [list(place) for place in self._places]}

    def load_state_dict(self, state: State) -> None:
        self._places, self._told = dict.fromkeys(places_in(state)), []


def places_in(state: State) -> list[Place]:
    """The rows that the state of a lane says were left out."""
    found: Any = state.get("faults", [])
    if not isinstance(found, list) or not all(isinstance(p, list) and [type(x) for x in p] == [int] * 3 for p in found):
        raise StateError(f"faults: a list of rows, each of three whole numbers, is expected, not {shown(found)!r}")
    return [Place(*place) for place in found]
