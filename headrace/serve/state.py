"""The state of a run: an envelope around the states of its lanes. JSON, kilobytes, the same from every rank.

`lanes`, `sources` and `recipe` are texts: checkpoint formats that map a saved tree onto an existing one cut lists and
drop keys silently where the two differ in shape. `checksum` is over all the others: a state that was damaged on its way
is refused, not resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import StateError, shown
from headrace.fetch.pool import PoolSize
from headrace.outside_json import TooManyValues, parse
from headrace.recipe import Recipe
from headrace.serve.lane_state import as_json, canonical, in_full, lane_of
from headrace.serve.pipeline import Fact, facts_from, facts_to, joined_marks
from headrace.serve.readable import Entries, merged
from headrace.serve.state_file import MOST_VALUES
from headrace.stage import State

FORMAT = 2
"""1: without a checksum; its row offsets count rows delivered, and do not say which rows wait."""
NUMBERS = ("L", "K", "pool_bytes", "m", "m_plan", "m_epoch", "epoch")
KEYS = frozenset(("format", "fingerprint", "recipe", "sources", "revisions", *NUMBERS, "resume_state", "lanes"))
CHECKSUM = "checksum"
MOST_LANES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A state, taken apart."""

    recipe: str
    fingerprint: str
    facts: tuple[Fact, ...]
    size: PoolSize
    m: int
    """Micro-batches of the run that were delivered."""
    m_plan: int
    """...when these lanes began: at the start, at an epoch's, or at a re-deal."""
    m_epoch: int
    """...when the trainer's epoch began."""
    epoch: int
    """The trainer's."""
    lanes: tuple[bytes | None, ...]
    """The canonical JSON of each lane; None: not in this part of the state."""
    format: int = FORMAT
    """Of the state that this was read from."""
    away: tuple[Fact, ...] = ()
    """Parts that were taken out of the recipe, with where they were."""

    def to_state(self, entries: Entries | None = None) -> State:
        """`entries`: what `resume_state` says of the sources, if anything."""
        datasets, text = entries or ([], "[]")
        return stamped(
            {
                "format": FORMAT,
                "fingerprint": self.fingerprint,
                "recipe": self.recipe,
                "sources": as_json(facts_to(self.kept)),
                "revisions": {fact.name: fact.revision for fact in self.facts},
                "L": len(self.lanes),
                "K": self.size.chunks,
                "pool_bytes": self.size.nbytes,
                "m": self.m,
                "m_plan": self.m_plan,
                "m_epoch": self.m_epoch,
                "epoch": self.epoch,
                "resume_state": {"datasets": datasets},
                "lanes": "[" + ",".join("null" if lane is None else lane.decode() for lane in self.lanes) + "]",
            },
            {"resume_state": f'{{"datasets":{text}}}'},
        )

    @classmethod
    def from_state(cls, state: Any, *, force: bool = False) -> Saved:
        """`force`: a state that was changed since it was saved is taken as well, if it can be one."""
        if not isinstance(state, dict):
            raise StateError(f"a state is a dict, this is {type(state).__name__}; nothing was changed")
        _check_format(state)
        numbers = {name: _whole(name, state) for name in NUMBERS}
        lanes = _parsed("lanes", state)
        if not isinstance(lanes, list) or len(lanes) != numbers["L"] or not 0 < len(lanes) <= MOST_LANES:
            found = len(lanes) if isinstance(lanes, list) else shown(lanes)
            raise StateError(f"lanes: {numbers['L']} states are expected, there are {found}; nothing was changed")
        for i, lane in enumerate(lanes):
            if lane is not None and not isinstance(lane, dict):
                raise StateError(f"lanes: lane {i} is {shown(lane)!r}, not a state; nothing was changed")
        for name in ("recipe", "fingerprint"):
            if not isinstance(state.get(name), str):
                raise StateError(f"{name}: a text is expected, not {shown(state.get(name))!r}; nothing was changed")
        if numbers["m"] < max(numbers["m_plan"], numbers["m_epoch"]) or not numbers["K"] or not numbers["pool_bytes"]:
            raise StateError(
                f"m={numbers['m']}, m_plan={numbers['m_plan']}, K={numbers['K']}, pool_bytes={numbers['pool_bytes']}: "
                f"these numbers do not go together; nothing was changed"
            )
        facts = facts_from(_parsed("sources", state))
        if not force:  # last: what is known to be wrong says more
            _check_sum(state)
        return cls(
            recipe=state["recipe"],
            fingerprint=state["fingerprint"],
            facts=tuple(fact for fact in facts if fact.away is None),
            away=tuple(fact for fact in facts if fact.away is not None),
            size=PoolSize(chunks=numbers["K"], nbytes=numbers["pool_bytes"]),
            m=numbers["m"],
            m_plan=numbers["m_plan"],
            m_epoch=numbers["m_epoch"],
            epoch=numbers["epoch"],
            lanes=tuple(None if lane is None else canonical(in_full(lane)) for lane in lanes),
            format=state["format"],
        )

    @property
    def kept(self) -> tuple[Fact, ...]:
        """All sources that the state has a place in."""
        return (*self.facts, *self.away)

    def read_recipe(self) -> Recipe:
        try:
            return Recipe.from_dict(parse(self.recipe, MOST_VALUES))
        except (ValueError, RecursionError, TypeError) as error:
            raise StateError(f"recipe: it cannot be read: {shown(error)}") from error

    @property
    def missing(self) -> list[int]:
        return [i for i, lane in enumerate(self.lanes) if lane is None]

    def lane_states(self) -> list[State]:
        """All lanes; a part of a state is not enough."""
        if self.missing:
            raise StateError(
                f"the state has no lanes {_few(self.missing)} of {len(self.lanes)}: it is one rank's part; "
                f"join the parts of all ranks with headrace.merge_states([...])"
            )
        return [lane_of(lane) for lane in self.lanes if lane is not None]


def merge_states(states: Iterable[State]) -> State:
    """One state out of the parts that ranks saved one by one, all at the same step."""
    parts = list(states)
    if not parts:
        raise StateError("merge_states([]): the parts of all ranks are expected")
    saved = [Saved.from_state(part) for part in parts]
    first = saved[0]
    lanes = list(first.lanes)
    for rank, one in enumerate(saved[1:], 1):
        _check_same_data(rank, one.kept, first.kept)
        same = ("fingerprint",) if one.facts == first.facts else ()  # each rank may write the paths in its own way
        for name in (*same, "size", "m", "m_plan", "m_epoch", "epoch"):
            if getattr(one, name) != getattr(first, name):
                here, there = shown(getattr(one, name)), shown(getattr(first, name))
                raise StateError(f"{name}: part {rank} has {here}, part 0 has {there}; parts of one step are expected")
        if len(one.lanes) != len(lanes):
            raise StateError(f"part {rank} is of {len(one.lanes)} lanes, part 0 of {len(lanes)}")
        for i, lane in enumerate(one.lanes):
            if lane is None:
                continue
            if lanes[i] is not None and lanes[i] != lane:
                raise StateError(f"lane {i} comes in two parts with two states; parts of one step are expected")
            lanes[i] = lane
    whole = replace(first, lanes=tuple(lanes), facts=joined_marks([one.facts for one in saved]))
    whole.lane_states()
    return whole.to_state(Entries.of(merged([part.get("resume_state") for part in parts])))


def _check_same_data(rank: int, facts: Sequence[Fact], others: Sequence[Fact]) -> None:
    """The parts of ranks are of the same sources, under the same names: these decide which rank reads what."""
    names = [[fact.name for fact in one] for one in (facts, others)]
    if names[0] != names[1]:
        here, there = (", ".join(shown(name) for name in one) for one in names)
        raise StateError(
            f"sources: part {rank} has {here}, part 0 has {there}: ranks that call a source by different names read "
            f"different shares of it; write its path in the same way on all ranks, or give it a name"
        )
    for one, other in zip(facts, others, strict=True):
        if not one.is_of(other):
            raise StateError(
                f"facts: {shown(one.name)}: part {rank} has {shown(one, 500)}, part 0 has {shown(other, 500)}; parts "
                f"of one step, of ranks that read the same data, are expected"
            )


def stamped(state: State, texts: Mapping[str, str] | None = None) -> State:
    """A state with the checksum of what it says. `texts`: fields of it as JSON, where they were written already."""
    return {**state, CHECKSUM: _checksum({**state, **(texts or {})})}


def _checksum(state: State) -> str:
    found = hashlib.blake2b(digest_size=16)
    for key in sorted(KEYS):
        value = state[key]
        text = value if isinstance(value, str) else as_json(value)
        found.update(f"{key}:{len(text)}:".encode())
        found.update(text.encode("utf-8", "surrogatepass"))
    return found.hexdigest()


def _check_sum(state: State) -> None:
    if state["format"] == 1:
        if CHECKSUM in state:
            raise StateError(
                "checksum: a state of format 1 has no checksum, and this one has: its format was damaged on its way, "
                "or edited. Take another copy of it; if you edited it on purpose, load it with force=True (headrace "
                "verify: --force); nothing was changed"
            )
        return
    try:
        found = _checksum(state)
    except (TypeError, ValueError, RecursionError):
        found = "none"
    if state.get(CHECKSUM) != found:
        raise StateError(
            "checksum: the state is not as it was saved: it was damaged on its way, or edited. Take another copy of "
            "it; if you edited it on purpose, load it with force=True (headrace verify: --force); nothing was changed"
        )


def _check_format(state: State) -> None:
    found = state.get("format")
    if type(found) is not int or found < 1:
        inside = [
            key for key, value in state.items() if isinstance(value, dict) and {"format", "lanes"} <= value.keys()
        ]
        if inside:
            raise StateError(
                f"the state lies in this checkpoint under {shown(inside[0])!r}: give load_state_dict that part of it; "
                f"nothing was changed"
            )
        raise StateError(f"format: {shown(found)!r} is not a format of a loader's state; nothing was changed")
    if found > FORMAT:
        raise StateError(
            f"format: the state was written by a newer version (format {found}, this one reads up to {FORMAT}); "
            f"upgrade headrace"
        )
    # Other keys are a checkpoint's own: `{"model": ..., **loader.state_dict()}`.
    lost = sorted(key for key in KEYS if key not in state)
    if lost:
        raise StateError(f"the state lacks the field {lost[0]!r}; nothing was changed")


def _whole(name: str, state: State) -> int:
    value = state.get(name)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise StateError(f"{name}: a whole number from 0 on is expected, not {shown(value)!r}; nothing was changed")
    return value


def _parsed(name: str, state: State) -> Any:
    value = state.get(name)
    try:
        if isinstance(value, str):
            return parse(value, MOST_VALUES, parse_constant=_refused)
    except TooManyValues as error:
        raise StateError(f"{name}: {error}; nothing was changed") from error
    except (ValueError, RecursionError) as error:
        raise StateError(f"{name}: this is not JSON: {shown(error)}; nothing was changed") from error
    raise StateError(f"{name}: a text is expected, not {shown(value)!r}; nothing was changed")


def _refused(word: str) -> None:
    raise ValueError(f"{word} is no number of a state")


def _few(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
