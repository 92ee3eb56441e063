"""Samples to batches of samples: finished, and each given several times if asked."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from headrace.errors import DataError, FetchError, SourceError, StateError, shown
from headrace.make.describe import Faults
from headrace.make.prepare import Ready
from headrace.mix.turns import Pick
from headrace.sequence.pack import TO_THE_END, Fetch, addresses
from headrace.sequence.room import Room
from headrace.sequence.side_by_side import ALONE, Begin, Helpers
from headrace.stage import State

log = logging.getLogger("headrace")


class Finished(NamedTuple):
    row: Ready
    made: dict[str, Any]
    room: Room | None = None
    """Where the pictures of its batch were made."""


class SampleBatcher:
    def __init__(
        self,
        batch_size: int,
        repeat: int,
        max_length: int,
        finish: Callable[..., dict[str, Any]],
        faults: Faults,
        take_back: Callable[[Pick], None],
        helpers: Helpers = ALONE,
    ) -> None:
        """`repeat`: so many times in a row each sample is given. `finish`: decodes what a sample has, of a row and
        its number in it; and, given a third thing, the picture in there. `take_back`: is told of a sample that could
        not be given. `helpers`: they decode the samples of a batch side by side."""
        self._batch, self._repeat, self._max_length = batch_size, repeat, max_length
        self._finish, self._faults, self._take_back = finish, faults, take_back
        self._items: list[Finished] = []
        """Of a batch that an exception ended: the next try goes on with them."""
        self._rest: deque[tuple[Pick, int]] = deque()
        """Samples, and how often each was given."""
        self._made: dict[str, Any] | None = None
        """The first of them, finished: it is given again as it is."""
        self._ahead = faults.policy == "raise" and batch_size > 1  # what is skipped decides what is taken next
        self._helpers = helpers
        self._begun: dict[int, Callable[[], dict[str, Any]]] = {}
        """How samples of this batch are got, by the identity of their picks, which wait in `rest`."""
        self.picture_size: int | None = None
        """Where each sample of a batch has one picture of so many pixels squared, they are made in one room. None:
        each has memory of its own."""
        self._room: Room | None = None
        self.make_ready: Callable[[int], bool] = lambda samples: False
        """Has some of the rows made ready that the next so many samples come from, while others decode."""
        self.skipped = 0
        self.truncated = 0
        """Samples of which the end did not fit."""

    def make(self, take: Callable[[], Any], rounds: int) -> Sequence[Any]:
        """The next `Finished` samples: none when nothing is left."""
        if not self._ahead:
            return self._given(take)
        next_two = partial(self.make_ready, -(-2 * self._batch // self._repeat))
        with self._helpers.jobs(next_two) as begin:
            try:
                self._begin_batch(take, begin)
                return self._given(take)
            finally:
                self._begun, self._room = {}, None

    def _begin_batch(self, take: Callable[[], Any], begin: Begin) -> None:
        """Have the samples of a whole batch decoded: each when it is taken, or, where all may be pictures in one room,
        when all are there."""
        pictures = []
        for pick in self._whole_batch(take):
            if self.picture_size is not None and _has_one_picture(pick):
                pictures.append(pick)
            else:
                self._begun[id(pick)] = begin(partial(self._finish, pick.row, pick.sub))
        slots: Sequence[tuple[Any, ...]] = [()] * len(pictures)
        if self.picture_size is not None and len(pictures) == self._batch:
            self._room = Room(len(pictures), self.picture_size)
            slots = [(slot,) for slot in self._room.slots]
        for pick, slot in zip(pictures, slots, strict=True):
            self._begun[id(pick)] = begin(partial(self._finish, pick.row, pick.sub, *slot))

    def _given(self, take: Callable[[], Any]) -> Sequence[Any]:
        while len(self._items) < self._batch:
            if not self._rest:
                pick = take()
                if pick is None:
                    break
                self._rest.append((pick, 0))
            self._one(*self._rest[0])
        out, self._items = self._items, []
        return out

    def _whole_batch(self, take: Callable[[], Any]) -> Iterator[Pick]:
        """Take the samples of a whole batch; those that are still to be decoded."""
        there = len(self._items) + sum(self._repeat - given for _, given in self._rest)
        yield from [pick for pick, _ in self._rest][0 if self._made is None else 1 :]
        while there < self._batch and (pick := take()) is not None:
            self._rest.append((pick, 0))
            there += self._repeat
            yield pick

    def only_count(self) -> None:
        """From here on nothing is decoded, where that cannot make a difference to what comes after."""
        if self._faults.policy == "raise":
            self._made, self._finish, self._ahead = None, lambda row, sub: {}, False

    def _one(self, pick: Pick, given: int) -> None:
        """Give the first of the rest once more. It stays there until it was given often enough."""
        if self._made is None:
            try:
                begun = self._begun.pop(id(pick), None)
                self._made = self._finish(pick.row, pick.sub) if begun is None else begun()
            except (DataError, SourceError, FetchError) as error:
                self._skip(error)
                self._rest.popleft()
                if not given:
                    self._take_back(pick)
                return
        self._items.append(Finished(pick.row, self._made, self._room))
        if given + 1 < self._repeat:
            self._rest[0] = (pick, given + 1)
        else:
            self._rest.popleft()
            self._made = None
        if not given and len(pick.row.samples[pick.sub].tokens) > self._max_length:
            self.truncated += 1

    def _skip(self, error: Exception) -> None:
        if self._faults.policy == "raise":
            raise error
        if self.skipped >= self._faults.budget:
            error.add_note(f"{self.skipped} rows of this lane were skipped before it, which is all that may be")
            raise error
        self.skipped += 1
        log.warning("skipped (%d of at most %d): %s", self.skipped, self._faults.budget, shown(_told(error), 1000))

    @property
    def is_empty(self) -> bool:
        return not self._items and not self._rest

    def state_dict(self) -> State:
        rest = [[p.row.source, p.row.epoch, p.row.position, p.sub, given, TO_THE_END] for p, given in self._rest]
        return {"rest": rest, "bad": self.skipped}

    def load_state_dict(self, state: State, fetch: Fetch) -> None:
        parts = addresses("rest", state)
        rows = fetch([(c, e, p) for c, e, p, *_ in parts])
        found: deque[tuple[Pick, int]] = deque()
        for row, part in zip(rows, parts, strict=True):
            sub, given = part[3], self._repeat - copies_in(part, self._repeat)
            if not 0 <= sub < len(row.samples) or part[4] < 0:
                raise StateError(f"the state holds sample {sub} of {row.shard}:{row.row}, which has {len(row.samples)}")
            if given < self._repeat:
                found.append((Pick(row, sub), given))
        self._load_bad(state)
        self._items, self._rest, self._made = [], found, None

    def _load_bad(self, state: State) -> None:
        if type(state.get("bad")) is not int or state["bad"] < 0:
            raise StateError(f"bad: a count of skipped rows is expected, not {shown(state.get('bad'))!r}")
        self.skipped = state["bad"]


def is_untouched(part: Sequence[int]) -> bool:
    """Of a sample that waits: whether nothing of it was ever given."""
    return part[4] == 0 and part[5] == TO_THE_END


def copies_in(part: Sequence[int], repeat: int) -> int:
    """Of a sample that waits, as a state has it: how often it has still to be given.

    Whole samples say how often they were given, and end with -1. What is left of a text that a packer cut says from
    where to where it goes, and is one copy.
    """
    return max(0, repeat - part[4]) if part[5] == TO_THE_END else 1


def _has_one_picture(pick: Pick) -> bool:
    extras = pick.row.samples[pick.sub].extras or {}
    return extras.get("image") is not None and extras.get("images") is None


def _told(error: Exception) -> str:
    return "; ".join([str(error), *getattr(error, "__notes__", [])])
