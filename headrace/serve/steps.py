"""An iteration over a loader: its steps, one batch each."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.batch import Batch
from headrace.errors import HeadraceError
from headrace.serve.crew import Crew
from headrace.serve.epoch import Walk
from headrace.serve.going import job_of
from headrace.serve.resume import Place

if TYPE_CHECKING:
    from headrace.serve.loader import Loader


class Steps(Iterator[Batch]):
    """What `iter(loader)` gives. A batch counts as delivered when it leaves here."""

    def __init__(self, loader: Loader, place: Place) -> None:
        self._is_open = self._is_over = False
        self._loader = loader
        self._slots = Slots(loader, place)
        weakref.finalize(self, self._slots.close)  # when nobody holds us any more, and before the interpreter goes
        self._batches = self._on_their_way()
        self._is_torn = False
        """Something came between: batches may have been taken that were never given."""
        self._turn = threading.RLock()
        self._leaving = 0
        """The thread that had the turn last, while it is about to leave with its batch."""
        self._is_open = True

    @property
    def is_open(self) -> bool:
        return self._is_open and not self._is_over

    def _on_their_way(self) -> Iterator[Batch]:
        if self._loader._serving.device is None:
            return self._slots
        from headrace.serve.device import DeviceFeed

        return DeviceFeed(self._slots, self._loader._serving.device)

    def __next__(self) -> Batch:
        """Threads that share us have one turn after the other: each batch goes to one of them."""
        me = threading.get_ident()
        try:
            self._turn.acquire()
            while self._leaving not in (0, me):  # who had the turn before is at its last two lines below
                time.sleep(0)
            batch, place = self._taken()
            self._leaving = me
            self._turn.release()
        except BaseException:
            self._end_turn(me)
            raise
        # Nothing is called from here on, so no signal comes between what the state says and what the trainer has.
        self._loader._place, self._is_torn, self._leaving = place, False, 0
        return batch

    def _taken(self) -> tuple[Batch, Place]:
        """The next batch, and where the run is with it."""
        if self._is_over:
            raise StopIteration
        if not self.is_open:
            raise HeadraceError("this iterator was closed, or a later iter() took its place: go on with that one")
        if self._is_torn:
            self._slots.go_to(self._loader._here)
            self._batches = self._on_their_way()
        self._is_torn = True
        begun = time.perf_counter()
        try:
            batch = next(self._batches)
        except StopIteration:
            place = self._loader._ended(self._slots.end, self._slots.receipts)
            self._loader._place, self._is_over = place, True
            self.close()
            raise
        receipts = batch.receipts
        del batch.receipts
        return batch, self._loader._delivered(batch, receipts, time.perf_counter() - begun)

    def _end_turn(self, me: int) -> None:
        """Something came between: what was taken counts as not given, and the next turn begins anew."""
        if self._leaving == me:
            self._leaving = 0
        with suppress(RuntimeError):  # as often as this thread has it, which is not at all where it waited for it
            while True:
                self._turn.release()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._batches = iter(())  # with what was copied ahead
            self._slots.close()


class Slots(Iterator[Batch]):
    """The micro-batches of this rank in order, until the epoch's end."""

    def __init__(self, loader: Loader, place: Place) -> None:
        self._loader = loader
        self._ending = loader._end_of_epoch()
        self._crew: Crew | None = None
        self.go_to(place)

    @property
    def end(self) -> int | None:
        """The first micro-batch that no lane has any more, once that is known."""
        return self._ending.end

    @property
    def receipts(self) -> dict[int, bytes]:
        """Where the lanes of this rank are. What a lane met while it looked for its end is in there too."""
        return self._receipts

    def go_to(self, place: Place) -> None:
        """Begin there, with new workers."""
        self._let_go(broken=True)
        self._job = job_of(place, self._loader._pipeline.run, 0, 1)
        self._receipts = dict(self._job.states)
        self._passed: dict[int, bytes] = {}
        """Receipts of lanes that were found to be over, and had nothing to give, since the last batch."""
        self._walk = Walk(self._ending, self._loader._pipeline.run, self._job)

    def __next__(self) -> Batch:
        while (m := self._walk.next()) is not None:
            lane = m % self._job.lanes
            try:
                made = self._working(m).take(m)
            except BaseException:
                self._let_go(broken=True)
                raise
            self._walk.took(over=made.over, filling=made.filling)
            self._loader._statistics.lane(made.job, lane, made.dropped, made.truncated)
            if made.truncated:
                self._loader._statistics.warn_of_cuts(
                    self._loader._pipeline.recipe, self._loader._pipeline.samples is not None
                )
            self._loader._note_left_out(made.faults)
            self._receipts[lane] = self._passed[lane] = made.batch.receipt
            if self._job.ranks > 1 or not made.filling:
                del made.batch.receipt
                made.batch.receipts, self._passed = self._passed, {}
                return made.batch
        raise StopIteration

    def _working(self, m: int) -> Crew:
        """Those who make micro-batch `m` and those after it."""
        if self._crew is None:
            self._crew = self._loader._free_crew()
            self._crew.begin(replace(self._job, number=self._loader._next_job(), states=self._receipts, m=m))
        return self._crew

    def _let_go(self, broken: bool) -> None:
        if self._crew is not None:
            crew, self._crew = self._crew, None
            self._loader._release(crew, broken)

    def close(self) -> None:
        self._let_go(broken=False)
