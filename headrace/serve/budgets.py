"""Whether the lanes of a process fit into its memory and its disk."""

from __future__ import annotations

import logging

from headrace.errors import SpecError, shown
from headrace.serve.pipeline import Pipeline

log = logging.getLogger("headrace")

MOST_TOLD = 8


def tell_layout(pipeline: Pipeline, lanes: int) -> None:
    """What is unusual about reading these sources with so many lanes."""
    for i, fact in enumerate(pipeline.facts):
        shards = pipeline.counts(i).num_shards
        if shards < lanes:
            log.info("%s: %d lanes share %d shards, each reads its part of them", shown(fact.name), lanes, shards)
    _tell_small_limits(pipeline, lanes)
    if pipeline.reads_by_range(lanes):
        needed = sum(source.held_bytes(1) for source in pipeline.sources)
        log.warning(
            "rows are read by range, which is slower, and no shard is fetched whole: those of %d lanes do not fit into "
            "%s bytes of disk (one of each source needs %s; see HEADRACE_CACHE_BYTES)",
            lanes,
            f"{pipeline.run.disk_bytes():,}",
            f"{needed:,}",
        )


def _tell_small_limits(pipeline: Pipeline, lanes: int) -> None:
    pack = pipeline.recipe.pack
    for part in pipeline.recipe.parts:
        if pack is not None and part.tokens is not None and lanes > 1 and part.tokens < lanes * pack.seq_len:
            log.warning(
                "%s: tokens=%d is shared by %d lanes, about %d each, which is less than one sequence of %d: a document "
                "is cut where a lane reaches its share; use fewer lanes or a higher limit for longer pieces",
                shown(part.name),
                part.tokens,
                lanes,
                part.tokens // lanes,
                pack.seq_len,
            )


def tell_skips(pipeline: Pipeline) -> None:
    """Rows on the skip list that are not there: a name that was mistyped skips nothing."""
    wrong = pipeline.unmatched_skips()
    if wrong and pipeline.run.rank == 0:
        log.warning(
            "skip.addresses: %d of %d match no row: %s%s; copy addresses from error messages or from loader.faults",
            len(wrong),
            len(pipeline.recipe.skip.addresses),
            ", ".join(wrong[:MOST_TOLD]),
            ", …" if len(wrong) > MOST_TOLD else "",
        )


def check_memory(pipeline: Pipeline, lanes: int, budget: int) -> None:
    """The pools of all lanes of a process must fit into memory."""
    need = lanes * sum(_pool_bytes(pipeline, i) for i in range(len(pipeline.recipe.parts)))
    if need > budget:
        raise SpecError(
            f"{lanes} lanes in one process, {len(pipeline.recipe.parts)} sources, pools of {pipeline.size.chunks} "
            f"chunks: about {need >> 20} MiB, and {budget >> 20} MiB are free for it (HEADRACE_MEMORY_BYTES); lower "
            f"pool_chunks or pool_bytes, or use more workers, or fewer lanes"
        )


def _pool_bytes(pipeline: Pipeline, i: int) -> int:
    """What one lane's pool of a source holds, by the first row groups of the source."""
    counts = pipeline.counts(i)
    if not counts.num_shards:
        return 0
    rows, _, nbytes = counts.groups(0)
    total = int(rows.sum())
    size = total // len(rows) if pipeline.sources[i].atomic else min(pipeline.facts[i].chunk_rows, total)
    chunk = int(nbytes.sum()) * size // total if total else 0
    return min(pipeline.size.nbytes, pipeline.size.chunks * chunk)
