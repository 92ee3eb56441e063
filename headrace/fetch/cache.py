"""The shards that lie on this disk, shared by all processes with the same cache folder.

    <root>/hf_shards/<repo_id>/<split>/<path in the repo>      a shard
                                       .<name>.meta.json       what it is (sidecar.py)
                                       .rev-<commit8>/<name>   another content under the same name
    <root>/hf_shards/.leases/                                  who uses what (leases.py)
                     .needs/                                   what runs need that may not be running (needs.py)

Correct at any instant, also after a kill at any system call and with locks that do not lock: files appear whole, by
rename; they are removed by unlink, and only with a sidecar and without a lease.
"""

from __future__ import annotations

import copy
import dataclasses
import errno
import hashlib
import logging
import os
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

from headrace.catalog.shard import LONGEST_PATH, Origin, Shard, safe_parts
from headrace.catalog.stop import Stop, beat, pause, stopped_by
from headrace.errors import FetchError, HeadraceError, NoSpace, NotAllowed, SpecError, shown
from headrace.fetch import sidecar
from headrace.fetch.cache_room import Room
from headrace.fetch.download import FULL, download, explained, hash_of, identity, is_hash, is_orphan
from headrace.fetch.leases import POLL_SECONDS, Grade, Lease, Leases
from headrace.fetch.needs import Need, mark_of, needed
from headrace.fetch.sidecar import Look, Sidecar, look
from headrace.files import PART, REAL, Files, make_private_folder, remove_quietly
from headrace.locks import Lock

log = logging.getLogger(__name__)

TOP = "hf_shards"
LONGEST_PLACE = LONGEST_PATH - 300
"""Bytes of a path in the cache; the names of what lies next to a shard are longer than its own."""
TRIES = 50
"""At a name that others take and give up at the same time."""
Cleanup = Literal["auto", "keep"]
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)

_FETCHED: set[tuple[int, Path]] = set()
"""The caches that this process has fetched a file into."""
_VOUCHED: set[tuple[Path, str, Look]] = set()
"""Files of caches that nothing can be written to: what they hold, and how they looked when they were found right."""


class ShardCache:
    def __init__(self, root: Path, *, cleanup: Cleanup = "auto", limit: int | None = None, files: Files = REAL) -> None:
        if cleanup not in ("auto", "keep"):
            raise SpecError(f"cleanup={shown(cleanup)!r}: it is 'auto' (remove shards behind us) or 'keep'")
        self.root = root
        self.cleanup = cleanup
        self.limit = limit
        self._top = root / TOP
        self._files = files
        self._leases = Leases(self._top / sidecar.LEASES, files)
        self._room = Room(self._top, limit, self._in_use, self._remove)
        self._strict = self._passing = False

    def passing(self) -> ShardCache:
        """The same cache for a reader that passes on: under `auto` cleanup, what it fetches goes when nobody needs it
        any more. What is fetched otherwise stays until whoever fetched it, or the limit, has it removed."""
        other = copy.copy(self)
        other._passing = True
        return other

    @property
    def has_fetched(self) -> bool:
        """Whether this process has fetched a file: what it removes can be had again, and what it adds has to go."""
        return (os.getpid(), self.root) in _FETCHED

    def need(self, run: str, part: int = 0, parts: int = 1) -> Need:
        """Where a run, or its part of several, notes what it needs. `run`: any text that stays the same when the run is
        started again."""
        return Need(self._top / sidecar.NEEDS, self._files, run, part, parts)

    def strict(self) -> ShardCache:
        """The same cache, which refuses what does not fit beside the files in use, and never goes over its limit. What
        was fetched ahead counts as in use."""
        other = copy.copy(self)
        other._strict = True
        return other

    def path_of(self, shard: Shard) -> Path:
        """Where the shard lies, or would lie if it were fetched now."""
        local = shard.origin.local_path(shard)
        if local is not None:
            return local
        free = None
        for place in self._places(shard):
            found, there = sidecar.read(place, self._files), _lstat(place)
            if found is not None and found.holds(shard) and (there is None or stat.S_ISREG(there.st_mode)):
                return place
            if free is None and found is None and there is None:
                free = place
        if free is None:
            raise _no_name(shard)
        return free

    def acquire(self, shard: Shard, stop: Stop | None = None) -> Lease:
        """The shard on this disk, fetched if need be, and kept there until the lease is over."""
        local = shard.origin.local_path(shard)
        if local is not None:
            return Lease(local)
        with stopped_by(stop):
            try:
                return self._acquire(shard)
            except HeadraceError:
                raise
            except OSError as error:
                return self._acquire_in_need(shard, error)

    def find(self, shard: Shard) -> Lease | None:
        """The shard, if it lies here and looks right. Asks nobody and waits for nothing."""
        local = shard.origin.local_path(shard)
        if local is not None:
            return Lease(local)
        if self.is_read_only:
            return self._unleased(shard)
        for place in self._places(shard):
            if self.looks_right(shard, place):
                self._prepare(place)
                try:
                    lease = self._lease(place)
                except OSError:
                    return None  # a disk that takes no lease: `acquire` knows what to do then
                if not self._leases.is_being_removed(self._key(place)) and self.looks_right(shard, place):
                    self._used(place)
                    return lease
                lease.release(keep=True)
        return None

    def forget(self, origin: Origin) -> None:
        """Remove the shards of an origin that nobody uses, so that they are fetched anew."""
        folder = self._top.joinpath(*(part for name in (origin.folder or ())[1:] for part in safe_parts(name)))
        if origin.folder and folder.is_dir():
            for place, _ in sidecar.walk(folder):
                self._remove(place)

    def sweep(self, *, passed: bool = True) -> None:
        """Remove what ended processes left: partial files, leases, marks, locks, names taken in vain, what is over the
        limit; and, if `passed`, under `auto` cleanup, the shards that no process has a lease on and no run needs. Where
        there is a limit, those stay within it for a later pass."""
        if not self._top.is_dir():
            return
        self.forget_dead()
        for folder, _, names in os.walk(self._top):
            beat()
            for name in names:
                if name.endswith(PART) and name.startswith("."):
                    self._remove_stale(Path(folder, name))
        for path in self.root.glob(f"..hold-*{PART}"):
            self._remove_stale(path)
        for place, _ in sidecar.walk(self._top):
            beat()
            if not os.path.lexists(place):
                self._give_up_name(place)
        if passed and self.cleanup == "auto" and self.limit is None:
            self._remove_passed()
        self._room.keep()

    def forget_dead(self) -> bool:
        """Remove leases, marks and locks of dead processes. True if there were any of the first two."""
        return self._leases.folder.is_dir() and self._leases.sweep()

    def _remove_passed(self) -> None:
        """Remove the shards that readers passed, or were ended at."""
        wanted = needed(self._top / sidecar.NEEDS, self._files)
        for place, known in sidecar.walk(self._top):
            beat()
            left = known.passing and known.ours and mark_of(known.etag, known.origin) not in wanted
            if left and os.path.lexists(place) and not self._in_use(place):
                self._remove(place)

    # --- a name, and the right to use it

    def _acquire(self, shard: Shard) -> Lease:
        for _ in range(50):
            place = self._settle(shard)
            lease = self._lease(place)
            try:
                self._leases.wait_for_removals(self._key(place))
                found = sidecar.read(place, self._files)
                # Between taking the name and the lease, someone may have cleaned up.
                if found is not None and found.holds(shard) and self._provide(shard, place, found):
                    self._used(place)
                    return lease
            except BaseException:
                lease.release(keep=True)
                if not os.path.lexists(place):
                    self._give_up_name(place)
                raise
            lease.release(keep=True)
        raise _no_name(shard)

    def _acquire_in_need(self, shard: Shard, error: OSError) -> Lease:
        """After the disk refused something: with room made, or, where nothing can be written, without a lease."""
        if error.errno in FULL and self._evict(max(shard.size, 1)):
            try:
                return self._acquire(shard)
            except HeadraceError:
                raise
            except OSError as again:
                error = again
        if error.errno in READ_ONLY and (lease := self._unleased(shard)) is not None:
            return lease
        raise explained(error, shard, self.path_of(shard)) from error

    def _unleased(self, shard: Shard) -> Lease | None:
        """The shard in a cache that nothing can be written to, where nobody removes it either. In a copy of a cache
        files look different from what their sidecars say: what they hold is found out once per process."""
        for place in self._places(shard):
            there = _lstat(place)
            if there is None or not stat.S_ISREG(there.st_mode):
                continue
            if not self.looks_right(shard, place):
                if not self._is_content(shard, place):
                    continue
                _VOUCHED.add((place, identity(shard), look(there)))
            return Lease(place)
        return None

    @property
    def is_read_only(self) -> bool:
        """Whether there is a cache here, and no lease can be put up in it."""
        folder = self._leases.folder if self._leases.folder.is_dir() else self._top
        return folder.is_dir() and not os.access(folder, os.W_OK)

    def _places(self, shard: Shard) -> Iterator[Path]:
        folder = shard.origin.folder or ()
        if folder[:1] != (TOP,) or len(folder) < 2:
            raise SpecError(f"{shard}: origin {shown(shard.origin)} gives no folder below {TOP} to keep its shards in")
        parts = [part for name in folder[1:] for part in safe_parts(name)]
        if parts[0].startswith("."):
            raise NotAllowed(f"{shard}: folder name {shown(parts[0])!r} is refused, because it starts with a dot")
        base = self._top.joinpath(*parts)
        place = base.joinpath(*safe_parts(shard.path))
        commit = str(getattr(shard.origin, "commit", "")) or hashlib.sha256(shard.origin.name.encode()).hexdigest()
        whole = hashlib.sha256(f"{shard.origin.name}|{shard.path}|{shard.etag}|{commit}".encode()).hexdigest()
        places = (
            place,
            place.parent / f".rev-{commit[:8]}" / place.name,
            base / f".rev-{whole[:16]}" / place.name,
        )
        yield from (one for one in places if len(os.fsencode(one)) <= LONGEST_PLACE)

    def _settle(self, shard: Shard) -> Path:
        """A place whose name is taken for this content, by us or by others before us."""
        free = []
        for place in self._places(shard):
            found, there = sidecar.read(place, self._files), _lstat(place)
            if there is not None and not stat.S_ISREG(there.st_mode):
                continue
            if found is None:
                free.append(place)
            elif found.holds(shard):
                self._prepare(place)
                return place
        for place in free:
            try:
                self._prepare(place)
            except NotADirectoryError:
                continue
            if self._takes(shard, place):
                return place
        raise _no_name(shard)

    def _takes(self, shard: Shard, place: Path) -> bool:
        """Take the name. A file that lies there is not ours: used if it is the shard, and left alone in any case."""
        ours, there = Sidecar.of(shard, place, self._passing and self.cleanup == "auto"), _lstat(place)
        if there is not None:
            if not self._is_content(shard, place):
                return False
            ours = dataclasses.replace(ours.seen(there), ours=False)
        for _ in range(TRIES):
            if ours.reserve(place, self._files):
                return True
            found = sidecar.read(place, self._files)
            if found is not None:
                return found.holds(shard)
            # Whoever had the name has given it up since: it is free again.
        return False

    def _prepare(self, place: Path) -> None:
        """All folders on the way, none of them a link that leads out of the cache."""
        make_private_folder(self._top)
        self._leases.folder.mkdir(mode=0o700, exist_ok=True)
        path = self._top
        for part in place.parent.relative_to(self._top).parts:
            path = path / part
            found = _lstat(path)
            if found is None:
                path.mkdir(mode=0o700, exist_ok=True)
            elif stat.S_ISLNK(found.st_mode):
                raise NotAllowed(f"{shown(path)} is a link; the cache follows none. Remove it, or move the whole cache")
            elif not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))

    def _key(self, place: Path) -> str:
        return hashlib.blake2b(str(place.relative_to(self._top)).encode(), digest_size=12).hexdigest()

    def _in_use(self, place: Path, but: Collection[Grade] = ()) -> bool:
        return self._leases.in_use(self._key(place), but)

    def _lease(self, place: Path) -> Lease:
        return Lease(place, self._leases.claim(self._key(place)), self)

    def _used(self, place: Path) -> None:
        """Note that the file was used now; where shards are kept, also that it is no longer one to go by itself."""
        found = sidecar.read(place, self._files) if self.cleanup == "keep" else None
        if found is not None and found.passing:
            with suppress(OSError):
                dataclasses.replace(found, passing=False).write(place, self._files)
        sidecar.touch(place)

    def released(self, path: Path, file: Path, keep: bool) -> None:
        """A lease of ours is over."""
        remove_quietly(file, self._files)
        if not keep and self.cleanup == "auto":
            self._remove(path)
        self._room.keep_again()

    def turned(self, file: Path, grade: Grade) -> Path:
        """A lease of ours has another grade."""
        file = self._leases.turn(file, grade)
        self._room.keep_again()
        return file

    # --- the file

    def looks_right(self, shard: Shard, place: Path) -> bool:
        """Whether the file is there, and has not been touched since it was last known to be right."""
        found, there = sidecar.read(place, self._files), _lstat(place)
        if there is not None and (place, identity(shard), look(there)) in _VOUCHED:
            return True
        return (
            found is not None
            and there is not None
            and found.holds(shard)
            and found.look == look(there)
            and stat.S_ISREG(there.st_mode)
            and shard.size in (-1, there.st_size)
            and os.access(place, os.R_OK)
        )

    def _provide(self, shard: Shard, place: Path, found: Sidecar) -> bool:
        """See that the file is there and right. False: this place cannot be used after all."""
        if self.looks_right(shard, place):
            return True
        lock = self._leases.lock(self._key(place))
        try:
            if not self._is_my_turn(shard, place, lock) or self._repaired(shard, place, found):
                return True
            if not found.ours:
                remove_quietly(sidecar.path_beside(place), self._files)
                return False
            self._room.make(shard, ahead=self._strict)
            with stopped_by(None, on_beat=lock.touch):
                mark, note = partial(found.mark, place), self._bytes_came
                there = download(shard, place, files=self._files, on_progress=note, make_room=self._evict, mark=mark)
            self._know(found.seen(there), shard, place)
            return True
        finally:
            lock.release()

    def _bytes_came(self, size: int) -> None:
        _FETCHED.add((os.getpid(), self.root))

    def _know(self, found: Sidecar, shard: Shard, place: Path) -> None:
        """Write the sidecar of a file that is right; on a full disk, with room made for it."""
        for last in (False, True):
            try:
                found.write(place, self._files)
                return
            except NoSpace as error:
                if last or not self._evict(1):
                    cause = error.__cause__
                    raise explained(cause if isinstance(cause, OSError) else error, shard, place) from error

    def _is_my_turn(self, shard: Shard, place: Path, lock: Lock) -> bool:
        """Wait until the file is there (False) or until it is on us to fetch it (True)."""
        patience = float(getattr(shard.origin, "stall_seconds", 30.0))
        last, since, dead = -1, time.monotonic(), False
        while True:
            taken = lock.take()
            if self.looks_right(shard, place):
                return False
            if taken is not False:
                return True
            alive, sign = lock.owner()
            if sign != last:
                last, since = sign, time.monotonic()
            # A dead owner's lock is ours at the next turn, unless it lives on in a process that the owner forked.
            if (dead and alive is False) or time.monotonic() - since > patience:
                log.warning("%s: whoever is downloading it shows no sign of life; going on without waiting", shard)
                return True
            dead = alive is False
            pause(POLL_SECONDS)

    def _repaired(self, shard: Shard, place: Path, found: Sidecar) -> bool:
        """Whether a file that looks different from what we knew has the right content all the same."""
        there = _lstat(place)
        if there is None:
            if found.look is not None:
                log.info("%s: %s is gone; fetching it again", shard, shown(place))
            return False
        if found.ours and not there.st_mode & stat.S_IRUSR:
            place.chmod(0o444)
            there = place.lstat()
        if self._is_content(shard, place):
            self._know(found.seen(there), shard, place)
            return True
        log.warning("%s: the cached file %s is damaged; fetching it again", shard, shown(place))
        return False

    def _is_content(self, shard: Shard, place: Path) -> bool:
        try:
            return is_hash(shard.etag) and hash_of(place, shard) == shard.etag
        except OSError:
            return False

    # --- room

    def _evict(self, needed: int) -> bool:
        return self._room.free(needed, ahead=self._strict) > 0

    def _remove(self, place: Path, but: Collection[Grade] = ()) -> bool:
        """Remove a file of ours and its sidecar, unless somebody has a lease on it, `but` for some grades."""

        def unlink() -> None:
            found = sidecar.read(place, self._files)
            if found is not None and found.ours:
                remove_quietly(place, self._files)
                remove_quietly(sidecar.path_beside(place), self._files)

        return self._leases.remove(self._key(place), unlink, but)

    def _give_up_name(self, place: Path) -> None:
        """Remove the sidecar of a file that never came, unless it came meanwhile."""

        def unlink() -> None:
            found = sidecar.read(place, self._files)
            if found is not None and found.ours and not os.path.lexists(place):
                remove_quietly(sidecar.path_beside(place), self._files)

        self._leases.remove(self._key(place), unlink)

    def _remove_stale(self, part: Path) -> None:
        if is_orphan(part, elsewhere=True):
            remove_quietly(part, self._files)


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE):
            return None
        raise


def _no_name(shard: Shard) -> FetchError:
    return FetchError(
        f"{shard}: every name it could have in the cache is too long or taken by something else; use another cache_dir"
    )
