"""The index of a source: how many rows lie where. Made once, kept as small JSON, and read when it is there.

Up to 512 shards (and for text) every count is known before the first row. Larger sources start at once: a footer is
read when its shard is opened, and kept, one small file per shard, for people and for later runs.
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.catalog.counted import CountedLines
from headrace.catalog.footer import GroupRows, read_footer
from headrace.catalog.identity import Identity, Trust, identity_of, mark_of, same_mark, same_shape
from headrace.catalog.lines import LineIndex
from headrace.catalog.listing import Listing
from headrace.catalog.schemas import Agreement, Schema, check_names
from headrace.catalog.shard import Shard
from headrace.catalog.threads import Threads
from headrace.errors import Changed, FetchError, shown
from headrace.files import keep_json, read_whole
from headrace.limits import starting
from headrace.locks import locked

if TYPE_CHECKING:
    from headrace.rng import I64

log = logging.getLogger(__name__)

FORMAT = 1
KEPT_SHARDS = 256
READERS = 8
"""Footers read at the same time."""

ShardIndex: TypeAlias = GroupRows | LineIndex


class Index:
    """A pinned listing with the row counts that are known, and the way to the others."""

    def __init__(
        self,
        listing: Listing,
        path: Path,
        count_lines: Callable[[Shard, Callable[[], None]], LineIndex] | None = None,
    ) -> None:
        self.listing, self.path = listing, path
        self._count_lines = count_lines
        self._known: list[ShardIndex] | None = None
        self._rows: I64 | None = None
        self._agreed = Agreement(None)
        self._is_looked_up = False
        """Whether the index file was asked for counts that were not asked for yet."""
        self._recent: dict[int, ShardIndex] = {}
        self._marks: dict[int, str] = {}
        self._identities: dict[bool, Identity] = {}
        """By whether all shards are counted."""
        self._expected: dict[int, str] = {}
        self._trust = Trust()

    @property
    def num_shards(self) -> int:
        return len(self.listing)

    @property
    def shard_bytes(self) -> I64:
        return self.listing.sizes

    @property
    def is_text(self) -> bool:
        return self.listing.source.kind in ("txt", "jsonl")

    @property
    def is_complete(self) -> bool:
        """Whether every count is known."""
        return self._known is not None

    def complete(self) -> None:
        """Learn every count: from the index file, or from all footers (or lines) and write it."""
        if self._known is not None:
            return
        known = _load_shards(self.path, self.listing)
        if known is None:
            with locked(self.path.with_suffix(".lock")) as beat:
                known = _load_shards(self.path, self.listing)
                if known is None:
                    known = self._read_all(beat)
                    save(self.path, self.listing, known)
        self._known = known

    def shard_rows(self) -> I64:
        import numpy as np

        self.complete()
        if self._rows is None:
            assert self._known is not None
            self._rows = np.array([_num_rows(s) for s in self._known], dtype=np.int64)
        return self._rows

    def without_empty(self, numbers: I64) -> I64:
        """These shards, less those that are known to have no rows."""
        return numbers if self._known is None else numbers[self.shard_rows()[numbers] > 0]

    @property
    def num_rows(self) -> int:
        return int(self.shard_rows().sum())

    def shard_count(self, i: int) -> int:
        """Rows of one shard, without asking for those of the others."""
        return _num_rows(self.shard(i))

    def shard(self, i: int) -> ShardIndex:
        """One shard's counts; of a large source they may have to be fetched, and the recent ones are kept."""
        if self._known is not None:
            return self._known[i]
        if i not in self._recent:
            if len(self._recent) >= KEPT_SHARDS:
                del self._recent[next(iter(self._recent))]
            self._recent[i] = self._as_expected(i, self._shard(i))
        return self._recent[i]

    def _shard(self, i: int) -> ShardIndex:
        if self.is_text:
            self.complete()
        elif not self._is_looked_up and self.num_shards <= KEPT_SHARDS:
            self._is_looked_up = True
            self._known = _load_shards(self.path, self.listing)
        if self._known is not None:
            return self._known[i]
        kept = self.path.with_suffix(".footers") / f"{i}.json"
        try:
            return GroupRows.from_json(json.loads(read_whole(kept)))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            log.warning("%s cannot be read (%s); reading the footer again", kept, shown(error))
        found = read_footer(self.listing.shard(i))
        try:
            keep_json(kept, found.to_json())
        except FetchError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise  # else it is a cache that is only read from
        return found

    # --- what tells it from others

    def mark(self, i: int) -> str:
        """What tells shard i from others: see `identity`."""
        if i not in self._marks:
            self._marks[i] = _mark(self.shard(i))
        return self._marks[i]

    def identity(self) -> Identity:
        """As far as it is known without reading anything for it."""
        counted = self._known is not None and self.listing.source.kind != "hf"  # which is pinned by its commit
        if counted not in self._identities:
            marks = [self.mark(i) for i in range(self.num_shards)] if counted else None
            self._identities[counted] = identity_of(self.listing.paths, self.listing.sizes, marks)
        return self._identities[counted]

    def expect(self, marks: Mapping[int, str], trust: Trust) -> None:
        """These shards must have these marks when they are opened."""
        self._expected, self._trust = dict(marks), trust
        self._recent.clear()

    def _as_expected(self, i: int, found: ShardIndex) -> ShardIndex:
        if i in self._expected:
            self.require_mark(i, self._expected[i], _mark(found), self._trust)
        return found

    def require_mark(self, i: int, wanted: str, found: str, trust: Trust) -> None:
        """Shard i has this mark; or only its contents are others, and that is trusted."""
        if same_mark(wanted, found):
            return
        shard, label = self.listing.shard(i), self.listing.label(i)
        if not same_shape(wanted, found):
            raise Changed(
                f"{shard} is not the file that the state was made on: it has other rows, or other row groups; put "
                f"that file back, or start anew"
            )
        if not trust.allows_change(label):
            raise Changed(
                f"{shard} is not the file that the state was made on: it has as many rows, with other contents; put "
                f"that file back, or load the state with trust_changed=[{shown(label)!r}] to go on with this one"
            )
        log.warning("%s has other contents than the file that the state was made on; it is trusted", shard)

    def check_columns(self, i: int, columns: list[str] | None) -> None:
        """Shard i has the columns that are read, of the same types as the shards that were looked at before."""
        found = self.shard(i)
        if isinstance(found, LineIndex):
            return
        if self._agreed.columns != columns:
            self._agreed = Agreement(columns)
        if i not in self._agreed:
            self._agreed.add(i, self.listing.shard(i), found.schema)

    def check_known_columns(self, columns: list[str] | None) -> None:
        """The same for all shards whose columns are known by now, and for the one column of text."""
        if self.listing.source.kind == "txt":
            check_names(columns, [self.listing.source.column], self.listing.source)
        for i in range(self.num_shards if self._known is not None else min(self.num_shards, 1)):
            self.check_columns(i, columns)

    def _read_all(self, beat: Callable[[], None]) -> list[ShardIndex]:
        shards = [self.listing.shard(i) for i in range(self.num_shards)]
        count_lines, what = self._count_lines, "counting lines" if self.is_text else "reading footers"
        counted = CountedLines(self.path.parent, self.listing.source.kind)

        def read(shard: Shard) -> ShardIndex:
            if count_lines is None:
                return read_footer(shard)
            return counted.get(shard) or counted.put(shard, count_lines(shard, beat))

        found: list[ShardIndex] = []
        with (
            counted,
            starting(f"threads for {what}"),
            _progress(what, len(shards)) as step,
            Threads(READERS, "headrace-index", beat) as threads,
        ):
            for result in threads.map(read, shards):
                found.append(result)
                step()
                beat()
        return found


class Counts:
    """An index as a plan sees it: with the bytes of the columns that are read."""

    def __init__(self, index: Index, columns: list[str] | None) -> None:
        self.index, self.columns = index, columns

    @property
    def num_shards(self) -> int:
        return self.index.num_shards

    @property
    def shard_bytes(self) -> I64:
        return self.index.shard_bytes

    def shard_rows(self) -> I64:
        return self.index.shard_rows()

    def groups(self, shard: int) -> tuple[I64, I64, I64]:
        found = self.index.shard(shard)
        if isinstance(found, GroupRows):
            whole = found.nbytes(None)
            return found.rows, whole, whole if self.columns is None else found.nbytes(self.columns)
        return _line_groups(found)


def _line_groups(index: LineIndex) -> tuple[I64, I64, I64]:
    """Blocks of lines, each found by seeking, so each a row group of its own."""
    import numpy as np

    starts = np.arange(0, index.rows, index.every, dtype=np.int64)
    rows = np.diff(starts, append=index.rows)
    edges = np.array([*index.offsets[: len(starts)], index.bytes], dtype=np.int64)
    nbytes = edges[1:] - edges[:-1]
    return np.asarray(rows, dtype=np.int64), nbytes, nbytes


def _mark(shard: ShardIndex) -> str:
    if isinstance(shard, GroupRows):
        return mark_of(shard.rows, shard.nbytes(None), shard.digest)
    rows, nbytes, _ = _line_groups(shard)
    # Where only samples of the bytes were taken, the places of the lines still tell of all of them.
    return mark_of(rows, nbytes, shard.digest and f"{shard.digest} {shard.offsets.tolist()}")


def _num_rows(shard: ShardIndex) -> int:
    return shard.num_rows if isinstance(shard, GroupRows) else shard.rows


def save(path: Path, listing: Listing, shards: list[ShardIndex] | None) -> None:
    """The listing, and the counts where they are known. Schemas that repeat are written once."""
    schemas: dict[Schema, int] = {}
    out: list[dict[str, Any]] = []
    for shard in shards or []:
        value = shard.to_json()
        if isinstance(shard, GroupRows):
            value["schema"] = schemas.setdefault(shard.schema, len(schemas))
        out.append(value)
    keep_json(
        path,
        {
            "format": FORMAT,
            "kind": listing.source.kind,
            "source": str(listing.source),
            "revision": listing.revision,
            "files": listing.files(),
            "schemas": [[list(c) for c in s] for s in schemas],
            "shards": out if shards is not None else None,
        },
    )


def load_listing(path: Path) -> dict[str, Any] | None:
    """An index file as it is; None where there is none that can be used."""
    try:
        value = json.loads(read_whole(path))
        if value["format"] == FORMAT and isinstance(value["revision"], str) and _are_files(value["files"]):
            return dict(value)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        log.warning("the index %s cannot be read (%s); making it again", path, shown(error))
    return None


def _are_files(value: Any) -> bool:
    """(path, size, tag) of at least one file."""
    return bool(value) and all(
        type(path) is str and type(size) is int and size < 1 << 62 and type(tag) is str for path, size, tag in value
    )


def _load_shards(path: Path, listing: Listing) -> list[ShardIndex] | None:
    value = load_listing(path)
    if value is None or value.get("shards") is None or value["revision"] != listing.revision:
        return None
    try:
        schemas = [tuple((n, t) for n, t in s) for s in value["schemas"]]
        found: list[ShardIndex] = []
        for shard in value["shards"]:
            if "kib" in shard:
                found.append(GroupRows.from_json({**shard, "schema": schemas[shard["schema"]]}))
            else:
                found.append(LineIndex.from_json(shard))
                if not found[-1].digest:
                    return None  # an index of before: its files were not looked at as they are now
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        log.warning("the index %s cannot be used (%s); making it again", path, shown(error))
        return None
    return found if len(found) == len(listing) else None


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on the terminal, where there is one and it will take a moment."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal or total < 8:
        yield lambda: None  # rich before 15 writes an empty line for a bar that is switched off
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
