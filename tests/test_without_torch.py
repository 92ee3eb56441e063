"""Where torch is not installed, a sentence names what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import write_parquet

NO_TORCH = "import sys\nsys.modules['torch'] = None\nimport headrace\n"
"""As if it were not there: every import of it is a ModuleNotFoundError."""
TRIED = """
try:
    {code}
except headrace.HeadraceError as error:
    print(type(error).__name__, error)
"""


def said(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH + TRIED.format(code=code)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "code",
    [
        "headrace.load('parquet:in/*.parquet:ids', seq_len=8)",
        "headrace.load('lerobot:folder')",
        "headrace.TrueStreamingDataset",
        "headrace.StreamingLeRobotDataset",
        "from headrace import TrueStreamingDataset",
        "headrace.load('parquet:in/*.parquet').dataset",
    ],
)
def test_what_needs_torch_says_so(tmp_path: Path, code: str) -> None:
    write_parquet(tmp_path / "in", [[4]], row=lambda _, i: {"ids": [i]})
    text = said(code, tmp_path)
    assert text.startswith("SpecError ")
    assert "the package torch, which is not installed; pip install 'headrace[torch]'" in text


def test_rows_need_no_torch(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[4]], row=lambda _, i: {"ids": [i]})
    code = "print([batch['ids'] for batch in headrace.load('parquet:in/*.parquet', shuffle=False)])"
    assert said(code, tmp_path) == "[[[0], [1], [2], [3]]]\n"
