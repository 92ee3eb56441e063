"""The recipe: the whole pipeline as one frozen description. It reads nothing and opens nothing.

Each stage's description stands beside its stage; here they are put together, checked against each other, written as
YAML, named by a fingerprint and drawn.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self

from headrace.address import Address, skip_text
from headrace.catalog.source import Source, parse_specs
from headrace.errors import SpecError, shown
from headrace.lazy import cached_property
from headrace.make.describe import Faults, Tokenize
from headrace.mix.describe import Change, Mix, Part, given, listed, one_of, put, truth, whole, whole_or_none
from headrace.mix.weights import weights_at
from headrace.sequence.describe import Pack

__all__ = ["Change", "Faults", "Mix", "Order", "Pack", "Part", "Recipe", "Skip", "Source", "Tokenize", "skip_address"]

Tail = Literal["drop", "pad", "wrap"]

LARGEST_SEED = 2**64 - 1
"""Streams are keyed by 64 bits; a larger seed would be another's twin."""
MOST_SHARES = 4
"""A drawing shows the shares before and after so many changes at most."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """In which order a source's rows come. None: what the reader thinks best."""

    shuffle: bool = True
    seed: int = 0
    pool_chunks: int | None = None
    """Chunks that a lane holds of a source, to draw rows from."""
    pool_bytes: int | None = None
    """...as long as they fit into so many bytes."""
    shard_window: int | None = None
    """Shards whose row groups are shuffled together."""

    def __post_init__(self) -> None:
        put(
            self,
            shuffle=truth("shuffle", self.shuffle),
            seed=whole("seed", self.seed, least=0, most=LARGEST_SEED),
            pool_chunks=whole_or_none("pool_chunks", self.pool_chunks),
            pool_bytes=whole_or_none("pool_bytes", self.pool_bytes),
            shard_window=whole_or_none("shard_window", self.shard_window),
        )


@dataclass(frozen=True, kw_only=True)
class Skip:
    """What is left out, by name. Kept sorted and once each."""

    addresses: tuple[str, ...] = ()
    """Rows: addresses as `str(address)` writes them, or `source|shard|row`. A row is left out of every pass; the source
    is the name of a part, or its spec. Kept as `source|shard|row` where that can be read back."""
    steps: tuple[int, ...] = ()
    """Numbers of micro-batches. Each is made and left out, and what its lane makes next is given under its number; so
    the micro-batches after it in that lane move up by one."""

    def __post_init__(self) -> None:
        rows = [str(row) if isinstance(row, Address) else row for row in listed("addresses", self.addresses, object)]
        addresses = [_skipped(row, f"addresses[{i}]") for i, row in enumerate(listed("addresses", rows, str))]
        steps = [whole(f"steps[{i}]", step, least=0) for i, step in enumerate(listed("steps", self.steps, object))]
        put(self, addresses=tuple(sorted(set(addresses))), steps=tuple(sorted(set(steps))))


def skip_address(text: str, field: str = "address") -> tuple[str, str, int]:
    """The source, the shard and the row in it, of `str(address)` or of `source|shard|row`."""
    source, shard, row = ["", "", *text.rsplit("|", 2)][-3:]
    if source and shard and row.isascii() and row.isdecimal() and len(row) < 19:
        return source, shard, int(row)
    try:
        address = Address.parse(text)
    except ValueError:
        raise SpecError(
            f"{field}={given(text)} is not of the form spec|shard|row, with the row's number in its shard, nor what "
            f"str(address) gives: 'spec epoch 0 shard:row'"
        ) from None
    return address.source, address.shard, address.row


def _skipped(text: str, field: str) -> str:
    """In one form, so that the same row is there once, whatever pass its address was seen in."""
    return skip_text(*skip_address(text, field))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a run reads and what it makes of it. On the same data and lanes, equal recipes give equal batches."""

    parts: tuple[Part, ...]
    mix: Mix = field(default_factory=Mix)
    order: Order = field(default_factory=Order)
    tokenize: Tokenize | None = None
    """None with `pack`: the column holds lists of token ids."""
    pack: Pack | None = None
    """None: batches of rows as they stand in their files."""
    batch_size: int = 8
    """Sequences, or rows, of a micro-batch."""
    epochs: int | None = None
    """Passes over each source. None: one for rows, endless for sequences."""
    tail: Tail = "pad"
    """Where lanes end apart: `drop` what others cannot match, `pad` with ignored batches, or `wrap` to the start."""
    skip: Skip = field(default_factory=Skip)
    faults: Faults = field(default_factory=Faults)
    """What happens to rows that fail."""

    def __post_init__(self) -> None:
        parts = listed("parts", self.parts, Part)
        if not parts:
            raise SpecError("parts=() is empty; a recipe has at least one")
        for name, kind, wanted in _KINDS:
            value = getattr(self, name)
            if not isinstance(value, kind) and (wanted or value is not None):
                raise SpecError(f"{name}={given(value)} is not of type {kind.__name__}")
        put(
            self,
            parts=_named(parts),
            batch_size=whole("batch_size", self.batch_size, least=1),
            epochs=whole_or_none("epochs", self.epochs),
        )
        one_of("tail", self.tail, Tail)
        _check_names(self)
        _check_tokens(self)
        if self.mix.order == "round_robin":
            for i, part in enumerate(self.parts):
                if part.weight != 1.0:
                    raise SpecError(f"parts[{i}].weight={part.weight} has no effect with mix.order 'round_robin'")

    @classmethod
    def of(cls, parts: str | Source | Part | Sequence[str | Source | Part], **fields: Any) -> Self:
        """From specs ("a,b", or a list), sources and parts; `fields` are those of `Recipe`."""
        several: Sequence[Any] = parts if isinstance(parts, list | tuple) else [parts]
        made: list[Part] = []
        for one in several:
            made += [one] if isinstance(one, Part) else [Part(source=source) for source in parse_specs(one)]
        return cls(parts=tuple(made), **fields)

    # --- as text

    def to_dict(self) -> dict[str, Any]:
        """JSON values, with every field."""
        from headrace.recipe_plain import plain

        values: dict[str, Any] = plain(self, defaults=True)
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """What `to_dict` gave; fields that are not there take their defaults."""
        from headrace.recipe_yaml import from_plain

        return from_plain(cls, values)

    def to_yaml(self) -> str:
        """YAML, without what is at its default."""
        from headrace.recipe_yaml import to_yaml

        return to_yaml(self)

    @classmethod
    def from_yaml(cls, text_or_path: str | Path) -> Self:
        """A YAML text, or a file where a Path is given. What is wrong is named with its line."""
        from headrace.recipe_yaml import from_yaml

        return from_yaml(cls, text_or_path)

    def fingerprint(self) -> str:
        """16 hex digits that name this recipe.

        Defaults are written out, so a default that changes in a later version shows. A field that is added later must
        be left out here while it has its default, or every old fingerprint would change.
        """
        return fingerprint_of(self.text)

    @cached_property
    def text(self) -> str:
        """What `to_dict` gives, as text; the same for equal recipes."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    def describe(self, rows: Mapping[str, int] | None = None) -> str:
        """The recipe drawn as a tree, from what comes out down to the sources. `rows`: of each part, by name."""
        rows = rows or {}
        for name in rows.keys() - {part.name for part in self.parts}:
            raise SpecError(f"rows are given for {shown(name)!r}, which is no part of this recipe")
        lines = [f"Recipe {self.fingerprint()}"]
        indent = ""
        for text in _stages(self):
            lines.append(f"{indent}└─ {text}")
            indent += "   "
        leaves = _leaves(self, rows)
        return "\n".join([*lines, *(f"{indent}├─ {leaf}" for leaf in leaves[:-1]), f"{indent}└─ {leaves[-1]}"])


def fingerprint_of(text: str) -> str:
    """Of a recipe's `text`, also of one that another version wrote."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_KINDS: tuple[tuple[str, type, bool], ...] = (
    ("mix", Mix, True),
    ("order", Order, True),
    ("skip", Skip, True),
    ("faults", Faults, True),
    ("tokenize", Tokenize, False),
    ("pack", Pack, False),
)


# --- checks between the parts


def _named(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Names key random streams and states: a spec that comes again is numbered, a name that was given must be alone."""
    taken: set[str] = set()
    for i, part in enumerate(parts):
        if part.name != str(part.source) and part.name in taken:
            raise SpecError(f"parts[{i}].name={given(part.name)} is the name of a part before it; give it another")
        taken.add(part.name)
    seen: set[str] = set()
    numbers: dict[str, int] = {}
    out = []
    for part in parts:
        name = part.name
        if name in seen:
            fresh = (f"{name}#{k}" for k in count(numbers.get(name, 2)))
            name = next(new for new in fresh if new not in taken)
            numbers[part.name] = int(name.rpartition("#")[2]) + 1
        seen.add(name)
        taken.add(name)
        out.append(part if name == part.name else replace(part, name=name))
    return tuple(out)


def _check_names(recipe: Recipe) -> None:
    names = {part.name for part in recipe.parts}
    for i, change in enumerate(recipe.mix.schedule):
        for name in dict(change.weights):
            if name not in names:
                known = shown(", ".join(sorted(names)))
                raise SpecError(f"mix.schedule[{i}].weights: {given(name)} is no part of this recipe; parts: {known}")
    names |= {str(part.source) for part in recipe.parts}
    for address in recipe.skip.addresses:
        if skip_address(address)[0] not in names:
            raise SpecError(f"skip.addresses: {given(address)} is of no part of this recipe; remove it")


def _check_tokens(recipe: Recipe) -> None:
    if recipe.pack is not None:
        return
    why = "tokens are counted in sequences only; add pack, with a seq_len"
    if recipe.tokenize is not None:
        raise SpecError("tokenize: tokens come in sequences only; add pack, with a seq_len")
    if recipe.mix.by == "tokens":
        raise SpecError(f"mix.by: {why}")
    for i, part in enumerate(recipe.parts):
        if part.tokens is not None:
            raise SpecError(f"parts[{i}].tokens: {why}")


# --- the drawing


def _stages(recipe: Recipe) -> list[str]:
    """What stands above the sources, from what comes out on."""
    pack, mix, order, skip = recipe.pack, recipe.mix, recipe.order, recipe.skip
    batch = [f"batch of {recipe.batch_size} rows"]
    if pack is not None:
        batch = [f"batch of {recipe.batch_size} × {pack.seq_len} tokens"]
        slack = f" (slack {pack.slack})" if pack.method == "best_fit" else ""
        batch.append("one document each" if pack.method == "none" else f"packed {pack.method}{slack}")
        if pack.overlap:
            batch.append(f"overlap {pack.overlap}")
    batch.append(f"tail {recipe.tail}")
    if recipe.epochs is not None:
        batch.append(_count(recipe.epochs, "pass"))
    if skip.addresses:
        batch.append(f"{_count(len(skip.addresses), 'row')} skipped")
    if skip.steps:
        batch.append(f"{_count(len(skip.steps), 'micro-batch')} skipped")
    if recipe.faults.skips:
        batch.append(f"up to {_count(recipe.faults.budget, 'bad row')} left out per lane")
    out = [", ".join(batch)]
    if len(recipe.parts) > 1:
        mixed = [f"mix by {mix.by}", mix.order]
        if mix.temperature is not None:
            mixed.append(f"temperature {mix.temperature:g}")
        if mix.schedule:
            mixed.append(f"changes at {_some([f'{change.at:,}' for change in mix.schedule])}")
        if mix.stop is not None:
            mixed.append(f"stop {mix.stop}")
        out.append(", ".join(mixed))
    if recipe.tokenize is not None:
        out.append(f"tokenized by {shown(recipe.tokenize.tokenizer, 1000)}")
    elif pack is not None:
        out.append("token ids as they stand in the column")
    return [*out, f"shuffled, seed {order.seed}" if order.shuffle else "in file order"]


def _leaves(recipe: Recipe, rows: Mapping[str, int]) -> list[str]:
    shares = _shares(recipe, rows)
    names: list[str] = []
    for part in recipe.parts:
        spec = str(part.source)
        names.append(shown(part.name if part.name.startswith(spec) else f"{part.name} = {spec}", 1000))
    names = [name.ljust(max(map(len, names))) for name in names]
    counts = _aligned([f"{rows[part.name]:,} rows" if part.name in rows else "" for part in recipe.parts])
    most = []
    for part in recipe.parts:
        limits = ((part.limit, "row"), (part.tokens, "token"), (part.passes, "pass"))
        limit = ", ".join(_count(limit, what) for limit, what in limits if limit is not None)
        most.append(limit and f"at most {limit}")
    columns = [shares, names, *[counts] * bool(rows), most]
    return ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]


def _shares(recipe: Recipe, rows: Mapping[str, int]) -> list[str]:
    """Of each part, in percent, and after each change of the schedule."""
    sizes = [rows[part.name] for part in recipe.parts if part.name in rows]
    if recipe.mix.temperature is not None and len(sizes) < len(recipe.parts):
        return ["? %" for _ in recipe.parts]
    starts = sorted({0, *(change.at for change in recipe.mix.schedule)})
    steps = [weights_at(recipe.parts, recipe.mix, m, sizes) for m in starts]
    columns = [_aligned([f"{100 * weight / sum(weights):.1f}" for weight in weights]) for weights in steps]
    return [_some(list(column), " → ") + " %" for column in zip(*columns, strict=True)]


def _aligned(words: list[str]) -> list[str]:
    return [word.rjust(max(map(len, words))) for word in words]


def _count(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    return f"{number:,} {what}{'es' if what.endswith(('s', 'ch')) else 's'}"


def _some(words: list[str], between: str = ", ") -> str:
    return between.join([*words[:MOST_SHARES], *["…"] * (len(words) > MOST_SHARES)])
