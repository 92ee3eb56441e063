"""The draws of one row, one after the other; the same for the same name everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from headrace import rng

T = TypeVar("T")


class Dice:
    def __init__(self, *name: str | int) -> None:
        self._stream = rng.key("synth", *name)
        self._rolled = 0

    def roll(self, sides: int) -> int:
        """A number in [0, sides)."""
        self._rolled += 1
        return rng.draw(self._stream, self._rolled, sides)

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + self.roll(high - low + 1)

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.roll(len(choices))]

    def some(self, choices: Sequence[T], count: int) -> list[T]:
        """`count` different places of a sequence, in the order in which they were drawn."""
        left = list(choices)
        return [left.pop(self.roll(len(left))) for _ in range(count)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        return self.some(items, len(items))

    def happens(self, part: int, whole: int) -> bool:
        """True in `part` of `whole` cases."""
        return self.roll(whole) < part
