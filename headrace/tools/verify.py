"""`headrace verify STATE`: whether a saved state can have come about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.errors import HeadraceError, shown
from headrace.tools.states import read_states

if TYPE_CHECKING:
    from headrace.make.tokenize import Tokenizer
    from headrace.recipe import Recipe
    from headrace.serve.verify import Progress, Report

MOST_LINES = 40
"""Of lanes that are as they should be; those that are not are all shown."""


def verify(
    state: Annotated[
        list[Path], typer.Argument(help="A file with json.dumps(loader.state_dict()); or the parts of all ranks.")
    ],
    recipe: Annotated[Path | None, typer.Option(help="A recipe in YAML, instead of the one in the state.")] = None,
    cache_dir: Annotated[Path | None, typer.Option(help="Where indices are kept; default: data")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Where the tokenizer of the recipe lies now.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Also check a state that was edited on purpose.")] = False,
    trust_moved: Annotated[
        bool, typer.Option("--trust-moved", help="Files that cannot be compared with those of the state are the same.")
    ] = False,
    trust_changed: Annotated[
        list[str] | None, typer.Option(help="A shard that may have other contents in as many rows; may be repeated.")
    ] = None,
) -> None:
    """Replay the draws of a state and say whether each source of each lane can be there.

    Rows are read only where a packer holds a part of them, to see that it can.

    The sources that the recipe names are opened and counted: give --recipe for a state from someone you do not trust.
    """
    from headrace.catalog.identity import Trust
    from headrace.recipe import Recipe
    from headrace.run import Run
    from headrace.serve.state import Saved
    from headrace.serve.verify import verify as verify_state

    found = read_states(state)
    given = None if recipe is None else Recipe.from_yaml(recipe)
    opened, why = _tokenizer(given or Saved.from_state(found, force=force).read_recipe(), tokenizer)
    run = Run.here(cache_dir=cache_dir, rank=0, world_size=1)
    trust = Trust.given(trust_moved, trust_changed or [])
    with _bar() as progress:
        report = verify_state(
            found, recipe=given, run=run, progress=progress, tokenizer=opened, force=force, trust=trust
        )
    _show(report, Console(), f"m={found['m']}, {found['L']} lanes")
    if report.unchecked:
        Console(stderr=True).print(Text(f"{report.unchecked}{why}"))
    if not report.is_reachable:
        raise typer.Exit(1)


def _tokenizer(recipe: Recipe, where: str | None) -> tuple[Tokenizer | None, str]:
    """The tokenizer of a recipe; or none, and why."""
    from headrace.make.tokenize import open_tokenizer

    if recipe.tokenize is None:
        return None, ""
    try:
        return open_tokenizer(where or recipe.tokenize.tokenizer, recipe.tokenize), ""
    except HeadraceError as error:
        if where is not None:
            raise
        return None, f" ({shown(error, 300)}; --tokenizer says where it lies now)"


@contextmanager
def _bar() -> Iterator[Progress]:
    """On the terminal, where there is one; it is gone when done."""
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None  # rich before 15 writes an empty line for a bar that is switched off
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("replaying draws", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=max(done, total))


def _show(report: Report, console: Console, what: str) -> None:
    title = "This state is reachable" if report.is_reachable else "This state is NOT reachable"
    table = Table("source", "lane", "pass", "rows drawn", "", title=f"{title} ({what})")
    wrong = [check for check in report.checks if check.problems]
    fine = [check for check in report.checks if not check.problems]
    for check in [*wrong, *fine[:MOST_LINES]]:
        words = [shown(check.source), shown(check.lane), shown(check.epoch), shown(check.draws)]
        told = "\n".join(check.problems) or "ok"
        # As plain text: square brackets in a name are no markup.
        table.add_row(*map(Text, words), Text(told, style="red" if check.problems else "green"))
    if len(fine) > MOST_LINES:
        table.add_row("…", f"{len(fine) - MOST_LINES} more", "", "", Text("ok", style="green"))
    console.print(table)
    for problem in report.problems:
        console.print(Text(problem, style="red"))
