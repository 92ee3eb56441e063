"""File contents as the Hub names them: git blobs, or LFS objects known by their sha256."""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LFS_FROM_BYTES = 1_000_000
_SETTLED_NS = 1_000_000_000
_ARCHIVES = "7z bz2 gz lz4 rar tar tgz xz zip zst"
_TABLES = "arrow bin feather ftz h5 jsonl msgpack npy npz parquet pkl pt pth safetensors"
_MEDIA = "aac avi avif bmp flac gif jpeg jpg m4a mkv mov mp3 mp4 mpg ogg opus pcm png tif tiff wav webm webp wmv"
_LFS_SUFFIXES = frozenset(f"{_ARCHIVES} {_TABLES} {_MEDIA}".split())

Stamp = tuple[int, int, int]
Files = str | Path | Mapping[str, "bytes | Path"]


class ChangedOnDisk(Exception):
    """A file is not the one that was pushed."""


@dataclass(frozen=True, slots=True)
class Blob:
    """One content, in memory or on disk. Files on disk are read when they are asked for."""

    source: bytes | Path
    size: int
    lfs: bool
    etag: str
    """sha256 of the content for LFS, git's blob sha1 for the rest."""
    oid: str
    """git's blob sha1: for LFS, of the pointer file."""
    stamp: Stamp | None = None

    def check(self) -> None:
        """Raise `ChangedOnDisk` unless the file is as it was when it was pushed."""
        if isinstance(self.source, Path):
            try:
                stamp = _stamp(self.source.stat())
            except OSError:
                stamp = None
            if stamp != self.stamp:
                raise ChangedOnDisk(
                    f"{self.source} was changed or removed after it was pushed, so the commit that holds it cannot be"
                    " served any more; push bytes, or write new content to a new file"
                )


def pointer_size(blob: Blob) -> int:
    return len(_pointer(blob.etag, blob.size))


def make_blob(path: str, source: bytes | Path) -> Blob:
    """The blob of a file that is called `path` in its repo."""
    if isinstance(source, bytes):
        size, stamp = len(source), None
        lfs = _is_lfs(path, size)
        etag = hashlib.sha256(source).hexdigest() if lfs else git_hash("blob", source)
    else:
        status = source.stat()
        size, stamp = status.st_size, _stamp(status)
        lfs = _is_lfs(path, size)
        # Two writes within one tick of the file system's clock leave the same stamp, so young files are hashed anew.
        settled = time.time_ns() - status.st_mtime_ns > _SETTLED_NS
        etag = (_digest if settled else _digest.__wrapped__)(source, stamp, lfs)
    oid = git_hash("blob", _pointer(etag, size)) if lfs else etag
    return Blob(source, size, lfs, etag, oid, stamp)


def make_blobs(files: Files) -> dict[str, Blob]:
    """The blobs of a folder, or of a mapping from in-repo path to bytes or to a file on disk."""
    if isinstance(files, Mapping):
        return {path: make_blob(path, source) for path, source in files.items()}
    root = Path(files)
    if not root.is_dir():
        raise NotADirectoryError(
            f"{root} is not a folder; push a folder, or a mapping of in-repo path to bytes or file"
        )
    return {path: make_blob(path, source) for path, source in _walk(root)}


def git_hash(kind: str, body: bytes) -> str:
    # git's object ids are sha1 by definition; nothing here relies on them for security.
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(body)) + body, usedforsecurity=False).hexdigest()


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != ".git"]
        inside = Path(folder).relative_to(root).as_posix()
        prefix = "" if inside == "." else inside + "/"
        for name in names:
            yield prefix + name, Path(folder, name)


def _is_lfs(path: str, size: int) -> bool:
    return size > LFS_FROM_BYTES or path.rpartition(".")[2].lower() in _LFS_SUFFIXES


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=100_000)
def _digest(path: Path, stamp: Stamp, lfs: bool) -> str:
    if not lfs:
        return git_hash("blob", path.read_bytes())
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pointer(sha256: str, size: int) -> bytes:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
