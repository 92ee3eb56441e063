"""Videos of noise on a local Hub, and what reads them: for the tests of byte access to videos."""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from fetching import shards_on, wait_until

from headrace.catalog.shard import Shard
from headrace.errors import NotFound
from headrace.fetch.media.mp4 import Track, read_track
from headrace.lerobot.files import VideoFiles
from headrace.lerobot.ranges import Readable
from headrace.testing.hub import LocalHub


def box(kind: bytes, *bodies: bytes) -> bytes:
    body = b"".join(bodies)
    return struct.pack(">I", 8 + len(body)) + kind + body


def movie(frames: int = 40, size: int = 10_000, seed: int = 0, *, index_last: bool = False) -> bytes:
    """An MP4 by hand, of frames that are noise of about `size` bytes, each of which could be decoded alone."""
    chance = random.Random(seed)
    samples = [chance.randbytes(size + chance.randrange(-size // 10, size // 10 + 1)) for _ in range(frames)]
    first = box(b"ftyp", b"isom\0\0\2\0isom")
    data = box(b"mdat", *samples)

    def index(offset: int) -> bytes:
        look = b"\0" * 24 + struct.pack(">HH", 64, 48) + b"\0" * 50 + box(b"avcC", b"\1\x64\0\x0a\xff\xe1")
        table = box(
            b"stbl",
            box(b"stsd", bytes(4), struct.pack(">I", 1), box(b"avc1", look)),
            box(b"stts", bytes(4), struct.pack(">III", 1, frames, 512)),
            box(b"stsc", bytes(4), struct.pack(">IIII", 1, 1, frames, 1)),
            box(b"stsz", bytes(8), struct.pack(">I", frames), *(struct.pack(">I", len(s)) for s in samples)),
            box(b"stco", bytes(4), struct.pack(">II", 1, offset)),
        )
        media = box(
            b"mdia",
            box(b"mdhd", bytes(12), struct.pack(">II", 15360, 512 * frames), bytes(4)),
            box(b"hdlr", bytes(8), b"vide", bytes(13)),
            box(b"minf", table),
        )
        return box(b"moov", box(b"mvhd", bytes(12), struct.pack(">I", 1000), bytes(84)), box(b"trak", media))

    if index_last:
        return first + data + index(len(first) + 8)
    return first + index(len(first) + len(index(0)) + 8) + data


A, B = "videos/top/file-000.mp4", "videos/top/file-001.mp4"
MOVIE = movie()
N = len(MOVIE)


@dataclass
class Repo:
    """The files of a data set; all that is asked of a `Root`."""

    shards: dict[str, Shard]

    def shard(self, path: str) -> Shard:
        try:
            return self.shards[path]
        except KeyError:
            raise NotFound(f"there is no file {path}") from None


def repo_on(hub: LocalHub, files: dict[str, bytes], **options: object) -> Repo:
    return Repo({shard.path: shard for shard in shards_on(hub, files, "me/robot", **options)})


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headrace-video"]


def videos_in(root: Path) -> list[str]:
    """The files in a cache, without our bookkeeping and without heads."""
    files = (path for path in (root / "hf_shards").rglob("*") if path.is_file() and path.parent.name != ".leases")
    return sorted(path.name for path in files if not path.name.startswith(".") and not path.name.endswith(".head"))


def ranges_of(hub: LocalHub, of: str = "*") -> Sequence[str | None]:
    """What ranges were asked for, in order."""
    return [request.range for request in hub.requests if fnmatchcase(request.path, of)]


def track_of(body: bytes) -> Track:
    return read_track(Readable("movie", len(body), lambda start, stop: body[start:stop]))


def span(first: int, stop: int, body: bytes = MOVIE) -> tuple[int, int]:
    return track_of(body).span(first, stop)


def settled(files: VideoFiles) -> dict[str, float]:
    wait_until(lambda: files.stats()["waiting"] == 0)
    return files.stats()


PRELUDE = """
from headrace.lerobot import files as module, ranges
from headrace.lerobot.files import VideoFiles
module.WHOLE_BYTES = 10_000
class Repo:
    def __init__(self, shards):
        self.shards = {shard.path: shard for shard in shards}
    def shard(self, path):
        return self.shards[path]
def waited(what, seconds=10):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)
"""
"""For `fetching.start`, after its own."""
