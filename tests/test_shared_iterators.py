"""Threads that share an iterator: each item goes to one of them, and the state is what all of them got."""

from __future__ import annotations

import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from near import loader_of as loader_near
from near import near, packed, recipe_of, several
from robots import small_set
from serving import UIDS, loader_of, seen, uids_in, write_rows
from streaming import World

import headrace
from headrace.batch import Batch
from headrace.errors import HeadraceError
from headrace.testing import write_parquet

__all__ = ["near"]  # a fixture


def shared(batches: Any, threads: int) -> list[Any]:
    """All of them, each to one thread."""
    found: list[Any] = []
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


# --- rows and data sets


def rows_of(folder: Path, shuffle: bool) -> headrace.fetch.rows.Rows:
    return headrace.rows(f"parquet:{folder}/in/*.parquet", cache_dir=folder / "data", shuffle=shuffle)


class Tried:
    """Rows, blocks or states; asked again where a call was refused because of another thread."""

    def __init__(self, stage: headrace.fetch.rows.Rows) -> None:
        self.stage, self.turns, self.refused = stage, 0, 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> list[Any]:
        while True:
            self.turns += 1
            try:
                self.stage.state_dict()
                if self.turns % 3:
                    return [next(self.stage).data["uid"]]
                block = self.stage.next_block(5)
            except HeadraceError as error:
                if "used by two threads at once" not in str(error):
                    raise
                self.refused += 1
                continue
            if block is None:
                raise StopIteration
            return list(block.columns["uid"])


@pytest.mark.usefixtures("_switching")
@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_refuse_two_threads_at_once_and_lose_nothing(tmp_path: Path, shuffle: bool) -> None:
    write_parquet(tmp_path / "in", [[70, 80], [90], [60]])
    with rows_of(tmp_path, shuffle) as stage:
        wanted = sorted(row.data["uid"] for row in stage)
        state = stage.state_dict()
    refused = 0
    for _ in range(4):
        with rows_of(tmp_path, shuffle) as stage:
            tried = Tried(stage)
            assert sorted(uid for part in shared(tried, 4) for uid in part) == wanted
            assert stage.state_dict() == state
            refused += tried.refused
    assert refused > 0


def test_rows_refuse_a_signal_handler_while_they_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "in", [[70, 80]])
    said: list[str] = []
    with rows_of(tmp_path, shuffle=False) as stage:
        draw = stage._draw

        def interrupted() -> bool:
            if not said:
                signal.raise_signal(signal.SIGUSR1)
            return draw()

        def asked(number: int, frame: FrameType | None) -> None:
            for ask in (stage.state_dict, stage.__next__):
                try:
                    ask()
                except HeadraceError as error:
                    said.append(str(error))

        monkeypatch.setattr(stage, "_draw", interrupted)
        before = signal.signal(signal.SIGUSR1, asked)
        try:
            found = [next(stage).data["uid"]]
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert len(said) == 2
        assert all("let a signal handler set a flag" in one for one in said)
        assert len({*found, *(row.data["uid"] for row in stage)}) == 150


@pytest.mark.usefixtures("_switching")
@pytest.mark.parametrize("kind", ["rows", "tokens", "endless"])
def test_threads_share_the_batches_of_a_dataset(kind: str, tmp_path: Path) -> None:
    pattern = write_rows(tmp_path)
    wanted = sorted(map(seen, loader_of(kind, pattern, batch_size=1).dataset))
    state: Any = None
    for _ in range(3):
        dataset = loader_of(kind, pattern, batch_size=1).dataset
        assert sorted(map(seen, shared(iter(dataset), 4))) == wanted
        assert dataset.state_dict() == (state or dataset.state_dict())
        state = dataset.state_dict()


@pytest.mark.usefixtures("_switching")
def test_threads_share_the_frames_of_a_robot_data_set(tmp_path: Path) -> None:
    root = small_set(tmp_path / "robot", cameras={})
    data = headrace.StreamingLeRobotDataset("org/robot", root=root, cache_dir=tmp_path / "data")
    for _ in range(6):
        assert sorted(int(item["index"]) for item in shared(iter(data), 4)) == list(range(data.num_frames))


@pytest.mark.usefixtures("_switching")
def test_threads_share_samples(tmp_path: Path) -> None:
    def made() -> headrace.TrueStreamingDataset:
        return world.make(["code", "conversation"], max_per_epoch=None, max_per_dataset=None, sample_repeat=1)

    world = World(tmp_path)
    wanted = Counter(str(sample["input_ids"].tolist()) for sample in made())
    assert wanted.total() == 24
    for _ in range(3):
        data = made()
        assert Counter(str(sample["input_ids"].tolist()) for sample in shared(iter(data), 4)) == wanted
        assert data._streaming_state["epoch"] == 1


# --- interrupts


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
