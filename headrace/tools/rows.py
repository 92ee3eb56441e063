"""`headrace rows SPEC`: look at the first rows of a source; or `--state FILE --step N`: at those of a step."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.errors import SpecError, shown
from headrace.tools.states import read_state

if TYPE_CHECKING:
    from headrace.address import Address
    from headrace.recipe import Recipe
    from headrace.run import Run
    from headrace.serve.peek import Peek, Progress
    from headrace.serve.pipeline import Pipeline
    from headrace.serve.state import Saved
    from headrace.stage import State

SECONDS_BETWEEN_LINES = 5.0


def rows(
    spec: Annotated[str, typer.Argument(help="For example hf:org/name:train, parquet:data/*.parquet, txt:a.txt")] = "",
    count: Annotated[int, typer.Option("--count", "-n", help="How many rows.")] = 5,
    skip: Annotated[int, typer.Option(help="Begin after so many rows (found by seeking).")] = 0,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="In the order of a shuffled pass.")] = False,
    seed: Annotated[int, typer.Option(help="Of the shuffle.")] = 0,
    cache_dir: Annotated[str | None, typer.Option(help="Where shards and indices are kept; default: data")] = None,
    state: Annotated[Path | None, typer.Option(help="A file with json.dumps(loader.state_dict()).")] = None,
    step: Annotated[
        str | None, typer.Option(help="With --state: the number of a micro-batch, or +k from there; default: +0")
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="With --state: a recipe in YAML, not the state's own.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="With --state: where the tokenizer lies now.")] = None,
) -> None:
    """Print rows of a source with their addresses, or the addresses of a training step; one line of JSON each."""
    if (state is None) == (not spec):
        raise SpecError("headrace rows: a source (hf:org/name:train) or --state FILE is expected, one of them")
    if state is not None:
        _show_step(read_state(state), step or "+0", recipe, tokenizer, cache_dir)
        return
    for option, value in (("--step", step), ("--recipe", recipe), ("--tokenizer", tokenizer)):
        if value is not None:
            raise SpecError(
                f"headrace rows {shown(spec)} {option}: steps are of a run, which a source alone is not; give "
                f"--state FILE of the run instead of the source, or --skip K to begin after K rows of the source"
            )
    from headrace.fetch.doors import rows as open_rows

    with open_rows(spec, shuffle=shuffle, seed=seed, cache_dir=cache_dir) as stage:
        if skip:
            stage.load_state_dict({"sample_index": skip})
        for row in islice(stage, count):
            data = {
                name: shown(value, 300) if isinstance(value, str | bytes) else value for name, value in row.data.items()
            }
            typer.echo(json.dumps({"shard": row.address.shard, "row": row.address.row, "data": data}, default=shown))


# --- a step of a run


def _show_step(state: State, step: str, recipe: Path | None, tokenizer: str | None, cache_dir: str | None) -> None:
    from headrace.recipe import Recipe
    from headrace.run import Run
    from headrace.serve.peek import peek
    from headrace.serve.state import Saved

    if not re.fullmatch(r"\+?[0-9]{1,18}", step):
        raise SpecError(f"--step {shown(step)!r}: the number of a micro-batch, or +k for the k-th after the state")
    saved = Saved.from_state(state)
    found = saved.read_recipe() if recipe is None else Recipe.from_yaml(recipe)
    m = int(step) + (saved.m if step.startswith("+") else 0)
    run = Run.here(cache_dir=cache_dir, rank=0, world_size=1)
    if m < saved.m:
        typer.echo(f"micro-batch {m} is before the state, at m={saved.m}: it is looked for from the start", err=True)
    with _progress() as progress:
        made = peek(saved, _opened(found, run, tokenizer, saved), m, progress)
    _print(made)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on the terminal; where there is none, a line now and then."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if console.is_terminal:
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("micro-batches", total=None)
            yield lambda done, total: bar.update(task, completed=done, total=max(done, total))
        return
    told = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            typer.echo(f"{done:,} of {total:,} micro-batches", err=True)

    yield tell


def _opened(recipe: Recipe, run: Run, tokenizer: str | None, saved: Saved) -> Pipeline:
    from headrace.make.tokenize import open_tokenizer
    from headrace.serve.pipeline import Pipeline

    described = recipe.tokenize
    if described is None and tokenizer is not None:
        raise SpecError("--tokenizer: the recipe of this state does not tokenize; leave it out")
    found = None if described is None else open_tokenizer(tokenizer or described.tokenizer, described)
    return Pipeline(recipe, run, found, kept=saved.kept, size=saved.size)


def _print(found: Peek) -> None:
    if found.is_filler:
        typer.echo(
            f"micro-batch {found.m}: lane {found.lane} is over before it; with several ranks its slot is filled up, "
            f"with one it is passed by",
            err=True,
        )
    for address in found.rows:
        typer.echo(json.dumps({"m": found.m, **_address(address)}))
    for number, spans in enumerate(found.sequences):
        for span in spans:
            place = {"m": found.m, "sequence": number, **_address(span.address)}
            typer.echo(json.dumps({**place, "sample": span.sample, "tokens": [span.start, span.stop]}))


def _address(address: Address) -> dict[str, str | int]:
    return address._asdict()
