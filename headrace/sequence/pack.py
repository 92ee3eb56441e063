"""Rows to sequences. One packing round makes one micro-batch; what is left over is carried as pieces.

A piece is (source, epoch, position, sample, start, stop): an address. At the end of a round nothing is open but `held`
(pieces that wait for company) and `rest` (what has still to be cut up, a row that is not finished), and restoring
reads their rows again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

from headrace.errors import StateError, shown
from headrace.make.prepare import Ready
from headrace.sequence.describe import Pack
from headrace.sequence.fit import fill
from headrace.sequence.piece import Piece
from headrace.stage import State

Take: TypeAlias = Callable[[], Ready | None]
Fetch: TypeAlias = Callable[[Sequence[tuple[int, int, int]]], Sequence[Ready]]
"""Rows by (source, epoch, position)."""

OLDEST_EVERY = 32
"""Each so many rounds the oldest piece goes out first, so that none waits for ever."""
MOST_HELD = 192
"""Pieces that may wait when a round is over. They stand in the state of the lane, which stays below 8 KiB."""
MOST_CHOSEN = 4096
"""Of more pieces than this none is chosen by its length: it would take long, and a few that are cut do not count."""
TO_THE_END = -1


class Part(NamedTuple):
    """Something still to be cut up: of a sample, or (`stop` -1) of a row from this sample on."""

    row: Ready
    sub: int
    start: int
    stop: int

    @property
    def address(self) -> list[int]:
        return [self.row.source, self.row.epoch, self.row.position, self.sub, self.start, self.stop]


class Packer(ABC):
    def __init__(self, pack: Pack, batch_size: int, cut_sources: Collection[int] = ()) -> None:
        """`cut_sources`: those with a token limit, whose last document may be cut before its end."""
        self._pack, self._size, self._batch, self._cut_sources = pack, pack.seq_len, batch_size, cut_sources
        self._held: list[Piece] = []
        self._rest: deque[Part] = deque()
        # Sequences of a round that an exception ended: the next try goes on with them.
        self._full: list[list[Piece]] = []
        self.truncated = 0
        """Tokens that were cut off, since the packer was made."""

    def make(self, take: Take, rounds: int) -> list[list[Piece]]:
        """The sequences of the next micro-batch: none when nothing is left. `rounds`: how many were made before."""
        self._fill(take)
        out = self._chosen(rounds % OLDEST_EVERY == OLDEST_EVERY - 1)
        self._full = []
        return out

    @property
    def is_empty(self) -> bool:
        return not (self._held or self._rest or self._full)

    @abstractmethod
    def _fill(self, take: Take) -> None: ...

    def _chosen(self, oldest_first: bool) -> list[list[Piece]]:
        return self._full

    def _next(self, take: Take) -> Part | None:
        if self._rest:
            return self._rest.popleft()
        row = take()
        if row is None or row.most is None:
            return None if row is None else Part(row, 0, 0, TO_THE_END)
        self._rest.extend(_first_tokens(row, row.most))
        return self._rest.popleft()

    def _samples(self, part: Part) -> list[tuple[int, int, int]]:
        """(sample, start, stop) of what a part has."""
        if part.stop != TO_THE_END:
            return [(part.sub, part.start, part.stop)]
        spans = [(sub, 0, len(sample.tokens)) for sub, sample in enumerate(part.row.samples)][part.sub :]
        return [(part.sub, part.start, spans[0][2]), *spans[1:]] if part.start else spans

    def _later(self, part: Part, sub: int, start: int) -> None:
        """What of a part has still to be cut up comes first in the next round."""
        last = part.sub if part.stop != TO_THE_END else len(part.row.samples) - 1
        stop = part.stop if part.stop != TO_THE_END else len(part.row.samples[sub].tokens)
        if start >= stop:
            sub, start = sub + 1, 0
        if sub <= last:
            self._rest.appendleft(Part(part.row, sub, start, part.stop))

    def _context(self, start: int) -> int:
        return min(self._pack.overlap, start)

    def _piece(self, row: Ready, sub: int, start: int, stop: int) -> Piece:
        return cut_piece(row, sub, start, stop, self._context(start))

    # --- state

    def state_dict(self) -> State:
        return {"held": [list(piece[:6]) for piece in self._held], "rest": [part.address for part in self._rest]}

    def load_state_dict(self, state: State, fetch: Fetch) -> None:
        held, rest = addresses("held", state), addresses("rest", state)
        rows = dict.fromkeys((c, e, p) for c, e, p, *_ in [*held, *rest])
        found = dict(zip(rows, fetch(list(rows)), strict=True))
        # Rows without a sample are on the skip list by now, or another tokenizer finds nothing in them.
        parts = [
            (is_held, _part(found[c, e, p], sub, start, stop, c in self._cut_sources))
            for is_held, pieces in ((True, held), (False, rest))
            for c, e, p, sub, start, stop in pieces
            if found[c, e, p].samples
        ]
        self._held, self._rest, self._full = [], deque(), []
        for is_held, part in parts:
            if is_held and self._keeps(part):
                self._held.append(self._piece(part.row, part.sub, part.start, part.stop))
            else:
                self._rest.append(part)

    def _keeps(self, part: Part) -> bool:
        """Whether a piece that was held, perhaps by another packer, can be held by this one."""
        return False


class BestFit(Packer):
    """Documents stay whole where they fit; longer ones give full sequences, and their end is a piece like others."""

    def _fill(self, take: Take) -> None:
        total = sum(len(piece.tokens) for piece in self._held)
        while len(self._full) < self._batch and total + len(self._full) * self._size < self._goal():
            part = self._next(take)
            if part is None:
                return
            total += self._cut(part)

    def _goal(self) -> int:
        """Tokens to choose from. Many small pieces fill sequences well without more, which would only wait."""
        return (self._batch + (0 if len(self._held) >= MOST_HELD else self._pack.slack)) * self._size

    def _cut(self, part: Part) -> int:
        """Cut a part up; gives the tokens that became held."""
        held = 0
        for sub, start, stop in self._samples(part):
            while self._context(start) + stop - start >= self._size:
                if len(self._full) == self._batch:
                    self._later(part, sub, start)
                    return held
                end = start + self._size - self._context(start)
                self._full.append([self._piece(part.row, sub, start, end)])
                start = end
            if start < stop:
                if len(self._full) == self._batch:
                    self._later(part, sub, start)
                    return held
                self._held.append(self._piece(part.row, sub, start, stop))
                held += len(self._held[-1].tokens)
        return held

    def _chosen(self, oldest_first: bool) -> list[list[Piece]]:
        most = self._batch - len(self._full)
        if not most or not self._held:
            return self._full
        held = self._held
        if len(held) <= MOST_CHOSEN:
            bins, left = fill([len(piece.tokens) for piece in held], self._size, most, oldest_first)
            if len(left) <= MOST_HELD:
                self._held = [_on_its_own(held[i]) for i in left]
                return [*self._full, *([held[i] for i in pieces] for pieces in bins)]
        return [*self._full, *self._one_after_the_other(most)]

    def _one_after_the_other(self, most: int) -> list[list[Piece]]:
        """Where too many small pieces would be left: all in the order of drawing, cut where a sequence is full."""
        found: list[list[Piece]] = []
        waiting, room = deque(self._held), 0
        while waiting:
            piece = waiting.popleft()
            if room <= piece.context:
                if len(found) == most:
                    waiting.appendleft(piece)
                    break
                found.append([])
                room = self._size
            if len(piece.tokens) > room:
                piece, rest = self._halves(piece, room)
                waiting.appendleft(rest)
            found[-1].append(piece)
            room -= len(piece.tokens)
        self._held = [_on_its_own(piece) for piece in waiting]
        return found

    def _halves(self, piece: Piece, room: int) -> tuple[Piece, Piece]:
        """A piece that is cut after `room` tokens; its context counts."""
        middle = piece.start - piece.context + room
        context = self._context(middle)
        begin = room - context
        first = piece._replace(
            stop=middle, tokens=piece.tokens[:room], loss=None if piece.loss is None else piece.loss[:room]
        )
        second = piece._replace(
            start=middle,
            context=context,
            tokens=piece.tokens[begin:],
            loss=None if piece.loss is None else piece.loss[begin:],
        )
        return first, second

    def _keeps(self, part: Part) -> bool:
        return part.stop != TO_THE_END and self._context(part.start) + part.stop - part.start < self._size


class Concat(Packer):
    """One document after the other, cut wherever a sequence is full. Nothing is dropped, nothing is held."""

    def __init__(self, pack: Pack, batch_size: int, cut_sources: Collection[int] = ()) -> None:
        super().__init__(pack, batch_size, cut_sources)
        self._room = 0

    def _fill(self, take: Take) -> None:
        while len(self._full) < self._batch or self._room:
            part = self._next(take)
            if part is None:
                return
            self._cut(part)

    def _cut(self, part: Part) -> None:
        for sub, start, stop in self._samples(part):
            while start < stop:
                if self._room <= self._context(start):  # full, or no room for a new token behind the overlap
                    if len(self._full) == self._batch:
                        self._room = 0
                        self._later(part, sub, start)
                        return
                    self._full.append([])
                    self._room = self._size
                end = min(stop, start + self._room - self._context(start))
                self._full[-1].append(self._piece(part.row, sub, start, end))
                self._room -= len(self._full[-1][-1].tokens)
                start = end

    def _chosen(self, oldest_first: bool) -> list[list[Piece]]:
        self._room = 0
        return self._full


class Single(Packer):
    """One sample, one sequence. What does not fit is cut off, and counted."""

    def _fill(self, take: Take) -> None:
        while len(self._full) < self._batch:
            part = self._next(take)
            if part is None:
                return
            for sub, start, stop in self._samples(part):
                if len(self._full) == self._batch:
                    self._later(part, sub, start)
                    break
                end = min(stop, start + self._size - self._context(start))
                self.truncated += stop - end
                self._full.append([self._piece(part.row, sub, start, end)])


PACKERS: dict[str, type[Packer]] = {"best_fit": BestFit, "concat": Concat, "none": Single}


def cut_piece(row: Ready, sub: int, start: int, stop: int, context: int) -> Piece:
    """Tokens of a sample, with so many before them as context."""
    sample = row.samples[sub]
    loss = None if sample.loss is None else sample.loss[start - context : stop]
    tokens = sample.tokens[start - context : stop]
    return Piece(row.source, row.epoch, row.position, sub, start, stop, context, tokens, loss, row.shard, row.row)


def _first_tokens(row: Ready, most: int) -> list[Part]:
    """The first `most` tokens of a row, sample by sample, so that each part says where it ends."""
    parts: list[Part] = []
    for sub, sample in enumerate(row.samples):
        stop = min(len(sample.tokens), most)
        if stop:
            parts.append(Part(row, sub, 0, stop))
        most -= stop
    return parts


def _on_its_own(piece: Piece) -> Piece:
    """A piece that stays: its tokens would keep the whole block alive that they were made in."""
    if piece.tokens.base is None:
        return piece
    return piece._replace(tokens=piece.tokens.copy(), loss=None if piece.loss is None else piece.loss.copy())


def addresses(name: str, state: State) -> list[list[int]]:
    """The pieces under `name` in a state."""
    found: Any = state.get(name)
    if not isinstance(found, list) or not all(isinstance(a, list) and [type(x) for x in a] == [int] * 6 for a in found):
        raise StateError(f"{name}: a list of pieces, each of six whole numbers, is expected, not {shown(found)!r}")
    return found


def _part(row: Ready, sub: int, start: int, stop: int, may_be_cut: bool) -> Part:
    length = len(row.samples[sub].tokens) if 0 <= sub < len(row.samples) else 0
    end = length if stop == TO_THE_END else stop
    # What waits goes to the end of its sample, unless a token limit cut the document.
    if not 0 <= start < end or end > length or (end < length and not may_be_cut):
        raise StateError(
            f"the state holds tokens {start} to {stop} of sample {sub} of {row.shard}:{row.row}, which has "
            f"{len(row.samples)} samples, this one of {length} tokens; did the data or the tokenizer change? (Or was a "
            f"token limit taken out of the recipe? Give the part a higher one instead.)"
        )
    return Part(row, sub, start, stop)
