"""A recipe that was opened: its sources, what is fixed about them for good, and what makes their rows ready."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.address import skip_text
from headrace.catalog.identity import Identity, Trust
from headrace.catalog.known import known_of
from headrace.catalog.recognise import Before, is_same, require_same
from headrace.catalog.source import FILES, Source
from headrace.errors import Changed, SpecError, StateError, shown
from headrace.fetch.doors import SHUFFLED_WINDOW
from headrace.fetch.plan import Coordinate, Counts, Orders, Rules
from headrace.fetch.pool import Pool, PoolSize
from headrace.fetch.resume import NO_TRUST
from headrace.fetch.sources import Indexed, Opened, held_shards, open_source
from headrace.lazy import cached_property
from headrace.make.prepare import AsFrames, AsRows, FromIds, FromText, Prepare
from headrace.mix.weights import weights_at
from headrace.recipe import Part, Recipe, skip_address
from headrace.run import Run
from headrace.sequence.side_by_side import Helpers
from headrace.serve.needs import LaneNeeds
from headrace.serve.parts import match_parts, same_place
from headrace.serve.robot_names import named_as
from headrace.stage import State

if TYPE_CHECKING:
    from headrace.make.tokenize import Tokenizer
    from headrace.serve.samples import Samples

LATER = frozenset({"identity", "away"})
"""Facts that states of before do not have."""
TEXT = "text"
"""The column that is read where none is named. A known set that has none is read by its formatter."""

Opener: TypeAlias = Callable[[Source, Run, str | None], Opened]
"""Opens a source, at a revision where one is given."""


def open_indexed(source: Source, run: Run, revision: str | None) -> Opened:
    if source.kind == "lerobot":
        from headrace.lerobot.source import open_robot

        return open_robot(source, run, revision)
    return Indexed(open_source(source, run, revision), run)


@dataclass(frozen=True, kw_only=True)
class Fact:
    """What was fixed about a source when the run first started. It is kept in the state, and wins there."""

    name: str
    spec: str
    revision: str
    coordinate: Coordinate
    counted: list[str] | None
    """The columns whose bytes the pool counts."""
    chunk_rows: int
    chunk_bytes: int
    shard_window: int
    prepare: str
    """A fingerprint of what made its rows ready: pieces of rows are valid while it stays the same."""
    epoch: int = 0
    digest: int = 0
    """Where the digests of its lanes begin: the first epoch of the plan, and the value there."""
    identity: Identity | None = None
    """What tells its data from others, wherever it lies. None: the source has none, or the state is of before."""
    away: dict[str, Any] | None = None
    """Of a part that was taken out of the recipe: its limit, and where each lane was with it. It may come back."""

    @property
    def before(self) -> Before:
        return Before(spec=self.spec, revision=self.revision, identity=self.identity)

    def is_of(self, other: Fact) -> bool:
        """Whether two ranks say the same: of the same data, though it may have another path or time for each."""
        if replace(self, spec="", revision="", identity=None) != replace(other, spec="", revision="", identity=None):
            return False
        if self.spec.startswith("lerobot:"):  # whose revision says what it holds, wherever it lies
            return self.revision == other.revision
        if self.identity is None or other.identity is None or self.revision == other.revision:
            return (self.spec, self.revision) == (other.spec, other.revision)
        return self.identity.is_of(other.identity)


class Pipeline:
    """Shared by the lanes of a process. Pickled, it is a recipe with pinned revisions, and opens again over there."""

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        tokenizer: Tokenizer | None = None,
        *,
        opener: Opener = open_indexed,
        kept: Sequence[Fact] = (),
        size: PoolSize | None = None,
        revisions: Mapping[str, str] | None = None,
        samples: Samples | None = None,
        single: bool = False,
        trust: Trust = NO_TRUST,
    ) -> None:
        """`kept` and `size`: what a state says, where the run resumes from one; `trust`: what is not asked of it.
        `revisions`: of parts, by name, where nothing else is known. `samples`: formatters and media. `single`: each
        batch is one row, as it is."""
        self.recipe, self.run, self.tokenizer, self._opener = recipe, run, tokenizer, opener
        self.samples, self.single = samples, single
        self._kept, self._revisions, self.trust = tuple(kept), dict(revisions or {}), trust
        self._looked_at: dict[int, Opened] = {}
        self.names = tuple(part.name for part in recipe.parts)
        """What keys the draws of parts that no state has a name for."""
        self._facts: tuple[Fact, ...] | None = None
        self.in_use: dict[tuple[int, int], tuple[bytes, frozenset[int]]] = {}
        """By source and lane: a state, and the shards that were being read in it."""
        self.away: tuple[Fact, ...] = ()
        """Parts that were taken out of the recipe, which the state keeps."""
        order, default = recipe.order, PoolSize()
        asked = PoolSize(chunks=order.pool_chunks or default.chunks, nbytes=order.pool_bytes or default.nbytes)
        self.size = size or (asked if order.shuffle else replace(asked, chunks=1))

    def __reduce__(self) -> Any:
        beside = (self.facts, self.size, self.samples, self.single, self.away)
        return reopened, (self.recipe, self.run, self.tokenizer, self._opener, *beside)

    @property
    def facts(self) -> tuple[Fact, ...]:
        assert self._facts is not None, "the facts of a pipeline are fixed before it is used"
        return self._facts

    def fix(self, lanes: int) -> None:
        """Decide what stays as it is from now on: by the listing and the lanes alone, unless a state says."""
        if self._facts is None:
            found: list[Fact] = []
            for i, number in enumerate(self.numbers):
                source = self.sources[i]
                if number is None:
                    fact = self._first_fact(i, lanes, {fact.name for fact in (*self._kept, *found)})
                else:
                    fact = replace(self._kept[number], spec=source.spec, revision=source.revision, away=None)
                    fact = replace(fact, prepare=self.prepare_marks[i])
                found.append(replace(fact, identity=self._identity(source, fact)))
            self._facts = tuple(found)
            self.away = tuple(
                fact for n, fact in enumerate(self._kept) if fact.away is not None and n not in self.numbers
            )

    def resumed(
        self,
        kept: Sequence[Fact] = (),
        size: PoolSize | None = None,
        revisions: Mapping[str, str] | None = None,
        trust: Trust = NO_TRUST,
    ) -> Pipeline:
        """The same recipe, opened as a state says."""
        return Pipeline(
            named_as(self.recipe, kept),
            self.run,
            self.tokenizer,
            opener=self._opener,
            kept=kept,
            size=size,
            revisions=revisions,
            samples=self.samples,
            single=self.single,
            trust=trust,
        )

    @cached_property
    def numbers(self) -> list[int | None]:
        """For each part the number of its fact among those of the state; None: it is new."""

        def same(i: int, fact: Fact) -> bool:
            part = self.recipe.parts[i]
            if part.source.kind not in FILES or part.source.kind != fact.spec.partition(":")[0]:
                return False
            if i not in self._looked_at:
                self._looked_at[i] = self._opener(part.source, self.run, None)
            source = self._looked_at[i]
            return isinstance(source, Indexed) and is_same(source.index, fact.before)

        return match_parts(self.recipe.parts, self._kept, same, self.trust)

    def start_digests(self, origins: Sequence[tuple[int, int]]) -> None:
        """The plan begins anew: from these epochs, with these digests."""
        pairs = zip(self.facts, origins, strict=True)
        self._facts = tuple(replace(fact, epoch=epoch, digest=digest) for fact, (epoch, digest) in pairs)

    def _first_fact(self, i: int, lanes: int, taken: set[str]) -> Fact:
        part, source, name = self.recipe.parts[i], self.sources[i], self.names[i]
        others = (f"{name}#{k}" for k in count(2))
        return Fact(
            name=name if name not in taken else next(new for new in others if new not in taken),
            spec=source.spec,
            revision=source.revision,
            coordinate="rows" if part.limit is not None else source.coordinate(lanes),
            counted=self.prepares[i].columns,
            chunk_rows=Rules.chunk_rows,
            chunk_bytes=Rules.chunk_bytes,
            shard_window=self._window(source),
            prepare=self.prepare_marks[i],
        )

    def _identity(self, source: Opened, fact: Fact) -> Identity | None:
        """Of all shards, where they are counted before the first row. Else what a state says of shards that have still
        to be opened stays, but of those that may have changed."""
        if not isinstance(source, Indexed):
            return None
        if fact.coordinate == "rows" and source.index.listing.source.kind in FILES:
            source.index.complete()
            return source.index.identity()
        found, kept = source.index.identity(), fact.identity.opened if fact.identity is not None else {}
        known = {n: mark for n, mark in kept.items() if not self.trust.allows_change(source.label(n))}
        return replace(found, shape="", content="", marks="", opened=known)

    def _window(self, source: Opened) -> int:
        order = self.recipe.order
        return order.shard_window or source.window or (SHUFFLED_WINDOW if order.shuffle else 1)

    @cached_property
    def sources(self) -> list[Opened]:
        return [self._open(i) for i in range(len(self.recipe.parts))]

    def _open(self, i: int) -> Opened:
        part, number = self.recipe.parts[i], self.numbers[i]
        looked_at = self._looked_at.pop(i, None)
        kept = None if number is None else self._kept[number]
        revision = self._revisions.get(part.name) if kept is None else kept.revision
        if revision is None:
            return looked_at or self._opener(part.source, self.run, None)
        before = Before(spec=str(part.source), revision=revision, identity=None) if kept is None else kept.before
        # Of a robot the revision says what it holds, wherever it lies.
        moved = part.source.kind != "lerobot" and not same_place(before.spec, part.source)
        if moved and part.source.kind not in FILES:
            raise _other_source(part, before)
        # A branch may have moved on; the run does not, unless a revision is asked for.
        source = looked_at or self._opener(part.source, self.run, None if part.source.revision else revision)
        if isinstance(source, Indexed) and part.source.kind in FILES:
            if moved and not self.trust.moved and not is_same(source.index, before):
                hint = "if it has the same rows, load the state with trust_moved=True, else "
                raise _other_source(part, before, hint)
            require_same(source.index, before, self.trust)
        elif moved:
            raise _other_source(part, before)
        elif source.revision != revision:
            raise Changed(
                f"{shown(part.name)}: revision: the state was made on {shown(revision)}, here it is "
                f"{shown(source.revision)}: positions would mean other rows; go back to that revision, or start anew"
            )
        return source

    @cached_property
    def prepares(self) -> list[Prepare]:
        found = [self._prepare(i) for i in range(len(self.recipe.parts))]
        self._check_ends(found)
        return found

    def _check_ends(self, prepares: Sequence[Prepare]) -> None:
        """Texts are packed only where it is said what ends each of them. A run that began without goes on without."""
        if self.tokenizer is None or self.samples is not None or not self.tokenizer.needs_eos:
            return
        texts = [i for i, prepare in enumerate(prepares) if not isinstance(prepare, FromIds)]
        kept = {i: self._kept[n] for i in texts if (n := self.numbers[i]) is not None}
        if texts and not any(fact.prepare == self._mark(i, prepares[i]) for i, fact in kept.items()):
            raise self.tokenizer.ask_for_eos()

    def _prepare(self, i: int) -> Prepare:
        recipe, source = self.recipe, self.recipe.parts[i].source
        if self.samples is not None and self.tokenizer is not None:
            return self.samples.prepare(i, self.tokenizer)
        if source.kind == "lerobot":
            if recipe.pack is not None:
                raise SpecError(f"{shown(source)}: frames of robots are not tokenized; leave seq_len out")
            if recipe.faults.skips:
                raise SpecError(
                    f"faults=Faults(policy='skip'): {shown(source)} has frames, which fail only when they are decoded "
                    f"and cannot be left out by then; leave faults out, and bad episodes with episodes="
                )
            return AsFrames()
        if recipe.pack is None:
            return AsRows()
        column = (recipe.tokenize.column if recipe.tokenize else None) or source.column
        if (
            column == TEXT
            and self.tokenizer is not None
            and (found := _from_catalog(source, self.tokenizer)) is not None
        ):
            return found
        if self.tokenizer is None and self.sources[i].has_text(column):
            raise SpecError(
                f"seq_len without a tokenizer: column {shown(column)!r} of {shown(source)} holds text; give a "
                f"tokenizer, or name a column of token numbers at the end of the spec"
            )
        if self.tokenizer is None or self.sources[i].has_lists(column):
            return FromIds(column, None if self.tokenizer is None else self.tokenizer.vocab_size)
        return FromText(column, self.tokenizer.encode)

    @cached_property
    def prepare_marks(self) -> list[str]:
        return [self._mark(i, prepare) for i, prepare in enumerate(self.prepares)]

    def _mark(self, i: int, prepare: Prepare) -> str:
        tokenized = self.tokenizer is not None and not isinstance(prepare, FromIds)
        tokenizer = self.tokenizer.fingerprint if self.tokenizer and tokenized else ""
        formatted = [prepare.name] if hasattr(prepare, "name") else []
        if self.samples is not None:
            formatted = [self.samples.mark(i)]
        text = "\n".join([type(prepare).__name__, tokenizer, *(prepare.columns or []), *formatted])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @cached_property
    def pad_id(self) -> int:
        if self.tokenizer is None:
            return 0
        found = [i for i in (self.tokenizer.pad_id, self.tokenizer.eos_id) if i is not None]
        return found[0] if found else 0

    @cached_property
    def helpers(self) -> Helpers:
        """Threads for all lanes of this process."""
        return Helpers(1) if self.samples is None else self.samples.helpers()

    @cached_property
    def needs(self) -> LaneNeeds:
        return LaneNeeds(self)

    @property
    def passes(self) -> int | None:
        """Passes over the sources in one epoch of the trainer's; None: there is no end."""
        recipe = self.recipe
        if self.samples is not None:
            return 1 if self.samples.limits.is_pass else None
        if recipe.epochs is not None:
            return recipe.epochs
        endless = recipe.mix.stop == "loop" or (recipe.pack is not None and recipe.mix.stop is None)
        return None if endless else 1

    @property
    def makes_tensors(self) -> bool:
        robots = any(part.source.kind == "lerobot" for part in self.recipe.parts)
        return self.recipe.pack is not None or self.samples is not None or robots

    @property
    def is_endless(self) -> bool:
        """Whether the trainer's epoch has no end of its own."""
        return self.passes is None and self.samples is None

    def fresh_lane(self, lane: int, lanes: int, epoch: int) -> State:
        """The state of a lane at the start of an epoch of the trainer's."""
        first = epoch * (self.passes or 0)
        start = {"e": first, "c": 0, "k": 0, "s": [], "f": first, "x": [], "g": 0, "y": 0, "d": 0}
        zeros = [0] * len(self.recipe.parts)
        state: State = {"n": 0, "o": 0, "z": 0, "off": [], "held": [], "rest": []}
        state |= {"src": [dict(start) for _ in zeros], "mix": list(zeros), "tok": list(zeros)}
        if self.recipe.faults.skips:
            state["faults"] = []
        return state | (self.samples.fresh(lane, lanes, epoch) if self.samples is not None else {})

    @property
    def is_counted(self) -> bool:
        """Whether the number of micro-batches follows from row counts alone."""
        recipe = self.recipe
        plain = recipe.pack is None and self.samples is None and not self.may_drop and not recipe.skip.steps
        together = len(recipe.parts) == 1 or recipe.mix.stop != "first_exhausted"
        known = all(fact.coordinate == "rows" for fact in self.facts)
        return plain and together and known and self.passes is not None

    @property
    def may_drop(self) -> bool:
        """Whether rows may be left out, so that their number alone does not say how many come."""
        return bool(self.recipe.skip.addresses) or self.recipe.faults.skips

    def rules(self, i: int) -> Rules:
        fact, part, order = self.facts[i], self.recipe.parts[i], self.recipe.order
        return Rules(
            seed=order.seed,
            source=fact.name,
            shuffle=order.shuffle,
            chunk_rows=fact.chunk_rows,
            chunk_bytes=fact.chunk_bytes,
            shard_window=fact.shard_window,
            coordinate=fact.coordinate,
            limit=part.limit,
            atomic=self.sources[i].atomic,
            draw="row" if self.sources[i].atomic else "chunk",
        )

    def counts(self, i: int) -> Counts:
        return self.sources[i].counts(self.facts[i].counted)

    def pool(self, i: int, lane: int, lanes: int, epoch: int = 0) -> Pool:
        """The draws of a lane from source `i` in an epoch of the trainer's."""
        most = self.recipe.parts[i].passes
        first, last = (0, None) if self.passes is None else (epoch * self.passes, (epoch + 1) * self.passes)
        if most is not None:
            last = most if last is None else min(last, most)
        return Pool(self.orders[i], self.size, lane, lanes, first, last)

    def reads_by_range(self, lanes: int) -> bool:
        """Whether there is no room on disk for the shards that all lanes hold: those of their pools and the next."""
        fetched = [
            (source, self.counts(i), self.rules(i)) for i, source in enumerate(self.sources) if source.held_bytes(1)
        ]
        found = [
            source.held_bytes(min(lanes * held_shards(counts, rules, self.size), counts.num_shards))
            for source, counts, rules in fetched
        ]
        return sum(found) > 0 and sum(found) > self.run.disk_bytes()

    @cached_property
    def orders(self) -> list[Orders]:
        return [Orders(self.counts(i), self.rules(i)) for i in range(len(self.recipe.parts))]

    def rows(self, i: int) -> int:
        return int(self.counts(i).shard_rows().sum())

    def weights(self, m: int) -> tuple[int, ...]:
        return weights_at(self.recipe.parts, self.recipe.mix, m, self._sizes)

    @cached_property
    def _sizes(self) -> list[int] | None:
        if self.recipe.mix.temperature is None:
            return None
        return [self.rows(i) for i in range(len(self.recipe.parts))]

    @cached_property
    def skipped(self) -> list[frozenset[tuple[str, int]]]:
        """Of each part, the rows on the skip list."""
        listed = [skip_address(text) for text in self.recipe.skip.addresses]
        names = [{part.name, str(part.source)} for part in self.recipe.parts]
        return [frozenset((shard, row) for spec, shard, row in listed if spec in own) for own in names]

    def unmatched_skips(self) -> list[str]:
        """Rows on the skip list that no source has, each with the reason, as far as that is known without reading."""
        found = []
        for i, rows in enumerate(self.skipped):
            numbers: dict[str, int] = {}
            if rows:
                numbers = {self.sources[i].label(n): n for n in range(self.counts(i).num_shards)}
            counted = self.facts[i].coordinate == "rows"
            for shard, row in sorted(rows):
                text = shown(skip_text(self.recipe.parts[i].name, shard, row), 300)
                if shard not in numbers:
                    found.append(f"{text} (no shard of that name, such as {shown(next(iter(numbers), ''))!r})")
                elif counted and row >= (size := int(self.counts(i).shard_rows()[numbers[shard]])):
                    found.append(f"{text} (that shard has {size:,} rows, numbered from 0)")
        return found


def _from_catalog(source: Source, tokenizer: Tokenizer) -> Prepare | None:
    """Of a known set without a column of text: what its formatter writes."""
    listed = known_of(source)
    if listed is None or TEXT in listed.columns:
        return None
    from headrace.make.formatted import FromFormatter
    from headrace.make.formatters import FORMATTERS, with_fields

    name = "\n".join([listed.formatter, *(f"{key}={value}" for key, value in sorted(listed.field_map.items()))])
    function = with_fields(FORMATTERS[listed.formatter], listed.field_map)
    return FromFormatter(name, function, tokenizer, listed.group_by)


def reopened(
    recipe: Recipe,
    run: Run,
    tokenizer: Tokenizer | None,
    opener: Opener,
    facts: tuple[Fact, ...],
    size: PoolSize,
    samples: Samples | None = None,
    single: bool = False,
    away: tuple[Fact, ...] = (),
    trust: Trust = NO_TRUST,
) -> Pipeline:
    beside: dict[str, Any] = {"samples": samples, "single": single, "trust": trust}
    pipeline = Pipeline(recipe, run, tokenizer, opener=opener, kept=facts, size=size, **beside)
    pipeline.numbers = list(range(len(facts)))
    pipeline._facts, pipeline.away = facts, away
    return pipeline


def _other_source(part: Part, before: Before, hint: str = "") -> StateError:
    return StateError(
        f"{shown(part.name)}: the state was made with the source {shown(before.spec)}, here it is "
        f"{shown(part.source)}; {hint}give the new source another name"
    )


def joined_marks(ranks: Sequence[Sequence[Fact]]) -> tuple[Fact, ...]:
    """The facts of the first rank, with the marks of shards that any rank is reading."""
    found = []
    for facts in zip(*ranks, strict=True):
        first = facts[0]
        if first.identity is not None and not first.identity.shape:
            marks = {n: mark for fact in facts if fact.identity is not None for n, mark in fact.identity.opened.items()}
            first = replace(first, identity=replace(first.identity, opened=marks))
        found.append(first)
    return tuple(found)


def facts_from(value: Any) -> list[Fact]:
    """Facts out of a state."""
    try:
        if not isinstance(value, list):
            raise ValueError(f"a list is expected, not {shown(value)!r}")  # noqa: TRY004, TRY301 - one kind for all
        facts = [_fact(entry) for entry in value]
        for fact, entry in zip(facts, value, strict=True):
            _check(fact, entry)
        if len({fact.name for fact in facts}) < len(facts):
            raise ValueError("two sources have one name")  # noqa: TRY301
    except (TypeError, ValueError) as error:
        raise StateError(f"sources: the state does not say how its sources were read: {shown(error)}") from error
    return facts


def _fact(entry: Any) -> Fact:
    identity = entry.get("identity") if isinstance(entry, dict) else None
    return Fact(**entry) if identity is None else Fact(**{**entry, "identity": Identity.from_json(identity)})


def facts_to(facts: Sequence[Fact]) -> list[dict[str, Any]]:
    return [_plain(fact) for fact in facts]


def _plain(fact: Fact) -> dict[str, Any]:
    found = {name: value for name, value in vars(fact).items() if value is not None or name not in LATER}
    return found if fact.identity is None else {**found, "identity": fact.identity.to_json()}


def _check(fact: Fact, entry: dict[str, Any]) -> None:
    lost = sorted(set(vars(fact)) - set(entry) - LATER)
    if lost:
        raise ValueError(f"{lost[0]} is missing")
    for name in ("name", "spec", "revision", "prepare"):
        if not isinstance(getattr(fact, name), str):
            raise ValueError(f"{name} is {shown(getattr(fact, name))!r}, not a text")  # noqa: TRY004 - one kind for all
    for name in ("chunk_rows", "chunk_bytes", "shard_window"):
        if type(getattr(fact, name)) is not int or not 0 < getattr(fact, name) < 1 << 62:
            raise ValueError(f"{name} is {shown(getattr(fact, name))!r}, not a whole number above 0")
    for name in ("epoch", "digest"):
        if type(getattr(fact, name)) is not int or not 0 <= getattr(fact, name) < 1 << 64:
            raise ValueError(f"{name} is {shown(getattr(fact, name))!r}, not a whole number from 0 on")
    if fact.coordinate not in ("rows", "windows"):
        raise ValueError(f"coordinate is {shown(fact.coordinate)!r}, not 'rows' or 'windows'")
    columns = fact.counted
    if columns is not None and not (isinstance(columns, list) and all(isinstance(c, str) for c in columns)):
        raise ValueError(f"counted is {shown(columns)!r}, not a list of columns")
    if fact.away is not None:
        _check_away(fact.away)


def _check_away(away: Any) -> None:
    lanes = away.get("lanes") if isinstance(away, dict) else None
    if not isinstance(lanes, list) or not lanes or not _is_limit(away.get("limit")):
        raise ValueError("away: a limit and the places of lanes are expected")
    for lane in lanes:
        if not isinstance(lane, dict) or set(lane) != {"src", "tok", "held", "rest"}:
            raise ValueError("away: the place of a lane has other fields")
        if not isinstance(lane["src"], dict) or type(lane["tok"]) is not int or not 0 <= lane["tok"] < 1 << 62:
            raise ValueError("away: the place of a lane is none")
        for piece in [*_listed(lane["held"]), *_listed(lane["rest"])]:
            if not isinstance(piece, list) or len(piece) != 5 or not all(_is_number(n) for n in piece):
                raise ValueError("away: pieces of five whole numbers are expected")


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("away: a list is expected")  # noqa: TRY004 - one kind for all
    return value


def _is_limit(value: Any) -> bool:
    return value is None or (type(value) is int and 0 < value < 1 << 63)


def _is_number(value: Any) -> bool:
    return type(value) is int and -1 <= value < 1 << 62
