"""Whether a state can be one of a run. All of it is found out before anything is changed; no row is read."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import StateError, shown
from headrace.fetch.pool import MOST
from headrace.make.faults import places_in
from headrace.mix.turns import MODALITIES, UNLIMITED
from headrace.sequence.pack import TO_THE_END
from headrace.serve.lane import Lane
from headrace.serve.lane_state import OVER_LATE
from headrace.serve.pipeline import Pipeline
from headrace.serve.state import Saved
from headrace.stage import State

LANE_KEYS = ("n", "o", "z", "src", "mix", "tok", "off", "held", "rest")
SAMPLE_KEYS = ("lim", "num", "bad")
"""...and those of lanes of samples."""
FAULTS = "faults"
"""...and of lanes that may leave out rows that fail."""


def check_lanes(saved: Saved, states: Sequence[State]) -> None:
    """Each lane has what a lane has."""
    for number, state in enumerate(states):
        _check_fields(number, state)
        _check_numbers(number, state, len(saved.facts))
    if len({len(state.get("lim", ())) for state in states}) > 1:
        raise StateError("lanes: some are lanes of samples and some are not; nothing was changed")


def check_kind(states: Sequence[State], pipeline: Pipeline) -> None:
    """Batches of samples and of rows or sequences go on from their own kind of state only."""
    if of_samples(states) != (pipeline.samples is not None):
        kinds = ["a loader", "a TrueStreamingDataset"]
        was, here = kinds if pipeline.samples is not None else reversed(kinds)
        raise StateError(f"the state was made by {was}, this is {here}; nothing was changed")


def check_limits(states: Sequence[State], pipeline: Pipeline) -> None:
    """An epoch with limits, and one that is the whole set, go on from their own kind of state only."""
    if pipeline.samples is None:
        return
    was = sum(state["lim"][1] for state in states) >= UNLIMITED >> 1
    if was != pipeline.samples.limits.is_pass:
        kinds = ["max_per_epoch and max_per_dataset of None, so that an epoch is the whole set", "limits of an epoch"]
        before, here = kinds if was else reversed(kinds)
        raise StateError(
            f"the state was made with {before}, and here there are {here}: what is left of its epoch cannot be told; "
            f"set them back, or start anew; nothing was changed"
        )


def of_samples(states: Sequence[State]) -> bool:
    return "lim" in states[0]


def turns(saved: Saved, lane: int) -> int:
    """Micro-batches since the plan began that are the turn of a lane."""
    num_lanes = len(saved.lanes)
    return (saved.m - lane - 1) // num_lanes - (saved.m_plan - lane - 1) // num_lanes


def check_turns(saved: Saved, states: Sequence[State], pipeline: Pipeline) -> None:
    """Each lane gave the micro-batches that were its turn."""
    # One rank alone has nobody to keep step with, and passes the slots by that the data does not reach.
    exact = pipeline.is_endless and saved.fingerprint == pipeline.recipe.fingerprint()
    for number, state in enumerate(states):
        due, n, z = turns(saved, number), state["n"], state["z"]
        if n > due or (n < due and exact):
            raise StateError(
                f"lanes: lane {number}: n: it gave {n} micro-batches, and from m_plan={saved.m_plan} to m={saved.m} "
                f"{due} were its turn; nothing was changed"
            )
        if z > (n if state["o"] else 0) or (not z and state["o"] == OVER_LATE):
            raise StateError(
                f"lanes: lane {number}: z: {z} micro-batches after its end, where it gave {n} and is "
                f"{'' if state['o'] else 'not '}over; nothing was changed"
            )


def check_passes(saved: Saved, pipeline: Pipeline) -> None:
    """Where a run has an end: the plan began in the passes that the trainer's epoch has."""
    passes = pipeline.passes
    if passes is None:
        return
    first, last = saved.epoch * passes, (saved.epoch + 1) * passes - 1
    for fact in saved.facts:
        if not first <= fact.epoch <= last:
            raise StateError(
                f"{shown(fact.name)}: the state is in epoch {saved.epoch}, which has the passes {first} to {last} of "
                f"its sources, and this one began with pass {fact.epoch}; were epochs or steps_per_epoch changed? Set "
                f"them back, or start anew"
            )
    dealt_anew = any(fact.digest for fact in saved.facts)
    if saved.m_epoch > saved.m_plan or (saved.m_epoch < saved.m_plan and not dealt_anew):
        raise StateError(
            f"m_epoch: the epoch began at m={saved.m_epoch} and its lanes at m={saved.m_plan}; nothing was changed"
        )


def check_sources(pipeline: Pipeline, states: Sequence[State], epoch: int) -> None:
    """Each source of each lane is at a place that the source has."""
    for lane, state in enumerate(states):
        for i, part in enumerate(pipeline.recipe.parts):
            try:
                check_source(pipeline, i, (lane, len(states), epoch), state["src"][i])
            except StateError as error:
                raise StateError(f"lanes: lane {lane}: {shown(part.name)}: {error}") from error


def check_source(pipeline: Pipeline, i: int, place: tuple[int, int, int], state: State) -> None:
    """`place`: the lane, how many there are, and the trainer's epoch."""
    pool = pipeline.pool(i, *place)
    last, pool.last = pool.last, None
    pool.load_state_dict(state)
    if last is not None and pool.epoch >= last and pool.draws:
        raise StateError(
            f"the state is in pass {pool.epoch}, with this recipe the source ends after pass {last - 1}; set epochs or "
            f"passes back, or remove the part"
        )


def credit_problem(state: State) -> str | None:
    """What is wrong with the credits of a lane that mixes by weights: those of all sources add up to 0."""
    off = 0 if of_samples([state]) else sum(state["mix"])
    return f"mix: the credits of its sources add up to {off}, not to 0" if off else None


def settled(saved: Saved, states: Sequence[State]) -> list[State]:
    """Lanes of format 1 that were dealt anew: their credits add up only together. From now on each lane's do."""
    if saved.format > 1 or of_samples(states):
        return list(states)
    found = []
    for state in states:
        dealt_anew = any(isinstance(source, dict) and source.get("g") for source in state["src"])
        off = sum(state["mix"]) if dealt_anew else 0
        found.append({**state, "mix": [state["mix"][0] - off, *state["mix"][1:]]} if off else state)
    return found


def check_credits(states: Sequence[State]) -> None:
    for number, state in enumerate(states):
        problem = credit_problem(state)
        if problem is not None:
            raise StateError(f"lanes: lane {number}: {problem}; nothing was changed")


def ends_of(pipeline: Pipeline, number: int, lanes: int, epoch: int, state: State) -> tuple[list[int], bool]:
    """What a new look at a lane finds: which sources that are said to have ended have, and whether it is over."""
    lane = Lane(pipeline, number, lanes, epoch, counting=True)
    lane.load_state_dict({**state, "held": [], "rest": []})
    lane.look_again()
    found = lane.state_dict()
    lane.close()
    # Where samples are counted, a row may have some left that are of the next epoch.
    held = [] if of_samples([state]) else state["held"]
    return found["off"], bool(found["o"]) and not held and not state["rest"]


def check_ends(pipeline: Pipeline, states: Sequence[State], epoch: int) -> None:
    """What is said to have ended has nothing left. The recipe is the one that the state was made with."""
    for number, state in enumerate(states):
        if not state["o"] and not state["off"]:
            continue
        ended, over = ends_of(pipeline, number, len(states), epoch, state)
        going = [shown(pipeline.recipe.parts[i].name) for i in state["off"] if i not in ended]
        if going:
            raise StateError(f"lanes: lane {number}: off: {going[0]} is said to have ended, and has rows left")
        if state["o"] and not over:
            raise StateError(f"lanes: lane {number}: o: it is said to be over, and has rows left")


def _check_fields(number: int, state: State) -> None:
    known = (*LANE_KEYS, *SAMPLE_KEYS) if any(key in state for key in SAMPLE_KEYS) else LANE_KEYS
    odd = [key for key in state if key not in (*known, FAULTS)] or [key for key in known if key not in state]
    if odd:
        raise StateError(f"lanes: lane {number} has other fields than a lane: {shown(odd[0])!r}; nothing was changed")
    for name in ("src", "mix", "tok", "off", "held", "rest"):
        if not isinstance(state[name], list):
            raise StateError(f"lanes: lane {number}: {name}: a list is expected, not {shown(state[name])!r}")


def _check_numbers(number: int, state: State, num_sources: int) -> None:
    for name in ("src", "mix", "tok"):
        if len(state[name]) != num_sources:
            raise _wrong(number, name, f"{num_sources} entries, one for each source,", state)
    for name in ("n", "o", "z"):
        if not _is_whole(state[name], 3 if name == "o" else MOST):
            raise _wrong(number, name, "0, 1 or 2" if name == "o" else "a whole number from 0 on", state)
    if not all(_is_whole(x, MOST) for x in state["tok"]):
        raise _wrong(number, "tok", "numbers of tokens", state)
    if not all(type(x) is int and abs(x) < 1 << 200 for x in state["mix"]):
        raise _wrong(number, "mix", "whole numbers", state)
    if not all(_is_whole(x, num_sources) for x in state["off"]) or len(set(state["off"])) < len(state["off"]):
        raise _wrong(number, "off", f"numbers of sources below {num_sources}", state)
    if "lim" in state:
        for name, count in (("mix", num_sources), ("lim", 2 + len(MODALITIES)), ("num", 1 + len(MODALITIES))):
            found = state[name]
            if not isinstance(found, list) or len(found) != count or not all(_is_whole(x, MOST) for x in found):
                raise _wrong(number, name, f"{count} numbers of samples", state)
        if not _is_whole(state["bad"], MOST):
            raise _wrong(number, "bad", "so many rows", state)
    for place in places_in(state):
        if not _is_whole(place.source, num_sources) or not all(_is_whole(x, MOST) for x in place):
            raise _wrong(number, FAULTS, "rows of three whole numbers (source, shard, row)", state)
    for name in ("held", "rest"):
        whole = name == "rest" or "lim" in state
        if not all(_is_piece(piece, num_sources, whole) for piece in state[name]):
            raise _wrong(number, name, "pieces of six whole numbers (source, pass, position, sample, from, to)", state)


def _is_whole(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value < most


def _is_piece(value: object, num_sources: int, whole: bool) -> bool:
    """`whole`: it may go to the end, wherever that is."""
    if not isinstance(value, list) or len(value) != 6:
        return False
    *numbers, stop = value
    if not all(_is_whole(x, MOST) for x in numbers) or numbers[0] >= num_sources:
        return False
    return (whole and type(stop) is int and stop == TO_THE_END) or (_is_whole(stop, MOST) and numbers[4] < stop)


def _wrong(number: int, name: str, wanted: str, state: State) -> StateError:
    return StateError(
        f"lanes: lane {number}: {name}: {wanted} are expected, not {shown(state[name])!r}; nothing was changed"
    )
