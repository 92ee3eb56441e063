"""A loader's batches as an IterableDataset, for those who bring their own DataLoader."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from headrace.batch import Batch
from headrace.errors import SpecError, StateError, shown
from headrace.outside_json import parse
from headrace.serve.epoch import Ending, Walk, epoch_start, is_sized, later_epoch
from headrace.serve.going import job_of, mark
from headrace.serve.lane_state import lane_of
from headrace.serve.peers import Peers
from headrace.serve.pipeline import Pipeline
from headrace.serve.resume import Place
from headrace.serve.state_file import MOST_VALUES
from headrace.serve.statistics import warn_of_cut
from headrace.serve.turnstile import Turnstile
from headrace.serve.worker import Job, Maker
from headrace.serve.wrappers import ReadAhead, refuse_second_split
from headrace.stage import State
from headrace.torch_data import IterableDataset, get_worker_info

log = logging.getLogger("headrace")

FORMAT = 1
KEPT_STEPS = 8
"""Number of past batches that a loop that was left can give again, where a wrapper had read them ahead."""
WAY_OUT = (
    "iterate over the headrace.Loader as it is, whose state_dict() is exact; or count the batches that were trained "
    'on, and give a new loader load_state_dict({"batches_consumed": n, "batch_size": b}) before you take its dataset'
)


class LaneDataset(IterableDataset[Batch]):
    """Batches are whole: use it with `DataLoader(dataset, batch_size=None, num_workers=W)`.

    A DataLoader asks its workers in turn, so W must divide the rank's lanes. All ranks end at the same step, as those
    of the loader do; one rank alone ends when each worker's lanes are over. `steps_per_epoch` and `tail` are the
    loader's.

    Data with an end: `iter()` gives the same epoch again, until `set_epoch`, in persistent workers too. An endless run
    goes on where the last loop stopped, in this process; what workers had given by then nobody tells us, so a second
    loop over them is refused.
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
        self._workers, self._ahead = Turnstile(), ReadAhead()
        self._entered = 0
        """How often workers had come when we were last told where to go."""
        self._now: LaneBatches | None = None
        self._loaded: State | None = None

    def __iter__(self) -> Iterator[Batch]:
        self._check_wrappers()
        self._go_on()
        if self._is_lost(self._told()):
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
        if get_worker_info() is None:
            self._ahead.begin()
        self._now = LaneBatches(self._pipeline, job, place, self._ending(place))
        self._place, self._loaded = (place if self._pipeline.is_endless else self._place), None
        return self._now

    def __getstate__(self) -> dict[str, Any]:
        """On its way to a worker: without what is open here."""
        self._check_wrappers()
        place = self._left_at() if self._now is not None and self._pipeline.is_endless else self._place
        return {**self.__dict__, "_place": place, "_now": None, "_peers": None, "_ahead": ReadAhead()}

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` gives this epoch, in persistent workers too; an endless run goes on where it is. Trainers
        that find this method call it.

        A later epoch begins with the micro-batch that it begins with in the loader, after all of the epochs before it.
        Where their length is not known before they are read, that holds after a whole loop in this process; otherwise
        micro-batches are counted from the last start that is known, and refused where a schedule or `Skip.steps`
        depends on their numbers.
        """
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
            self._place = self._start_of(epoch)
            self._entered = self._workers.peek()[0]
            if not self._pipeline.is_endless:
                self._workers.hold([epoch, self._place.m])
                self._let_go()

    def _start_of(self, epoch: int) -> Place:
        pipeline, place, end = self._pipeline, self._place, None
        if pipeline.is_endless:
            return epoch_start(pipeline, place, epoch)
        if self._now is not None and self._now.is_over and self._now.epoch == place.epoch:
            place, end = self._now.ended()
        elif pipeline.samples is not None and pipeline.passes is None:
            raise SpecError(
                f"set_epoch({epoch}): the sources go on from epoch to epoch, and what was given of this one is known "
                f"here only after a whole loop with num_workers=0; iterate over the headrace.Loader itself"
            )
        if epoch < place.epoch:
            place, end = self.begun, None
        if epoch <= place.epoch:
            return epoch_start(pipeline, place, epoch)
        found = None if pipeline.samples is not None else later_epoch(pipeline, place, epoch, end)
        if found is None and (pipeline.recipe.mix.schedule or pipeline.recipe.skip.steps):
            raise SpecError(
                f"set_epoch({epoch}): the mix has a schedule, or steps are skipped, which counts micro-batches from "
                f"the start of the run, and the length of an epoch is not known before it is read; iterate over the "
                f"headrace.Loader itself"
            )
        return found or epoch_start(pipeline, place, epoch, end)

    def _check_wrappers(self) -> None:
        refuse_second_split(self._pipeline.run.world_size, "dataset")

    def _go_on(self) -> None:
        """An endless run is where it was left."""
        if self._now is not None and self._pipeline.is_endless:
            self._place = self._left_at()
            self._let_go()

    def _left_at(self) -> Place:
        """What a wrapper had read ahead when its loop was left was not given on: it comes again."""
        assert self._now is not None
        count = 0 if self._now.is_over else self._ahead.batches()
        if count:
            log.info(
                "the loop before was left with a batch that %s had read ahead: it is given again", self._ahead.name
            )
        return self._now.left_at(count)

    def _told(self) -> int:
        """How often workers were asked before. In a worker, which may have been here before the last `set_epoch`: go to
        the epoch that was set."""
        worker = get_worker_info()
        if worker is None:
            return self._workers.peek()[0]
        if self._pipeline.is_endless and self._loaded is not None:
            return 0
        entry = self._workers.enter(str(worker.seed - worker.id), worker.id)
        if entry.held is not None and entry.held != [self._place.epoch, self._place.m]:
            epoch, m = entry.held
            place = epoch_start(self._pipeline, self._place, epoch, m)
            self._place = replace(place, m=m, m_plan=m, m_epoch=m)
        return entry.epoch

    def _is_lost(self, rounds: int) -> bool:
        """Whether nobody here knows where to go on: what workers of a DataLoader gave is known to its trainer alone."""
        return self._pipeline.is_endless and self._loaded is None and rounds > 0

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
        return self._moved(job, self._loaded), self._place_of(self._loaded)

    def _place_of(self, state: State) -> Place:
        """The place of the run that a worker's state is of."""
        place, pipeline = self._place, self._pipeline
        if state["epoch"] != place.epoch:
            place = epoch_start(pipeline, place, state["epoch"])
        begun = state.get("m_epoch", place.m_epoch)
        if pipeline.is_endless:
            return replace(place, m_epoch=begun)
        plan = state.get("m_plan", place.m_plan if begun == place.m_epoch else begun)
        if (plan, begun) == (place.m_plan, place.m_epoch):
            return place
        if plan != begun or place.m_plan != place.m_epoch:
            raise StateError(
                f"this state is of lanes that began at m={plan}, in an epoch from m={begun} on, and this loader's "
                f"began at m={place.m_plan}, in one from m={place.m_epoch} on: one of the two was dealt anew for "
                f"another number of ranks; load the state of the headrace.Loader that the dataset came from first, or "
                f"iterate over headrace.Loader, whose states go anywhere"
            )
        # As many micro-batches later, or earlier: how long the epochs before it are is not always known here.
        later = begun - place.m_epoch
        return replace(place, m=place.m + later, m_plan=plan, m_epoch=begun)

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
        self._ahead.end()

    # --- what StatefulDataLoader asks, in the worker

    def state_dict(self) -> State:
        if self._loaded is not None:
            return self._loaded
        if self._now is not None:
            if not self._now.is_over:
                self._ahead.refuse("state_dict()", WAY_OUT)
            place, m, lanes = self._now.now()
        elif get_worker_info() is None and self._workers.peek()[0] > self._entered:
            raise StateError(
                "state_dict(): the workers of a DataLoader give the batches, and what they gave is not known here; "
                "ask a StatefulDataLoader for its state, or iterate over the headrace.Loader, with num_workers= there"
            )
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
            "m_plan": place.m_plan,
            "lanes": texts,
        }

    def load_state_dict(self, state: State) -> None:
        """The next `iter()` goes on from there; those after it begin anew, or go on where the run is endless."""
        try:
            lanes = parse(state["lanes"], MOST_VALUES)
            fits = state["format"] == FORMAT and isinstance(state["of"], str)
            numbers = [state["m"], state["epoch"], state.get("m_epoch", 0), state.get("m_plan", 0)]
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
        self._maker, self._walk, self._ending = Maker(pipeline, job), Walk(ending, pipeline.run, job), ending
        self.is_over = self._warned = False
        self._past: deque[tuple[int, bytes]] = deque(maxlen=KEPT_STEPS)
        """The last batches that were given: the number of each, and where its lane was before it."""
        self._receipts = dict(job.states)
        self._turn = threading.RLock()

    def __next__(self) -> Batch:
        """Threads that share us have one turn after the other: each batch goes to one of them."""
        with self._turn:
            return self._taken()

    def _taken(self) -> Batch:
        while not self.is_over and (m := self._walk.next()) is not None:
            made = self._maker.make()
            assert made is not None, "a lane that is over is not asked"
            assert made.batch.m == m, f"micro-batch {made.batch.m} came for {m}"
            self._walk.took(over=made.over, filling=made.filling)
            if made.truncated and not self._warned:
                self._warn_of_cut(made.truncated)
            lane = m % self._job.lanes
            before, self._receipts[lane] = self._receipts[lane], made.batch.receipt
            if self._job.ranks > 1 or not made.filling:
                self._past.append((m, before))
                del made.batch.receipt
                return made.batch
        self.is_over = True
        raise StopIteration

    def now(self) -> tuple[Place, int, dict[int, bytes]]:
        """The place that this is of, the number of the micro-batch that comes next, and where the lanes are."""
        with self._turn:
            return self._place, self._walk.m, {**self._job.states, **self._maker.receipts()}

    @property
    def epoch(self) -> int:
        return self._place.epoch

    def ended(self) -> tuple[Place, int | None]:
        """Where the lanes are at the end of the epoch, and the first micro-batch that none has, where that is known."""
        place, m, states = self.now()
        lanes = [states.get(lane, state) for lane, state in enumerate(place.lanes)]
        return replace(place, lanes=lanes, m=m - self._pipeline.run.rank), self._ending.end

    def left_at(self, back: int = 0) -> Place:
        """Where an endless run goes on: at the start of the next epoch, if this one is over; or so many batches
        back."""
        with self._turn:
            (place, m, states), is_over = self.now(), self.is_over
            for m, before in list(self._past)[: -back - 1 : -1]:  # the newest first
                states[m % self._job.lanes] = before
        lanes = [states.get(lane, state) for lane, state in enumerate(place.lanes)]
        place = replace(place, lanes=lanes, m=m - self._pipeline.run.rank)
        return epoch_start(self._pipeline, place, place.epoch + 1) if is_over else place

    def _warn_of_cut(self, cut: int) -> None:
        pack, self._warned = self._pipeline.recipe.pack, True
        if pack is not None and pack.method == "none":
            warn_of_cut(pack.seq_len, cut, self._pipeline.samples is not None)

    def close(self) -> None:
        with self._turn:
            self._maker.close()
