"""Questions that a passage answers or does not answer, and claims that it bears out, contradicts or leaves open."""

from __future__ import annotations

from typing import Any

from headrace.synth.dice import Dice
from headrace.synth.world import COUNTABLE, RELATIONS, Fact, Passage, World, passage, world

_ASKS = {"founded": "Which of the towns in the passage is the oldest?"}
_ASKS["population"] = "Which of the towns in the passage is the largest by inhabitants?"


def idk(dice: Dice, i: int, seed: int) -> dict[str, Any]:
    """Half of the questions cannot be answered from the passage, and the answer says so."""
    land = world(seed)
    compared = dice.pick(list(COUNTABLE))
    text = passage(dice, land, compared)
    form = ("stated", "not_stated", "compared", "unknown_town", "stated", "wrong_premise", "stated", "not_stated")[
        i % 8
    ]
    fact = dice.pick(text.facts)
    made: tuple[str, str, str]
    if form == "stated":
        made = RELATIONS[fact.relation].asks.format(s=fact.subject), fact.text, fact.shown
    elif form == "compared":
        most = _most(text, compared)
        made = (
            _ASKS[compared],
            f"{most.subject}, because {_lowered(most.text)[:-1]}, more than the others.",
            most.subject,
        )
        if compared == "founded":
            made = made[0], f"{most.subject}, because {_lowered(most.text)[:-1]}, before all the others.", most.subject
    elif form == "not_stated":
        made = _not_stated(dice, text)
    elif form == "unknown_town":
        made = _unknown_town(dice, text, land)
    else:
        made = _wrong_premise(dice, text, land)
    question, answer, result = made
    return {
        "context": text.text,
        "question": question,
        "answer": answer,
        "result": result,
        "answerable": form in ("stated", "compared"),
        "form": form,
        "facts": text.rows(),
    }


def _lowered(text: str) -> str:
    return text[0].lower() + text[1:] if text.startswith("The ") else text


def _most(text: Passage, relation: str) -> Fact:
    facts = [fact for fact in text.facts if fact.relation == relation]
    by_value = sorted(facts, key=lambda fact: int(fact.value))
    return by_value[0] if relation == "founded" else by_value[-1]


def _untold(dice: Dice, text: Passage) -> tuple[str, str]:
    """A town of the passage, and something that is not said about it."""
    town = dice.pick(text.towns)
    return town, dice.pick([name for name in RELATIONS if text.find(town, name) is None])


def _not_stated(dice: Dice, text: Passage) -> tuple[str, str, str]:
    town, relation = _untold(dice, text)
    noun = RELATIONS[relation].noun.format(s=town)
    said = dice.pick((f"The passage does not say {noun}", f"I don't know {noun}: the passage does not give it"))
    if relation == "craft":
        said = f"The passage does not say {noun}"
    told = dice.pick([fact for fact in text.facts if fact.subject == town])
    return (
        RELATIONS[relation].asks.format(s=town),
        f"{said}. It only says, for instance, that {_lowered(told.text)}",
        "",
    )


def _unknown_town(dice: Dice, text: Passage, land: World) -> tuple[str, str, str]:
    town = dice.pick([name for name in land.towns if name not in text.towns])
    relation = dice.pick(list(RELATIONS))
    answer = f"I cannot tell: {town} is not mentioned in the passage, which is about {', '.join(text.towns)} only."
    return RELATIONS[relation].asks.format(s=town), answer, ""


def _wrong_premise(dice: Dice, text: Passage, land: World) -> tuple[str, str, str]:
    """The question takes something for granted that the passage contradicts."""
    fact = dice.pick(text.facts)
    wrong = _other(dice, fact, land)
    relation = dice.pick([name for name in RELATIONS if text.find(fact.subject, name) is None])
    asks = RELATIONS[relation].asks.format(s=fact.subject)
    question = f"Given that {_lowered(wrong.text)[:-1]}, {asks[0].lower()}{asks[1:]}"
    return (
        question,
        f"The question assumes that {_lowered(wrong.text)[:-1]}, which is not so: {_lowered(fact.text)[:-1]}. "
        + (f"And the passage does not say {RELATIONS[relation].noun.format(s=fact.subject)}."),
        "",
    )


def _other(dice: Dice, fact: Fact, land: World) -> Fact:
    """The same with a value that another town has."""
    values = sorted({land.facts[town, fact.relation] for town in land.towns} - {fact.value})
    return fact._replace(value=dice.pick(values))


# --- claims


def fact_check(dice: Dice, i: int, seed: int) -> dict[str, Any]:
    """A claim about a passage: true, false, or not to be decided from it."""
    land = world(seed)
    compared = dice.pick(list(COUNTABLE))
    text = passage(dice, land, compared)
    label = ("true", "false", "unknown")[i % 3]
    form = ("stated", "compared", "most")[i // 3 % 3] if label != "unknown" else "stated"
    if form == "stated":
        claim, answer, evidence, check = _stated_claim(dice, text, land, label)
    elif form == "compared":
        claim, answer, evidence, check = _compared_claim(dice, text, compared, label == "true")
    else:
        claim, answer, evidence, check = _most_claim(dice, text, compared, label == "true")
    return {
        "context": text.text,
        "claim": claim,
        "question": f'Is this claim true according to the passage? "{claim}"',
        "answer": answer,
        "label": label,
        "evidence": evidence,
        "form": form,
        "check": check,
        "facts": text.rows(),
    }


Claim = tuple[str, str, list[str], dict[str, str]]
"""The claim, the answer, the sentences that decide it, and the claim as data."""


def _stated_claim(dice: Dice, text: Passage, land: World, label: str) -> Claim:
    if label == "unknown":
        town, relation = _untold(dice, text)
        claimed = land.fact(town, relation)
        if dice.roll(2):
            claimed = _other(dice, claimed, land)
        noun = RELATIONS[relation].noun.format(s=town)
        answer = f"That cannot be decided from the passage: it does not say {noun}."
        return claimed.text, answer, [], claimed._asdict() | {"other": ""}
    fact = dice.pick(text.facts)
    claimed = fact if label == "true" else _other(dice, fact, land)
    answer = f'True. The passage says: "{fact.text}"' if label == "true" else f'False. The passage says: "{fact.text}"'
    return claimed.text, answer, [fact.text], claimed._asdict() | {"other": ""}


def _compared_claim(dice: Dice, text: Passage, relation: str, is_true: bool) -> Claim:
    one, two = dice.some([fact for fact in text.facts if fact.relation == relation], 2)
    first = _most(Passage([one, two]), relation)
    second = two if first is one else one
    word = COUNTABLE[relation][0]
    if not is_true:
        first, second = second, first
    claim = f"{first.subject} is {word} than {second.subject}."
    answer = f"{'True' if is_true else 'False'}. {first.text} {second.text}"
    check = {"subject": first.subject, "relation": relation, "value": "", "other": second.subject}
    return claim, answer, [first.text, second.text], check


def _most_claim(dice: Dice, text: Passage, relation: str, is_true: bool) -> Claim:
    most = _most(text, relation)
    facts = [fact for fact in text.facts if fact.relation == relation]
    claimed = most if is_true else dice.pick([fact for fact in facts if fact is not most])
    claim = f"{claimed.subject} is the {COUNTABLE[relation][1]} of the towns in the passage."
    told = " ".join(fact.text for fact in facts)
    answer = f"{'True' if is_true else 'False'}. {told} So it is {most.subject}."
    check = {"subject": claimed.subject, "relation": relation, "value": "", "other": ""}
    return claim, answer, [fact.text for fact in facts], check
