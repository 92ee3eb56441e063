"""The demo that trains: one run is left alone, one is killed and resumed, and the two are compared."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headrace.tools.child import Child, Tail

SHARDS = 6
SAVE_EVERY = 20
ROWS_PER_STEP = 12
"""The run then ends a third into the second pass, so that every row of the first has been seen."""

Tokens = dict[tuple[str, int], int]
"""How many tokens a row has, by shard and row."""


@dataclass(frozen=True)
class Run:
    """What a run's log says. Of a step that was run twice, before a kill and after it, the second counts."""

    records: list[dict[str, Any]]
    """As they were written."""

    @classmethod
    def read(cls, log: Path) -> Run:
        return cls([json.loads(line) for line in log.read_text().splitlines()])

    @property
    def committed(self) -> dict[int, dict[str, Any]]:
        return {record["step"]: record for record in self.records}

    @property
    def losses(self) -> list[float]:
        return [float.fromhex(record["loss"]) for _, record in sorted(self.committed.items())]

    @property
    def restarts(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """For each restart: the last record before it, and the first after it."""
        return [(a, b) for a, b in pairwise(self.records) if b["step"] <= a["step"]]


@dataclass(frozen=True)
class Ledger:
    """Tokens delivered against tokens that are there."""

    rows: int
    rows_lost: int
    tokens: int
    tokens_lost: int
    """Of the first pass."""
    tokens_twice: int
    """In any pass."""
    steps: int
    steps_same: int
    """Steps with the batch and, to the last bit, the loss of the run that was left alone."""
    steps_again: int
    same_again: bool
    """Whether steps that were run again after a kill had the same batches and losses again."""

    @classmethod
    def of(cls, run: Run, alone: Run, expected: Tokens) -> Ledger:
        seen: dict[tuple[int, str, int], list[tuple[int, int]]] = defaultdict(list)
        for record in run.committed.values():
            for epoch, shard, row, _, start, stop in record["spans"]:
                seen[epoch, Path(shard).name, row].append((start, stop))
        lost = {key: count - _covered(seen[0, *key]) for key, count in expected.items()}
        first = {record["step"]: record for record in reversed(run.records)}
        return cls(
            rows=len(expected),
            rows_lost=sum(n > 0 for n in lost.values()),
            tokens=sum(expected.values()),
            tokens_lost=sum(lost.values()),
            tokens_twice=sum(sum(b - a for a, b in spans) - _covered(spans) for spans in seen.values()),
            steps=len(alone.committed),
            steps_same=sum(_is_same(run.committed.get(n), record) for n, record in alone.committed.items()),
            steps_again=len(run.records) - len(first),
            same_again=all(_is_same(first[record["step"]], record) for record in run.records),
        )

    @property
    def is_exact(self) -> bool:
        nothing_lost = not self.tokens_lost and not self.tokens_twice
        return nothing_lost and self.steps_same == self.steps and self.same_again


def _covered(spans: list[tuple[int, int]]) -> int:
    return len({token for start, stop in spans for token in range(start, stop)})


def _is_same(a: dict[str, Any] | None, b: dict[str, Any]) -> bool:
    return a is not None and (a["loss"], a["spans"]) == (b["loss"], b["spans"])


def play_training(
    folder: Path, steps: int, kills: int, plot: Path, environ: Mapping[str, str], console: Console
) -> bool:
    """Train twice, at the same time, and show how the two compare; whether all was exact."""
    from headrace.testing import LocalHub
    from headrace.tools.curves import draw

    expected = make_corpus(folder, steps * ROWS_PER_STEP // SHARDS)
    console.print(
        f"A corpus of {len(expected):,} documents, {sum(expected.values()):,} tokens, in {SHARDS} parquet shards, on a "
        f"Hub on this machine.\nTwo runs side by side train a small GPT on it for {steps} steps: one is left alone, "
        f"one is killed in the middle."
    )
    with LocalHub() as hub:
        hub.push("demo/corpus", folder / "repo")
        killed_at = _train_both(folder, steps, kills, {**environ, **hub.env()}, console)
    alone, run = Run.read(folder / "alone" / "log.jsonl"), Run.read(folder / "killed" / "log.jsonl")
    ledger = Ledger.of(run, alone, expected)
    _show(console, ledger, run, killed_at)
    draw(plot, alone.losses, run.losses, [(a["step"], b["step"] - 1) for a, b in run.restarts])
    console.print(f"The two loss curves, one on the other: {plot}")
    return ledger.is_exact


def make_corpus(folder: Path, per_shard: int) -> Tokens:
    """The shards in `repo/data`, a tokenizer for them in `tokenizer`."""
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer

    from headrace.testing.corpus import write_corpus
    from headrace.testing.tokenizers import write_tokenizer

    paths = write_corpus(folder / "repo" / "data", SHARDS, per_shard)
    texts = {path.name: pq.read_table(path, columns=["text"])["text"].to_pylist() for path in paths}
    write_tokenizer(folder / "tokenizer", 512, texts=[text for shard in texts.values() for text in shard])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    return {
        (name, row): len(encoded.ids) + 1  # and the token that ends it
        for name, shard in texts.items()
        for row, encoded in enumerate(tokenizer.encode_batch(shard))
    }


def _train_both(folder: Path, steps: int, kills: int, env: Mapping[str, str], console: Console) -> list[float]:
    """Run the two side by side; when the one was killed."""
    killed_at = []
    with ExitStack() as stack:
        bars = stack.enter_context(Progress(console=console, transient=True))
        alone, killed = (_Watch(folder / name / "log.jsonl", bars, name, steps) for name in ("alone", "killed"))
        other = stack.enter_context(_start(folder, "alone", steps, env))
        for run in range(kills + 1):
            # half way between two checkpoints, so that some steps have to be run again
            goal = (run + 1) * steps // (kills + 1) // SAVE_EVERY * SAVE_EVERY + SAVE_EVERY // 2
            with _start(folder, "killed", steps, env) as child:
                if child.follow(lambda: (alone(), killed())[1], goal if run < kills else None):
                    killed_at.append(time.time())
                    console.print(f"Killed with SIGKILL at step {killed.restart()}. Starting it again with --resume.")
        other.follow(alone)
    return killed_at


class _Watch:
    """How far a run is, on its bar."""

    def __init__(self, log: Path, bars: Progress, name: str, steps: int) -> None:
        self._tail, self._bars = Tail(log), bars
        self._task = bars.add_task(name, total=steps)
        self._step = 0

    def __call__(self) -> int:
        for line in self._tail:
            self._step = json.loads(line)["step"]
            self._bars.update(self._task, completed=self._step)
        return self._step

    def restart(self) -> int:
        """How far it came; from here on only what is new counts."""
        step, self._step = self(), 0
        return step


def _start(folder: Path, name: str, steps: int, env: Mapping[str, str]) -> Child:
    command = [sys.executable, "-m", "headrace.tools.train_text", "hf:demo/corpus:train:text", "--resume", "--spans"]
    command += ["--tokenizer", str(folder / "tokenizer"), "--out", str(folder / name)]
    command += ["--steps", str(steps), "--save-every", str(SAVE_EVERY)]
    return Child(command, {**env, "HEADRACE_CACHE_DIR": str(folder / name / "data")}, folder / f"{name}.txt")


def _show(console: Console, ledger: Ledger, run: Run, killed_at: list[float]) -> None:
    title = "Every token exactly once, every loss the same" if ledger.is_exact else "The ledger does not balance"
    table = Table("ledger", "", title=title)
    table.add_row("documents of the first pass", f"{ledger.rows - ledger.rows_lost:,} of {ledger.rows:,}")
    table.add_row("their tokens", f"{ledger.tokens - ledger.tokens_lost:,} of {ledger.tokens:,}")
    table.add_row("tokens seen twice in a pass", f"{ledger.tokens_twice:,}")
    table.add_row("steps with the batch and the loss of the run left alone", f"{ledger.steps_same} of {ledger.steps}")
    table.add_row(
        "steps run again after the kill, with the same batches and losses",
        f"{ledger.steps_again} ({'yes' if ledger.same_again else 'NO'})",
    )
    for at, (_, first) in zip(killed_at, run.restarts, strict=False):
        table.add_row("from open to the first batch after the kill", f"{first['wait_ms']:.0f} ms")
        arrived = first["at"] - (first["step_ms"] - first["wait_ms"]) / 1000
        table.add_row("... and from the kill, with process start and imports", f"{arrived - at:.2f} s")
    console.print(table)
