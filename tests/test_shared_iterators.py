"""Threads that share an iterator: each batch goes to one of them, and the state is what all of them got."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from near import loader_of as loader_near
from near import near, packed, recipe_of, several
from serving import UIDS, loader_of, seen, uids_in, write_rows

from headrace.batch import Batch

__all__ = ["near"]  # a fixture


def shared(batches: Any, threads: int) -> list[Batch]:
    """All of them, each to one thread."""
    found: list[Batch] = []
    errors: list[BaseException] = []

    def take() -> None:
        try:
            for batch in batches:
                found.append(batch)  # noqa: PERF402 - one by one, as others take theirs
        except BaseException as error:
            errors.append(error)

    helpers = [threading.Thread(target=take) for _ in range(threads)]
    for helper in helpers:
        helper.start()
    for helper in helpers:
        helper.join()
    assert errors == []
    return found


@pytest.fixture
def _switching() -> Any:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_switching")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["rows", "tokens", "endless"])
def test_threads_share_the_batches_of_one_iterator(kind: str, num_workers: int, tmp_path: Path) -> None:
    pattern = write_rows(tmp_path)
    options: dict[str, Any] = {"batch_size": 1, "num_workers": num_workers}
    with loader_of(kind, pattern, **options) as loader:
        wanted = [[seen(batch) for batch in loader] for _ in range(2)]
        state = loader.state_dict()
    with loader_of(kind, pattern, **options) as loader:
        for epoch in wanted:
            found = shared(iter(loader), 4)
            assert sorted(map(seen, found)) == sorted(epoch)
        assert loader.state_dict() == state


def test_the_state_is_what_all_threads_have(tmp_path: Path) -> None:
    pattern = write_rows(tmp_path)
    with loader_of("rows", pattern, batch_size=1) as loader:
        batches = iter(loader)
        first = shared([next(batches) for _ in range(9)], 1) + shared(_some(batches, 31), 3)
        state = loader.state_dict()
    assert state["m"] >= 40
    with loader_of("rows", pattern, batch_size=1) as again:
        again.load_state_dict(state)
        assert sorted(uids_in([*first, *again])) == UIDS


def _some(batches: Any, count: int) -> Any:
    """So many, for all threads together."""
    tickets = list(range(count))

    class Some:
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Batch:
            try:
                tickets.pop()
            except IndexError:
                raise StopIteration from None
            found: Batch = next(batches)
            return found

    return Some()


class Interrupt:
    """KeyboardInterrupt before the nth line of what gives batches, once."""

    def __init__(self, nth: int) -> None:
        self.nth, self.seen, self.fired = nth, 0, False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self.line if frame.f_code.co_filename.endswith("serve/steps.py") and not self.fired else None

    def line(self, frame: FrameType, event: str, arg: Any) -> Any:
        # What only stores what was given, and the return, are one with the caller: no signal is looked for there.
        done = frame.f_code.co_name == "__next__" and "place" in frame.f_locals and "me" in frame.f_locals
        if event == "line" and not self.fired and not (done and frame.f_locals["self"]._leaving == 0):
            self.seen += 1
            if self.seen == self.nth:
                self.fired = True
                raise KeyboardInterrupt
        return self.line


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize("fields", [{"batch_size": 4}, {"batch_size": 1, "pack": packed(64), "epochs": 1}], ids=str)
def test_an_interrupt_at_any_line_loses_and_repeats_no_batch(fields: dict[str, Any]) -> None:
    data = several([[[7, 5]]])

    def given(interrupt: Interrupt | None) -> list[Any]:
        batches = iter(loader_near(recipe_of(data, **fields), data, lanes=2))
        found: list[Any] = []
        while True:
            sys.settrace(interrupt)
            try:
                batch = next(batches, None)
            except KeyboardInterrupt:
                continue
            finally:
                sys.settrace(None)
            if batch is None:
                return found
            found.append((batch.m, batch._pieces or batch._rows))

    wanted, points = given(None), 0
    while True:
        interrupt = Interrupt(points + 1)
        found = given(interrupt)
        if not interrupt.fired:
            break
        assert found == wanted, f"line {points + 1}"
        points += 1
    assert points > 40
