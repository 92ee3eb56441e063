"""How well rows are mixed: rows sorted by class are read shuffled, and pairs inside a batch are compared.

The measure is the share of pairs of a batch that are of the same class, and of the same shard. A perfect shuffle of all
rows is the limit; a buffer of 10,000 rows behind shuffled shards is what people are used to.

    python benchmarks/shuffle.py [--quick] [--check] [--data DIR] [--out DIR] [--no-peers] [--seeds N]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from common import Target, console, data_folder, is_installed, options, print_table, print_targets, save
from corpus import Corpus, sorted_classes
from numpy.typing import NDArray
from peers import hf_dataset

import headrace

BATCH = 64
CLASSES = 100
DEFAULT = "headrace, as it comes"
SETTINGS = ((16, 2), (24, 1), (24, 2), (32, 1), (32, 2), (32, 8), (64, 8))
"""Other pools (chunks, shards in a window) to choose from."""

Numbers: TypeAlias = NDArray[np.int64]
Way: TypeAlias = Callable[[int], Numbers]
"""From a seed to the numbers of the rows in the order of one epoch."""


def main() -> int:
    parser = options("Shuffle quality on rows sorted by class.")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    shapes = ((4, 2000), (16, 500)) if args.quick else ((8, 25_000), (64, 3125))
    buffer = 500 if args.quick else 10_000
    variants, targets = [], []
    with data_folder(args.data) as folder:
        for shards, shard_rows in shapes:
            corpus = sorted_classes(folder, shards, shard_rows, CLASSES)
            lines = measure(corpus, folder / "cache", buffer, args)
            variants.append({"shards": shards, "rows": corpus.rows, "ways": lines})
            targets += judge(f"{shards} shards", lines, buffer)
    print_targets(targets)
    found = {"batch": BATCH, "classes": CLASSES, "buffer_rows": buffer, "variants": variants}
    return save("shuffle", args, found, targets, _headline(variants, buffer))


def measure(corpus: Corpus, cache: Path, buffer: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    ways: dict[str, Way] = {
        "perfect shuffle": lambda seed: np.random.default_rng(seed).permutation(corpus.rows),
        buffer_name(buffer): lambda seed: buffered(corpus, buffer, seed),
        DEFAULT: lambda seed: headrace_order(corpus, cache, seed),
    }
    for pool, window in SETTINGS[:1] if args.quick else SETTINGS:
        ways[f"headrace, pool {pool}, window {window}"] = _setting(corpus, cache, pool, window)
    if args.peers and is_installed("datasets"):
        ways[f"datasets, shuffle({buffer:,}), one shard at a time"] = lambda seed: datasets_order(
            corpus, cache, buffer, seed, max_buffer_input_shards=1
        )
        ways[f"datasets, shuffle({buffer:,}), as it comes"] = lambda seed: datasets_order(corpus, cache, buffer, seed)
    lines: list[dict[str, Any]] = []
    for name, way in ways.items():
        seeds = 1 if args.quick else min(args.seeds, 2) if name.startswith("datasets") else args.seeds
        orders = [way(seed) for seed in range(seeds)]
        for order in orders:
            if len(order) != corpus.rows or len(np.unique(order)) != corpus.rows:
                raise RuntimeError(f"{name} did not give every row once")
        same_class = [same_pairs(order * CLASSES // corpus.rows) for order in orders]
        same_shard = [same_pairs(order // corpus.shard_rows) for order in orders]
        lines.append(
            {
                "name": name,
                "seeds": seeds,
                "same_class": statistics.mean(same_class),
                "same_shard": statistics.mean(same_shard),
            }
        )
    shown = [(line["name"], f"{line['same_class']:.4f}", f"{line['same_shard']:.4f}") for line in lines]
    title = f"{corpus.rows:,} rows sorted by class, {corpus.shards} shards: pairs in a batch of {BATCH}"
    print_table(title, ("", "same class", "same shard"), shown)
    return lines


def same_pairs(labels: Numbers) -> float:
    """The mean share of the pairs of a batch whose labels are equal."""
    batches = len(labels) // BATCH
    counts = np.zeros((batches, int(labels.max()) + 1), np.int64)
    np.add.at(counts, (np.arange(batches)[:, None], labels[: batches * BATCH].reshape(batches, BATCH)), 1)
    return float((counts * (counts - 1)).sum() / (batches * BATCH * (BATCH - 1)))


def buffered(corpus: Corpus, size: int, seed: int) -> Numbers:
    """The classic: shards in random order, a buffer that is filled, each draw replaced by the next row."""
    chance = np.random.default_rng(seed)
    shards = chance.permutation(corpus.shards)
    rows = (shards[:, None] * corpus.shard_rows + np.arange(corpus.shard_rows)).ravel().tolist()
    held, out = rows[:size], []
    for row, i in zip(rows[size:], chance.integers(0, size, len(rows) - size).tolist(), strict=True):
        out.append(held[i])
        held[i] = row
    return np.array([*out, *chance.permutation(held).tolist()])


def headrace_order(
    corpus: Corpus, cache: Path, seed: int, pool: int | None = None, window: int | None = None
) -> Numbers:
    """As `rows` reads them; with another pool and window where they are given."""
    how = {} if pool is None else {"pool_size": pool}
    with headrace.rows(corpus.spec, shuffle=True, seed=seed, cache_dir=cache, columns=["n"], **how) as rows:
        if window is not None:
            # A state carries the rules it was made by, and a reader that takes it up follows them.
            rows.load_state_dict({**rows.state_dict(), "shard_window": window})
        return np.array([row.data["n"] for row in rows])


def _setting(corpus: Corpus, cache: Path, pool: int, window: int) -> Way:
    return lambda seed: headrace_order(corpus, cache, seed, pool, window)


def datasets_order(corpus: Corpus, cache: Path, buffer: int, seed: int, **how: int) -> Numbers:
    return np.array([row["n"] for row in hf_dataset(corpus, cache, buffer, seed=seed, **how)])


def buffer_name(buffer: int) -> str:
    return f"buffer of {buffer:,} rows"


def judge(where: str, lines: list[dict[str, Any]], buffer: int) -> list[Target]:
    """As it comes, headrace mixes no worse than the buffer."""
    by_name = {line["name"]: line for line in lines}
    mine, other = by_name[DEFAULT], by_name[buffer_name(buffer)]
    return [
        Target(
            f"{where}: same {what} <= {buffer_name(buffer)} ({other[f'same_{what}']:.4f})",
            f"{mine[f'same_{what}']:.4f}",
            mine[f"same_{what}"] <= other[f"same_{what}"],
        )
        for what in ("class", "shard")
    ]


def _headline(variants: list[dict[str, Any]], buffer: int) -> str:
    parts = []
    for variant in variants:
        ways = {line["name"]: line for line in variant["ways"]}
        mine, other = ways[DEFAULT], ways[buffer_name(buffer)]
        parts.append(
            f"{variant['shards']} shards: same class {mine['same_class']:.3f} (buffer {other['same_class']:.3f}), "
            f"same shard {mine['same_shard']:.3f} ({other['same_shard']:.3f})"
        )
    return "; ".join(parts)


if __name__ == "__main__":
    console.print("each way is read once per seed; this takes a minute or two")
    sys.exit(main())
