"""Whether the files of a source are those that a state was made on."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.catalog.identity import Identity, Trust
from headrace.catalog.index import Index, load_listing
from headrace.catalog.lines import WHOLE_BYTES, LineIndex
from headrace.catalog.local import signature_elsewhere, signature_of
from headrace.catalog.source import Source
from headrace.errors import Changed, HeadraceError, shown

log = logging.getLogger("headrace")


@dataclass(frozen=True, kw_only=True)
class Before:
    """A source as a state has it."""

    spec: str
    revision: str
    identity: Identity | None
    """None: the state was written before there were any."""


def is_same(index: Index, before: Before) -> bool:
    """Whether these are the files of the state, as far as that can be told: all of them, or some, and others changed.

    What changed is for `require_same` to say. Were such files taken for new ones, all their rows would come again.
    """
    wanted = before.identity
    if before.spec.partition(":")[0] != index.listing.source.kind:
        return False
    if _is_as_listed(index, before):
        return True
    if wanted is None or wanted.shards != index.num_shards:
        return False
    if wanted.marks and wanted.is_whole:
        index.complete()
        filled = [i for i in range(index.num_shards) if index.shard_count(i)]  # empty files are all alike
        return any(wanted.mark(i) == index.mark(i) for i in filled) or wanted.is_of(index.identity())
    if not _may_be(index, wanted):
        return False
    if wanted.is_whole:
        index.complete()
    return wanted.is_of(index.identity())


def require_same(index: Index, before: Before, trust: Trust) -> None:
    """An error that names what differs, unless these are the files of the state.

    The same path, size and modification time: taken unread. Otherwise all that is counted before the first row is
    compared now, and the shards of a large source when they are opened.
    """
    wanted = before.identity
    if _is_as_listed(index, before):
        if wanted is not None:
            index.expect(wanted.opened, trust)
        return
    if wanted is None:
        if not trust.moved:
            raise _changed(index, before)
        log.warning("%s: its files are taken for those of the state unread: trust_moved", shown(index.listing.source))
        return
    if wanted.shards != index.num_shards:
        raise _changed(index, before)
    if wanted.shape:
        index.complete()
        _require_shards(index, before, wanted, trust)
    elif not _may_be(index, wanted):
        raise _changed(index, before)
    if not wanted.is_whole and wanted.names != index.identity().names and not trust.moved:
        raise Changed(
            f"{shown(index.listing.source)}: its files have other names than those that the state was made on, and the "
            f"state does not tell what is in them; if they are the same files in the same order, load the state with "
            f"trust_moved=True"
        )
    index.expect(wanted.opened, trust)
    log.info("%s: files with another path or time are those of the state", shown(index.listing.source))
    _warn_of_samples(index)


def _require_shards(index: Index, before: Before, wanted: Identity, trust: Trust) -> None:
    found = index.identity()
    if wanted.marks:
        marks, found_marks = ([of.mark(i) for i in range(index.num_shards)] for of in (wanted, index))
        _refuse_another_order(index, marks, found_marks)
        for i, (mark, found_mark) in enumerate(zip(marks, found_marks, strict=True)):
            index.require_mark(i, str(mark), str(found_mark), trust)
        return
    same_size = wanted.sizes == found.sizes
    if same_size and wanted.shape == found.shape and (wanted.content == found.content or not wanted.is_whole):
        return
    if wanted.shape != found.shape or trust.changed is not True:
        hint = "" if wanted.shape != found.shape else "; trust_changed=True goes on with other contents in as many rows"
        raise _changed(index, before, hint)
    log.warning("%s has other contents than the state was made on; it is trusted", shown(index.listing.source))


def _refuse_another_order(index: Index, wanted: Sequence[str | None], found: Sequence[str | None]) -> None:
    """A renamed file may come before or after others that it came after or before: then rows have other numbers."""
    moved = [i for i, (was, now) in enumerate(zip(wanted, found, strict=True)) if was != now]
    elsewhere = {wanted[i] for i in moved} & {found[i] for i in moved}
    if elsewhere:
        i = next(i for i in moved if found[i] in elsewhere)
        raise Changed(
            f"{shown(index.listing.source)}: {shown(index.listing.label(i))} holds what another file held when the "
            f"state was made: files were renamed, so they come in another order and their rows have other numbers; "
            f"give them the names back that they had"
        )


def _may_be(index: Index, wanted: Identity) -> bool:
    """What the listing tells."""
    found = index.identity()
    return (wanted.shards, wanted.sizes) == (found.shards, found.sizes)


def _is_as_listed(index: Index, before: Before) -> bool:
    """The same paths, sizes and modification times; also where the state has the paths in another spelling."""
    listing = index.listing
    if before.revision == listing.revision:
        return True
    source, kind = listing.source, listing.source.kind
    spelled = before.spec.removeprefix(f"{kind}:").removesuffix(f":{source.column}")
    try:
        # The path is that of a state: nothing is looked at but what the source names by itself.
        there = Source(kind=kind, path=spelled)
        if not source.is_local or not there.is_local or there.place != source.place:
            return False
        here = [os.path.abspath(path) for path in listing.paths]  # noqa: PTH100
        return signature_of(kind, spelled) == (before.revision, here)
    except HeadraceError:
        return False


def is_moved(source: Source, spec: str, revision: str) -> bool:
    """Whether the local files of a source are those that `spec` named, under another folder: the same names in it,
    sizes and modification times. `spec` and `revision` are of a state: no path in it is looked at."""
    kind, path = source.kind, spec.removeprefix(f"{source.kind}:").removesuffix(f":{source.column}")
    if not source.is_local or not spec.startswith(f"{kind}:"):
        return False
    try:
        return Source(kind=kind, path=path).is_local and signature_elsewhere(kind, source.path, path) == revision
    except HeadraceError:
        return False


def _warn_of_samples(index: Index) -> None:
    large = [i for i in range(index.num_shards) if index.is_text and _is_large(index.shard(i))]
    if large:
        log.warning(
            "%s and %d more files of over %d MB were compared with those of the state by samples only",
            shown(index.listing.label(large[0])),
            len(large) - 1,
            WHOLE_BYTES >> 20,
        )


def _is_large(shard: object) -> bool:
    return isinstance(shard, LineIndex) and shard.bytes > WHOLE_BYTES


def _changed(index: Index, before: Before, hint: str = "") -> Changed:
    """Names what differs where the old index is still there."""
    source = shown(index.listing.source)
    if before.identity is None:
        hint = (
            "; the state tells no more of them than that: if they are the same files, moved or touched, load the state "
            "with trust_moved=True"
        )
    told = _differences(index, before.revision)
    if not told:
        told = ["a path, a size or an mtime differs" if before.identity is None else "their sizes or rows differ"]
        if before.identity is not None and before.identity.shards != index.num_shards:
            told = [f"there were {before.identity.shards}, there are {index.num_shards}"]
    more = f" and {len(told) - 3} more" if len(told) > 3 else ""
    return Changed(
        f"{source}: the files are not those the state was made on: {', '.join(told[:3])}{more}; rows may have moved, "
        f"so start anew{hint}"
    )


def _differences(index: Index, revision: str) -> Sequence[str]:
    if not re.fullmatch(r"files-[0-9a-f]+", revision):  # it comes from a state
        return []
    old = load_listing(index.path.with_name(f"{index.listing.source.kind}-{revision}.json"))
    if old is None:
        return []
    was, found = {p: (s, e) for p, s, e in old["files"]}, {p: (s, e) for p, s, e in index.listing.files()}
    differ = [p for p in [*was, *(p for p in found if p not in was)] if was.get(p) != found.get(p)]
    told = []
    for p in differ:
        how = "is new" if p not in was else "is gone" if p not in found else "has another size or mtime"
        told.append(f"{shown(p)} {how}")
    return told
