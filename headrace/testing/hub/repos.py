"""Dataset repos, their commits and their trees. Pure: no sockets, no clock."""

from __future__ import annotations

import json
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from headrace.lazy import cached_property
from headrace.testing.hub.blobs import Blob, git_hash, pointer_size

Restriction = Literal["gated", "gated-files", "private"]

_FIRST_DATE = datetime(2024, 1, 1, tzinfo=UTC)


class Tree:
    """The files and folders of one commit, with git's own ids and in the order in which they are listed."""

    def __init__(self, blobs: Mapping[str, Blob]) -> None:
        self.blobs = dict(blobs)
        self._children = _children(self.blobs)
        self._folder_oids = _folder_oids(self.blobs, self._children)
        self._paths = sorted([*self.blobs, *(folder for folder in self._children if folder)])

    @property
    def oid(self) -> str:
        return self._folder_oids[""]

    def has_folder(self, path: str) -> bool:
        return path in self._children

    def oid_of(self, path: str) -> str | None:
        """The id of a file or folder; None when there is neither."""
        blob = self.blobs.get(path)
        return self._folder_oids.get(path) if blob is None else blob.oid

    def page(self, folder: str, *, recursive: bool, after: str | None, limit: int) -> tuple[list[str], bool]:
        """Up to `limit` paths below `folder` that follow the path `after`, and whether there are more."""
        if recursive:
            paths = self._paths
            # All that starts with "folder/" lies together in the sorted list, and "0" is the character after "/".
            first = bisect_left(paths, folder + "/") if folder else 0
            last = bisect_left(paths, folder + "0") if folder else len(paths)
        else:
            paths = self._children[folder]
            first, last = 0, len(paths)
        if after is not None:
            first = max(first, bisect_right(paths, after))
        return paths[first : min(first + limit, last)], first + limit < last

    def entry(self, path: str) -> dict[str, Any]:
        """The listing entry of a file or folder that exists."""
        blob = self.blobs.get(path)
        if blob is None:
            return {"type": "directory", "oid": self._folder_oids[path], "size": 0, "path": path}
        entry: dict[str, Any] = {"type": "file", "oid": blob.oid, "size": blob.size, "path": path}
        if blob.lfs:
            entry["lfs"] = {"oid": blob.etag, "size": blob.size, "pointerSize": pointer_size(blob)}
        return entry

    @cached_property
    def encoded(self) -> dict[str, bytes]:
        """The JSON of every entry, made once: a listing of many pages only joins."""
        return {path: json.dumps(self.entry(path)).encode() for path in self._paths}

    @cached_property
    def siblings(self) -> list[dict[str, Any]]:
        return [{"rfilename": path} for path in sorted(self.blobs)]

    @cached_property
    def siblings_with_blobs(self) -> list[dict[str, Any]]:
        siblings = []
        for path, blob in sorted(self.blobs.items()):
            sibling: dict[str, Any] = {"rfilename": path, "size": blob.size, "blobId": blob.oid}
            if blob.lfs:
                sibling["lfs"] = {"sha256": blob.etag, "size": blob.size, "pointerSize": pointer_size(blob)}
            siblings.append(sibling)
        return siblings


@dataclass(frozen=True, slots=True)
class Stub:
    """What a listing says of a commit."""

    id: str
    title: str
    date: str


class Commit:
    """One immutable state of a repo. Its id is git's: a pure function of the files and the parent."""

    id: str
    depth: int
    """How many commits came before."""

    def __init__(self, tree: Tree, parent: Commit | None) -> None:
        self.tree = tree
        self.parent = parent
        self.depth = 0 if parent is None else parent.depth + 1
        moment = _FIRST_DATE + timedelta(seconds=self.depth)
        title = f"Commit {self.depth + 1}"
        who = f"LocalHub <hub@localhost> {int(moment.timestamp())} +0000"
        lines = [f"tree {tree.oid}"] + ([f"parent {parent.id}"] if parent else [])
        lines += [f"author {who}", f"committer {who}", "", title, ""]
        self.id = git_hash("commit", "\n".join(lines).encode())
        self.stub = Stub(self.id, title, moment.strftime("%Y-%m-%dT%H:%M:%S.000Z"))

    def last_change(self, path: str) -> Stub:
        """The newest commit, from this one back, that changed a file or folder."""
        oid, commit = self.tree.oid_of(path), self
        while commit.parent is not None and commit.parent.tree.oid_of(path) == oid:
            commit = commit.parent
        return commit.stub

    def history(self) -> list[Commit]:
        """This commit and its ancestors, newest first."""
        commits = [self]
        while (parent := commits[-1].parent) is not None:
            commits.append(parent)
        return commits


class Repo:
    """Branches, tags and every commit that was ever pushed."""

    def __init__(self, repo_id: str) -> None:
        self.id = repo_id
        self.refs: dict[str, Commit] = {}
        self.commits: dict[str, Commit] = {}
        self.restriction: Restriction | None = None

    def find(self, revision: str) -> Commit | None:
        """The commit of a branch, a tag, a full ref or a full commit id."""
        for ref in (f"refs/heads/{revision}", f"refs/tags/{revision}", revision):
            if ref in self.refs:
                return self.refs[ref]
        return self.commits.get(revision)

    def add(self, tree: Tree, branch: str) -> Commit:
        ref = branch if branch.startswith("refs/") else f"refs/heads/{branch}"
        commit = Commit(tree, self.refs.get(ref))
        self.commits[commit.id] = commit
        self.refs[ref] = commit
        return commit


class Repos:
    """All repos of one Hub, and the names they had before."""

    def __init__(self) -> None:
        self._repos: dict[str, Repo] = {}
        self._moved: dict[str, str] = {}
        self._lock = threading.Lock()

    def push(self, repo_id: str, tree: Tree, branch: str) -> Commit:
        if repo_id.count("/") != 1 or not all(repo_id.split("/")):
            raise ValueError(f"{repo_id!r} is not the name of a repo: it must be 'namespace/name'")
        with self._lock:
            self._moved.pop(repo_id, None)
            repo = self._repos.setdefault(repo_id, Repo(repo_id))
            return repo.add(tree, branch)

    def get(self, repo_id: str) -> Repo | None:
        return self._repos.get(repo_id)

    def moved_to(self, repo_id: str) -> str | None:
        return self._moved.get(repo_id)

    def restrict(self, repo_id: str, how: Restriction | None) -> None:
        self._known(repo_id).restriction = how

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            repo = self._known(old)
            if new in self._repos:
                raise ValueError(f"cannot rename {old!r}: there is a repo {new!r} already")
            repo.id = new
            self._repos[new] = self._repos.pop(old)
            self._moved.pop(new, None)
            self._moved[old] = new

    def _known(self, repo_id: str) -> Repo:
        repo = self._repos.get(repo_id)
        if repo is None:
            known = ", ".join(sorted(self._repos)) or "none"
            raise ValueError(f"no repo {repo_id!r} on this Hub; there are: {known}")
        return repo


def _children(blobs: Mapping[str, Blob]) -> dict[str, list[str]]:
    """Each folder's direct children, sorted. The root is ''."""
    children: dict[str, list[str]] = {"": []}
    for path in blobs:
        if not path:
            raise ValueError("a file in a repo needs a name")
        child, new = path, True
        while new:
            folder = child.rpartition("/")[0]
            new = folder not in children
            children.setdefault(folder, []).append(child)
            child = folder
    for folder, paths in children.items():
        if folder in blobs:
            raise ValueError(f"{folder!r} cannot be both a file and a folder: {paths[0]!r} lies in it")
        paths.sort()
    return children


def _folder_oids(blobs: Mapping[str, Blob], children: Mapping[str, list[str]]) -> dict[str, str]:
    """git's tree id of every folder, from the deepest up."""
    oids: dict[str, str] = {}
    for folder in sorted(children, key=lambda path: path.count("/") + bool(path), reverse=True):
        rows: list[tuple[bytes, bytes, str]] = []
        for path in children[folder]:
            name = path.rpartition("/")[2].encode("utf-8", "surrogateescape")
            if path in blobs:
                rows.append((name, b"100644 " + name, blobs[path].oid))
            else:
                # git sorts a folder as if its name ended in a slash.
                rows.append((name + b"/", b"40000 " + name, oids[path]))
        oids[folder] = git_hash("tree", b"".join(row[1] + b"\0" + bytes.fromhex(row[2]) for row in sorted(rows)))
    return oids
