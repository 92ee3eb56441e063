"""Parts of a video as shards of their own, so that the common cache fetches, counts, locks and removes them too.

A part has no hash of its own. What vouches for its bytes: the server's word on each reply that they are this range of
this content (HubOrigin: etag, commit, Content-Range; a file system: size and tag of the object, asked when a fetch
begins), its length, and the cache's look at the file (inode, size, times) each time it is taken. A part of another
content has another name in the cache, because the etag of the whole is in its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from headrace.catalog.remote import RemoteOrigin
from headrace.catalog.shard import Origin, Restart, Shard
from headrace.fetch.download import is_hash

if TYPE_CHECKING:
    from headrace.fetch.media.mp4 import Track

BLOCK = 8 << 20
"""A range is asked for in pieces of so many bytes, which is what a killed download loses at most."""
LONGEST_NAME = 200
"""In bytes; file systems take 255, and the cache's own files have longer names than what they stand beside."""
_FORM = b"headrace head 1\n"


@dataclass(frozen=True)
class _PartOrigin(Origin):
    """Where a part of a shard comes from. To the cache it looks like the origin of the whole."""

    whole: Shard
    name: str = field(init=False, repr=False, compare=False)
    folder: tuple[str, ...] | None = field(init=False, repr=False, compare=False)
    commit: str = field(init=False, repr=False, compare=False)
    stall_seconds: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        origin = self.whole.origin
        # A content that is known by its hash is the same at every commit.
        name = origin.name.partition("@")[0] if is_hash(self.whole.etag) else origin.name
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "folder", origin.folder)
        object.__setattr__(self, "commit", str(getattr(origin, "commit", "")))
        object.__setattr__(self, "stall_seconds", float(getattr(origin, "stall_seconds", 30.0)))

    def _check_same(self) -> None:
        """A file system's reads by range cannot tell whether the object is still the one that was listed."""
        origin = self.whole.origin
        if isinstance(origin, RemoteOrigin):
            for _ in origin.stream(self.whole, self.whole.size):
                pass  # it asks first, and has nothing left to give


@dataclass(frozen=True)
class RangeOrigin(_PartOrigin):
    """Bytes [first, stop) of a shard."""

    first: int
    stop: int

    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        return self.whole.origin.read(self.whole, self.first + start, self.first + stop)

    def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
        self._check_same()
        for at in range(self.first + start, self.stop, BLOCK):
            yield self.whole.origin.read(self.whole, at, min(at + BLOCK, self.stop))


@dataclass(frozen=True)
class HeadOrigin(_PartOrigin):
    """What a parser reads of a video to know where its frames are, found by reading it."""

    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        return b"".join(self.stream(shard))[start:stop]

    def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
        if start:
            raise Restart("what a parser reads is found from the start")
        self._check_same()
        yield Head.gathered(self.whole)[0].encoded()


def range_of(whole: Shard, first: int, stop: int) -> Shard:
    path, etag = _beside(whole.path, f".bytes-{first}-{stop}"), f"{whole.etag}[{first}:{stop}]"
    return Shard(path, stop - first, etag, RangeOrigin(whole, first, stop))


def head_of(whole: Shard) -> Shard:
    return Shard(_beside(whole.path, ".head"), -1, f"{whole.etag}[head 1]", HeadOrigin(whole))


def _beside(path: str, ending: str) -> str:
    folder, slash, name = path.rpartition("/")
    if len((name + ending).encode("utf-8", "surrogatepass")) > LONGEST_NAME:
        name = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return folder + slash + name + ending


class Head:
    """The pieces of a video that a parser asked for: its beginning, and the index (moov)."""

    def __init__(self, pieces: list[tuple[int, bytes]]) -> None:
        self.pieces = pieces

    @classmethod
    def gathered(cls, whole: Shard) -> tuple[Self, Track]:
        """Parse the video where it lies, and note what was asked for."""
        from headrace.fetch.media.mp4 import read_track

        pieces = []

        def read(start: int, stop: int) -> bytes:
            pieces.append((start, whole.origin.read(whole, start, stop)))
            return pieces[-1][1]

        track = read_track(Readable(str(whole), whole.size, read))
        return cls(pieces), track

    def parsed(self, whole: Shard) -> Track:
        from headrace.fetch.media.mp4 import read_track

        def read(start: int, stop: int) -> bytes:
            found = self.read(start, stop)
            # Gathered by a parser that asked for less.
            return whole.origin.read(whole, start, stop) if found is None else found

        return read_track(Readable(str(whole), whole.size, read))

    @property
    def num_bytes(self) -> int:
        return sum(len(data) for _, data in self.pieces)

    def read(self, start: int, stop: int) -> bytes | None:
        for at, data in self.pieces:
            if at <= start and stop <= at + len(data):
                return data[start - at : stop - at]
        return None

    def encoded(self) -> bytes:
        body = b"".join(data for _, data in self.pieces)
        places = [[at, len(data)] for at, data in self.pieces]
        said = {"pieces": places, "blake2b": hashlib.blake2b(body, digest_size=16).hexdigest()}
        return _FORM + json.dumps(said).encode() + b"\n" + body

    @classmethod
    def decoded(cls, data: bytes) -> Self:
        """`ValueError` when it is damaged."""
        first, _, rest = data.partition(b"\n")
        line, _, body = rest.partition(b"\n")
        said = json.loads(line)
        if first + b"\n" != _FORM or said["blake2b"] != hashlib.blake2b(body, digest_size=16).hexdigest():
            raise ValueError("not a head, or not all of it")
        pieces, at = [], 0
        for start, length in said["pieces"]:
            pieces.append((int(start), body[at : at + length]))
            at += length
        return cls(pieces)


@dataclass
class Readable:
    """`Bytes` made of a function."""

    name: str
    size: int
    read: Callable[[int, int], bytes]
