"""The runner of the tests: what is not known to be good is bad."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import side_by_side

GOOD = "def test_good(): pass\n"
ALONE = "import pytest\n@pytest.mark.alone\ndef test_alone(): pass\n"
TIMED = ALONE.replace("alone", "timed")
CASES = {
    "all pass": (GOOD, 0, "3 passed"),
    "one fails": (GOOD + "def test_bad(): assert 0\n", 1, "1 failed, 3 passed"),
    "one that is alone fails": (ALONE.replace("pass", "assert 0"), 1, "1 failed, 2 passed"),
    "one that is timed fails": (TIMED.replace("pass", "assert 0"), 1, "1 failed, 2 passed"),
    "one ends the process as if all were well": ("import os\ndef test_ends(): os._exit(0)\n", 1, "2 passed"),
    "one crashes": ("import os\ndef test_crashes(): os.abort()\n", 1, "2 passed"),
    "one cannot be read": ("import nothing_of_this_name\n", 1, "1 error, 2 passed"),
}


def test_lots_take_about_as_long_as_each_other_and_the_longest_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {f"test_{i:03}.py": float(i % 7) for i in range(200)} | {"test_100.py": 90.0}
    monkeypatch.setattr(side_by_side, "DURATIONS", tmp_path / "durations.json")
    side_by_side.DURATIONS.write_text(json.dumps({"plain": seconds, "timed": {"test_101.py": 90.0}}))
    files = [side_by_side.TESTS / name for name in sorted(seconds)]
    stage = side_by_side.STAGES[0]
    lots = side_by_side.lots_of([*files, side_by_side.TESTS / "test_new.py"], stage)
    assert sorted(file.name for lot in lots for file in lot) == [*sorted(seconds), "test_new.py"]
    sums = [sum(seconds.get(file.name, 0) for file in lot) for lot in lots]
    assert "test_100.py" in [file.name for file in lots[0]]
    assert max(sums[1:]) < 1.5 * sum(seconds.values()) / stage.lots
    side_by_side.DURATIONS.unlink()
    assert [len(lot) for lot in side_by_side.lots_of(files, stage)] in ([8] * 16 + [9] * 8, [9] * 8 + [8] * 16)


def run_tests(folder: Path, files: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """Files of tests, by name, with a copy of the runner."""
    tests = folder / "tests"
    tests.mkdir()
    shutil.copy(side_by_side.__file__, tests)
    (folder / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\nmarkers = ["alone: as ours", "timed: as ours"]\n'
    )
    for name, content in files.items():
        (tests / f"{name}.py").write_text(content)
    command = [sys.executable, str(tests / "side_by_side.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_seconds_of_files_are_recorded_on_request(tmp_path: Path) -> None:
    slow = "import time\ndef test_slow(): time.sleep(0.4)\n"
    alone = ALONE.replace("pass", "__import__('time').sleep(0.4)")
    assert run_tests(tmp_path, {"test_a": slow, "test_b": alone}, "--record").returncode == 0
    seconds = json.loads((tmp_path / "tests" / "durations.json").read_text())
    assert {stage: [*files] for stage, files in seconds.items()} == {"plain": ["test_a.py"], "alone": ["test_b.py"]}
    assert all(0.4 <= took < 4 for files in seconds.values() for took in files.values())


NOTING = """
import pathlib, time, pytest
def note(stage):
    began, file = time.monotonic(), pathlib.Path(__file__)
    time.sleep(0.3)
    file.with_name(f"{stage} of {file.stem}.txt").write_text(f"{began} {time.monotonic()}")
def test_plain(): note("plain")
@pytest.mark.timed
def test_timed(): note("timed")
@pytest.mark.alone
def test_alone(): note("alone")
"""


def test_those_that_are_timed_come_after_the_others_and_those_that_are_alone_last(tmp_path: Path) -> None:
    done = run_tests(tmp_path, dict.fromkeys(("test_a", "test_b", "test_c"), NOTING))
    assert "9 passed" in done.stdout.splitlines()[-1]
    times = {path.stem: [float(time) for time in path.read_text().split()] for path in tmp_path.rglob("*.txt")}
    plain, timed, alone = (
        sorted(times[f"{stage} of test_{name}"] for name in "abc") for stage in ("plain", "timed", "alone")
    )
    assert max(end for _, end in plain) < timed[0][0]
    assert max(end for _, end in timed) < alone[0][0]
    assert all(end < begin for (_, end), (begin, _) in pairwise(alone))


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_good_only_if_each_lot_ran_to_its_end_and_was_good(tmp_path: Path, case: str) -> None:
    text, code, said = CASES[case]
    done = run_tests(tmp_path, {"test_a": GOOD, "test_b": ALONE, "test_c": text})
    assert done.returncode == code
    assert said in done.stdout.splitlines()[-1]
