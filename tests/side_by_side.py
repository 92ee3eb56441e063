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
from pathlib import Path

TESTS = Path(__file__).parent
LOTS = 20
NO_TESTS = 5
"""What pytest returns where none was chosen."""
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error|errors|deselected|xfailed|xpassed|warnings?)\b")


def main(options: list[str]) -> int:
    # Tests that know their neighbours stay together: one process loads what they share once.
    files = sorted(TESTS.rglob("test_*.py"))
    lots = [files[i * len(files) // LOTS : (i + 1) * len(files) // LOTS] for i in range(LOTS)]
    both = Tally(len(lots) + 1)
    waiting = deque(enumerate(lots, 1))

    def work() -> None:
        while waiting:
            number, lot = waiting.popleft()
            both.run(number, ["-m", "not alone", *map(str, lot), *options])

    threads = [threading.Thread(target=work) for _ in range(min(2, len(os.sched_getaffinity(0))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    both.run(len(lots) + 1, ["-m", "alone", str(TESTS), *options])
    return both.judge()


class Tally:
    def __init__(self, lots: int) -> None:
        self._lots, self._begun = lots, time.monotonic()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._failed: list[int] = []

    def run(self, number: int, told: list[str]) -> None:
        begun = time.monotonic()
        with tempfile.TemporaryFile("w+", errors="replace") as file:
            command = [sys.executable, "-m", "pytest", "--quiet", "-rs", "--durations=3", *told]
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False, cwd=TESTS.parent)
            file.seek(0)
            text = file.read()
        last = text.rstrip().rpartition("\n")[2].strip("= ")
        with self._lock:
            self._counts.update({what: int(count) for count, what in _COUNT.findall(last)})
            is_bad = done.returncode not in (0, NO_TESTS)
            if is_bad:
                self._failed.append(number)
            print(f"\n--- lot {number} of {self._lots}, {time.monotonic() - begun:.0f} s: {last}")
            shown = text if is_bad else "\n".join(line for line in text.splitlines() if line.startswith("SKIPPED"))
            print(shown, flush=True) if shown else sys.stdout.flush()

    def judge(self) -> int:
        del self._counts["deselected"]
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(self._counts.items()))
        print(f"\n=== {counts} in {time.monotonic() - self._begun:.0f} s")
        if self._failed:
            print(f"=== failed: lots {sorted(self._failed)}, shown above")
        return 1 if self._failed or not self._counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
