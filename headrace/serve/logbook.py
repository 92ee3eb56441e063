"""How far the copies of a dataset in a DataLoader's workers have come, so that others go on from there.

A worker takes what it knows with it when it ends. So it writes it down, in a folder that all copies of the dataset know
of: each the lanes that it has. The next worker of its number goes on with them, as it would had it stayed; whoever asks
in the trainer's process, or another number of workers, gets all of them together.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.errors import StateError
from headrace.files import publish_json
from headrace.serve.epoch import epoch_start
from headrace.serve.pipeline import Pipeline
from headrace.serve.redeal import redeal
from headrace.serve.resume import Place, saved_of
from headrace.serve.state import Saved, canonical
from headrace.stage import State

SHARE = 20
"""While samples are given, writing takes one part in so many of the time."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """What one worker wrote."""

    worker: int
    workers: int
    count: int
    """Epochs that were begun in this book: the greater, the later."""
    begun: int
    """The micro-batch that its epoch, or what was left of one, began with."""
    ended: bool = False
    """Whether its lanes have given all that they have in their epoch."""
    own: tuple[int, ...] = ()
    """The lanes that it has; those of others are as they were when it began."""
    state: State = field(default_factory=dict)

    def opened(self, pipeline: Pipeline) -> tuple[Pipeline, Place]:
        """Where this worker goes on."""
        saved = Saved.from_state(self.state)
        pipeline = pipeline.resumed(saved.facts, saved.size)
        pipeline.fix(len(saved.lanes))
        place = _place(saved, [lane for lane in saved.lanes if lane is not None])
        return pipeline, next_epoch(pipeline, place, self.begun) if self.ended else place


def _place(saved: Saved, lanes: list[bytes]) -> Place:
    return Place(lanes=lanes, m=saved.m, m_plan=saved.m_plan, m_epoch=saved.m_epoch, epoch=saved.epoch)


def next_epoch(pipeline: Pipeline, place: Place, begun: int) -> Place:
    """For one of several workers, which has the same lanes again."""
    found = epoch_start(pipeline, place, place.epoch + 1)
    m = found.m + begun % len(place.lanes)
    return replace(found, m=m, m_plan=m, m_epoch=m)


class Logbook:
    def __init__(self) -> None:
        self._folder = Path(tempfile.gettempdir(), f"headrace-{uuid.uuid4().hex}")
        self._own: Page | None = None
        """The page that we write, in a worker."""
        self._due = 0.0
        """When to write again."""
        self._gone = weakref.finalize(self, _remove, self._folder, os.getpid())

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder, "_own": None, "_due": 0.0}

    def __deepcopy__(self, memo: dict[int, Any]) -> Logbook:
        return Logbook()  # what becomes of a copy is not our matter

    def open(self, worker: int, workers: int, begun: int) -> None:
        """A worker begins an epoch, or goes on with one."""
        count = 1 + max([page.count for page in self._pages()], default=0)
        self._own = Page(worker=worker, workers=workers, count=count, begun=begun)

    @property
    def is_due(self) -> bool:
        return time.monotonic() > self._due

    def write(self, state: Callable[[], State], lanes: Collection[int], *, ended: bool = False) -> None:
        """What it would go on from, and the lanes that it has."""
        assert self._own is not None, "a worker opens its page first"
        began = time.monotonic()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        page = replace(self._own, state=state(), own=tuple(sorted(lanes)), ended=ended)
        publish_json(self._folder / f"{page.workers}-{page.worker}.json", asdict(page))
        now = time.monotonic()
        self._due = now + SHARE * (now - began)

    def of(self, worker: int, workers: int) -> Page | list[Page] | None:
        """What a worker goes on from: its own page, or all of another number of workers. None: nothing is written."""
        if self._own is not None:
            return None  # it was here before, and knows
        for pages in self._books():
            mine = [page for page in pages if (page.worker, page.workers) == (worker, workers)]
            if mine or len(pages) == pages[0].workers:
                return mine[0] if mine else pages
        return None

    def latest(self) -> list[Page]:
        """The pages of all workers; none where none has written."""
        books = self._books()
        found = next((pages for pages in books if len(pages) == pages[0].workers), [])
        if books and not found:
            raise StateError(
                "some workers of the DataLoader ended without a word, so that nobody knows where they were"
            )
        return found

    def _books(self) -> list[list[Page]]:
        """Pages by their number of workers, the latest first."""
        books: dict[int, list[Page]] = {}
        for page in self._pages():
            books.setdefault(page.workers, []).append(page)
        return sorted(books.values(), key=lambda pages: -max(page.count for page in pages))

    def _pages(self) -> list[Page]:
        return [Page(**json.loads(path.read_bytes())) for path in sorted(self._folder.glob("*.json"))]


def together(pages: Sequence[Page], pipeline: Pipeline) -> State:
    """One state of all workers."""
    parts = [Saved.from_state(page.state) for page in pages]
    first, num_lanes = parts[0], len(parts[0].lanes)
    known = {i: lane for page, part in zip(pages, parts, strict=True) for i in page.own if (lane := part.lanes[i])}
    if len(known) < num_lanes or len({part.epoch for part in parts}) > 1:
        raise StateError(
            "under a plain DataLoader on several ranks, or with workers that were stopped in different epochs, nobody "
            "knows the state of the whole run; use dataset.loader(...), which has an exact state"
        )
    pipeline = pipeline.resumed(first.facts, first.size)
    pipeline.fix(num_lanes)
    lanes, m = [known[i] for i in range(num_lanes)], max(part.m for part in parts)
    place = replace(_place(first, lanes), m=m)
    if all(page.ended for page in pages):
        return saved_of(pipeline, epoch_start(pipeline, place, place.epoch + 1)).to_state([])
    states, origins = redeal(pipeline, [json.loads(lane) for lane in lanes], num_lanes)
    pipeline.start_digests(origins)
    m = -(-m // num_lanes) * num_lanes
    place = replace(place, lanes=[canonical(state) for state in states], m=m, m_plan=m)
    return saved_of(pipeline, place).to_state([])


def _remove(folder: Path, pid: int) -> None:
    if pid == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)
