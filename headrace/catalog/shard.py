"""One file of a source, and the place its bytes come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError, NotAllowed, Unreachable, shown

LONGEST_PATH = 4096
"""Bytes of a path, as the systems that we run on have it."""


@dataclass(frozen=True, slots=True)
class Shard:
    path: str
    """Its name inside its origin: an in-repo path, a local path, a path of a file system."""
    size: int
    """Bytes; -1 when the origin does not say."""
    etag: str
    """What its content must hash to: sha256 (64 hex digits) or git blob sha1 (40). Else only compared; '': unknown."""
    origin: Origin

    def __str__(self) -> str:
        """For messages: where it is, and its name as far as it is fit to be printed."""
        return f"{self.origin.name}/{shown(self.path)}" if self.origin.name else shown(self.path)


class Origin(ABC):
    """Where a source's shards lie. Holds no connection and no secret, so it travels to workers as it is."""

    name: str
    """For messages and logs: `org/repo@commit8`, `s3://bucket`, or ''."""
    folder: tuple[str, ...] | None
    """Folder names under the cache folder for fetched shards; None when shards are read where they lie."""

    @abstractmethod
    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        """Exactly the bytes [start, stop) of the shard, or an error of the family. Retries inside."""

    @abstractmethod
    def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
        """The shard's bytes from `start` on, one attempt, as they arrive.

        Raises `Restart` when the bytes cannot continue what was read before (another content, Range not honoured), and
        `Broken` when the connection ended early or the server asks to come again; both are for the downloader.
        """

    def local_path(self, shard: Shard) -> Path | None:
        """The shard as a local file of the user's, where it is one."""
        return None


class Restart(Exception):
    """The body does not continue the partial file: start over."""


class Broken(Exception):
    """An attempt failed in a way that can heal."""

    def __init__(
        self,
        why: str,
        retry_after: float | None = None,
        error: type[HeadraceError] = Unreachable,
        *,
        wrong: bool = False,
    ) -> None:
        super().__init__(why)
        self.retry_after = retry_after
        """Seconds that the server asks for."""
        self.error = error
        """What it becomes when it does not heal."""
        self.wrong = wrong
        """Whether there was an answer, and it was not what was asked for: then a few attempts are enough."""


def safe_parts(path: str) -> tuple[str, ...]:
    """A shard's path as folder and file names that are safe below a folder of ours; a path that is not is refused.

    Names that our own bookkeeping uses beside a shard are refused too.
    """
    if len(path.encode("utf-8", "surrogatepass")) > LONGEST_PATH:
        raise NotAllowed(f"file name {shown(path)!r} is refused: it has more than {LONGEST_PATH:,} bytes")
    parts = tuple(path.split("/"))
    for part in parts:
        if (
            part in ("", ".", "..")
            or "\\" in part
            or not part.isprintable()
            or len(part.encode("utf-8", "surrogatepass")) > 255
            or any(0xD800 <= ord(c) < 0xE000 for c in part)
            or (part.startswith(".") and part.endswith((".meta.json", ".part")))
            or part.startswith(".rev-")
        ):
            raise NotAllowed(
                f"file name {shown(path)!r} is refused: {shown(part)!r} is empty, leads out of its folder, is too "
                f"long, has characters that are not for names, or is a name this library keeps for itself"
            )
    return parts
