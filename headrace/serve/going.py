"""The items of some lanes, one by one, in this process; and where they are."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from headrace.errors import DataError, NotFound, StateError, shown
from headrace.make.prepare import Ready
from headrace.outside_json import parse
from headrace.run import Run
from headrace.serve.lane_state import canonical, lane_of
from headrace.serve.pipeline import Pipeline, facts_to
from headrace.serve.resume import Place
from headrace.serve.state_file import MOST_VALUES
from headrace.serve.worker import Job, Made, Maker
from headrace.stage import State

FORMAT = 1
LeaveOut: TypeAlias = Callable[[Ready, Exception], None]


class Start(NamedTuple):
    """Where an epoch begins."""

    place: Place
    """A lane that nothing is known of is empty."""
    bounds: tuple[int, int]
    """The rows, since the lanes began, of the lane that has the fewest, and of the one that has the most."""
    first: int = 0
    """The worker that is asked first: a DataLoader always begins with its number 0."""
    job: Job | None = None
    """What this worker makes, where its own state says."""


class Going:
    def __init__(
        self, pipeline: Pipeline, start: Start, job: Job, key: str = "", leave_out: LeaveOut | None = None
    ) -> None:
        """`leave_out`: is told of a row that cannot be made, and raises where the run shall end there."""
        self.start, self.job, self.key, self._leave_out = start, job, key, leave_out
        self.is_open, self.is_over = True, False
        """`is_over`: the last item was given, and one more was asked for."""
        self.turn = threading.RLock()
        """Held by the thread that takes the next item, or asks where we are."""
        self._maker, self._extra, self._given = Maker(pipeline, job), 0, False
        self._begun = False
        self._rank, self._m = pipeline.run.rank, start.place.m

    def next(self) -> dict[str, Any] | None:
        """None: there is no more. Where one fails, the next call tries the same again."""
        self._begun = True
        made = self._made()
        if made is None:
            return None
        assert not made.filling, "a lane that has ended is not asked"
        self._given, self._m = True, made.batch.m - self._rank + self.job.ranks
        return dict(made.batch)

    def _made(self) -> Made | None:
        while True:
            try:
                return self._maker.make(until_over=True, receipt=False)
            except (DataError, NotFound) as error:
                row = self._maker.failed
                if self._leave_out is None or row is None:
                    raise
                self._leave_out(row, error)
                self._maker.leave_out()
                self._given = True

    @property
    def is_begun(self) -> bool:
        """Whether something was asked of it."""
        return self._begun

    def gave_again(self) -> None:
        """One more was given in the place of one that is not there."""
        self._extra, self._given, self._m = self._extra + 1, True, self._m + self.job.ranks

    def wait_for_others(self) -> None:
        """To the step at which the last of all consumers ends."""
        self._given, self._m = True, self.start.place.m_plan + self.job.lanes * self.start.bounds[1]

    def now(self) -> tuple[Place, list[bytes | None]]:
        """Where we are; and of each lane, where that is known here, its state."""
        place = self.start.place
        with self.turn:
            if not self._given:
                return place, [lane or None for lane in place.lanes]
            states, m = self._states(), self._m
        known = [states.get(lane) for lane in range(self.job.lanes)]
        return replace(place, lanes=[state or b"" for state in known], m=m), known

    def states(self) -> tuple[int, dict[int, bytes]]:
        """The micro-batch that comes next, and the states of all lanes that are made here."""
        with self.turn:
            return self._maker.m, self._states()

    def _states(self) -> dict[int, bytes]:
        lanes, left = {**self.job.states, **self._maker.receipts()}, self._extra
        for lane in sorted(lanes) if left else ():
            state = lane_of(lanes[lane])
            more = min(left, max(0, self.start.bounds[1] - state["n"]))
            if more:
                state |= {"n": state["n"] + more, "z": state["z"] + more, "o": 1}
                lanes[lane], left = canonical(state), left - more
        return lanes

    def close(self) -> None:
        """Where we are can still be asked."""
        self.is_open = False
        self._maker.close()


def job_of(place: Place, run: Run, number: int, workers: int) -> Job:
    """What a worker of this rank makes from there on."""
    lanes, ranks, rank = len(place.lanes), run.world_size, run.rank
    own = [(place.m + rank + turn * ranks) % lanes for turn in range(number, lanes // ranks, workers)]
    facts: dict[str, Any] = {"epoch": place.epoch, "lanes": lanes, "ranks": ranks}
    facts |= {"states": {lane: place.lanes[lane] for lane in own}, "worker": number, "workers": workers}
    return Job(number=0, m=place.m + rank, **facts)


class Items(Iterator[dict[str, Any]]):
    """Only the end of the data ends it: where an item fails, the next call tries the same again."""

    def __init__(self, going: Going, left: int | None, others: Iterator[Going]) -> None:
        """`left`: items to give, with those of `others` once there are no more; None: until there are no more."""
        self._own, self._now, self._left, self._others = going, going, left, others

    def __next__(self) -> dict[str, Any]:
        """Threads that share us have one turn after the other: each item goes to one of them."""
        with self._own.turn:
            return self._taken()

    def _taken(self) -> dict[str, Any]:
        if not self._own.is_open and self._now is self._own:
            raise StopIteration
        while self._left is None or self._left > 0:
            item = self._now.next()
            if item is not None:
                if self._left is not None:
                    self._left -= 1
                if self._now is not self._own:
                    self._own.gave_again()
                return item
            if self._left is None:
                self._own.wait_for_others()
                break
            self._now.close()
            self._now = next(self._others)
        self._own.is_over = True
        self.close()
        raise StopIteration

    def close(self) -> None:
        for going in (self._now, self._own):
            if going.is_open:
                going.close()
        self._left = 0

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_exiting():  # then the names that close() needs may be gone
            self.close()


def worker_state(pipeline: Pipeline, going: Going) -> State:
    """The state of one worker's lanes, for a loader that keeps those of its workers apart."""
    m, lanes = going.states()
    texts = json.dumps({str(lane): lanes[lane].decode() for lane in sorted(lanes)})
    job = going.job
    pipeline.needs.saved([lanes.get(lane) for lane in range(job.lanes)])
    least, most = going.start.bounds
    whom = {"L": job.lanes, "ranks": job.ranks, "worker": job.worker, "workers": job.workers}
    whom |= {"least": least, "most": most}
    return {"format": FORMAT, "of": mark(pipeline, job.lanes), "epoch": job.epoch, "m": m, "lanes": texts, **whom}


def worker_start(pipeline: Pipeline, state: State) -> Start:
    """Where a worker goes on from such a state."""
    numbers = ("epoch", "m", "L", "ranks", "worker", "workers", "least", "most")
    try:
        lanes = {int(lane): one.encode() for lane, one in parse(state["lanes"], MOST_VALUES).items()}
        fits = state["format"] == FORMAT and isinstance(state["of"], str) and bool(lanes)
        fits = fits and all(type(state[name]) is int and 0 <= state[name] < 1 << 62 for name in numbers)
        fits = fits and all(isinstance(lane_of(one), dict) for one in lanes.values())
        fits = fits and 0 < state["ranks"] <= state["L"] and state["worker"] < state["workers"]
    except (KeyError, TypeError, ValueError, AttributeError):
        fits = False
    if not fits:
        raise StateError(f"this is not the state of a worker's lanes: {shown(state)!r}; nothing was changed")
    if state["of"] != mark(pipeline, state["L"]) or state["ranks"] != pipeline.run.world_size:
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
    place = Place(lanes=[b""] * job.lanes, m=0, m_plan=0, m_epoch=0, epoch=job.epoch)
    return Start(place, (state["least"], state["most"]), job=job.at(state["m"], lanes))


def mark(pipeline: Pipeline, lanes: int) -> str:
    """Changes with all that the state of a worker depends on."""
    facts = [replace(fact, epoch=0, digest=0, identity=None) for fact in pipeline.facts]
    text = json.dumps([pipeline.recipe.fingerprint(), facts_to(facts), lanes])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
