"""Jobs that share a cache in a simulated world, and what must hold at every moment of it.

A seed decides everything: the shards, the jobs and their settings, what goes wrong, who is killed when, and the order
of events. Jobs of lanes read rows through plan, pool, shelf, prefetcher, cache and download, save their states, are
killed and go on; jobs of files wait for shards on several threads of one prefetcher; jobs of leases take and release
them in quick turn.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from simulated_system import Name, Server, System
from simulator import Process, World

from headrace.catalog.footer import GroupRows
from headrace.catalog.index import Index
from headrace.catalog.listing import Listing
from headrace.catalog.shard import Shard
from headrace.catalog.source import Source
from headrace.errors import HeadraceError
from headrace.fetch.cache import ShardCache
from headrace.fetch.plan import Chunk, Rules
from headrace.fetch.pool import PoolSize
from headrace.fetch.prefetch import ShardPrefetcher
from headrace.fetch.resume import Reading
from headrace.fetch.rows import Rows
from headrace.files import publish_json
from headrace.run import Run

ROW_BYTES = 24
MOST_ERRORS = 40
SETS = ("0 1", "01 2", "0 1 2", "0 1 files", "0 leases", "files files", "files leases leases", "leases leases leases")
"""Jobs that share a cache."""


def row_bytes(shard: int, row: int) -> bytes:
    return f"{shard:03}:{row:04}".encode().ljust(ROW_BYTES, b".")


@dataclass
class Job:
    """What a process does, and does again when it was killed."""

    name: str
    does: str
    """The lanes of the plan that it reads, as digits; or "files", or "leases"."""


@dataclass
class Ledger:
    """The rows that a lane has given, over all its lives."""

    rows: list[tuple[int, str]] = field(default_factory=list)
    at: int = 0

    def give(self, world: World, lane: int, row: tuple[int, str]) -> None:
        if self.at < len(self.rows):
            if self.rows[self.at] != row:
                world.fail(f"lane {lane} was to repeat {self.rows[self.at]} after its resume, and gave {row}")
        else:
            self.rows.append(row)
        self.at += 1


class Listed(Listing):
    """Its shards have the same hashes in every interpreter."""

    def shard(self, i: int) -> Shard:
        return Shard(Name(self.paths[i]), int(self.sizes[i]), Name(self.etags[i]), self.origin)


class Scene:
    """One seed."""

    def __init__(self, seed: int, root: Path) -> None:
        self.world = world = World(seed)
        self.root = root
        self.system = System(world, root)
        choice, number = world.random.choice, world.random.randint
        self.groups = [[number(1, 3) for _ in range(number(1, 5))] for _ in range(number(2, 5))]
        self.bodies: dict[str, bytes] = {
            Name(f"data/{i}"): b"".join(row_bytes(i, row) for row in range(sum(groups)))
            for i, groups in enumerate(self.groups)
        }
        self.server = Server(world, self.bodies)
        largest = max(map(len, self.bodies.values()))
        limit = choice((None, None, largest, 2 * largest))
        self.run_settings = Run(cache_dir=root, cleanup=choice(("auto", "keep")), cache_bytes=limit)
        shuffle = choice((True, True, False))
        self.rules = Rules(
            seed=seed,
            source="s",
            shuffle=shuffle,
            chunk_rows=number(1, 4),
            shard_window=number(1, 2),
            coordinate=choice(("rows", "windows")),
        )
        self.size = PoolSize(chunks=number(1, 4) if shuffle else 1)
        self.epochs = number(1, 2)
        self.jobs: list[str] = choice(SETS).split()
        self.lanes = sum(map(str.isdigit, "".join(self.jobs)))
        self.ledgers = [Ledger() for _ in range(self.lanes)]
        self.running: dict[Process, int] = {}
        self.kills = 0
        for _ in range(choice((0, 0, 1, 2, 3))):
            world.events[number(1, 3000)] = self.kill_one
        for _ in range(choice((0, 1, 2))):
            world.events[number(1, 3000)] = self.pause_one

    def listing(self) -> Listing:
        files = [(path, len(body), hashlib.sha256(body).hexdigest()) for path, body in self.bodies.items()]
        return Listed.of(Source.parse("hf:me/rows"), "0" * 40, self.server, files)

    def index(self) -> Index:
        found = Index(self.listing(), self.root / "index.json")
        found._known = [
            GroupRows(np.array(groups), np.ones(len(groups), dtype=np.int64), {"uid": 1}, ()) for groups in self.groups
        ]
        return found

    # --- what befalls processes

    def kill_one(self) -> None:
        alive = [process for process in self.world.processes if process.is_alive]
        self.kills += 1
        self.world.kill(self.world.random.choice(alive))

    def pause_one(self) -> None:
        """A thread gets no turn for a while, which is shorter than a removal may take."""
        me = self.world.me
        if self.world.now - me.paused > 15:
            me.paused = self.world.now
            self.world.block("its turn", self.world.random.random() * 4.5)

    def start(self, job: Job, delay: float = 0.0) -> None:
        process = self.world.process(job)
        mains: list[Callable[[], None]] = [partial(self.lane, int(lane)) for lane in job.does if lane.isdigit()]
        if job.does == "files":
            mains = [partial(self.files, process)]
        elif job.does == "leases":
            mains = [self.leases] * self.world.random.randint(1, 2)
        self.running[process] = len(mains)
        for i, main in enumerate(mains):
            self.world.spawn(process, f"{job.name}{i}", partial(self.live, process, main, delay))

    def live(self, process: Process, main: Callable[[], None], delay: float) -> None:
        if delay:
            self.world.sleep(delay)
        main()
        self.running[process] -= 1
        if not self.running[process]:
            process.job = None
            self.world.kill(process)

    # --- what they do

    def lane(self, lane: int) -> None:
        ledger, path, index = self.ledgers[lane], self.root / "states" / f"{lane}.json", self.index()
        saved: dict[str, Any] = {"given": 0, "epoch": 0, "state": None}
        if path.exists():
            saved = json.loads(path.read_bytes())
        ledger.at = saved["given"]
        for epoch in range(saved["epoch"], self.epochs):
            reading = Reading(rules=self.rules, size=self.size, lane=lane, lanes=self.lanes, epoch=epoch)
            rows = Rows(index, self.run_settings, reading)
            if saved["state"] is not None and saved["epoch"] == epoch:
                rows.load_state_dict(saved["state"])
            for row in self.without_errors(lambda rows=rows: next(rows, None)):  # type: ignore[misc]
                ledger.give(self.world, lane, (epoch, str(row[2]["uid"])))
                if self.world.random.random() < 0.2:
                    self.save(path, {"given": ledger.at, "epoch": epoch, "state": rows.state_dict()})
            rows.close()
            self.save(path, {"given": ledger.at, "epoch": epoch + 1, "state": None})

    def save(self, path: Path, state: dict[str, Any]) -> None:
        try:
            publish_json(path, state)
        except OSError:
            if not self.system.was_refused:
                raise

    def without_errors(self, attempt: Callable[[], Any]) -> Iterator[Any]:
        """What it gives, until None. Errors are what trouble becomes; the next attempt goes on."""
        errors = 0
        while True:
            try:
                found = attempt()
            except HeadraceError as error:
                errors += 1
                if not (self.server.is_troubled or self.system.was_refused) or errors > MOST_ERRORS:
                    self.world.fail(f"an error though nothing is wrong: {error!r}")
                self.world.sleep(1.0)
                continue
            if found is None:
                return
            yield found

    def files(self, process: Process) -> None:
        """Two threads of one prefetcher: each has shards of its own, which it lets go, and all but those in common."""
        world, listing, settings = self.world, self.listing(), self.run_settings
        shards = [listing.shard(i) for i in range(len(listing))]
        cache = ShardCache(settings.cache_dir, cleanup=settings.cleanup, limit=settings.cache_bytes)
        prefetcher = ShardPrefetcher(
            shards,
            self.root,
            lookahead=world.random.randint(0, 2),
            auto_release=world.random.random() < 0.3,
            cache=cache,
        )
        if prefetcher._auto_release:
            with prefetcher:
                for shard in shards:
                    self.read(prefetcher, shard)
            return
        ended: list[int] = []

        def user(own: int) -> None:
            mine = [shard for i, shard in enumerate(shards) if i % 3 in (own, 2)]
            world.random.shuffle(mine)
            for shard in mine:
                if world.random.random() < 0.3:
                    prefetcher.want(world.random.choice(mine))
                self.read(prefetcher, shard)
                if shards.index(shard) % 3 == own:
                    prefetcher.release(shard, keep=world.random.random() < 0.3)
            ended.append(own)

        world.spawn(process, "user", partial(user, 1))
        user(0)
        while len(ended) < 2:
            world.sleep(0.5)
        prefetcher.close()

    def leases(self) -> None:
        """Shards are taken, looked at and let go, a few of them again and again."""
        random, listing, settings = self.world.random, self.listing(), self.run_settings
        cache = ShardCache(settings.cache_dir, cleanup=settings.cleanup, limit=settings.cache_bytes)
        for _ in range(random.randint(4, 12)):
            shard = listing.shard(random.randrange(min(2, len(listing))))
            lease = cache.find(shard) if random.random() < 0.3 else None
            lease = lease or next(self.without_errors(partial(cache.acquire, shard)))
            self.look(shard, lease.path)
            if random.random() < 0.2:
                self.world.sleep(random.random())
            self.look(shard, lease.path)
            lease.release(keep=random.random() < 0.3)
            if random.random() < 0.3:
                cache.forget(self.server)

    def read(self, prefetcher: ShardPrefetcher, shard: Shard) -> None:
        """As a user does: wait, open, read."""
        polled = prefetcher.poll(shard) if self.world.random.random() < 0.3 else None
        path = polled or next(self.without_errors(lambda: prefetcher.wait_for(shard)))
        self.look(shard, path)
        self.world.sleep(self.world.random.random())
        self.look(shard, path)

    def look(self, shard: Shard, path: Path) -> None:
        self.world.point(f"look at {shard.path}")
        if not path.exists() or path.read_bytes() != self.bodies[shard.path]:
            self.world.fail(f"{shard.path}: whoever waited for it does not have it")


class PlainReader:
    """Stands for the reader of parquet: rows of equal length, and every byte is compared."""

    scene: Scene

    def __init__(self, shard: Shard, path: Path | None, *_: object, **__: object) -> None:
        self._shard, self._number, self._fd = shard, int(shard.path.rpartition("/")[2]), -1
        self._body = self.scene.bodies[shard.path]
        if path is not None:
            try:
                self._fd = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                self.scene.world.fail(f"{shard.path}: it is gone, and somebody has it")
            self._check(0, len(self._body) + 1)

    def _check(self, start: int, stop: int) -> None:
        got = (
            os.pread(self._fd, stop - start, start)
            if self._fd >= 0
            else self.scene.server.read(self._shard, start, stop)
        )
        if got != self._body[start:stop]:
            self.scene.world.fail(f"{self._shard.path}: a reader was given wrong bytes")

    def group_rows(self) -> list[int]:
        return self.scene.groups[self._number]

    def read(self, chunk: Chunk) -> list[dict[str, Any]]:
        self.scene.world.point(f"read {self._shard.path} {chunk.first}")
        self._check(chunk.first * ROW_BYTES, (chunk.first + chunk.rows) * ROW_BYTES)
        return [{"uid": f"{self._number}:{chunk.first + n}"} for n in range(chunk.rows)]

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
