"""The runner of the tests: what is not known to be good is bad."""

from __future__ import annotations

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
    "one cannot be read": ("import nothing_of_this_name\n", 1, "2 error, 1 passed"),
}


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
