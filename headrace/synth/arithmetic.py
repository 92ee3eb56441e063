"""Problems that are nothing but numbers, each worked out step by step."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import lcm

from headrace.synth.dice import Dice
from headrace.synth.sums import Problem, shown, value, written
from headrace.synth.words import counted


def column_sum(dice: Dice) -> Problem:
    """Addition by columns, with what is carried."""
    a, b = dice.between(124, 989), dice.between(117, 998)
    steps, carry = ["I add the columns from right to left."], 0
    for place, name in enumerate(("ones", "tens", "hundreds")):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        text = f"{x} + {y} + {carry}" if carry else f"{x} + {y}"
        ahead = f", write {total % 10} and carry 1" if total > 9 and place < 2 else ""
        steps.append(f"{name.capitalize()}: {text} = {total}{ahead}.")
        carry = total // 10
    return Problem(
        question=dice.pick((f"What is {a} + {b}?", f"Add {a} and {b}.", f"Work out the sum of {a} and {b}.")),
        steps=[*steps, f"Together: {shown(f'{a} + {b}')}."],
        answer=f"{a} + {b} = {a + b}",
        result=str(a + b),
        expression=f"{a} + {b}",
    )


def split_product(dice: Dice) -> Problem:
    """A product by its tens and ones."""
    a, tens, ones = dice.between(12, 98), dice.between(1, 9) * 10, dice.between(2, 9)
    b = tens + ones
    return Problem(
        question=dice.pick((f"What is {a} × {b}?", f"Multiply {a} by {b}.", f"Find the product of {a} and {b}.")),
        steps=[
            f"I split {b} into {tens} + {ones}.",
            f"{shown(f'{a} × {tens}')}.",
            f"{shown(f'{a} × {ones}')}.",
            f"{shown(f'{a * tens} + {a * ones}')}.",
        ],
        answer=f"{a} × {b} = {a * b}",
        result=str(a * b),
        expression=f"{a} × {b}",
    )


def long_division(dice: Dice) -> Problem:
    """Division digit by digit, with a remainder."""
    a, b = dice.between(213, 9876), dice.between(3, 9)
    steps: list[str] = []
    rest = 0
    for digit in str(a):
        rest = rest * 10 + int(digit)
        if rest >= b or steps:
            q = rest // b
            steps.append(
                f"{rest} holds {b} {counted(q, 'time')}: {q} × {b} = {q * b}, and {rest} - {q * b} = {rest - q * b}."
            )
            rest -= q * b
    q, r = divmod(a, b)
    steps.append(f"Check: {q} × {b} + {r} = {q * b + r}.")
    return Problem(
        question=f"Divide {a} by {b}. What are the quotient and the remainder?",
        steps=steps,
        answer=f"The quotient and the remainder are {q} and {r}.",
        result=f"{q} and {r}",
    )


def precedence(dice: Dice) -> Problem:
    """Brackets first, then points, then lines."""
    a, b, c, d = dice.between(2, 40), dice.between(2, 12), dice.between(11, 30), dice.between(2, 10)
    expression = f"{a} + {b} × ({c} - {d})"
    return Problem(
        question=dice.pick((f"Evaluate {expression}.", f"What is {expression}?")),
        steps=[
            f"The bracket comes first: {shown(f'{c} - {d}')}.",
            f"Then the product: {shown(f'{b} × {c - d}')}.",
            f"Then the sum: {shown(f'{a} + {b * (c - d)}')}.",
        ],
        answer=f"{expression} = {written(value(expression))}",
        result=written(value(expression)),
        expression=expression,
    )


def linear_equation(dice: Dice) -> Problem:
    a, b, x = dice.between(2, 12), dice.between(1, 30), dice.between(2, 25)
    c = a * x + b
    return Problem(
        question=f"Solve for x: {a}x + {b} = {c}",
        steps=[
            f"I subtract {b} from both sides: {shown(f'{c} - {b}')}, so {a}x is {c - b}.",
            f"I divide both sides by {a}: {shown(f'{c - b} ÷ {a}')}.",
            f"Check: {shown(f'{a} × {x} + {b}')}.",
        ],
        answer=f"x = {x}",
        result=str(x),
        expression=f"({c} - {b}) ÷ {a}",
    )


def fractions(dice: Dice) -> Problem:
    """Two fractions, by their common denominator."""
    b, d = dice.some((2, 3, 4, 5, 6, 8, 9, 10, 12), 2)
    a, c = dice.between(1, b - 1), dice.between(1, d - 1)
    common = lcm(b, d)
    x, y = a * common // b, c * common // d
    total = Fraction(a, b) + Fraction(c, d)
    result = f"{total.numerator}/{total.denominator}" if total.denominator > 1 else str(total.numerator)
    steps = [
        f"The least common multiple of {b} and {d} is {common}.",
        f"{a}/{b} is {x}/{common}, because {shown(f'{common} ÷ {b}')} and {a} × {common // b} = {x}.",
        f"{c}/{d} is {y}/{common}, because {shown(f'{common} ÷ {d}')} and {c} × {common // d} = {y}.",
        f"{x} + {y} = {x + y}, so the sum is {x + y}/{common}.",
    ]
    if total.denominator != common:
        by = common // total.denominator
        steps.append(f"Both parts of {x + y}/{common} can be divided by {by}, which gives {result}.")
    return Problem(
        question=f"What is {a}/{b} + {c}/{d}? Give the answer in lowest terms.",
        steps=steps,
        answer=f"{a}/{b} + {c}/{d} = {result}",
        result=result,
        expression=f"{a}/{b} + {c}/{d}",
    )


def common_divisor(dice: Dice) -> Problem:
    """Euclid's way."""
    shared, p, q = dice.between(2, 18), *dice.some((3, 4, 5, 7, 9, 11, 13, 16, 17), 2)
    a, b = max(shared * p, shared * q), min(shared * p, shared * q)
    steps, x, y = [], a, b
    while y:
        steps.append(f"{x} = {x // y} × {y} + {x % y}.")
        x, y = y, x % y
    return Problem(
        question=f"What is the greatest common divisor of {a} and {b}?",
        steps=[*steps, f"Nothing remains, so what was divided by last is the answer: {x}."],
        answer=f"The greatest common divisor of {a} and {b} is {x}.",
        result=str(x),
    )


def binary(dice: Dice) -> Problem:
    """Halve, and note what is left over."""
    n = dice.between(18, 500)
    steps, left = [], n
    while left:
        steps.append(f"{left} = 2 × {left // 2} + {left % 2}, which leaves {left % 2}.")
        left //= 2
    return Problem(
        question=f"Write {n} in binary.",
        steps=[*steps, f"The remainders from the last to the first are {n:b}."],
        answer=f"{n} in binary is {n:b}.",
        result=f"{n:b}",
    )


def sequence(dice: Dice) -> Problem:
    """A term far out, and the sum up to it."""
    first, gap, n = dice.between(1, 30), dice.between(2, 12), dice.between(12, 40)
    last = first + (n - 1) * gap
    begins = ", ".join(str(first + i * gap) for i in range(4))
    return Problem(
        question=f"A sequence begins {begins} and goes on in the same way. What is the sum of its first {n} terms?",
        steps=[
            f"Each term is {gap} more than the one before: {shown(f'{first + gap} - {first}')}.",
            f"Term {n} is {shown(f'{first} + {n - 1} × {gap}')}.",
            f"First and last together make {shown(f'{first} + {last}')}.",
            f"The sum is half of {n} times that: {shown(f'{n} × {first + last} ÷ 2')}.",
        ],
        answer=f"The sum of the first {n} terms is {n * (first + last) // 2}.",
        result=str(n * (first + last) // 2),
        expression=f"{n} × ({first} + {first} + {n - 1} × {gap}) ÷ 2",
    )


ARITHMETIC: dict[str, Callable[[Dice], Problem]] = {
    "addition": column_sum,
    "multiplication": split_product,
    "division": long_division,
    "precedence": precedence,
    "equation": linear_equation,
    "fractions": fractions,
    "divisor": common_divisor,
    "binary": binary,
    "sequence": sequence,
}
