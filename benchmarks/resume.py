"""From a kill to the next batch: a run is killed at 1 %, 50 % and 99 % of its source, and a new process goes on.

The process that is killed (SIGKILL) has saved its state just before. The next one is timed to its first batch: from
its start, and from where its libraries are loaded. What comes then is compared with what would have come.

    python benchmarks/resume.py [--quick] [--check] [--data DIR] [--out DIR] [--no-peers] [--repeats N]
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import peers
from common import Target, at_most, console, data_folder, is_installed, options, print_table, print_targets, save
from corpus import articles, trained_tokenizer
from resume_child import WAYS, Task

CHILD = Path(__file__).with_name("resume_child.py")
SHARES = (0.01, 0.5, 0.99)
WORDS = 35
"""Of a text: about 200 bytes."""
LONG_SECONDS = 5.0
"""A peer that takes longer, with its start, is not run again."""
STATE = "datasets, rows in order, state_dict"


@dataclass(frozen=True)
class Resumed:
    """The best of some resumes at one place."""

    seconds: float
    """From where the libraries are loaded to the first batch."""
    whole: float
    """From the start of the process."""
    exact: bool
    """Whether the batch that comes first is the one that would have come next."""

    def better_of(self, other: Resumed) -> Resumed:
        return Resumed(min(self.seconds, other.seconds), min(self.whole, other.whole), self.exact and other.exact)


@dataclass(frozen=True)
class Stop:
    """Where a run was killed."""

    share: float
    task: Task
    """To go on from there."""
    key: Any
    """The batch that would have come next."""


Found: TypeAlias = dict[str, dict[float, Resumed]]


def main() -> int:
    parser = options("Time from a kill to the next batch, against the peers.")
    parser.add_argument("--repeats", type=int, default=4, help="resumes at each place; the best counts")
    args = parser.parse_args()
    with data_folder(args.data) as folder:
        corpus = articles(folder, *((4, 2500) if args.quick else (16, 62_500)), words=WORDS)
        tokenizer = trained_tokenizer(corpus, 1500 if args.quick else 32_768)
        task = Task(
            way="",
            folder=str(corpus.folder),
            shards=corpus.shards,
            shard_rows=corpus.shard_rows,
            tokenizer=str(tokenizer),
            cache=str(folder / "cache"),
        )
        ways = chosen(task, args)
        console.print(f"{corpus.rows:,} rows in {corpus.shards} shards; {len(ways)} ways to go on")
        found = measure(task, ways, folder, 1 if args.quick else args.repeats)
    lines = show(found, corpus.rows)
    targets = judge(found)
    print_targets(targets)
    return save("resume", args, {"rows": corpus.rows, "resume": lines}, targets, _headline(found))


def chosen(task: Task, args: argparse.Namespace) -> list[str]:
    ways = [way for way in WAYS if way.startswith("headrace")]
    if args.peers and is_installed("datasets"):
        trl = is_installed("transformers", "trl")
        ways += [way for way in WAYS if way.startswith("datasets") and (trl or "TRL" not in way)]
    if args.peers and is_installed("litdata", "polars"):
        ways += [way for way in WAYS if way.startswith("litdata")]
        peers.index_for_litdata(task.corpus)
    # What lies in its buffer is lost at each kill: of few rows, there would be none left for the last place.
    return [way for way in ways if not (args.quick and "shuffle(1000)" in way)]


def measure(task: Task, ways: list[str], folder: Path, repeats: int) -> Found:
    found: Found = {}
    stops: dict[str, list[Stop]] = {}
    for way in ways:
        if "skip(n)" in way:  # the same run, and its state is the number of rows
            stops[way], found[way] = [replace(s, task=replace(s.task, way=way)) for s in stops[STATE]], {}
        else:
            stops[way], found[way] = killed_run(replace(task, way=way), folder)
        console.print(f"[dim]{way}: was killed {len(SHARES)} times[/dim]")
    for turn in range(repeats):
        for way, places in stops.items():
            for stop in places:
                known = found[way].get(stop.share)
                # In the first turn: only where the run that was killed has not gone on from, which is the last place.
                if known is not None and (turn == 0 or is_long(way, known)):
                    continue
                with running(stop.task) as listen:
                    now = resumed(listen(), stop)
                found[way][stop.share] = now if known is None else now.better_of(known)
        console.print(f"[dim]turn {turn + 1} of {repeats} done[/dim]")
    return found


def is_long(way: str, known: Resumed) -> bool:
    return not way.startswith("headrace") and known.whole > LONG_SECONDS


def killed_run(task: Task, folder: Path) -> tuple[list[Stop], dict[float, Resumed]]:
    """A run that is killed at each place and goes on from there: the places, and how long going on took."""
    stops: list[Stop] = []
    found: dict[float, Resumed] = {}
    for share in SHARES:
        saved = str(folder / f"state-{list(WAYS).index(task.way)}-{share}.json")
        last = stops[-1] if stops else None
        # Not at the edge of a row group: that would flatter.
        until = int(task.corpus.rows * share) + 37
        with running(replace(last.task if last else task, until=until, saved=saved)) as listen:
            first = listen()
            if last is not None:
                found[last.share] = resumed(first, last)
            key = listen()["key"]
        stops.append(Stop(share, replace(task, state=saved), key))
    return stops, found


@contextmanager
def running(task: Task) -> Iterator[Callable[[], dict[str, Any]]]:
    """A process at work on a task; at the end it is killed. Gives what waits for its next message."""
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, str(CHILD), task.to_json()], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None

    def listen() -> dict[str, Any]:
        for line in process.stdout or ():
            if line.startswith("{"):  # some libraries talk a lot
                return {**json.loads(line), "started": started}
        raise RuntimeError(f"{task.way} ended with exit code {process.wait()} before it was done")

    try:
        yield listen
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    if task.until and process.returncode != -signal.SIGKILL:
        raise RuntimeError(f"{task.way} ended with exit code {process.returncode} before it could be killed")


def resumed(message: dict[str, Any], stop: Stop) -> Resumed:
    exact = message["key"] == stop.key
    if not exact and stop.task.way.startswith("headrace"):
        raise RuntimeError(f"{stop.task.way} went on with another batch at {stop.share:.0%}")
    return Resumed(message["first"] - message["imported"], message["first"] - message["started"], exact)


def show(found: Found, rows: int) -> list[dict[str, Any]]:
    heads = ("", *(f"at {share:.0%}" for share in SHARES), "same rows")
    for title, field in (("libraries loaded", "seconds"), ("from the start of the process", "whole")):
        shown = [
            (
                way,
                *(f"{getattr(places[share], field) * 1000:,.0f} ms" for share in SHARES),
                "yes" if all(places[share].exact for share in SHARES) else "no",
            )
            for way, places in found.items()
        ]
        print_table(f"killed in {rows:,} rows; to the first batch, {title}", heads, shown)
    return [
        {"name": way, **{f"at_{share * 100:.0f}_percent": asdict(places[share]) for share in SHARES}}
        for way, places in found.items()
    ]


def deviation(places: dict[float, Resumed]) -> float:
    """How far the places differ: the largest distance from their mean, as a part of it."""
    times = [place.seconds for place in places.values()]
    mean = statistics.mean(times)
    return max(abs(t / mean - 1) for t in times)


def judge(found: Found) -> list[Target]:
    """By the time with the libraries loaded: rows against rows, packed tokens against packed tokens."""
    targets = []
    for way in (way for way in found if way.startswith("headrace")):
        places = found[way]
        targets.append(at_most(f"{way}: places vary", 100 * deviation(places), 30, " %"))
        others = [o for o in found if not o.startswith("headrace") and ("packed" in o) == ("packed" in way)]
        for share in SHARES[1:] if others else ():
            best = min(others, key=lambda other: found[other][share].seconds)
            mine, theirs = places[share].seconds, found[best][share].seconds
            text = f"{way}: first at {share:.0%} ({best.split(',')[0]}: {theirs * 1000:.0f} ms)"
            targets.append(Target(text, f"{mine * 1000:.0f} ms", mine <= theirs))
    return targets


def _headline(found: Found) -> str:
    parts = []
    for way, places in found.items():
        times = " / ".join(f"{places[share].seconds * 1000:.0f}" for share in SHARES)
        parts.append(f"{way}: {times} ms")
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
