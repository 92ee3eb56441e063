"""Every test: files in lots, each lot in a process of its own. Three lots at a time; then, two at a time, the tests
that are marked `timed` because they have limits of seconds; and last, with the machine to themselves, those that are
marked `alone` because they measure it.

    python tests/side_by_side.py [--record] [options of pytest]

Lots take about the same time, going by `durations.json`; with `--record` that file is written again at the end. A lot
that fails is shown whole. For some of the tests, use pytest itself: `python -m pytest tests/test_rows.py`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from compileall import compile_dir
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean

TESTS = Path(__file__).parent
LONGEST = 1200
"""Seconds for a lot: one that hangs, its tests done, is a failure."""
NO_TESTS = 5
"""What pytest returns where none was chosen."""
SLOWEST = 25
"""Tests that are named at the end with the seconds they took."""
DURATIONS = TESTS / "durations.json"
"""Seconds of each file in each stage, on two processors."""
RECORD = "--record"
_DURATION = re.compile(r"^([\d.]+)s (?:call|setup|teardown) +(\S.*)\n?", re.MULTILINE)
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error|errors|deselected|xfailed|xpassed|warnings?)\b")


@dataclass(frozen=True)
class Stage:
    """Tests that run at the same time of a whole run."""

    name: str
    chosen: str
    """By their marks, as pytest's `-m` takes it."""
    lots: int
    at_once: int = 2
    """Lots, on two processors or more: tests also wait, for processes and servers that they started."""

    def has(self, file: Path) -> bool:
        return self.name == "plain" or f"mark.{self.name}" in file.read_text()


STAGES = (
    Stage("plain", "not timed and not alone", lots=24, at_once=3),
    Stage("timed", "timed and not alone", lots=4),
    Stage("alone", "alone", lots=1, at_once=1),
)


def main(options: list[str]) -> int:
    return run(sorted(TESTS.rglob("test_*.py")), options)


def run(files: list[Path], options: list[str]) -> int:
    stages = {stage: lots_of([file for file in files if stage.has(file)], stage) for stage in STAGES}
    record, options = RECORD in options, [option for option in options if option != RECORD]
    # Tests start thousands of processes. Each would compile the package again; and some count system calls meanwhile.
    compile_dir(TESTS.parent / "headrace", quiet=1)
    tally = Tally(sum(map(len, stages.values())))
    for stage, lots in stages.items():
        _run(stage, deque([*map(str, lot), *options] for lot in lots), tally)
    if record:
        DURATIONS.write_text(json.dumps(tally.seconds(), indent=1, sort_keys=True) + "\n")
    return tally.judge()


def lots_of(files: list[Path], stage: Stage) -> list[list[Path]]:
    """Lots of about as many seconds, the longest first. Neighbours stay together: a process loads what they share once.
    A file that is not known takes as long as others do."""
    known = json.loads(DURATIONS.read_text()).get(stage.name, {}) if DURATIONS.exists() else {}
    usual = fmean(known.values()) if known else 1.0
    seconds = [known.get(str(file.relative_to(TESTS)), usual) + 0.01 for file in files]
    lots: dict[int, list[Path]] = {}
    sums: Counter[int] = Counter()
    for file, took, end in zip(files, seconds, accumulate(seconds), strict=True):
        lot = int((end - took / 2) / sum(seconds) * stage.lots)
        lots.setdefault(lot, []).append(file)
        sums[lot] += round(took * 100)
    return [lots[lot] for lot, _ in sums.most_common()]


def _run(stage: Stage, waiting: deque[list[str]], tally: Tally) -> None:
    def work() -> None:
        with suppress(IndexError):
            while True:
                tally.run(stage, waiting.popleft())

    at_once = stage.at_once if len(os.sched_getaffinity(0)) > 1 else 1
    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        waiting.clear()  # an interrupt ends the lots that run, and begins no more


class Tally:
    def __init__(self, lots: int) -> None:
        self._lots, self._begun = lots, time.monotonic()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._slow: list[tuple[float, str]] = []
        self._seconds: dict[str, dict[str, float]] = {}
        self._good = self._done = 0

    def run(self, stage: Stage, told: list[str]) -> None:
        begun = time.monotonic()
        with tempfile.TemporaryFile("w+", errors="replace") as file:
            options = ["--quiet", "-rs", "--durations=0", "--durations-min=0.01", "-m", stage.chosen]
            command = [sys.executable, "-m", "pytest", *options, *told]
            try:
                done = subprocess.run(
                    command,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    cwd=TESTS.parent,
                    timeout=LONGEST,
                    check=False,
                    env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                )
                code = done.returncode
            except subprocess.TimeoutExpired:
                code = -1
            file.seek(0)
            text = file.read()
        last = text.rstrip().rpartition("\n")[2].strip("= ")
        counts = {what: int(count) for count, what in _COUNT.findall(last)}
        is_good = code in (0, NO_TESTS) and bool(counts)
        with self._lock:
            self._counts.update(counts)
            durations = [(float(seconds), test) for seconds, test in _DURATION.findall(text)]
            self._slow = sorted([*self._slow, *durations], reverse=True)[:SLOWEST]
            took = self._seconds.setdefault(stage.name, {})
            for seconds, test in durations:
                file = test.partition("::")[0].removeprefix(f"{TESTS.name}/")
                took[file] = took.get(file, 0.0) + seconds
            self._done += 1
            self._good += is_good
            print(f"\n--- lot {self._done} of {self._lots}, {time.monotonic() - begun:.0f} s, exit {code}: {last}")
            skipped = "\n".join(line for line in text.splitlines() if line.startswith("SKIPPED"))
            print(skipped if is_good else _DURATION.sub("", text), flush=True)

    def seconds(self) -> dict[str, dict[str, float]]:
        """Of each stage by the files that take any, which are told by their paths below the tests."""
        return {name: {file: round(took, 1) for file, took in files.items()} for name, files in self._seconds.items()}

    def judge(self) -> int:
        """Good if each lot was run to its end, and was good."""
        del self._counts["deselected"]
        print(
            f"\n--- the slowest {len(self._slow)}",
            *(f"{seconds:6.1f} s  {test}" for seconds, test in self._slow),
            sep="\n",
        )
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(self._counts.items()))
        print(f"\n=== {counts} in {time.monotonic() - self._begun:.0f} s; {self._good} of {self._lots} lots are good")
        return 0 if self._good == self._lots else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
