"""Where the frames of a video are: its sample tables, read once per process and kept while there is room.

Of a remote video only what the parser asks for is fetched (see `Head`), into the common cache, so that the processes of
a run fetch it once, and a run without a network finds it there.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.catalog.shard import Shard
from headrace.catalog.stop import BEAT_SECONDS, beat
from headrace.errors import FetchError, NoSpace
from headrace.fetch.cache import ShardCache
from headrace.fetch.leases import Lease
from headrace.lerobot.ranges import Head, head_of

if TYPE_CHECKING:
    from headrace.fetch.media.mp4 import Track

log = logging.getLogger(__name__)

MOST_BYTES = 64 << 20
MOST = 256
"""Tables that are kept, for files however small: each of a remote file has a lease in the cache."""


@dataclass(eq=False)
class Table:
    track: Track
    head: Head | None = None
    """What it was read from, where that is not the file itself."""
    lease: Lease | None = None

    @property
    def num_bytes(self) -> int:
        columns = sum(int(getattr(value, "nbytes", 0)) for value in vars(self.track).values())
        return columns + (self.head.num_bytes if self.head else 0)


class Tables:
    """The tables used last, by the path of their file. Each is loaded by one thread, outside of the lock."""

    def __init__(self, most_bytes: int = MOST_BYTES, most: int = MOST) -> None:
        self._most_bytes, self._most = most_bytes, most
        self._kept: OrderedDict[str, Table] = OrderedDict()
        self._bytes = 0
        self._loading: set[str] = set()
        self._changed = threading.Condition(threading.RLock())

    def __len__(self) -> int:
        return len(self._kept)

    def peek(self, path: str) -> Table | None:
        return self._kept.get(path)

    def get(self, path: str, load: Callable[[], Table]) -> Table:
        """The table, which `load` gives where it is not kept. Raises what `load` raises."""
        with self._changed:
            while path in self._loading:
                self._changed.wait(BEAT_SECONDS)
                beat()
            kept = self._kept.get(path)
            if kept is not None:
                self._kept.move_to_end(path)
                return kept
            self._loading.add(path)
        gone: list[Table] = []
        try:
            table = load()
            with self._changed:
                gone = self._keep(path, table)
            return table
        finally:
            with self._changed:
                self._loading.discard(path)
                self._changed.notify_all()
            _let_go(gone, keep=False)

    def clear(self) -> None:
        """Forget all; what lies in the cache stays there for the next start."""
        with self._changed:
            gone, self._kept, self._bytes = list(self._kept.values()), OrderedDict(), 0
        _let_go(gone, keep=True)

    def _keep(self, path: str, table: Table) -> list[Table]:
        """Those that have to go for it."""
        self._kept[path] = table
        self._bytes += table.num_bytes
        gone = []
        while self._bytes > self._most_bytes or len(self._kept) > self._most:
            gone.append(self._kept.popitem(last=False)[1])
            self._bytes -= gone[-1].num_bytes
        return gone


def remote_table(whole: Shard, cache: ShardCache) -> Table:
    """The table of a video that is not here."""
    try:
        lease = cache.acquire(head_of(whole))
    except FetchError as error:
        if type(error) not in (FetchError, NoSpace):
            raise  # the server's fault, not the disk's
        log.info("%s: its tables cannot be kept on disk: %s", whole, error)
        return _unkept(whole)
    try:
        head = Head.decoded(lease.path.read_bytes())
    except (OSError, ValueError, KeyError, TypeError) as error:
        lease.release(keep=True)
        log.warning("%s: its tables in the cache are damaged (%s); reading them from where they came", whole, error)
        return _unkept(whole)
    try:
        return Table(head.parsed(whole), head, lease)
    except BaseException:
        lease.release(keep=True)
        raise


def _unkept(whole: Shard) -> Table:
    head, track = Head.gathered(whole)
    return Table(track, head)


def _let_go(tables: list[Table], *, keep: bool) -> None:
    for table in tables:
        if table.lease is not None:
            table.lease.release(keep)
