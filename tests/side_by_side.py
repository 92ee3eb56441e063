"""Every test: files in lots, two lots at a time, each lot in a process of its own; then, with the machine to
themselves, the tests that are marked `alone` because they measure it.

    python tests/side_by_side.py [options of pytest]

A lot that fails is shown whole. For some of the tests, use pytest itself: `python -m pytest tests/test_rows.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).parent
LOTS = 20
LONGEST = 1200
"""Seconds for a lot: one that hangs, its tests done, is a failure."""
NO_TESTS = 5
"""What pytest returns where none was chosen."""
SLOWEST = 25
"""Tests that are named at the end with the seconds they took."""
_DURATION = re.compile(r"^([\d.]+)s (?:call|setup|teardown) +(\S.*)$", re.MULTILINE)
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error|errors|deselected|xfailed|xpassed|warnings?)\b")


def main(options: list[str]) -> int:
    return run(sorted(TESTS.rglob("test_*.py")), options)


def run(files: list[Path], options: list[str], *, alone: bool = True) -> int:
    """`alone`: also the tests that are to have the machine to themselves."""
    # Tests that know their neighbours stay together: one process loads what they share once.
    lots = [lot for i in range(LOTS) if (lot := files[i * len(files) // LOTS : (i + 1) * len(files) // LOTS])]
    waiting = deque(["-m", "not alone", *map(str, lot), *options] for lot in lots)
    with tempfile.TemporaryDirectory(prefix="headrace-bytecode-") as bytecode:
        return _run(waiting, Tally(len(lots) + alone, bytecode), options, alone=alone)


def _run(waiting: deque[list[str]], tally: Tally, options: list[str], *, alone: bool) -> int:
    def work() -> None:
        with suppress(IndexError):
            while True:
                tally.run(waiting.popleft())

    threads = [threading.Thread(target=work) for _ in range(min(2, len(os.sched_getaffinity(0))))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
        if alone:
            tally.run(["-m", "alone", str(TESTS), *options])
    finally:
        waiting.clear()  # an interrupt ends the lots that run, and begins no more
    return tally.judge()


class Tally:
    def __init__(self, lots: int, bytecode: str) -> None:
        self._lots, self._begun = lots, time.monotonic()
        # Tests start thousands of processes, and each would compile the package again.
        self._env = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        self._env.pop("PYTHONDONTWRITEBYTECODE", None)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._slow: list[tuple[float, str]] = []
        self._good = self._done = 0

    def run(self, told: list[str]) -> None:
        begun = time.monotonic()
        with tempfile.TemporaryFile("w+", errors="replace") as file:
            command = [sys.executable, "-m", "pytest", "--quiet", "-rs", f"--durations={SLOWEST}", *told]
            try:
                done = subprocess.run(
                    command,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    cwd=TESTS.parent,
                    timeout=LONGEST,
                    check=False,
                    env=self._env,
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
            self._slow += [(float(seconds), test) for seconds, test in _DURATION.findall(text)]
            self._done += 1
            self._good += is_good
            print(f"\n--- lot {self._done} of {self._lots}, {time.monotonic() - begun:.0f} s, exit {code}: {last}")
            skipped = "\n".join(line for line in text.splitlines() if line.startswith("SKIPPED"))
            print(skipped if is_good else text, flush=True)

    def judge(self) -> int:
        """Good if each lot was run to its end, and was good."""
        del self._counts["deselected"]
        slowest = sorted(self._slow, reverse=True)[:SLOWEST]
        print(
            f"\n--- the slowest {len(slowest)}", *(f"{seconds:6.1f} s  {test}" for seconds, test in slowest), sep="\n"
        )
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(self._counts.items()))
        print(f"\n=== {counts} in {time.monotonic() - self._begun:.0f} s; {self._good} of {self._lots} lots are good")
        return 0 if self._good == self._lots else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
