"""Sequences of samples to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.batch import Batch
from headrace.sequence.collate import collate_packed
from headrace.sequence.media import collate_beside
from headrace.sequence.piece import Piece
from headrace.sequence.sample_pack import Packing, Placed


def collate_sequences(
    sequences: Sequence[Sequence[Placed | Piece]], packing: Packing, pad_id: int, names: Sequence[str]
) -> Batch:
    """Tokens as `collate_packed` has them; of each kind of media one tensor of all items in the batch.

    `image_index[k]` is a pair: the sequence that image k is in, and the token at which its sample begins there; and so
    for the others. `dtype` has a list for each sequence. `expanded_lengths` counts tokens and what media take.
    """
    import torch

    placed = [[one if isinstance(one, Placed) else Placed(one, {}) for one in sequence] for sequence in sequences]
    pieces = [[one.piece for one in sequence] for sequence in placed]
    batch = collate_packed(pieces, packing.pack.seq_len, pad_id, names, packing.batch_size)
    found: list[tuple[tuple[int, int], dict[str, Any]]] = []
    lengths = [0] * packing.batch_size
    for number, sequence in enumerate(placed):
        at = 0
        for one in sequence:
            found.append(((number, at), one.beside))
            at += len(one.piece.tokens)
            lengths[number] += len(one.piece.tokens) + one.media
    batch.update(collate_beside(found))
    kinds = [[one.beside.get("dtype", "text") for one in sequence] for sequence in placed]
    batch["dtype"] = kinds + [[] for _ in range(packing.batch_size - len(kinds))]
    batch["expanded_lengths"] = torch.tensor(lengths)
    return batch
