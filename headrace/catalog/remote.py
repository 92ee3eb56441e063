"""Parquet behind a URL that fsspec knows (s3, gs, …): listed once, fetched into the same cache as Hub shards."""

from __future__ import annotations

import difflib
import errno
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from headrace.catalog.connections import is_untrusted
from headrace.catalog.listing import Listing, signature
from headrace.catalog.retry import HEALS, retrying
from headrace.catalog.shard import Broken, Origin, Shard
from headrace.catalog.source import Source
from headrace.catalog.transport import client_token
from headrace.errors import Changed, DataError, HeadraceError, NotAllowed, NotFound, SpecError, Unreachable, shown

BLOCK = 4 << 20
_TAGS = ("ETag", "etag", "version_id", "md5Hash", "LastModified", "last_modified", "mtime", "created", "xet_hash")
_PLAIN = {"hf": {"cache_type": "none"}}
"""What a file system must be told so that it reads just the bytes it is asked for."""

_FINAL = {errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTSUP}


@dataclass(frozen=True)
class RemoteOrigin(Origin):
    scheme: str
    base: str
    """The part of the path before the first wildcard."""
    root: str = ""
    """What stands before the paths of all shards: '/' where the file system has a root, and no buckets."""
    name: str = field(init=False)
    folder: tuple[str, ...] | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.scheme}:/{self.root}")
        digest = hashlib.blake2b(f"{self.scheme}://{self.base}".encode(), digest_size=6).hexdigest()
        object.__setattr__(self, "folder", ("hf_shards", "_fsspec", f"{self.scheme}-{digest}"))

    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        def attempt() -> bytes:
            with _explained(shard):
                fs, path = _filesystem(self.scheme), self.root + shard.path
                data: bytes = fs.cat_file(path, start=start, end=stop, **_PLAIN.get(self.scheme, {}))
            if len(data) != stop - start:
                raise Broken(f"{len(data)} bytes came where {stop - start} were asked for", wrong=True)
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
            info = _filesystem(self.scheme).info(self.root + shard.path, refresh=True)
        # A listing and a question about one file may say different things: what the listing said is compared.
        if info["size"] != shard.size or _tag(info, shard.etag.partition("=")[0]) not in ("", shard.etag):
            raise Changed(f"{shard} changed since it was listed; start anew on the changed file")


def list_remote(source: Source) -> Listing:
    _require_buckets(source.path)
    scheme, _, path = source.path.partition("://")
    fs, wild = _filesystem(scheme), any(c in path for c in "*?[")
    base = path[: min(i for c in "*?[" if (i := path.find(c)) >= 0)].rpartition("/")[0] if wild else path

    def ask() -> list[dict[str, Any]]:
        with _explained(source):
            if not wild:
                return [fs.info(path)]
            found = fs.glob(path, detail=True)
            return [found[p] for p in sorted(found) if found[p]["type"] == "file"]

    try:
        infos = retrying(ask, str(source))
    except NotFound as error:
        raise NotFound(f"{shown(source.path)}: no such file{_nearest(fs, path)}") from error
    if not infos:
        raise NotFound(f"no file matches {shown(source.path)}{_nearest(fs, path)}")
    if infos[0]["type"] == "directory":
        where = shown(source.path.rstrip("/"))
        raise DataError(f"{where} is a folder, not a file; name its files with a glob, for example {where}/*.parquet")
    return _listing(source, scheme, base, infos)


def list_folder(source: Source) -> Listing:
    """All files below a folder. What stands before their paths is the `base` of their origin."""
    _require_buckets(source.path)
    scheme = source.path.partition("://")[0]
    fs = _filesystem(scheme)
    path = str(fs._strip_protocol(source.path)).rstrip("/")
    base = path.lstrip("/")

    def ask() -> list[dict[str, Any]]:
        with _explained(source.path):
            fs.invalidate_cache(path)  # what was there before is not what is there
            found = fs.find(path, detail=True)
            return [found[name] for name in sorted(found) if name.strip("/") != base]

    infos = retrying(ask, source.path)
    if not infos:
        raise NotFound(f"{shown(source.path)}: there is no such folder, or no file in it{_nearest(fs, path)}")
    return _listing(source, scheme, base, infos)


def _listing(source: Source, scheme: str, base: str, infos: list[dict[str, Any]]) -> Listing:
    names = [str(i["name"]) for i in infos]
    root = "/" if all(name.startswith("/") for name in names) else ""
    files = []
    for name, info in zip(names, infos, strict=True):
        if not isinstance(info["size"], int):
            raise DataError(
                f"{scheme}://{shown(name)}: the server does not say how large it is, so its end is not found"
            )
        files.append((name.removeprefix(root), info["size"], _tag(info)))
    return Listing.of(source, signature(files), RemoteOrigin(scheme, base, root), files)


def _nearest(fs: Any, path: str) -> str:
    """The nearest names in the same folder, for an error; nothing where that cannot be found out."""
    folder, _, name = path.rpartition("/")
    try:
        names = [str(found).rstrip("/").rpartition("/")[2] for found in fs.ls(folder, detail=False)]
    except Exception:  # any error of any file system, in the middle of another
        return ""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or sorted(names)[:3]
    return f"; nearest in {shown(folder)}: {', '.join(shown(n) for n in near)}" if near else ""


def _tag(info: dict[str, Any], only: str = "") -> str:
    """What tells one content from another, as far as the file system says. Never taken for a hash of ours."""
    for key in _TAGS:
        value = info.get(key) if only in ("", key) else None
        if value:
            seconds = value.timestamp() if isinstance(value, datetime) else value
            text = f"{seconds:.6f}" if isinstance(seconds, float) else str(seconds).strip('"')
            return f"{key}={text}"
    return ""


def _filesystem(scheme: str) -> Any:
    import fsspec

    try:
        bare = scheme == "hf" and client_token() is False
        return fsspec.filesystem(scheme, token=False) if bare else fsspec.filesystem(scheme)
    except (ImportError, ValueError) as error:
        extra = "headrace[s3]" if scheme in ("s3", "s3a") else f"the fsspec package for {scheme}://"
        raise SpecError(f"{scheme}:// cannot be opened ({shown(error)}); pip install {extra}") from error


def _require_buckets(url: str) -> None:
    """To a client of the Hub from before its buckets, one is a repo that does not exist."""
    if not url.startswith("hf://buckets/"):
        return
    from huggingface_hub import HfApi, __version__

    if not hasattr(HfApi, "list_bucket_tree"):
        raise SpecError(
            f"{shown(url)}: huggingface_hub {__version__} is too old for buckets of the Hub; "
            f"pip install --upgrade huggingface_hub"
        )


class _explained:
    """Errors of a file system in our words; what may heal becomes `Broken`."""

    def __init__(self, what: object) -> None:
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, tb: Any) -> None:
        if not isinstance(error, Exception) or isinstance(error, HeadraceError | Broken):
            return
        what, name = shown(self.what), type(error).__name__
        if isinstance(error, FileNotFoundError):
            raise NotFound(f"{what}: no such file") from error
        if isinstance(error, PermissionError) or "credential" in name.lower():
            raise NotAllowed(
                f"{what}: access was refused ({name}); check the credentials of this file system"
            ) from error
        if is_untrusted(error):
            raise Unreachable(f"{what}: the certificate of its server is not trusted ({name})") from error
        # Also what is no OSError: each file system has errors of its own. The query of a URL may be a signature.
        why = f"{name}: {shown(re.sub(r'([?]|%3F)[^ ]*', '?…', str(error)))}"
        raise Broken(why, wrong=_is_answer(error)) from error


def _is_answer(error: Exception) -> bool:
    """Whether the server, or the file system itself, said something that waiting does not change."""
    reply = getattr(error, "response", None)
    for one, names in ((error, ("status", "status_code", "code")), (reply, ("status", "status_code"))):
        for status in (getattr(one, name, None) for name in names):
            if isinstance(status, int) and 400 <= status < 600:
                return status not in HEALS
    if isinstance(error, OSError):
        return error.errno in _FINAL
    return type(error).__module__ == "builtins" and not isinstance(error, EOFError)
