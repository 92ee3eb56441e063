"""What is mixed, and how: the descriptions `Part`, `Change` and `Mix`.

A complaint of a description starts with `field=value` or `field:`, so that whoever reads a recipe from a file can say
where the field stands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from headrace.catalog.source import Source
from headrace.errors import SpecError, shown

By = Literal["rows", "tokens"]
How = Literal["weights", "round_robin"]
Stop = Literal["first_exhausted", "all_exhausted", "loop"]
Weights: TypeAlias = Mapping[str, float] | tuple[tuple[str, float], ...]

LARGEST = 2**63 - 1
"""Numbers travel through arrays and JSON of other languages; they stay in 64 bits."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One source of a mix, and how much of it is read.

    headrace.load([Part(source="parquet:wiki/*.parquet", weight=3), Part(source="jsonl:code.jsonl", tokens=10**9)])
    """

    source: Source
    """What is read: a `Source`, or a spec as text."""
    name: str = ""
    """What addresses, statistics, states and schedules call it, and what its random order is drawn with: a run keeps
    its names. The spec unless given; a second part of the same spec is `spec#2`."""
    weight: float = 1.0
    """The part's share of rows or tokens (`Mix.by`) is its weight over the sum of the weights of all parts that have
    not ended."""
    limit: int | None = None
    """At most so many rows, over the whole run: all passes, epochs and ranks together. Passes are given whole until
    one reaches the limit; of that one the first rows in its order."""
    tokens: int | None = None
    """At most so many tokens, over the whole run: all passes, epochs and ranks together. Lanes share the limit evenly,
    and the document that reaches a lane's share is cut there; its rest is not given. What `tail="wrap"` repeats is
    taken from other parts."""
    passes: int | None = None
    """At most so many passes over the source, over the whole run; it then counts as ended even where others go on."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            source: Source | str,
            name: str = "",
            weight: float = 1.0,
            limit: int | None = None,
            tokens: int | None = None,
            passes: int | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if isinstance(self.source, str):
            put(self, source=Source.parse(self.source))
        if not isinstance(self.source, Source):
            raise SpecError(f"source={given(self.source)} is neither a spec ('parquet:data/*.parquet') nor a Source")
        if not isinstance(self.name, str):
            raise SpecError(f"name={given(self.name)} is not text")
        put(
            self,
            name=self.name or str(self.source),
            weight=positive("weight", self.weight, "to leave a part out, remove it"),
            limit=whole_or_none("limit", self.limit),
            tokens=whole_or_none("tokens", self.tokens),
            passes=whole_or_none("passes", self.passes),
        )


@dataclass(frozen=True, kw_only=True)
class Change:
    """Other weights from a micro-batch on."""

    at: int
    """The number of the first micro-batch that is filled with them."""
    weights: Weights
    """Part name to weight; parts that are not named have their own `weight`. Kept as pairs, sorted by name."""

    def __post_init__(self) -> None:
        try:
            weights = dict(self.weights)
        except (TypeError, ValueError):
            raise SpecError(f"weights={given(self.weights)} is not a mapping of part names to weights") from None
        if not weights:
            raise SpecError("weights={} is not a change; name at least one part")
        for name in weights:
            if not isinstance(name, str):
                raise SpecError(f"weights={given(weights)} is not a mapping of part names: {given(name)} is not text")
        hint = "the least that a part can have is a millionth of the whole"
        pairs = tuple((name, positive(f"weights[{given(name)}]", weights[name], hint)) for name in sorted(weights))
        put(self, at=whole("at", self.at, least=0), weights=pairs)


@dataclass(frozen=True, kw_only=True)
class Mix:
    """How the parts become one stream. The weights themselves are those of the parts (`Part.weight`).

    headrace.load([Part(source=a, weight=0.7), Part(source=b, weight=0.3)], mix=Mix(by="tokens"), ...)
    """

    by: By = "rows"
    """What weights are shares of: rows, or tokens, which are counted as documents are taken, so that their lengths do
    not matter."""
    order: How = "weights"
    """`weights`: the part that is furthest behind its share gives the next row. `round_robin`: one row of each in turn,
    without weights."""
    temperature: float | None = None
    """Weights are multiplied by rows ** (1 / temperature): 1 is in proportion to size, large is even. None: weights as
    they are."""
    schedule: tuple[Change, ...] = ()
    """Other weights from given micro-batches on, in steps: the last change whose `at` is reached holds."""
    stop: Stop | None = None
    """What happens when a part ends. `first_exhausted`: the epoch ends. `all_exhausted`: the others go on until all
    have ended. `loop`: it begins again, and the run is endless. None: `all_exhausted` for rows and with `epochs=`,
    else `loop`."""

    def __post_init__(self) -> None:
        one_of("by", self.by, By)
        one_of("order", self.order, How)
        if self.stop is not None:
            one_of("stop", self.stop, Stop)
        if self.temperature is not None:
            put(
                self, temperature=positive("temperature", self.temperature, "1 is in proportion to size, large is even")
            )
        put(self, schedule=listed("schedule", self.schedule, Change))
        for i, (one, two) in enumerate(zip(self.schedule, self.schedule[1:], strict=False), 1):
            if two.at <= one.at:
                raise SpecError(f"schedule[{i}].at={two.at} is not after the change before it, at {one.at}")
        if self.order == "round_robin":
            for field, idle in (("by", "rows"), ("temperature", None), ("schedule", ())):
                if getattr(self, field) != idle:
                    raise SpecError(f"{field}: round_robin takes one row of each part in turn; use order 'weights'")


# --- checks that descriptions share


def given(value: object) -> str:
    """A value as the user gave it, fit for a message."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    return shown(repr(value))


def whole(field: str, value: Any, least: int, most: int = LARGEST) -> int:
    """`value` as a plain int of [least, most]."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        upto = "" if number is None or number <= most else f", and at most {most}"
        raise SpecError(f"{field}={given(value)} is not a whole number of at least {least}{upto}")
    return number


def whole_or_none(field: str, value: Any, least: int = 1, most: int = LARGEST) -> int | None:
    return None if value is None else whole(field, value, least, most)


def positive(field: str, value: Any, hint: str) -> float:
    """`value` as a plain float above 0."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        raise SpecError(f"{field}={given(value)} is not a number above 0; {hint}")
    return number


def truth(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SpecError(f"{field}={given(value)} is not True or False")
    return value


def one_of(field: str, value: Any, words: Any) -> None:
    """`words`: a Literal."""
    if value not in get_args(words):
        raise SpecError(f"{field}={given(value)} is not one of {', '.join(get_args(words))}")


def listed(field: str, values: Any, kind: type) -> tuple[Any, ...]:
    """A list or tuple of `kind`, as a tuple."""
    if not isinstance(values, list | tuple):
        raise SpecError(f"{field}={given(values)} is not a list")
    for i, value in enumerate(values):
        if not isinstance(value, kind):
            raise SpecError(f"{field}[{i}]={given(value)} is not of type {kind.__name__}")
    return tuple(values)


def put(description: object, **values: object) -> None:
    """Set fields of a frozen description while it is being made."""
    for field, value in values.items():
        object.__setattr__(description, field, value)
