"""What must hold in a simulated world at every moment, and at its end."""

from __future__ import annotations

import gc
import hashlib
import logging
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import simulator
from simulated_jobs import Job, PlainReader, Scene
from simulated_system import REAL, Name
from simulator import Process, Task

from headrace.catalog.shard import Shard
from headrace.catalog.stop import Stop
from headrace.fetch import cache as cache_module
from headrace.fetch import download, prefetch, shelf
from headrace.fetch.cache import ShardCache
from headrace.fetch.leases import Grade, Lease
from headrace.files import PART

LONGEST_WAIT = 1500.0
"""Seconds of the simulation within which a shard has come, whatever happens on the way."""
PLACES = "hf_shards/me/rows/train/"
LEASES = "hf_shards/.leases/"


class Watch:
    """Sees every change of the disk, every request and every lease."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.world = scene, scene.world
        self.desks: list[tuple[Process, Any]] = []
        """Of living processes."""
        self.all_desks: list[Any] = []
        self.held: list[tuple[Process, weakref.ref[Lease]]] = []
        """Leases that were given and not yet let go."""
        self.lesser: weakref.WeakSet[Lease] = weakref.WeakSet()
        """Leases whose file may go where room is needed."""
        self.fetching: dict[Task, Path] = {}
        """Where downloads go to."""
        self.claims: dict[str, list[str]] = {}
        """The lease files that there are of each key."""
        self.freed: dict[str, float] = {}
        self.began: dict[Task, float] = {}
        cache = ShardCache(scene.root)
        self.keys = {path: cache._key(scene.root / PLACES / path) for path in scene.bodies}
        scene.system.on_rename, scene.system.on_remove = self.renamed, self.removed
        scene.system.on_claim, scene.server.on_request = self.claimed, self.requested
        self.world.on_kill, self.world.before_time_passes = self.killed, self.nobody_sleeps_too_long

    # --- the disk

    def renamed(self, old: str, name: str) -> None:
        path = Name(name.removeprefix(PLACES))
        for names in self.claims.values():
            if old in names:
                names[names.index(old)] = name
        body = self.scene.bodies.get(path) if name.startswith(PLACES) else None
        if body is not None and (self.scene.root / name).read_bytes() != body:
            self.world.fail(f"{path}: wrong bytes were published")

    def removed(self, name: str) -> None:
        if name.startswith(LEASES):
            self.let_go(name)
        if name.endswith(PART) and any(
            who.is_alive and of == name for who, of in self.scene.system.open_files.values()
        ):
            self.world.fail(f"{name} is removed, and is being written")
        path = self.scene.root / name
        if name.startswith(PLACES) and not path.name.startswith("."):
            for process, lease in self.leases():
                if lease.path == path and process.is_alive and lease not in self.lesser:
                    self.world.fail(f"{name} is removed, and process {process.pid} has it in use")

    def leases(self) -> Iterator[tuple[Process, Lease]]:
        self.held = [(process, ref) for process, ref in self.held if ref() is not None]
        for process, ref in self.held:
            lease = ref()
            if lease is not None:
                yield process, lease
        for process, desk in self.desks:
            for lease in desk._leases.values():
                yield process, lease

    def claimed(self, name: str) -> None:
        self.claims.setdefault(name.removeprefix(LEASES).partition(".")[0], []).append(name)
        self.began[self.world.me] = self.world.now

    def let_go(self, name: str) -> None:
        key = name.removeprefix(LEASES).partition(".")[0]
        if name in self.claims.get(key, ()):
            self.claims[key].remove(name)
            self.freed[key] = self.world.now

    # --- requests

    def requested(self, shard: Shard) -> None:
        me, path = self.world.me, shard.path
        others = [task.name for task, place in self.fetching.items() if place == self.fetching[me] and task is not me]
        if others and self.scene.system.locks == "work" and path not in self.scene.server.silent:
            self.world.fail(f"{path} is downloaded twice at once: by {me.name} and {others[0]}")
        limit = self.scene.run_settings.cache_bytes
        if limit is not None and not self.scene.system.was_refused and self.began[me] > me.paused + 5:
            self.check_limit(limit, self.began[me])

    def check_limit(self, limit: int, began: float) -> None:
        """Where more is kept than the limit, all of it has been in use since this download began."""
        here: dict[str, int] = {
            path: len(body) for path, body in self.scene.bodies.items() if (self.scene.root / PLACES / path).exists()
        }
        paths = [Name(f"data/{place.name}") for place in self.fetching.values()]
        coming = {path: len(self.scene.bodies[path]) for path in paths}
        idle = [p for p in here if not self.claims.get(self.keys[p]) and self.freed.get(self.keys[p], 0.0) < began]
        if idle and sum((here | coming).values()) > limit:
            self.world.fail(f"{here} and {coming} are more than {limit} bytes, and nobody uses {idle}")

    # --- time

    def nobody_sleeps_too_long(self) -> None:
        for process, desk in self.desks:
            if not process.is_alive:
                continue
            thread = getattr(desk._thread, "_task", None)
            for task in self.world.tasks:
                if task.waits_for is not desk._changed or task.is_ready:
                    continue
                if task is thread and desk._queue:
                    self.world.fail(f"{task.name} sleeps, and {[s.path for s in desk._queue]} is wanted")
                if task is not thread and task.job is not None and task.job.done:
                    self.world.fail(f"{task.name} sleeps, and {task.job.shard.path} is there")

    def killed(self, process: Process) -> None:
        by_us = f".{process.pid}."
        self.scene.system.buried(process)
        self.desks = [(owner, desk) for owner, desk in self.desks if owner is not process]
        self.fetching = {task: place for task, place in self.fetching.items() if task.process is not process}
        for name in [name for names in self.claims.values() for name in names if by_us in name]:
            self.let_go(name)
            if process.job is None:  # an end like any other: the interpreter forgets what is left
                (self.scene.root / name).unlink(missing_ok=True)
        if process.job is not None:
            self.scene.start(process.job, self.world.random.random() * 3)

    # --- the code under test, looked at

    @contextmanager
    def in_place(self) -> Iterator[None]:
        watch, world = self, self.world
        acquire, find, fetch = ShardCache.acquire, ShardCache.find, download.download
        release, turn = Lease.release, Lease.turn

        def given(lease: Lease) -> None:
            watch.held.append((world.me.process, weakref.ref(lease)))

        def acquired(cache: ShardCache, shard: Shard, stop: Stop | None = None) -> Lease:
            lease = acquire(cache, shard, stop)
            given(lease)
            return lease

        def downloaded(shard: Shard, target: Path, **options: Any) -> Any:
            me = world.me
            watch.fetching[me] = target
            try:
                return fetch(shard, target, **options)
            finally:
                watch.fetching.pop(me, None)

        def found(cache: ShardCache, shard: Shard) -> Lease | None:
            lease = find(cache, shard)
            if lease is not None:
                given(lease)
            return lease

        def released(lease: Lease, keep: bool = False) -> None:
            watch.held = [(process, ref) for process, ref in watch.held if ref() is not lease]
            release(lease, keep)

        def turned(lease: Lease, grade: Grade) -> None:
            watch.lesser.add(lease)
            turn(lease, grade)

        class Desk(prefetch._Desk):
            def __init__(self, cache: ShardCache) -> None:
                super().__init__(cache)
                watch.desks.append((world.me.process, self))
                watch.all_desks.append(self)

            def get(self, shard: Shard) -> Path:
                began = world.now
                path = super().get(shard)
                if world.now - began > LONGEST_WAIT:
                    world.fail(f"{shard.path} came after {world.now - began:.0f} s")
                return path

            def _wait(self, job: prefetch._Job) -> None:
                world.me.job = job
                super()._wait(job)
                world.me.job = None

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ShardCache, "acquire", acquired)
            patch.setattr(ShardCache, "find", found)
            patch.setattr(cache_module, "download", downloaded)
            patch.setattr(Lease, "release", released)
            patch.setattr(Lease, "turn", turned)
            patch.setattr(prefetch, "_Desk", Desk)
            patch.setattr(shelf, "ParquetReader", PlainReader)
            patch.setattr(PlainReader, "scene", self.scene, raising=False)
            yield


def at_the_end(scene: Scene) -> None:
    """All is well again: rows were given once, every shard can be had, and nothing is left of what came and went."""
    world = scene.world
    rows = sorted(f"{i}:{row}" for i, groups in enumerate(scene.groups) for row in range(sum(groups)))
    for epoch in range(scene.epochs if scene.lanes else 0):
        given = sorted(uid for ledger in scene.ledgers for e, uid in ledger.rows[: ledger.at] if e == epoch)
        if given != rows:
            world.fail(f"epoch {epoch}: {len(rows)} rows, but these were given: {given}")
    scene.server.faults = scene.system.refusals = 0
    cache, listing = ShardCache(scene.root, limit=scene.run_settings.cache_bytes), scene.listing()
    for i in range(len(listing)):
        lease = cache.acquire(listing.shard(i))
        scene.look(listing.shard(i), lease.path)
        lease.release(keep=True)
    cache.sweep()
    limit, top = scene.run_settings.cache_bytes, scene.root / "hf_shards"
    kept = sum(
        (scene.root / PLACES / path).stat().st_size for path in scene.bodies if (scene.root / PLACES / path).exists()
    )
    if limit is not None and kept > limit:
        world.fail(f"{kept} bytes are kept, the limit is {limit}, and nobody uses any of them")
    left = [path for path in top.rglob("*") if path.is_file() and path.name.endswith((".part", ".rm", ".lock"))]
    left += (scene.root / LEASES).iterdir()
    if left:
        world.fail(f"left after a sweep: {[str(path.relative_to(scene.root)) for path in left]}")
    cache._evict(1 << 40)
    left = [path for path in (scene.root / PLACES).rglob("*") if path.is_file()]
    if left:
        world.fail(f"left when all was removed: {[str(path.relative_to(scene.root)) for path in left]}")


def simulate(seed: int) -> str:
    """Live through one seed. Raises `Found`, or gives the trace: every step of everybody."""
    root = Path(tempfile.mkdtemp(prefix="headrace-simulated-"))
    gc.disable()  # it would end forgotten things at moments that no seed decides
    logging.disable(logging.CRITICAL)
    try:
        return _lived(Scene(seed, root))
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(root)
        gc.enable()
        gc.collect(0 if seed % 50 else 2)


def _lived(scene: Scene) -> str:
    watch, world = Watch(scene), scene.world
    try:
        with scene.system.in_place(), watch.in_place():
            for name, does in zip("abc", scene.jobs, strict=False):
                scene.start(Job(name, does))
            world.run()
            world.events.clear()
            world.spawn(world.process(), "end", partial(at_the_end, scene))
            world.run()
    finally:
        for fd in scene.system.open_files:
            REAL["close"](fd)
        for desk in watch.all_desks:
            desk._jobs.clear()  # what killed a job remembers where, and so all that was there
    return "\n".join(f"{step} {name} {what}" for step, name, what in world.trace)


def digest(seed: int) -> str:
    return hashlib.sha256(simulate(seed).encode()).hexdigest()


if __name__ == "__main__":
    simulator.SHOWN_STEPS = simulator.MOST_STEPS
    print(simulate(int(sys.argv[1])))
