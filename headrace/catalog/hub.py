"""Dataset repos of the Hub: the commit they are pinned to, and the files of a split at that commit."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from headrace.catalog import layouts
from headrace.catalog.hub_origin import HubOrigin
from headrace.catalog.listing import Listing
from headrace.catalog.refusals import refusal
from headrace.catalog.retry import HEALS, Hold, asked_wait, retrying
from headrace.catalog.shard import Broken
from headrace.catalog.source import Source
from headrace.errors import DataError, HeadraceError, NotFound, Unreachable, plain_url, shown
from headrace.run import Run, hub_token

T = TypeVar("T")
log = logging.getLogger(__name__)

CONVERTED = "refs/convert/parquet"
CONVERT_MARK = "convert-"
"""Stands before the commit in the revision of a listing of the Hub's own conversion, which has a layout of its own."""
CARD_BYTES = 4 << 20
PAGES = 5000
"""A listing of more pages (of 1,000 files) than this is not a dataset anyone meant."""


def resolve(source: Source, run: Run, revision: str | None = None) -> str:
    """The commit that a branch or tag stands at, now."""
    from huggingface_hub import HfApi

    wanted = revision or source.revision or "main"
    if re.fullmatch(r"[0-9a-f]{40}", wanted):
        return wanted
    api = HfApi(endpoint=run.endpoint, token=hub_token() or False)
    what = f"{source.path}@{wanted}"
    info = _asking(
        lambda: api.dataset_info(source.path, revision=wanted, timeout=run.stall_seconds, expand=["sha"]), what, run
    )
    if not isinstance(info.sha, str) or not re.fullmatch(r"[0-9a-f]{40}", info.sha):
        raise Unreachable(f"{what}: the Hub named no commit for it, but {shown(info.sha)!r}")
    return info.sha


def ref_names(source: Source, run: Run) -> list[str]:
    """Its tags and branches."""
    url = f"{run.endpoint}/api/datasets/{source.path}/refs"
    reply = _asking(partial(_page, url, source.path, run), source.path, run)
    try:
        found = json.loads(reply.content)
        return [str(ref["name"]) for kind in ("tags", "branches") for ref in found.get(kind) or ()]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Unreachable(f"{source.path}: the Hub's list of its tags cannot be read ({shown(error)})") from error


def list_files(source: Source, commit: str, run: Run) -> Iterator[tuple[str, int, str]]:
    """(path, size, etag) of every file at a commit."""
    return _tree(source, commit, "", run)


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
    if len(folders) <= 8:
        try:
            return {f[0]: f for folder in folders for f in _tree(source, commit, folder, run)}
        except NotFound:
            if folders == [""]:
                raise
    return {f[0]: f for f in _tree(source, commit, "", run)}


def _list_converted(source: Source, commit: str | None, run: Run) -> Listing | None:
    """The conversion at a commit, or as it stands now."""
    try:
        commit = commit or resolve(source, run, CONVERTED)
    except NotFound:
        return None
    revision = CONVERT_MARK + commit
    files, origin = {f[0]: f for f in _tree(source, commit, "", run)}, origin_of(source, revision, run)
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


def _tree(source: Source, commit: str, folder: str, run: Run) -> Iterator[tuple[str, int, str]]:
    """(path, size, etag) of every file below a folder, page by page.

    The pages are asked for through the client's session, but followed here: the client has no deadline for them, and
    would follow a `next` link to another host with the token.
    """
    below = f"/{quote(folder, safe='/')}" if folder else ""
    url: str | None = f"{run.endpoint}/api/datasets/{source.path}/tree/{commit}{below}?recursive=true&expand=false"
    home, what = urlsplit(run.endpoint)[:2], f"{source.path}@{commit[:8]}"
    for _ in range(PAGES):
        if url is None:
            return
        reply = _asking(partial(_page, url, what, run), what, run)
        for entry in _entries(reply, source):
            if entry.get("type") == "file":
                yield _file(entry, what)
        url = reply.links.get("next", {}).get("url")
        if url is not None and urlsplit(url)[:2] != home:
            raise Unreachable(
                f"{source.path}: its listing goes on at another host ({shown(urlsplit(url).netloc)}); not followed"
            )
    raise DataError(f"{source.path}: the listing has more than {PAGES:,} pages; name a configuration with fewer files")


def _page(url: str, what: str, run: Run) -> Any:
    from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

    reply = get_session().get(url, headers=build_hf_headers(token=hub_token() or False), timeout=run.stall_seconds)
    _raise_for(reply, what, run)
    return reply


def _entries(reply: Any, source: Source) -> list[dict[str, Any]]:
    try:
        entries = json.loads(reply.content)
    except (ValueError, RecursionError) as error:
        raise Unreachable(
            f"{source.path}: the Hub's listing is not JSON ({error}); a proxy in between may be the cause"
        ) from error
    if not isinstance(entries, list):
        raise Unreachable(f"{source.path}: the Hub's listing is not a list of files")
    return [e for e in entries if isinstance(e, dict)]


def _file(entry: dict[str, Any], what: str) -> tuple[str, int, str]:
    path, size, large = entry.get("path"), entry.get("size"), entry.get("lfs") or {}
    if not isinstance(path, str) or not isinstance(size, int) or not 0 <= size < 1 << 62 or not isinstance(large, dict):
        raise Unreachable(f"{what}: the Hub's listing has a file that cannot be: {shown(entry)}")
    return path, size, str(large.get("oid") or entry.get("oid") or "")


def _raise_for(reply: Any, what: str, run: Run) -> None:
    """Turn a refusing reply of the client's session into our words, or into `Broken` where asking again may help."""
    import time

    status = int(reply.status_code)
    if status < 400:
        return
    if status in HEALS:
        wait = asked_wait(reply.headers, time.time())
        if status == 429 and wait:
            Hold(run.endpoint, run.cache_dir / "hf_shards").ask(wait)
        raise Broken(f"status {status}", wait)
    raise refusal(status, reply.headers, what, run.endpoint, hub_token() is not None)


def _asking(ask: Callable[[], T], what: str, run: Run) -> T:
    """A call of the Hub client with our retries, deadlines and words."""
    if run.offline:
        raise Unreachable(
            f"{what}: HF_HUB_OFFLINE is set and nothing of it is in the index under {run.cache_dir}; run once online"
        )
    hold = Hold(run.endpoint, run.cache_dir / "hf_shards")

    def attempt() -> T:
        hold.wait()
        try:
            return ask()
        except (HeadraceError, Broken):
            raise
        except Exception as error:
            reply = getattr(error, "response", None)
            if reply is not None:
                _raise_for(reply, what, run)
            if isinstance(error, ValueError | TypeError | LookupError | RecursionError):
                raise Unreachable(
                    f"{what}: what {plain_url(run.endpoint)} answers is no answer of a Hub ({type(error).__name__}: "
                    f"{shown(error)}); a proxy or a login page in between may be the cause"
                ) from error
            if not _is_network(error):
                raise
            raise Broken(f"no answer ({type(error).__name__})") from error

    return retrying(attempt, what)


def _is_network(error: Exception) -> bool:
    """Errors of the HTTP client (httpx, by whatever name the Hub client carries it), which all share one root."""
    return any(c.__name__ in {"TransportError", "HTTPError", "RequestError"} for c in type(error).__mro__)
