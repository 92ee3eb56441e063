"""What the benchmarks share: interleaved timing, targets, tables, and where results are kept."""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import importlib.util
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "headrace",
    "pyarrow",
    "numpy",
    "torch",
    "tokenizers",
    "fastokens",
    "datasets",
    "transformers",
    "trl",
    "litdata",
    "polars",
)

console = Console(width=110)


@dataclass(frozen=True)
class Target:
    """A promise, and what was measured."""

    name: str
    measured: str
    met: bool


def at_most(name: str, value: float, limit: float, unit: str = "") -> Target:
    return Target(f"{name} <= {limit:g}{unit}", f"{value:.3g}{unit}", value <= limit)


def at_least(name: str, value: float, limit: float, unit: str = "") -> Target:
    return Target(f"{name} >= {limit:g}{unit}", f"{value:.3g}{unit}", value >= limit)


def best_seconds(contenders: Mapping[str, Callable[[], int]], repeats: int, expected: int) -> dict[str, float]:
    """The shortest of `repeats` runs of each contender, in turns, so that a slow minute hits them all."""
    best = dict.fromkeys(contenders, float("inf"))
    for turn in range(repeats):
        for name, run in contenders.items():
            # Those who make many objects at once pay for a collection of all there are: not for those of the peers.
            gc.collect()
            gc.freeze()
            start = time.perf_counter()
            rows = run()
            best[name] = min(best[name], time.perf_counter() - start)
            if rows != expected:
                raise RuntimeError(f"{name} gave {rows} rows, the files have {expected}")
        console.print(f"[dim]turn {turn + 1} of {repeats} done[/dim]")
    return best


def best_seconds_of_both(
    contenders: Mapping[str, Callable[[], int]], repeats: int, expected: int
) -> dict[str, tuple[float, float]]:
    """The least seconds of a core, and on the wall, of `repeats` runs of each contender, in turns."""
    best = dict.fromkeys(contenders, (float("inf"), float("inf")))
    for _ in range(repeats):
        for name, run in contenders.items():
            gc.collect()
            wall, core = time.perf_counter(), time.process_time()
            found = run()
            core, wall = time.process_time() - core, time.perf_counter() - wall
            best[name] = (min(best[name][0], core), min(best[name][1], wall))
            if found != expected:
                raise RuntimeError(f"{name} gave {found}, there are {expected}")
    return best


def is_installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in packages)


def machine() -> dict[str, Any]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return {
        "cores": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "python": platform.python_version(),
        "packages": versions,
    }


def print_table(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def print_targets(targets: Sequence[Target]) -> None:
    lines = [(t.name, t.measured, "[green]met[/green]" if t.met else "[red]not met[/red]") for t in targets]
    print_table("targets", ("target", "measured", ""), lines)


def options(about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--data", type=Path, help="make the files here and keep them (default: a temporary folder)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results go (default: %(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help="small files, to see that it runs; the figures mean little"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave the other libraries out")
    return parser


@contextmanager
def data_folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        yield Path(folder)


def save(name: str, args: argparse.Namespace, found: dict[str, Any], targets: Sequence[Target], headline: str) -> int:
    """Write `<name>.json` and a dated line of the results' README; the exit code."""
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    value = {
        "date": when,
        "quick": args.quick,
        "machine": machine(),
        **found,
        "targets": [asdict(t) for t in targets],
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n")
    met = sum(t.met for t in targets)
    note = " (quick)" if args.quick else ""
    _add_line(args.out / "README.md", f"| {when} | {name}{note} | {headline} | {met} of {len(targets)} |")
    return 1 if args.check and met < len(targets) else 0


def _add_line(path: Path, line: str) -> None:
    if not path.exists():
        about = "One line per run, times in UTC. The JSON files are the latest run of each benchmark."
        path.write_text(f"# Results\n\n{about}\n\n| date | benchmark | result | targets met |\n|---|---|---|---|\n")
    with path.open("a") as file:
        file.write(line + "\n")
