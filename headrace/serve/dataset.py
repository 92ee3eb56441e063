"""A loader's batches as an IterableDataset, for those who bring their own DataLoader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from headrace.batch import Batch
from headrace.errors import SpecError, StateError, shown
from headrace.serve.epoch import Ending, Walk, epoch_start, is_sized
from headrace.serve.going import job_of, mark
from headrace.serve.lane_state import lane_of
from headrace.serve.peers import Peers
from headrace.serve.pipeline import Pipeline
from headrace.serve.resume import Place
from headrace.serve.statistics import warn_of_cut
from headrace.serve.turnstile import Turnstile
from headrace.serve.worker import Job, Maker
from headrace.serve.wrappers import refuse_second_split
from headrace.stage import State
from headrace.torch_data import IterableDataset, get_worker_info

FORMAT = 1


class LaneDataset(IterableDataset[Batch]):
    """Batches are whole: use it with `DataLoader(dataset, batch_size=None, num_workers=W)`.

    A DataLoader asks its workers in turn, so W must divide the rank's lanes. All ranks end at the same step, as those
    of the loader do; one rank alone ends when each worker's lanes are over. `steps_per_epoch` and `tail` are the
    loader's.

    Data with an end: `iter()` gives the same epoch again, until `set_epoch`. An endless run goes on where the last loop
    stopped, in this process; what workers had given by then nobody tells us, so a second loop over them is refused.
    Under `StatefulDataLoader` each worker's state is kept and exact; a plain DataLoader keeps none: `headrace.Loader`
    is the way to exact state with workers.
    """

    def __init__(
        self, pipeline: Pipeline, place: Place, steps: int | None = None, peers: Callable[[], Peers] | None = None
    ) -> None:
        """`steps`: of an epoch, where set. `peers`: of the process that this is made in."""
        self._pipeline, self._place, self._steps, self._peers = pipeline, place, steps, peers
        self.begun = place
        """Where the loader was."""
        self._workers = Turnstile()
        self._now: LaneBatches | None = None
        self._loaded: State | None = None

    def __iter__(self) -> Iterator[Batch]:
        self._check_wrappers()
        self._go_on()
        if self._is_lost():
            error = SpecError(
                "a second loop over an endless run in the workers of a DataLoader cannot go on where the first one "
                "stopped: only the trainer knows what it got; iterate over the loader itself, with num_workers= there, "
                "or use num_workers=0 here, or load the state of a StatefulDataLoader"
            )
            if get_worker_info() is None:
                raise error
            return Refused(error)
        job, place = self._job()
        self._let_go()
        self._now = LaneBatches(self._pipeline, job, place, self._ending(place))
        self._place, self._loaded = (place if self._pipeline.is_endless else self._place), None
        return self._now

    def __getstate__(self) -> dict[str, Any]:
        """On its way to a worker: without what is open here."""
        self._check_wrappers()
        place = self._now.left_at() if self._now is not None and self._pipeline.is_endless else self._place
        return {**self.__dict__, "_place": place, "_now": None, "_peers": None}

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` gives this epoch; an endless run goes on where it is. Trainers that find this method call
        it."""
        self._check_wrappers()
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise SpecError(f"set_epoch({shown(epoch)}): a whole number from 0 on is expected")
        self._go_on()
        if epoch != self._place.epoch:
            limited = [part.name for part in self._pipeline.recipe.parts if part.tokens is not None]
            if limited and not self._pipeline.is_endless:
                raise SpecError(
                    f"set_epoch({epoch}): {shown(limited[0])} has a limit in tokens, which counts over all epochs, and "
                    f"what the workers of a DataLoader gave is not known here; iterate over the headrace.Loader itself"
                )
            self._place = epoch_start(self._pipeline, self._place, epoch)

    def _check_wrappers(self) -> None:
        refuse_second_split(self._pipeline.run.world_size, "dataset")

    def _go_on(self) -> None:
        """An endless run is where it was left."""
        if self._now is not None and self._pipeline.is_endless:
            self._place = self._now.left_at()
            self._let_go()

    def _is_lost(self) -> bool:
        """Whether nobody here knows where to go on: what workers of a DataLoader gave is known to its trainer alone."""
        if not self._pipeline.is_endless or self._loaded is not None:
            return False
        worker = get_worker_info()
        if worker is None:
            return self._workers.peek()[0] > 0
        return self._workers.enter(str(worker.seed - worker.id), worker.id).epoch > 0

    def _ending(self, place: Place) -> Ending:
        pipeline, ranks = self._pipeline, self._pipeline.run.world_size
        agree = ranks > 1 and self._steps is None and not pipeline.is_endless and not is_sized(pipeline)
        if agree and get_worker_info() is not None:
            raise SpecError(
                f"one exact pass over data that cannot be counted, on {ranks} ranks: they must agree on the last step, "
                f"which the workers of a DataLoader cannot; iterate over the loader itself, or use num_workers=0, or "
                f"set steps_per_epoch"
            )
        return Ending(pipeline, place, self._steps, self._peers)

    def _job(self) -> tuple[Job, Place]:
        """What this process makes, from the start of the epoch or from where a state says; and the place of the run
        that this is of."""
        place, run, worker = self._place, self._pipeline.run, get_worker_info()
        lanes, ranks = len(place.lanes), run.world_size
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        if lanes // ranks % workers:
            raise SpecError(
                f"num_workers={workers} does not divide the {lanes // ranks} lanes of this rank: a DataLoader asks its "
                f"workers in turn; make the loader with lanes={ranks * workers} or a multiple, or iterate over it"
            )
        job = job_of(place, run, number, workers)
        if self._loaded is None:
            return job, place
        if self._loaded["epoch"] != place.epoch:
            place = epoch_start(self._pipeline, place, self._loaded["epoch"])
        place = replace(place, m_epoch=self._loaded.get("m_epoch", place.m_epoch))
        return self._moved(job, self._loaded), place

    def _moved(self, job: Job, state: State) -> Job:
        found = {int(lane): one.encode() for lane, one in json.loads(state["lanes"]).items()}
        if (
            state["of"] != mark(self._pipeline, job.lanes)
            or set(found) != set(job.states)
            or state["m"] % job.lanes not in found
        ):
            raise StateError(
                "this state of a worker is of another recipe, other data, or another number of lanes, ranks or workers;"
                " give it to a DataLoader like the one that made it, or use headrace.Loader, whose states go anywhere"
            )
        return replace(job.at(state["m"], found), epoch=state["epoch"])

    def _let_go(self) -> None:
        if self._now is not None:
            self._now.close()
            self._now = None

    # --- what StatefulDataLoader asks, in the worker

    def state_dict(self) -> State:
        if self._loaded is not None:
            return self._loaded
        if self._now is not None:
            place, m, lanes = self._now.now()
        else:
            job, place = self._job()
            m, lanes = next(job.slots()), job.states
        self._pipeline.needs.saved([lanes.get(lane) for lane in range(len(place.lanes))])
        texts = json.dumps({str(lane): lanes[lane].decode() for lane in sorted(lanes)})
        of = mark(self._pipeline, len(place.lanes))
        return {
            "format": FORMAT,
            "of": of,
            "epoch": place.epoch,
            "m": m,
            "m_epoch": place.m_epoch,
            "lanes": texts,
        }

    def load_state_dict(self, state: State) -> None:
        """The next `iter()` goes on from there; those after it begin anew, or go on where the run is endless."""
        try:
            lanes = json.loads(state["lanes"])
            fits = state["format"] == FORMAT and isinstance(state["of"], str)
            numbers = [state["m"], state["epoch"], state.get("m_epoch", 0)]
            fits = fits and all(type(number) is int and number >= 0 for number in numbers)
            fits = fits and all(lane.isdecimal() and isinstance(lane_of(one), dict) for lane, one in lanes.items())
        except (KeyError, TypeError, ValueError, AttributeError):
            fits = False
        if not fits:
            raise StateError(f"this is not the state of a worker's lanes: {shown(state)!r}; nothing was changed")
        self._let_go()
        self._loaded = dict(state)


class Refused(Iterator[Batch]):
    """Says why there is none. Not `iter()`: a worker that goes on to its next epoch dies of an error there."""

    def __init__(self, error: SpecError) -> None:
        self._error = error

    def __next__(self) -> Batch:
        raise self._error


class LaneBatches(Iterator[Batch]):
    """The batches of some lanes, in one process, to the end of the epoch."""

    def __init__(self, pipeline: Pipeline, job: Job, place: Place, ending: Ending) -> None:
        """`place`: of the run, from which the job was made."""
        self._pipeline, self._job, self._place = pipeline, job, place
        self._maker, self._walk = Maker(pipeline, job), Walk(ending, pipeline.run, job)
        self._is_over = self._warned = False

    def __next__(self) -> Batch:
        while not self._is_over and (m := self._walk.next()) is not None:
            made = self._maker.make()
            assert made is not None, "a lane that is over is not asked"
            assert made.batch.m == m, f"micro-batch {made.batch.m} came for {m}"
            self._walk.took(over=made.over, filling=made.filling)
            if made.truncated and not self._warned:
                self._warn_of_cut(made.truncated)
            if self._job.ranks > 1 or not made.filling:
                del made.batch.receipt
                return made.batch
        self._is_over = True
        raise StopIteration

    def now(self) -> tuple[Place, int, dict[int, bytes]]:
        """The place that this is of, the number of the micro-batch that comes next, and where the lanes are."""
        return self._place, self._walk.m, {**self._job.states, **self._maker.receipts()}

    def left_at(self) -> Place:
        """Where an endless run goes on: at the start of the next epoch, if this one is over."""
        place, m, states = self.now()
        lanes = [states.get(lane, state) for lane, state in enumerate(place.lanes)]
        place = replace(place, lanes=lanes, m=m - self._pipeline.run.rank)
        return epoch_start(self._pipeline, place, place.epoch + 1) if self._is_over else place

    def _warn_of_cut(self, cut: int) -> None:
        pack, self._warned = self._pipeline.recipe.pack, True
        if pack is not None and pack.method == "none":
            warn_of_cut(pack.seq_len, cut, self._pipeline.samples is not None)

    def close(self) -> None:
        self._maker.close()
