"""How far the copies of a dataset in a DataLoader's workers have come, so that others go on from there.

A worker takes what it knows with it when it ends. So it writes it down, in a folder that all copies of the dataset know
of: a page for each worker of a round (one `iter()` of a DataLoader), with the lanes that it has. The first worker of
the next round puts the pages of the last one together, once for all of its round; so does whoever asks in the trainer's
process.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headrace.errors import StateError
from headrace.files import lives, process_tag, publish_json
from headrace.serve.epoch import next_epoch
from headrace.serve.pipeline import Pipeline
from headrace.serve.resume import Place, saved_of
from headrace.serve.state import Saved
from headrace.stage import State

SHARE = 20
"""While samples are given, writing takes one part in so many of the time."""
CLOSING_SECONDS = 2.0
"""So long a round waits for workers of the last one to write their last word."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """What one worker wrote in a round."""

    workers: int
    own: list[int]
    """The lanes that it has."""
    state: State
    """Those of others are as they were when the round began."""
    ended: bool = False
    """Whether its lanes have given all that they have in their epoch."""
    closed: bool = False
    """Whether that was its last word."""
    process: str = ""


class Round:
    """One worker in one round."""

    def __init__(self, path: Path, workers: int, start: State | None) -> None:
        self.start = start
        """What the round goes on from; None: there was none before it."""
        self._path, self._workers, self._due = path, workers, 0.0

    def noted(
        self, samples: Generator[dict[str, Any]], own: Collection[int], state: Callable[[], State]
    ) -> Generator[dict[str, Any]]:
        """The samples, with a note of where they are: before the first, after the last, and now and then."""
        page = {"workers": self._workers, "own": sorted(own)}
        self._write(state, page)
        ended = False
        try:
            for sample in samples:
                yield sample
                if time.monotonic() > self._due:
                    self._write(state, page)
            ended = True
        finally:
            samples.close()
            with suppress(OSError):  # the trainer may have ended, and its folder with it
                self._write(state, {**page, "ended": ended, "closed": True})

    def _write(self, state: Callable[[], State], page: dict[str, Any]) -> None:
        began = time.monotonic()
        publish_json(self._path, asdict(Page(state=state(), process=process_tag(), **page)))
        now = time.monotonic()
        self._due = now + SHARE * (now - began)


class Logbook:
    def __init__(self) -> None:
        self._folder = Path(tempfile.gettempdir(), f"headrace-{uuid.uuid4().hex}")
        self._gone = weakref.finalize(self, _remove, self._folder, os.getpid())

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder}

    def __deepcopy__(self, memo: dict[int, Any]) -> Logbook:
        found = Logbook()
        if self._folder.is_dir():
            shutil.copytree(self._folder, found._folder)
        return found

    def begin(self, asked: tuple[int, int], worker: int, workers: int, pipeline: Callable[[], Pipeline]) -> Round:
        """In a worker. `asked`: a number that it has in common with those beside it, and how often it was asked to
        begin."""
        name = f"{asked[0]}-{asked[1]}"
        while (page := _read(self._page(name, worker))) is not None and page["process"] != process_tag():
            name += "-again"  # a trainer that sets its seed anew may come to the same number
        if asked[1] > 1 and not self._folder.is_dir():
            raise StateError(
                "since these workers last gave samples, the dataset was iterated in the trainer's process, or told to "
                "go elsewhere, which they do not know of; make a new DataLoader, or do without persistent_workers"
            )
        start = self._started(name, pipeline)
        ranks = 1 if start is None else pipeline().run.world_size
        if start is not None and ranks > 1 and start["L"] % (ranks * workers):
            raise StateError(
                f"{workers} workers on each of {ranks} ranks cannot go on with {start['L']} lanes under a plain "
                f"DataLoader: no rank knows where the others are; use dataset.loader(...), or as many workers as before"
            )
        return Round(self._page(name, worker), workers, start)

    def _started(self, name: str, pipeline: Callable[[], Pipeline]) -> State | None:
        """What a round goes on from: the same for all of its workers."""
        path = self._start(name)
        if not path.exists():
            self._folder.mkdir(mode=0o700, exist_ok=True)
            rounds = self._rounds()
            found = self.latest(pipeline, patient=True)
            number = 1 + max([begun["number"] for begun in rounds.values()], default=0)
            first = self._folder / f".{uuid.uuid4().hex}"
            publish_json(first, {"number": number, "state": None if found is None else saved_of(*found).to_state()})
            with suppress(FileExistsError):  # another was faster
                os.link(first, path)
            first.unlink()
            self._tear_out([old for old, begun in rounds.items() if begun["number"] < number - 1])
        found_state: State | None = json.loads(path.read_bytes())["state"]
        return found_state

    # --- in any process

    def latest(self, pipeline: Callable[[], Pipeline], *, patient: bool = False) -> tuple[Pipeline, Place] | None:
        """Where the workers of the last round are, together; None where none has begun. `patient`: wait for those that
        are about to end."""
        rounds = self._rounds()
        if not rounds:
            return None
        name = self._last(rounds)
        pages, deadline = self._pages(name), time.monotonic() + CLOSING_SECONDS
        while patient and any(self._goes_on(page) for page in pages) and time.monotonic() < deadline:
            time.sleep(0.01)
            pages = self._pages(name)
        if pages:
            return _together(pages, pipeline())
        begun = rounds[name]["state"]
        if begun is None:
            return None
        saved = Saved.from_state(begun)
        return _opened(saved, pipeline(), _place(saved, saved.lanes))

    def state(self, pipeline: Pipeline, place: Place) -> State:
        """The same as a state; of several ranks, the part that is known here."""
        pipeline.needs.saved(place.lanes)
        if pipeline.run.world_size == 1:
            return saved_of(pipeline, place).to_state()
        own = {lane for page in self._pages(self._last(self._rounds())) for lane in page.own}
        known = [lane if i in own else None for i, lane in enumerate(place.lanes)]
        return saved_of(pipeline, place, known).to_state()

    def _last(self, rounds: dict[str, dict[str, Any]]) -> str:
        return max(rounds, key=lambda name: (rounds[name]["number"], name))

    def _goes_on(self, page: Page) -> bool:
        return not page.closed and lives(page.process, self._folder) is not False

    def _rounds(self) -> dict[str, dict[str, Any]]:
        paths = self._folder.glob("*.start.json")
        found = {path.name.removesuffix(".start.json"): _read(path) for path in paths}
        return {name: begun for name, begun in found.items() if begun is not None}

    def _pages(self, name: str) -> list[Page]:
        found = [_read(path) for path in sorted(self._folder.glob(f"{name}.worker-*.json"))]
        return [Page(**page) for page in found if page is not None]

    def _start(self, name: str) -> Path:
        return self._folder / f"{name}.start.json"

    def _page(self, name: str, worker: int) -> Path:
        return self._folder / f"{name}.worker-{worker}.json"

    def _tear_out(self, names: Collection[str]) -> None:
        for name in names:
            for path in [self._start(name), *self._folder.glob(f"{name}.worker-*.json")]:
                path.unlink(missing_ok=True)


def _together(pages: list[Page], pipeline: Pipeline) -> tuple[Pipeline, Place]:
    """A worker that wrote nothing gave nothing: its lanes are as they were."""
    parts = [Saved.from_state(page.state) for page in pages]
    lanes = list(parts[0].lanes)
    for page, part in zip(pages, parts, strict=True):
        for i in page.own:
            lanes[i] = part.lanes[i]
    place = replace(_place(parts[0], lanes), m=max(part.m for part in parts))
    pipeline, place = _opened(parts[0], pipeline, place)
    ended = len(pages) == pages[0].workers and all(page.ended for page in pages)
    return pipeline, next_epoch(pipeline, place) if ended else place


def _place(saved: Saved, lanes: Collection[bytes | None]) -> Place:
    known = [lane for lane in lanes if lane is not None]
    assert len(known) == len(saved.lanes), "a page has all lanes, its own and those of others"
    return Place(lanes=known, m=saved.m, m_plan=saved.m_plan, m_epoch=saved.m_epoch, epoch=saved.epoch)


def _opened(saved: Saved, pipeline: Pipeline, place: Place) -> tuple[Pipeline, Place]:
    pipeline = pipeline.resumed(saved.kept, saved.size)
    pipeline.fix(len(place.lanes))
    return pipeline, place


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return found


def _remove(folder: Path, pid: int) -> None:
    if pid == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
