"""How fast texts become packed tokens: against the tokenizers library alone, which is the limit, and the peers.

The same files, and one tokenizer thread for everyone. Contenders take turns, and the best of each one's runs counts;
those that take a second only have more of them. Each run is a process of its own, in which no cache is warm.

    python benchmarks/tokens.py [--quick] [--check] [--data DIR] [--out DIR] [--no-peers] [--repeats N]
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import token_runs as runs
from common import (
    Target,
    at_least,
    at_most,
    console,
    data_folder,
    is_installed,
    options,
    print_table,
    print_targets,
    save,
)
from corpus import articles, column, token_ids, trained_tokenizer
from token_runs import BATCH, SEQ_LEN, Contender, Data, Timing

LIMIT = "tokenizers alone (limit)"
LIMIT_FAST = "fastokens alone (limit)"
REFERENCE = "headrace, reference backend"
FAST = "headrace, fast backend"
IDS = "headrace, token ids in the column"
ONE_WORKER = "headrace, reference, 1 worker"
TWO_WORKERS = "headrace, reference, 2 workers"
FAST_WORKER = "headrace, fast, 1 worker"
IDS_WORKER = "headrace, token ids, 1 worker"
TRL = "datasets, map(tokenize), TRL packing"


def main() -> int:
    runs.one_thread_each()
    parser = options("Tokens per second, packed, against the tokenizers library and the peers.")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each contender; the best counts")
    args = parser.parse_args()
    runs.load_libraries()
    with data_folder(args.data) as folder:
        data = runs.in_a_child(lambda: make_data(folder, args.quick))
        console.print(
            f"{data.articles.rows:,} texts, {data.tokens:,} tokens, sequences of {SEQ_LEN}, {BATCH} to a batch"
        )
        best = measure(data, args)
        checks = [runs.compared(data, backend) for backend in ("reference", "fast", None)]
        costs = runs.state_costs(data)
    speed = speed_lines(best)
    parts = part_lines(best, costs)
    shown = [(c["backend"], f"{c['documents_different']}", f"{c['tokens_lost']}", f"{c['fill']:.3%}") for c in checks]
    heads = ("", "documents that differ", "tokens lost", "sequences filled")
    print_table(f"one pass over {data.articles.rows:,} documents", heads, shown)
    targets = judge(best, checks, parts)
    print_targets(targets)
    found = {"tokens": data.tokens, "speed": speed, "passes": checks, "parts": parts}
    return save("tokens", args, found, targets, _headline(best, checks))


def make_data(folder: Path, quick: bool) -> Data:
    texts = articles(folder, *((2, 300) if quick else (8, 1750)))
    tokenizer = trained_tokenizer(texts, 1500 if quick else 32_768)
    ids = token_ids(texts, tokenizer)
    tokens = sum(len(document) for path in ids.files for document in column(path, "input_ids"))
    return Data(texts, ids, tokenizer, folder / "cache", tokens)


def measure(data: Data, args: argparse.Namespace) -> dict[str, Timing]:
    """The best run of each contender."""
    slow: dict[str, Contender] = {
        LIMIT: runs.tokenizers_alone(data),
        REFERENCE: runs.packed(data, "reference"),
        ONE_WORKER: runs.packed(data, "reference", num_workers=1, lanes=2),
        TWO_WORKERS: runs.packed(data, "reference", num_workers=2, lanes=2),
    }
    if args.peers and is_installed("datasets", "transformers", "trl"):
        slow[TRL] = runs.trl(data)
    quick: dict[str, Contender] = {
        LIMIT_FAST: runs.fastokens_alone(data),
        FAST: runs.packed(data, "fast"),
        IDS: runs.packed(data, None),
        FAST_WORKER: runs.packed(data, "fast", num_workers=1),
        IDS_WORKER: runs.packed(data, None, num_workers=1),
    }
    best: dict[str, Timing] = {}
    repeats = 1 if args.quick else args.repeats
    for turn in range(repeats):
        for place, name in enumerate(slow):
            for known, run in {name: slow[name], **(quick if place % 2 == 0 else {})}.items():
                timing = runs.in_a_child(partial(runs.timed, run, data.tokens))
                best[known] = max(best.get(known, timing), timing, key=lambda timing: timing.rate)
        console.print(f"[dim]turn {turn + 1} of {repeats} done[/dim]")
    return best


def speed_lines(best: dict[str, Timing]) -> list[dict[str, Any]]:
    order = (LIMIT, REFERENCE, ONE_WORKER, TWO_WORKERS, LIMIT_FAST, FAST, FAST_WORKER, IDS, IDS_WORKER, TRL)
    lines: list[dict[str, Any]] = []
    shown = []
    for name in order:
        if name not in best:
            lines.append({"name": name, "tokens_per_second": None})
            shown.append((name, "not run", "", "", "", ""))
            continue
        timing = best[name]
        by_cpu = None if "worker" in name else timing.cpu_rate / best[LIMIT].cpu_rate
        lines.append(
            {
                "name": name,
                "tokens_per_second": timing.rate,
                "of_limit": timing.rate / best[LIMIT].rate,
                "of_limit_by_cpu_time": by_cpu,
                "first_batch_seconds": timing.first,
                "batch_seconds": timing.batch,
                "main_cpu_seconds_per_batch": timing.cpu,
            }
        )
        rate, ratio = f"{timing.rate / 1e6:.3f}", f"{timing.rate / best[LIMIT].rate:.2f}"
        cpu = "" if by_cpu is None else f"{by_cpu:.2f}"
        shown.append((name, rate, ratio, cpu, f"{timing.first:.2f} s", f"{timing.batch * 1000:.2f} ms"))
    heads = ("one tokenizer thread each", "Mtok/s", "of limit", "by CPU time", "first batch", "per batch")
    print_table("tokens per second, packed", heads, shown)
    return lines


def part_lines(best: dict[str, Timing], costs: dict[str, float]) -> dict[str, float]:
    """What a batch costs beside its tokens."""
    receipt, state = costs["receipt_seconds"], costs["state_dict_seconds"]
    parts = {
        **costs,
        "receipt_of_reference_batch": receipt / best[REFERENCE].batch,
        "receipt_of_fast_batch": receipt / best[FAST].batch,
        "worker_seconds_per_batch": best[IDS_WORKER].batch - best[IDS].batch,
        "worker_main_cpu_seconds_per_batch": best[IDS_WORKER].cpu,
    }
    of_reference, of_fast = parts["receipt_of_reference_batch"], parts["receipt_of_fast_batch"]
    lines = [
        ("receipt, made with each batch", f"{receipt * 1e6:.0f} us", f"{of_reference:.2%} / {of_fast:.2%}"),
        (
            "state_dict() of the loader, where it is asked for",
            f"{state * 1e6:.0f} us",
            f"{state / best[REFERENCE].batch:.2%} / {state / best[FAST].batch:.2%}",
        ),
    ]
    for key, name in (
        ("worker_seconds_per_batch", "a worker instead of none (token ids): more wall time"),
        ("worker_main_cpu_seconds_per_batch", "...and CPU time of the trainer's process"),
    ):
        shares = f"{parts[key] / best[REFERENCE].batch:.2%} / {parts[key] / best[FAST].batch:.2%}"
        lines.append((name, f"{parts[key] * 1e6:.0f} us", shares))
    print_table("beside the tokens, per batch", ("", "time", "of a batch: reference / fast"), lines)
    return parts


def judge(best: dict[str, Timing], checks: list[dict[str, Any]], parts: dict[str, float]) -> list[Target]:
    rate = {name: timing.rate for name, timing in best.items()}
    different = sum(check["documents_different"] for check in checks)
    lost = sum(abs(check["tokens_lost"]) for check in checks)
    against = [at_least("fast backend: times datasets and TRL", rate[FAST] / rate[TRL], 12)] if TRL in rate else []
    return [
        at_least("reference backend: of tokenizers alone", rate[REFERENCE] / rate[LIMIT], 0.9),
        at_least("fast backend", rate[FAST] / 1e6, 8, " Mtok/s"),
        *against,
        at_least("two workers: times one", rate[TWO_WORKERS] / rate[ONE_WORKER], 1.5),
        at_least("token ids in the column: times the fast backend", rate[IDS] / rate[FAST], 1),
        at_most("receipt: of a batch, reference", 100 * parts["receipt_of_reference_batch"], 3, " %"),
        at_most("documents whose ids differ from tokenizers alone", different, 0),
        at_most("tokens lost in one pass", lost, 0),
        at_least("sequences filled", min(100 * check["fill"] for check in checks), 99.5, " %"),
    ]


def _headline(best: dict[str, Timing], checks: list[dict[str, Any]]) -> str:
    rate = {name: timing.rate / 1e6 for name, timing in best.items()}
    against = f" ({rate[FAST] / rate[TRL]:.1f} times datasets and TRL)" if TRL in rate else ""
    return (
        f"reference {rate[REFERENCE]:.2f} Mtok/s ({rate[REFERENCE] / rate[LIMIT]:.2f} of tokenizers alone); "
        f"fast {rate[FAST]:.1f} Mtok/s{against}; ids {rate[IDS]:.1f} Mtok/s; "
        f"two workers {rate[TWO_WORKERS] / rate[ONE_WORKER]:.2f} times one; fill {min(c['fill'] for c in checks):.2%}"
    )


if __name__ == "__main__":
    sys.exit(main())
