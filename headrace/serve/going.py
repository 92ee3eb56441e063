"""The items of some lanes, one by one, in this process; and where they are."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any, NamedTuple

from headrace.errors import StateError, shown
from headrace.run import Run
from headrace.serve.pipeline import Pipeline, facts_to
from headrace.serve.resume import Place
from headrace.serve.worker import Job, Maker
from headrace.stage import State

FORMAT = 1


class Start(NamedTuple):
    """Where an epoch begins."""

    place: Place
    first: int = 0
    """The worker that is asked first: a DataLoader always begins with its number 0."""
    job: Job | None = None
    """What this worker makes, where its own state says."""


class Going:
    def __init__(self, pipeline: Pipeline, run: Run, place: Place, number: int, workers: int) -> None:
        lanes, ranks, rank = len(place.lanes), run.world_size, run.rank
        own = [(place.m + rank + turn * ranks) % lanes for turn in range(number, lanes // ranks, workers)]
        facts: dict[str, Any] = {"epoch": place.epoch, "lanes": lanes, "ranks": ranks}
        facts |= {"states": {lane: place.lanes[lane] for lane in own}, "worker": number, "workers": workers}
        self._set(pipeline, place, Job(number=0, m=place.m + rank, **facts))

    @classmethod
    def of(cls, pipeline: Pipeline, place: Place, job: Job) -> Going:
        found = cls.__new__(cls)
        found._set(pipeline, place, job)
        return found

    def _set(self, pipeline: Pipeline, place: Place, job: Job) -> None:
        self.place, self.job = place, job
        self._maker, self._given = Maker(pipeline, job), False
        self._rank = pipeline.run.rank

    def next(self) -> dict[str, Any] | None:
        """None: there is no more."""
        made = self._maker.make(until_over=True, receipt=False)
        if made is None or made.filling:
            return None
        self._given, self._m = True, made.batch.m - self._rank + self.job.ranks
        return dict(made.batch)

    def pass_by(self, count: int) -> int:
        """Pass over so many; how many there were."""
        return self._maker.skip(count)[0]

    def now(self) -> tuple[Place, list[bytes | None]]:
        """Where we are; and of each lane, where that is known here, its state."""
        if not self._given:
            return self.place, list(self.place.lanes)
        receipts = self._maker.receipts()
        known = [receipts.get(lane, self.job.states.get(lane)) for lane in range(self.job.lanes)]
        lanes = [state or b"" for state in known]
        return replace(self.place, lanes=lanes, m=self._m), known

    def states(self) -> tuple[int, dict[int, bytes]]:
        """The micro-batch that comes next, and the states of all lanes that are made here."""
        return self._maker.m, {**self.job.states, **self._maker.receipts()}

    def close(self) -> None:
        """Where we are can still be asked."""
        self._maker.close()


def worker_state(pipeline: Pipeline, going: Going) -> State:
    """The state of one worker's lanes, for a loader that keeps those of its workers apart."""
    m, lanes = going.states()
    texts = json.dumps({str(lane): lanes[lane].decode() for lane in sorted(lanes)})
    job = going.job
    whom = {"L": job.lanes, "ranks": job.ranks, "worker": job.worker, "workers": job.workers}
    return {"format": FORMAT, "of": _mark(pipeline), "epoch": job.epoch, "m": m, "lanes": texts, **whom}


def worker_job(pipeline: Pipeline, state: State) -> Job:
    """What a worker makes from such a state on."""
    numbers = ("epoch", "m", "L", "ranks", "worker", "workers")
    try:
        lanes = {int(lane): one.encode() for lane, one in json.loads(state["lanes"]).items()}
        fits = state["format"] == FORMAT and isinstance(state["of"], str) and bool(lanes)
        fits = fits and all(type(state[name]) is int and 0 <= state[name] < 1 << 62 for name in numbers)
        fits = fits and all(isinstance(json.loads(one), dict) for one in lanes.values())
        fits = fits and 0 < state["ranks"] <= state["L"] and state["worker"] < state["workers"]
    except (KeyError, TypeError, ValueError, AttributeError):
        fits = False
    if not fits:
        raise StateError(f"this is not the state of a worker's lanes: {shown(state)!r}; nothing was changed")
    if state["of"] != _mark(pipeline) or state["ranks"] != pipeline.run.world_size:
        raise StateError(
            "this state of a worker is of another recipe, other data, or another number of ranks; give it to a loader "
            "like the one that made it, or use headrace.Loader, whose states go anywhere"
        )
    job = Job(
        number=0,
        epoch=state["epoch"],
        states=lanes,
        lanes=state["L"],
        m=0,
        ranks=state["ranks"],
        worker=state["worker"],
        workers=state["workers"],
    )
    return job.at(state["m"], lanes)


def _mark(pipeline: Pipeline) -> str:
    """Changes with all that a state depends on."""
    facts = [replace(fact, epoch=0, digest=0) for fact in pipeline.facts]
    return hashlib.blake2b(
        json.dumps([pipeline.recipe.fingerprint(), facts_to(facts)]).encode(), digest_size=8
    ).hexdigest()
