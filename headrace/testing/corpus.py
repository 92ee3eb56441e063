"""A small corpus that a small model can learn: sums, countings and stories, the same for the same seed everywhere."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any

from headrace import rng

SENTENCES = NormalDist(math.log(6), 0.8)
"""Of the logarithm of a document's sentences: most are short, some fill several sequences."""
LONGEST = 120

NAMES = ("Ada", "Bruno", "Clara", "David", "Edith", "Felix", "Greta", "Hugo")
THINGS = ("a red ball", "a small boat", "an old book", "a silver key", "a warm coat", "a long rope")
PLACES = ("the mill", "the river", "the bridge", "the market", "the garden")
FEELINGS = ("glad", "tired", "curious", "proud")


def write_corpus(folder: str | Path, shards: int, rows: int, seed: int = 0) -> list[Path]:
    """Parquet shards of `rows` documents each: uid (`<shard>:<row>`), text, crc32 of the text, and the row's number."""
    from headrace.testing.makers import write_parquet

    groups = [rows] if rows <= 500 else [500] * (rows // 500) + ([rows % 500] if rows % 500 else [])

    def row(shard: str, number: int) -> dict[str, Any]:
        text = document(seed, shard, number)
        return {"uid": f"{shard}:{number}", "text": text, "crc": zlib.crc32(text.encode()), "n": number}

    return write_parquet(folder, [groups] * shards, row=row)


def document(seed: int, shard: str, row: int) -> str:
    """A document of one kind, with a log-normal number of sentences."""
    dice = _Dice(rng.key("corpus", seed, shard, row))
    count = math.exp(SENTENCES.inv_cdf((dice.roll(4096) + 0.5) / 4096))
    sentences = dice.pick((_sums, _counting, _story))(dice)
    return " ".join(next(sentences) for _ in range(min(max(round(count), 1), LONGEST)))


class _Dice:
    """The draws of one document, one after the other."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._rolled = 0

    def roll(self, sides: int) -> int:
        self._rolled += 1
        return rng.draw(self._stream, self._rolled, sides)

    def pick(self, choices: Any) -> Any:
        return choices[self.roll(len(choices))]


def _sums(dice: _Dice) -> Iterator[str]:
    while True:
        a, b = dice.roll(10), dice.roll(10)
        yield f"{a} plus {b} is {a + b}." if dice.roll(2) else f"{a + b} minus {b} is {a}."


def _counting(dice: _Dice) -> Iterator[str]:
    number, stride = dice.roll(20), 1 + dice.roll(3)
    yield f"We count in steps of {stride}."
    while True:
        yield f"After {number} comes {number + stride}."
        number += stride


def _story(dice: _Dice) -> Iterator[str]:
    """One hero with one thing; what is carried to a place is found there again."""
    hero, thing, place = dice.pick(NAMES), dice.pick(THINGS), dice.pick(PLACES)
    yield f"{hero} had {thing}."
    while True:
        there = dice.pick(PLACES)
        yield f"{hero} went from {place} to {there} with {thing}."
        yield f"At {there} {hero} was {dice.pick(FEELINGS)}."
        if not dice.roll(3):
            yield f"{hero} put {thing} down, looked for it, and found {thing} at {there}."
        place = there
