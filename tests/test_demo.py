from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

from headrace.testing import write_parquet
from headrace.tools.demo import Ledger


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *words], cwd=cwd, capture_output=True, text=True, timeout=100, check=False
    )


def test_the_demo_is_killed_resumes_and_its_ledger_balances(tmp_path: Path) -> None:
    done = run("demo", "--shards", "6", "--rows", "1500", "--kills", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every row exactly once" in done.stdout
    assert done.stdout.count("Killed with SIGKILL") == 2
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_finds_what_was_lost_and_what_came_twice(tmp_path: Path) -> None:
    path = tmp_path / "ledger.txt"
    path.write_text("0 a\n1 b\n2 c\n2 c\n3 a\n")
    ledger = Ledger.read(path, {"a", "b", "c", "d"})
    assert (ledger.seen, ledger.lost, ledger.repeated, ledger.replayed, ledger.same_again) == (4, 1, 1, 1, True)
    assert not ledger.is_exact
    path.write_text("0 a\n1 b\n1 c\n")
    assert not Ledger.read(path, {"a", "c"}).same_again


def test_rows_can_be_looked_at_from_the_command_line(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[10], [10]])
    done = run("rows", "parquet:in/*.parquet", "-n", "2", "--skip", "9", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(f["shard"][-22:], f["row"]) for f in found] == [
        ("00000-of-00002.parquet", 9),
        ("00001-of-00002.parquet", 0),
    ]


def test_a_wrong_command_gets_a_sentence_not_a_traceback(tmp_path: Path) -> None:
    done = run("rows", "parquet:nothing/*.parquet", cwd=tmp_path)
    assert done.returncode == 2
    assert "no file matches nothing/*.parquet" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_long_count_shows_a_bar_on_a_terminal_and_nothing_elsewhere(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[5]] * 12)
    shown = {}
    for terminal in (True, False):
        ours, theirs = pty.openpty()
        words = ["rows", "parquet:in/*.parquet", "-n", "1", "--cache-dir", str(tmp_path / str(terminal))]
        done = subprocess.run(
            [sys.executable, "-m", "headrace", *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=theirs if terminal else subprocess.PIPE,
            env={**os.environ, "TERM": "xterm"},
            timeout=60,
            check=True,
        )
        os.close(theirs)
        shown[terminal] = os.read(ours, 1 << 16) if terminal else done.stderr
        os.close(ours)
    assert b"reading footers" in shown[True]
    assert shown[False] == b""
