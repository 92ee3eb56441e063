"""What must not change by accident: the order of rows, and what a state means. Kept under `golden/`.

python tests/trust/golden.py                   write what is not there yet, such as the states of a new version
python tests/trust/golden.py "Break: why"      write all anew; the line must stand in CHANGELOG.md before
python tests/trust/golden.py --digest          print a digest of the orders, as this process makes them
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import pytest
from near import Data, NearWorker, Ranks, packed, part, recipe_of, several

import headrace
from headrace.batch import Batch
from headrace.recipe import Change, Mix, Recipe
from headrace.stage import State

FOLDER = Path(__file__).parent / "golden"
ORDERS, BREAKS = FOLDER / "orders.json", FOLDER / "breaks.json"
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"

SEEDS = (0, 1, 7, 2**32 + 5, 2**64 - 1)
TOPOLOGIES = ((1, 0), (2, 1), (3, 2))
"""Ranks, and workers of each: 1, 2 and 6 lanes."""
FIRST = 1000

ROWS = [[[300, 117], [205], [], [0, 401]], [[97, 50], [211]]]
"""Rows of each row group of each shard of each source: 1,023 and 358 of them."""
LENGTHS = ((3, 9, 1, 30, 4), (12, 2))


@contextmanager
def near_workers() -> Iterator[None]:
    """Workers stay in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.serve.crew.Worker", NearWorker)
        patch.setattr("headrace.serve.epoch.group_is_up", lambda: True)
        yield


# --- orders


def orders() -> dict[str, list[str]]:
    """The first addresses of a mix of two sources, for each seed and topology."""
    found = {}
    for seed in SEEDS:
        for ranks, workers in TOPOLOGIES:
            data = several(ROWS)
            recipe = recipe_of(data, seed=seed, pool=4, batch_size=5, parts=[part(data[0], weight=2.0), part(data[1])])
            run = Ranks(recipe, data, (ranks, workers))
            given: list[str] = []
            while len(given) < FIRST and (batches := run.step()):
                given += [shown(address) for batch in batches for address in batch.addresses]
            run.close()
            found[f"seed {seed}, {ranks} ranks, {workers} workers"] = given[:FIRST]
    return found


def shown(address: Any) -> str:
    """`0/3:17`: source 0, shard 3, row 17."""
    source = address.source.removeprefix("txt:data").removesuffix(":text")
    return f"{source}/{address.shard.removeprefix('shard-')}:{address.row}"


def squeezed(lines: list[str]) -> str:
    return base64.b85encode(zlib.compress("\n".join(lines).encode(), 9)).decode()


def unsqueezed(text: str) -> list[str]:
    return zlib.decompress(base64.b85decode(text)).decode().split("\n")


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


# --- states


@dataclass(frozen=True)
class Scene:
    """A run that is stopped after some steps."""

    fields: dict[str, Any]
    topology: tuple[int, int] = (1, 0)
    lanes: int | None = None
    steps: int = 9
    shapes: list[list[list[int]]] = field(default_factory=lambda: [[[9, 4], [8], [0], [12, 3]], [[2, 3]]])
    parts: list[dict[str, Any]] = field(default_factory=list)
    then: tuple[int, int] | None = None
    """Another topology on which it went on for two steps."""

    def made(self) -> tuple[Recipe, list[Data]]:
        data = several(self.shapes, LENGTHS)
        options = self.parts or [{} for _ in data]
        parts = [part(one, **given) for one, given in zip(data, options, strict=True)]
        return recipe_of(data, seed=11, parts=parts, **self.fields), data

    def run(self) -> Ranks:
        recipe, data = self.made()
        serving: dict[str, Any] = {} if self.lanes is None else {"lanes": self.lanes}
        run = Ranks(recipe, data, self.topology, **serving)
        run.steps(self.steps)
        if self.then is not None:
            run = Ranks(recipe, data, self.then, run.state())
            run.steps(2)
        return run

    def resumed(self, state: State) -> Ranks:
        recipe, data = self.made()
        return Ranks(recipe, data, self.then or self.topology, state)


SCENES = {
    "rows": Scene({"batch_size": 2}, lanes=2),
    "rows in file order": Scene({"batch_size": 3, "shuffle": False}, lanes=2, steps=4),
    "rows of an endless mix": Scene(
        {"batch_size": 2, "mix": Mix(stop="loop", schedule=(Change(at=10, weights={"txt:data0:text": 9.0}),))},
        lanes=2,
        steps=30,
    ),
    "rows on ranks": Scene({"batch_size": 2}, topology=(2, 2), steps=2),
    "rows at the end of an epoch": Scene({"batch_size": 2}, steps=100),
    "rows dealt anew": Scene({"batch_size": 2}, lanes=3, steps=5, then=(2, 1)),
    "best fit": Scene({"batch_size": 2, "pack": packed(slack=1)}, lanes=2, steps=20, parts=[{"weight": 5.0}, {}]),
    "best fit dealt anew": Scene({"batch_size": 2, "pack": packed(24, slack=1)}, lanes=3, steps=10, then=(2, 1)),
    "concat by tokens": Scene(
        {"batch_size": 1, "pack": packed(12, method="concat", overlap=2), "mix": Mix(by="tokens")}, steps=25
    ),
    "none, with limits": Scene(
        {"batch_size": 2, "pack": packed(8, method="none")}, steps=12, parts=[{"tokens": 200}, {"limit": 1000}]
    ),
}
FILES = "rows of files"
NEXT = 12
"""Steps after the state that are kept too."""


def content(batch: Batch) -> list[Any]:
    """What a trainer sees of a batch."""
    if not batch.packed:
        return [batch.m, batch.pad, [f"{a.epoch}|{shown(a)}" for a in batch.addresses]]
    spans = [[f"{s.address.epoch}|{shown(s.address)}[{s.start}:{s.stop}]" for s in row] for row in batch.spans]
    return [batch.m, batch.pad, spans, digest(batch["input_ids"].tolist())]


def continued(run: Ranks) -> list[list[Any]]:
    found: list[list[Any]] = []
    for _ in range(NEXT):
        batches = run.step()
        if not batches:
            break
        found += [content(batch) for batch in batches]
    run.close()
    return found


def kept_state(scene: Scene) -> dict[str, Any]:
    run = scene.run()
    state = run.state()
    return {"state": state, "next": continued(run)}


# --- states of other doors


def rows_state(folder: Path) -> dict[str, Any]:
    """Of `headrace.rows` over files that are the same everywhere, named from the current folder."""
    for number, count in enumerate((1300, 700)):
        path = folder / f"part-{number}.jsonl"
        path.write_text("".join(json.dumps({"n": number * 10_000 + n}) + "\n" for n in range(count)))
        os.utime(path, ns=(10**18, 10**18))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with headrace.rows("jsonl:part-*.jsonl", shuffle=True, seed=3, lane=1, lanes=2, cache_dir="data") as stage:
            for _ in range(400):
                next(stage)
            return {"state": stage.state_dict(), "next": [next(stage).data["n"] for _ in range(60)]}


def resumed_rows(folder: Path, state: State) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with headrace.rows("jsonl:part-*.jsonl", shuffle=True, seed=3, lane=1, lanes=2, cache_dir="data") as stage:
            stage.load_state_dict(state)
            return [next(stage).data["n"] for _ in range(60)]


def state_file(name: str, version: str = headrace.__version__) -> Path:
    return FOLDER / f"states-{version}" / f"{name.replace(' ', '-').replace(',', '')}.json"


# --- writing them


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def main(words: list[str]) -> int:
    with near_workers():
        if words == ["--digest"]:
            sys.stdout.write(digest(orders()))
            return 0
        anew = bool(words)
        if anew and (len(words) > 1 or not words[0].startswith("Break: ") or words[0] not in CHANGELOG.read_text()):
            sys.stderr.write("golden.py: name the break as one line 'Break: ...', and put it into CHANGELOG.md first\n")
            return 2
        breaks = json.loads(BREAKS.read_text()) if BREAKS.exists() else []
        write(BREAKS, sorted({*breaks, *words}))
        if anew or not ORDERS.exists():
            write(ORDERS, {name: {"begins": " ".join(o[:8]), "all": squeezed(o)} for name, o in orders().items()})
        for name, scene in SCENES.items():
            if anew or not state_file(name).exists():
                write(state_file(name), kept_state(scene))
        if anew or not state_file(FILES).exists():
            with tempfile.TemporaryDirectory() as folder:
                write(state_file(FILES), rows_state(Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
