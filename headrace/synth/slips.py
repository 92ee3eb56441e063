"""More bugs and what mends them: of texts, letters and lists."""

from __future__ import annotations

from collections.abc import Callable

from headrace.synth.change import Change, fill, fixed, place, swap
from headrace.synth.dice import Dice

_WORDS = ("zebra", "lazy", "crystal", "wizard", "oxygen", "yellow", "fuzzy", "galaxy")


def past_the_alphabet(dice: Dice) -> Change:
    name, word, shift = dice.pick(("caesar", "shift_letters", "rotate")), dice.pick(_WORDS), dice.between(4, 9)
    before = fill(
        '''
        def $name(text, shift):
            """A text of small letters, each moved on by `shift` places in the alphabet, from z on to a."""
            return "".join(chr(ord(letter) + shift) for letter in text)
        ''',
        {"name": name},
    )
    wrong = "".join(chr(ord(c) + shift) for c in word)
    right = "".join(chr((ord(c) - 97 + shift) % 26 + 97) for c in word)
    return Change(
        type="fix",
        file=place(dice, "ciphers"),
        before=before,
        after=swap(before, ("chr(ord(letter) + shift)", 'chr((ord(letter) - ord("a") + shift) % 26 + ord("a"))')),
        title=f"{name} gives signs that are no letters",
        subject=f"Go on from z to a in {name}",
        body="Letters near the end of the alphabet were moved past it, to other signs.",
        checks=fixed(f"{name}({word!r}, {shift})", wrong, right),
    )


def short_chunk(dice: Dice) -> Change:
    name, size = dice.pick(("chunks", "split_every", "in_groups")), dice.between(2, 4)
    data = list(range(1, size * dice.between(2, 3) + dice.between(1, size - 1) + 1))
    before = fill(
        '''
        def $name(items, size):
            """The items in lists of `size`; the last may be shorter."""
            return [items[i : i + size] for i in range(0, len(items) - size, size)]
        ''',
        {"name": name},
    )
    wrong = [data[i : i + size] for i in range(0, len(data) - size, size)]
    return Change(
        type="fix",
        file=place(dice, "lists"),
        before=before,
        after=swap(before, ("len(items) - size", "len(items)")),
        title=f"{name} loses the items at the end",
        subject=f"Keep the last items in {name}",
        body="The starts were counted up to one size before the end, so what begins after that was never taken.",
        checks=fixed(f"{name}({data}, {size})", wrong, [data[i : i + size] for i in range(0, len(data), size)]),
    )


def sorted_as_text(dice: Dice) -> Change:
    name = dice.pick(("sort_versions", "sort_numbers", "in_order"))
    data = [str(n) for n in (dice.between(2, 9), dice.between(10, 19), dice.between(100, 180), dice.between(21, 90))]
    before = fill(
        '''
        def $name(texts):
            """Whole numbers written as texts, from the smallest to the largest."""
            return sorted(texts)
        ''',
        {"name": name},
    )
    return Change(
        type="fix",
        file=place(dice, "sorting"),
        before=before,
        after=swap(before, ("sorted(texts)", "sorted(texts, key=int)")),
        title=f"{name} puts {max(data, key=int)} before {min(data, key=int)}",
        subject=f"Compare numbers in {name}, not letters",
        body="Texts are compared letter by letter, so everything that begins with 1 came first.",
        checks=fixed(f"{name}({data})", sorted(data), sorted(data, key=int)),
    )


def kept_blanks(dice: Dice) -> Change:
    name, words = dice.pick(("parse_tags", "split_list", "read_names")), dice.some(_WORDS, 3)
    text = ", ".join(words)
    before = fill(
        '''
        def $name(line):
            """The names of a line, which commas separate."""
            return line.split(",")
        ''',
        {"name": name},
    )
    return Change(
        type="fix",
        file=place(dice, "parsing"),
        before=before,
        after=swap(before, ('line.split(",")', '[part.strip() for part in line.split(",")]')),
        title=f"{name} leaves blanks before names",
        subject=f"Strip the names in {name}",
        body="A blank after a comma became part of the name, so that equal names were not equal.",
        checks=fixed(f"{name}({text!r})", text.split(","), words),
    )


def wrong_brackets(dice: Dice) -> Change:
    name, degrees = dice.pick(("to_fahrenheit", "celsius_to_fahrenheit")), dice.between(1, 9) * 37
    before = fill(
        '''
        def $name(celsius):
            """Degrees Celsius as degrees Fahrenheit, rounded."""
            return round(celsius * 9 / (5 + 32))
        ''',
        {"name": name},
    )
    return Change(
        type="fix",
        file=place(dice, "units"),
        before=before,
        after=swap(before, ("celsius * 9 / (5 + 32)", "celsius * 9 / 5 + 32")),
        title=f"{name} is far too low",
        subject=f"Divide by 5 before adding 32 in {name}",
        body="The bracket made the divisor 37.",
        checks=fixed(f"{name}({degrees})", degrees * 9 // 37, round(degrees * 9 / 5 + 32)),
    )


def and_for_or(dice: Dice) -> Change:
    name, low = dice.pick(("is_outside", "out_of_range")), dice.between(5, 15)
    high = low + dice.between(5, 40)
    value = high + dice.between(1, 20)
    before = fill(
        '''
        def $name(value, low, high):
            """Whether a value lies below or above a range."""
            return value < low and value > high
        ''',
        {"name": name},
    )
    return Change(
        type="fix",
        file=place(dice, "numbers_tools"),
        before=before,
        after=swap(before, ("low and value", "low or value")),
        title=f"{name} is never True",
        subject=f"Use `or` in {name}",
        body="No value is below the lower and above the upper end at once.",
        checks=[
            *fixed(f"{name}({value}, {low}, {high})", False, True),
            *fixed(f"{name}({low}, {low}, {high})", False, False),
        ],
    )


SLIPS: tuple[Callable[[Dice], Change], ...] = (
    past_the_alphabet,
    short_chunk,
    sorted_as_text,
    kept_blanks,
    wrong_brackets,
    and_for_or,
)
