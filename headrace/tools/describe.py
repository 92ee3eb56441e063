"""`headrace describe RECIPE`: a recipe drawn as a tree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def describe(
    recipe: Annotated[Path, typer.Argument(help="A recipe in YAML.")],
    count: Annotated[bool, typer.Option("--count", help="Count the rows of every source.")] = False,
    cache_dir: Annotated[Path | None, typer.Option(help="Where indices are kept; default: data")] = None,
) -> None:
    """Draw a recipe: what comes out, and the sources it comes from with their shares."""
    from headrace.recipe import Recipe

    found = Recipe.from_yaml(recipe)
    rows: dict[str, int] = {}
    if count:
        from headrace.fetch.sources import open_source
        from headrace.run import Run

        run = Run.here(cache_dir=cache_dir, rank=0, world_size=1)
        rows = {part.name: open_source(part.source, run).num_rows for part in found.parts}
    typer.echo(found.describe(rows))
