"""One chaos run: ranks are started, harmed, killed and started again until the plan is done; then the books."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

import chaos_host as host
from chaos_data import Data
from chaos_fleet import Failed, Fleet, Places
from chaos_hub import FAULTS, HubProcess
from chaos_ledger import Ledger, check, proofs
from chaos_plan import ACTIONS, KILLS, TOPOLOGIES, Plan

ORPHANS = 5.0
"""Seconds that workers may outlive their trainer."""


class Campaign:
    def __init__(self, plan: Plan, data: Data, hub: HubProcess, places: Places) -> None:
        self.plan, self.data, self.hub, self.places = plan, data, hub, places
        self.fleet = Fleet(plan, data, hub, places)
        self.chance = plan.chance
        self._began = time.monotonic()

    def run(self) -> dict[str, Any]:
        fleet, chance = self.fleet, self.chance
        try:
            fleet.start(self._drawn_topology(first=True), chance)
            while sum(fleet.done[kill] for kill in KILLS) < self.plan.kills:
                action = chance.choices(list(ACTIONS), list(ACTIONS.values()))[0]
                seconds, late = chance.random() * (0.6 if self.plan.short else 3.0), chance.random() < 0.8
                fleet.wait(seconds, after_first=late)
                if self._act(action) or not fleet.ranks:
                    fleet.start(self._drawn_topology(), chance)
            self._finish()
        except Failed as why:
            fleet.problems.append(str(why))
        finally:
            self._end_all()
        ledger = self._check()
        return self._told(ledger)

    def _drawn_topology(self, first: bool = False) -> tuple[int, int]:
        now, change = self.fleet.topology, self.chance.random() < 1 / 3
        if not (change or first or (self.plan.short and self.fleet.launch % 2 == 0)):
            return now
        others = [one for one in TOPOLOGIES if one != now]
        return self.chance.choices(others, [1 + 2 * (ranks != now[0]) for ranks, _ in others])[0]

    # --- harm

    def _act(self, action: str) -> bool:
        """True: the run is down, and has to be started again."""
        fleet = self.fleet
        if not fleet.ranks:
            return True
        if action == "worker" and not fleet.workers():
            action = "rank"
        if action in KILLS and self.plan.needs_torch and fleet.topology[1]:
            fleet.killed["with torch workers"] += 1
        down: bool = getattr(self, f"_do_{action}")()
        fleet.done[action] += 1
        return down

    def _do_worker(self) -> bool:
        self.fleet.kill([self.chance.choice(self.fleet.workers())])
        return False

    def _do_rank(self) -> bool:
        self.fleet.kill([self.chance.choice(self.fleet.ranks).process.pid])
        time.sleep(self.chance.random() * 0.3)
        self.fleet.down(self.chance.choice([signal.SIGKILL, signal.SIGTERM]))
        return True

    def _do_all(self) -> bool:
        self.fleet.kill([*self.fleet.workers(), *(rank.process.pid for rank in self.fleet.ranks)])
        self.fleet.down()
        return True

    def _do_checkpoint(self) -> bool:
        """Everything is killed, and the newest checkpoint does not survive it."""
        self._do_all()
        for path in sorted((self.places.folder / "checkpoints").glob("at-*.json"))[-1:]:
            data = path.read_bytes()
            spoilt = {"half": data[: len(data) // 2], "empty": b"", "noise": self.chance.randbytes(len(data))}
            harm = self.chance.choice(["gone", *spoilt])
            self.fleet.done["torn checkpoint"] += 1
            if harm == "gone":
                path.unlink()
            else:
                path.write_bytes(spoilt[harm])
        return True

    def _do_stop(self) -> bool:
        fleet = self.fleet
        target = self.chance.choice([*(rank.process.pid for rank in fleet.ranks), *fleet.workers(), self.hub.pid])
        host.send([target], signal.SIGSTOP)
        try:
            fleet.stand_still(self.chance.uniform(0.3, 2.0) if self.plan.short else self.chance.uniform(1.0, 40.0))
        finally:
            host.send([target], signal.SIGCONT)
        fleet.harmed = time.monotonic()
        return False

    def _do_server(self) -> bool:
        for _ in range(self.chance.randrange(1, 4)):
            self.hub.fault("*/resolve/*", self.chance.choice(FAULTS), self.chance.randrange(1, 3))
        self.fleet.harmed = time.monotonic()
        return False

    def _do_disk(self) -> bool:
        if host.INSIDE not in os.environ:
            return False  # the disk is everybody's
        fleet = self.fleet
        fleet.harmed = time.monotonic()
        ballast = host.fill(self.places.cache.parent)
        try:
            until = time.monotonic() + (1.0 if self.plan.short else 2.0)
            while fleet.ranks and time.monotonic() < until:
                fleet.look()
        finally:
            ballast.unlink()
        fleet.harmed = time.monotonic()
        return False

    def _do_cache(self) -> bool:
        """A file of the cache is harmed where it lies, or taken away."""
        self.fleet.harmed = time.monotonic()
        files = host.cached_files(self.places.cache)
        if files:
            harm = self.chance.choice(["half", "flip", "gone", "noise"])
            try:
                harm_file(self.chance.choice(files), harm, self.chance.random())
            except FileNotFoundError:
                pass  # it was removed meanwhile
        return False

    def _do_second(self) -> bool:
        self.fleet.start_second(self.chance.randrange(2), self.chance)
        return False

    # --- the end

    def _finish(self) -> None:
        """To an end of an epoch, without harm."""
        fleet = self.fleet
        fleet.down()
        self.hub.clear()
        fleet.start(self._drawn_topology(), self.chance, epochs=5 if self.plan.kind == "pictures" else 1)
        while fleet.ranks:
            fleet.look(ending=True)
        fleet.end_second(patience=host.on_this_machine(60))

    def _end_all(self) -> None:
        fleet = self.fleet
        host.send([self.hub.pid], signal.SIGCONT)
        fleet.end_second()
        fleet.down()
        self.hub.clear()
        until = time.monotonic() + host.on_this_machine(ORPHANS)
        while (left := host.processes(fleet.mark)) and time.monotonic() < until:
            time.sleep(0.1)
        if left:
            fleet.problems.append(f"processes that did not end: {left}")
            host.dump_stacks(left)

    def _check(self) -> Ledger:
        fleet, ledger = self.fleet, Ledger(self.places.folder)
        if not fleet.problems:
            epochs = 1 + max(epoch for _, _, _, epoch, _ in ledger.committed())
            reference = self._undisturbed(min(epochs, 2))
            fleet.problems += check(ledger, self.plan.kind, self.data.manifest, reference)
            for folder in sorted(self.places.folder.glob("second-*")):
                fleet.problems += proofs(Ledger(folder), self.data.manifest)
        fleet.problems += left_over(self.places, fleet.limit + fleet.peak[1], fleet.peak[0])
        return ledger

    def _undisturbed(self, epochs: int) -> Ledger:
        """The same recipe in one process, with a cache of its own and nothing that harms it."""
        folder = self.places.folder / "undisturbed"
        job = self.fleet.job(1, 0, self.chance, epochs=epochs)
        job = dataclasses.replace(job, folder=str(folder), cache=str(folder / "cache"), launch=0, every=10**6)
        code = self.fleet.process(job, 0, limited=False).wait(host.on_this_machine(300))
        if code:
            raise RuntimeError(f"a run that nobody disturbed ended with {code}; see {folder}")
        return Ledger(folder)

    def _told(self, ledger: Ledger) -> dict[str, Any]:
        fleet, launches = self.fleet, ledger.launches.values()
        firsts = sorted(first for launch in launches if launch.number for first in launch.firsts)
        return {
            "number": self.plan.number,
            "plan": dataclasses.asdict(self.plan),
            "actions": dict(fleet.done),
            "kills": sum(fleet.done[kill] for kill in KILLS),
            "processes": fleet.killed["processes"],
            "with torch workers": fleet.killed["with torch workers"],
            "launches": len(launches),
            "resumes": sum(1 for launch in launches if launch.origin is not None and launch.batches),
            "topology changes": fleet.done["topology change"],
            "re-deals": sum(1 for launch in launches if launch.batches and ledger.is_dealt_anew(launch)),
            "worker deaths noticed": sum(launch.deaths for launch in launches),
            "samples": ledger.samples,
            "samples that count": sum(len(entries) for *_, entries in ledger.committed()) if ledger.launches else 0,
            "torn lines": ledger.torn,
            "checkpoints refused": sum(1 for launch in launches if launch.refused),
            "errors that ended a launch": fleet.ends,
            "cache limit": fleet.limit,
            "largest cache": fleet.peak[0],
            "seconds to the first sample": [firsts[len(firsts) // 2], firsts[-1]] if firsts else [],
            "hub": self.hub.count(),
            "seconds": round(time.monotonic() - self._began, 1),
            "problems": fleet.problems,
        }


def harm_file(path: Path, harm: str, luck: float) -> None:
    """Cut it in half, change one byte or many of it, or take it away."""
    if harm == "gone":
        path.unlink()
        return
    path.chmod(0o644)
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        at = int(luck * size)
        if harm == "half":
            file.truncate(size // 2)
            return
        many = 1 if harm == "flip" else 4000
        file.seek(at)
        old = file.read(many)
        file.seek(at)
        file.write(bytes(byte ^ 255 for byte in old))


def left_over(places: Places, most: int, peak: int) -> list[str]:
    """What a run that is over has left: nothing but whole shards, within what the cache may hold."""
    from headrace.fetch.cache import ShardCache

    found = []
    if peak > most:
        found.append(f"the cache had {peak:,} bytes; its limit and what was in use make {most:,}")
    folders = [places.temporary, *([Path("/dev/shm")] if host.INSIDE in os.environ else [])]
    found += [f"left in {folder}: {sorted(folder.iterdir())}" for folder in folders if any(folder.iterdir())]
    ShardCache(places.cache).sweep()
    if names := host.unfinished(places.cache):
        found.append(f"left in the cache, also after a sweep: {names}")
    return found
