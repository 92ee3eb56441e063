"""The ways in: `rows`, and `hf_load_dataset_sharded` for those who come from there."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import index as index_of
from pathlib import Path
from typing import Any, SupportsIndex

from headrace.address import Row
from headrace.catalog.shard import Shard
from headrace.catalog.source import Source, one_source
from headrace.errors import SpecError, StateError, shown
from headrace.fetch.plan import Rules, choose_coordinate
from headrace.fetch.pool import PoolSize
from headrace.fetch.resume import Reading
from headrace.fetch.rows import Rows
from headrace.fetch.sources import open_source
from headrace.run import Run
from headrace.stage import Stage, State

log = logging.getLogger("headrace")

SHUFFLED_WINDOW = 2
"""Shards whose row groups a shuffle mixes; with the pool's size it decides how well (benchmarks/shuffle.py)."""


def rows(
    spec: str | Source,
    *,
    shuffle: bool = False,
    seed: int = 0,
    pool_size: int = PoolSize.chunks,
    lane: int = 0,
    lanes: int = 1,
    epoch: int = 0,
    cache_dir: str | Path | None = None,
    columns: Sequence[str] | None = None,
) -> Rows:
    """One pass over a source, as a stage: each item has `.address` and `.data` (a dict).

    `pool_size` is the number of chunks that a shuffle draws from. `lane` of `lanes` reads its own share. `columns`:
    only these are read; all by default.
    """
    source = one_source(spec)
    seed, lane, epoch = _whole("seed", seed), _whole("lane", lane), _whole("epoch", epoch)
    pool_size, lanes = _whole("pool_size", pool_size, 1), _whole("lanes", lanes, 1)
    if lane >= lanes:
        raise SpecError(f"lane={lane} of lanes={lanes}: lanes are numbered from 0")
    run = Run.here(cache_dir=cache_dir)
    index = open_source(source, run)
    only = _check_columns(columns)
    text = source.kind in ("txt", "jsonl")
    reading = Reading(
        rules=Rules(
            seed=seed,
            source=str(source),
            shuffle=shuffle,
            shard_window=SHUFFLED_WINDOW if shuffle else 1,
            coordinate="rows" if text else choose_coordinate(index.num_shards, lanes),
        ),
        size=PoolSize(chunks=pool_size if shuffle else 1),
        lane=lane,
        lanes=lanes,
        epoch=epoch,
        columns=only,
        counted=only,
    )
    if reading.rules.coordinate == "rows" and not index.num_rows:
        log.warning("%s has no rows, in %d shards", shown(source), index.num_shards)
    index.check_known_columns(only)
    return Rows(index, run, reading)


def list_shards(spec: str | Source, *, cache_dir: str | Path | None = None) -> Sequence[Shard]:
    """The shards of a source in order, as `ShardPrefetcher` takes them."""
    import numpy as np

    listing = open_source(one_source(spec), Run.here(cache_dir=cache_dir)).listing
    return listing.ordered(np.arange(len(listing)))


def hf_load_dataset_sharded(
    repo_id: str,
    split: str = "train",
    name: str | None = None,
    *,
    revision: str | None = None,
    columns: Sequence[str] | None = None,
    data_files: Sequence[str] | None = None,
    in_shard_offset: int = 0,
    cache_dir: str | Path | None = None,
) -> PlainRows:
    """The rows of a Hub dataset as plain dicts, in file order: the current shard on disk, the next one on its way.

    `data_files` and `in_shard_offset` are what `resolve_resume_plan` gives: begin at the first of these files, after so
    many of its rows.
    """
    source = Source(kind="hf", path=repo_id, config=name, split=split, revision=revision)
    found = rows(source, columns=columns, cache_dir=cache_dir)
    in_shard_offset = _whole("in_shard_offset", in_shard_offset)
    try:
        if data_files is not None:
            found.load_state_dict({"sample_index": _rows_before(found, list(data_files)) + in_shard_offset})
        elif in_shard_offset:
            found.load_state_dict({"sample_index": in_shard_offset})
    except BaseException:
        found.close()
        raise
    return PlainRows(found)


class PlainRows(Stage[dict[str, Any]]):
    """Rows without their addresses."""

    def __init__(self, parent: Stage[Row]) -> None:
        self.parent = parent

    def __next__(self) -> dict[str, Any]:
        return next(self.parent).data

    def state_dict(self) -> State:
        return self.parent.state_dict()

    def load_state_dict(self, state: State, **trust: Any) -> None:
        """`trust`: what the parent takes, as `Rows.load_state_dict` does."""
        self.parent.load_state_dict(state, **trust)

    def close(self) -> None:
        self.parent.close()


def _rows_before(found: Rows, data_files: list[str]) -> int:
    """The rows of the shards before the first of `data_files`, which must be the rest of the listing."""
    listing = found.index.listing
    total = len(listing)
    first = total - len(data_files)
    if first < 0 or [listing.paths[i] for i in range(first, total)] != data_files:
        raise StateError(
            f"data_files: the last {len(data_files)} of the {total} shards of {listing.source} are expected, in order, "
            f"as resolve_resume_plan gives them"
        )
    return sum(found.index.shard_count(i) for i in range(first))


def _check_columns(columns: Sequence[str] | None) -> list[str] | None:
    if columns is None:
        return None
    if isinstance(columns, str) or not columns or not all(isinstance(c, str) for c in columns):
        raise SpecError(f"columns={shown(columns)!r}: a list of column names, for example ['text', 'url']")
    return list(dict.fromkeys(columns))


def _whole(name: str, value: SupportsIndex, least: int = 0) -> int:
    """A plain int, also out of numpy's."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or (number := index_of(value)) < least:
        raise SpecError(f"{name}={shown(value)!r}: a whole number from {least} on is expected")
    return number
