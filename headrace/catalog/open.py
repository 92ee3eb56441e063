"""From a source to its index: resolve, list, count; each once per node and run, however many ranks there are."""

from __future__ import annotations

import errno
import json
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.catalog import hub
from headrace.catalog.index import Index, load_listing, save
from headrace.catalog.lines import LineIndex
from headrace.catalog.listing import Listing
from headrace.catalog.local import list_local
from headrace.catalog.remote import list_remote
from headrace.catalog.retry import at_most
from headrace.catalog.shard import Shard
from headrace.catalog.source import SYNTH, Source
from headrace.catalog.stop import stopped_by
from headrace.catalog.synthetic import list_synth
from headrace.errors import FetchError, Stalled, StateError, Unreachable, shown
from headrace.files import keep_json, read_whole
from headrace.locks import locked
from headrace.run import Run

log = logging.getLogger(__name__)

LAUNCH_SECONDS = 600.0
BRIEF_SECONDS = 10.0
"""The Hub is asked for the newest commit this long, where the last one that was seen can be read instead."""


def open_index(
    source: Source,
    run: Run,
    revision: str | None = None,
    count_lines: Callable[[Shard, Callable[[], None]], LineIndex] | None = None,
) -> Index:
    """The index of a source, at a pinned revision where one is given. Text needs a way to count its lines.

    Files are as they are now: whether they are those of a revision says `recognise.require_same`.
    """
    if source.kind == "hf":
        return _open_hub(source, run, revision)
    listing = _list_files(source, run)
    path = index_folder(run, "file_index") / f"{source.kind}-{listing.revision}.json"
    return Index(listing, path, count_lines)


def index_folder(run: Run, name: str) -> Path:
    """Made for us alone: what a private repo or folder has in it is nobody else's to know."""
    folder = run.cache_dir / name
    with suppress(OSError):  # whoever writes into it says why not
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _list_files(source: Source, run: Run) -> Listing:
    if source.kind == "jsonl" and source.path.startswith(SYNTH):
        return list_synth(source, run)
    url = "://" in source.path and not source.path.startswith("file://")
    return list_remote(source) if url else list_local(source)


def _open_hub(source: Source, run: Run, revision: str | None) -> Index:
    folder = index_folder(run, "hf_index") / source.path
    with locked(folder / ".lock") as beat, stopped_by(None, on_beat=beat):
        commit = pin_commit(source, run, folder, revision)
        path = folder / f"{_index_name(source)}~{commit}.json"
        known = load_listing(path)
        if known is None:
            if run.offline:
                raise Unreachable(f"{source}: HF_HUB_OFFLINE is set, and {path} does not exist; run once online")
            listing = hub.list_split(source, commit, run)
            save(path, listing, None)
            if listing.revision != commit:  # the Hub's own conversion, which a resume asks for by its own commit
                save(path.with_name(path.name.replace(commit, listing.revision)), listing, None)
            return Index(listing, path)
    origin = hub.origin_of(source, known["revision"], run)
    return Index(Listing.of(source, known["revision"], origin, [(p, s, e) for p, s, e in known["files"]]), path)


def pin_commit(
    source: Source,
    run: Run,
    folder: Path,
    revision: str | None,
    resolve: Callable[[Source, Run], str] = hub.resolve,
) -> str:
    """The commit to read: of the state, of this launch's first rank, or (asked now) of the branch."""
    if revision is not None:
        if not re.fullmatch(rf"({hub.CONVERT_MARK})?[0-9a-f]{{40}}", revision):
            raise StateError(f"{source}: revision: {shown(revision)!r} is not a commit")
        return revision
    wanted = source.revision or "main"
    if re.fullmatch(r"[0-9a-f]{40}", wanted):
        return wanted
    path = folder / f"pin-{_safe(wanted)}.json"
    pin = _read_pin(path)
    shared = pin is not None and run.launch and pin.get("launch") == run.launch and _is_fresh(path)
    if pin is not None and (run.offline or shared):
        return str(pin["commit"])
    commit = _resolved(source, run, resolve, None if pin is None else str(pin["commit"]))
    try:
        keep_json(path, {"commit": commit, "launch": run.launch})
    except FetchError as error:
        if pin is None or error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise  # else it is a cache that is only read from
    return commit


def _resolved(source: Source, run: Run, resolve: Callable[[Source, Run], str], last: str | None) -> str:
    """The commit that the branch stands at, or, where nobody can be asked, stood at when it was last seen here."""
    if last is None:
        return resolve(source, run)
    try:
        with at_most(BRIEF_SECONDS):
            return resolve(source, run)
    except (Unreachable, Stalled) as error:
        log.warning(
            "%s: the Hub cannot be asked which commit is the newest (%s); reading %s, which was the newest when this "
            "cache was last used. Set HF_HUB_OFFLINE=1 to go without asking",
            shown(source, 1000),
            error,
            last[:8],
        )
        return last


def _is_fresh(pin: Path) -> bool:
    """The ranks of a launch start together; a launch of the same name long after is another one."""
    try:
        return abs(time.time() - pin.stat().st_mtime) < LAUNCH_SECONDS
    except OSError:
        return False


def _read_pin(path: Path) -> dict[str, Any] | None:
    try:
        pin = json.loads(read_whole(path, 4096))
    except (OSError, ValueError, RecursionError):
        return None
    if isinstance(pin, dict) and re.fullmatch(r"[0-9a-f]{40}", str(pin.get("commit", ""))):
        return pin
    return None


def _index_name(source: Source) -> str:
    """One name for all that decides which files are listed; `~` stands in no part of it."""
    parts = [_safe(source.config or ""), _safe(source.split)]
    return "~".join([*parts, "partial"] if source.allow_partial else parts)


def _safe(name: str) -> str:
    """A part of a file name: what is not plain is written as its code."""
    return re.sub(r"[^A-Za-z0-9._\-]|^\.", lambda found: f"%{ord(found[0]):x}", name)
