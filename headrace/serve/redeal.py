"""Another number of lanes: what has not been delivered is cut anew. Nothing is lost, nothing comes twice, to the token.

Pure: lane states in, lane states out. Only the order changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headrace import rng
from headrace.errors import StateError, shown
from headrace.fetch.plan import WINDOW_BITS, Order, Range, length, merge, overlap
from headrace.fetch.pool import Pool, PoolSize
from headrace.make.faults import places_in
from headrace.mix.mixer import within_shares
from headrace.serve.pipeline import Pipeline
from headrace.stage import State

MOST_APART = 1 << 16
"""Passes that lanes of a small looping source can be apart; each is dealt on its own."""


def redeal(pipeline: Pipeline, lanes: Sequence[State], num_lanes: int) -> tuple[list[State], list[tuple[int, int]]]:
    """The states of `num_lanes` lanes that go on where `lanes` stopped; and per source where its digests begin now."""
    sources: list[list[State]] = []
    origins: list[tuple[int, int]] = []
    for i in range(len(pipeline.recipe.parts)):
        states, origin = redeal_source(pipeline, i, [lane["src"][i] for lane in lanes], num_lanes)
        sources.append(states)
        origins.append(origin)
    credit = [even([lane["mix"][i] for lane in lanes], num_lanes) for i in range(len(sources))]
    if pipeline.samples is None:  # what a lane owes and is owed adds up to nothing
        credit[0] = [first - sum(one) for first, one in zip(credit[0], zip(*credit, strict=True), strict=True)]
    tokens = [_tokens(pipeline, i, even([lane["tok"][i] for lane in lanes], num_lanes)) for i in range(len(sources))]
    pieces = [["held", *piece] for lane in lanes for piece in lane["held"]]
    pieces += [["rest", *piece] for lane in lanes for piece in lane["rest"]]
    left_out = list(dict.fromkeys(place for lane in lanes for place in places_in(lane)))
    has_faults = any("faults" in lane for lane in lanes)
    dealt: list[State] = []
    for j in range(num_lanes):
        own = pieces[j::num_lanes]
        dealt.append(
            {
                "n": 0,
                "o": 0,
                "z": 0,
                "src": [states[j] for states in sources],
                "mix": [one[j] for one in credit],
                "tok": [one[j] for one in tokens],
                "off": [],
                "held": [piece[1:] for piece in own if piece[0] == "held"],
                "rest": [piece[1:] for piece in own if piece[0] == "rest"],
                **({"faults": [list(place) for place in left_out[j::num_lanes]]} if has_faults else {}),
                **_of_samples(pipeline, lanes, j, num_lanes),
            }
        )
    return dealt, origins


def within_limits(pipeline: Pipeline, lanes: Sequence[State]) -> list[State]:
    """Lane states in which no lane has given more tokens than its share of a limit while another has some left.

    Lanes keep to their shares, but a limit may have been lowered since, and earlier versions gave whole documents.
    """
    counts = [_tokens(pipeline, i, [lane["tok"][i] for lane in lanes]) for i in range(len(pipeline.recipe.parts))]
    return [{**lane, "tok": [one[j] for one in counts]} for j, lane in enumerate(lanes)]


def _tokens(pipeline: Pipeline, i: int, counts: list[int]) -> list[int]:
    limit = pipeline.recipe.parts[i].tokens
    return counts if limit is None else within_shares(counts, limit)


def _of_samples(pipeline: Pipeline, lanes: Sequence[State], j: int, parts: int) -> State:
    """What lanes of samples have beside: what is left of limits is shared out, and so is what was counted."""
    if pipeline.samples is None:
        return {}
    given = [even(values, parts)[j] for values in zip(*(lane["num"] for lane in lanes), strict=True)]
    bad = even([lane["bad"] for lane in lanes], parts)[j]
    return {**pipeline.samples.redealt(lanes, j, parts), "num": given, "bad": bad}


def redeal_source(
    pipeline: Pipeline, i: int, states: Sequence[State], num_lanes: int
) -> tuple[list[State], tuple[int, int]]:
    """The same for one source of the lanes."""
    pools = []
    for lane, state in enumerate(states):
        pool = pipeline.pool(i, lane, len(states))
        pool.last = None  # whatever epoch of the trainer's it is
        pool.load_state_dict(state)
        pools.append(pool)
    name = shown(pipeline.recipe.parts[i].name)
    low = min(pool.epoch for pool in pools)
    front = max(max([pool.epoch, *pool.explicit]) for pool in pools)
    if front - low > MOST_APART:
        raise StateError(f"{name}: its lanes are {front - low} passes apart, too many to be dealt anew")
    explicit: list[list[list[Any]]] = [[] for _ in range(num_lanes)]
    for epoch in range(low, front + 1):
        order = pools[0].orders(epoch)
        left = [part for pool in pools for part in left_of(pool, order)]
        twice = overlap(left)
        if twice is not None:
            raise StateError(f"{name}: two lanes have still to read position {twice} of pass {epoch}")
        for j, ranges in enumerate(_dealt(merge(left), num_lanes, order)):
            explicit[(j - epoch) % num_lanes].append([epoch, [list(r) for r in ranges]])
    digest = rng.key("redeal", *(pool.digest for pool in pools))
    generation = max(pool.generation for pool in pools) + 1
    passed = min(pool.passed for pool in pools)
    fresh = {"e": low, "c": 0, "k": 0, "s": [], "f": front + 1, "g": generation, "y": passed}
    dealt = [{**fresh, "x": ranges} for ranges in explicit]
    return [{**state, "d": first_digest(digest, pipeline.size, state)} for state in dealt], (low, digest)


def first_digest(digest: int, size: PoolSize, state: State) -> int:
    """Where a lane's digest begins. It vouches for what was dealt to the lane, which nothing else can tell later."""
    if not state["g"]:
        return digest
    ranges = [[epoch, len(found), *(edge for pair in found for edge in pair)] for epoch, found in state["x"]]
    plan = (size.chunks, size.nbytes, state["g"], state["f"])
    return rng.key("dealt", digest, *plan, *(number for part in ranges for number in part))


def left_of(pool: Pool, order: Order) -> list[Range]:
    """What a lane has not drawn of an epoch."""
    if order.epoch < pool.epoch:
        return []
    if order.epoch > pool.epoch:
        return pool.share_of(order.epoch)
    held = [(slot.position, slot.position + slot.left) for slot in pool.slots]
    return [*held, *pool.unread()]


def _dealt(left: list[Range], parts: int, order: Order) -> list[list[Range]]:
    """Ranges in shares of equal size: by rows; where these are not counted, windows by bytes and the rest in turn."""
    if order.rules.coordinate == "rows":
        return order.cut(left, parts)
    open_ranges, windows = _by_window(left)
    shares: list[list[Range]] = [[] for _ in range(parts)]
    sizes = [order.window_bytes(w) for w in windows]
    total, before = sum(sizes), 0
    for window, size in zip(windows, sizes, strict=True):
        shares[before * parts // total].append((window << WINDOW_BITS, (window + 1) << WINDOW_BITS))
        before += size
    for n, part in enumerate(open_ranges):
        shares[n % parts].append(part)
    return [merge(share) for share in shares]


def _by_window(ranges: Iterable[Range]) -> tuple[list[Range], list[int]]:
    """Ranges cut at window boundaries: parts of windows, and the numbers of whole windows."""
    some: list[Range] = []
    whole: list[int] = []
    for start, stop in ranges:
        while start < stop:
            window = start >> WINDOW_BITS
            end = min(stop, (window + 1) << WINDOW_BITS)
            if end - start == 1 << WINDOW_BITS:
                whole.append(window)
            else:
                some.append((start, end))
            start = end
    return some, whole


def even(values: Sequence[int], parts: int) -> list[int]:
    total = sum(values)
    return [total * (j + 1) // parts - total * j // parts for j in range(parts)]


def rows_left(pool: Pool) -> int:
    """Rows that a lane has still to draw up to the last epoch it may enter. Only where rows are counted."""
    assert pool.last is not None
    found = 0
    for epoch in range(pool.epoch, pool.last):
        found += length(left_of(pool, pool.orders(epoch)))
    return found
