"""Sequences, or rows, to a batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.address import Address, Unmade
from headrace.batch import Batch
from headrace.sequence.piece import Piece

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

IGNORED = -100
"""The label that torch's losses skip."""
INPUTS = ("input_ids", "labels", "position_ids")
"""The tensors of a packed batch that models take."""
COLUMNS = (*INPUTS, "document_ids")
"""All tensors of a packed batch that have a value for each token."""


def collate_packed(
    sequences: Sequence[Sequence[Piece]], seq_len: int, pad_id: int, names: Sequence[str], rows: int | None = None
) -> Batch:
    """A batch of `rows` sequences; where there are fewer, the others are padding. `names` are the sources' specs.

    Labels are not shifted. No label: the first token of a piece (nothing before it to predict it from), context,
    padding, and what the sample says is not learned. Positions start again with each piece, and with the padding, which
    is a document of its own; document ids count the pieces of a sequence from 1, padding is 0. `cu_seqlens` runs over
    the tokens of all sequences, so that it ends at their number.

    There is no attention mask, and `use_cache` is False: Transformers finds documents in the positions only where it
    gets no mask and makes no cache.
    """
    import numpy as np
    import torch

    num_rows = len(sequences) if rows is None else rows
    assert len(sequences) <= num_rows, "more sequences than the batch has rows"
    sequences = [*sequences, *[()] * (num_rows - len(sequences))]
    segments = _segments(sequences, seq_len, pad_id)
    num_tokens, num_bounds = num_rows * seq_len, len(segments) + 1
    # One piece of memory for all tensors: a DataLoader's worker hands each piece over by a file descriptor, which costs
    # more than the bytes in it.
    memory = np.empty(len(COLUMNS) * num_tokens + (num_bounds + 1) // 2, dtype=np.int64)
    columns = memory[: len(COLUMNS) * num_tokens].reshape(len(COLUMNS), num_tokens)
    memory[columns.size :] = 0
    bounds = memory[columns.size :].view(np.int32)[:num_bounds]
    sizes = [len(tokens) for tokens, _, _, _ in segments]
    np.cumsum(sizes, dtype=np.int32, out=bounds[1:])
    if segments:
        _fill(columns, segments, sizes, bounds.tolist())
    whole = torch.from_numpy(memory)
    tensors = whole[: columns.size].view(len(COLUMNS), num_rows, seq_len)
    # `.data`, because views count changes together, and a write into labels would then spoil a backward pass that
    # needs input_ids.
    filled = {name: tensor.data for name, tensor in zip(COLUMNS, tensors, strict=True)}
    items: dict[str, Any] = {name: filled[name] for name in INPUTS}
    items["use_cache"] = False
    batch = Batch.of_pieces(items, [tuple([_place(piece, names) for piece in sequence]) for sequence in sequences])
    batch.document_ids = filled["document_ids"]
    batch.cu_seqlens = whole[columns.size :].view(torch.int32)[:num_bounds].data
    batch.max_seqlen = max(sizes, default=0)
    return batch


Segment = tuple["NDArray[np.int32]", "NDArray[np.bool_] | None", int, int]
"""Tokens, which of them are learned, the document's number, and how many tokens from the first have no label."""


def _segments(sequences: Sequence[Sequence[Piece]], seq_len: int, pad_id: int) -> list[Segment]:
    import numpy as np

    padding = np.full(seq_len, pad_id, dtype=np.int32)
    segments: list[Segment] = []
    for sequence in sequences:
        room = seq_len
        for number, piece in enumerate(sequence, 1):
            segments.append((piece.tokens, piece.loss, number, piece.context or 1))
            room -= len(piece.tokens)
        assert room >= 0, "more tokens than the sequence has room for"
        if room:
            segments.append((padding[:room], None, 0, room))
    return segments


def _fill(columns: NDArray[np.int64], segments: list[Segment], sizes: list[int], bounds: list[int]) -> None:
    import numpy as np

    input_ids, labels, position_ids, document_ids = columns
    np.concatenate([tokens for tokens, _, _, _ in segments], out=input_ids)
    labels[:] = input_ids
    for start, (_, _, _, ignored) in zip(bounds, segments, strict=False):
        labels[start : start + ignored] = IGNORED
    if any(loss is not None for _, loss, _, _ in segments):
        every = np.ones(max(sizes), dtype=np.bool_)
        learned = [every[:size] if s[1] is None else s[1] for s, size in zip(segments, sizes, strict=True)]
        np.putmask(labels, ~np.concatenate(learned), IGNORED)
    counting = np.arange(max(sizes))
    np.concatenate([counting[:size] for size in sizes], out=position_ids)
    document_ids[:] = np.repeat([number for _, _, number, _ in segments], sizes)


def _place(piece: Piece, names: Sequence[str]) -> tuple[str, int, str, int, int, int, int]:
    return names[piece.source], piece.epoch, piece.shard, piece.row, piece.sub, piece.start, piece.stop


def collate_rows(rows: Sequence[tuple[Address, dict[str, Any] | Unmade]]) -> Batch:
    """Each column as a list: the columns of all rows, in the order they are first seen; None where a row has none.

    What was not made yet is made now. Tensors of one shape are stacked.
    """
    lazy = any(isinstance(data, Unmade) for _, data in rows)
    made = [data.made() if isinstance(data, Unmade) else data for _, data in rows]
    columns = dict.fromkeys(name for data in made for name in data)
    items: dict[str, Any] = {name: [data.get(name) for data in made] for name in columns}
    if lazy:
        items = {name: _stacked(values) for name, values in items.items()}
    return Batch.of_rows(items, [address[:4] for address, _ in rows])


def one_row(address: Address, data: dict[str, Any] | Unmade) -> Batch:
    """A row as it is."""
    return Batch.of_rows(data.made() if isinstance(data, Unmade) else data, [address[:4]])


def _stacked(values: list[Any]) -> Any:
    import torch

    shapes = {(value.shape, value.dtype) if isinstance(value, torch.Tensor) else None for value in values}
    return torch.stack(values) if len(shapes) == 1 and None not in shapes else values


def as_pad(batch: Batch) -> Batch:
    """The same batch with nothing to learn from, for a step in which there is no other."""
    if not batch.packed:
        out = batch.copy()
    else:
        # In memory of its own: what was sent to the trainer is shared with it, and it may write there.
        memo: dict[int, Any] = {}
        out = batch.with_attributes(lambda value: copy.deepcopy(value, memo))
        out.update({name: copy.deepcopy(value, memo) for name, value in batch.items()})
        out["labels"].fill_(IGNORED)
    out.pad = True
    return out
