"""The ledgers of a run, and the check that balances them. It knows the data set's manifest, and nothing of plans.

Launches follow each other; each begins where a checkpoint of an earlier one was made. What was given after that
checkpoint counts as lost, and is given again. What counts is the *committed timeline*: of each launch the steps up to
the checkpoint that a later launch began from, and all of the last one.

L1  in each epoch of the timeline everything in the manifest comes exactly once
L2  what was lost and is given again on as many ranks is the same, step by step
L3  until lanes are dealt anew, the timeline is that of a run that was never disturbed, whatever the ranks and workers
    (samples with limits per epoch: once an epoch was taken up between two steps, those after it have the same batches)
L4  all ranks have the same number of steps
L5  the proof of each row is that of the manifest
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_recipes import crc_of

SHOWN = 10
"""So many of what is wrong are told."""


@dataclass
class Launch:
    """What one launch did, by rank."""

    number: int
    job: dict[str, Any]
    loaded: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    lanes: int = 0
    batches: dict[int, list[tuple[int, list[Any]]]] = field(default_factory=lambda: defaultdict(list))
    """Of each rank: epoch, and what was in the batch."""
    commits: set[int] = field(default_factory=set)
    epochs: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """Epoch to rank to the number of steps at its end."""
    ends: dict[int, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    firsts: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    deaths: int = 0
    """Workers whose end was noticed."""

    @property
    def ranks(self) -> int:
        return int(self.job["ranks"])

    @property
    def origin(self) -> tuple[int, int] | None:
        return next(iter(self.loaded.values()), None)

    def steps(self, upto: int | None = None) -> Iterator[list[list[Any]]]:
        """What each rank had in step 0, 1, ..."""
        count = min((len(self.batches[rank]) for rank in range(self.ranks)), default=0)
        for step in range(count if upto is None else min(upto, count)):
            yield [self.batches[rank][step][1] for rank in range(self.ranks)]


class Ledger:
    """All launches of a run."""

    def __init__(self, folder: Path) -> None:
        self.launches: dict[int, Launch] = {}
        self.torn = 0
        """Lines that a kill cut."""
        self.problems: list[str] = []
        for path in sorted(folder.glob("ledger-*.jsonl")):
            rank = int(path.stem.rpartition("-")[2])
            for line in path.read_text(errors="replace").splitlines():
                try:
                    kind, number, *fields = json.loads(line)
                except ValueError:
                    self.torn += 1
                    continue
                self._take(rank, kind, number, fields)

    def _take(self, rank: int, kind: str, number: int, fields: list[Any]) -> None:
        if kind == "start":
            self.launches.setdefault(number, Launch(number, fields[1]))
            return
        launch = self.launches[number]
        if kind == "load":
            launch.loaded[rank] = None if fields[0] is None else (fields[0][0], fields[0][1])
            launch.lanes = fields[2]
            launch.refused += fields[3]
        elif kind == "batch":
            epoch, step, entries = fields
            if step != len(launch.batches[rank]):
                self.problems.append(f"launch {number}, rank {rank}: step {step} was written out of turn")
            launch.batches[rank].append((epoch, entries))
        elif kind == "commit":
            launch.commits.add(fields[0])
        elif kind == "epoch":
            launch.epochs[fields[0]][rank] = fields[1]
        elif kind == "end":
            launch.ends[rank] = (fields[0], fields[1])
        elif kind == "first":
            launch.firsts.append(fields[0])
        elif kind == "worker":
            launch.deaths += 1
        else:
            launch.errors.append(f"{kind}: {' '.join(map(str, fields))}")

    @property
    def samples(self) -> int:
        """All that were given, also those that were lost."""
        launches = self.launches.values()
        return sum(len(entries) for one in launches for rank in one.batches.values() for _, entries in rank)

    def timeline(self) -> list[tuple[Launch, int | None]]:
        """The launches that count, each with the number of steps of it that do; None: all."""
        number, upto = max(self.launches), None
        found: list[tuple[Launch, int | None]] = []
        while True:
            launch = self.launches[number]
            found.append((launch, upto))
            if launch.origin is None:
                return found[::-1]
            number, upto = launch.origin

    def is_dealt_anew(self, launch: Launch) -> bool:
        """Whether its ranks do not divide the lanes of the checkpoint that it began from, or those it was asked for."""
        lanes = (
            launch.job.get("lanes", launch.ranks) if launch.origin is None else self.launches[launch.origin[0]].lanes
        )
        return int(lanes) % launch.ranks != 0

    def committed(self) -> Iterator[tuple[int, int, int, int, list[Any]]]:
        """Launch, step, rank, epoch and entries of every batch that counts, in the order of the run."""
        for launch, upto in self.timeline():
            lengths = {rank: len(launch.batches[rank]) for rank in range(launch.ranks)}
            for step in range(max(lengths.values()) if upto is None else upto):
                for rank in range(launch.ranks):
                    if step < lengths[rank]:
                        epoch, entries = launch.batches[rank][step]
                        yield launch.number, step, rank, epoch, entries


def check(ledger: Ledger, kind: str, manifest: dict[str, Any], reference: Ledger | None = None) -> list[str]:
    """What is wrong with a run that has come to its end. Nothing, if all is well."""
    found = [
        *ledger.problems,
        *_checkpoints(ledger),
        *_same_again(ledger),
        *_in_step(ledger),
        *proofs(ledger, manifest),
    ]
    if kind == "pictures":
        found += _passes(ledger, manifest)
    elif kind == "tokens":
        found += _pieces(ledger, manifest)
    else:
        found += _epochs(ledger, manifest)
    if reference is None:
        return found
    return found + (_samples_undisturbed if kind == "pictures" else _undisturbed)(ledger, reference)


def _checkpoints(ledger: Ledger) -> list[str]:
    """All ranks begin from the same checkpoint, which was made before; and all of them had come so far."""
    found = []
    for launch in ledger.launches.values():
        origins = set(launch.loaded.values())
        if len(origins) > 1:
            found.append(f"launch {launch.number}: its ranks began from different checkpoints: {launch.loaded}")
        for origin in origins - {None}:
            assert origin is not None
            number, step = origin
            before = ledger.launches[number]
            # The last one may have been made by a rank that was killed before it could write that down.
            if step not in before.commits and step < max(before.commits, default=0):
                found.append(f"launch {launch.number}: the checkpoint at step {step} of launch {number} was never made")
            short = [rank for rank in range(before.ranks) if len(before.batches[rank]) < step]
            if short:
                found.append(
                    f"launch {number}: its checkpoint at step {step} counts more than ranks {short} were given"
                )
    return found


def _epochs(ledger: Ledger, manifest: dict[str, Any]) -> list[str]:
    """L1: rows and frames."""
    given: dict[int, Counter[str]] = defaultdict(Counter)
    where: dict[tuple[int, str], list[str]] = defaultdict(list)
    for launch, step, rank, epoch, entries in ledger.committed():
        for uid, *_ in entries:
            given[epoch][uid] += 1
            where[epoch, uid].append(f"launch {launch} step {step} rank {rank}")
    found = []
    for epoch, counts in sorted(given.items()):
        lost = [uid for uid in manifest if uid not in counts]
        again = [f"{uid} ({', '.join(where[epoch, uid])})" for uid, n in counts.items() if n > 1]
        found += _told(f"L1: epoch {epoch} lost", lost) + _told(f"L1: epoch {epoch} repeated", again)
    return found


def _pieces(ledger: Ledger, manifest: dict[str, Any]) -> list[str]:
    """L1: of each row's tokens every one once."""
    given: dict[int, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for _, _, _, epoch, entries in ledger.committed():
        for uid, _, start, stop in entries:
            given[epoch][uid].append((start, stop))
    found = []
    for epoch, rows in sorted(given.items()):
        wrong = []
        for uid, tokens in manifest.items():
            pieces, at = sorted(rows.get(uid, [])), 0
            for start, stop in pieces:
                if start != at:
                    break
                at = stop
            if at != len(tokens) or sum(stop - start for start, stop in pieces) != len(tokens):
                wrong.append(f"{uid}: {len(tokens)} tokens came as {pieces}")
        found += _told(f"L1: epoch {epoch} tokens lost or repeated", wrong)
    return found


def _passes(ledger: Ledger, manifest: dict[str, Any]) -> list[str]:
    """L1: nothing twice in a pass, and every pass whole that no lane can still be in.

    An epoch is half of the rows, so that lanes, which are at most a row apart in each, are never two passes apart.
    """
    given: dict[int, Counter[str]] = defaultdict(Counter)
    sizes = Counter[int]()
    for _, _, _, epoch, entries in ledger.committed():
        sizes[epoch] += len(entries)
        for uid, _, number in entries:
            given[number][uid] += 1
    found = []
    for epoch, size in sorted(sizes.items()):
        if size != len(manifest) // 2:
            found.append(f"L1: epoch {epoch} has {size} samples, not {len(manifest) // 2}")
    for number, counts in sorted(given.items()):
        found += _told(f"L1: pass {number} repeated", [uid for uid, n in counts.items() if n > 1])
        if number <= len(sizes) // 2 - 2:
            found += _told(f"L1: pass {number} lost", [uid for uid in manifest if uid not in counts])
    return found


def proofs(ledger: Ledger, manifest: dict[str, Any]) -> list[str]:
    """L5: of everything that was ever given."""
    wrong = []
    for launch in ledger.launches.values():
        for rank, batches in launch.batches.items():
            for step, (_, entries) in enumerate(batches):
                for uid, proof, *more in entries:
                    right = manifest.get(uid)
                    if isinstance(right, list):
                        right = crc_of(right[more[0] : more[1]])
                    if right != proof:
                        wrong.append(f"{uid}: {proof} for {right} (launch {launch.number} step {step} rank {rank})")
    return _told("L5: wrong content", wrong)


def _same_again(ledger: Ledger) -> list[str]:
    """L2: against the launch that made the checkpoint, and against others that began from it."""
    found = []
    tried: dict[tuple[tuple[int, int] | None, int], Launch] = {}
    for launch in sorted(ledger.launches.values(), key=lambda one: one.number):
        if not launch.loaded:
            continue  # it did not live to see its checkpoint
        others = []
        if launch.origin is not None and not ledger.is_dealt_anew(launch):
            before = ledger.launches[launch.origin[0]]
            if before.ranks == launch.ranks:
                others.append((before, launch.origin[1]))
        key = launch.origin, launch.ranks
        if key in tried and tried[key].lanes == launch.lanes:
            others.append((tried[key], 0))
        tried[key] = max(launch, tried.get(key, launch), key=lambda one: len(one.batches[0]))
        for other, skipped in others:
            for rank in range(launch.ranks):
                old, new = other.batches[rank][skipped:], launch.batches[rank]
                at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)
                if at is not None:
                    found.append(
                        f"L2: launch {launch.number} step {at} rank {rank} gave {new[at]}, where launch {other.number} "
                        f"had given {old[at]}"[:600]
                    )
    return found


def _undisturbed(ledger: Ledger, reference: Ledger, last: int | None = None) -> list[str]:
    """L3: up to the first re-deal, or as far as the reference goes; or up to an epoch."""
    wanted = [entries for *_, entries in reference.committed() if entries]
    for at, (launch, step, rank, epoch, entries) in enumerate(_until_dealt_anew(ledger)):
        if at == len(wanted) or (last is not None and epoch > last):
            return []
        if entries != wanted[at]:
            return [
                f"L3: batch {at} of the run (launch {launch} step {step} rank {rank}) is {entries}, without "
                f"disturbance it is {wanted[at]}"[:800]
            ]
    return []


def _samples_undisturbed(ledger: Ledger, reference: Ledger) -> list[str]:
    """L3 of samples. In order as others, until an epoch ends on ranks that began it between two of their steps: each of
    them goes on with the lanes it has, so the next epoch may begin with another one. It has the same batches then."""
    last = _last_in_order(ledger)
    found = _undisturbed(ledger, reference, last)
    if found or last is None:
        return found
    wanted: dict[int, Counter[str]] = defaultdict(Counter)
    for _, _, _, epoch, entries in reference.committed():
        wanted[epoch][json.dumps(entries)] += bool(entries)
    given: dict[int, Counter[str]] = defaultdict(Counter)
    for _, _, _, epoch, entries in _until_dealt_anew(ledger):
        given[epoch][json.dumps(entries)] += 1
    whole = [epoch for epoch in given if last < epoch < max(wanted)]  # in its last one the reference may have stopped
    odd = {epoch: list((given[epoch] - wanted[epoch]).elements())[:2] for epoch in whole}
    return [f"L3: epoch {epoch} has, but not without disturbance: {some}"[:800] for epoch, some in odd.items() if some]


def _last_in_order(ledger: Ledger) -> int | None:
    """The first epoch that ends on ranks which took it up at a batch that is no multiple of theirs; None: none does."""
    epoch, batches, odd = -1, 0, False
    for launch, upto in ledger.timeline():
        for step, given in enumerate(launch.steps(upto)):
            here = launch.batches[0][step][0]
            if here != epoch:
                if odd:
                    return epoch
                epoch, batches = here, 0
            if step == 0:
                odd = batches % launch.ranks != 0
            batches += len(given)
    return None


def _until_dealt_anew(ledger: Ledger) -> Iterator[tuple[int, int, int, int, list[Any]]]:
    """Launch, step, rank, epoch and entries of every batch that counts and has entries."""
    for launch, upto in ledger.timeline():
        if ledger.is_dealt_anew(launch):
            return
        for step, batches in enumerate(launch.steps(upto)):
            for rank, entries in enumerate(batches):
                if entries:
                    yield launch.number, step, rank, launch.batches[rank][step][0], entries


def _in_step(ledger: Ledger) -> list[str]:
    """L4: at each epoch's end that all ranks came to, and at the end of the run."""
    found = []
    for launch in ledger.launches.values():
        for epoch, steps in launch.epochs.items():
            if len(set(steps.values())) > 1:
                found.append(f"L4: launch {launch.number}: epoch {epoch} ended after {steps} steps (by rank)")
    last = ledger.launches[max(ledger.launches)]
    steps = {rank: last.ends.get(rank, (-1, {}))[0] for rank in range(last.ranks)}
    if len(set(steps.values())) > 1 or -1 in steps.values():
        found.append(f"L4: the last launch ended after {steps} steps (by rank)")
    for rank, (_, left) in last.ends.items():
        found += [f"rank {rank} ended with {name} left: {what}" for name, what in left.items() if what]
    return found


def _told(what: str, several: list[str]) -> list[str]:
    more = f" and {len(several) - SHOWN} more" if len(several) > SHOWN else ""
    return [f"{what} {len(several)}: {'; '.join(several[:SHOWN])}{more}"] if several else []
