"""Predictions with a confidence that is right: of those said with 70%, 70% come true.

Each row first draws what is so, then what is seen of it, with stated chances; the confidence is what follows from them.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from headrace.synth.dice import Dice
from headrace.synth.words import PEOPLE, counted, listing
from headrace.synth.world import CRAFTS, REGIONS, World, world

WORDS = (
    (Fraction(1), "I am certain"),
    (Fraction(99, 100), "It is almost certain"),
    (Fraction(9, 10), "It is very likely"),
    (Fraction(7, 10), "It is likely"),
    (Fraction(11, 20), "It is somewhat more likely than not"),
    (Fraction(9, 20), "It is about even"),
    (Fraction(0), "I can only guess"),
)
"""From which confidence on a sentence begins so."""


class Guess(NamedTuple):
    context: str
    question: str
    prediction: str
    """What is most likely, as a clause: "the marble is red"."""
    reason: str
    confidence: Fraction
    correct: bool
    """Whether what was drawn to be so is what was predicted."""


def uncertainty(dice: Dice, i: int, seed: int) -> dict[str, Any]:
    form = list(FORMS)[i % len(FORMS)]
    made = FORMS[form](dice, world(seed))
    words = next(text for least, text in WORDS if made.confidence >= least)
    return {
        "context": made.context,
        "question": made.question,
        "answer": f"{words} that {made.prediction}. {made.reason} Confidence: {percent(made.confidence)}.",
        "prediction": made.prediction,
        "confidence": round(float(made.confidence), 4),
        "correct": made.correct,
        "form": form,
    }


def percent(part: Fraction) -> str:
    """Whole percents; halves go up, but only what is certain is 100%."""
    return f"{min(int(part * 100 + Fraction(1, 2)), 100 if part == 1 else 99)}%"


def bag(dice: Dice, land: World) -> Guess:
    """One of several colours, by their numbers."""
    colours = dice.some(("red", "blue", "green", "white", "black"), dice.between(2, 4))
    counts = dice.some(range(1, 30), len(colours))
    total, most = sum(counts), max(counts)
    drawn, at = dice.roll(total), 0
    while drawn >= counts[at]:
        drawn -= counts[at]
        at += 1
    name, best = dice.pick(PEOPLE), colours[counts.index(most)]
    held = listing([f"{n} {colour}" for n, colour in zip(counts, colours, strict=True)])
    return Guess(
        f"A bag holds {held} marbles. {name} draws one without looking.",
        "Which colour will it be?",
        f"the marble is {best}",
        f"{most} of {total} marbles are {best}.",
        Fraction(most, total),
        colours[at] == best,
    )


def witness(dice: Dice, land: World) -> Guess:
    """One source of known reliability, on a question of yes or no that is open before it speaks."""
    town, tenths = dice.pick(land.towns), dice.between(6, 9)
    source = dice.pick(("an old ledger", "a travel book", "a letter", "a copied map"))
    truth, right = dice.roll(2) == 0, dice.happens(tenths, 10)
    says = truth == right
    craft = dice.pick(CRAFTS)
    return Guess(
        f"Of what {source} says about the crafts of towns, {tenths} in 10 statements are right. Before looking into "
        f"it, yes and no are equally likely. It says that {town} {_had(says)} a guild for {craft}.",
        f"Did {town} have a guild for {craft}?",
        f"{town} {_had(says)} a guild for {craft}",
        f"The only source says so, and it is right in {tenths} of 10 cases.",
        Fraction(tenths, 10),
        right,
    )


def witnesses(dice: Dice, land: World) -> Guess:
    """Two or three independent sources, which may contradict each other."""
    town, craft = dice.pick(land.towns), dice.pick(CRAFTS)
    names = dice.some(("the ledger", "the chronicle", "the tax roll", "the map"), dice.between(2, 3))
    tenths = [dice.between(6, 9) for _ in names]
    truth = dice.roll(2) == 0
    says = [truth == dice.happens(n, 10) for n in tenths]
    yes, no = Fraction(1), Fraction(1)
    for n, said in zip(tenths, says, strict=True):
        yes *= Fraction(n if said else 10 - n, 10)
        no *= Fraction(10 - n if said else n, 10)
    believed = yes >= no
    told = [
        f"{name.capitalize()}, right in {n} of 10 cases, says {'yes' if said else 'no'}."
        for name, n, said in zip(names, tenths, says, strict=True)
    ]
    agree = "agree" if len(set(says)) == 1 else "disagree"
    weighed = f"{_times(tenths, says, True)} for yes against {_times(tenths, says, False)} for no"
    return Guess(
        f"Several sources answer, each by itself, whether {town} had a guild for {craft}. {' '.join(told)} Before "
        f"hearing them, yes and no are equally likely.",
        f"Did {town} have a guild for {craft}?",
        f"{town} {_had(believed)} a guild for {craft}",
        f"The sources {agree}; weighed by how often each is right they speak {weighed}.",
        max(yes, no) / (yes + no),
        believed == truth,
    )


def _had(yes: bool) -> str:
    return "had" if yes else "did not have"


def _times(tenths: list[int], says: list[bool], side: bool) -> str:
    return " × ".join(f"0.{n if said == side else 10 - n}" for n, said in zip(tenths, says, strict=True))


def weather(dice: Dice, land: World) -> Guess:
    """What happened on days like this one."""
    town, days = dice.pick(land.towns), dice.between(20, 60)
    wet = dice.between(1, days - 1)
    rained = dice.happens(wet, days)
    likely = 2 * wet >= days
    seen, what = (wet, "rained") if likely else (days - wet, "stayed dry")
    return Guess(
        f"In {town}, of the {days} days on record with wind from the west, it rained on {wet}. Tomorrow the wind will "
        f"be from the west, and nothing else is known.",
        "Will it rain tomorrow?",
        f"it will {'rain' if likely else 'stay dry'}",
        f"On {seen} of {days} such days it {what}.",
        Fraction(seen, days),
        rained == likely,
    )


def told(dice: Dice, land: World) -> Guess:
    """It is said outright: nothing is left open."""
    fact = land.fact(dice.pick(land.towns), "mayor")
    other = land.fact(dice.pick([town for town in land.towns if town != fact.subject]), "mayor")
    return Guess(
        f"The register of the land is checked each day and has no errors. It says: {fact.text} {other.text}",
        f"Who is the mayor of {fact.subject}?",
        f"the mayor of {fact.subject} is {fact.value}",
        "The register says so, and it has no errors.",
        Fraction(1),
        True,
    )


def nothing(dice: Dice, land: World) -> Guess:
    """Nothing speaks for any one of several answers."""
    count = dice.between(2, len(REGIONS))
    regions = dice.some(REGIONS, count)
    name, best = dice.pick(PEOPLE), regions[0]
    return Guess(
        f"{name} was born in one of {counted(count, 'region')}, each as likely as the others: "
        f"{listing(regions, 'or')}.",
        f"In which region was {name} born?",
        f"{name} was born in {best}",
        f"Nothing speaks for any of the {count} regions, so I do not really know.",
        Fraction(1, count),
        dice.roll(count) == 0,
    )


FORMS: dict[str, Callable[[Dice, World], Guess]] = {
    "bag": bag,
    "witness": witness,
    "witnesses": witnesses,
    "weather": weather,
    "told": told,
    "nothing": nothing,
}
