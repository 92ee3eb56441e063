"""Shards of one commit of a Hub dataset repo, read by plain HTTP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from headrace.catalog.retry import Tries, retrying
from headrace.catalog.shard import Broken, Origin, Restart, Shard, safe_parts
from headrace.catalog.source import REPO
from headrace.catalog.transport import Reply, Transport, checked_endpoint
from headrace.errors import Changed, NotFound, SpecError, Unreachable, shown
from headrace.run import DEFAULT_ENDPOINT

MAX_WASTE = 64 << 20
"""Bytes beyond those asked for that are read, at most, from a server that ignores ranges."""


@dataclass(frozen=True)
class HubOrigin(Origin):
    repo_id: str
    commit: str
    split: str
    endpoint: str = DEFAULT_ENDPOINT
    stall_seconds: float = 30.0
    cache_root: Path | None = None
    """Where processes tell each other that the Hub asked for a pause."""
    offline: bool = False
    name: str = field(init=False, repr=False, compare=False)
    folder: tuple[str, ...] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not REPO.fullmatch(self.repo_id):
            raise SpecError(f"{shown(self.repo_id)!r} is not the name of a Hub repo, which reads like 'org/name'")
        if not re.fullmatch(r"[0-9a-f]{40}", self.commit):
            raise SpecError(f"{shown(self.commit)!r} is not a commit of 40 hex digits; branches are resolved before")
        object.__setattr__(self, "endpoint", checked_endpoint(self.endpoint))
        object.__setattr__(self, "name", f"{self.repo_id}@{self.commit[:8]}")
        object.__setattr__(self, "folder", ("hf_shards", *self.repo_id.split("/"), self.split))

    def url(self, path: str) -> str:
        safe_parts(path)
        return f"{self.endpoint}/datasets/{self.repo_id}/resolve/{self.commit}/{quote(path, safe='/')}"

    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        if not 0 <= start <= stop or (shard.size >= 0 and stop > shard.size):
            raise SpecError(f"{shard}: bytes [{start}, {stop}) are outside its {shard.size} bytes")
        body = bytearray()
        tries = Tries(str(shard))
        while (at := start + len(body)) < stop:
            try:
                for chunk in self._range(shard, at, stop):
                    body += chunk
            except Broken as broken:
                tries.failed(broken, start + len(body) - at, stop - at)
        return bytes(body)

    def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
        resumed = start > 0
        reply = self._open(shard, start or None, None, if_range=f'"{shard.etag}"' if resumed and shard.etag else None)
        with reply:
            try:
                self._check(reply, shard)
                if reply.status == 206:
                    _check_range(reply, shard, start, shard.size if shard.size >= 0 else None)
                elif resumed:
                    raise Restart(f"status {reply.status} to a request for a range")
                else:
                    _check_length(reply, shard.size)
            except Broken as broken:
                if resumed:
                    raise Restart(str(broken)) from broken
                raise
            yield from reply.chunks()

    def read_small(self, path: str, limit: int) -> bytes | None:
        """A small file of the repo, whole; None where there is none."""
        shard = Shard(path, -1, "", self)

        def attempt() -> bytes:
            with self._open(shard, None, None) as reply:
                self._check(reply, shard)
                return bytes(reply.read(limit))

        try:
            return retrying(attempt, str(shard))
        except NotFound:
            return None

    def _open(self, shard: Shard, start: int | None, stop: int | None, *, if_range: str | None = None) -> Reply:
        if self.offline:
            raise Unreachable(
                f"{shard}: not in the cache, and HF_HUB_OFFLINE forbids to fetch it; unset HF_HUB_OFFLINE, or fetch it "
                f"once while online with the same cache folder"
            )
        transport = Transport(self.endpoint, self.stall_seconds, self.cache_root)
        return transport.open(self.url(shard.path), str(shard), start=start, stop=stop, if_range=if_range)

    def _range(self, shard: Shard, start: int, stop: int) -> Iterator[bytes]:
        with self._open(shard, start, stop) as reply:
            self._check(reply, shard)
            if reply.status == 206:
                _check_range(reply, shard, start, stop)
                yield from _sliced(reply, 0, stop - start)
                return
            waste = start if shard.size < 0 else shard.size - (stop - start)
            if waste > MAX_WASTE:
                raise Unreachable(
                    f"{shard}: the server ignores ranges, and {waste:,} bytes would be read in vain for the "
                    f"{stop - start:,} bytes from {start:,} on; a proxy in between may be the cause"
                )
            _check_length(reply, shard.size)
            yield from _sliced(reply, start, stop)

    def _check(self, reply: Reply, shard: Shard) -> None:
        """That the reply is about the content we know, at the commit we know, and comes as it is."""
        if reply.status == 416:
            raise Broken(f"{shard} is shorter on the server than expected (416)", error=Changed, wrong=True)
        commit = reply.first.get("x-repo-commit", self.commit)
        if commit != self.commit:
            raise Broken(
                f"the server speaks of commit {shown(commit)} where {self.commit} was asked for",
                error=Changed,
                wrong=True,
            )
        etag = reply.first.get("x-linked-etag") or reply.first.get("etag") or ""
        etag = etag.strip().removeprefix("W/").strip('"')
        if etag and shard.etag and etag != shard.etag:
            why = f"the server has etag {shown(etag)} where {shown(shard.etag)} is expected"
            raise Broken(why, error=Changed, wrong=True)
        encoding = reply.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", ""):
            why = f"the body came with Content-Encoding {shown(encoding)!r}, which was not asked for"
            raise Broken(why, wrong=True)


def _check_length(reply: Reply, size: int) -> None:
    if size >= 0 and reply.length is not None and reply.length != size:
        raise Broken(f"the server announces {reply.length:,} bytes where {size:,} are expected", wrong=True)


def _check_range(reply: Reply, shard: Shard, start: int, stop: int | None) -> None:
    said = reply.headers.get("content-range", "")
    found = re.fullmatch(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", said.strip())
    if (
        not found
        or int(found[1]) != start
        or (stop is not None and int(found[2]) != stop - 1)
        or (shard.size >= 0 and found[3] not in ("*", str(shard.size)))
    ):
        wanted = f"bytes {start}-{'…' if stop is None else stop - 1}/{shard.size if shard.size >= 0 else '…'}"
        why = f"the server answered with Content-Range {shown(said)!r} where {wanted!r} was asked for"
        raise Broken(why, wrong=True)
    _check_length(reply, int(found[2]) + 1 - start)


def _sliced(reply: Reply, start: int, stop: int) -> Iterator[bytes]:
    """Exactly bytes [start, stop) of the body; what comes after is not read."""
    at = 0
    for chunk in reply.chunks():
        piece = chunk[max(0, start - at) : max(0, stop - at)]
        at += len(chunk)
        if piece:
            yield piece
        if at >= stop:
            return
    if at < stop:
        raise Broken(f"the body ended {stop - at:,} bytes early")
