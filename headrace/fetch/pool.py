"""The pool: which row comes next, as a pure generator of positions.

A pool holds up to K chunks of a lane's share, draws a *chunk* at random and takes its next row, and admits the next
chunk when one is used up. When there is none left to admit it draws over *rows*. (Drawing over rows all the time would
keep nearly empty chunks around, and neighbours would meet three times as often.) A pool of one chunk is file order.

It does no I/O: readers are told by it what to read, and its state, a few numbers, is the state of the source. Draws are
made in blocks; a block ends where the set of chunks changes, and where it ends makes no difference to what is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace import rng
from headrace.errors import StateError, shown
from headrace.fetch.draws import Draws, Slot, positions_of
from headrace.fetch.lots import Lots
from headrace.fetch.plan import Chunk, Order, Orders, Range, in_order, length
from headrace.stage import State

if TYPE_CHECKING:
    from headrace.rng import I64


MOST_DRAWS = 4096
"""Of one block; bounds its memory, changes nothing in what is drawn."""
MOST_ROW_DRAWS = 256
"""The same for draws over rows, which are made one by one: a state in the middle of a block makes them again."""


MOST, MOST_DIGEST = 1 << 62, 1 << 64
"""Numbers of a state stay below: they go through 64-bit arithmetic."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of a pool to come back to; cheaper than its state, and it keeps the slots that are open."""

    draws: int
    passed: int
    digest: int
    epoch: int
    slots: tuple[tuple[Slot, int, int], ...]
    order: Order
    ranges: list[Range]
    stream: int
    at: tuple[int, int]
    more: tuple[Chunk, int, int] | None


@dataclass(frozen=True, kw_only=True)
class PoolSize:
    chunks: int = 24
    """K: chunks held at once. With windows of two shards, 24 of 1,000 rows mix no worse than a 10,000-row buffer."""
    nbytes: int = 256 * 2**20
    """...as long as they fit into so many bytes, as the index counts them. One chunk is always held."""


class Pool:
    """Draws the positions of one lane of one source, epoch after epoch from `first` up to (not including) `last`."""

    epoch: int
    draws: int
    passed: int
    digest: int
    ruled_from: int
    explicit: dict[int, list[Range]]
    generation: int
    slots: list[Slot]
    order: Order
    ranges: list[Range]
    _at: tuple[int, int]
    _more: tuple[Chunk, int, int] | None

    def __init__(
        self,
        orders: Orders,
        size: PoolSize,
        lane: int,
        lanes: int,
        first: int = 0,
        last: int | None = None,
    ) -> None:
        self.orders, self.counts, self.rules, self.size = orders, orders.counts, orders.rules, size
        self.lane, self.lanes, self.first, self.last = lane, lanes, first, last
        self.ruled_from, self.explicit, self.generation, self.passed, self.digest = first, {}, 0, 0, 0
        self._enter(first)
        self._look()

    # --- the generator

    def draw(self, most: int) -> Draws | None:
        """Up to `most` draws (at least one), or None at the end of the source."""
        if not self.fill():
            return None
        slots, most = self.slots, min(most, MOST_DRAWS)
        firsts = [slot.at for slot in slots]
        if len(slots) == 1:
            picks, counts = None, [min(most, slots[0].left)]
        elif self._more and self.rules.draw == "chunk":
            picks, counts = self._draw_chunks(most)
        else:
            picks, counts = self._draw_rows(most)
        starts = [slot.position for slot in slots]
        done = Draws(self.epoch, tuple(slots), firsts, counts, picks, sum(counts), positions_of(picks, counts, starts))
        self.digest = rng.digest_block(self.digest, self.epoch, done.positions)
        for slot, count in zip(slots, counts, strict=True):
            slot.position += count
            slot.left -= count
        self.slots = [slot for slot in slots if slot.left]
        self.draws += done.count
        self.passed = 0
        return done

    def skip(self, count: int) -> int:
        """Draw and forget; what could not be drawn because the source ended is returned."""
        while count and (done := self.draw(count)):
            count -= done.count
        return count

    def fill(self) -> bool:
        """Admit chunks; step into the next epoch when this one is used up. False: the source has ended.

        Counts may have to be fetched for it. Where that fails nothing is changed, and the next try begins where this
        one did.
        """
        if self.slots and not self._has_room():
            return True
        mark = self.mark()
        try:
            return self._filled()
        except BaseException:
            self.go_to(mark)
            raise

    def _filled(self) -> bool:
        while True:
            self._admit()
            if self.slots:
                return True
            if (self.last is not None and self.epoch + 1 >= self.last) or self.passed > self.lanes + 1:
                return False
            self._enter(self.epoch + 1)
            self._look()
            self.passed += 1

    def _admit(self) -> None:
        while self._more and self._has_room():
            chunk, start, stop = self._more
            end = min(chunk.start + chunk.rows, stop)
            self.slots.append(Slot(chunk, start, end - start))
            self._at = (self._at[0], end)
            self._look()

    def _has_room(self) -> bool:
        """For the next chunk, if there is one."""
        if self._more is None or len(self.slots) >= self.size.chunks:
            return False
        return not self.slots or self._held() + self._more[0].nbytes <= self.size.nbytes

    def _held(self) -> int:
        return sum(slot.chunk.nbytes for slot in self.slots)

    def _look(self) -> None:
        """Find the next chunk to admit; `_at` moves over positions that have no row."""
        part, position = self._at
        self._more = None
        while part < len(self.ranges):
            stop = self.ranges[part][1]
            chunk = self.order.first_chunk(position, stop)
            if chunk is not None:
                position = max(position, chunk.start)
                self._more = (chunk, position, stop)
                break
            part += 1
            if part < len(self.ranges):
                position = self.ranges[part][0]
            else:
                part, position = part - 1, stop
                break
        self._at = (part, position)

    def _draw_chunks(self, most: int) -> tuple[I64, list[int]]:
        import numpy as np

        n = len(self.slots)
        picks = rng.draw_block(self._stream, self.draws, most, n)
        lefts = np.array([slot.left for slot in self.slots])
        for i in np.flatnonzero(np.bincount(picks, minlength=n) >= lefts).tolist():
            ends = np.flatnonzero(picks == i)
            if len(ends) >= lefts[i]:
                picks = picks[: int(ends[lefts[i] - 1]) + 1]
        return picks, np.bincount(picks, minlength=n).tolist()

    def _draw_rows(self, most: int) -> tuple[I64, list[int]]:
        import numpy as np

        lefts = [slot.left for slot in self.slots]
        lots = Lots(lefts)
        picks: list[int] = []
        most = min(most, sum(lefts), MOST_ROW_DRAWS)
        for word in (rng.mix64_block(self._stream, self.draws, most) >> 32).tolist():
            i = lots.take(word)
            picks.append(i)
            lefts[i] -= 1
            if not lefts[i]:
                break
        return np.array(picks), [slot.left - left for slot, left in zip(self.slots, lefts, strict=True)]

    # --- what readers want to know

    def mark(self) -> Mark:
        slots = tuple((slot, slot.position, slot.left) for slot in self.slots)
        return Mark(
            self.draws,
            self.passed,
            self.digest,
            self.epoch,
            slots,
            self.order,
            self.ranges,
            self._stream,
            self._at,
            self._more,
        )

    def go_to(self, mark: Mark) -> None:
        self.draws, self.passed, self.digest, self.epoch = mark.draws, mark.passed, mark.digest, mark.epoch
        self.order, self.ranges, self._stream = mark.order, mark.ranges, mark.stream
        self._at, self._more = mark.at, mark.more
        self.slots = []
        for slot, position, left in mark.slots:
            slot.position, slot.left = position, left
            self.slots.append(slot)

    def next_place(self) -> tuple[Chunk, int] | None:
        """The oldest chunk with rows left and its next position: without shuffle, the next row. None at the end."""
        if self.slots:
            return self.slots[0].chunk, self.slots[0].position
        return None if self._more is None else (self._more[0], self._more[1])

    def shards_in_use(self) -> set[int]:
        """Shards of the chunks held, and of the window that the next one comes from."""
        return {slot.chunk.shard for slot in self.slots} | self.shards_ahead()

    def shards_ahead(self) -> set[int]:
        """Shards of the window that the next chunk comes from."""
        if self._more is None:
            return set()
        return set(self.order.window_shards(self._more[1], self._more[1] + 1).tolist())

    def shards_to_come(self) -> I64:
        """The shards of what is left of this epoch, in order."""
        place = self.next_place()
        if place is None:
            return self.order.shards[:0]
        first = min([place[1], *(slot.position for slot in self.slots)])
        return self.order.window_shards(first, self.ranges[-1][1])

    def share_of(self, epoch: int) -> list[Range]:
        """What this lane reads of an epoch: by rule, or what was dealt to it when the lanes changed."""
        if epoch < self.ruled_from:
            return list(self.explicit.get(epoch, []))
        return self.orders(epoch).share(self.lane, self.lanes)

    def unread(self) -> list[Range]:
        """What has not been admitted of this epoch's share."""
        part, position = self._at
        return [(position, self.ranges[part][1]), *self.ranges[part + 1 :]] if self.ranges else []

    # --- state

    def _enter(self, epoch: int) -> None:
        self.epoch, self.draws = epoch, 0
        self.slots = []
        self.order = self.orders(epoch)
        self.ranges = [] if self.last is not None and epoch >= self.last else self.share_of(epoch)
        self._stream = rng.key(self.rules.seed, self.rules.source, "pool", self.lane, self.generation, epoch)
        self._at = (0, self.ranges[0][0] if self.ranges else 0)

    def state_dict(self) -> State:
        slots = [(slot.position, slot.left) for slot in self.slots]
        return self._state(self.mark(), slots, self.draws, self.passed, self.digest)

    def state_after(self, mark: Mark, done: Draws, given: int, passed: int) -> State:
        """The state after the first `given` of some draws; `mark`: the moment before them, with chunks admitted."""
        import numpy as np

        if given == done.count:
            taken = list(done.counts)
        elif done.picks is None:
            taken = [given]
        else:
            taken = np.bincount(done.picks[:given], minlength=len(done.counts)).tolist()
        slots = [(p + n, left - n) for (_, p, left), n in zip(mark.slots, taken, strict=True) if left > n]
        digest = rng.digest_block(mark.digest, done.epoch, done.positions[:given])
        return self._state(mark, slots, mark.draws + given, passed, digest)

    def _state(self, mark: Mark, slots: list[tuple[int, int]], draws: int, passed: int, digest: int) -> State:
        (part, position), ranges = mark.at, mark.ranges
        origin = ranges[0][0] if ranges else 0
        admitted = length(ranges[:part]) + position - ranges[part][0] if ranges else 0
        return {
            "e": mark.epoch,
            "c": admitted if slots or draws else 0,
            "k": draws,
            "s": [[p - origin, left] for p, left in slots],
            "f": self.ruled_from,
            "x": [[e, [list(r) for r in ranges]] for e, ranges in sorted(self.explicit.items())],
            "g": self.generation,
            "y": passed,
            "d": digest,
        }

    def load_state_dict(self, state: State) -> None:
        try:
            numbers = {name: _whole(name, state[name], MOST_DIGEST if name == "d" else MOST) for name in "eckfgyd"}
            explicit = {_whole("x", e): _ranges(r) for e, r in state["x"]}
            slots = [(_whole("s", p), _whole("s", left)) for p, left in state["s"]]
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"this is not the state of a source: {shown(error)}; nothing was changed") from error
        self.ruled_from, self.explicit, self.generation = numbers["f"], explicit, numbers["g"]
        self.passed, self.digest = numbers["y"], numbers["d"]
        self._enter(numbers["e"])
        self.draws = numbers["k"]
        self._place(numbers["c"])
        origin = self.ranges[0][0] if self.ranges else 0
        self.slots = [self._slot(origin + p, left) for p, left in slots]

    def _place(self, admitted: int) -> None:
        if admitted > length(self.ranges):
            raise StateError(f"the state has read {admitted} positions of a share of {length(self.ranges)}")
        for part, (start, stop) in enumerate(self.ranges):
            if admitted <= stop - start:
                self._at = (part, start + admitted)
                break
            admitted -= stop - start
        self._look()

    def _slot(self, position: int, left: int) -> Slot:
        try:
            chunk = self.order.chunk_at(position)
        except IndexError:
            raise StateError(f"the state holds position {position}, which this source does not have") from None
        if not 0 < left <= chunk.start + chunk.rows - position:
            raise StateError(f"the state holds {left} rows from position {position} on, beyond the end of their chunk")
        return Slot(chunk, position, left)


def _whole(name: str, value: Any, most: int = MOST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < most:
        raise ValueError(f"{name!r} is {shown(value)!r}, not a whole number from 0 on below {most}")
    return value


def _ranges(value: Any) -> list[Range]:
    return in_order([(_whole("x", start), _whole("x", stop)) for start, stop in value])
