"""Parquet behind a URL that fsspec knows (s3, gs, …): listed once, fetched into the same cache as Hub shards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.catalog.listing import Listing, signature
from headrace.catalog.retry import retrying
from headrace.catalog.shard import Broken, Origin, Shard
from headrace.catalog.source import Source
from headrace.errors import Changed, NotAllowed, NotFound, SpecError, shown

BLOCK = 4 << 20


@dataclass(frozen=True)
class RemoteOrigin(Origin):
    scheme: str
    base: str
    """The part of the path before the first wildcard."""
    name: str = field(init=False)
    folder: tuple[str, ...] | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.scheme}:/")
        digest = hashlib.blake2b(f"{self.scheme}://{self.base}".encode(), digest_size=6).hexdigest()
        object.__setattr__(self, "folder", ("hf_shards", "_fsspec", f"{self.scheme}-{digest}"))

    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        def attempt() -> bytes:
            with _explained(shard):
                data: bytes = _filesystem(self.scheme).cat_file(shard.path, start=start, end=stop)
            if len(data) != stop - start:
                raise Broken(f"{len(data)} bytes came where {stop - start} were asked for")
            return data

        return retrying(attempt, str(shard))

    def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
        self._check_same(shard)
        while start < shard.size:
            data = self.read(shard, start, min(start + BLOCK, shard.size))
            yield data
            start += len(data)

    def _check_same(self, shard: Shard) -> None:
        """The object still is the one that was listed: a read by range cannot tell."""
        with _explained(shard):
            info = _filesystem(self.scheme).info(shard.path, refresh=True)
        if int(info["size"]) != shard.size or _tag(info) != shard.etag:
            raise Changed(f"{shard} changed since it was listed; start anew on the changed file")


def list_remote(source: Source) -> Listing:
    scheme, _, path = source.path.partition("://")
    fs, wild = _filesystem(scheme), any(c in path for c in "*?[")
    base = path[: min(i for c in "*?[" if (i := path.find(c)) >= 0)].rpartition("/")[0] if wild else path

    def ask() -> list[dict[str, Any]]:
        with _explained(source):
            if not wild:
                return [fs.info(path)]
            found = fs.glob(path, detail=True)
            return [found[p] for p in sorted(found) if found[p]["type"] == "file"]

    infos = retrying(ask, str(source))
    if not infos:
        raise NotFound(f"no file matches {shown(source.path)}")
    files = [(str(i["name"]), int(i["size"]), _tag(i)) for i in infos]
    return Listing.of(source, signature(files), RemoteOrigin(scheme, base), files)


def _tag(info: dict[str, Any]) -> str:
    """What tells one content from another, as far as the file system says. Never taken for a hash of ours."""
    for key in ("ETag", "etag", "version_id", "md5Hash", "LastModified", "last_modified", "mtime", "created"):
        if info.get(key):
            return f"{key}={str(info[key]).strip(chr(34))}"
    return ""


def _filesystem(scheme: str) -> Any:
    import fsspec

    try:
        return fsspec.filesystem(scheme)
    except (ImportError, ValueError) as error:
        extra = "headrace[s3]" if scheme in ("s3", "s3a") else f"the fsspec package for {scheme}://"
        raise SpecError(f"{scheme}:// cannot be opened ({shown(error)}); pip install {extra}") from error


class _explained:
    """Errors of a file system in our words; what may heal becomes `Broken`."""

    def __init__(self, what: object) -> None:
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, tb: Any) -> None:
        if isinstance(error, FileNotFoundError):
            raise NotFound(f"{self.what}: no such file") from error
        if isinstance(error, PermissionError):
            raise NotAllowed(f"{self.what}: access was refused; check the credentials of this file system") from error
        if isinstance(error, OSError | TimeoutError):
            raise Broken(f"{type(error).__name__}: {shown(error)}") from error
