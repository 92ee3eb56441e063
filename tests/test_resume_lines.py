"""Where a source goes on is logged on resume; the command line and one line of Python show it."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.testing import write_parquet, write_txt

LINE = "resume: spec=txt:{path}:text sample_row=3 shard={path} offset=3"

SCRIPT = """
import sys
{line}
import headrace
loader = headrace.load("txt:{path}", batch_size=1, shuffle=False, cache_dir="{path}.data")
loader.load_state_dict({{"sample_index": 3}})
next(iter(loader))
"""


def said(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_command_line_shows_them(tmp_path: Path) -> None:
    (path,) = write_txt(tmp_path, [9])
    words = ("rows", f"txt:{path}", "--skip", "3", "-n", "1", "--cache-dir", str(tmp_path / "data"))
    assert LINE.format(path=path) in said("-m", "headrace", *words).splitlines()


def test_one_line_of_python_shows_them_and_without_it_nothing_is_said(tmp_path: Path) -> None:
    (path,) = write_txt(tmp_path, [9])
    assert said("-c", SCRIPT.format(path=path, line="")) == ""
    shown = said("-c", SCRIPT.format(path=path, line="import logging; logging.basicConfig(level=logging.INFO)"))
    assert f"INFO:headrace:{LINE.format(path=path)}" in shown.splitlines()


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("door", ["loader", "rows"])
def test_the_name_of_a_file_is_escaped_in_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, door: str, shuffle: bool
) -> None:
    (plain,) = write_parquet(tmp_path / "in", [[9]])
    Path(plain).rename(tmp_path / "in/a\x1b[31mred\x1b]0;title\x07.parquet")
    spec = f"parquet:{tmp_path}/in/*.parquet:text"
    with caplog.at_level(logging.INFO, "headrace"):
        if door == "rows":
            with headrace.rows(spec, shuffle=shuffle, cache_dir=tmp_path / "data") as stage:
                next(stage)
                stage.load_state_dict(stage.state_dict())
        else:
            with headrace.load(spec, batch_size=1, shuffle=shuffle, cache_dir=tmp_path / "data") as loader:
                next(iter(loader))
                loader.load_state_dict(loader.state_dict())
                next(iter(loader))
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("resume:")]
    assert "/in/a\\x1b[31mred\\x1b]0;title\\x07.parquet offset=" in lines[0]
    assert all(line.isprintable() for line in lines)
