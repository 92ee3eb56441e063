"""Tens of thousands of resumes: after every micro-batch of many runs, checked against the run that was not stopped."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from near import Data, key, loader_of, packed, part, recipe_of, several

from headrace.recipe import Change, Mix, Recipe, Skip
from headrace.serve.loader import Loader
from headrace.stage import State

EACH = 3_900
"""Resumes of each kind of run, at least."""
AHEAD = 2
"""Batches that are compared after each resume,"""
TO_THE_END = 25
"""but for one in so many, which is followed to the end of the epoch, or of what the other run gave."""

SMALL = [[[13, 0, 9], [], [17]]]
TWO = [[[11], [8, 3]], [[9, 9]]]
LENGTHS = ((3, 9, 1, 0, 4, 21), (12, 2))


@dataclass(frozen=True)
class Kind:
    shapes: list[list[list[int]]]
    fields: dict[str, Any]
    lanes: int = 1
    steps: int = 10_000
    parts: list[dict[str, Any]] = field(default_factory=list)

    def made(self, seed: int) -> tuple[Recipe, list[Data]]:
        data = several(self.shapes, LENGTHS)
        options = self.parts or [{} for _ in data]
        parts = [part(one, **given) for one, given in zip(data, options, strict=True)]
        return recipe_of(data, seed=seed, parts=parts, **self.fields), data


KINDS = {
    "rows": Kind(SMALL, {"batch_size": 1}),
    "rows of two sources in three lanes": Kind(TWO, {"batch_size": 1}, lanes=3),
    "rows in file order": Kind(SMALL, {"batch_size": 2, "shuffle": False}, lanes=2),
    "best fit": Kind(SMALL, {"batch_size": 1, "pack": packed(slack=2)}, steps=50),
    "best fit, one pass in two lanes": Kind(SMALL, {"batch_size": 1, "pack": packed(slack=2), "epochs": 1}, lanes=2),
    "best fit of two sources by tokens": Kind(
        TWO,
        {"batch_size": 1, "pack": packed(slack=1), "mix": Mix(by="tokens")},
        steps=60,
        parts=[{"weight": 3.0}, {"weight": 1.5}],
    ),
    "concat": Kind(SMALL, {"batch_size": 1, "pack": packed(12, method="concat", overlap=2)}, steps=60),
    "concat, one pass of two sources": Kind(
        TWO, {"batch_size": 1, "pack": packed(method="concat"), "epochs": 1, "mix": Mix(order="round_robin")}
    ),
    "none": Kind(SMALL, {"batch_size": 2, "pack": packed(8, method="none")}, steps=60),
    "limits": Kind(
        TWO,
        {"batch_size": 1, "pack": packed(slack=1)},
        steps=60,
        parts=[{"tokens": 90, "weight": 2.0}, {"limit": 1000}],
    ),
    "a schedule": Kind(
        TWO,
        {
            "batch_size": 1,
            "mix": Mix(stop="loop", schedule=(Change(at=10, weights={"txt:data0:text": 9.0}),)),
            "skip": Skip(addresses=("txt:data1:text|shard-0|4",), steps=(3, 17)),
        },
        steps=50,
    ),
    "until the first ends": Kind(TWO, {"batch_size": 1, "mix": Mix(stop="first_exhausted")}, parts=[{"passes": 3}, {}]),
    "passes": Kind(TWO, {"batch_size": 2, "epochs": 3, "tail": "wrap"}, lanes=2, parts=[{"passes": 2}, {}]),
}


def run_through(loader: Loader, most: int) -> tuple[list[Any], list[State]]:
    """The batches of an epoch and some more than `most` of one without end; and the state before each up to that."""
    found, states = [], []
    batches = iter(loader)
    for step in range(most + AHEAD):
        if step <= most:
            states.append(loader.state_dict())
        batch = next(batches, None)
        if batch is None:
            break
        found.append(key(batch))
    return found, states


def resumed(recipe: Recipe, data: list[Data], kind: Kind, state: State, most: int) -> list[Any]:
    """The next batches of a new loader that goes on from a state, `most` of them or up to the end."""
    loader = loader_of(recipe, data, lanes=kind.lanes)
    loader.load_state_dict(state)
    assert loader.state_dict() == state, "restoring changed the state"
    batches = iter(loader)
    found = [key(batch) for _ in range(most) if (batch := next(batches, None)) is not None]
    loader.close()
    return found


@pytest.mark.parametrize("name", KINDS)
def test_a_resume_after_every_micro_batch_goes_on_exactly(name: str) -> None:
    kind, resumes, seed, followed = KINDS[name], 0, 0, 0
    chance = random.Random(name)
    while resumes < EACH:
        recipe, data = kind.made(seed)
        wanted, states = run_through(loader_of(recipe, data, lanes=kind.lanes), kind.steps)
        assert len(wanted) > 15
        for k, state in enumerate(states):
            # One more than there are, where the run ended: the resumed one must end there too.
            most = len(wanted) - k + (len(wanted) < kind.steps + AHEAD) if not chance.randrange(TO_THE_END) else AHEAD
            found = resumed(recipe, data, kind, json.loads(json.dumps(state)), most)
            assert found == wanted[k : k + most], f"seed {seed}, after {k} batches"
            resumes += 1
            followed += most > AHEAD
        seed += 1
    assert seed > 40
    assert followed > EACH / TO_THE_END / 2


def test_there_are_at_least_fifty_thousand_of_them() -> None:
    assert EACH * len(KINDS) >= 50_000
