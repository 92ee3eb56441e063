"""Documents into sequences: what each way of packing promises, to the token."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from near import Data, Ledger, keys, loader_of, packed, recipe_of, several

from headrace.batch import Batch
from headrace.errors import DataError, HeadraceError, StateError
from headrace.make.prepare import Ready
from headrace.make.sample import Sample
from headrace.recipe import Mix, Pack, Skip
from headrace.sequence.collate import IGNORED
from headrace.sequence.pack import PACKERS, Packer
from headrace.sequence.piece import Piece
from headrace.stage import State

SHAPE = [[[40, 11], [], [0, 30]]]
LENGTHS = ((3, 9, 1, 30, 4, 16, 100),)


def one_pass(data: list[Data], **fields: Any) -> list[Batch]:
    return list(loader_of(recipe_of(data, **{"epochs": 1, "batch_size": 3, **fields}), data))


def spans_of(batches: Sequence[Batch]) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Of each document, the pieces in which it came."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for batch in batches:
        for span in [span for spans in batch.spans for span in spans]:
            found.setdefault((span.address.shard, span.address.row), []).append((span.start, span.stop))
    return found


# --- concat


def test_concat_is_one_stream_of_tokens_cut_where_a_sequence_is_full() -> None:
    data = several(SHAPE, LENGTHS)
    batches = one_pass(data, pack=packed(method="concat"), shuffle=False)
    ids = np.concatenate([batch["input_ids"].numpy().ravel() for batch in batches])
    assert ids[: data[0].num_tokens].tolist() == data[0].every(True).tolist()
    assert not ids[data[0].num_tokens :].any(), "only the last sequence is padded, and what fills up the last batch"
    assert len(batches) == -(-data[0].num_tokens // (3 * 16))


def test_concat_loses_nothing_in_any_order() -> None:
    data = several([*SHAPE, [[21]]], (*LENGTHS, (7, 50)))
    Ledger(data, packed=True).add(one_pass(data, pack=packed(method="concat"))).assert_only(0)


@pytest.mark.parametrize("method", ["concat", "best_fit"])
def test_overlap_repeats_the_tokens_before_a_piece_and_learns_none_of_them_twice(method: str) -> None:
    data = several(SHAPE, LENGTHS)
    batches = one_pass(data, pack=packed(method=method, overlap=5), shuffle=False)
    Ledger(data, packed=True).add(batches).assert_only(0)
    learned: Counter[int] = Counter()
    for batch in batches:
        labels, ids, documents = batch["labels"].numpy(), batch["input_ids"].numpy(), batch.document_ids.numpy()
        for row, spans in enumerate(batch.spans):
            for number, span in enumerate(spans, 1):
                own = documents[row] == number
                context = int(own.sum()) - (span.stop - span.start)
                assert context == min(5, span.start)
                assert (labels[row][own][: context or 1] == IGNORED).all()
                learned.update(ids[row][own & (labels[row] != IGNORED)].tolist())
    assert max(learned.values()) == 1
    # Without a token before it nothing can be learned; what comes after an overlap can.
    firsts = [start for start, end in zip(data[0].starts, data[0].ends, strict=True) if end > start]
    assert sorted(learned) == sorted(set(data[0].every(True).tolist()) - set(firsts))


@pytest.mark.timeout(20)
def test_a_piece_that_has_room_for_its_context_only_waits_for_the_next_sequence() -> None:
    rows = [ready(0, [13]), ready(1, [9])]
    packer = packer_of(Pack(method="concat", seq_len=16, overlap=3), 1)
    # Both documents were begun by lanes that are no more: one lane has two ends to put together.
    packer.load_state_dict({"held": [], "rest": [[0, 0, 0, 0, 2, -1], [0, 0, 1, 0, 4, -1]]}, fetch_from(rows))
    found = [packer.make(lambda: None, n) for n in range(3)]
    spans = [[(p.position, p.start, p.stop, p.context) for s in out for p in s] for out in found]
    assert spans == [[(0, 2, 13, 2)], [(1, 4, 9, 3)], []]


# --- best fit


def test_best_fit_keeps_documents_whole_where_they_fit() -> None:
    data = several(SHAPE, LENGTHS)
    batches = one_pass(data, pack=packed())
    Ledger(data, packed=True).add(batches).assert_only(0)
    for (shard, row), pieces in spans_of(batches).items():
        length = len(data[0].tokens(shard, row))
        cuts = [*range(0, length, 16), length]
        assert sorted(pieces) == list(pairwise(cuts)), "whole, or in full sequences and an end"


def test_best_fit_fills_sequences_well() -> None:
    data = several([[[100, 100]]], ((3, 9, 1, 30, 4, 16, 21, 7, 12),))
    loader = loader_of(recipe_of(data, batch_size=4, pack=packed(64)), data)
    for _, _ in zip(range(50), loader, strict=False):
        pass
    assert loader.stats()["fill"] > 0.98


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_a_document_longer_than_many_batches_comes_in_order_and_others_wait_their_turn(batch_size: int) -> None:
    data = several([[[5]]], ((3, 1000, 2, 7, 16),))
    for method in ("best_fit", "concat"):
        batches = one_pass(data, pack=packed(method=method), shuffle=False, batch_size=batch_size)
        Ledger(data, packed=True).add(batches).assert_only(0)
        pieces = spans_of(batches)["shard-0", 1]
        assert pieces == sorted(pieces)
        assert len(batches) <= -(-1028 // (16 * batch_size)) + 2


def test_no_document_waits_for_ever_for_company_that_fits() -> None:
    # The longest goes first, and eight tokens go with none of the others, which all have nine.
    data = several([[[400]]], ((9,),))
    data[0].row(0, 7)["text"] = list(range(500_000, 500_008))
    loader = loader_of(recipe_of(data, shuffle=False, batch_size=1, pack=packed()), data)
    given = [batch.m for _, batch in zip(range(100), loader, strict=False) if 500_000 in batch["input_ids"]]
    assert given == [31]


# --- none


def test_none_gives_one_document_a_sequence_and_counts_what_it_cuts_off() -> None:
    data = several(SHAPE, LENGTHS)
    loader = loader_of(recipe_of(data, epochs=1, batch_size=3, pack=packed(method="none")), data)
    batches = []
    for _ in range(3):  # what was cut off is counted over all iterators
        for batch in loader:
            batches.append(batch)
            if len(batches) % 7 == 0:
                break
    batches += list(loader)
    lengths = [end - start for start, end in zip(data[0].starts, data[0].ends, strict=True)]
    Ledger(data, packed=True).add(batches)
    assert {len(spans) for batch in batches for spans in batch.spans} <= {0, 1}
    assert sorted(piece for pieces in spans_of(batches).values() for piece in pieces) == sorted(
        (0, min(length, 16)) for length in lengths
    )
    stats = loader.stats()
    assert stats["tokens_truncated"] == sum(max(0, length - 16) for length in lengths) > 0
    assert stats["tokens"] == sum(min(length, 16) for length in lengths)


# --- rows that give nothing


@pytest.mark.parametrize("method", ["best_fit", "concat", "none"])
def test_rows_without_tokens_are_passed_over_and_counted(method: str) -> None:
    data = several([[[30], [17]]], ((0, 4, 0, 0, 9),))
    loader = loader_of(recipe_of(data, epochs=1, batch_size=2, pack=packed(method=method)), data, lanes=3)
    batches = list(loader)
    Ledger(data, packed=True).add(batches).assert_only(0)
    assert not any(batch.pad for batch in batches)
    assert loader.stats()["rows_dropped"] == sum(a == b for a, b in zip(data[0].starts, data[0].ends, strict=True))


def test_an_endless_run_whose_rows_give_nothing_says_so() -> None:
    data = several([[[5]]], ((0,),))
    loader = loader_of(recipe_of(data, batch_size=2, pack=packed()), data, lanes=2)
    for _ in range(2):
        batches = iter(loader)
        with pytest.raises(HeadraceError, match="lane 0 of 2 has no source left: txt:data0:text"):
            next(batches)
    assert list(loader_of(recipe_of(data, batch_size=2, pack=packed(), epochs=1), data, lanes=2)) == []


@pytest.mark.parametrize("fields", [{}, {"epochs": 3}, *({"pack": packed(), "epochs": n} for n in (1, 3))])
@pytest.mark.parametrize("rows", [[("shard-1", 3), ("shard-0", 0)], [("shard-0", 11), ("shard-1", 7)]])
@pytest.mark.parametrize("lanes", [1, 2])
def test_rows_on_the_skip_list_are_left_out_in_every_pass(
    fields: dict[str, Any], rows: list[tuple[str, int]], lanes: int
) -> None:
    """The first of a row group or not, of the first or of a later one."""
    data = several([[[9, 6], [8]]])
    skip = Skip(addresses=tuple(f"txt:data0:text|{shard}|{row}" for shard, row in rows))
    loader = loader_of(recipe_of(data, batch_size=2, skip=skip, **fields), data, lanes=lanes)
    is_packed, passes = "pack" in fields, fields.get("epochs", 1)
    numbers = [data[0].tokens(*row) if is_packed else [data[0].uid(*row)] for row in rows]
    wanted = np.setdiff1d(data[0].every(is_packed), np.concatenate(numbers))
    for epoch in range(2):
        ledger = Ledger(data, is_packed).add(list(loader))
        for one in range(epoch * passes, (epoch + 1) * passes):
            assert ledger.numbers(data[0].spec, one).tolist() == wanted.tolist()


@pytest.mark.parametrize("fields", [{}, {"pack": packed()}, {"pack": packed(method="concat")}])
def test_micro_batches_on_the_skip_list_are_replaced_by_those_after_them(fields: dict[str, Any]) -> None:
    data = several([[[60]]], LENGTHS)

    def contents(skip: Skip) -> list[Any]:
        loader = loader_of(recipe_of(data, batch_size=2, skip=skip, mix=Mix(stop="loop"), **fields), data)
        return [content for _, *content in keys([batch for _, batch in zip(range(12), loader, strict=False)])]

    wanted = contents(Skip())
    del wanted[7], wanted[3]
    assert contents(Skip(steps=(3, 6)))[:10] == wanted


# --- packers by themselves: rows of several samples


def ready(position: int, lengths: Sequence[int]) -> Ready:
    tokens = [np.arange(n, dtype=np.int32) + 1000 * position + 100 * i for i, n in enumerate(lengths)]
    return Ready(0, 0, position, "s", position, [Sample(one, is_learned(one)) for one in tokens])


def is_learned(tokens: Any) -> Any:
    return tokens % 3 == 0


def packer_of(pack: Pack, batch_size: int) -> Packer:
    return PACKERS[pack.method](pack, batch_size)


def fetch_from(rows: Sequence[Ready]) -> Any:
    return lambda places: [rows[position] for _, _, position in places]


class Source:
    """Rows one after the other, and how many were taken."""

    def __init__(self, rows: Sequence[Ready], taken: int = 0) -> None:
        self.rows, self.taken = rows, taken

    def __call__(self) -> Ready | None:
        self.taken += 1
        return self.rows[self.taken - 1] if self.taken <= len(self.rows) else None


def pack_all(packer: Packer, source: Source, first: int = 0) -> tuple[list[list[list[Piece]]], list[tuple[State, int]]]:
    """Every round, and after each the state and how many rows were taken."""
    rounds: list[list[list[Piece]]] = []
    states = []
    while out := packer.make(source, first + len(rounds)):
        rounds.append(out)
        states.append((json.loads(json.dumps(packer.state_dict())), min(source.taken, len(source.rows))))
    return rounds, states


def shown(rounds: list[list[list[Piece]]]) -> list[Any]:
    return [[[(*p[:7], p.tokens.tolist()) for p in sequence] for sequence in out] for out in rounds]


documents = st.lists(st.lists(st.integers(1, 40), max_size=3), max_size=25)


@settings(max_examples=200, deadline=None)
@given(documents, st.sampled_from(["best_fit", "concat", "none"]), st.integers(1, 4), st.integers(0, 7), st.data())
def test_every_token_of_every_sample_comes_once_and_a_resume_packs_the_same(
    lengths: list[list[int]], method: Any, batch_size: int, overlap: int, data: st.DataObject
) -> None:
    pack = Pack(method=method, seq_len=11, overlap=overlap, slack=data.draw(st.integers(0, 4)))
    rows = [ready(i, samples) for i, samples in enumerate(lengths) if samples]
    rows = [row._replace(position=i) for i, row in enumerate(rows)]
    packer = packer_of(pack, batch_size)
    rounds, states = pack_all(packer, Source(rows))
    pieces = [p for out in rounds for sequence in out for p in sequence]
    assert all(sum(len(p.tokens) for p in sequence) <= 11 for out in rounds for sequence in out)
    assert all(len(out) <= batch_size for out in rounds)
    new = sorted(t for p in pieces for t in p.tokens[p.context :].tolist())
    every = sorted(t for row in rows for s in row.samples for t in (s.tokens[:11] if method == "none" else s.tokens))
    assert new == every
    assert all(p.loss is not None and p.loss.tolist() == is_learned(p.tokens).tolist() for p in pieces)
    assert packer.truncated == sum(max(0, n - 11) for samples in lengths for n in samples if method == "none")
    assert packer.is_empty
    for k, (state, taken) in enumerate(states):
        other = packer_of(pack, batch_size)
        other.load_state_dict(state, fetch_from(rows))
        assert other.state_dict() == state
        assert shown(pack_all(other, Source(rows, taken), k + 1)[0]) == shown(rounds[k + 1 :])


class Failing(Source):
    """Fails once before each row."""

    def __init__(self, rows: Sequence[Ready]) -> None:
        super().__init__(rows)
        self.failed = -1

    def __call__(self) -> Ready | None:
        if self.failed < self.taken:
            self.failed = self.taken
            raise DataError("not now")
        return super().__call__()


@settings(max_examples=100, deadline=None)
@given(documents, st.sampled_from(["best_fit", "concat", "none"]), st.integers(1, 4), st.integers(0, 7))
def test_a_round_that_fails_at_any_row_goes_on_with_what_it_had(
    lengths: list[list[int]], method: Any, batch_size: int, overlap: int
) -> None:
    rows = [ready(i, samples) for i, samples in enumerate(lengths) if samples]
    pack = Pack(method=method, seq_len=11, overlap=overlap)
    wanted, _ = pack_all(packer_of(pack, batch_size), Source(rows))
    packer, source, found = packer_of(pack, batch_size), Failing(rows), list[list[list[Piece]]]()
    while source.taken <= len(rows) or not packer.is_empty:
        try:
            found.append(packer.make(source, len(found)))
        except DataError:
            continue
    assert shown([out for out in found if out]) == shown(wanted)


@settings(max_examples=150, deadline=None)
@given(documents, st.permutations(["best_fit", "concat"]), st.integers(1, 3), st.integers(2, 30), st.integers(2, 30))
def test_another_packer_or_length_goes_on_with_what_was_held(
    lengths: list[list[int]], methods: list[Any], batch_size: int, before: int, after: int
) -> None:
    rows = [ready(i, samples) for i, samples in enumerate(lengths) if samples]
    rows = [row._replace(position=i) for i, row in enumerate(rows)]
    first = packer_of(Pack(method=methods[0], seq_len=before), batch_size)
    rounds, states = pack_all(first, Source(rows))
    every = sorted(t for row in rows for sample in row.samples for t in sample.tokens.tolist())
    for k, (state, taken) in enumerate(states):
        second = packer_of(Pack(method=methods[1], seq_len=after), batch_size)
        second.load_state_dict(state, fetch_from(rows))
        later, _ = pack_all(second, Source(rows, taken))
        found = [p.tokens.tolist() for out in [*rounds[: k + 1], *later] for sequence in out for p in sequence]
        assert sorted(t for tokens in found for t in tokens) == every


@pytest.mark.parametrize(
    "piece", [[0, 0, 0, 0, 5, 5], [0, 0, 0, 0, 0, 14], [0, 0, 0, 1, 0, -1], [0, 0, 0, 0, 13, -1], [0, 0, 0, 0, 9, 4]]
)
def test_a_piece_that_its_row_does_not_have_is_refused(piece: list[int]) -> None:
    for name in ("held", "rest"):
        packer = packer_of(Pack(seq_len=16), 1)
        with pytest.raises(StateError, match="did the data or the tokenizer change"):
            packer.load_state_dict({"held": [], "rest": [], name: [piece]}, fetch_from([ready(0, [13])]))
