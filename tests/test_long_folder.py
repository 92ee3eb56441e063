"""A TMPDIR that is too long for the path of a socket."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from serving import write_rows

LOAD = """
import sys, tempfile
import headrace
if __name__ == "__main__":
    {before}
    options = dict(batch_size=8, num_workers=1, start_method="forkserver", cache_dir=sys.argv[2])
    with headrace.load(sys.argv[1], **options) as loader:
        print(sum(len(batch["uid"]) for batch in loader))
    assert len(tempfile.gettempdir()) > 100, "it is still the user's"
"""
EARLIER = "from multiprocessing import util; util.get_temp_dir()"


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    return f"parquet:{write_rows(tmp_path / 'corpus')}"


def load(tmp_path: Path, pattern: str, before: str) -> subprocess.CompletedProcess[str]:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    (tmp_path / "trainer.py").write_text(LOAD.format(before=before))
    command = [sys.executable, str(tmp_path / "trainer.py"), pattern, str(tmp_path / "data")]
    env = {**os.environ, "TMPDIR": str(long)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=110, check=False)


def test_workers_of_a_forkserver_start_under_a_long_tmpdir(tmp_path: Path, pattern: str) -> None:
    done = load(tmp_path, pattern, "pass")
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 0


def test_where_python_has_chosen_a_long_folder_before_it_is_said(tmp_path: Path, pattern: str) -> None:
    done = load(tmp_path, pattern, EARLIER)
    assert "SpecError: start_method='forkserver': its socket lies in " in done.stderr
    assert "set TMPDIR to a shorter path" in done.stderr
