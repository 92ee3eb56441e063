"""How fast rows come: against pyarrow, which is the limit, and against the peers; resume; memory.

One run, one process, the same files. Contenders take turns, and the best of each one's runs counts.

    python benchmarks/rows.py [--quick] [--check] [--data DIR] [--out DIR] [--no-peers] [--repeats N]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import memory
import numpy as np
import peers
import pyarrow as pa
import pyarrow.parquet as pq
import row_resume
from common import (
    Target,
    at_least,
    at_most,
    best_seconds,
    console,
    data_folder,
    is_installed,
    options,
    print_table,
    print_targets,
    save,
)
from corpus import Corpus, small_rows, web_pages

import headrace

LIMIT_ROWS = "pyarrow: row dicts (limit A)"
LIMIT_TEXT = "pyarrow: text column (limit B)"
LIMIT_MIXED = "pyarrow: row dicts out of 24 row groups, mixed (limit C)"
MIXED, PIECE = 24, 256
"""Row groups that are mixed at the limit, as many as a pool has chunks; rows that become dicts at once."""
IN_ORDER = "headrace: items, in order"
ADDRESSED = "headrace: items, in order, each asked for its address"
SHUFFLED = "headrace: items, shuffled"
TEXT = "headrace: items, text only"
BLOCKS = "headrace: blocks, in order"
BLOCKS_TEXT = "headrace: blocks, text only"
BLOCK_ROWS = 1024


def main() -> int:
    parser = options("Rows per second against pyarrow and the peers; resume; memory.")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each contender; the best counts")
    args = parser.parse_args()
    with data_folder(args.data) as folder:
        pages = web_pages(folder, *((2, 1500) if args.quick else (8, 25_000)))
        small = small_rows(folder, *((4, 2500) if args.quick else (16, 62_500)))
        cache = folder / "cache"
        speed = measure_speed(pages, cache, args)
        resumes, states = measure_resume(small, cache, args)
        megabytes, peak = memory.after_each_epoch(pages.spec, cache, 4 if args.quick else 10)
    epochs = ", ".join(f"{x:.0f}" for x in megabytes)
    console.print(f"resident MB after each epoch of shuffled items: {epochs}; at most {peak:.0f}")
    targets = judge(speed, resumes, states, megabytes)
    print_targets(targets)
    found = {
        "rows": pages.rows,
        "speed": speed,
        "resume_rows": small.rows,
        "resume": resumes,
        "state": states,
        "memory": {
            "mb_after_each_epoch": megabytes,
            "slope_mb_per_epoch": memory.slope(megabytes),
            "spread_mb": memory.spread(megabytes),
            "peak_mb": peak,
        },
    }
    return save("rows", args, found, targets, _headline(speed))


def measure_speed(corpus: Corpus, cache: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    chosen: dict[str, Callable[[], int] | None] = {**limits(corpus), **readers(corpus, cache)}
    if args.peers:
        chosen.update(peers.contenders(corpus, cache))
    running = {name: run for name, run in chosen.items() if run is not None}
    console.print(f"{corpus.rows:,} rows in {corpus.shards} shards; {len(running)} contenders, {args.repeats} turns")
    seconds = best_seconds(running, 2 if args.quick else args.repeats, corpus.rows)
    lines: list[dict[str, Any]] = []
    for name in chosen:
        rate = corpus.rows / seconds[name] if name in seconds else None
        limit = limit_of(name)
        ratio = seconds[limit] / seconds[name] if name in seconds else None
        lines.append({"name": name, "rows_per_second": rate, "of_limit": ratio, "limit": limit[-2]})
    shown = [
        (line["name"], f"{line['rows_per_second']:,.0f}", f"{line['of_limit']:.2f} {line['limit']}")
        if line["rows_per_second"]
        else (line["name"], "not installed", "")
        for line in lines
    ]
    print_table("rows per second", ("", "rows/s", "of limit"), shown)
    return lines


def limit_of(name: str) -> str:
    if "mixed" in name or "shuffle" in name:
        return LIMIT_MIXED
    return LIMIT_TEXT if "text" in name else LIMIT_ROWS


def limits(corpus: Corpus) -> dict[str, Callable[[], int]]:
    """pyarrow alone. The limits use one thread, as headrace does; with threads is shown for comparison."""

    def row_dicts(threads: bool) -> int:
        return sum(peers.count(group.to_pylist()) for group in _groups(corpus, None, threads))

    def texts() -> int:
        return sum(peers.count(group.column(0).to_pylist()) for group in _groups(corpus, ["text"], False))

    return {
        LIMIT_ROWS: lambda: row_dicts(False),
        "pyarrow: row dicts, with threads": lambda: row_dicts(True),
        LIMIT_TEXT: texts,
        LIMIT_MIXED: lambda: peers.count(mixed(_groups(corpus, None, False))),
    }


def mixed(groups: Iterator[pa.Table]) -> Iterator[dict[str, Any]]:
    """The least that a shuffle does: rows come at random out of several row groups, and of each in random order.

    No addresses, no state, and no resume: what is left is what it costs to have many rows at hand instead of one.
    """
    chance = np.random.default_rng(0)

    def rows(group: pa.Table) -> Iterator[dict[str, Any]]:
        data = group.take(pa.array(chance.permutation(group.num_rows)))
        return chain.from_iterable(data.slice(at, PIECE).to_pylist() for at in range(0, data.num_rows, PIECE))

    waiting = map(rows, groups)
    pool = list(islice(waiting, MIXED))
    while pool:
        picks = chance.integers(len(pool), size=1024).tolist()
        for pick, row in zip(picks, map(next, map(pool.__getitem__, picks), repeat(None)), strict=True):
            if row is None:
                pool[pick : pick + 1] = islice(waiting, 1)
                break
            yield row


def _groups(corpus: Corpus, columns: list[str] | None, threads: bool) -> Iterator[pa.Table]:
    for path in corpus.files:
        with pq.ParquetFile(path) as file:
            for i in range(file.num_row_groups):
                yield file.read_row_group(i, columns=columns, use_threads=threads)


def readers(corpus: Corpus, cache: Path) -> dict[str, Callable[[], int]]:
    """headrace, opened anew in each run; the index is there after the first."""

    def items(**how: Any) -> int:
        with headrace.rows(corpus.spec, cache_dir=cache, **how) as rows:
            return peers.count(rows)

    def addressed_items() -> int:
        with headrace.rows(corpus.spec, cache_dir=cache) as rows:
            return peers.count(row.address for row in rows)

    def blocks(**how: Any) -> int:
        found = 0
        with headrace.rows(corpus.spec, cache_dir=cache, **how) as rows:
            while (block := rows.next_block(BLOCK_ROWS)) is not None:
                # Both are made when asked for, and both are part of what an item has.
                assert len(next(iter(block.columns.values()))) == len(block.addresses)
                found += len(block)
        return found

    return {
        IN_ORDER: items,
        ADDRESSED: addressed_items,
        SHUFFLED: lambda: items(shuffle=True),
        TEXT: lambda: items(columns=["text"]),
        BLOCKS: blocks,
        "headrace: blocks, shuffled": lambda: blocks(shuffle=True),
        BLOCKS_TEXT: lambda: blocks(columns=["text"]),
    }


def measure_resume(
    corpus: Corpus, cache: Path, args: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    lines, states = row_resume.headrace_lines(corpus, cache, 3 if args.quick else 15)
    if args.peers and is_installed("datasets"):
        lines += row_resume.peer_lines(corpus, cache)
    heads = ("", "at 10 %", "at 50 %", "at 99 %")
    shown = [(line["name"], *(f"{v:,.1f} ms" for k, v in line.items() if k != "name")) for line in lines]
    print_table(f"resume on {corpus.rows:,} rows: open, restore, first row", heads, shown)
    kinds = ("median_ms", "max_ms", "max_cpu_ms")
    shown = [(state["name"], *(f"{state[kind]:.3f} ms" for kind in kinds)) for state in states]
    print_table(f"state_dict() at {row_resume.CALLS} random places", ("", "median", "max", "max, CPU time"), shown)
    return lines, states


def judge(
    speed: list[dict[str, Any]], resumes: list[dict[str, Any]], states: list[dict[str, Any]], megabytes: list[float]
) -> list[Target]:
    ratio = {line["name"]: line["of_limit"] for line in speed}
    rate = {line["name"]: line["rows_per_second"] for line in speed}
    mine = [line for line in resumes if line["name"].startswith("headrace")]
    return [
        at_least("blocks: of limit A", ratio[BLOCKS], 0.7),
        at_least("items: of limit A", ratio[IN_ORDER], 0.5),
        at_least("items asked for addresses: of limit A", ratio[ADDRESSED], 0.5),
        at_least("items, text only: of limit B", ratio[TEXT], 0.6),
        at_least("items, shuffled: of limit C", ratio[SHUFFLED], 0.8),
        at_most("shuffle: more time per item", (rate[IN_ORDER] / rate[SHUFFLED] - 1) * 100, 15, " %"),
        *(at_most(f"resume, {line['name']}: slowest", row_resume.slowest(line), 150, " ms") for line in mine),
        *(at_most(f"resume, {line['name']}: places vary", 100 * row_resume.deviation(line), 30, " %") for line in mine),
        *(at_most(f"state_dict, {line['name']}: median", line["median_ms"], 1, " ms") for line in states),
        *(at_most(f"state_dict, {line['name']}: longest, CPU", line["max_cpu_ms"], 1, " ms") for line in states),
        at_most("memory: slope per epoch", memory.slope(megabytes), 1, " MB"),
        at_most("memory: spread once settled", memory.spread(megabytes), 20, " MB"),
    ]


def _headline(speed: list[dict[str, Any]]) -> str:
    lines = {line["name"]: line for line in speed}
    parts = []
    for word, name in (("items", IN_ORDER), ("shuffled", SHUFFLED), ("blocks", BLOCKS), ("text", TEXT)):
        line = lines[name]
        parts.append(f"{word} {line['rows_per_second'] / 1000:.0f}k rows/s ({line['of_limit']:.2f} {line['limit']})")
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
