"""A loader's batches as an IterableDataset, for those who bring their own DataLoader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from headrace.batch import Batch
from headrace.errors import SpecError, StateError, shown
from headrace.serve.epoch import epoch_start
from headrace.serve.going import job_of, mark
from headrace.serve.pipeline import Pipeline
from headrace.serve.resume import Place
from headrace.serve.statistics import warn_of_cut
from headrace.serve.worker import Job, Maker
from headrace.serve.wrappers import refuse_second_split
from headrace.stage import State
from headrace.torch_data import IterableDataset, get_worker_info

FORMAT = 1


class LaneDataset(IterableDataset[Batch]):
    """Batches are whole: use it with `DataLoader(dataset, batch_size=None, num_workers=W)`.

    A DataLoader asks its workers in turn, so W must divide the rank's lanes. A worker's iterator ends with its lanes.
    Under `StatefulDataLoader` each worker's state is kept and exact; a plain DataLoader keeps none: `headrace.Loader`
    is the way to exact state with workers. `iter()` gives the same epoch again, until `set_epoch`.
    """

    def __init__(self, pipeline: Pipeline, place: Place) -> None:
        self._pipeline, self._place = pipeline, place
        self._now: LaneBatches | None = None
        self._loaded: State | None = None

    def __iter__(self) -> Iterator[Batch]:
        self._check_wrappers()
        job = self._job()
        self._let_go()
        self._now = LaneBatches(self._pipeline, job)
        self._loaded = None
        return self._now

    def __getstate__(self) -> dict[str, Any]:
        """On its way to a worker: without what is open here."""
        self._check_wrappers()
        return {**self.__dict__, "_now": None}

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` gives this epoch. Trainers that find this method call it."""
        self._check_wrappers()
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise SpecError(f"set_epoch({shown(epoch)}): a whole number from 0 on is expected")
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

    def _job(self) -> Job:
        """What this process makes, from the start of the epoch or from where a state says."""
        place, run, worker = self._place, self._pipeline.run, get_worker_info()
        lanes, ranks = len(place.lanes), run.world_size
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        if lanes // ranks % workers:
            raise SpecError(
                f"num_workers={workers} does not divide the {lanes // ranks} lanes of this rank: a DataLoader asks its "
                f"workers in turn; make the loader with lanes={ranks * workers} or a multiple, or iterate over it"
            )
        job = job_of(place, run, number, workers)
        return job if self._loaded is None else self._moved(job, self._loaded)

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
        job, m, lanes = self._now.place() if self._now is not None else LaneBatches(self._pipeline, self._job()).place()
        self._pipeline.needs.saved([lanes.get(lane) for lane in range(job.lanes)])
        texts = json.dumps({str(lane): lanes[lane].decode() for lane in sorted(lanes)})
        return {"format": FORMAT, "of": mark(self._pipeline, job.lanes), "epoch": job.epoch, "m": m, "lanes": texts}

    def load_state_dict(self, state: State) -> None:
        """The next `iter()` goes on from there, and those after it begin anew."""
        try:
            lanes = json.loads(state["lanes"])
            fits = state["format"] == FORMAT and isinstance(state["of"], str)
            fits = fits and all(type(state[name]) is int and state[name] >= 0 for name in ("m", "epoch"))
            fits = fits and all(lane.isdecimal() and isinstance(json.loads(one), dict) for lane, one in lanes.items())
        except (KeyError, TypeError, ValueError, AttributeError):
            fits = False
        if not fits:
            raise StateError(f"this is not the state of a worker's lanes: {shown(state)!r}; nothing was changed")
        self._let_go()
        self._loaded = dict(state)


class LaneBatches(Iterator[Batch]):
    """The batches of some lanes, in one process, to the end of the epoch."""

    def __init__(self, pipeline: Pipeline, job: Job) -> None:
        self._job, self._maker = job, Maker(pipeline, job)
        self._pipeline, self._warned = pipeline, False

    def __next__(self) -> Batch:
        while (made := self._maker.make(until_over=True)) is not None:
            if made.truncated and not self._warned:
                self._warn_of_cut(made.truncated)
            if not made.filling:
                del made.batch.receipt
                return made.batch
        raise StopIteration

    def _warn_of_cut(self, cut: int) -> None:
        pack, self._warned = self._pipeline.recipe.pack, True
        if pack is not None and pack.method == "none":
            warn_of_cut(pack.seq_len, cut, self._pipeline.samples is not None)

    def place(self) -> tuple[Job, int, dict[int, bytes]]:
        """The job, the number of the micro-batch that comes next, and where the lanes are."""
        return self._job, self._maker.m, {**self._job.states, **self._maker.receipts()}

    def close(self) -> None:
        self._maker.close()
