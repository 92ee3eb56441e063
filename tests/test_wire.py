"""Messages between processes come whole or not at all, and leave nothing behind."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from serving import open_files, shared_memory

from headrace.batch import Batch
from headrace.serve.wire import INLINE_BYTES, Wire, parcel


@pytest.fixture
def wires() -> Iterator[tuple[Wire, Wire]]:
    files, shared = open_files(), shared_memory()
    one, other = Wire.pair()
    yield one, other
    one.close()
    other.close()
    assert open_files() == files
    assert shared_memory() == shared


@pytest.mark.parametrize(
    "message",
    [None, 7, "x" * INLINE_BYTES, b"x" * 300_000, {"a": [1, "b", None]}, [b"y" * 5000] * 3000],
    ids=["none", "number", "short text", "bytes", "dict", "many values"],
)
def test_plain_values_arrive_as_they_were(wires: tuple[Wire, Wire], message: Any) -> None:
    for one, other in (wires, wires[::-1]):
        one.send(message)
        assert other.receive() == message


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool", "float32", "bfloat16", "float16", "complex64"])
def test_tensors_arrive_with_shape_and_kind_and_can_be_written_to(wires: tuple[Wire, Wire], dtype: str) -> None:
    kind = getattr(torch, dtype)
    sent = [torch.arange(24).to(kind).view(2, 3, 4), torch.tensor(1).to(kind), torch.empty(0, 5, dtype=kind)]
    sent += [sent[0].transpose(0, 2), sent[0][:, 1]]
    wires[0].send(sent)
    came = wires[1].receive()
    for before, after in zip(sent, came, strict=True):
        assert after.dtype == before.dtype
        assert after.shape == before.shape
        assert torch.equal(after, before)
        after.zero_()
        assert not after.any()
    assert sent[0].any()


def test_arrays_lie_apart_from_each_other_and_outlive_the_wire() -> None:
    one, other = Wire.pair()
    one.send([np.arange(10), torch.arange(5), np.ones((0, 3)), np.arange(6).reshape(2, 3).T])
    numbers, tensor, empty, turned = other.receive()
    one.close()
    other.close()
    numbers += 1
    assert tensor.tolist() == [0, 1, 2, 3, 4]
    assert numbers.tolist() == list(range(1, 11))
    assert empty.shape == (0, 3)
    assert turned.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_batch_keeps_its_attributes(wires: tuple[Wire, Wire]) -> None:
    piece = ("parquet:a", 0, "s", 3, 0, 0, 4)
    batch = Batch.of_pieces({"input_ids": torch.arange(40_000).view(4, -1)}, [(piece,)] * 4)
    batch.m, batch.pad, batch.receipt = 9, True, b"{}"
    wires[0].send(batch)
    came = wires[1].receive()
    assert type(came) is Batch
    assert (came.m, came.pad, came.receipt, came.spans) == (9, True, b"{}", batch.spans)
    assert torch.equal(came["input_ids"], batch["input_ids"])


def test_messages_wait_in_order_for_a_receiver_that_comes_late(wires: tuple[Wire, Wire]) -> None:
    """Batches are larger than what a socket holds, and nobody blocks."""
    for n in range(20):
        wires[0].send((n, torch.full((100_000,), n)))
    for n in range(20):
        number, tensor = wires[1].receive()
        assert number == n
        assert tensor.eq(n).all()


def test_what_was_sent_before_the_end_still_comes(wires: tuple[Wire, Wire]) -> None:
    wires[0].send("last words" * 10_000)
    wires[1].send("never read")
    wires[0].close()
    assert wires[1].receive() == "last words" * 10_000
    with pytest.raises(EOFError):
        wires[1].receive()
    with pytest.raises(BrokenPipeError):
        wires[1].send(1)


def test_a_sender_killed_at_any_moment_leaves_whole_messages_only() -> None:
    for delay in (0.002, 0.005, 0.01, 0.02):
        one, other = Wire.pair()
        child = os.fork()
        if child == 0:
            other.close()
            try:
                for n in range(100_000):
                    one.send((n, np.full(200_000, n)))
            finally:
                os._exit(0)
        one.close()
        threading.Timer(delay, os.kill, (child, signal.SIGKILL)).start()
        came = 0
        try:
            while True:
                number, array = other.receive()
                assert number == came
                assert (array == came).all()
                came += 1
        except EOFError:
            pass
        os.waitpid(child, 0)
        other.close()


def test_what_cannot_be_sent_fails_before_anything_goes_out(wires: tuple[Wire, Wire]) -> None:
    with pytest.raises((AttributeError, TypeError)):
        wires[0].send([torch.zeros(50_000), lambda: None])
    wires[0].send("next")
    assert wires[1].receive() == "next"


def test_no_room_for_another_open_file_is_said(wires: tuple[Wire, Wire]) -> None:
    sent = parcel(np.zeros(50_000))
    wires[0].post(sent)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, open_files()))
    taken = [os.dup(0) for _ in range(most)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
    try:
        with pytest.raises(OSError, match="ulimit -n"):
            wires[1].receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def test_messages_that_are_kept_hold_no_file_and_no_shared_memory(wires: tuple[Wire, Wire]) -> None:
    """A trainer may keep a thousand batches, which is as many files as most processes may open."""
    before, kept = open_files(), []
    for _ in range(50):
        wires[0].send({"a": torch.zeros(50_000), "b": torch.zeros(50_000)})
        kept.append(wires[1].receive())
    assert open_files() == before
    assert "memfd:headrace" not in Path("/proc/self/maps").read_text()


def test_tensors_lie_at_round_places(wires: tuple[Wire, Wire]) -> None:
    for size in (100, 10_001, 100_003):
        wires[0].send([torch.ones(size), torch.ones(size, dtype=torch.int8), torch.ones(size, dtype=torch.int64)])
        assert [tensor.data_ptr() % 64 for tensor in wires[1].receive()] == [0, 0, 0]
