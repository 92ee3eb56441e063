"""Shows that the tests can fail: plants each bug of `planted_all.py` in a copy of the tree and runs its tests there.

    python tests/trust/plant.py [name ...] [--jobs N] [--report FILE]

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

sys.path.append(str(Path(__file__).resolve().parents[1]))

from package_hash import package_hash
from planted import Bug
from planted_all import BUGS

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("headrace", "tests", "examples", "pyproject.toml", "README.md", "CHANGELOG.md")
TESTS_FAILED = 1
"""pytest's status for it; a file that cannot even be imported has another."""
SECONDS = 120.0
"""Of tests that are expected to hang. Others may take as long as a busy machine needs."""
PATIENCE_SECONDS = 900.0


@dataclass(frozen=True)
class Outcome:
    status: int | None
    """None: it took too long."""
    seconds: float
    last: str
    failed: str = ""
    """The first test that failed."""


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


def run_tests(tests: tuple[str, ...], tree: Path, patience: float) -> Outcome:
    began = time.monotonic()
    options = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", "--hypothesis-profile", "first failure")
    command = [sys.executable, "-m", "pytest", *options, *tests]
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, cwd=tree, env=env, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(patience)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(process.pid, 9)
            process.wait()
        said.seek(0)
        lines = [line.strip() for line in said if line.strip()]
    last = next((line for line in reversed(lines) if re.search(r"\d (passed|failed|error)", line)), "")
    if any("+ Timeout +" in line for line in lines):  # pytest-timeout, which then ends the process
        status = None
    failed = next((line.split(" ", 1)[1].partition(" - ")[0] for line in lines if line.startswith("FAILED ")), "")
    return Outcome(status, time.monotonic() - began, last, failed)


def judged(bug: Bug) -> tuple[Bug, Outcome]:
    with tempfile.TemporaryDirectory(prefix="headrace-planted-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        planted(bug, tree)
        return bug, run_tests(bug.tests, tree, SECONDS if bug.hangs else PATIENCE_SECONDS)


def is_caught(bug: Bug, outcome: Outcome) -> bool:
    """Red is red; tests that take too long are so only where that is expected, and else the machine may be slow."""
    if outcome.status is None:
        return bug.hangs
    return outcome.status == TESTS_FAILED and "failed" in outcome.last


def are_green(bugs: list[Bug]) -> bool:
    """Whether the chosen tests pass on a copy without a bug."""
    with tempfile.TemporaryDirectory(prefix="headrace-sound-") as folder:
        copy_tree(Path(folder))
        tests = tuple(dict.fromkeys(test for bug in bugs for test in bug.tests))
        outcome = run_tests(tests, Path(folder), PATIENCE_SECONDS * len(bugs))
    is_green = outcome.status == 0
    said = outcome.failed if outcome.failed else outcome.last
    print(f"{'without a bug':45} {'green' if is_green else 'RED':9} {outcome.seconds:5.1f} s  {said}", flush=True)
    return is_green


def page(code: str, found: list[tuple[Bug, Outcome]]) -> str:
    """What came of all of them, as a page."""
    caught = [is_caught(bug, outcome) for bug, outcome in found]
    lines = [
        "# Planted bugs, and the tests that caught them",
        "",
        "Written by `make mutants`, which writes one bug at a time into a copy of the tree. Each must turn a test red.",
        "",
        f"{sum(caught)} of {len(found)} planted bugs were caught, with the package whose hash (`git rev-parse "
        f"HEAD:headrace`) begins with {code}.",
        "",
        "| bug | file | caught by |",
        "|---|---|---|",
    ]
    for (bug, outcome), is_red in zip(found, caught, strict=True):
        by = f"`{outcome.failed.replace('|', '/')}`" if outcome.failed else "it hangs, as it should"
        lines.append(f"| {bug.name} | `{bug.edits[0].file}` | {by if is_red else '**nothing**'} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these bugs")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only-bugs", action="store_true", help="do not run the tests without a bug first")
    parser.add_argument("--report", type=Path, help="a markdown file")
    given = parser.parse_args()
    unknown = set(given.names) - {bug.name for bug in BUGS}
    if unknown:
        parser.error(f"unknown: {sorted(unknown)}; there are {[bug.name for bug in BUGS]}")
    bugs = [bug for bug in BUGS if not given.names or bug.name in given.names]
    if not given.only_bugs and not are_green(bugs):
        return 1
    survived, found, code = 0, [], package_hash() if given.report else ""
    with ThreadPoolExecutor(given.jobs) as pool:
        for bug, outcome in pool.map(judged, bugs):
            caught = is_caught(bug, outcome)
            found.append((bug, outcome))
            survived += not caught
            said = outcome.failed if caught and outcome.failed else outcome.last or "it took too long"
            print(f"{bug.name:45} {'caught' if caught else 'SURVIVED':9} {outcome.seconds:5.1f} s  {said}", flush=True)
    if given.report:
        given.report.write_text(page(code, found))
    print(f"{len(bugs) - survived} of {len(bugs)} planted bugs were caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
