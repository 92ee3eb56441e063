"""Short notebooks. What their code gives is worked out beside it, by code of the same meaning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

from headrace.synth.cells import Cell, ran, said
from headrace.synth.dice import Dice
from headrace.synth.words import MONTHS, PEOPLE, counted, listing

Notebook = tuple[str, list[Cell]]
"""What is asked for, and the cells."""

_WORDS = ("river", "stone", "cloud", "lamp", "bread", "field", "ship", "tower")


def jupyter(dice: Dice, i: int, seed: int) -> dict[str, Any]:
    topic = list(NOTEBOOKS)[i % len(NOTEBOOKS)]
    question, cells = NOTEBOOKS[topic](dice)
    return {"topic": topic, "question": question, "cells": cells}


def measurements(dice: Dice) -> Notebook:
    unit = dice.pick(("cm", "kg", "seconds", "degrees"))
    data = [dice.between(10, 99) for _ in range(dice.between(5, 8))]
    mean = sum(data) / len(data)
    return f"Here are some measurements in {unit}: {data}. What are their mean and their spread?", [
        said("First I put the measurements into a list and count them."),
        ran(f"data = {data}\nlen(data)", value=len(data)),
        said("Then I work out the mean, and the distance from the smallest to the largest."),
        ran(
            'mean = sum(data) / len(data)\nspread = max(data) - min(data)\nprint(f"mean {mean:.2f}, spread {spread}")',
            f"mean {mean:.2f}, spread {max(data) - min(data)}",
        ),
        said(f"The mean is {mean:.2f} {unit}, and the spread is {max(data) - min(data)} {unit}."),
    ]


def word_counts(dice: Dice) -> Notebook:
    words = [dice.pick(_WORDS) for _ in range(dice.between(8, 12))]
    words.append(Counter(words).most_common(1)[0][0])  # so that one word is ahead
    top = Counter(words).most_common(2)
    return "Which words come most often in this text: " + " ".join(words) + "?", [
        said("I split the text into words and count them."),
        ran(
            f"from collections import Counter\n\ntext = {' '.join(words)!r}\n"
            "counts = Counter(text.split())\nlen(counts)",
            value=len(set(words)),
        ),
        ran("counts.most_common(2)", value=top),
        said(f"The most frequent word is {top[0][0]!r}, which comes {counted(top[0][1], 'time')}."),
    ]


def primes(dice: Dice) -> Notebook:
    n = dice.between(20, 200)
    found = [k for k in range(2, n) if all(k % d for d in range(2, k))]
    code = (
        "def primes_below(n):\n    is_prime = [False, False] + [True] * (n - 2)\n    for i in range(2, n):\n"
        "        for k in range(i * i, n, i):\n            is_prime[k] = False\n"
        "    return [i for i in range(n) if is_prime[i]]"
    )
    return f"How many primes are there below {n}, and which are they?", [
        said("I write a sieve: every multiple of a number is crossed out, and what is left is prime."),
        ran(code),
        ran(f"found = primes_below({n})\nprint(found)\nlen(found)", str(found), len(found)),
        said(f"There are {len(found)} primes below {n}; the largest of them is {found[-1]}."),
    ]


def fibonacci(dice: Dice) -> Notebook:
    n, found = dice.between(6, 40), [1, 1]
    while len(found) < n:
        found.append(found[-1] + found[-2])
    return f"Give me the first {n} Fibonacci numbers and their sum.", [
        said("Each number is the sum of the two before it."),
        ran(
            f"numbers = [1, 1]\nwhile len(numbers) < {n}:\n    numbers.append(numbers[-1] + numbers[-2])\nnumbers",
            value=found,
        ),
        ran("sum(numbers)", value=sum(found)),
        said(f"The sum of the first {n} Fibonacci numbers is {sum(found)}."),
    ]


def savings(dice: Dice) -> Notebook:
    start, rate, years = dice.between(2, 40) * 100, dice.pick((2, 3, 4, 5, 6)), dice.between(3, 6)
    lines, held = [], start * 100
    for year in range(1, years + 1):
        held += held * rate // 100
        lines.append(f"year {year}: {held // 100}.{held % 100:02d}")
    code = (
        f"cents = {start} * 100\nfor year in range(1, {years + 1}):\n    cents += cents * {rate} // 100\n"
        '    print(f"year {year}: {cents // 100}.{cents % 100:02d}")'
    )
    return f"I save ${start} at {rate}% a year and leave the interest there. What do I have after {years} years?", [
        said("I count in cents, so that nothing is lost to rounding, and let whole cents be paid each year."),
        ran(code, "\n".join(lines)),
        said(f"After {years} years you have ${held // 100}.{held % 100:02d}."),
    ]


def totals(dice: Dice) -> Notebook:
    names = dice.some(PEOPLE, 3)
    orders = [(dice.pick(names), dice.between(5, 60)) for _ in range(7)]
    found: dict[str, int] = {}
    for name, amount in orders:
        found[name] = found.get(name, 0) + amount
    best = max(found, key=lambda name: found[name])
    orders.append((best, dice.between(5, 60)))  # so that nobody else has as much
    found[best] += orders[-1][1]
    code = (
        f"orders = {orders!r}\ntotals = {{}}\nfor name, amount in orders:\n"
        "    totals[name] = totals.get(name, 0) + amount\ntotals"
    )
    return "These are orders, each with a name and an amount. Who ordered most in all? " + listing(
        [f"{name} {amount}" for name, amount in orders]
    ), [
        said("I add up the amounts of each name."),
        ran(code, value=found),
        ran("max(totals, key=totals.get)", value=best),
        said(f"{best} ordered most: {found[best]}."),
    ]


def product(dice: Dice) -> Notebook:
    a, b = ([[dice.between(0, 9) for _ in range(2)] for _ in range(2)] for _ in range(2))
    found = [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]
    return f"Multiply the matrices {a} and {b}.", [
        said("Each entry is the sum of products of a row of the first and a column of the second."),
        ran(
            f"a = {a}\nb = {b}\n[[sum(x * y for x, y in zip(row, column)) for column in zip(*b)] for row in a]",
            value=found,
        ),
        said(f"The product is {found}."),
    ]


def calendar(dice: Dice) -> Notebook:
    start = date(dice.between(2001, 2035), dice.between(1, 12), dice.between(1, 28))
    days = dice.between(20, 400)
    end = start + timedelta(days)
    return f"Which day is {days} days after {MONTHS[start.month - 1]} {start.day}, {start.year}?", [
        said("The datetime module knows the lengths of months and leap years."),
        ran(
            f"from datetime import date, timedelta\n\nend = date({start.year}, {start.month}, {start.day}) "
            f"+ timedelta(days={days})\nprint(end.isoformat())\nend.isoweekday()",
            end.isoformat(),
            end.isoweekday(),
        ),
        said(f"It is {MONTHS[end.month - 1]} {end.day}, {end.year}, a {_weekday(end)}."),
    ]


def _weekday(day: date) -> str:
    return ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")[day.weekday()]


def collatz(dice: Dice) -> Notebook:
    n = dice.between(5, 200)
    found = [n]
    while found[-1] != 1:
        found.append(found[-1] // 2 if found[-1] % 2 == 0 else 3 * found[-1] + 1)
    code = (
        f"n = {n}\nsteps = 0\nhighest = n\nwhile n != 1:\n    n = n // 2 if n % 2 == 0 else 3 * n + 1\n"
        "    steps += 1\n    highest = max(highest, n)\nprint(steps, highest)"
    )
    return (
        f"Start at {n}; halve even numbers, and of odd ones take three times the number plus one. When is 1 reached?",
        [
            said("I follow the numbers until 1 comes, and note the highest."),
            ran(code, f"{len(found) - 1} {max(found)}"),
            said(f"1 is reached after {len(found) - 1} steps; the highest number on the way is {max(found)}."),
        ],
    )


def bad_number(dice: Dice) -> Notebook:
    """Fails at first, and goes on from there."""
    texts = [str(dice.between(10, 99)) for _ in range(4)]
    bad = f"{dice.between(1, 9)}{dice.pick('abcxyz')}"
    texts.insert(dice.between(1, 3), bad)
    good = [int(text) for text in texts if text.isdigit()]
    return f"Add up the numbers in {texts}.", [
        said("I turn the texts into numbers and add them."),
        ran(
            f"texts = {texts}\nsum(int(text) for text in texts)",
            error=ValueError(f"invalid literal for int() with base 10: {bad!r}"),
        ),
        said(f"{bad!r} is no number. I leave out what has anything but digits."),
        ran("numbers = [int(text) for text in texts if text.isdigit()]\nsum(numbers)", value=sum(good)),
        said(f"The sum is {sum(good)}, without {bad!r}, which is no number."),
    ]


def missing_key(dice: Dice) -> Notebook:
    names = dice.some(PEOPLE, 4)
    stock = {name: dice.between(1, 30) for name in names[:3]}
    return f"The points are {stock}. How many points has {names[3]}?", [
        ran(f"points = {stock!r}\npoints[{names[3]!r}]", error=KeyError(names[3])),
        said(f"There is no entry for {names[3]}. I look at who is there."),
        ran("sorted(points)", value=sorted(stock)),
        said(f"The data has no points of {names[3]}, so I cannot say; it has {listing(sorted(stock))}."),
    ]


def bars(dice: Dice) -> Notebook:
    days = ("Mon", "Tue", "Wed", "Thu", "Fri")
    counts = dice.some(range(1, 13), len(days))
    shown = "\n".join(f"{day} {'#' * n} {n}" for day, n in zip(days, counts, strict=True))
    code = (
        f"days = {list(days)}\ncounts = {counts}\nfor day, count in zip(days, counts):\n"
        '    print(day, "#" * count, count)'
    )
    best = days[counts.index(max(counts))]
    return f"Draw bars of these visits from Monday to Friday: {listing(counts)}.", [
        said("A bar of text has one sign per visit."),
        ran(code, shown),
        said(f"The longest bar is that of {best}, with {counted(max(counts), 'visit')}."),
    ]


NOTEBOOKS: dict[str, Callable[[Dice], Notebook]] = {
    "measurements": measurements,
    "word_counts": word_counts,
    "primes": primes,
    "fibonacci": fibonacci,
    "savings": savings,
    "totals": totals,
    "product": product,
    "calendar": calendar,
    "collatz": collatz,
    "bad_number": bad_number,
    "missing_key": missing_key,
    "bars": bars,
}
