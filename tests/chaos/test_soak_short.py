"""A soak run in its short form: a job that keeps nothing passes, and a planted leak is found where it is."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.alone

LEAK_MB = 8
"""Of each batch: several times the limit also on a machine that is five times slower."""
MOST_SLOPE = 200


def soak(folder: Path, *more: str) -> tuple[int, dict[str, Any], str]:
    """Its exit status, its report and what it printed. The limits leave room for what fills in the first seconds."""
    command = [sys.executable, str(Path(__file__).with_name("soak.py")), "--small", "--minutes", "0.25"]
    command += ["--pause", "0.2", "--every", "0.4", "--most-slope", str(MOST_SLOPE), "--most-growth", "100"]
    command += ["--folder", str(folder / "run"), "--report", str(folder / "soak.json"), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, json.loads((folder / "soak.json").read_text()), done.stdout


LEAKS = {"nothing": (), **{where: ("--leak", where, "--leak-mb", str(LEAK_MB)) for where in ("trainer", "worker")}}


@pytest.fixture(scope="module")
def soaks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, dict[str, Any], str]]:
    """By what leaks. They mostly wait, so they run at the same time."""
    with ThreadPoolExecutor(len(LEAKS)) as pool:
        begun = {
            name: pool.submit(soak, tmp_path_factory.mktemp(name), "--jobs", "rows-stay", *leak)
            for name, leak in LEAKS.items()
        }
        return {name: run.result() for name, run in begun.items()}


@pytest.mark.timeout(300)
def test_a_job_that_keeps_nothing_passes(soaks: dict[str, tuple[int, dict[str, Any], str]]) -> None:
    code, report, said = soaks["nothing"]
    assert report["problems"] == []
    assert code == 0, said
    assert [line["process"] for line in report["lines"]] == ["trainer", "worker 1", "worker 2"]
    for line in report["lines"]:
        assert all(line[name]["last"] > 0 for name in ("rss", "pss", "uss", "malloc used", "files", "threads"))
    assert report["jobs"][0]["steps"] > 5


@pytest.mark.timeout(300)
@pytest.mark.parametrize("where", ["trainer", "worker"])
def test_a_leak_is_found_in_the_process_that_has_it(
    soaks: dict[str, tuple[int, dict[str, Any], str]], where: str
) -> None:
    code, report, said = soaks[where]
    assert code == 1
    assert f"PROBLEM: rows-stay: {where}" in said
    assert any(
        problem.startswith(f"rows-stay: {where}") and "rss rises by" in problem for problem in report["problems"]
    )
    for line in report["lines"]:
        assert (line["rss"]["slope"] > MOST_SLOPE) == line["process"].startswith(where), line
