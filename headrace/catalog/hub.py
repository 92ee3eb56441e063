"""Dataset repos of the Hub: the commit they are pinned to, and the files of a split at that commit."""

from __future__ import annotations

import hashlib
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from headrace.catalog import layouts
from headrace.catalog.hub_api import Answer, ask
from headrace.catalog.hub_origin import HubOrigin
from headrace.catalog.listing import Listing
from headrace.catalog.shard import LONGEST_PATH
from headrace.catalog.source import Source
from headrace.errors import DataError, NotFound, Stalled, Unreachable, plain_url, shown
from headrace.run import Run

log = logging.getLogger(__name__)

CONVERTED = "refs/convert/parquet"
CONVERT_MARK = "convert-"
"""Stands before the commit in the revision of a listing of the Hub's own conversion, which has a layout of its own."""
CARD_BYTES = 4 << 20
PAGES = 5000
"""A listing of more pages (of 1,000 files) than this is not a dataset anyone meant."""
LISTING_BYTES = 1 << 30
"""What the names of all files of a repo may take in memory."""
LISTING_STALLS = 60.0
"""The time limit for all pages of a listing, in multiples of the limit for one silence."""


def resolve(source: Source, run: Run, revision: str | None = None) -> str:
    """The commit that a branch or tag stands at, now."""
    wanted = revision or source.revision or "main"
    if re.fullmatch(r"[0-9a-f]{40}", wanted):
        return wanted
    what = f"{source.path}@{wanted}"
    info = ask(run, f"/api/datasets/{source.path}/revision/{quote(wanted, safe='')}?expand=sha", what).value
    if not isinstance(info, dict) or "id" not in info:
        raise Unreachable(
            f"{what}: what {plain_url(run.endpoint)} answers is no answer of a Hub; a proxy in between may be the cause"
        )
    sha = info.get("sha")
    if not isinstance(sha, str) or not re.fullmatch(r"[0-9a-f]{40}", sha):
        raise Unreachable(f"{what}: the Hub named no commit for it, but {shown(sha)!r}")
    return sha


def ref_names(source: Source, run: Run) -> list[str]:
    """Its tags and branches."""
    found = ask(run, f"/api/datasets/{source.path}/refs", source.path).value
    try:
        return [str(ref["name"]) for kind in ("tags", "branches") for ref in found.get(kind) or ()]
    except (LookupError, TypeError, AttributeError) as error:
        raise Unreachable(f"{source.path}: the Hub's list of its tags cannot be read ({shown(error)})") from error


def list_files(source: Source, commit: str, run: Run) -> Iterator[tuple[str, int, str]]:
    """(path, size, etag) of every file at a commit."""
    return _tree(source, commit, "", run, _Bounds(source, run))


def list_split(source: Source, commit: str, run: Run) -> Listing:
    """The parquet files of the source's split at a commit; of the Hub's own conversion where the repo has none."""
    if commit.startswith(CONVERT_MARK):
        found = _list_converted(source, commit.removeprefix(CONVERT_MARK), run)
        if found is not None:
            return found
        raise NotFound(f"{source.path}: split {shown(source.split)!r} is not in its conversion at {commit[-40:][:8]}")
    origin = origin_of(source, commit, run)
    card = origin.read_small("README.md", CARD_BYTES)
    configs = []
    if card:
        try:
            configs = layouts.read_card(card.decode("utf-8", "replace"))
        except DataError as error:
            log.warning("%s: %s; going by file names", origin.name, error)
    with _naming(origin.name):
        patterns = layouts.card_patterns(configs, source.config, source.split)
        config = source.config if patterns else layouts.card_folder(configs, source.config) or source.config
    files = _files(source, commit, sorted({layouts.static_prefix(p) for p in patterns or [""]}), run)
    paths = list(files)
    with _naming(origin.name):
        chosen = layouts.match(patterns, paths) if patterns else layouts.standard(paths, config, source.split)
    if chosen:
        return Listing.of(source, commit, origin, [files[p] for p in chosen])
    if source.revision is None and not any(p.endswith(layouts.PARQUET) for p in paths):
        found = _list_converted(source, None, run)
        if found is not None:
            return found
    tried = patterns or [
        f"data/{source.split}-*.parquet",
        f"{source.config or '*'}/{source.split}-*.parquet",
        CONVERTED,
    ]
    raise layouts.nothing_found(origin.name, source.config, source.split, tried, paths)


def _files(source: Source, commit: str, folders: list[str], run: Run) -> dict[str, tuple[str, int, str]]:
    """The files below some folders; all files where there are many, or where one is not there, to say what is."""
    bounds = _Bounds(source, run)
    if len(folders) <= 8:
        try:
            return {f[0]: f for folder in folders for f in _tree(source, commit, folder, run, bounds)}
        except NotFound:
            if folders == [""]:
                raise
    return {f[0]: f for f in _tree(source, commit, "", run, bounds)}


def _list_converted(source: Source, commit: str | None, run: Run) -> Listing | None:
    """The conversion at a commit, or as it stands now."""
    try:
        commit = commit or resolve(source, run, CONVERTED)
    except NotFound:
        return None
    revision = CONVERT_MARK + commit
    files, origin = {f[0]: f for f in list_files(source, commit, run)}, origin_of(source, revision, run)
    with _naming(origin.name):
        chosen = layouts.converted(list(files), source.config, source.split, source.allow_partial)
    if not chosen:
        return None
    log.info("%s has no parquet of its own; reading the Hub's conversion at %s", source.path, commit[:8])
    return Listing.of(source, revision, origin, [files[p] for p in chosen])


@contextmanager
def _naming(repo: str) -> Iterator[None]:
    """Layouts know names of files only; what they do not find is said with the repo in front."""
    try:
        yield
    except (NotFound, DataError) as error:
        raise type(error)(f"{repo}: {error}") from None


def origin_of(source: Source, revision: str, run: Run) -> HubOrigin:
    """Where the shards of a pinned revision lie."""
    return HubOrigin(
        source.path,
        revision.removeprefix(CONVERT_MARK),
        source.split,
        run.endpoint,
        run.stall_seconds,
        run.cache_dir / "hf_shards",
        run.offline,
    )


class _Bounds:
    """What is left for the listing of one repo, which a server may make as long as it likes."""

    def __init__(self, source: Source, run: Run) -> None:
        self._what = source.path
        self._pages, self._bytes = PAGES, LISTING_BYTES
        self._seconds = LISTING_STALLS * run.stall_seconds
        self._seen: set[bytes] = set()

    def take_page(self, answer: Answer) -> None:
        self._pages -= 1
        self._seconds -= answer.seconds
        if answer.next is None:
            return
        mark = hashlib.blake2b(answer.next.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if mark in self._seen:
            raise Unreachable(f"{self._what}: its listing goes on where it was before, so it has no end")
        self._seen.add(mark)
        if self._pages <= 0:
            raise DataError(
                f"{self._what}: the listing has more than {PAGES:,} pages; name a configuration with fewer files"
            )
        if self._seconds <= 0:
            raise Stalled(f"{self._what}: its listing takes too long; try again, or set HEADRACE_STALL_SECONDS higher")

    def take_file(self, path: str, etag: str) -> None:
        self._bytes -= sys.getsizeof(path) + sys.getsizeof(etag) + 200
        if self._bytes < 0:
            raise DataError(
                f"{self._what}: the names of its files take more than {LISTING_BYTES:,} bytes of memory; name a "
                f"configuration with fewer files"
            )


def _tree(source: Source, commit: str, folder: str, run: Run, bounds: _Bounds) -> Iterator[tuple[str, int, str]]:
    """(path, size, etag) of every file below a folder, page by page."""
    below = f"/{quote(folder, safe='/')}" if folder else ""
    page: str | None = f"/api/datasets/{source.path}/tree/{commit}{below}?recursive=true&expand=false"
    what = f"{source.path}@{commit[:8]}"
    while page is not None:
        answer = ask(run, page, what)
        if not isinstance(answer.value, list):
            raise Unreachable(f"{what}: the Hub's listing is not a list of files")
        for entry in answer.value:
            if isinstance(entry, dict) and entry.get("type") == "file":
                path, size, etag = _file(entry, what)
                bounds.take_file(path, etag)
                yield path, size, etag
        bounds.take_page(answer)
        page = answer.next


def _file(entry: dict[str, Any], what: str) -> tuple[str, int, str]:
    path, size, large = entry.get("path"), entry.get("size"), entry.get("lfs") or {}
    etag = large.get("oid") or entry.get("oid") or "" if isinstance(large, dict) else None
    if (
        not isinstance(path, str)
        or len(path.encode("utf-8", "surrogatepass")) > LONGEST_PATH
        or type(size) is not int
        or not 0 <= size < 1 << 62
        or not isinstance(etag, str)
        or not re.fullmatch(r"[!#-~]{0,128}", etag)
    ):
        raise Unreachable(f"{what}: the Hub's listing has a file that cannot be: {shown(_brief(entry))}")
    return path, size, etag


def _brief(entry: dict[str, Any]) -> dict[str, Any]:
    """The fields of an entry that are read, none of them long."""
    fields = {name: entry[name] for name in ("path", "size", "oid", "lfs") if name in entry}
    return {name: value if isinstance(value, int | float) else shown(value, 60) for name, value in fields.items()}
