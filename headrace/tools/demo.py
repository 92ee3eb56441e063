"""`headrace demo`: train from a local Hub, be killed in the middle, go on, and show that it made no difference."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headrace.errors import HeadraceError, SpecError
from headrace.tools.child import Child, Tail


def demo(
    steps: Annotated[int, typer.Option(min=40, help="Training steps; they make a bit more than one pass.")] = 200,
    kills: Annotated[int, typer.Option(min=1, max=5, help="How often the run is killed.")] = 1,
    plot: Annotated[Path, typer.Option(help="The picture of the two loss curves.")] = Path("headrace-demo.png"),
    rows: Annotated[bool, typer.Option("--rows", help="Only read rows, 48,000 of them; needs no torch.")] = False,
) -> None:
    """Train on a corpus from a local Hub, kill the run with SIGKILL in the middle, resume, compare to the last bit."""
    if steps < 40 * kills:
        raise SpecError(f"--steps {steps} is too short to be killed {kills} times; give {40 * kills} or more")
    console = Console()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as name:
        if rows:
            is_exact = play_rows(Path(name), kills, console)
        else:
            _check_packages()
            from headrace.tools.demo_train import play_training

            is_exact = play_training(Path(name), steps, kills, plot, os.environ, console)
    if not is_exact:
        raise typer.Exit(1)


def _check_packages() -> None:
    missing = [name for name in ("torch", "tokenizers", "PIL") if find_spec(name) is None]
    if missing:
        raise HeadraceError(
            f"the demo trains a model and draws its losses, and {', '.join(missing)} cannot be imported; "
            f"pip install 'headrace[demo]', or see headrace demo --rows"
        )


# --- only rows


@dataclass(frozen=True)
class Ledger:
    """What was read, as the run's own checkpoints count it: rows after a checkpoint that was gone back to do not."""

    expected: int
    seen: int
    lost: int
    repeated: int
    replayed: int
    same_again: bool
    """Whether the rows that were read again after a kill came in the same order."""

    @classmethod
    def read(cls, path: Path, expected: set[str]) -> Ledger:
        at: dict[int, str] = {}
        replayed, same = 0, True
        for line in path.read_text().splitlines():
            number, _, uid = line.partition(" ")
            if int(number) in at:
                replayed += 1
                same = same and at[int(number)] == uid
            at[int(number)] = uid
        counts = Counter(at.values())
        repeated = sum(n - 1 for n in counts.values())
        lost = len(expected - set(counts))
        return cls(len(expected), len(at), lost, repeated, replayed, same)

    @property
    def is_exact(self) -> bool:
        return not self.lost and not self.repeated and self.seen == self.expected and self.same_again


def play_rows(folder: Path, kills: int, console: Console, shards: int = 24, per_shard: int = 2000) -> bool:
    """Read all rows, killed `kills` times; whether each came once."""
    from headrace.testing import LocalHub, write_parquet

    console.print(f"A corpus of {shards * per_shard:,} rows in {shards} parquet shards, on a Hub on this machine.")
    expected: set[str] = set()
    for i in track(range(shards), "writing the corpus", console=console, transient=True):
        name = f"train-{i:05d}-of-{shards:05d}.parquet"
        write_parquet(folder / "repo" / "data", [[500] * (per_shard // 500) + [per_shard % 500]], name=name)
        expected.update(f"{name}:{r}" for r in range(per_shard))
    command = [sys.executable, "-m", "headrace.tools.demo_run", "hf:demo/corpus:train:text", str(folder)]
    firsts = []
    with LocalHub() as hub:
        hub.push("demo/corpus", folder / "repo")
        for run in range(kills + 1):
            goal = (run + 1) * len(expected) // (kills + 1) if run < kills else None
            look, started = _Count(folder / "ledger.txt"), time.time()
            with Child(command, {**os.environ, **hub.env()}, folder / "said.txt") as child:
                if child.follow(look, goal):
                    console.print(f"Killed with SIGKILL after {look():,} rows. Starting again from its last state.")
            first = json.loads((folder / "first.json").read_bytes())
            firsts.append((first["seconds"], first["at"] - started))
    ledger = Ledger.read(folder / "ledger.txt", expected)
    _show(console, ledger, firsts)
    return ledger.is_exact


class _Count:
    """How many rows a ledger has; they count from 0."""

    def __init__(self, ledger: Path) -> None:
        self._tail = Tail(ledger)
        self._rows = 0

    def __call__(self) -> int:
        for line in self._tail:
            self._rows = int(line.split(b" ")[0]) + 1
        return self._rows


def _show(console: Console, ledger: Ledger, firsts: list[tuple[float, float]]) -> None:
    table = Table("ledger", "", title="Every row exactly once" if ledger.is_exact else "The ledger does not balance")
    table.add_row("rows expected", f"{ledger.expected:,}")
    table.add_row("rows seen", f"{ledger.seen:,}")
    table.add_row("lost", f"{ledger.lost:,}")
    table.add_row("repeated", f"{ledger.repeated:,}")
    table.add_row(
        "read again after a kill, in the same order", f"{ledger.replayed:,} ({'yes' if ledger.same_again else 'NO'})"
    )
    for seconds, since_kill in firsts[1:]:
        table.add_row("from open to the first row after the kill", f"{seconds * 1000:.0f} ms")
        table.add_row("... and from the kill, with process start and imports", f"{since_kill:.2f} s")
    console.print(table)
