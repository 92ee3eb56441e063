"""What a chaos run does, drawn from its seed: the same seed gives the same data, recipe, topologies and harm."""

from __future__ import annotations

import random
from dataclasses import dataclass

ACTIONS = {
    "worker": 35,
    "rank": 20,
    "all": 10,
    "server": 10,
    "stop": 5,
    "disk": 5,
    "cache": 5,
    "checkpoint": 5,
    "second": 5,
}
"""What happens, and how often of a hundred times."""
KILLS = ("worker", "rank", "all", "checkpoint")
TOPOLOGIES = [(ranks, workers) for ranks in (1, 2, 3) for workers in (0, 1, 2)]
SHORT = (("rows", 10, 6), ("rows", 9, 4), ("tokens", 6, 6), ("pictures", 5, 6), ("robot", 5, 6))
"""The runs of the short form: kind, kills, lanes."""
WEIGHTS = {"rows": 60, "tokens": 14, "pictures": 13, "robot": 13}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run, from its first start to its last step."""

    seed: int
    number: int
    kind: str
    kills: int
    lanes: int
    """Six can be dealt to one, two or three ranks; four are dealt anew for three."""
    cleanup: str
    room: bool
    """Whether the cache has room for the shards of all lanes; else for three, and rows are read by range."""
    locks: bool
    """Whether locks lock."""
    group: bool
    """Whether several ranks have a process group; packed tokens always have one."""
    spawn: bool
    short: bool
    """Quick harm, and a change of topology at every other restart, so that little time shows much."""

    @property
    def chance(self) -> random.Random:
        return random.Random(f"chaos/{self.seed}/{self.number}")

    @property
    def needs_torch(self) -> bool:
        return self.kind != "rows"

    def __str__(self) -> str:
        parts = [self.kind, f"{self.kills} kills", f"{self.lanes} lanes", f"cleanup={self.cleanup}"]
        parts += ["a cache of three shards"] * (not self.room)
        parts += ["locks that do not lock"] * (not self.locks) + ["spawned workers"] * self.spawn
        return f"run {self.number}: {', '.join(parts)}"


def plan_of(seed: int, number: int, *, short: bool, kind: str | None = None) -> Plan:
    """Run `number` of a seed. Each can be had without those before it."""
    chance = random.Random(f"plan/{seed}/{number}")
    kills, lanes = chance.randrange(15, 36), 6 if chance.random() < 0.7 else 4
    drawn = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    if short:
        drawn, kills, lanes = SHORT[number % len(SHORT)]
    return Plan(
        seed=seed,
        number=number,
        kind=kind or drawn,
        kills=kills,
        lanes=lanes,
        cleanup=chance.choice(["auto", "keep"]),
        room=drawn != "tokens" if short else chance.random() < 0.7,
        locks=bool(number % 2 == 0),
        group=chance.random() < 0.5,
        spawn=not short and chance.random() < 0.15,
        short=short,
    )
