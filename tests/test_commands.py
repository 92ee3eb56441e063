"""The command line explains itself, with every version of typer and click that may be installed."""

from __future__ import annotations

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headrace.tools.main import app

COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_every_command_has_a_page_of_help(words: list[str]) -> None:
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 0, done.output
    assert "Usage:" in done.output
    assert all(name in done.output for name in (COMMANDS if not words else ["--help"]))
