"""From a request to its answer: the part of the Hub's API that dataset clients use."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from urllib.parse import parse_qs, quote, urlencode

from headrace.testing.hub.answers import Answer, Asked, Refused, RepoFile, json_answer
from headrace.testing.hub.blobs import ChangedOnDisk
from headrace.testing.hub.card import describe
from headrace.testing.hub.log import Kind, Origin
from headrace.testing.hub.repos import Commit, Repo, Repos

EXPANDED_PAGE_SIZE = 50
_EXPIRED = b'<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>'


class Signer:
    """Signed links into the second origin, which expire."""

    def __init__(self) -> None:
        self.seconds = 3600.0
        self._key = secrets.token_bytes(16)

    def sign(self, file: RepoFile) -> str:
        """Path and query for `file`."""
        path = f"/datasets/{file.repo_id}/signed/{file.commit}/{file.path}"
        expires = str(int(time.time() + self.seconds))
        query = urlencode({"Expires": expires, "Signature": self._signature(path, expires)})
        return f"{quote(path, errors='surrogateescape')}?{query}"

    def holds(self, asked: Asked) -> bool:
        expires, signature = (asked.query.get(name, [""])[-1] for name in ("Expires", "Signature"))
        known = self._signature("/".join(("", *asked.segments)), expires)
        return hmac.compare_digest(known.encode(), signature.encode()) and time.time() < int(expires)

    def _signature(self, path: str, expires: str) -> str:
        return hmac.new(self._key, f"{path} {expires}".encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()


class Routes:
    """Answers requests to both origins. Holds no sockets, so that it may be called from any thread."""

    def __init__(self, repos: Repos, signer: Signer, page_size: int) -> None:
        self.repos = repos
        self.signer = signer
        self.page_size = page_size
        self.endpoint = ""
        self.redirect_lfs: Callable[[RepoFile], str] | None = None
        """Where set: the address in the second origin that LFS files are redirected to."""

    def answer(self, origin: Origin, asked: Asked) -> Answer:
        try:
            return self._signed(asked) if origin == "cdn" else self._route(asked)
        except Refused as refusal:
            return refusal.answer()
        except ChangedOnDisk as error:
            return Refused(410, "ChangedOnDisk", str(error)).answer()

    def _route(self, asked: Asked) -> Answer:
        parts = asked.segments
        api = parts[:2] == ("api", "datasets")
        at = 2 if api else 1
        if (not api and (parts[:1] != ("datasets",) or parts[3:4] != ("resolve",))) or len(parts) < at + 2:
            raise Refused(404, "RepoNotFound", "This Hub serves datasets only")
        repo_id, rest = "/".join(parts[at : at + 2]), parts[at + 2 :]
        moved_to = self.repos.moved_to(repo_id)
        if moved_to is not None:
            raw = asked.raw_path.split("/")
            query = urlencode(asked.query, doseq=True)
            location = "/".join([*raw[: at + 1], moved_to, *raw[at + 3 :]]) + (f"?{query}" if query else "")
            return Answer(307, {"Location": location})
        verb = rest[0] if rest else "revision"
        repo = self._repo(repo_id, asked, verb)
        revision, path = _revision_and_path(rest)
        if verb == "refs":
            return json_answer(_refs(repo))
        commit = repo.find(revision)
        if commit is None:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if not api:
            return self._file(repo, commit, path, asked)
        if verb == "revision":
            return json_answer(describe(repo, commit, asked))
        if verb == "tree":
            return self._tree(commit, path, asked)
        if verb == "paths-info":
            return json_answer(_paths_info(commit, asked))
        if verb == "commits":
            return json_answer([_commit_entry(commit) for commit in commit.history()])
        raise Refused(404, "", f"This Hub has no {verb!r}")

    def _repo(self, repo_id: str, asked: Asked, verb: str) -> Repo:
        repo = self.repos.get(repo_id)
        if repo is None or (repo.restriction == "private" and not asked.token_ok):
            # The Hub doesn't say which repos exist: without a valid token a missing one looks like a private one.
            status, message = (
                (404, "Repository not found") if asked.token_ok else (401, "Invalid username or password.")
            )
            raise Refused(status, "RepoNotFound", message)
        gated = repo.restriction == "gated" or (repo.restriction == "gated-files" and verb == "resolve")
        if gated and not asked.token_ok:
            message = f"Access to dataset {repo_id} is restricted and you are not in the authorized list."
            raise Refused(403, "GatedRepo", message)
        return repo

    def _file(self, repo: Repo, commit: Commit, path: str, asked: Asked) -> Answer:
        blob = commit.tree.blobs.get(path)
        if blob is None:
            raise Refused(404, "EntryNotFound", f"Entry not found: {path}")
        etag = f'"{blob.etag}"'
        headers = {"X-Repo-Commit": commit.id, "ETag": etag, "Accept-Ranges": "bytes"}
        file = RepoFile(repo.id, commit.id, path)
        if blob.lfs:
            headers |= {"X-Linked-Etag": etag, "X-Linked-Size": str(blob.size)}
            if self.redirect_lfs is not None:
                return Answer(302, headers | {"Location": self.redirect_lfs(file)}, file=file)
        return self._content(file, commit, headers, asked)

    def _signed(self, asked: Asked) -> Answer:
        parts = asked.segments
        if len(parts) < 6 or parts[0] != "datasets" or parts[3] != "signed" or not self.signer.holds(asked):
            return Answer(403, {"Content-Type": "application/xml"}, _EXPIRED, 0, len(_EXPIRED))
        file = RepoFile("/".join(parts[1:3]), parts[4], "/".join(parts[5:]))
        repo = self.repos.get(self.repos.moved_to(file.repo_id) or file.repo_id)
        commit = repo.find(file.commit) if repo else None
        if commit is None:
            raise Refused(404, "", "No such key")
        headers = {"ETag": f'"{commit.tree.blobs[file.path].etag}"', "Accept-Ranges": "bytes"}
        return self._content(file, commit, headers, asked)

    def _content(self, file: RepoFile, commit: Commit, headers: dict[str, str], asked: Asked) -> Answer:
        blob = commit.tree.blobs[file.path]
        blob.check()
        answer = Answer(200, {"Content-Type": "application/octet-stream", **headers}, file=file)
        answer.whole(blob)
        if asked.method != "HEAD":
            answer.narrow(asked.headers)
        return answer

    def _tree(self, commit: Commit, folder: str, asked: Asked) -> Answer:
        tree = commit.tree
        if not tree.has_folder(folder):
            raise Refused(404, "EntryNotFound", f"{folder} does not exist on this revision")
        expand = asked.flag("expand")
        limit = min(self.page_size, EXPANDED_PAGE_SIZE) if expand else self.page_size
        asked_limit = asked.query.get("limit", [""])[-1]
        if asked_limit.isdecimal():
            limit = max(1, min(limit, int(asked_limit)))
        cursor = asked.query.get("cursor", [""])[-1]
        after = base64.urlsafe_b64decode(cursor).decode("utf-8", "surrogateescape") if cursor else None
        paths, more = tree.page(folder, recursive=asked.flag("recursive"), after=after, limit=limit)
        headers = {}
        if more:
            cursor = base64.urlsafe_b64encode(paths[-1].encode("utf-8", "surrogateescape")).decode()
            query = urlencode({**asked.query, "cursor": [cursor]}, doseq=True)
            headers["Link"] = f'<{self.endpoint}{asked.raw_path}?{query}>; rel="next"'
        if expand:
            return json_answer([_expanded(commit, path) for path in paths], headers)
        encoded = tree.encoded
        return json_answer(b"[" + b",".join([encoded[path] for path in paths]) + b"]", headers)


def kind_of(origin: Origin, segments: tuple[str, ...]) -> Kind:
    """What sort of request a path is, for the log."""
    if origin == "cdn":
        return "cdn"
    if segments[:1] == ("api",):
        return "tree" if segments[4:5] == ("tree",) else "api"
    return "resolve" if segments[3:4] == ("resolve",) else "other"


def _revision_and_path(rest: tuple[str, ...]) -> tuple[str, str]:
    # A ref such as refs/convert/parquet is one quoted part, or three bare ones.
    revision_parts = 3 if rest[1:2] == ("refs",) and len(rest) >= 4 else 1
    revision = "/".join(rest[1 : 1 + revision_parts]) or "main"
    return revision, "/".join(rest[1 + revision_parts :]).removesuffix("/")


def _refs(repo: Repo) -> dict[str, list[dict[str, str]]]:
    groups = {"refs/heads/": "branches", "refs/tags/": "tags", "refs/convert/": "converts", "refs/pr/": "pullRequests"}
    found: dict[str, list[dict[str, str]]] = {group: [] for group in groups.values()}
    for ref, commit in sorted(repo.refs.items()):
        for prefix, group in groups.items():
            if ref.startswith(prefix):
                found[group].append({"name": ref.removeprefix(prefix), "ref": ref, "targetCommit": commit.id})
    return found


def _commit_entry(commit: Commit) -> dict[str, object]:
    stub = commit.stub
    return {"id": stub.id, "title": stub.title, "message": "", "date": stub.date, "authors": [{"user": "LocalHub"}]}


def _expanded(commit: Commit, path: str) -> dict[str, object]:
    entry, stub = commit.tree.entry(path), commit.last_change(path)
    entry["lastCommit"] = {"id": stub.id, "title": stub.title, "date": stub.date}
    if entry["type"] == "file":
        entry["securityFileStatus"] = {"status": "safe", "avScan": None, "pickleImportScan": None}
    return entry


def _paths_info(commit: Commit, asked: Asked) -> list[dict[str, object]]:
    if asked.method != "POST":
        raise Refused(405, "", "paths-info takes a POST")
    if asked.headers.get("content-type", "").startswith("application/json"):
        form = json.loads(asked.body)
        paths, expand = form["paths"], bool(form.get("expand"))
    else:
        fields = parse_qs(asked.body.decode())
        paths, expand = fields.get("paths", []), fields.get("expand", [""])[-1].lower() in ("1", "true")
    found = [path for path in paths if path and commit.tree.oid_of(path) is not None]
    return [_expanded(commit, path) if expand else commit.tree.entry(path) for path in found]
