"""What a loader has delivered, in numbers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from headrace.batch import Batch
from headrace.recipe import Recipe

log = logging.getLogger("headrace")


class Statistics:
    def __init__(self) -> None:
        self.batches = self.pads = self.sequences = self.tokens = self.rows = self.samples = 0
        self.room = 0
        """Tokens of sequences together with what their media take."""
        self.wait_seconds = 0.0
        self.sources: dict[str, list[int]] = {}
        """Of each part, by name: rows that were begun, and tokens."""
        self._job = -1
        self._lanes: dict[int, tuple[int, int]] = {}
        """Of each lane in this job, the rows dropped and the tokens cut off."""
        self._before = (0, 0)
        """...and of all lanes in the jobs before."""
        self._warned = False

    def count(self, batch: Batch, waited: float) -> None:
        self.wait_seconds += waited
        if batch.pad:
            self.pads += 1
            return
        self.batches += 1
        if batch.packed:
            self.sequences += batch.num_sequences
            self.tokens += batch.num_tokens
            self.samples += batch.num_samples
            self.room += int(batch["expanded_lengths"].sum()) if "expanded_lengths" in batch else 0
        else:
            self.rows += batch.num_rows
        for name, rows, tokens in batch.by_source():
            counts = self.sources.setdefault(name, [0, 0])
            counts[0] += rows
            counts[1] += tokens

    def lane(self, job: int, number: int, dropped: int, truncated: int) -> None:
        """What a lane says of itself since it was opened, which it is for each job."""
        if job != self._job:
            self._job, self._before, self._lanes = job, self._losses(), {}
        self._lanes[number] = (dropped, truncated)

    def warn_of_cuts(self, recipe: Recipe, of_samples: bool) -> None:
        """Once, where pack="none" cuts off the end of what is too long: nothing else says so."""
        if self._warned or recipe.pack is None or recipe.pack.method != "none":
            return
        cut = self._losses()[1]
        if cut:
            self._warned = True
            warn_of_cut(recipe.pack.seq_len, cut, of_samples)

    def _losses(self) -> tuple[int, int]:
        found = [self._before, *self._lanes.values()]
        return sum(dropped for dropped, _ in found), sum(truncated for _, truncated in found)

    def by_source(self, recipe: Recipe, weights: Sequence[int] | None) -> dict[str, dict[str, Any]]:
        """Of each part: rows, tokens where there are sequences, the share that its weight asks for and that it had.

        Shares are of rows, or of tokens where the mix is by tokens. `weights`: those that hold now; None: not known.
        """
        counts = [self.sources.get(part.name, [0, 0]) for part in recipe.parts]
        totals = [sum(column) for column in zip(*counts, strict=True)]
        of = int(recipe.mix.by == "tokens")
        found: dict[str, dict[str, Any]] = {}
        for i, (part, (rows, tokens)) in enumerate(zip(recipe.parts, counts, strict=True)):
            one = {"rows": rows} if recipe.pack is None else {"rows": rows, "tokens": tokens}
            asked = None if weights is None else _share(weights[i], sum(weights))
            found[part.name] = {**one, "share_asked": asked, "share": _share(counts[i][of], totals[of])}
        return found

    def as_dict(self, recipe: Recipe, of_samples: bool = False) -> dict[str, Any]:
        found: dict[str, Any] = {
            "batches": self.batches,
            "pad_batches": self.pads,
            "wait_seconds": round(self.wait_seconds, 6),
            "rows_dropped": self._losses()[0],
        }
        if of_samples:
            cut = {"samples_truncated": self._losses()[1]}
            if recipe.pack is None:
                return {**found, "samples": self.rows, **cut}
            room = self.sequences * recipe.pack.seq_len
            packed = {"sequences": self.sequences, "tokens": self.tokens, "expanded_tokens": self.room}
            return {**found, "samples": self.samples, **packed, "fill": _share(self.room, room), **cut}
        if recipe.pack is None:
            return {**found, "rows": self.rows}
        return {
            **found,
            "sequences": self.sequences,
            "tokens": self.tokens,
            "fill": _share(self.tokens, self.sequences * recipe.pack.seq_len),
            "tokens_truncated": self._losses()[1],
        }


def warn_of_cut(seq_len: int, cut: int, of_samples: bool) -> None:
    what, counter = ("samples", "samples_truncated") if of_samples else ("tokens", "tokens_truncated")
    log.warning(
        "pack='none' gives each document one sequence, and cuts off what is longer than seq_len=%d: %d %s up to here; "
        "stats()[%r] counts them. pack='best_fit' or 'concat' loses none, a larger seq_len fewer",
        seq_len,
        cut,
        what,
        counter,
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
