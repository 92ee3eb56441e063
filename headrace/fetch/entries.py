"""Which entry of a `resume_state` is of which source: by where the data lies, or by the files that were moved."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.catalog.identity import Trust
from headrace.catalog.recognise import is_moved
from headrace.catalog.source import FILES, Source
from headrace.errors import SpecError, StateError, shown
from headrace.stage import State

log = logging.getLogger("headrace")


def listed_entries(resume_state: Any) -> list[State]:
    """The entries of a `resume_state`, one for each source."""
    found = resume_state.get("datasets") if isinstance(resume_state, dict) else None
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise StateError("resume_state.datasets: a list of entries with spec, shard and row_offset is expected")
    return found


def find_entry(source: Source, entries: Sequence[State]) -> State | None:
    """The entry that names the place of a source."""
    return next((entry for entry in entries if same_spec(entry.get("spec"), source)), None)


def require_entries(sources: Sequence[Source], entries: Sequence[State], trust: Trust) -> list[State]:
    """For each source its entry. Those that are taken on the user's word are told.

    Local files in another folder are recognised by their names in it, sizes and times. With `trust.moved` the one
    source that is left has the one entry that is left.
    """
    found = [_entry_by_place(i, sources, entries) for i in range(len(sources))]
    free = [entry for entry in entries if not any(entry is one for one in found)]
    left = [i for i, entry in enumerate(found) if entry is None]
    for i, entry in _moved_entries({i: sources[i] for i in left}, free).items():
        found[i] = entry
        left.remove(i)
        free = [other for other in free if other is not entry]
    if trust.moved and len(left) == len(free) == 1 and _same_kind(free[0], sources[left[0]]):
        found[left[0]] = free[0]
        here, there = shown(sources[left[0]], 1000), shown(free[0].get("spec"), 1000)
        log.warning("resume: %s is taken for %s of the checkpoint: trust_moved", here, there)
    elif left:
        raise StateError(_no_entry([sources[i] for i in left], entries, free, trust))
    return [entry for entry in found if entry is not None]


def _entry_by_place(i: int, sources: Sequence[Source], entries: Sequence[State]) -> State | None:
    """The entry that names the place of a source. Sources of one place have theirs in the same order."""
    there = [entry for entry in entries if same_spec(entry.get("spec"), sources[i])]
    here = [k for k, source in enumerate(sources) if same_spec(str(sources[i]), source)]
    if there and len(there) != len(here):
        raise StateError(
            f"resume_state.datasets: {shown(sources[i])} is read by {len(here)} part{'s' * (len(here) > 1)} and has "
            f"{len(there)} entr{'ies' if len(there) > 1 else 'y'}, so which one is of which part cannot be told; give "
            f"one entry for each part, in the order of the parts; nothing was changed"
        )
    return there[here.index(i)] if there else None


def _moved_entries(missing: Mapping[int, Source], free: Sequence[State]) -> dict[int, State]:
    """Of sources without an entry, those whose files can be told to be an entry's, and no other's."""
    found: dict[int, list[State]] = {}
    for i, source in missing.items():
        moved = [entry for entry in free if _is_moved_to(entry, source)]
        named = [entry for entry in moved if _last_part(str(entry.get("spec"))) == _last_part(str(source))]
        found[i] = named or moved
    taken = [id(entry) for entries in found.values() for entry in entries]
    return {i: one[0] for i, one in found.items() if len(one) == 1 and taken.count(id(one[0])) == 1}


def _last_part(spec: str) -> str:
    return spec.rpartition("/")[2]


def _no_entry(missing: Sequence[Source], entries: Sequence[State], free: Sequence[State], trust: Trust) -> str:
    there = ", ".join(shown(entry.get("spec")) for entry in entries[:8]) or "nothing"
    told = f"resume_state.datasets has no entry for {shown(missing[0])}; it has {there}"
    candidates = [entry for entry in free if any(_same_kind(entry, source) for source in missing)]
    if not candidates:
        return f"{told}: add one, or start without a state; nothing was changed"
    if len(missing) == len(free) == 1 and not trust.moved:
        return (
            f"{told}: names, sizes and times of the files do not tell that they are the same; if they have the same "
            f"rows in the same order, load it with trust_moved=True; nothing was changed"
        )
    counts = [f"{len(missing)} source{'s' * (len(missing) > 1)}", f"{len(free)} entr{'ies' if len(free) > 1 else 'y'}"]
    return (
        f"{told}: {counts[0]} and {counts[1]} are left over, so which one is of which source cannot be told: write "
        f"into `spec` of each entry where its files lie now, and load it with trust_moved=True; nothing was changed"
    )


def _is_moved_to(entry: State, source: Source) -> bool:
    spec, revision = entry.get("spec"), entry.get("revision")
    return isinstance(spec, str) and isinstance(revision, str) and is_moved(source, spec, revision)


def _same_kind(entry: State, source: Source) -> bool:
    return source.kind in FILES and str(entry.get("spec")).startswith(f"{source.kind}:")


def same_spec(given: Any, source: Source) -> bool:
    """Whether a checkpoint's spec means this source; defaults may be left out, paths spelled in another way."""
    try:
        if not isinstance(given, str):
            return False
        found = Source.parse(given) if given != str(source) else source
    except SpecError:
        return False
    return found.place == source.place and (found.column == source.column or source.kind == "lerobot")
