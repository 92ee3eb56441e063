"""The runner of the tests: what is not known to be good is bad."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import side_by_side

GOOD = "def test_good(): pass\n"
ALONE = "import pytest\n@pytest.mark.alone\ndef test_alone(): pass\n"
CASES = {
    "all pass": (GOOD, 0, "3 passed"),
    "one fails": (GOOD + "def test_bad(): assert 0\n", 1, "1 failed, 3 passed"),
    "one that is alone fails": (ALONE.replace("pass", "assert 0"), 1, "1 failed, 2 passed"),
    "one ends the process as if all were well": ("import os\ndef test_ends(): os._exit(0)\n", 1, "2 passed"),
    "one crashes": ("import os\ndef test_crashes(): os.abort()\n", 1, "2 passed"),
    "one cannot be read": ("import nothing_of_this_name\n", 1, "1 error, 2 passed"),
}


def test_lots_take_about_as_long_as_each_other_and_the_longest_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {f"test_{i:03}.py": float(i % 7) for i in range(200)} | {"test_100.py": 90.0}
    monkeypatch.setattr(side_by_side, "DURATIONS", tmp_path / "durations.json")
    side_by_side.DURATIONS.write_text(json.dumps(seconds))
    files = [side_by_side.TESTS / name for name in sorted(seconds)]
    lots = side_by_side.lots_of([*files, side_by_side.TESTS / "test_new.py"])
    assert sorted(file.name for lot in lots for file in lot) == [*sorted(seconds), "test_new.py"]
    sums = [sum(seconds.get(file.name, 0) for file in lot) for lot in lots]
    assert "test_100.py" in [file.name for file in lots[0]]
    assert max(sums[1:]) < 1.5 * sum(seconds.values()) / side_by_side.LOTS
    side_by_side.DURATIONS.unlink()
    assert [len(lot) for lot in side_by_side.lots_of(files)] == [len(files) // side_by_side.LOTS] * side_by_side.LOTS


def test_seconds_of_files_are_recorded_on_request(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    shutil.copy(side_by_side.__file__, folder)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["alone: as ours"]\n')
    slow = "import time\ndef test_slow(): time.sleep(0.4)\n"
    (folder / "test_a.py").write_text(slow)
    (folder / "test_b.py").write_text(ALONE.replace("pass", "__import__('time').sleep(0.4)"))
    subprocess.run([sys.executable, str(folder / "side_by_side.py"), "--record"], timeout=60, check=True)
    seconds = json.loads((folder / "durations.json").read_text())
    assert seconds.keys() == {"test_a.py"}
    assert 0.4 <= seconds["test_a.py"] < 4


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_good_only_if_each_lot_ran_to_its_end_and_was_good(tmp_path: Path, case: str) -> None:
    text, code, said = CASES[case]
    folder = tmp_path / "tests"
    folder.mkdir()
    shutil.copy(side_by_side.__file__, folder)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["alone: as ours"]\n')
    for name, content in {"test_a": GOOD, "test_b": ALONE, "test_c": text}.items():
        (folder / f"{name}.py").write_text(content)
    command = [sys.executable, str(folder / "side_by_side.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert said in done.stdout.splitlines()[-1]
