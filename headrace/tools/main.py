"""The command line: one file per command."""

from __future__ import annotations

import logging
import sys

import typer

from headrace.errors import HeadraceError
from headrace.tools.datasets import datasets
from headrace.tools.demo import demo
from headrace.tools.describe import describe
from headrace.tools.rows import rows
from headrace.tools.synth import synth
from headrace.tools.verify import verify

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Feeds training runs from raw data where it lies.")
app.command()(datasets)
app.command()(demo)
app.command()(rows)
app.command()(synth)
app.command()(describe)
app.command()(verify)


def run() -> None:
    """Errors of ours are told in a sentence; everything else is a bug and shows its traceback.

    What Headrace logs goes to stderr, from INFO on: among others, where a source goes on after a resume.
    """
    logging.basicConfig(format="%(message)s")
    logging.getLogger("headrace").setLevel(logging.INFO)
    try:
        app()
    except HeadraceError as error:
        typer.echo(f"headrace: {error}", err=True)
        sys.exit(2)
