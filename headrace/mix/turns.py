"""Sources in turn, one sample each, up to limits that start anew with each epoch.

The sources themselves go on: an epoch is so many samples, not a pass, and one that has ended begins again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.errors import HeadraceError, StateError, shown
from headrace.make.feed import Feed
from headrace.make.prepare import Ready
from headrace.stage import State

log = logging.getLogger("headrace")

TOLD_AT = (1_000, 10_000, 100_000, 1_000_000)
"""Rows in a row without a sample."""
MODALITIES = ("text", "image", "video", "audio")


UNLIMITED = 1 << 40
"""Samples of a source in an epoch that has no limits."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Samples of one epoch of the run. Without limits an epoch is one pass over each source."""

    per_epoch: int | None
    per_source: int | None
    """Both are None, or none is."""
    per_modality: Mapping[str, int] | None = None
    """None, or a modality that is not named: no limit but that of its sources."""

    @property
    def is_pass(self) -> bool:
        """Whether an epoch is the whole set, once."""
        return self.per_epoch is None


class Quotas(NamedTuple):
    """Samples that may still be given in this epoch, by the run or by one lane."""

    total: int
    sources: list[int]
    kinds: list[int]
    """Of each of MODALITIES."""

    @classmethod
    def of(cls, limits: Limits, modalities: Sequence[str]) -> Quotas:
        """Those of the run. `modalities`: of each source."""
        most, per_source = limits.per_modality or {}, limits.per_source
        if per_source is None:
            per_source = UNLIMITED
        total = per_source * len(modalities) if limits.per_epoch is None else limits.per_epoch
        kinds = [most.get(kind, per_source * modalities.count(kind)) for kind in MODALITIES]
        return cls(total, [per_source] * len(modalities), kinds)

    def share(self, modalities: Sequence[str], lane: int, lanes: int, epoch: int = 0) -> Quotas:
        """Of one lane. What all lanes can give together, they can also give each for itself.

        Samples are dealt to lanes one by one, those of a source after those of the one before it, and a modality from
        where its first source begins: so no lane is left with a total that its sources do not reach. Each epoch begins
        with the next lane: what does not divide evenly goes to each of them in turn.
        """
        sources, kinds, first = [0] * len(modalities), [], epoch
        for kind, most in zip(MODALITIES, self.kinds, strict=True):
            at = first
            for i in [i for i, modality in enumerate(modalities) if modality == kind]:
                sources[i] = _dealt(at, self.sources[i], lane, lanes)
                at += self.sources[i]
            kinds.append(_dealt(first, most, lane, lanes))
            first += min(most, at - first)
        return Quotas(_dealt(epoch, self.total, lane, lanes), sources, kinds)

    def reached(self, modalities: Sequence[str]) -> Quotas:
        """The same with a total that the sources can reach."""
        found = 0
        for kind, most in zip(MODALITIES, self.kinds, strict=True):
            own = [left for left, modality in zip(self.sources, modalities, strict=True) if modality == kind]
            found += min(most, sum(own))
        return self._replace(total=min(self.total, found))


class Pick(NamedTuple):
    """One sample of a row."""

    row: Ready
    sub: int


class Turns:
    def __init__(
        self,
        feeds: Sequence[Feed],
        names: Sequence[str],
        modalities: Sequence[str],
        lane: tuple[int, int],
        limits: Limits,
        fetch: Callable[[Sequence[tuple[int, int, int]]], Sequence[Ready]],
    ) -> None:
        """`names`, `modalities`: of each source. `lane`: its number, and how many there are. `limits`: of the run.
        `fetch`: rows by (source, epoch, position)."""
        self._feeds, self._names, self._fetch = feeds, names, fetch
        self._kinds = [MODALITIES.index(modality) for modality in modalities]
        self._limits, (self._lane, self._lanes) = limits, lane
        self.dropped = 0
        self._open: list[deque[Pick]] = [deque() for _ in feeds]
        """Of each source, the next sample of each row that has some left: several after a re-deal."""
        self._next = lane[0] % len(feeds)
        self._left = Quotas.of(limits, modalities).share(modalities, *lane)
        self._given = [0] * (1 + len(MODALITIES))
        """In this epoch: in all, and of each modality."""
        self._rows = [0] * len(feeds)
        """Taken from each source, over all passes."""
        self._idle = [0] * len(feeds)
        """Rows of each source since it last gave a sample."""

    def take(self, m: int) -> Pick | None:
        """The next sample, or None where the epoch has all it may have."""
        while self._left.total > 0:
            turn = self._turn()
            if turn is None and self._limits.is_pass:
                return None
            if turn is None:
                raise HeadraceError(self._stuck())
            found = self._sample(turn)
            self._next = (turn + 1) % len(self._feeds)
            if found is not None:
                self._count(turn, 1)
                return found
        return None

    def take_back(self, pick: Pick) -> None:
        """A sample that could not be given after all: it does not count."""
        self._count(pick.row.source, -1)

    def make_ready(self, samples: int) -> bool:
        """Have some of the rows made ready that the next so many samples come from; False where they are, or have to
        be waited for."""
        sources = [i for i in range(len(self._feeds)) if self._is_allowed(i)]
        share = -(-min(samples, self._left.total) // max(1, len(sources)))
        return any(self._feeds[i].make_ready(min(share, self._left.sources[i])) for i in sources)

    def _count(self, turn: int, samples: int) -> None:
        kind = self._kinds[turn]
        self._left = self._left._replace(total=self._left.total - samples)
        self._left.sources[turn] -= samples
        self._left.kinds[kind] -= samples
        self._given[0] += samples
        self._given[1 + kind] += samples

    def has_more(self) -> bool:
        """Whether a sample may come; False is certain."""
        if not self._limits.is_pass:
            return self._left.total > 0
        return any(self._is_allowed(i) and (self._open[i] or feed.has_more()) for i, feed in enumerate(self._feeds))

    def look_again(self) -> None:
        """Nothing here ends for good."""

    def _turn(self) -> int | None:
        """The next source that its limits allow."""
        n = len(self._feeds)
        for i in (k % n for k in range(self._next, self._next + n)):
            if self._is_allowed(i):
                return i
        return None

    def _is_allowed(self, i: int) -> bool:
        return self._left.sources[i] > 0 and self._left.kinds[self._kinds[i]] > 0

    def _sample(self, i: int) -> Pick | None:
        """Of source `i`; a row that gives none passes the turn on."""
        waiting = self._open[i]
        if not waiting:
            row = self._feeds[i].next()
            if row is None and self._limits.is_pass:
                self._left.sources[i] = 0  # all of it was given: that is how the state says so
                return None
            if row is None:
                raise HeadraceError(self._barren(i))
            self._rows[i] += 1
            if not row.samples:
                self._pass_over(i)
                return None
            self._idle[i] = 0
            waiting.append(Pick(row, 0))
        pick = waiting.popleft()
        if pick.sub + 1 < len(pick.row.samples):
            waiting.appendleft(Pick(pick.row, pick.sub + 1))
        return pick

    def _pass_over(self, i: int) -> None:
        """A row without a sample. Where there are many, it is said before all have been looked at."""
        self.dropped += 1
        self._idle[i] += 1
        if self._idle[i] in TOLD_AT:
            log.warning(
                "%s: the last %s rows gave no sample: the formatter returned None for each of them, or a text without "
                "a token to learn from",
                shown(self._names[i]),
                f"{self._idle[i]:,}",
            )

    def _barren(self, i: int) -> str:
        name = shown(self._names[i])
        if self._lanes == 1:
            return (
                f"{name} gave no sample in several passes: it is empty, or its formatter returns None for every row, "
                f"or all there is to learn lies beyond max_length; remove it, or look at what its rows hold"
            )
        return (
            f"{name} gave no sample to lane {self._lane} of {self._lanes} in several passes: it is empty, or its "
            f"formatter returns None for every row that the lane has of it; look at what its rows hold, or take "
            f"configure(shuffle=True), with which each row comes to each lane in time, or fewer lanes or workers"
        )

    def _stuck(self) -> str:
        limits = self._limits
        kinds = f", modality_max_values={dict(limits.per_modality)}" if limits.per_modality else ""
        lane = f" of this lane, one of {self._lanes}," if self._lanes > 1 else ""
        return (
            f"every source has reached its limit, and {self._left.total} samples{lane} of the epoch are still to come "
            f"(max_per_epoch={limits.per_epoch}, max_per_dataset={limits.per_source}{kinds}; sources: "
            f"{', '.join(shown(name) for name in self._names)}); raise them, add sources, or lower max_per_epoch"
        )

    # --- state

    def state_dict(self) -> State:
        parts = [pick for picks in self._open for pick in picks]
        return {
            "mix": list(self._left.sources),
            "tok": list(self._rows),
            "off": [],
            "lim": [self._next, self._left.total, *self._left.kinds],
            "num": list(self._given),
            "held": [[p.row.source, p.row.epoch, p.row.position, p.sub, 0, -1] for p in parts],
        }

    def load_state_dict(self, state: State) -> None:
        n, kinds = len(self._feeds), len(MODALITIES)
        left_of, taken = _numbers("mix", state.get("mix"), n), _numbers("tok", state.get("tok"), n)
        limits, given = _numbers("lim", state.get("lim"), 2 + kinds), _numbers("num", state.get("num"), 1 + kinds)
        held: Any = state.get("held")
        if not isinstance(held, list):
            raise StateError(f"held: a list of pieces is expected, not {shown(held)!r}")
        rows = self._fetch([(c, e, p) for c, e, p, *_ in held])
        opened: list[deque[Pick]] = [deque() for _ in self._feeds]
        for row, (c, _, _, sub, *_) in zip(rows, held, strict=True):
            if not row.samples and not sub:
                continue  # it is read again from its start, and with another formatter it gives nothing
            if not 0 <= sub < len(row.samples):
                raise StateError(f"the state holds sample {sub} of {row.shard}:{row.row}, which has {len(row.samples)}")
            opened[c].append(Pick(row, sub))
        self._open, self._left = opened, Quotas(limits[1], left_of, limits[2:])
        self._next, self._given, self._rows = limits[0] % n, given, taken


def turns_state(quotas: Quotas, first: int) -> State:
    """What a lane may give in an epoch, as its state has it. `first`: the source whose turn it is."""
    return {"mix": quotas.sources, "lim": [first, quotas.total, *quotas.kinds]}


def quotas_in(state: State) -> Quotas:
    return Quotas(state["lim"][1], list(state["mix"]), list(state["lim"][2:]))


def _numbers(name: str, found: Any, count: int) -> list[int]:
    if not isinstance(found, list) or len(found) != count or not all(type(x) is int and x >= 0 for x in found):
        raise StateError(f"{name}: {count} whole numbers from 0 on are expected, not {shown(found)!r}")
    return list(found)


def _dealt(first: int, count: int, lane: int, lanes: int) -> int:
    """How many of the numbers from `first` on go to a lane, when all numbers are dealt in turn."""
    return (first + count - lane - 1) // lanes - (first - lane - 1) // lanes
