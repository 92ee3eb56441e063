"""Where an epoch of the trainer's ends: for all ranks at the same step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import SpecError
from headrace.run import Run
from headrace.serve.lane_state import OVER_LATE, canonical, lane_of
from headrace.serve.peers import Peers, Vote, group_is_up
from headrace.serve.pipeline import Pipeline
from headrace.serve.redeal import rows_left
from headrace.serve.resume import Place
from headrace.stage import State

if TYPE_CHECKING:
    from headrace.serve.loader import Loader
    from headrace.serve.worker import Job

VOTES_BEHIND = 2
"""The answer to a vote is read so many steps later: by then it has come, and nobody waits."""
VOTES_KEPT = 8
"""...and kept for so many: what was read ahead, to a device, may have to be made again."""
DROP_ROUNDS = VOTES_BEHIND + 2
"""Where lanes cannot be counted, an epoch that ends with its shortest lane goes on for so many rounds of all lanes
after the last that all could fill: by then all ranks know, however many they are and wherever their steps begin. It
decides which micro-batches an epoch has, so it never changes."""
GOING = 1 << 62
"""No lane has so many micro-batches."""


class Ending:
    """Says before each step whether the epoch is over.

    Endless runs end after `steps_per_epoch`, if at all. Where rows can be counted, the last step follows from the
    counts. One rank alone sees for itself when its lanes are over. Several ranks that cannot count vote.

    Where an epoch ends, and with which number the next one begins, follows from the lanes alone: it is the same on
    every number of ranks, however late they find out.
    """

    def __init__(
        self, pipeline: Pipeline, place: Place, steps: int | None, peers: Callable[[], Peers] | None = None
    ) -> None:
        """`steps`: of an epoch, where that was set."""
        self._ranks, self._drop = pipeline.run.world_size, pipeline.recipe.tail == "drop"
        self._lanes, self._plan = len(place.lanes), place.m_plan
        self._of = place.epoch, place.m_epoch, place.m_plan
        self._finite, self._is_sized = not pipeline.is_endless, is_sized(pipeline)
        self.last: int | None = None
        """The first micro-batch that is not given any more, where that is known beforehand."""
        self.end: int | None = None
        """The first micro-batch that no lane has any more, once that is known."""
        self._votes: dict[int, Vote | Settled] | None = None
        """By the micro-batch that they are about: a step that failed and is tried again is not voted on twice. With
        those of the steps before a resume, which a run that was not stopped would still have to read."""
        if steps is not None:
            self.last = place.m_epoch + steps * self._ranks
        elif self._finite and self._is_sized:
            self.end = end_of(pipeline, place)
            if self._ranks > 1 or self._drop:
                self.last = place.m + _steps(self.end - place.m, self._ranks, self._drop) * self._ranks
        elif self._finite and self._ranks > 1:
            if peers is None or not group_is_up():
                raise SpecError(
                    f"one exact pass over data that cannot be counted, on {self._ranks} ranks: they must agree on the "
                    f"last step; call torch.distributed.init_process_group first (gloo will do), or set "
                    f"steps_per_epoch"
                )
            self._votes, self._peers = {}, peers
            if place.is_whole:
                states = dict(enumerate(map(lane_of, place.lanes)))
                given = {lane: num_given(state) for lane, state in states.items()}
                over = {lane: self.over_at(lane, state, place.m) for lane, state in states.items() if state["o"]}
                for m in range(place.m - VOTES_BEHIND * self._ranks, place.m, self._ranks):
                    self._votes[m] = Settled(self._word(m, given, over))

    def is_of(self, place: Place) -> bool:
        """Whether it is the end of the epoch that this place is in."""
        return self._of == (place.epoch, place.m_epoch, place.m_plan)

    def over_at(self, lane: int, state: State, m: int) -> int:
        """The micro-batch with which a lane that is over was found to be. `m`: the one that comes next."""
        if state["o"] == OVER_LATE:  # what fills its slots comes in each of them since then
            last = m - 1 - (m - 1 - lane) % self._lanes
            return last - self._lanes * (int(state["z"]) - 1)
        first = self._plan + (lane - self._plan) % self._lanes
        return first + self._lanes * (num_given(state) - 1)

    def is_here(self, m: int, given: Mapping[int, int], over: Mapping[int, int]) -> bool:
        """`m`: the first micro-batch of the step to come. Of this rank's lanes: what each has given, without what only
        filled its slots; and of those that are over, with which micro-batch they were."""
        if self.last is not None or not self._finite:
            return (self.last is not None and m >= self.last) or (self._ranks == 1 and len(over) == len(given))
        if self._votes is None:  # one rank alone
            if not self._is_sized:
                self.end = self._end_by(self._word(m, given, over))
            return len(over) == len(given) or (self._drop and self.end is not None and m >= self.end)
        about = m - VOTES_BEHIND * self._ranks
        for step in range(about, m + 1, self._ranks):
            # More than one where a rank begins with its own lanes only: all say again what they said before.
            if step >= self._plan and step not in self._votes:
                self._votes[step] = self._peers().ask(self._word(step, given, over))
        self._votes.pop(about - VOTES_KEPT * self._ranks, None)
        self.end = self._end_by(self._votes[about].answer()) if about >= self._plan else None
        return self.end is not None and (m + self._ranks > self.end or not self._drop)

    def _word(self, m: int, given: Mapping[int, int], over: Mapping[int, int]) -> int:
        """What lanes say of the end before micro-batch `m`. Of the words of all ranks the greatest counts: the rounds
        of the longest lane, if none goes on; or (drop), below 0, those of the shortest that is over."""
        rounds = [given[lane] for lane, last in over.items() if last < m]
        if self._drop:
            return -min(rounds, default=GOING)
        return max(rounds) if len(rounds) == len(given) else GOING

    def _end_by(self, word: int) -> int | None:
        """The end that a word tells of; None: not yet."""
        if abs(word) == GOING:
            return None
        return self._plan + self._lanes * (DROP_ROUNDS - word if self._drop else word)


class Settled(NamedTuple):
    """A vote whose answer all ranks know from the state that they resumed from."""

    word: int

    def answer(self) -> int:
        return self.word


class Walk:
    """Whose turn it is, until the epoch's end: the slots of some lanes of a rank."""

    def __init__(self, ending: Ending, run: Run, job: Job) -> None:
        self._ending, self._rank, self._ranks, self.lanes = ending, run.rank, run.world_size, job.lanes
        states = {lane: lane_of(state) for lane, state in job.states.items()}
        self.given = {lane: num_given(state) for lane, state in states.items()}
        self._slots, self._leapt = job.slots(), 0
        self.m = next(self._slots)
        """The micro-batch that comes next, if any does."""
        self.over = {lane: ending.over_at(lane, state, self.m) for lane, state in states.items() if state["o"]}
        """Lanes that are over, and the micro-batch with which each was."""

    def next(self) -> int | None:
        """The micro-batch whose turn it is; None: the epoch is over."""
        while not self._ending.is_here(self.m - self._rank, self.given, self.over):
            if self._ranks > 1 or self.m % self.lanes not in self.over:
                return self.m
            self._step()  # nobody to keep step with: the slots of lanes that are over are passed by
        return None

    def took(self, *, over: bool, filling: bool) -> None:
        """It was made. `over`: the lane has no more; `filling`: it only fills its slot."""
        lane = self.m % self.lanes
        if over:
            self.over.setdefault(lane, self.m)
        self.given[lane] += not filling
        self._step()

    @property
    def going(self) -> Set[int]:
        """Lanes that are not over."""
        return self.given.keys() - self.over.keys()

    @property
    def turns(self) -> int:
        """Steps in one round of all lanes."""
        return len(self.given) if self._ranks > 1 else len(self.going)

    def leapt(self, rounds: int) -> None:
        """So many rounds were passed, and no lane was over after them that was not before."""
        for lane in self.going:
            self.given[lane] += rounds
        self._leapt += rounds * self.lanes
        self.m += rounds * self.lanes

    def _step(self) -> None:
        self.m = next(self._slots) + self._leapt


def num_given(state: State) -> int:
    """Micro-batches that a lane has given since its plan began, without those that only filled its slots."""
    return int(state["n"] - state["z"])


def is_sized(pipeline: Pipeline) -> bool:
    """Whether the length of an epoch is known beforehand: from row counts, or because it was set."""
    samples = pipeline.samples
    return pipeline.is_counted or (samples is not None and samples.packing is None and not samples.limits.is_pass)


def end_of(pipeline: Pipeline, place: Place) -> int:
    """The first micro-batch that no lane (drop: that not every lane) has any more in this epoch, where it is sized.

    It is the same all through the epoch, and on every rank: also from lanes of others as they were a while ago.
    """
    states = [lane_of(lane) for lane in place.lanes]
    return place.m_plan + len(states) * num_slots(pipeline, states, place.epoch)


def last_slot(pipeline: Pipeline, place: Place) -> int | None:
    """The first micro-batch that is not given any more in this epoch, where that is known."""
    if not is_sized(pipeline):
        return None
    ranks, drop = pipeline.run.world_size, pipeline.recipe.tail == "drop"
    return place.m + _steps(end_of(pipeline, place) - place.m, ranks, drop) * ranks


def num_slots(pipeline: Pipeline, states: Sequence[State], epoch: int) -> int:
    """Micro-batches of a lane from the start of its plan to the epoch's end: of the longest, or (drop) the shortest."""
    size, drop = pipeline.recipe.batch_size, pipeline.recipe.tail == "drop"
    totals = [
        num_given(state) + _steps(rows, size, drop)
        for state, rows in zip(states, _rows(pipeline, states, epoch), strict=True)
    ]
    return min(totals) if drop else max(totals)


def _rows(pipeline: Pipeline, states: Sequence[State], epoch: int) -> list[int]:
    """Rows that each lane has still to give in the epoch."""
    return [num_rows_left(pipeline, number, state, len(states), epoch) for number, state in enumerate(states)]


def num_rows_left(pipeline: Pipeline, number: int, state: State, lanes: int, epoch: int) -> int:
    if pipeline.samples is not None:
        return pipeline.samples.items_left(state)
    rows = len(state["rest"])
    for i, one in enumerate(state["src"]):
        pool = pipeline.pool(i, number, lanes, epoch)
        pool.load_state_dict(one)
        rows += rows_left(pool)
    return rows


def _steps(things: int, of: int, drop: bool) -> int:
    return things // of if drop else -(-things // of)


def epoch_steps(loader: Loader) -> int:
    """Steps of a whole epoch, on this rank."""
    pipeline, place = loader._pipeline, loader._here
    if loader._serving.steps_per_epoch is not None:
        return loader._serving.steps_per_epoch
    if not is_sized(pipeline):
        why = "the run is endless" if pipeline.is_endless else "its length is not known before it is read"
        raise TypeError(f"len() of this loader: {why}; set steps_per_epoch=")
    lanes, drop = len(place.lanes), pipeline.recipe.tail == "drop"
    fresh = [pipeline.fresh_lane(lane, lanes, place.epoch) for lane in range(lanes)]
    if loader._ranks == 1 and not drop:
        return sum(_steps(rows, pipeline.recipe.batch_size, drop) for rows in _rows(pipeline, fresh, place.epoch))
    return num_slots(pipeline, fresh, place.epoch) * lanes // loader._ranks


def repeats(pipeline: Pipeline) -> bool:
    """Whether the lengths of epochs are counted and come again after as many epochs as there are lanes."""
    return pipeline.is_counted and not any(part.limit or part.passes for part in pipeline.recipe.parts)


def next_epoch(pipeline: Pipeline, place: Place, epoch: int | None = None, end: int | None = None) -> Place:
    """The start of the next epoch, or of another. An endless run just goes on. `end`: where this one ended, if not
    where we are: ranks may have filled some slots more until all of them knew."""
    epoch = place.epoch + 1 if epoch is None else epoch
    if pipeline.passes is not None:
        pipeline.start_digests([(epoch * pipeline.passes, 0)] * len(pipeline.recipe.parts))
    return epoch_start(pipeline, place, epoch, end)


def epoch_start(pipeline: Pipeline, place: Place, epoch: int, end: int | None = None) -> Place:
    if pipeline.is_endless:
        return replace(place, epoch=epoch, m_epoch=place.m)
    lanes = len(place.lanes)
    states = [pipeline.fresh_lane(lane, lanes, epoch) for lane in range(lanes)]
    if pipeline.samples is not None:  # counts start anew, the sources go on
        kept = [lane_of(lane) for lane in place.lanes]
        # What waits for its sequence is there only where the epoch was cut short, by steps_per_epoch.
        names = ("src", "tok", "held", "bad", *(["rest"] if pipeline.samples.packing is not None else []))
        if pipeline.passes is not None:  # each source is at the end of its pass, and nothing waits
            names = ("tok", "bad")
        states = [{**one, **{k: old[k] for k in names}} for one, old in zip(states, kept, strict=True)]
    else:  # limits in tokens hold for the whole run
        states = [{**one, "tok": lane_of(old)["tok"]} for one, old in zip(states, place.lanes, strict=True)]
    m = -(-(place.m if end is None else end) // lanes) * lanes  # the same on any number of ranks
    if pipeline.samples is not None:  # a rank knows where its own lanes are: it must have them again
        m += (place.m - m) % pipeline.run.world_size
    _keep_faults(place, states, m)
    return Place(lanes=[canonical(state) for state in states], m=m, m_plan=m, m_epoch=m, epoch=epoch)


def later_epoch(pipeline: Pipeline, place: Place, epoch: int, end: int | None = None) -> Place | None:
    """The start of a later epoch, after all of this one and of those between; None where it is not known how long they
    are. `end`: of this one, where it is known."""
    lanes, starts = len(place.lanes), [place.m]
    while place.epoch < epoch:
        if end is None and not is_sized(pipeline):
            return None
        end = end_of(pipeline, place) if end is None else end
        place, end = epoch_start(pipeline, place, place.epoch + 1, end), None
        starts.append(place.m)
        rounds = (epoch - place.epoch) // lanes
        if rounds and len(starts) > lanes + 1 and repeats(pipeline):
            m = place.m + rounds * (place.m - starts[-1 - lanes])
            place, starts = epoch_start(pipeline, place, place.epoch + rounds * lanes, m), [m]
    return place


def _keep_faults(place: Place, states: Sequence[State], m: int) -> None:
    """Rows that were left out count over the whole run. A rank knows those of its own lanes, so they go to lanes that
    are its own from micro-batch `m` on."""
    for number, lane in enumerate(place.lanes):
        rows = lane_of(lane).get("faults", [])
        if rows:
            states[(number + m - place.m) % len(states)]["faults"] = rows


def first_place(pipeline: Pipeline, lanes: int) -> Place:
    """Where a run begins."""
    states = [canonical(pipeline.fresh_lane(lane, lanes, 0)) for lane in range(lanes)]
    return Place(lanes=states, m=0, m_plan=0, m_epoch=0, epoch=0)


def token_counts(pipeline: Pipeline, place: Place) -> list[int] | None:
    """Tokens that each lane has given of each source, one after the other; None where no limit depends on them."""
    if pipeline.is_endless or all(part.tokens is None for part in pipeline.recipe.parts):
        return None
    return [count for lane in place.lanes for count in lane_of(lane)["tok"]]


def with_token_counts(place: Place, counts: Sequence[int]) -> Place:
    """The same place with what all ranks know of the tokens of their own lanes."""
    states = [lane_of(lane) for lane in place.lanes]
    each = len(states[0]["tok"])
    found = [{**state, "tok": list(counts[n * each : (n + 1) * each])} for n, state in enumerate(states)]
    return replace(place, lanes=[canonical(state) for state in found])
