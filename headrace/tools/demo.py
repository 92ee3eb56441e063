"""`headrace demo`: stream from a local Hub, be killed in the middle, go on, and show that every row was seen once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headrace.errors import HeadraceError

DEADLINE_SECONDS = 120.0


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


def demo(
    shards: Annotated[int, typer.Option(help="Parquet shards of the generated corpus.")] = 24,
    rows: Annotated[int, typer.Option(help="Rows of each shard.")] = 2000,
    kills: Annotated[int, typer.Option(help="How often the run is killed.")] = 1,
) -> None:
    """Stream a generated corpus from a local Hub, kill the run with SIGKILL in the middle, resume, show the ledger."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as name:
        ledger, firsts = _play(Path(name), shards, rows, kills, console)
    _show(console, ledger, firsts)
    if not ledger.is_exact:
        raise typer.Exit(1)


def _play(
    folder: Path, shards: int, rows: int, kills: int, console: Console
) -> tuple[Ledger, list[tuple[float, float]]]:
    from headrace.testing import LocalHub, write_parquet

    console.print(f"A corpus of {shards * rows:,} rows in {shards} parquet shards, on a Hub on this machine.")
    expected: set[str] = set()
    for i in track(range(shards), "writing the corpus", console=console, transient=True):
        name = f"train-{i:05d}-of-{shards:05d}.parquet"
        write_parquet(folder / "repo" / "data", [[500] * (rows // 500) + [rows % 500]], name=name)
        expected.update(f"{name}:{r}" for r in range(rows))
    with LocalHub() as hub:
        hub.push("demo/corpus", folder / "repo")
        firsts = []
        for kill in range(kills + 1):
            goal = (kill + 1) * len(expected) // (kills + 1) if kill < kills else None
            killed_at = time.time()
            seconds = _one_run(folder, hub.env(), goal)
            first = json.loads((folder / "first.json").read_bytes())
            firsts.append((seconds, first["at"] - killed_at))
            if goal is not None:
                console.print(
                    f"Killed with SIGKILL after about {goal:,} rows. Starting again from its last saved state."
                )
    return Ledger.read(folder / "ledger.txt", expected), firsts


def _one_run(folder: Path, env: dict[str, str], goal: int | None) -> float:
    """Run the child until the ledger has `goal` rows and kill it, or to its end. Seconds from open to first row."""
    command = [sys.executable, "-m", "headrace.tools.demo_run", "hf:demo/corpus:train:text", str(folder)]
    child = subprocess.Popen(command, env={**os.environ, **env}, stderr=subprocess.PIPE)
    ledger, deadline = folder / "ledger.txt", time.monotonic() + DEADLINE_SECONDS
    try:
        while child.poll() is None and time.monotonic() < deadline:
            if goal is not None and _rows(ledger) >= goal:
                child.send_signal(signal.SIGKILL)
                break
            time.sleep(0.005)
    finally:
        if goal is None and child.poll() is None:
            child.kill()
        _, errors = child.communicate()
    if child.returncode not in ((-signal.SIGKILL,) if goal is not None else (0,)):
        raise HeadraceError(
            f"the demo's child ended with {child.returncode}: {errors.decode(errors='replace')[-2000:]}"
        )
    return float(json.loads((folder / "first.json").read_bytes())["seconds"])


def _rows(ledger: Path) -> int:
    """The number on the last whole line, which counts from 0."""
    try:
        with ledger.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 400))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return 0
    return int(lines[-1].split(b" ")[0]) + 1 if lines else 0


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
