"""Where a LeRobot data set lies: a repo on the Hub, a folder, a bucket. Its files, listed once and pinned."""

from __future__ import annotations

import difflib
import logging
import os
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Self

from headrace.catalog import hub
from headrace.catalog.hub_origin import HubOrigin
from headrace.catalog.index import load_listing, save
from headrace.catalog.listing import Listing, signature
from headrace.catalog.local import LocalOrigin
from headrace.catalog.open import index_folder, pin_commit
from headrace.catalog.plain import PlainFile, nearest
from headrace.catalog.remote import RemoteOrigin, list_folder
from headrace.catalog.shard import Shard, safe_parts
from headrace.catalog.source import REPO, Source
from headrace.catalog.stop import stopped_by
from headrace.errors import Changed, DataError, NotAllowed, NotFound, SpecError, StateError, Unreachable, shown
from headrace.lerobot.info import VERSION, old_version, parse_version
from headrace.locks import locked
from headrace.run import Run

log = logging.getLogger(__name__)

INFO = "meta/info.json"
DATED, HELD = re.compile(r"files-[0-9a-f]+"), re.compile(r"robot-[0-9a-f]+")
"""Revisions of folders: by the dates of their files, as they once were, and by what they hold."""
LARGEST = 16 << 20
"""A file of metadata that is read whole has no more bytes."""
MOST_NEAR = 10_000
"""So many names are looked through for one that may have been meant."""


@dataclass(frozen=True, eq=False)
class Root:
    """The files of a data set, by their paths in it. Holds no connection, so it travels to workers as it is."""

    name: str
    """For messages: `org/name@commit8`, a folder, a URL."""
    url: str
    """Where it is, in full: `hf://datasets/org/name@commit`, a folder, a URL."""
    listing: Listing
    prefix: str = ""
    """What stands before every path in the listing."""

    @classmethod
    def open(
        cls,
        path: str,
        run: Run,
        revision: str | None = None,
        root: str | Path | None = None,
        pinned: str | None = None,
    ) -> Self:
        """List the files at `root`, where there is such a folder, or at `path`.

        `revision`: of a repo, a branch, a tag or a commit; None: the tag of the format. `pinned`: the revision of a
        state, which what is found must be; a signature of files is taken for one also as `revision`.
        """
        where = str(path) if root is None else str(root)
        if not where or "\0" in where:
            raise SpecError(f"{shown(where)!r} is the name of no place: it is empty or holds a NUL")
        if root is not None and "://" not in where and not _is_set(where):
            log.info("%s is no LeRobot data set; reading %s instead", shown(where), shown(path))
            where = str(path)
        if revision is not None and DATED.fullmatch(revision):
            revision, pinned = None, pinned or revision  # it comes from a state
        scheme, mark, rest = where.partition("://")
        if mark and scheme == "hf" and rest.startswith("datasets/"):
            where, _, own = rest.removeprefix("datasets/").rstrip("/").partition("@")
            return cls._hub(where, run, own or revision, pinned)
        if mark and scheme in ("http", "https"):
            raise SpecError(
                f"{shown(where.partition('?')[0])}: the files of a folder behind {scheme} cannot be listed; name a Hub "
                f"repo as 'org/name', a local folder, or a URL of a file system such as s3://"
            )
        folder = where.removeprefix("file://")
        if not mark and not _is_set(folder) and _is_repo(folder):
            return cls._hub(folder, run, revision, pinned)
        if revision is not None and root is None:
            raise SpecError(
                f"revision={shown(revision)!r}: {shown(where)} is no repo of the Hub, and only those have revisions; "
                f"leave it out (where it comes from a state, that was made on the repo)"
            )
        return cls._local(folder, pinned) if scheme == "file" or not mark else cls._remote(where, pinned)

    @property
    def revision(self) -> str:
        """The commit of a repo, or a signature of the files with their sizes and dates."""
        return self.listing.revision

    def paths(self) -> Iterator[str]:
        """Of all files, sorted."""
        return (path[len(self.prefix) :] for path in self.listing.paths)

    def has(self, path: str) -> bool:
        return self._number(path) is not None

    def shard(self, path: str) -> Shard:
        number = self._number(path)
        if number is not None:
            return self.listing.shard(number)
        safe_parts(path)
        if isinstance(self.listing.origin, LocalOrigin):
            PlainFile(self.prefix + path).close()  # knows best what is wrong with it
            raise Changed(f"{shown(self.prefix + path)} was not there when the data set was listed; start anew")
        raise NotFound(f"{self.name}: there is no file {shown(path)}{self._near(path)}")

    def read(self, path: str, limit: int = LARGEST) -> bytes:
        """A small file, whole."""
        shard = self.shard(path)
        if shard.size > limit:
            raise DataError(f"{shard} has {shard.size:,} bytes, more than the {limit:,} that such a file may have")
        return shard.origin.read(shard, 0, shard.size)

    def _number(self, path: str) -> int | None:
        paths, wanted = self.listing.paths, self.prefix + path
        number = bisect_left(paths, wanted)
        return number if number < len(paths) and paths[number] == wanted else None

    def _near(self, path: str) -> str:
        """The nearest names, those in the same folder first."""
        folder = path.rpartition("/")[0] + "/"
        start = bisect_left(self.listing.paths, self.prefix + folder)
        some = [name[len(self.prefix) :] for name in self.listing.paths[start : start + MOST_NEAR]]
        names = [name for name in some if name.startswith(folder)]
        near = difflib.get_close_matches(path, names or list(islice(self.paths(), MOST_NEAR)), n=3, cutoff=0.4)
        return f"; nearest: {', '.join(shown(name) for name in near)}" if near else ""

    # --- the three kinds

    @classmethod
    def _local(cls, folder: str, pinned: str | None) -> Self:
        if not os.path.isdir(folder):  # noqa: PTH112 - does not raise where the way to it is barred
            raise NotFound(
                f"{shown(folder)}: there is no such folder, and it is no repo name like 'org/name'"
                f"{nearest(Path(folder)) if '/' in folder else ''}"
            )
        prefix = folder.rstrip("/") + "/"
        found = sorted(_walk(prefix, "", set()))
        files = [(prefix + path, size, date) for path, size, date in found]
        # By the paths inside, so that the folder as a whole may be elsewhere.
        listing = Listing.of(Source(kind="lerobot", path=folder), signature(found), LocalOrigin(), files)
        return cls._checked(shown(prefix.rstrip("/") or "/"), folder, listing, prefix, pinned)

    @classmethod
    def _remote(cls, url: str, pinned: str | None) -> Self:
        listing = list_folder(Source(kind="lerobot", path=url))
        origin = listing.origin
        assert isinstance(origin, RemoteOrigin)
        return cls._checked(shown(url.rstrip("/")), url, listing, f"{origin.base}/", pinned)

    @classmethod
    def _hub(cls, repo: str, run: Run, revision: str | None, pinned: str | None) -> Self:
        if not _is_repo(repo):
            raise SpecError(f"{shown(repo)!r} is not the name of a Hub repo, which reads like 'org/name'")
        if pinned is not None and not re.fullmatch(r"[0-9a-f]{40}", pinned):
            raise StateError(f"{repo}: revision: {shown(pinned)!r} is not a commit")
        source = Source(kind="lerobot", path=repo, revision=revision)
        folder = index_folder(run, "hf_index") / repo
        with locked(folder / ".lock") as beat, stopped_by(None, on_beat=beat):
            wanted = replace(source, revision=revision or VERSION)
            commit = pin_commit(wanted, run, folder, pinned, lambda _, run: _resolve(source, run))
            index = folder / f"lerobot~{commit}.json"
            known = load_listing(index)
            origin = HubOrigin(
                repo, commit, "lerobot", run.endpoint, run.stall_seconds, run.cache_dir / "hf_shards", run.offline
            )
            if known is None:
                if run.offline:
                    raise Unreachable(f"{source}: HF_HUB_OFFLINE is set, and {index} does not exist; run once online")
                files = sorted(hub.list_files(source, commit, run))
                listing = Listing.of(source, commit, origin, files)
                save(index, listing, None)
            else:
                listing = Listing.of(source, commit, origin, sorted((p, s, e) for p, s, e in known["files"]))
        return cls._checked(origin.name, f"hf://datasets/{repo}@{commit}", listing, "", None)

    @classmethod
    def _checked(cls, name: str, url: str, listing: Listing, prefix: str, pinned: str | None) -> Self:
        if pinned is not None and pinned != listing.revision:
            raise Changed(
                f"{name}: its files are not those the state was made on (a path, a size or a date differs); rows may "
                f"have moved, so start anew"
            )
        found = cls(name, url, listing, prefix)
        if not found.has(INFO):
            raise NotFound(f"{name} is no LeRobot data set: it has no {INFO}{found._near(INFO)}")
        return found


def is_on_hub(place: str) -> bool:
    """Whether a repo of the Hub is read."""
    scheme, mark, rest = place.partition("://")
    return (scheme == "hf" and rest.startswith("datasets/")) if mark else not _is_set(place) and _is_repo(place)


def is_pin(revision: str | None) -> bool:
    """Whether it is one that a data set which is no repo has."""
    return revision is not None and (DATED.fullmatch(revision) or HELD.fullmatch(revision)) is not None


def kept_at(root: Root, run: Run) -> Path | None:
    """Where a data set lies on this disk, or what was fetched of it does; None: nothing of it is here."""
    origin = root.listing.origin
    if isinstance(origin, LocalOrigin):
        return Path(root.prefix)
    return run.cache_dir / "hf_shards" / origin.repo_id if isinstance(origin, HubOrigin) else None


def _is_set(folder: str) -> bool:
    """Whether there is a folder with a data set, or with what is left of one."""
    return os.path.exists(os.path.join(folder, INFO))  # noqa: PTH110, PTH118 - never raises


def _is_repo(text: str) -> bool:
    return "/" in text and REPO.fullmatch(text) is not None and ".." not in text


def _resolve(source: Source, run: Run) -> str:
    """The commit of the revision that was asked for, or of the tag that names the format."""
    if source.revision is not None:
        return hub.resolve(source, run)
    try:
        return hub.resolve(source, run, VERSION)
    except NotFound as error:
        names = hub.ref_names(source, run)  # where there is no such repo, it says so
        missing = error
    versions = {version: name for name in names if (version := parse_version(name)) is not None}
    best = max((version for version in versions if version[0] == 3), default=None)
    if best is not None:
        log.warning("%s has no tag %s; reading %s", source.path, VERSION, shown(versions[best]))
        return hub.resolve(source, run, versions[best])
    if not versions:
        raise NotFound(
            f"{source.path} has no tag {VERSION}, by which a LeRobot data set names its format; have its owner make "
            f"one, or name what to read, for example revision='main'"
        ) from missing
    newest = max(versions)
    if newest[0] < 3:
        raise DataError(f"{source.path}: {old_version(versions[newest])}") from missing
    raise DataError(
        f"{source.path}: it is of format {shown(versions[newest])}, which is newer than the v3 that is read here; "
        f"update headrace"
    ) from missing


def _walk(root: str, below: str, above: set[tuple[int, int]]) -> Iterator[tuple[str, int, str]]:
    """(path, size, date) of each file below a folder, but for names that begin with a dot. Follows links, not rings."""
    try:
        here = os.stat(root + below)  # noqa: PTH116 - one string, many times
        entries = list(os.scandir(root + below))
    except PermissionError as error:
        raise NotAllowed(f"{shown(root + below)} may not be read by this user ({error.strerror})") from error
    if (here.st_dev, here.st_ino) in above:
        return
    above = above | {(here.st_dev, here.st_ino)}
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _walk(root, f"{below}{entry.name}/", above)
        elif entry.is_file():  # not a broken link, not a device
            found = entry.stat()
            yield below + entry.name, found.st_size, str(found.st_mtime_ns)
