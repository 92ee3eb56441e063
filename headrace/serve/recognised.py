"""Parts that a recipe got, lost or got back since a state was made, and the marks of the shards being read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import HeadraceError, shown
from headrace.fetch.entries import same_spec
from headrace.fetch.sources import Indexed
from headrace.recipe import Recipe
from headrace.serve.lane_state import lane_of
from headrace.serve.parts import same_place
from headrace.serve.pipeline import Fact, Pipeline
from headrace.serve.redeal import even, redeal_source
from headrace.serve.state import Saved
from headrace.stage import State

log = logging.getLogger("headrace")


def respelled(saved: Saved, recipe: Recipe, numbers: Sequence[int | None]) -> Saved:
    """A state as of this recipe, where only the names and places of sources differ: that changes no batch."""
    if saved.fingerprint == recipe.fingerprint() or numbers != list(range(len(saved.facts))):
        return saved
    old, new = saved.read_recipe().to_dict(), recipe.to_dict()
    names = {part["name"]: was["name"] for part, was in zip(new["parts"], old["parts"], strict=True)}
    for part, was in zip(new["parts"], old["parts"], strict=True):
        part["source"], part["name"] = was["source"], was["name"]
    for change in new["mix"]["schedule"]:
        change["weights"] = {names[name]: weight for name, weight in change["weights"].items()}
    return replace(saved, recipe=recipe.text, fingerprint=recipe.fingerprint()) if old == new else saved


# --- parts that are gone, and come back


@dataclass(frozen=True)
class Back:
    """A part that was taken out of the recipe and is there again."""

    lanes: list[dict[str, Any]]
    """Where each lane goes on with it."""
    origin: tuple[int, int]
    """Where its digests begin."""


def came_back(saved: Saved, pipeline: Pipeline, lanes: int) -> tuple[list[int | None], dict[int, Back]]:
    """For each part its number in the state, as of `Pipeline.numbers`; and the parts that are there again."""
    numbers = list(pipeline.numbers)
    back: dict[int, Back] = {}
    for i, n in enumerate(numbers):
        fact = None if n is None else saved.kept[n]
        if fact is None or fact.away is None:
            continue
        passes = pipeline.passes
        if passes is not None and not saved.epoch * passes <= fact.epoch < (saved.epoch + 1) * passes:
            numbers[i] = None  # of an earlier epoch; this one reads it from its start
            continue
        back[i] = _dealt(pipeline, i, fact, lanes)
    return numbers, back


def _dealt(pipeline: Pipeline, i: int, fact: Fact, lanes: int) -> Back:
    """Its lanes as they were; where there is another number of them now, what was left is cut anew."""
    assert fact.away is not None
    places: list[dict[str, Any]] = fact.away["lanes"]
    if len(places) == lanes:
        return Back(places, (fact.epoch, fact.digest))
    states, origin = redeal_source(pipeline, i, [place["src"] for place in places], lanes)
    tokens = even([place["tok"] for place in places], lanes)
    pieces = {name: [piece for place in places for piece in place[name]] for name in ("held", "rest")}
    return Back(
        [
            {"src": states[j], "tok": tokens[j], **{name: pieces[name][j::lanes] for name in pieces}}
            for j in range(lanes)
        ],
        origin,
    )


def with_returned(
    state: State, lane: int, saved: Saved, numbers: Sequence[int | None], back: Mapping[int, Back]
) -> State:
    """The state of a lane with sources that are back in it, each under its number among all that the state keeps."""
    if not back:
        return state
    more = len(saved.away)
    out: State = {**state, "mix": [*state["mix"], *[0] * more], "tok": [*state["tok"], *[0] * more]}
    out |= {"src": [*state["src"], *[{}] * more], "held": list(state["held"]), "rest": list(state["rest"])}
    for i, one in back.items():
        n, place = numbers[i], one.lanes[lane]
        out["src"][n], out["tok"][n] = place["src"], place["tok"]
        for name in ("held", "rest"):
            out[name] += [[n, *piece] for piece in place[name]]
    return out


def put_away(saved: Saved, states: Sequence[State], pipeline: Pipeline, numbers: Sequence[int | None]) -> None:
    """Keep the places of parts that the recipe has no more."""
    gone = [n for n in range(len(saved.facts)) if n not in numbers]
    if not gone:
        return
    limits = [part.limit for part in saved.read_recipe().parts]

    def place(state: State, n: int) -> dict[str, Any]:
        pieces = {name: [piece[1:] for piece in state[name] if piece[0] == n] for name in ("held", "rest")}
        return {"src": state["src"][n], "tok": state["tok"][n], **pieces}

    away = [
        replace(saved.facts[n], away={"limit": limits[n], "lanes": [place(state, n) for state in states]}) for n in gone
    ]
    pipeline.away = (*pipeline.away, *away)


def tell_changes(saved: Saved, pipeline: Pipeline, numbers: Sequence[int | None]) -> None:
    """One line for what is new or gone, and one for each part that has another name now."""
    parts = pipeline.recipe.parts
    new = [shown(part.name, 1000) for part, n in zip(parts, numbers, strict=True) if n is None]
    gone = [shown(fact.name, 1000) for n, fact in enumerate(saved.facts) if n not in numbers]
    if new or gone:
        log.warning(
            "resume: %s%s%s",
            f"read from the start, because the state does not have it: {', '.join(new)}" if new else "",
            "; " if new and gone else "",
            f"not in the recipe any more, its place is kept in the state: {', '.join(gone)}" if gone else "",
        )
    for part, n in zip(parts, numbers, strict=True):
        fact = None if n is None else saved.kept[n]
        if fact is None:
            continue
        if fact.away is not None:
            log.info("resume: %s is back and goes on where it was", shown(part.name, 1000))
        if fact.name != part.name and fact.spec != str(part.source):
            same = same_spec(fact.spec, part.source) or not same_place(fact.spec, part.source)
            log.log(
                logging.INFO if same else logging.WARNING,  # rows of another column are not those that were given
                "resume: %s has the rows that the state calls %s, and goes on where that was",
                shown(part.name, 1000),
                shown(fact.name, 1000),
            )


# --- shards that are being read


def facts_with_marks(pipeline: Pipeline, lanes: Sequence[bytes | None]) -> tuple[Fact, ...]:
    """Facts for a state: of sources whose shards are counted when they are opened, with the marks of those that the
    lanes are reading. Their rows mean nothing in another file."""
    found = list(pipeline.facts)
    for i, fact in enumerate(found):
        source = pipeline.sources[i]
        if fact.identity is None or fact.identity.shape or not isinstance(source, Indexed) or _is_pinned(source):
            continue
        known = dict(fact.identity.opened)
        marks: dict[int, str] = {}
        for shard in sorted(_in_use(pipeline, i, lanes)):
            try:
                marks[shard] = source.index.mark(shard)
            except HeadraceError:  # a state can be had also when a file cannot
                if shard in known:
                    marks[shard] = known[shard]
        found[i] = replace(fact, identity=replace(fact.identity, opened=marks))
    return tuple(found)


def _is_pinned(source: Indexed) -> bool:
    return source.index.listing.source.kind == "hf"


def _in_use(pipeline: Pipeline, i: int, lanes: Sequence[bytes | None]) -> set[int]:
    shards: set[int] = set()
    for number, lane in enumerate(lanes):
        if lane:
            before = pipeline.in_use.get((i, number))
            if before is None or before[0] is not lane:  # few lanes move from one state to the next
                pipeline.in_use[i, number] = before = lane, _of_lane(pipeline, i, lane_of(lane), number, len(lanes))
            shards |= before[1]
    return shards


def _of_lane(pipeline: Pipeline, i: int, state: State, number: int, lanes: int) -> frozenset[int]:
    pool = pipeline.pool(i, number, lanes)
    pool.last = None
    pool.load_state_dict(state["src"][i])
    shards = pool.shards_in_use()
    for piece in (*state["held"], *state["rest"]):
        if piece[0] == i:
            shards |= set(pool.orders(piece[1]).window_shards(piece[2], piece[2] + 1).tolist())
    return frozenset(shards)
