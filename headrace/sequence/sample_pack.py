"""Samples to sequences: several share one, and each brings its media along.

What waits is one list, in the order of drawing. A round cuts sequences out of it, and what is left is carried as
addresses. Media are decoded when their sequence is given out, not before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import DataError, FetchError, SourceError, SpecError, StateError, shown
from headrace.make.describe import Faults
from headrace.make.prepare import Ready
from headrace.make.sample import ERROR, MEDIA_STOP, has_media
from headrace.mix.turns import Pick
from headrace.sequence.cost import Cost, MediaTokens, media_tokens_of
from headrace.sequence.describe import Pack
from headrace.sequence.finish import Finish
from headrace.sequence.fit import fill
from headrace.sequence.pack import MOST_CHOSEN, MOST_HELD, OLDEST_EVERY, TO_THE_END, Fetch, addresses, cut_piece
from headrace.sequence.piece import Piece
from headrace.sequence.samples import SampleBatcher
from headrace.stage import State

if TYPE_CHECKING:
    Key = tuple[int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Samples that share sequences."""

    pack: Pack
    cost: Cost
    batch_size: int
    """Sequences of a micro-batch."""


def packing_of(
    pack: Pack | str, seq_len: int | None, media_tokens: MediaTokens | None, finish: Finish, batch_size: int
) -> Packing:
    """What is asked for, checked. A sequence is by default as long as a sample may be."""
    if isinstance(pack, Pack):
        if seq_len not in (None, pack.seq_len):
            raise SpecError(f"seq_len={shown(seq_len)}, and pack has seq_len={pack.seq_len}; give one of them")
    else:
        method: Any = pack
        pack = Pack(method=method, seq_len=finish.max_length if seq_len is None else seq_len)
    cost = Cost(tokens=media_tokens_of(media_tokens), finish=finish)
    return Packing(pack=pack, cost=cost, batch_size=batch_size)


class Waiting(NamedTuple):
    """A sample, or what is left of a long text, that waits for its sequence."""

    pick: Pick
    start: int
    """Tokens that were given before."""
    stop: int
    """Up to here it is given; after it, it does not fit."""
    media: int
    """Tokens that its media take."""
    whole: bool
    """It has media, and stays in one piece."""

    @property
    def key(self) -> Key:
        row = self.pick.row
        return row.source, row.epoch, row.position, self.pick.sub


class Placed(NamedTuple):
    """A piece of a sequence, with what goes along."""

    piece: Piece
    beside: dict[str, Any]
    media: int = 0


class Entry(NamedTuple):
    """What a state says of a sample that waits: so many copies of it, or one from a token on."""

    pick: Pick
    given: int
    start: int


class SamplePacker(SampleBatcher):
    def __init__(
        self,
        packing: Packing,
        repeat: int,
        finish: Callable[[Ready, int], dict[str, Any]],
        address: Callable[[Ready], str],
        faults: Faults,
        take_back: Callable[[Pick], None],
    ) -> None:
        """`repeat`: so many times each sample is given. `finish`: decodes what a sample has. `address`: of a row, for
        people. `take_back`: is told of a sample that could not be given."""
        super().__init__(packing.batch_size, repeat, packing.pack.seq_len, finish, faults, take_back)
        self._pack, self._cost, self._address = packing.pack, packing.cost, address
        self._size = packing.pack.seq_len
        self._todo: deque[Entry] = deque()
        """Taken, or read from a state, and not yet looked at."""
        self._held: list[Waiting] = []
        self._open: list[list[Waiting]] = []
        """Sequences that are to be finished."""
        self._done: list[list[Placed]] = []
        """Of a batch that an exception ended: the next try goes on with them."""
        self._decoded: dict[Key, dict[str, Any]] = {}

    def make(self, take: Callable[[], Any], rounds: int) -> Sequence[list[Placed]]:
        """The sequences of the next micro-batch: none when nothing is left. `rounds`: how many were made before."""
        while len(self._done) < self._batch:
            if not self._open:
                self._fill(take)
                self._open = self._chosen(self._batch - len(self._done), rounds % OLDEST_EVERY == OLDEST_EVERY - 1)
            if not self._open:
                break
            sequence = self._finished(self._open[0])
            self._open.pop(0)
            if sequence:
                self._done.append(sequence)
        out, self._done, self._decoded = self._done, [], {}
        return out

    # --- what waits

    def _fill(self, take: Callable[[], Any]) -> None:
        """So many samples that there is something to choose from."""
        most, single = self._batch - len(self._done), self._pack.method == "none"
        have = sum(1 if single else self._room_of(one) for one in self._held)
        while self._todo or have < (most if single else (most + self._slack) * self._size):
            if not self._todo:
                pick = take()
                if pick is None:
                    return
                self._todo.append(Entry(pick, 0, 0))
            before = len(self._held)
            self._admit(self._todo[0])
            self._todo.popleft()
            have += sum(1 if single else self._room_of(one) for one in self._held[before:])

    @property
    def _slack(self) -> int:
        """Sequences that there is something to choose for, beside those of the batch."""
        return self._pack.slack if self._pack.method == "best_fit" and len(self._held) < MOST_HELD else 0

    def _admit(self, entry: Entry) -> None:
        """Its copies wait from now on; one that can never be given is skipped, or an error."""
        try:
            one = self._waiting(entry)
        except (DataError, SourceError, FetchError) as error:
            self._skip(error)
            if not entry.given and not entry.start:
                self._take_back(entry.pick)
        else:
            self._held += [one] * (1 if entry.start else self._repeat - entry.given)

    def _waiting(self, entry: Entry) -> Waiting:
        pick = entry.pick
        sample = pick.row.samples[pick.sub]
        extras, length = sample.extras or {}, len(sample.tokens)
        if isinstance(extras.get(ERROR), BaseException):
            raise extras[ERROR]
        if not has_media(extras):
            one = Waiting(pick, entry.start, length, 0, False)
            return self._cut(one, self._size)[0] if self._pack.method == "none" else one
        try:
            media = self._cost.expected(extras)
            return Waiting(pick, 0, self._stop(length, extras.get(MEDIA_STOP, length), media), media, True)
        except DataError as error:
            error.add_note(f"in {self._address(pick.row)}")
            raise

    def _stop(self, length: int, media_stop: int, media: int) -> int:
        """How many tokens of a sample fit beside its media: all up to the last of them must."""
        stop = min(length, self._size - media)
        if stop < min(length, media_stop) or stop < 1:
            raise DataError(
                f"its media take {media:,} tokens, and the text up to the last of them {media_stop:,}: more than the "
                f"seq_len={self._size:,} of a sequence, and only text after media may be cut off; raise seq_len, or "
                f"lower media_tokens or max_video_frames"
            )
        return stop

    def _room_of(self, one: Waiting) -> int:
        return self._context(one) + one.stop - one.start + one.media

    def _context(self, one: Waiting) -> int:
        return min(self._pack.overlap, one.start)

    # --- which of them share a sequence

    def _chosen(self, most: int, oldest_first: bool) -> list[list[Waiting]]:
        if self._pack.method == "none":
            chosen, self._held = self._held[:most], self._held[most:]
            return [[one] for one in chosen]
        if self._pack.method == "concat":
            return self._one_after_the_other(most)
        return self._best_fit(most, oldest_first)

    def _cut(self, one: Waiting, room: int) -> tuple[Waiting, Waiting | None]:
        """What of a text fits, and the rest of it."""
        end = min(one.stop, one.start + room - self._context(one))
        return one._replace(stop=end), None if end == one.stop else one._replace(start=end)

    def _best_fit(self, most: int, oldest_first: bool) -> list[list[Waiting]]:
        """Long texts give full sequences, and their ends are pieces like others."""
        found: list[list[Waiting]] = []
        held: list[Waiting] = []
        for one in self._held:
            rest: Waiting | None = one
            while rest is not None and len(found) < most and not rest.whole and self._room_of(rest) >= self._size:
                full, rest = self._cut(rest, self._size)
                found.append([full])
            held += [rest] if rest is not None else []
        if len(found) == most or not held:
            self._held = held
            return found
        if len(held) <= MOST_CHOSEN:
            bins, left = fill([self._room_of(one) for one in held], self._size, most - len(found), oldest_first)
            if len(left) <= MOST_HELD:
                self._held = [held[i] for i in left]
                return [*found, *([held[i] for i in pieces] for pieces in bins)]
        self._held = held
        return [*found, *self._one_after_the_other(most - len(found))]

    def _one_after_the_other(self, most: int) -> list[list[Waiting]]:
        """Texts are cut where a sequence is full; what has media begins a new one where it does not fit."""
        found: list[list[Waiting]] = []
        waiting, room = deque(self._held), 0
        while waiting:
            one = waiting[0]
            if (self._room_of(one) if one.whole else self._context(one) + 1) > room:
                if len(found) == most:
                    break
                found.append([])
                room = self._size
            waiting.popleft()
            part, rest = (one, None) if one.whole else self._cut(one, room)
            found[-1].append(part)
            room -= self._room_of(part)
            if rest is not None:
                waiting.appendleft(rest)
        self._held = list(waiting)
        return found

    # --- decoding

    def _finished(self, sequence: list[Waiting]) -> list[Placed]:
        """The pieces of a sequence; without those that could not be decoded, and may be skipped."""
        while (failed := self._failed(sequence)) is not None:
            one, error = failed
            self._skip(error)
            self._drop(one)
        self.truncated += sum(self._is_cut(one) and self._is_last(i, sequence) for i, one in enumerate(sequence))
        return [Placed(self._piece(one), self._decoded[one.key], self._media(one)) for one in sequence]

    def _is_cut(self, one: Waiting) -> bool:
        """Whether its end is never given; that of a text comes in another sequence."""
        lost = one.stop < len(one.pick.row.samples[one.pick.sub].tokens)
        return lost and (one.whole or self._pack.method == "none")

    def _is_last(self, i: int, sequence: Sequence[Waiting]) -> bool:
        """Whether no copy of it comes later: each sample counts once."""
        later = [*sequence[i + 1 :], *self._held, *(other for waiting in self._open[1:] for other in waiting)]
        return all(other.key != sequence[i].key for other in later)

    def _failed(self, sequence: Sequence[Waiting]) -> tuple[Waiting, Exception] | None:
        """The first that cannot be decoded, or that is longer than was thought."""
        for one in sequence:
            try:
                if one.key not in self._decoded:
                    self._decoded[one.key] = self._finish(one.pick.row, one.pick.sub)
            except (DataError, SourceError, FetchError) as error:
                return one, error
        if sum(self._room_of(one) - one.media + self._media(one) for one in sequence) <= self._size:
            return None
        one = max(sequence, key=lambda one: self._media(one) - one.media)
        longer = DataError(
            f"its media take {self._media(one):,} tokens now that they are decoded, and {one.media:,} were counted "
            f"before, so that its sequence does not fit into seq_len={self._size:,}; give media_tokens that are not "
            f"below what it takes"
        )
        longer.add_note(f"in {self._address(one.pick.row)}")
        return one, longer

    def _media(self, one: Waiting) -> int:
        """Tokens that its media take, now that they are decoded."""
        sample = one.pick.row.samples[one.pick.sub]
        return self._cost.actual(sample.extras or {}, self._decoded[one.key]) if one.whole else 0

    def _drop(self, one: Waiting) -> None:
        """A sample that cannot be given: all its copies go. It does not count, unless one was given before."""
        lists = [self._held, *self._open]
        copies = sum(other.key == one.key for waiting in lists for other in waiting)
        for waiting in lists:
            waiting[:] = [other for other in waiting if other.key != one.key]
        if copies == self._repeat:
            self._take_back(one.pick)

    def _piece(self, one: Waiting) -> Piece:
        import numpy as np

        piece = cut_piece(one.pick.row, one.pick.sub, one.start, one.stop, self._context(one))
        extras = one.pick.row.samples[one.pick.sub].extras or {}
        if extras.get("is_training", True):
            return piece
        return piece._replace(loss=np.zeros(len(piece.tokens), dtype=np.bool_))

    # --- state

    @property
    def is_empty(self) -> bool:
        return not (self._todo or self._held or self._open or self._done)

    def state_dict(self) -> State:
        """Of whole samples, how many copies were given; of what is left of a text, from where to where it goes."""
        rest: list[list[int]] = []
        for one in self._held:
            if one.start:
                rest.append([*one.key, one.start, one.stop])
            elif rest and rest[-1][:4] == list(one.key) and rest[-1][5] == TO_THE_END:
                rest[-1][4] -= 1
            else:
                rest.append([*one.key, self._repeat - 1, TO_THE_END])
        for pick, given, start in self._todo:
            stop = len(pick.row.samples[pick.sub].tokens) if start else TO_THE_END
            rest.append([pick.row.source, pick.row.epoch, pick.row.position, pick.sub, start or given, stop])
        return {"rest": rest, "bad": self.skipped}

    def load_state_dict(self, state: State, fetch: Fetch) -> None:
        parts = addresses("rest", state)
        rows = fetch([(c, e, p) for c, e, p, *_ in parts])
        found: deque[Entry] = deque()
        for row, (_, _, _, sub, start, stop) in zip(rows, parts, strict=True):
            length = len(row.samples[sub].tokens) if 0 <= sub < len(row.samples) else -1
            if length < 0 or start < 0 or (stop != TO_THE_END and not 0 <= start < stop <= length):
                raise StateError(
                    f"the state holds sample {sub} of {row.shard}:{row.row} from {start} to {stop}, which has "
                    f"{len(row.samples)} samples, this one of {max(length, 0)} tokens; did the data change?"
                )
            whole = has_media(row.samples[sub].extras or {}) if length >= 0 else False
            if stop != TO_THE_END:
                found.append(Entry(Pick(row, sub), self._repeat - 1, 0 if whole else start))
            elif start < self._repeat:
                found.append(Entry(Pick(row, sub), start, 0))
        self._load_bad(state)
        self._todo, self._held, self._open, self._done, self._decoded = found, [], [], [], {}
