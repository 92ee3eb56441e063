"""An iteration over a loader: its steps, one batch each."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.batch import Batch
from headrace.errors import HeadraceError
from headrace.serve.crew import Crew
from headrace.serve.epoch import Ending
from headrace.serve.resume import Place
from headrace.serve.worker import Job

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
        self._is_open = True

    @property
    def is_open(self) -> bool:
        return self._is_open and not self._is_over

    def _on_their_way(self) -> Iterator[Batch]:
        if self._loader.serving.device is None:
            return self._slots
        from headrace.serve.device import DeviceFeed

        return DeviceFeed(self._slots, self._loader.serving.device)

    def __next__(self) -> Batch:
        if self._is_over:
            raise StopIteration
        if not self.is_open:
            raise HeadraceError("this iterator was closed, or a later iter() took its place: go on with that one")
        if self._is_torn:
            self._slots.go_to(self._loader.place)
            self._batches = self._on_their_way()
        self._is_torn = True
        begun = time.perf_counter()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._loader.place = self._loader.ended()
            self._is_over = True
            self.close()
            raise
        receipt = batch.receipt
        del batch.receipt
        self._loader.place = self._loader.delivered(batch, receipt, time.perf_counter() - begun)
        # Nothing is called from here on, so no signal comes between what the state says and what the trainer has.
        self._is_torn = False
        return batch

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._batches = iter(())  # with what was copied ahead
            self._slots.close()


class Slots(Iterator[Batch]):
    """The micro-batches of this rank in order, until the epoch's end."""

    def __init__(self, loader: Loader, place: Place) -> None:
        self._loader, self._ranks = loader, loader.ranks
        self._ending = Ending(loader, place)
        self._crew: Crew | None = None
        self.go_to(place)

    def go_to(self, place: Place) -> None:
        """Begin there, with new workers."""
        self._let_go(broken=True)
        self._epoch, self._lanes = place.epoch, len(place.lanes)
        self._m = place.m + self._loader.rank
        own = [(self._m + turn * self._ranks) % self._lanes for turn in range(self._lanes // self._ranks)]
        self._receipts = {lane: place.lanes[lane] for lane in own}
        self._going = {lane for lane in own if not json.loads(place.lanes[lane])["o"]}
        """Lanes that are not over."""

    def __next__(self) -> Batch:
        while not self._ending.is_here(self._m - self._loader.rank, self._going):
            if self._ranks == 1:  # nobody to keep step with: the slots of lanes that are over are passed by
                while self._m % self._lanes not in self._going:
                    self._m += 1
            lane = self._m % self._lanes
            try:
                made = self._working().take(self._m)
            except BaseException:
                self._let_go(broken=True)
                raise
            if made.over:
                self._going.discard(lane)
            self._loader.statistics.lane(made.job, lane, made.dropped, made.truncated)
            self._loader.left_out(made.faults)
            self._receipts[lane] = made.batch.receipt
            self._m += self._ranks
            if self._ranks > 1 or not made.filling:
                return made.batch
        raise StopIteration

    def _working(self) -> Crew:
        if self._crew is None:
            self._crew = self._loader.crew()
            job = Job(
                number=self._loader.next_job(),
                epoch=self._epoch,
                states=self._receipts,
                lanes=self._lanes,
                m=self._m,
                ranks=self._ranks,
            )
            self._crew.begin(job)
        return self._crew

    def _let_go(self, broken: bool) -> None:
        if self._crew is not None:
            crew, self._crew = self._crew, None
            self._loader.release(crew, broken)

    def close(self) -> None:
        self._let_go(broken=False)
