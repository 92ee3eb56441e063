"""A small invented land, the same for the same seed: what questions and claims about facts are held against.

The land is invented so that nothing in it is known from elsewhere: whatever a passage does not say cannot be known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from headrace.synth.dice import Dice
from headrace.synth.words import PEOPLE, SURNAMES, WEEKDAYS

NUM_TOWNS = 40
_HEADS = (
    "Alder", "Birch", "Brack", "Corn", "Dun", "Elm", "Fern", "Grey", "Hasel", "Iron", "Kel", "Lark",
    "Mill", "North", "Oster", "Quarn", "Raven", "Salt", "Thorn", "Under",
)  # fmt: skip
_TAILS = ("bury", "by", "dale", "field", "ford", "ham", "holt", "mere", "stead", "ton", "wick", "worth")
REGIONS = ("Hallmark", "Lower Senn", "Upper Senn", "Varrow", "the Marches")
RIVERS = ("Ask", "Dray", "Immer", "Lode", "Pell", "Wenna")
CRAFTS = ("bells", "cheese", "clocks", "glass", "pottery", "rope", "saddles", "wool cloth")


class Relation(NamedTuple):
    says: str
    """A sentence with the town `{s}` and the value `{v}`."""
    asks: str
    noun: str
    """What is asked for, as in "the passage does not give ..."."""


RELATIONS = {
    "region": Relation("{s} lies in {v}.", "In which region does {s} lie?", "the region of {s}"),
    "river": Relation("{s} stands on the river {v}.", "On which river does {s} stand?", "the river of {s}"),
    "founded": Relation("{s} was founded in {v}.", "In which year was {s} founded?", "the founding year of {s}"),
    "population": Relation(
        "{s} has {v} inhabitants.", "How many inhabitants does {s} have?", "the number of inhabitants of {s}"
    ),
    "mayor": Relation("The mayor of {s} is {v}.", "Who is the mayor of {s}?", "the mayor of {s}"),
    "craft": Relation("{s} is known for its {v}.", "What is {s} known for?", "what {s} is known for"),
    "market": Relation(
        "The market of {s} is held on {v}s.", "On which day is the market of {s} held?", "the market day of {s}"
    ),
    "bridges": Relation("{s} has {v} bridges.", "How many bridges does {s} have?", "the number of bridges of {s}"),
}
COUNTABLE = {"founded": ("older", "oldest"), "population": ("larger", "largest")}
"""Relations in which towns can be compared, with the words for it. The older town has the smaller year."""


class Fact(NamedTuple):
    subject: str
    relation: str
    value: str

    @property
    def text(self) -> str:
        return RELATIONS[self.relation].says.format(s=self.subject, v=self.shown)

    @property
    def shown(self) -> str:
        return f"{int(self.value):,}" if self.relation == "population" else self.value


@dataclass(frozen=True)
class World:
    facts: dict[tuple[str, str], str]

    @property
    def towns(self) -> list[str]:
        return list(dict.fromkeys(town for town, _ in self.facts))

    def fact(self, town: str, relation: str) -> Fact:
        return Fact(town, relation, self.facts[town, relation])


@lru_cache(maxsize=4)
def world(seed: int) -> World:
    dice = Dice("world", seed)
    names = dice.some([head + tail for head in _HEADS for tail in _TAILS], NUM_TOWNS)
    mayors = dice.some([f"{first} {last}" for first in PEOPLE for last in SURNAMES], NUM_TOWNS)
    years = dice.some(range(1102, 1790), NUM_TOWNS)
    sizes = dice.some(range(9, 620), NUM_TOWNS)
    facts: dict[tuple[str, str], str] = {}
    for i, town in enumerate(names):
        found = {
            "region": dice.pick(REGIONS),
            "river": dice.pick(RIVERS),
            "founded": str(years[i]),
            "population": str(sizes[i] * 100),
            "mayor": mayors[i],
            "craft": dice.pick(CRAFTS),
            "market": dice.pick(WEEKDAYS),
            "bridges": str(dice.between(2, 9)),
        }
        facts.update({(town, relation): value for relation, value in found.items()})
    return World(facts)


class Passage(NamedTuple):
    """Some facts, as they stand in a text."""

    facts: list[Fact]

    @property
    def text(self) -> str:
        return " ".join(fact.text for fact in self.facts)

    @property
    def towns(self) -> list[str]:
        return list(dict.fromkeys(fact.subject for fact in self.facts))

    def find(self, town: str, relation: str) -> Fact | None:
        return next((f for f in self.facts if (f.subject, f.relation) == (town, relation)), None)

    def rows(self) -> list[dict[str, str]]:
        return [fact._asdict() for fact in self.facts]


def passage(dice: Dice, land: World, compared: str) -> Passage:
    """A few facts of a few towns; `compared` is told of all of them, and of each at least one relation is not told."""
    others = [name for name in RELATIONS if name != compared]
    found: list[Fact] = []
    for town in dice.some(land.towns, dice.between(3, 4)):
        told = [compared, *dice.some(others, dice.between(1, 3))]
        found += [land.fact(town, relation) for relation in dice.shuffled(told)]
    return Passage(found)
