"""From a state to where every lane goes on: for this recipe, on this many ranks.

Nothing is changed before everything in the state was found to fit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.errors import StateError, shown
from headrace.make.faults import places_in
from headrace.recipe import Recipe
from headrace.sequence.samples import is_untouched
from headrace.serve.check import (
    check_credits,
    check_ends,
    check_kind,
    check_lanes,
    check_limits,
    check_passes,
    check_sources,
    check_turns,
    ends_of,
    of_samples,
    settled,
    turns,
)
from headrace.serve.lane_state import canonical
from headrace.serve.pipeline import Pipeline
from headrace.serve.recognised import came_back, facts_with_marks, put_away, respelled, tell_changes, with_returned
from headrace.serve.redeal import redeal, within_limits
from headrace.serve.state import Saved
from headrace.stage import State

log = logging.getLogger("headrace")

Row: TypeAlias = tuple[int, int, int]
"""The number of its source, its pass and its position."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run goes on."""

    lanes: list[bytes]
    m: int
    """Micro-batches of the run that were delivered."""
    m_plan: int
    """...when these lanes began."""
    m_epoch: int
    """...when the trainer's epoch began."""
    epoch: int
    is_whole: bool = True
    """Whether all lanes are as they were at `m`. After a step a rank knows that of its own lanes only."""


def placed(saved: Saved, pipeline: Pipeline, ranks: int, wanted: int) -> Place:
    """`wanted`: the lanes to re-deal for, should `ranks` not divide those of the state."""
    states = saved.lane_states()
    check_lanes(saved, states)
    states = settled(saved, states)
    check_kind(states, pipeline)
    check_limits(states, pipeline)
    saved = respelled(saved, pipeline.recipe, pipeline.numbers)
    check_same_order(saved, pipeline.recipe, pipeline.numbers)
    check_turns(saved, states, pipeline)
    pipeline.fix(len(states))
    check_passes(saved, pipeline)
    _tell_new_limits(saved, pipeline)
    states = within_limits(pipeline, _fitted(saved, states, pipeline))
    check_sources(pipeline, states, saved.epoch)
    check_credits(states)
    states = _looked_at_again(saved, states, pipeline)
    m, m_plan = saved.m, saved.m_plan
    if len(states) % ranks:
        states = redealt(pipeline, states, wanted)
        if pipeline.samples is not None:  # so that epochs begin with lane 0
            m = -(-m // wanted) * wanted
        m_plan = m
    lanes = [canonical(state) for state in states]
    return Place(lanes=lanes, m=m, m_plan=m_plan, m_epoch=saved.m_epoch, epoch=saved.epoch)


def redealt(pipeline: Pipeline, states: Sequence[State], wanted: int) -> list[State]:
    """The states of `wanted` lanes, where the ranks do not divide those that there are."""
    ranks = pipeline.run.world_size
    log.info("re-deal: %d ranks do not divide %d lanes; what is left is cut for %d", ranks, len(states), wanted)
    found, origins = redeal(pipeline, states, wanted)
    pipeline.start_digests(origins)
    return found


def check_same_order(saved: Saved, recipe: Recipe, numbers: Sequence[int | None]) -> None:
    """The rules that give a position its meaning must be those of the state. `numbers`: as of `Pipeline.numbers`."""
    if all(number is None for number in numbers):
        old, new = [fact.name for fact in saved.facts], [part.name for part in recipe.parts]
        raise StateError(
            f"the state was made with {_names(old)}, here the sources are {_names(new)}: none is the same, as far as "
            f"can be told; start anew, or, if a part has the rows that one of the state had, give it the name that it "
            f"had there and load the state with trust_moved=True"
        )
    if saved.fingerprint == recipe.fingerprint():
        return
    before = saved.read_recipe()
    pairs = [
        (f"order.{name}", getattr(before.order, name), getattr(recipe.order, name)) for name in ("seed", "shuffle")
    ]
    for part, number in zip(recipe.parts, numbers, strict=True):
        if number is not None:
            pairs.append((f"limit of {shown(part.name)}", _limit(saved, before, number), part.limit))
    differ = [f"{name}: the state was made with {was}, here it is {here}" for name, was, here in pairs if was != here]
    if differ:
        raise StateError(
            f"{'; '.join(differ)}: rows would come in another order, and those seen could not be told from those not "
            f"seen; set it back, or start anew"
        )


def _limit(saved: Saved, recipe: Recipe, number: int) -> int | None:
    """Of a source of the state; `recipe`: that of the state."""
    away = saved.kept[number].away
    limit: int | None = recipe.parts[number].limit if away is None else away["limit"]
    return limit


def _names(names: Sequence[str]) -> str:
    return ", ".join(shown(name) for name in names[:8]) + (", …" if len(names) > 8 else "")


# --- a state of another recipe


def _fitted(saved: Saved, states: list[State], pipeline: Pipeline) -> list[State]:
    """Lane states with this recipe's sources in this recipe's order: known ones go on, new ones begin."""
    names = [part.name for part in pipeline.recipe.parts]
    numbers, back = came_back(saved, pipeline, len(states))
    tell_changes(saved, pipeline, numbers)
    put_away(saved, states, pipeline, numbers)
    first = saved.epoch * (pipeline.passes or 0)
    begun = [
        back[i].origin if i in back else (first, 0) if n is None else (fact.epoch, fact.digest)
        for i, (fact, n) in enumerate(zip(pipeline.facts, numbers, strict=True))
    ]
    pipeline.start_digests(begun)
    again = {i for i, n in enumerate(numbers) if n is not None and saved.kept[n].prepare != pipeline.prepare_marks[i]}
    in_order = numbers == list(range(len(saved.facts)))
    same_weights = in_order and _weights(saved, pipeline)
    cut_rows: set[Row] = set()
    read_again: set[Row] = set()
    fitted = []
    for number, state in enumerate(states):
        whole = with_returned(state, number, saved, numbers, back)
        one = _with_sources(whole, numbers, pipeline, number, len(states), saved)
        if pipeline.samples is not None and not in_order:
            fresh = pipeline.fresh_lane(number, len(states), saved.epoch)
            new = [i for i, n in enumerate(numbers) if n is None or i in back]
            one = pipeline.samples.fitted(one, new, fresh)
        elif pipeline.samples is None and not same_weights:
            one["mix"] = [0] * len(names)
        if again:
            if pipeline.samples is not None:  # samples that nobody got will be counted once more
                fresh_ones = [p[0] for p in one["rest"] if p[0] in again and is_untouched(p)]
                one = pipeline.samples.taken_back(one, fresh_ones)
            cut_rows |= _from_their_start(one, again, read_again)
        fitted.append(one)
    if again:
        changed = ", ".join(shown(names[i]) for i in sorted(again))
        log.warning(
            "resume: what makes rows ready changed for %s; rows that were held are read again from their start, "
            "%d of them were partly delivered",
            changed,
            len(cut_rows),
        )
    return fitted


def _tell_new_limits(saved: Saved, pipeline: Pipeline) -> None:
    if saved.fingerprint == pipeline.recipe.fingerprint():
        return
    old = saved.read_recipe()
    uncounted = {part.name for part in old.parts if part.tokens is None and old.mix.by == "rows"}
    for part in pipeline.recipe.parts:
        if part.tokens is not None and part.name in uncounted:
            log.warning(
                "resume: %s: tokens=%d counts from here on: the run had no such limit before, and its tokens were not "
                "counted",
                shown(part.name),
                part.tokens,
            )


def _looked_at_again(saved: Saved, states: list[State], pipeline: Pipeline) -> list[State]:
    """A lane that was over may have rows again: of a source that was added, of one more pass."""
    if saved.fingerprint == pipeline.recipe.fingerprint():
        check_ends(pipeline, states, saved.epoch)
        return states
    found = []
    for number, state in enumerate(states):
        off, over = ends_of(pipeline, number, len(states), saved.epoch, state)
        ended = {"z": state["z"], "o": state["o"] or 1} if over else {"z": 0, "o": 0}
        found.append({**state, "n": turns(saved, number), "off": off, **ended})
    return found


def _with_sources(
    state: State, numbers: Sequence[int | None], pipeline: Pipeline, lane: int, lanes: int, saved: Saved
) -> State:
    """`numbers`: for each source of the recipe, its number in the state."""
    now = {n: i for i, n in enumerate(numbers) if n is not None}

    def pieces(name: str) -> list[list[int]]:
        return [[now[piece[0]], *piece[1:]] for piece in state[name] if piece[0] in now]

    left_out = {"faults": [[now[p.source], p.shard, p.row] for p in places_in(state) if p.source in now]}
    return {
        **state,
        **(left_out if "faults" in state else {}),
        "src": [
            pipeline.pool(i, lane, lanes, saved.epoch).state_dict() if n is None else state["src"][n]
            for i, n in enumerate(numbers)
        ],
        "mix": [0 if n is None else state["mix"][n] for n in numbers],
        "tok": [0 if n is None else state["tok"][n] for n in numbers],
        "off": sorted(now[n] for n in state["off"] if n in now),
        "held": pieces("held"),
        "rest": pieces("rest"),
    }


def _weights(saved: Saved, pipeline: Pipeline) -> bool:
    if saved.fingerprint == pipeline.recipe.fingerprint():
        return True
    old, new = saved.read_recipe(), pipeline.recipe
    weights = [[part.weight for part in recipe.parts] for recipe in (old, new)]
    return old.mix == new.mix and weights[0] == weights[1]


def _from_their_start(state: State, again: set[int], seen: set[Row]) -> set[Row]:
    """Pieces of other tokens mean nothing: their rows are read again. Gives those that were partly delivered.

    `seen`: rows that other lanes read again: after a re-deal, samples of one row can wait in several.
    """
    pieces = [piece for name in ("held", "rest") for piece in state[name] if piece[0] in again]
    rows = [row for row in dict.fromkeys(_row(piece) for piece in pieces) if row not in seen]
    seen.update(rows)
    for name in ("held", "rest"):
        state[name] = [piece for piece in state[name] if piece[0] not in again]
    # Where whole samples are given, what is held are rows of which all samples are still to come.
    name = "held" if of_samples([state]) else "rest"
    state[name] = [[*row, 0, 0, -1] for row in rows] + state[name]
    return {_row(piece) for piece in pieces if piece[3] or piece[4]}


def _row(piece: Sequence[int]) -> Row:
    return piece[0], piece[1], piece[2]


def saved_of(pipeline: Pipeline, place: Place, lanes: Sequence[bytes | None] | None = None) -> Saved:
    """A place as a state. `lanes`: those of this rank, or of all ranks; default: the place's own."""
    recipe, found = pipeline.recipe, place.lanes if lanes is None else lanes
    return Saved(
        recipe=recipe.text,
        fingerprint=recipe.fingerprint(),
        facts=facts_with_marks(pipeline, found),
        away=pipeline.away,
        size=pipeline.size,
        m=place.m,
        m_plan=place.m_plan,
        m_epoch=place.m_epoch,
        epoch=place.epoch,
        lanes=tuple(found),
    )
