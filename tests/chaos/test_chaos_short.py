"""Chaos in its short form: five runs of rows, tokens, pictures and robot frames that are killed, harmed and resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SEED = os.environ.get("CHAOS_SEED", "11")


@pytest.mark.timeout(900)
def test_runs_that_are_killed_and_harmed_at_random_give_every_row_exactly_once(tmp_path: Path) -> None:
    report, script = tmp_path / "report.json", Path(__file__).with_name("chaos.py")
    command = [sys.executable, str(script), "--short", "--seed", SEED, "--folder", str(tmp_path / "chaos")]
    done = subprocess.run([*command, "--report", str(report)], capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    totals = json.loads(report.read_text())["totals"]
    assert totals["problems"] == 0
    assert totals["runs"] == 5
    assert totals["kills"] >= 30
    assert totals["resumes"] >= 10
    assert totals["topology changes"] >= 5
    assert totals["with torch workers"] >= 3
