"""A source's shards, listed once and pinned: the same on every rank and after every restart."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, overload

from headrace.catalog.shard import Origin, Shard
from headrace.catalog.source import Source
from headrace.lazy import cached_property

if TYPE_CHECKING:
    from headrace.rng import I64


class Strings(Sequence[str]):
    """Many short strings in two flat buffers, so that a million names cost no million objects in every worker."""

    def __init__(self, strings: Iterable[str]) -> None:
        import numpy as np

        given = list(strings)
        text = "".join(given)
        self._blob = text.encode("utf-8", "surrogatepass")
        lengths = map(len, given if text.isascii() else (s.encode("utf-8", "surrogatepass") for s in given))
        self._ends = np.cumsum(np.fromiter(lengths, np.int64, len(given)), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if i < 0:
            i += len(self)
        if not 0 <= i < len(self):
            raise IndexError(i)
        start = int(self._ends[i - 1]) if i else 0
        return self._blob[start : int(self._ends[i])].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        start = 0
        if self._blob.isascii():
            text = self._blob.decode()  # at once, and as many letters as bytes
            for end in self._ends.tolist():
                yield text[start:end]
                start = end
            return
        for end in self._ends.tolist():
            yield self._blob[start:end].decode("utf-8", "surrogatepass")
            start = end

    def places(self, value: str) -> list[int]:
        """The numbers of all strings that are this one."""
        wanted, found = value.encode("utf-8", "surrogatepass"), []
        if not wanted:
            return [i for i, string in enumerate(self) if not string]
        at = self._blob.find(wanted)
        while at >= 0:
            i = int(self._ends.searchsorted(at, side="right"))  # the string that this byte lies in
            if at + len(wanted) == self._ends[i] and at == (self._ends[i - 1] if i else 0):
                found.append(i)
            at = self._blob.find(wanted, int(self._ends[i]))  # where the next one begins
        return found


@dataclass(frozen=True, kw_only=True)
class Listing:
    source: Source
    revision: str
    """The pinned commit of a Hub repo, or the signature of a list of files."""
    origin: Origin
    paths: Strings
    sizes: I64
    etags: Sequence[str]
    """Per shard; for local files `<mtime_ns>`, so that a replaced file is noticed."""

    @classmethod
    def of(cls, source: Source, revision: str, origin: Origin, files: Iterable[tuple[str, int, str]]) -> Self:
        import numpy as np

        rows = list(files)
        return cls(
            source=source,
            revision=revision,
            origin=origin,
            paths=Strings(r[0] for r in rows),
            sizes=np.array([r[1] for r in rows], dtype=np.int64),
            etags=Strings(r[2] for r in rows),
        )

    def __len__(self) -> int:
        return len(self.paths)

    def shard(self, i: int) -> Shard:
        return Shard(path=self.paths[i], size=int(self.sizes[i]), etag=self.etags[i], origin=self.origin)

    def ordered(self, numbers: I64) -> Shards:
        """The shards with these numbers, in this order."""
        return Shards(self, numbers)

    def label(self, i: int) -> str:
        """What people call shard i: the file's name on the Hub where it is unique, else the path."""
        path: str = self.paths[i]
        return path.rpartition("/")[2] if self._short_labels else path

    @cached_property
    def _short_labels(self) -> bool:
        if self.source.kind != "hf":
            return False
        names = Counter(path.rpartition("/")[2] for path in self.paths)
        return len(names) == len(self.paths)

    def number(self, label: str) -> int | None:
        """The shard with this label or path."""
        for i, path in enumerate(self.paths):
            if path == label or (self._short_labels and path.rpartition("/")[2] == label):
                return i
        return None

    def files(self) -> list[tuple[str, int, str]]:
        return list(zip(self.paths, self.sizes.tolist(), self.etags, strict=True))


class Shards(Sequence[Shard]):
    """Shards of a listing by their numbers, made when asked for: there may be a hundred thousand."""

    def __init__(self, listing: Listing, numbers: I64) -> None:
        self._listing, self._numbers = listing, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, i: int) -> Shard: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Shard]: ...
    def __getitem__(self, i: int | slice) -> Shard | Sequence[Shard]:
        if isinstance(i, slice):
            return Shards(self._listing, self._numbers[i])
        return self._listing.shard(int(self._numbers[i]))

    def places(self, shard: Shard) -> list[int]:
        """Where this shard stands, without making the others."""
        import numpy as np

        listing = self._listing
        same = [i for i in listing.paths.places(shard.path) if listing.shard(i) == shard]
        found: list[int] = np.flatnonzero(np.isin(self._numbers, same)).tolist()
        return found


def signature(files: Iterable[tuple[str, int, str]]) -> str:
    """One name for a list of local or remote files: it changes when a path, a size or a modification time does."""
    h = hashlib.blake2b(digest_size=16)
    for path, size, tag in files:
        h.update(f"{len(path)}:{path}:{size}:{tag}\n".encode("utf-8", "surrogatepass"))
    return f"files-{h.hexdigest()}"
