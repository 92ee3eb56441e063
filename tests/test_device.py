"""Batches reach the device ahead of time, whole, in order, and none is delivered before it is handed out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from headrace.batch import Batch
from headrace.errors import DataError, SpecError
from headrace.sequence.collate import collate_packed
from headrace.sequence.piece import Piece
from headrace.serve.device import DeviceFeed


class Numbered(dict[str, Any]):
    """A batch with attributes, as the loader gives it."""

    def __init__(self, m: int) -> None:
        super().__init__(ids=torch.full((4, 8), m), labels=torch.arange(8) + m)
        self.m = m
        self.addresses = [f"row {m}"]


class FakeRoad:
    """Copies arrive when they are waited for, not before."""

    def __init__(self) -> None:
        self.pending: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.num_arrived = 0
        self.kept: set[int] = set()

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        self.pending.append((tensor, torch.full_like(tensor, -1)))
        return self.pending[-1][1]

    def mark(self) -> int:
        return len(self.pending)

    def receive(self, mark: int, tensors: Iterable[torch.Tensor]) -> None:
        for source, target in self.pending[self.num_arrived : mark]:
            target.copy_(source)
        self.num_arrived = max(self.num_arrived, mark)
        self.kept |= {id(tensor) for tensor in tensors}


def is_right(batch: Numbered, m: int) -> bool:
    ids, labels = batch["ids"].cpu(), batch["labels"].cpu()
    whole = bool((ids == m).all()) and torch.equal(labels, torch.arange(8) + m)
    return whole and batch.m == m and batch.addresses == [f"row {m}"] and type(batch) is Numbered


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_batches_come_whole_and_in_order_with_their_attributes(ahead: int) -> None:
    road = FakeRoad()
    feed = DeviceFeed(map(Numbered, range(10)), "cpu", ahead=ahead, road=road)
    for m in range(10):
        batch = next(feed)
        assert is_right(batch, m)
        assert {id(batch["ids"]), id(batch["labels"])} <= road.kept
    assert list(feed) == []


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_the_next_copies_are_under_way_and_not_waited_for(ahead: int) -> None:
    road = FakeRoad()
    feed = DeviceFeed(map(Numbered, range(10)), "cpu", ahead=ahead, road=road)
    for m in range(1, 5):
        next(feed)
        assert len(road.pending) == 2 * (m + ahead)
        assert road.num_arrived == 2 * m


def test_on_the_cpu_a_batch_passes_through_and_nothing_is_read_ahead() -> None:
    given = [Numbered(0), Numbered(1)]
    source = iter(given)
    batch = next(DeviceFeed(source, "cpu"))
    assert batch["ids"] is given[0]["ids"]
    assert is_right(batch, 0)
    assert next(source) is given[1]


def test_another_device_gets_the_tensors_by_plain_copies() -> None:
    batch = next(DeviceFeed(iter([Numbered(3)]), "meta"))
    assert batch["ids"].device.type == "meta"
    assert batch.m == 3


@pytest.mark.parametrize("road", [None, FakeRoad()], ids=["plain", "road"])
def test_a_batch_keeps_its_number_and_its_spans(road: FakeRoad | None) -> None:
    given = Batch.of_pieces({"input_ids": torch.arange(4)[None], "length": 4}, [(("txt:a", 0, "a", 7, 0, 0, 4),)])
    given.m, given.pad = 5, True
    batch = next(DeviceFeed(iter([given]), "cpu", road=road))
    assert (batch.m, batch.pad, batch.spans, batch["length"]) == (5, True, given.spans, 4)
    assert torch.equal(batch["input_ids"], given["input_ids"])
    assert (batch is given) is False


def packed() -> Batch:
    pieces = [[Piece(0, 0, 0, 0, 0, 3, 0, np.arange(3, dtype=np.int32), None, "a", i)] for i in range(2)]
    return collate_packed(pieces, 5, 0, ["txt:a"])


def test_where_documents_begin_goes_along_to_the_device() -> None:
    given, road = packed(), FakeRoad()
    batch = next(DeviceFeed(iter([given]), "cpu", road=road))
    assert torch.equal(batch.document_ids, given.document_ids)
    assert torch.equal(batch.cu_seqlens, given.cu_seqlens)
    assert (batch.max_seqlen, batch["use_cache"]) == (3, False)
    for tensor in (batch.document_ids, batch.cu_seqlens, *(batch[name] for name in ("input_ids", "labels"))):
        assert id(tensor) in road.kept
    other = next(DeviceFeed(iter([given]), "meta"))
    assert {other.document_ids.device.type, other.cu_seqlens.device.type} == {"meta"}
    assert given.document_ids.device.type == "cpu"


class Pair(NamedTuple):
    image: torch.Tensor
    name: str


@pytest.mark.parametrize("road", [None, FakeRoad()], ids=["plain", "road"])
def test_tensors_inside_containers_move_and_other_values_stay(road: FakeRoad | None) -> None:
    inside = {"a": [torch.ones(2), "text"], "b": {"c": (torch.zeros(2), None)}, "d": [Pair(torch.ones(1), "x")]}
    batch: dict[str, Any] = next(DeviceFeed(iter([inside]), "cpu", road=road))
    assert torch.equal(batch["a"][0], torch.ones(2))
    assert batch["a"][1] == "text"
    assert isinstance(batch["b"]["c"], tuple)
    assert torch.equal(batch["b"]["c"][0], torch.zeros(2))
    assert isinstance(batch["d"][0], Pair)
    assert batch["d"][0].name == "x"
    assert road is None or len(road.kept) == 3


def test_an_error_comes_after_the_batches_before_it_and_the_next_call_tries_again() -> None:
    class Parent(Iterator[Numbered]):
        m = -1
        failed = False

        def __next__(self) -> Numbered:
            if self.m == 2 and not self.failed:
                self.failed = True
                raise DataError("row 3 of a.parquet")
            self.m += 1
            return Numbered(self.m)

    feed = DeviceFeed(Parent(), "cpu", ahead=2, road=FakeRoad())
    assert [next(feed).m for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DataError, match="row 3"):
        next(feed)
    assert [next(feed).m for _ in range(3)] == [3, 4, 5]


@pytest.mark.parametrize("moment", ["reading", "sending"])
def test_an_interrupt_loses_no_batch(moment: str) -> None:
    class Interrupted(FakeRoad):
        def send(self, tensor: torch.Tensor) -> torch.Tensor:
            if moment == "sending" and int(tensor.flatten()[0]) == 2 and not stopped:
                stopped.append(True)
                raise KeyboardInterrupt
            return super().send(tensor)

    class Parent(Iterator[Numbered]):
        m = -1

        def __next__(self) -> Numbered:
            if moment == "reading" and self.m == 1 and not stopped:
                stopped.append(True)
                raise KeyboardInterrupt
            self.m += 1
            return Numbered(self.m)

    stopped: list[bool] = []
    feed = DeviceFeed(Parent(), "cpu", road=Interrupted())
    seen = [next(feed).m]
    with pytest.raises(KeyboardInterrupt):
        next(feed)
    seen += [next(feed).m for _ in range(3)]
    assert seen == [0, 1, 2, 3]


def test_the_end_stays_the_end_and_close_forgets_what_is_under_way() -> None:
    feed = DeviceFeed(map(Numbered, range(3)), "cpu", road=FakeRoad())
    assert next(feed).m == 0
    feed.close()
    feed.close()
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(feed)


@pytest.mark.parametrize(
    ("device", "ahead", "words"),
    [
        ("gpu", 1, "device='gpu' is no device of torch"),
        ("cpu", -1, "ahead=-1: a number of batches"),
        ("cpu", 1.5, "ahead=1.5: a number of batches"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(device: str, ahead: int, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        DeviceFeed(iter([{}]), device, ahead=ahead)
    assert words in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(SpecError, match="device='cuda': this torch sees no CUDA device"):
        DeviceFeed(iter([{}]), "cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_every_batch_is_right_while_memory_is_reused() -> None:
    """Each batch is used late, behind slow work, so that a copy that came too early or a reuse too soon would show."""
    slow = torch.randn(2048, 2048, device="cuda")
    sums = []
    start = time.monotonic()
    for batch in DeviceFeed(map(Numbered, range(200)), "cuda", ahead=2):
        for _ in range(4):
            slow = torch.tanh(slow @ slow)
        sums.append((batch["ids"].sum(), batch["labels"].sum()))
    assert [(int(a), int(b)) for a, b in sums] == [(32 * m, 28 + 8 * m) for m in range(200)]
    assert time.monotonic() - start < 60
