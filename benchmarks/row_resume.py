"""Resuming in the middle: from opening the source to its first row, and what asking for a state costs."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from corpus import Corpus
from peers import hf_dataset

import headrace

SHARES = (0.1, 0.5, 0.99)
CALLS = 200

Line = dict[str, Any]


def headrace_lines(corpus: Corpus, cache: Path, repeats: int) -> tuple[list[Line], list[Line]]:
    """(resume times per way of reading, state times per way of reading)."""
    resumes, states = [], []
    for shuffle in (False, True):
        name = "headrace, shuffled" if shuffle else "headrace, in order"
        saved, calls = _walk(corpus, cache, shuffle)
        times: dict[float, list[float]] = {share: [] for share in SHARES}
        for _ in range(repeats):
            for share, (state, expected) in saved.items():
                times[share].append(_resume(corpus, cache, shuffle, state, expected))
        resumes.append({"name": name, **{_name(s): statistics.median(t) * 1000 for s, t in times.items()}})
        wall, cpu = ([seconds * 1000 for seconds in kind] for kind in zip(*calls, strict=True))
        states.append({"name": name, "median_ms": statistics.median(wall), "max_ms": max(wall), "max_cpu_ms": max(cpu)})
    return resumes, states


def peer_lines(corpus: Corpus, cache: Path) -> list[Line]:
    """What `datasets` does at the same places, once each. Its shuffle does not come back to the same rows."""
    found = []
    for name, buffer in (("datasets, state_dict", None), ("datasets, shuffle(1000), state_dict", 1000)):
        line: Line = {"name": name}
        for share, state in _peer_states(corpus, cache, buffer).items():

            def resume(state: Any = state, buffer: int | None = buffer) -> Any:
                dataset = hf_dataset(corpus, cache, buffer)
                dataset.load_state_dict(state)
                return dataset

            line[_name(share)] = _first_row(resume, None if buffer else _place(corpus, share))
        found.append(line)
    line = {"name": "datasets, skip(n)"}
    for share in SHARES:
        place = _place(corpus, share)

        def skip(place: int = place) -> Any:
            return hf_dataset(corpus, cache).skip(place)

        line[_name(share)] = _first_row(skip, place)
    return [*found, line]


def deviation(line: Line) -> float:
    """How far the places differ: the largest distance from their mean, as a part of it."""
    times = [float(line[_name(share)]) for share in SHARES]
    mean = statistics.mean(times)
    return max(abs(t / mean - 1) for t in times)


def slowest(line: Line) -> float:
    return float(max(line[_name(share)] for share in SHARES))


def _name(share: float) -> str:
    return f"ms_at_{share * 100:.0f}_percent"


def _place(corpus: Corpus, share: float) -> int:
    """Not at the edge of a row group: that would flatter."""
    return min(int(corpus.rows * share) + 137, corpus.rows - 1)


def _walk(corpus: Corpus, cache: Path, shuffle: bool) -> tuple[dict[float, tuple[str, int]], list[tuple[float, float]]]:
    """One pass: the state and the next row at each share, and (wall, CPU) seconds of `CALLS` states at random places.

    CPU as well, because the longest of many short calls is mostly a call during which someone else had the core.
    """
    chance = np.random.default_rng(7)
    stops = dict.fromkeys(chance.choice(corpus.rows, min(CALLS, corpus.rows), replace=False).tolist())
    places = {_place(corpus, share): share for share in SHARES}
    saved: dict[float, tuple[str, int]] = {}
    calls = []
    with headrace.rows(corpus.spec, shuffle=shuffle, cache_dir=cache) as rows:
        at = 0
        for stop in sorted({*stops, *places}):
            _advance(rows, stop - at)
            at = stop
            start, cpu = time.perf_counter(), time.thread_time()
            state = rows.state_dict()
            calls.append((time.perf_counter() - start, time.thread_time() - cpu))
            if stop in places:
                # What a state is worth is shown by going through JSON, as in a checkpoint.
                saved[places[stop]] = (json.dumps(state), next(rows).data["n"])
                at += 1
    return saved, calls


def _advance(rows: Iterator[Any], count: int) -> None:
    for _ in islice(rows, count):
        pass


def _resume(corpus: Corpus, cache: Path, shuffle: bool, state: str, expected: int) -> float:
    loaded = json.loads(state)
    start = time.perf_counter()
    with headrace.rows(corpus.spec, shuffle=shuffle, cache_dir=cache) as rows:
        rows.load_state_dict(loaded)
        row = next(rows)
        seconds = time.perf_counter() - start
    if row.data["n"] != expected:
        raise RuntimeError(f"resumed at row {row.data['n']}, expected {expected}")
    return seconds


def _peer_states(corpus: Corpus, cache: Path, buffer: int | None) -> dict[float, Any]:
    dataset = hf_dataset(corpus, cache, buffer)
    items = iter(dataset)
    found, at = {}, 0
    for share in SHARES:
        place = _place(corpus, share)
        _advance(items, place - at)
        at = place
        found[share] = dataset.state_dict()
    return found


def _first_row(opened: Callable[[], Any], expected: int | None) -> float:
    """Milliseconds to the first row. `expected` None: any row will do, and none too (a buffer's rows may be lost)."""
    start = time.perf_counter()
    row = next(iter(opened()), None)
    seconds = time.perf_counter() - start
    if expected is not None and (row is None or row["n"] != expected):
        raise RuntimeError(f"resumed at {row}, expected row {expected}")
    return seconds * 1000
