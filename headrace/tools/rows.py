"""`headrace rows SPEC`: look at the first rows of a source."""

from __future__ import annotations

import json
from itertools import islice
from typing import Annotated

import typer

from headrace.errors import shown


def rows(
    spec: Annotated[str, typer.Argument(help="For example hf:org/name:train, parquet:data/*.parquet, txt:a.txt")],
    count: Annotated[int, typer.Option("--count", "-n", help="How many rows.")] = 5,
    skip: Annotated[int, typer.Option(help="Begin after so many rows (found by seeking).")] = 0,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="In the order of a shuffled pass.")] = False,
    seed: Annotated[int, typer.Option(help="Of the shuffle.")] = 0,
    cache_dir: Annotated[str | None, typer.Option(help="Where shards and indices are kept; default: data")] = None,
) -> None:
    """Print rows of a source with their addresses, one line of JSON each."""
    from headrace.fetch.doors import rows as open_rows

    with open_rows(spec, shuffle=shuffle, seed=seed, cache_dir=cache_dir) as stage:
        if skip:
            stage.load_state_dict({"sample_index": skip})
        for row in islice(stage, count):
            data = {
                name: shown(value, 300) if isinstance(value, str | bytes) else value for name, value in row.data.items()
            }
            typer.echo(json.dumps({"shard": row.address.shard, "row": row.address.row, "data": data}, default=shown))
