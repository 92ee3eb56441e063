"""Shows that the tests can fail: plants each bug of `planted.py` in a copy of the tree and runs its tests there.

    python tests/trust/plant.py [name ...] [--jobs N]

Ends with 1 where a bug survives, or where the tests are red without one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from planted import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("headrace", "tests", "examples", "pyproject.toml", "README.md", "CHANGELOG.md")
TESTS_FAILED = 1
"""pytest's status for it; a file that cannot even be imported has another."""
SECONDS = 120.0


@dataclass(frozen=True)
class Outcome:
    status: int | None
    """None: it took too long, which is as red as can be."""
    seconds: float
    last: str


def copy_tree(target: Path) -> None:
    junk = shutil.ignore_patterns("__pycache__", "*.pyc", ".hypothesis")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=junk)
        elif source.exists():
            shutil.copy2(source, target / name)


def planted(bug: Bug, tree: Path) -> None:
    for file, old, new in bug.edits:
        path = tree / file
        text = path.read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{bug.name}: {file} has {text.count(old)} times the text {old!r}, not once")
        text = text.replace(old, new)
        compile(text, str(path), "exec")
        path.write_text(text)


def run_tests(tests: tuple[str, ...], tree: Path) -> Outcome:
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, cwd=tree, env=env, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(process.pid, 9)
            process.wait()
        said.seek(0)
        lines = [line.strip() for line in said if line.strip()]
    last = next((line for line in reversed(lines) if re.search(r"\d (passed|failed|error)", line)), "")
    return Outcome(status, time.monotonic() - began, last)


def judged(bug: Bug) -> tuple[Bug, Outcome]:
    with tempfile.TemporaryDirectory(prefix="headrace-planted-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        planted(bug, tree)
        return bug, run_tests(bug.tests, tree)


def are_green(bugs: list[Bug]) -> bool:
    """Whether the chosen tests pass on a copy without a bug."""
    with tempfile.TemporaryDirectory(prefix="headrace-sound-") as folder:
        copy_tree(Path(folder))
        tests = tuple(dict.fromkeys(test for bug in bugs for test in bug.tests))
        outcome = run_tests(tests, Path(folder))
    print(
        f"{'without a bug':32} {'green' if outcome.status == 0 else 'RED':9} {outcome.seconds:5.1f} s  {outcome.last}"
    )
    return outcome.status == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these bugs")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    unknown = set(given.names) - {bug.name for bug in BUGS}
    if unknown:
        parser.error(f"unknown: {sorted(unknown)}; there are {[bug.name for bug in BUGS]}")
    bugs = [bug for bug in BUGS if not given.names or bug.name in given.names]
    if not are_green(bugs):
        return 1
    survived = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for bug, outcome in pool.map(judged, bugs):
            caught = outcome.status is None or (outcome.status == TESTS_FAILED and "failed" in outcome.last)
            survived += not caught
            print(
                f"{bug.name:32} {'caught' if caught else 'SURVIVED':9} {outcome.seconds:5.1f} s  {outcome.last}",
                flush=True,
            )
    print(f"{len(bugs) - survived} of {len(bugs)} planted bugs were caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
