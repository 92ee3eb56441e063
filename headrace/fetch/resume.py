"""From a checkpoint to a place in a source. Nothing is changed before everything in it was found to fit."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.catalog.hub import CONVERT_MARK
from headrace.catalog.identity import Identity, Trust
from headrace.catalog.index import Index
from headrace.catalog.recognise import Before, is_same, require_same
from headrace.catalog.source import FILES, Source, one_source
from headrace.errors import Changed, StateError, shown
from headrace.fetch.entries import listed_entries, require_entries, same_spec
from headrace.fetch.plan import Rules, choose_coordinate
from headrace.fetch.pool import MOST, PoolSize
from headrace.fetch.sources import open_source
from headrace.run import Run
from headrace.stage import State
from headrace.validate import as_int

log = logging.getLogger("headrace")

FORMAT = 1
NO_TRUST = Trust()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What of a source is read: one pass of one lane."""

    rules: Rules
    size: PoolSize
    lane: int = 0
    lanes: int = 1
    epoch: int = 0
    columns: list[str] | None = None
    counted: list[str] | None = None
    """The columns whose bytes the pool counts: those of the first start, so that other columns do not move a row."""


@dataclass(frozen=True)
class Place:
    """Where to go on: a pool's state, or so many rows from the start (which lie in `shard`, where that is known)."""

    state: State | None = None
    rows: int = 0
    shard: str | None = None


def restored(
    state: State, index: Index, reading: Reading, run: Run, trust: Trust = NO_TRUST
) -> tuple[Index, Reading, Place]:
    """What a checkpoint asks for: the source at its revision, read by its rules, from its place."""
    if not isinstance(state, dict):
        raise StateError(f"a state is a dict, this is {type(state).__name__}; nothing was changed")
    if "source" in state:
        return _from_full(state, index, reading, run, trust)
    if state.get("resume_state") is not None:
        place, entry = _from_offsets(state["resume_state"], index, reading, trust)
        if entry.get("revision") is not None and same_spec(entry.get("spec"), index.listing.source):
            told = {"spec": str(index.listing.source), "revision": entry["revision"]}
            index = _at_revision(index, told, run, trust)
        return index, reading, place
    if state.get("sample_index") is not None:
        rows = _whole("sample_index", state["sample_index"])
        return index, _in_its_epoch(state, reading), Place(rows=rows)
    nulls = [name for name in ("resume_state", "sample_index") if name in state]
    if nulls:
        raise StateError(
            f"the checkpoint has {nulls[0]}: null, so it does not say where to resume; nothing was changed"
        )
    keys = ", ".join(shown(k) for k in list(state)[:8]) or "nothing"
    raise StateError(f"the checkpoint has neither 'source' nor 'resume_state' nor 'sample_index' (it has {keys})")


def _in_its_epoch(state: State, reading: Reading) -> Reading:
    """The pass that a checkpoint is in, where it says and none was asked for: 0 is what `rows` begins with."""
    if state.get("epoch") is None:
        return reading
    epoch = _whole("epoch", state["epoch"])
    if epoch >= MOST:
        raise StateError(f"epoch: {shown(epoch)} is more than any run has counted; nothing was changed")
    if epoch != reading.epoch and reading.epoch:
        raise StateError(
            f"epoch: the checkpoint is in epoch {epoch}, and rows() was opened with epoch={reading.epoch}; open it "
            f"with epoch={epoch}, or without; nothing was changed"
        )
    return replace(reading, epoch=epoch)


def _from_full(state: State, index: Index, reading: Reading, run: Run, trust: Trust) -> tuple[Index, Reading, Place]:
    if state.get("format") != FORMAT:
        raise StateError(
            f"the state has format {shown(state.get('format'))}, this version reads {FORMAT}; "
            f"use the version of headrace that wrote it, or a newer one"
        )
    reading = _in_its_epoch(state, reading)
    given = {
        "epoch": reading.epoch,
        "seed": reading.rules.seed,
        "shuffle": reading.rules.shuffle,
        "lane": reading.lane,
        "lanes": reading.lanes,
    }
    for name, value in given.items():
        if state.get(name) != value:
            raise StateError(f"{name}: the state was made with {shown(state.get(name))!r}, here it is {shown(value)!r}")
    rules = replace(
        reading.rules,
        source=_name(state),
        chunk_rows=_whole("chunk_rows", state.get("chunk_rows"), 1),
        chunk_bytes=_whole("chunk_bytes", state.get("chunk_bytes"), 1),
        shard_window=_whole("shard_window", state.get("shard_window"), 1),
        coordinate=_coordinate(state.get("coordinate")),
    )
    size = PoolSize(chunks=_whole("K", state.get("K"), 1), nbytes=_whole("pool_bytes", state.get("pool_bytes")))
    counted = state.get("counted")
    if counted is not None and not (isinstance(counted, list) and all(isinstance(c, str) for c in counted)):
        raise StateError(f"counted: a list of columns or null, not {shown(counted)!r}")
    if not isinstance(state["source"], dict):
        raise StateError(f"source: this is not the state of a source: {shown(state['source'])!r}; nothing was changed")
    index = _at_revision(index, state, run, trust)
    if state["source"].get("e") != reading.epoch:
        raise StateError(f"source.e: {shown(state['source'].get('e'))!r} in a state of epoch {reading.epoch}")
    found = replace(reading, rules=rules, size=size, counted=counted)
    return index, found, Place(state=state["source"])


def _coordinate(value: Any) -> Any:
    if value not in ("rows", "windows"):
        raise StateError(f"coordinate: 'rows' or 'windows', not {shown(value)!r}")
    return value


def _name(state: State) -> str:
    """What keys the draws: the name that the source had when it was first opened."""
    name = state.get("name", state.get("spec"))
    if not isinstance(name, str) or not isinstance(state.get("spec"), str):
        raise StateError(f"spec: the state has {shown(state.get('spec'))!r}, not a source; nothing was changed")
    return name


def _at_revision(index: Index, state: State, run: Run, trust: Trust) -> Index:
    """The source as it was when the state was made: a branch may have moved on, the run does not. Files may have."""
    listing, source, revision, spec = index.listing, index.listing.source, state.get("revision"), state["spec"]
    if not isinstance(revision, str):
        raise StateError(f"revision: the state has {shown(revision)!r}, not a revision")
    if source.kind in FILES:
        try:
            identity = None if state.get("identity") is None else Identity.from_text(state["identity"])
        except ValueError as error:
            raise StateError(f"{shown(error)}; nothing was changed") from error
        before = Before(spec=spec, revision=revision, identity=identity)
        if spec != str(source) and not same_spec(spec, source) and not trust.moved and not is_same(index, before):
            raise StateError(
                f"spec: the state was made with {shown(spec)!r}, here it is {shown(source)!r}, which is not known to "
                f"have the same rows; if it has, load the state with trust_moved=True"
            )
        require_same(index, before, trust)
        return index
    if not same_spec(spec, source):
        raise StateError(f"spec: the state was made with {shown(spec)!r}, here it is {shown(str(source))!r}")
    if revision == listing.revision:
        return index
    if source.revision is not None:
        raise Changed(
            f"revision: the state was made on {shown(revision)}, but {shown(source.revision)} "
            f"({listing.revision}) is asked for here; leave the revision out to go on with the state's"
        )
    if not re.fullmatch(rf"({CONVERT_MARK})?[0-9a-f]{{40}}", revision):
        raise StateError(f"revision: {shown(revision)!r} is not a commit")
    return open_source(source, run, revision)


def _from_offsets(value: Any, index: Index, reading: Reading, trust: Trust) -> tuple[Place, State]:
    """The place that the entry of this source says, and the entry."""
    spec = str(index.listing.source)
    (told,) = require_entries([index.listing.source], listed_entries(value), trust)
    entry = told
    if reading.rules.shuffle or entry.get("shuffled"):
        raise StateError(
            "resume_state alone cannot place a shuffled source: the checkpoint lacks 'source' (which chunks are half "
            "read); resume from the whole state_dict()"
        )
    lanes = entry.get("per_lane")
    if reading.lanes == 1 and lanes is not None:
        raise StateError("resume_state: per_lane: it was written by one of several lanes; open rows() with these lanes")
    if reading.lanes > 1:
        own = {"lane": reading.lane, "lanes": reading.lanes}
        parts = lanes if isinstance(lanes, list) else []
        found = [e for e in parts if isinstance(e, dict) and {k: e.get(k) for k in own} == own]
        if len(found) != 1:
            raise StateError(
                f"resume_state: per_lane has {len(found)} entries for lane {reading.lane} of {reading.lanes}"
            )
        entry = found[0]
    shard, pending = entry.get("shard"), entry.get("pending")
    if isinstance(pending, list) and pending:
        log.warning(
            "resume: %s: row_offset %s: %d rows before it were not delivered whole (pending), and are not read here",
            shown(spec, 1000),
            shown(entry.get("row_offset")),
            len({piece[0] for piece in pending if isinstance(piece, list) and piece}),
        )
    rows = _whole("row_offset", entry.get("row_offset"))
    moved = trust.moved or not same_spec(told.get("spec"), index.listing.source)  # then the shard has another path
    return Place(rows=rows, shard=shard if isinstance(shard, str) and not moved else None), told


def _whole(name: str, value: Any, least: int = 0) -> int:
    found = as_int(value)
    if found is None or found < least:
        raise StateError(
            f"{name}: a whole number from {least} on is expected, not {shown(value)!r}; nothing was changed"
        )
    return found


def resolve_resume_plan(
    spec: str | Source, row_offset: int, *, cache_dir: str | None = None
) -> tuple[list[str], int, str]:
    """Where row `row_offset` of a source lies: (this shard and the later ones, row inside the shard, shard label).

    At the very end of the source: ([], 0, "").
    """
    index = open_source(one_source(spec), Run.here(cache_dir=cache_dir))
    rows = _whole("row_offset", row_offset)
    return _locate(index, rows)


def _locate(index: Index, row_offset: int) -> tuple[list[str], int, str]:
    listing, before = index.listing, 0
    if index.is_text or choose_coordinate(index.num_shards, 1) == "rows":
        index.complete()
    for number in range(index.num_shards):
        # One footer after the other: a large source need not be read to its end.
        here = index.shard_count(number)
        if row_offset < before + here:
            paths: Sequence[str] = listing.paths
            return [paths[i] for i in range(number, len(paths))], row_offset - before, listing.label(number)
        before += here
    if row_offset == before:
        return [], 0, ""
    raise StateError(f"row_offset {row_offset} is beyond the {before} rows of {listing.source}; did the data change?")
