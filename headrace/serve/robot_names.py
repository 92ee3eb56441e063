"""The names of robot data sets in a run that goes on: those of its state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from headrace.recipe import Recipe

ROBOT = "lerobot:"


class Known(Protocol):
    """What a state says of a source."""

    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> str: ...


def named_as(recipe: Recipe, facts: Iterable[Known]) -> Recipe:
    """A recipe of one robot data set under the name that it has in a state. Folders are named by what they hold, and
    were once named as they were spelled; whether it is the same data, its revision says."""
    known = list(facts)
    if len(known) != 1 or len(recipe.parts) != 1 or recipe.parts[0].source.kind != "lerobot":
        return recipe
    part, fact = recipe.parts[0], known[0]
    if part.name == fact.name or not fact.spec.startswith(ROBOT) or recipe.mix.schedule or recipe.skip.addresses:
        return recipe
    return replace(recipe, parts=(replace(part, name=fact.name),))
