"""`headrace synth [KIND ...]`: write small made-up sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from headrace import synth as sets
from headrace.errors import SpecError, shown


def synth(
    kinds: Annotated[list[str] | None, typer.Argument(metavar="KIND", help=f"Of {', '.join(sets.KINDS)}.")] = None,
    out: Annotated[Path | None, typer.Option(help="A folder; default: where known:Synth-... looks.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of each set.")] = sets.ROWS,
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives other rows.")] = 0,
) -> None:
    """Write small sets of made-up rows, one JSONL file each: seeded, the same bytes everywhere, and right."""
    from headrace.run import Run

    wanted = list(dict.fromkeys(kinds or sets.KINDS))
    unknown = [kind for kind in wanted if kind not in sets.KINDS]
    if unknown:
        raise SpecError(f"there is no synthetic set {shown(unknown[0])!r}; there are {', '.join(sets.KINDS)}")
    folder = Run.here().cache_dir / "synth" if out is None else out
    console = Console(stderr=True)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("rows", total=rows * len(wanted))
        for kind in wanted:
            bar.update(task, description=kind)
            try:
                path = sets.write(kind, folder, rows, seed, on_row=lambda: bar.advance(task))
            except OSError as error:
                raise SpecError(
                    f"{shown(folder)}: {kind} cannot be written there: {error.strerror or error}"
                ) from error
            typer.echo(f"{path}  {rows:,} rows, {path.stat().st_size:,} bytes")
