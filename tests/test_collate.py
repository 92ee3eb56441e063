from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, default_convert
from torch.utils.data._utils.pin_memory import pin_memory

from headrace.address import Address
from headrace.batch import Batch, Span
from headrace.sequence.collate import as_pad, collate_packed, collate_rows
from headrace.sequence.piece import Piece

NAMES = ["hf:a/b:train:text", "jsonl:c/*.jsonl"]
INPUTS = ["input_ids", "labels", "position_ids"]
COLUMNS = [*INPUTS, "document_ids"]
X = -100


def piece(tokens: list[int], *, context: int = 0, start: int = 0, loss: list[bool] | None = None, **at: Any) -> Piece:
    place: dict[str, Any] = {"source": 0, "epoch": 0, "position": 9, "sub": 0, "shard": "a.parquet", "row": 7} | at
    return Piece(
        start=start,
        stop=start + len(tokens) - context,
        context=context,
        tokens=np.array(tokens, dtype=np.int32),
        loss=None if loss is None else np.array(loss, dtype=np.bool_),
        **place,
    )


def example() -> Batch:
    first = [piece([11, 12, 13]), piece([21, 22, 23, 24], context=2, start=5, source=1, epoch=3, sub=1, row=8)]
    second = [piece([31, 32, 33, 34, 35, 36, 37, 38], loss=[True, False, False, True, True, True, False, True])]
    return collate_packed([first, second], 8, 0, NAMES, rows=3)


def attributes(batch: Batch) -> tuple[Any, ...]:
    return batch.addresses, batch.spans, batch.packed, batch.pad, batch.m, batch.receipt


def same(a: Batch, b: Batch) -> bool:
    assert list(a) == list(b)
    assert attributes(a) == attributes(b)
    assert [one.dtype for one in tensors(a)] == [one.dtype for one in tensors(b)]
    assert (a["use_cache"], a.max_seqlen) == (b["use_cache"], b.max_seqlen)
    return all(torch.equal(one, other) for one, other in zip(tensors(a), tensors(b), strict=True))


def tensors(batch: Batch) -> list[torch.Tensor]:
    """All of them: the inputs, and those that are attributes."""
    return [*(batch[name] for name in INPUTS), batch.document_ids, batch.cu_seqlens]


# --- packed


def test_a_small_example_by_hand() -> None:
    batch = example()
    assert list(batch) == [*INPUTS, "use_cache"]
    assert batch["use_cache"] is False
    assert batch["input_ids"].tolist() == [
        [11, 12, 13, 21, 22, 23, 24, 0],
        [31, 32, 33, 34, 35, 36, 37, 38],
        [0] * 8,
    ]
    assert batch["labels"].tolist() == [
        [X, 12, 13, X, X, 23, 24, X],
        [X, X, X, 34, 35, 36, X, 38],
        [X] * 8,
    ]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 0], list(range(8)), list(range(8))]
    assert batch.document_ids.tolist() == [[1, 1, 1, 2, 2, 2, 2, 0], [1] * 8, [0] * 8]
    assert batch.cu_seqlens.tolist() == [0, 3, 7, 8, 16, 24]
    assert batch.max_seqlen == 8
    assert {one.dtype for one in tensors(batch)[:-1]} == {torch.int64}
    assert batch.cu_seqlens.dtype == torch.int32
    assert type(batch.max_seqlen) is int


def test_addresses_and_spans_say_where_each_document_came_from() -> None:
    batch = example()
    here = Address("hf:a/b:train:text", 0, "a.parquet", 7)
    there = Address("jsonl:c/*.jsonl", 3, "a.parquet", 8)
    assert batch.addresses == [[here, there], [here], []]
    assert batch.spans == [[(here, 0, 0, 3), (there, 1, 5, 7)], [(here, 0, 0, 8)], []]
    assert isinstance(batch.addresses[0][0], Address)
    assert isinstance(batch.spans[0][0], Span)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_without_any_piece_all_is_padding(rows: int) -> None:
    batch = collate_packed([], 4, 5, NAMES, rows=rows)
    assert batch["input_ids"].tolist() == [[5] * 4] * rows
    assert batch["labels"].tolist() == [[X] * 4] * rows
    assert batch.document_ids.shape == (rows, 4)
    assert batch.cu_seqlens.tolist() == [4 * i for i in range(rows + 1)]
    assert batch.max_seqlen == (4 if rows else 0)
    assert batch.addresses == batch.spans == [[]] * rows
    assert same(batch, collate_packed([[]] * rows, 4, 5, NAMES))


def token_by_token(sequences: list[list[Piece]], seq_len: int, pad_id: int, rows: int) -> dict[str, Any]:
    out: dict[str, Any] = {name: [] for name in COLUMNS}
    bounds = [0]
    for b in range(rows):
        tokens: list[tuple[int, int, int, int]] = []
        for number, p in enumerate(sequences[b] if b < len(sequences) else [], 1):
            for i, token in enumerate(p.tokens.tolist()):
                learned = i > 0 and i >= p.context and (p.loss is None or bool(p.loss[i]))
                tokens.append((token, token if learned else X, i, number))
            bounds.append(b * seq_len + len(tokens))
        if len(tokens) < seq_len:
            bounds.append((b + 1) * seq_len)
        tokens += [(pad_id, X, i, 0) for i in range(seq_len - len(tokens))]
        for name, values in zip(COLUMNS, zip(*tokens, strict=True), strict=True):
            out[name].append(list(values))
    longest = max([stop - start for start, stop in pairwise(bounds)], default=0)
    return out | {"cu_seqlens": bounds, "max_seqlen": longest}


@st.composite
def pieces(draw: st.DrawFn, most: int) -> Piece:
    n = draw(st.integers(1, most))
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), min_size=n, max_size=n))
    loss = draw(st.none() | st.lists(st.booleans(), min_size=n, max_size=n))
    context = draw(st.integers(0, n - 1))
    return piece(tokens, context=context, loss=loss, source=draw(st.integers(0, 1)), row=draw(st.integers(0, 99)))


@st.composite
def packed(draw: st.DrawFn) -> tuple[list[list[Piece]], int]:
    seq_len = draw(st.integers(1, 12))
    sequences = []
    for _ in range(draw(st.integers(0, 4))):
        room, sequence = seq_len, []
        while room and draw(st.integers(0, 4)):
            sequence.append(draw(pieces(room)))
            room -= len(sequence[-1].tokens)
        sequences.append(sequence)
    return sequences, seq_len


@settings(max_examples=300, deadline=None)
@given(packed(), st.integers(0, 2), st.integers(0, 9))
def test_the_tensors_are_those_of_a_loop_over_tokens(
    given_: tuple[list[list[Piece]], int], more: int, pad_id: int
) -> None:
    sequences, seq_len = given_
    rows = len(sequences) + more
    batch = collate_packed(sequences, seq_len, pad_id, NAMES, rows=rows)
    found = {name: one.tolist() for name, one in zip([*COLUMNS, "cu_seqlens"], tensors(batch), strict=True)}
    assert found | {"max_seqlen": batch.max_seqlen} == token_by_token(sequences, seq_len, pad_id, rows)
    assert found["cu_seqlens"][-1] == rows * seq_len
    assert batch.spans == [
        [(Address(NAMES[p.source], 0, "a.parquet", p.row), 0, p.start, p.stop) for p in sequence]
        for sequence in [*sequences, *[[]] * more]
    ]


def test_the_pieces_are_only_read() -> None:
    p = piece([1, 2, 3], loss=[True, True, False])
    collate_packed([[p]], 3, 0, NAMES)["input_ids"].fill_(9)
    assert p.tokens.tolist() == [1, 2, 3]


def test_a_sequence_that_is_too_long_is_refused() -> None:
    with pytest.raises(AssertionError, match="room"):
        collate_packed([[piece([1, 2, 3])], [piece([1])]], 2, 0, NAMES)
    with pytest.raises(AssertionError, match="rows"):
        collate_packed([[], []], 2, 0, NAMES, rows=1)


def test_labels_may_be_written_to_between_forward_and_backward() -> None:
    batch = example()
    table = torch.nn.Embedding(50, 3)
    out = table(batch["input_ids"]).sum()
    batch["labels"].fill_(1)
    out.backward()
    assert table.weight.grad is not None
    assert batch["input_ids"][0, 0] == 11


def test_collating_is_quick() -> None:
    tokens = np.arange(600, dtype=np.int32)
    sequences = [[Piece(0, 0, i, 0, 0, 600, 0, tokens, None, "a.parquet", i) for i in range(3)] for _ in range(8)]
    times = []
    for _ in range(30):
        start = time.perf_counter()
        collate_packed(sequences, 2048, 0, NAMES)
        times.append(time.perf_counter() - start)
    assert min(times) < 2.5e-3


# --- rows


def test_rows_give_every_column_of_any_row() -> None:
    here, there = Address("s", 0, "a", 1), Address("s", 1, "b", 2)
    batch = collate_rows([(here, {"text": "x", "n": 1}), (there, {"n": None, "url": "u"})])
    assert batch == {"text": ["x", None], "n": [1, None], "url": [None, "u"]}
    assert list(batch) == ["text", "n", "url"]
    assert batch.addresses == [here, there]
    assert isinstance(batch.addresses[1], Address)
    assert batch.spans == []
    assert collate_rows([]) == {}
    assert collate_rows([]).addresses == []


# --- padding


def test_a_pad_batch_has_the_same_inputs_and_nothing_to_learn() -> None:
    batch = example()
    batch.m = 5
    pad = as_pad(batch)
    assert (pad.pad, pad.m, batch.pad) == (True, 5, False)
    assert torch.equal(pad["labels"], torch.full((3, 8), X))
    assert batch["labels"][0, 1] == 12
    assert pad.spans == batch.spans
    pad["labels"], pad.pad = batch["labels"], False
    assert same(pad, batch)


def test_a_pad_batch_shares_no_memory_with_its_model() -> None:
    batch = example()
    pad = as_pad(batch)
    batch["input_ids"].fill_(9)
    batch.document_ids.fill_(9)
    assert pad["input_ids"][0].tolist() == [11, 12, 13, 21, 22, 23, 24, 0]
    assert pad.document_ids[0].tolist() == [1, 1, 1, 2, 2, 2, 2, 0]


def test_a_pad_batch_of_rows_is_only_marked() -> None:
    batch = collate_rows([(Address("s", 0, "a", 1), {"labels": "x"})])
    pad = as_pad(batch)
    assert pad == {"labels": ["x"]}
    assert (pad.pad, batch.pad) == (True, False)
    assert pad.addresses == batch.addresses


# --- the batch itself


def marked(batch: Batch) -> Batch:
    batch.m, batch.pad, batch.receipt = 7, True, b"{}"
    return batch


def through_pickle(batch: Batch) -> Any:
    return pickle.loads(pickle.dumps(batch))  # noqa: S301 - our own bytes


@pytest.mark.parametrize("way", [through_pickle, copy.copy, copy.deepcopy, Batch.copy, default_convert])
def test_a_copy_is_a_batch_with_its_attributes(way: Any) -> None:
    batch = marked(example())
    other = way(batch)
    assert type(other) is Batch
    assert same(other, batch)
    other.m, other["labels"] = 8, None
    assert batch.m == 7
    assert batch["labels"] is not None
    rows = marked(collate_rows([(Address("s", 0, "a", 1), {"text": "x"})]))
    assert way(rows) == rows
    assert attributes(way(rows)) == attributes(rows)


def test_pinning_keeps_the_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    batch = marked(example())
    other = pin_memory(batch)  # type: ignore[no-untyped-call]
    assert type(other) is Batch
    assert same(other, batch)
    assert len(pinned) == len(INPUTS)
    assert other["input_ids"].data_ptr() != batch["input_ids"].data_ptr()


class Two(IterableDataset[Batch]):
    def __iter__(self) -> Iterator[Batch]:
        yield marked(example())
        yield as_pad(example())


def test_a_worker_hands_over_all_of_a_batch() -> None:
    loader = DataLoader(Two(), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    first, second = list(loader)
    assert type(first) is Batch
    assert same(first, marked(example()))
    assert same(second, as_pad(example()))


def test_all_tensors_of_a_batch_are_handed_over_as_one_piece_of_memory() -> None:
    for batch in (example(), as_pad(example())):
        assert len({one.untyped_storage().data_ptr() for one in tensors(batch)}) == 1


def test_moving_to_a_device_keeps_the_attributes() -> None:
    batch = marked(example())
    other = batch.to("meta", non_blocking=True)
    assert {one.device.type for one in tensors(other)} == {"meta"}
    assert attributes(other) == attributes(batch)
    assert (other.max_seqlen, other["use_cache"]) == (8, False)
    assert {one.device.type for one in tensors(batch)} == {"cpu"}


def test_a_mapping_is_enough_to_make_one() -> None:
    batch = Batch({"a": 1})
    assert batch == {"a": 1}
    assert attributes(batch) == ([], [], False, False, -1, b"")


def test_repr_is_short() -> None:
    batch = marked(example())
    assert repr(batch).startswith("Batch(m=7, pad, input_ids: [3, 8], labels: [3, 8],")
    assert len(repr(batch)) < 200
    rows = collate_rows([(Address("s", 0, "a", i), {"text": "x" * 1000}) for i in range(8)])
    assert repr(rows) == "Batch(text: 8 values)"
    assert len(repr(Batch({"note": "x" * 1000}))) < 100
