"""Word problems, each worked out step by step."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from headrace.synth.dice import Dice
from headrace.synth.sums import Problem, shown, value, written
from headrace.synth.words import PEOPLE, clock, counted, listing

_WARES = ("notebook", "pencil", "ticket", "mug", "candle", "apple pie", "poster", "battery pack", "basket", "lamp")


def shopping(dice: Dice) -> Problem:
    name = dice.pick(PEOPLE)
    one, two = dice.some(_WARES, 2)
    n, m, p, q = dice.between(2, 9), dice.between(2, 9), dice.between(2, 12), dice.between(3, 15)
    total = n * p + m * q
    paid = (total // 10 + dice.between(1, 3)) * 10
    return Problem(
        question=f"{name} buys {n} {one}s at ${p} each and {m} {two}s at ${q} each, and pays with ${paid}. "
        f"How much change does {name} get?",
        steps=[
            f"The {one}s cost {shown(f'{n} × {p}')} dollars.",
            f"The {two}s cost {shown(f'{m} × {q}')} dollars.",
            f"Together that is {shown(f'{n * p} + {m * q}')} dollars.",
            f"The change is {shown(f'{paid} - {total}')} dollars.",
        ],
        answer=f"{name} gets ${paid - total} back.",
        result=str(paid - total),
        expression=f"{paid} - ({n} × {p} + {m} × {q})",
    )


def journey(dice: Dice) -> Problem:
    thing = dice.pick(("train", "bus", "cyclist", "ferry"))
    low, high = {"train": (60, 140), "bus": (40, 80), "cyclist": (12, 26), "ferry": (18, 40)}[thing]
    v, w, s, t = dice.between(low, high), dice.between(low, high), dice.between(2, 4), dice.between(2, 5)
    return Problem(
        question=f"A {thing} travels for {s} hours at {v} km/h and then for {t} hours at {w} km/h. "
        f"How many kilometres does it travel in all?",
        steps=[
            "Distance is speed times time.",
            f"First part: {shown(f'{v} × {s}')} km.",
            f"Second part: {shown(f'{w} × {t}')} km.",
            f"In all: {shown(f'{v * s} + {w * t}')} km.",
        ],
        answer=f"The {thing} travels {v * s + w * t} km.",
        result=str(v * s + w * t),
        expression=f"{v} × {s} + {w} × {t}",
    )


def discount(dice: Dice) -> Problem:
    thing = dice.pick(("coat", "bicycle", "desk", "camera", "tent", "guitar"))
    price, percent = dice.between(3, 40) * 20, dice.pick((5, 10, 15, 20, 25, 30, 40))
    off = price * percent // 100
    return Problem(
        question=f"A {thing} costs ${price}. In a sale its price falls by {percent}%. What does it cost then?",
        steps=[
            f"{percent}% of {price} is {shown(f'{price} × {percent} ÷ 100')}.",
            f"The new price is {shown(f'{price} - {off}')} dollars.",
        ],
        answer=f"In the sale the {thing} costs ${price - off}.",
        result=str(price - off),
        expression=f"{price} × (100 - {percent}) ÷ 100",
    )


def ratio(dice: Dice) -> Problem:
    one, two = dice.some(PEOPLE, 2)
    a, b = dice.some((1, 2, 3, 4, 5, 7), 2)
    part = dice.between(4, 30)
    total = part * (a + b)
    return Problem(
        question=f"{one} and {two} share ${total} in the ratio {a} to {b}. How many dollars does {one} get?",
        steps=[
            f"There are {shown(f'{a} + {b}')} equal parts.",
            f"One part is {shown(f'{total} ÷ {a + b}')} dollars.",
            f"{one} gets {a} of them: {shown(f'{a} × {part}')} dollars.",
        ],
        answer=f"{one} gets ${a * part}.",
        result=str(a * part),
        expression=f"{total} × {a} ÷ ({a} + {b})",
    )


def average(dice: Dice) -> Problem:
    count = dice.pick((4, 5))
    scores = [dice.between(40, 99) for _ in range(count)]
    added = " + ".join(str(score) for score in scores)
    mean = value(f"({added}) ÷ {count}")
    return Problem(
        question=f"The scores of {dice.pick(PEOPLE)} in {count} tests are {listing(scores)}. What is their average?",
        steps=[f"The sum is {shown(added)}.", f"There are {count} scores: {shown(f'{sum(scores)} ÷ {count}')}."],
        answer=f"The average is {written(mean)}.",
        result=written(mean),
        expression=f"({added}) ÷ {count}",
    )


def ages(dice: Dice) -> Problem:
    one, two = dice.some(PEOPLE, 2)
    times, young, years = dice.between(2, 4), dice.between(4, 15), dice.between(2, 12)
    total = young * (times + 1) + 2 * years
    word = {2: "twice", 3: "three times", 4: "four times"}[times]
    return Problem(
        question=f"{one} is {word} as old as {two}. In {years} years their ages will add up to {total}. "
        f"How old is {two} now?",
        steps=[
            f"In {years} years both are {years} years older, which adds {shown(f'2 × {years}')} to the sum.",
            f"So their ages add up to {shown(f'{total} - {2 * years}')} now.",
            f"If {two} is one part, {one} is {times} parts, {shown(f'1 + {times}')} parts together.",
            f"{two} is {shown(f'{young * (times + 1)} ÷ {times + 1}')} years old.",
        ],
        answer=f"{two} is {young} years old now.",
        result=str(young),
        expression=f"({total} - 2 × {years}) ÷ (1 + {times})",
    )


def timetable(dice: Dice) -> Problem:
    start, hours, minutes = dice.between(6, 14) * 60 + dice.between(1, 11) * 5, dice.between(2, 5), dice.between(10, 55)
    end = start + hours * 60 + minutes
    at, over = start % 60, start % 60 + minutes
    steps = [f"{hours} hours after {clock(start)} it is {clock(start + hours * 60)}.", f"{shown(f'{at} + {minutes}')}."]
    if over >= 60:
        steps.append(f"That is one hour and {shown(f'{over} - 60')} minutes, so the hour goes up by one.")
    return Problem(
        question=f"A film club meets at {clock(start)} and stays for {hours} hours and {minutes} minutes. "
        f"At what time does it end?",
        steps=[*steps, f"So it is {clock(end)}."],
        answer=f"The meeting ends at {clock(end)}.",
        result=clock(end),
    )


def garden(dice: Dice) -> Problem:
    a, b, path = dice.between(6, 30), dice.between(5, 20), dice.between(1, 3)
    x, y = a + 2 * path, b + 2 * path
    return Problem(
        question=f"A garden is {a} m long and {b} m wide. A path {path} m wide goes all around it on the outside. "
        f"What is the area of the path in square metres?",
        steps=[
            f"The path adds {shown(f'2 × {path}')} m to both sides.",
            f"With the path it is {shown(f'{a} + {2 * path}')} m by {shown(f'{b} + {2 * path}')} m.",
            f"That is {shown(f'{x} × {y}')} square metres.",
            f"The garden itself has {shown(f'{a} × {b}')} square metres.",
            f"The path has {shown(f'{x * y} - {a * b}')} square metres.",
        ],
        answer=f"The path has an area of {x * y - a * b} square metres.",
        result=str(x * y - a * b),
        expression=f"({a} + 2 × {path}) × ({b} + 2 × {path}) - {a} × {b}",
    )


def leftover(dice: Dice) -> Problem:
    name, thing = (
        dice.pick(PEOPLE),
        dice.pick(("litres of paint", "metres of cable", "kilograms of flour", "seedlings")),
    )
    part, share = dice.pick((2, 3, 4, 5)), dice.pick((2, 3, 4))
    total = part * share * dice.between(3, 20)
    first = total // part
    second = (total - first) // share
    return Problem(
        question=f"{name} has {total} {thing}. On one day {name} uses 1/{part} of them, and on the next 1/{share} of "
        f"what is left. How many are left in the end?",
        steps=[
            f"On the first day {shown(f'{total} ÷ {part}')} {thing} are used.",
            f"That leaves {shown(f'{total} - {first}')}.",
            f"On the next day {shown(f'{total - first} ÷ {share}')} are used.",
            f"That leaves {shown(f'{total - first} - {second}')}.",
        ],
        answer=f"In the end {total - first - second} {thing} are left.",
        result=str(total - first - second),
        expression=f"{total} × (1 - 1/{part}) × (1 - 1/{share})",
    )


def workers(dice: Dice) -> Problem:
    a, days = dice.between(2, 8), dice.between(3, 12)
    b = dice.pick([n for n in range(1, a * days + 1) if a * days % n == 0 and n != a])
    who = dice.pick(("painter", "gardener", "typist", "bricklayer"))
    return Problem(
        question=f"{a} {who}s need {days} days for a job. All work at the same pace. "
        f"How many days {'do' if b > 1 else 'does'} {counted(b, who)} need for it?",
        steps=[
            f"The job is {shown(f'{a} × {days}')} days of work for one {who}.",
            f"Shared by {b}, the days are {shown(f'{a * days} ÷ {b}')}.",
        ],
        answer=f"The answer is {counted(a * days // b, 'day')}.",
        result=str(a * days // b),
        expression=f"{a} × {days} ÷ {b}",
    )


def heights(dice: Dice) -> Problem:
    """An order of people from what is said about pairs of them."""
    people = dice.some(PEOPLE, dice.between(4, 5))
    pairs = list(pairwise(people))
    said = [f"{x} is taller than {y}" if dice.roll(2) else f"{y} is shorter than {x}" for x, y in dice.shuffled(pairs)]
    tallest = dice.roll(2) == 0
    found = people[0] if tallest else people[-1]
    chain = " > ".join(people)
    return Problem(
        question=f"{'. '.join(said)}. Who is the {'tallest' if tallest else 'shortest'} of them?",
        steps=[
            *(f"{x} is taller than {y}." for x, y in pairs),
            f"In one line, from the tallest to the shortest: {chain}.",
        ],
        answer=f"The {'tallest' if tallest else 'shortest'} of them is {found}.",
        result=found,
    )


STORIES: dict[str, Callable[[Dice], Problem]] = {
    "shopping": shopping,
    "journey": journey,
    "discount": discount,
    "ratio": ratio,
    "average": average,
    "ages": ages,
    "timetable": timetable,
    "garden": garden,
    "leftover": leftover,
    "workers": workers,
    "heights": heights,
}
