"""Which source comes next, as pure functions of counters.

Each source has an integer credit. The active source with the highest credit gives the next row; the row's cost (1, or
its tokens) then flows from it to all active sources in proportion to their weights. So credits always add up to the
same, stay within a few rows' costs of each other, and are the whole state. Round robin is the same with equal weights
and a cost of 1: whoever gave last has the least credit.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm

from headrace.errors import SpecError
from headrace.mix.describe import Mix, Part

SCALE = 2**20
"""What integer weights add up to, about: no share is off by more than a millionth."""


def scaled(weights: Sequence[float]) -> list[int]:
    """Integers of at least 1 in the same proportions, which add up to about `SCALE`.

    Numbers with few digits keep their proportions exactly: 0.7 and 0.3 become 7 to 3.
    """
    # The shortest decimal form is what the user wrote; the binary value of 0.7 is not 7/10.
    exact = [Fraction(repr(float(weight))) for weight in weights]
    common = lcm(*(weight.denominator for weight in exact))
    numbers = [int(weight * common) for weight in exact]
    divisor = gcd(*numbers)
    numbers = [number // divisor for number in numbers]
    total = sum(numbers)
    if total <= SCALE:
        return [number * (SCALE // total) for number in numbers]
    out = [max(number * SCALE // total, 1) for number in numbers]
    largest_rest = sorted(range(len(out)), key=lambda i: (-(numbers[i] * SCALE % total), i))
    for i in largest_rest[: max(SCALE - sum(out), 0)]:
        out[i] += 1
    return out


def tempered(sizes: Sequence[int], temperature: float) -> list[float]:
    """size ** (1 / temperature) of each, over the largest: at 1 in proportion to size, the higher the more even."""
    # Decimals, because the last digit of a float power differs between machines, and the order must not.
    with localcontext(Context(prec=34)):
        logs = [Decimal(max(size, 1)).ln() for size in sizes]
        powers = [float(((log - max(logs)) / Decimal(temperature)).exp()) for log in logs]
    return [max(power, sys.float_info.min) for power in powers]


def weights_at(parts: Sequence[Part], mix: Mix, m: int, sizes: Sequence[int] | None = None) -> tuple[int, ...]:
    """The integer weights while micro-batch `m` is filled. `sizes`: rows of each part, for a temperature."""
    if mix.order == "round_robin":
        return _whole((1.0,) * len(parts), None, None)
    weights = {part.name: part.weight for part in parts}
    changes = [change for change in mix.schedule if change.at <= m]
    if changes:
        weights.update(changes[-1].weights)
    if mix.temperature is None:
        return _whole(tuple(weights.values()), None, None)
    if sizes is None:
        raise SpecError(
            f"mix.temperature={mix.temperature} needs the rows of every part, and they are not known; "
            "give each part a weight instead"
        )
    return _whole(tuple(weights.values()), mix.temperature, tuple(sizes))


@lru_cache(maxsize=256)
def _whole(weights: tuple[float, ...], temperature: float | None, sizes: tuple[int, ...] | None) -> tuple[int, ...]:
    if temperature is None or sizes is None:
        return tuple(scaled(weights))
    factors = tempered(sizes, temperature)
    products = [weight * factor for weight, factor in zip(weights, factors, strict=True)]
    return tuple(scaled([max(product, sys.float_info.min) for product in products]))


def pick(
    credits: Sequence[int],  # noqa: A002 - nobody here asks Python for its credits
    weights: Sequence[int],
    active: Sequence[int],
    lane: int,
) -> int:
    """The source with the highest credit, out of `active` (numbers of sources, at least one).

    Ties: the first from `lane` on, so that lanes do not all begin with the same source. Credits alone decide; the
    weights had their say when they were settled.
    """
    n = len(weights)
    return max(active, key=lambda i: (credits[i], -((i - lane) % n)))


def settle(
    credits: Sequence[int],  # noqa: A002 - nobody here asks Python for its credits
    weights: Sequence[int],
    active: Sequence[int],
    picked: int,
    cost: int,
) -> list[int]:
    """The credits after `picked` gave a row of `cost`. A row of no cost (a dropped one, in tokens) changes nothing."""
    assert picked in active
    assert cost >= 0
    out = list(credits)
    for i in active:
        out[i] += weights[i] * cost
        out[picked] -= weights[i] * cost
    return out
