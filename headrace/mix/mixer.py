"""Many sources into one stream: which source gives the next row is a pure function of counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from math import gcd
from typing import Any, Literal, Protocol

from headrace.errors import StateError, shown
from headrace.make.prepare import Ready
from headrace.mix.weights import pick, settle
from headrace.stage import State

Stop = Literal["first_exhausted", "all_exhausted", "loop"]


class Feeds(Protocol):
    def next(self) -> Ready | None: ...
    def has_more(self) -> bool: ...


class Mixer:
    """Takes rows from feeds, in turn by their weights. A dropped row costs nothing."""

    def __init__(
        self,
        feeds: Sequence[Feeds],
        weights: Callable[[int], Sequence[int]],
        *,
        stop: Stop,
        by_tokens: bool,
        lane: int,
        lanes: int,
        quotas: Sequence[int | None],
    ) -> None:
        """`weights(m)`: for the micro-batch m that is being filled. `quotas`: tokens that each source may give in this
        lane over the whole run; the document that reaches a quota is cut there."""
        self._feeds, self._weights, self._stop, self._by_tokens = feeds, weights, stop, by_tokens
        self._lane, self._lanes, self._quotas = lane, lanes, quotas
        self._credits: list[int] = []
        self._tokens: list[int] = []
        self._active: list[int] = []
        self._off: set[int] = set()
        self._alone = len(feeds) == 1
        """One source is always the next, and owes nobody."""
        self._weighed: tuple[int, Sequence[int]] = (-1, ())
        self.dropped = 0
        """Rows that gave no sample, since the lane was opened."""
        self.load_state_dict({"mix": [0] * len(feeds), "off": [], "tok": [0] * len(feeds)})

    def take(self, m: int) -> Ready | None:
        """The next row that has samples, or None when the mix has ended."""
        weights = self._weights_for(m)
        while not self._over():
            i = 0 if self._alone else pick(self._credits, weights, self._active, self._lane)
            row = None if self._is_spent(i) else self._feeds[i].next()
            if row is None:
                self._off.add(i)
                self._active = [n for n in self._active if n != i]
                continue
            if not row.samples:
                self.dropped += 1
                continue
            row, tokens = self._cut(i, row)
            if not self._alone:
                self._credits = settle(self._credits, weights, self._active, i, tokens if self._by_tokens else 1)
            self._tokens[i] += tokens
            return row
        return None

    def _cut(self, i: int, row: Ready) -> tuple[Ready, int]:
        """The row, cut where its source reaches its quota; and its tokens, where they are counted."""
        quota = self._quotas[i]
        if quota is None and not self._by_tokens:
            return row, 0
        tokens = sum(len(sample.tokens) for sample in row.samples)
        if quota is None or tokens <= quota - self._tokens[i]:
            return row, tokens
        left = quota - self._tokens[i]
        return row._replace(most=left), left

    def leave_out_limited(self) -> None:
        """Take nothing from sources that have a quota: what is repeated would exceed it."""
        self._quotas = [None if quota is None else 0 for quota in self._quotas]

    @property
    def ended(self) -> Set[int]:
        """The numbers of sources that give no more."""
        return self._off

    def pass_by(self, m: int, rows: int) -> list[int]:
        """How many of the next rows come from each source, as if they were taken: all by the weights of micro-batch
        `m`, and no source ends on the way."""
        # After as many rows as the weights add up to, credits are what they were, and the same comes again.
        weights = self._weights_for(m)
        counts = [0] * len(self._feeds)
        if self._alone:
            return [rows]
        own = [weights[i] for i in self._active]
        period, begun, done = sum(own) // gcd(*own), self._credits, 0
        while done < rows:
            i = pick(self._credits, weights, self._active, self._lane)
            self._credits = settle(self._credits, weights, self._active, i, 1)
            counts[i], done = counts[i] + 1, done + 1
            if done == period and self._credits == begun:
                counts, done = [n * (rows // period) for n in counts], rows // period * period
        return counts

    def _weights_for(self, m: int) -> Sequence[int]:
        """Where the schedule changed since the lane's last micro-batch, nobody owes anybody anything."""
        if m != self._weighed[0]:
            weights = self._weights(m)
            if m >= self._lanes and self._weights(m - self._lanes) != weights:
                self._credits = [0] * len(self._feeds)
            self._weighed = (m, weights)
        return self._weighed[1]

    def has_more(self) -> bool:
        """Whether a row may come; False is certain."""
        if self._over():
            return False
        return any(not self._is_spent(i) and self._feeds[i].has_more() for i in self._active)

    def _is_spent(self, i: int) -> bool:
        quota = self._quotas[i]
        return quota is not None and self._tokens[i] >= quota

    def _over(self) -> bool:
        return not self._active or (self._stop == "first_exhausted" and bool(self._off))

    def look_again(self) -> None:
        """What has ended may have more to give since the recipe changed."""
        self._off = {i for i in self._off if self._is_spent(i) or not self._feeds[i].has_more()}
        self._active = [i for i in range(len(self._feeds)) if i not in self._off]

    def state_dict(self) -> State:
        return {"mix": list(self._credits), "off": sorted(self._off), "tok": list(self._tokens)}

    def load_state_dict(self, state: State) -> None:
        n = len(self._feeds)
        credit, tokens = _numbers("mix", state, n), _numbers("tok", state, n)
        off = state["off"]
        if not isinstance(off, list) or not all(type(i) is int and 0 <= i < n for i in off):
            raise StateError(f"off: numbers of ended sources below {n} are expected, not {shown(off)!r}")
        self._credits, self._tokens, self._off = credit, tokens, set(off)
        self._active = [i for i in range(n) if i not in self._off]


def share(total: int, lane: int, lanes: int) -> int:
    """What one of `lanes` lanes has of a total. The shares of all lanes add up to it."""
    return total * (lane + 1) // lanes - total * lane // lanes


def within_shares(counts: Sequence[int], limit: int) -> list[int]:
    """Token counts of lanes, moved between lanes so that none exceeds its share of `limit` while another has room.

    What the lanes may still give then adds up to what is left of the limit. The total stays the same; what exceeds the
    limit itself is counted in the first lane.
    """
    shares = [share(limit, lane, len(counts)) for lane in range(len(counts))]
    over = sum(max(0, count - most) for count, most in zip(counts, shares, strict=True))
    found = []
    for count, most in zip(counts, shares, strict=True):
        moved = min(over, max(0, most - count))
        found.append(min(count, most) + moved)
        over -= moved
    found[0] += over
    return found


def _numbers(name: str, state: State, count: int) -> list[int]:
    found: Any = state.get(name)
    if not isinstance(found, list) or len(found) != count or not all(type(x) is int for x in found):
        raise StateError(f"{name}: a whole number for each of {count} sources is expected, not {shown(found)!r}")
    return list(found)
