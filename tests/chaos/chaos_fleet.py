"""The processes of a chaos run: ranks that are started, watched and ended, and a second job beside them."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import chaos_host as host
from chaos_data import Data
from chaos_hub import HubProcess
from chaos_ledger import Ledger
from chaos_plan import Plan
from chaos_recipes import Job
from chaos_trainer import FAMILY, PEER

PATIENCE = 30.0
"""Seconds without a sample after which a run hangs."""
HEALS = frozenset(("Unreachable", "Stalled", "Integrity", "NoSpace", "FetchError", "DataError"))
"""Errors that a trainer may end with while something is wrong with server, disk or cache; a restart heals them."""
HEALING_SECONDS = 60.0
NO_LOCKS = "import fcntl\nfcntl.flock = lambda *given: None\n"


class Failed(Exception):
    """The run cannot go on: something happened that must not."""


@dataclasses.dataclass(frozen=True)
class Places:
    folder: Path
    """Of the run: ledgers, checkpoints, what processes said."""
    cache: Path
    tokenizer: Path
    temporary: Path
    """For temporary files, which must not stay."""


@dataclasses.dataclass(frozen=True)
class Rank:
    process: subprocess.Popen[bytes]
    number: int


class Fleet:
    def __init__(self, plan: Plan, data: Data, hub: HubProcess, places: Places) -> None:
        self.plan, self.data, self.hub, self.places = plan, data, hub, places
        (places.folder / "said").mkdir(parents=True)
        (places.folder / "sitecustomize.py").write_text(NO_LOCKS)
        self.mark = f"{os.getpid()}-{plan.seed}-{plan.number}"
        self.ranks: list[Rank] = []
        self.second: subprocess.Popen[bytes] | None = None
        self.num_seconds = 0
        self.launch, self.topology = -1, (0, 0)
        self.done, self.killed = Counter[str](), Counter[str]()
        """Actions by name; processes that got a signal, and kills among torch workers."""
        self.problems: list[str] = []
        self.ends: list[str] = []
        """Errors of the family that ended a launch."""
        self.harmed = -1e9
        """When server, disk or cache were last in trouble."""
        sizes = data.sizes
        self.limit = sum(sizes[: 2 * plan.lanes] if plan.room else sizes[:3])
        self.peak = (0, 0)
        """The largest cache, and the largest part of it in use."""
        self._grown, self._size, self._measured = time.monotonic(), -1, 0.0

    # --- starting

    def start(self, topology: tuple[int, int], chance: random.Random, *, epochs: int | None = None) -> None:
        if self.launch >= 0 and topology != self.topology:
            self.done["topology change"] += 1
        self.topology = topology
        self.launch += 1
        job = self.job(*topology, chance, epochs=epochs)
        self.ranks = [Rank(self.process(job, rank), rank) for rank in range(job.ranks)]
        self._grown = time.monotonic()

    def job(self, ranks: int, workers: int, chance: random.Random, *, epochs: int | None = None) -> Job:
        plan = self.plan
        return Job(
            kind=plan.kind,
            folder=str(self.places.folder),
            cache=str(self.places.cache),
            tokenizer=str(self.places.tokenizer),
            seed=plan.seed,
            ranks=ranks,
            workers=workers,
            lanes=plan.lanes,
            launch=self.launch,
            rows=len(self.data.manifest),
            every=chance.randrange(1, 9 if plan.short else 21),
            pause=0.0 if epochs is not None else chance.random() * 0.03,
            group=ranks > 1 and (plan.kind == "tokens" or (plan.group and plan.needs_torch)),
            start_method="spawn" if plan.spawn else None,
            epochs=epochs,
            at=time.time(),
        )

    def process(self, job: Job, rank: int, *, limited: bool = True) -> subprocess.Popen[bytes]:
        folder = Path(job.folder)
        (folder / "said").mkdir(parents=True, exist_ok=True)
        told = folder / "said" / f"job-{job.launch:05d}-{rank}.json"
        told.write_text(json.dumps(dataclasses.asdict(job)))
        env = {
            **os.environ,
            "HF_ENDPOINT": self.hub.endpoint,
            "HF_HOME": str(folder / "home"),
            "HF_SHARD_CACHE_CLEANUP": self.plan.cleanup if limited else "keep",
            "HEADRACE_CACHE_BYTES": str(self.limit) if limited else "1GB",
            "HEADRACE_STALL_SECONDS": "2",
            "RANK": str(rank),
            "WORLD_SIZE": str(job.ranks),
            "TORCHELASTIC_RUN_ID": f"{self.mark}-{job.launch}",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.places.temporary),
            host.MARK: self.mark,
        }
        if not self.plan.locks:
            paths = [str(self.places.folder), os.environ.get("PYTHONPATH", "")]
            env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        script = str(Path(__file__).with_name("chaos_trainer.py"))
        with (folder / "said" / f"{job.launch:05d}-{rank}.txt").open("wb") as said:
            return subprocess.Popen([sys.executable, script, str(told), str(rank)], env=env, stdout=said, stderr=said)

    def start_second(self, workers: int, chance: random.Random) -> None:
        """Another job on the same cache. The one before it is killed, if it still runs."""
        self.end_second()
        self.num_seconds += 1
        folder = self.places.folder / f"second-{self.num_seconds}"
        job = self.job(1, workers, chance, epochs=1)
        self.second = self.process(
            dataclasses.replace(job, folder=str(folder), seed=self.plan.seed + 1, launch=0, lanes=2), 0
        )

    # --- watching

    def wait(self, seconds: float, *, after_first: bool) -> None:
        """Let it run for so long; if asked for, from its first samples on."""
        size = self._ledger_bytes()
        while after_first and self.ranks and self._ledger_bytes() < size + 2000:
            self.look()
        until = time.monotonic() + seconds
        while self.ranks and time.monotonic() < until:
            self.look()

    def look(self, *, ending: bool = False) -> None:
        """See whether it goes on. Ranks that ended by themselves take the others with them."""
        time.sleep(0.03)
        now = time.monotonic()
        if now - self._measured > 0.1:
            self._measured = now
            total, held = host.cache_bytes(self.places.cache)
            self.peak = max(self.peak[0], total), max(self.peak[1], held)
        size = self._ledger_bytes()
        if size != self._size:
            self._size, self._grown = size, now
        elif now - self._grown > host.on_this_machine(PATIENCE):
            host.dump_stacks(host.processes(self.mark))
            where = f"where its threads were stands in {self.places.folder}/said/stacks-*"
            raise Failed(f"launch {self.launch} hangs: no sample for {now - self._grown:.0f} s; {where}")
        if any(rank.process.poll() is not None for rank in self.ranks):
            self._ended(ending)

    def stand_still(self, seconds: float) -> None:
        """Time passes that does not count as a hang."""
        time.sleep(seconds)
        self._grown = time.monotonic()

    def _ledger_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.places.folder.glob("ledger-*.jsonl"))

    def _ended(self, ending: bool) -> None:
        codes = self._codes()
        if ending and all(code in (0, None) for code in codes.values()):
            if None not in codes.values():
                self.ranks = []
            return
        # Where one rank has an error, a group's other ranks lose their peer; which of them ends first is chance.
        until = time.monotonic() + host.on_this_machine(20)
        while set(codes.values()) <= {PEER, 0, None} and None in codes.values() and time.monotonic() < until:
            time.sleep(0.05)
            codes = self._codes()
        self.down()
        errors = Ledger(self.places.folder).launches[self.launch].errors
        told = [error for error in errors if error.startswith("error: ")]
        kinds = {error.split()[1] for error in told}
        expected = FAMILY in codes.values() and set(codes.values()) <= {None, 0, PEER, FAMILY}
        if not (self.is_healing and expected and kinds <= HEALS):
            raise Failed(f"launch {self.launch} ended by itself with {codes}: {errors or 'see what it said'}")
        self.ends += told

    def _codes(self) -> dict[int, int | None]:
        return {rank.number: rank.process.poll() for rank in self.ranks}

    @property
    def is_healing(self) -> bool:
        """Whether what was harmed may still trouble a process."""
        return time.monotonic() - self.harmed < HEALING_SECONDS

    # --- ending

    def workers(self) -> list[int]:
        return [pid for rank in self.ranks for pid in host.workers_of(rank.process.pid)]

    def kill(self, pids: list[int], number: signal.Signals = signal.SIGKILL) -> None:
        self.killed["processes"] += host.send(pids, number)

    def down(self, number: signal.Signals = signal.SIGKILL) -> None:
        """All ranks are ended, and buried."""
        self.kill([rank.process.pid for rank in self.ranks if rank.process.poll() is None], number)
        for rank in self.ranks:
            try:
                rank.process.wait(host.on_this_machine(10))
            except subprocess.TimeoutExpired:
                rank.process.kill()
                rank.process.wait()
                self.problems.append(f"launch {self.launch}: rank {rank.number} did not end on {number.name}")
        self.ranks = []

    def end_second(self, *, patience: float = 0.0) -> None:
        if self.second is None:
            return
        try:
            code = self.second.wait(patience)
        except subprocess.TimeoutExpired:
            if patience:
                self.problems.append(f"second job {self.num_seconds} does not come to an end")
            self.kill([self.second.pid])
            code = self.second.wait()
        if code not in (0, -signal.SIGKILL) and not (code == FAMILY and self.is_healing):
            self.problems.append(f"second job {self.num_seconds} ended with {code}")
        self.second = None
