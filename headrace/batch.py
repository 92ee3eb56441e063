"""What the trainer gets: a batch of model inputs that knows where they came from."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Self

from headrace.address import Address
from headrace.errors import shown

TENSORS = ("document_ids", "cu_seqlens")
"""Attributes of a batch that are tensors."""


class Span(NamedTuple):
    """Tokens of a row in a packed sequence."""

    address: Address
    sample: int
    """The sample's number inside the row."""
    start: int
    stop: int
    """Tokens of that sample, without those that are only there as context."""


class Batch(dict[str, Any]):
    """Model inputs by name, so that `model(**batch)` works. All else is an attribute.

    A copy is a batch with the same attributes: pinning copies, and workers pickle. Addresses travel as plain tuples
    and are put together when they are asked for.

    Of packed sequences, `document_ids`, `cu_seqlens` and `max_seqlen` say where documents begin and end, for models and
    kernels that ask for it. They are attributes because most models refuse or misread them as inputs.
    """

    document_ids: Any = None
    """Of each token, the number of its document in its sequence, from 1; padding is 0. A tensor of input_ids' shape."""
    cu_seqlens: Any = None
    """Where documents begin in the tokens of all sequences, one after the other, and where the last one ends: int32.
    The padding of a sequence is a document too."""
    max_seqlen: int = 0
    """Tokens of the longest document."""

    pad: bool = False
    """True: there is nothing to learn in this batch; it fills a step in which other ranks have one."""
    m: int = -1
    """The number of the micro-batch in the run."""
    receipt: bytes = b""
    """The state of its lane right after this batch."""
    receipts: dict[int, bytes]
    """...by its lane; and those of lanes that were over and passed by before it. Taken out before the trainer sees
    it."""
    _rows: tuple[tuple[str, int, str, int], ...] = ()
    _pieces: tuple[tuple[tuple[str, int, str, int, int, int, int], ...], ...] | None = None

    def __init__(self, items: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /) -> None:
        super().__init__(items)

    @classmethod
    def of_rows(cls, items: Mapping[str, Any], rows: Iterable[tuple[str, int, str, int]]) -> Self:
        """`rows`: the parts of each row's address."""
        batch = cls(items)
        batch._rows = tuple(rows)
        return batch

    @classmethod
    def of_pieces(
        cls, items: Mapping[str, Any], pieces: Iterable[tuple[tuple[str, int, str, int, int, int, int], ...]]
    ) -> Self:
        """`pieces`: for each sequence, the parts of each piece's address, and its sample, start and stop."""
        batch = cls(items)
        batch._pieces = tuple(pieces)
        return batch

    @property
    def packed(self) -> bool:
        """Whether this is a batch of sequences; else one of rows."""
        return self._pieces is not None

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def num_sequences(self) -> int:
        """Sequences that hold something."""
        return sum(1 for pieces in self._pieces or () if pieces)

    @property
    def num_tokens(self) -> int:
        """Without padding, and without what is only there as context."""
        return sum([piece[6] - piece[5] for pieces in self._pieces or () for piece in pieces])

    @property
    def num_samples(self) -> int:
        """Samples that begin in these sequences."""
        return sum([piece[5] == 0 for pieces in self._pieces or () for piece in pieces])

    def by_source(self) -> list[tuple[str, int, int]]:
        """Of each part in it: its name, the rows that begin in this batch, and the tokens, without context."""
        if self._pieces is None:
            return [(name, rows, 0) for name, rows in Counter(row[0] for row in self._rows).items()]
        found: dict[str, list[int]] = {}
        for pieces in self._pieces:
            for name, _, _, _, sample, start, stop in pieces:
                counts = found.setdefault(name, [0, 0])
                counts[0] += not (sample or start)
                counts[1] += stop - start
        return [(name, rows, tokens) for name, (rows, tokens) in found.items()]

    @property
    def addresses(self) -> list[Any]:
        """Rows: the Address of each. Sequences: for each a list with the Address of document 1, 2, ..."""
        if self._pieces is None:
            return [Address(*row) for row in self._rows]
        return [[Address(*piece[:4]) for piece in pieces] for pieces in self._pieces]

    @property
    def last_address(self) -> Address | None:
        """Of the last row, or of the last piece of the last sequence that has one."""
        places = self._rows if self._pieces is None else next(filter(None, reversed(self._pieces)), ())
        return Address(*places[-1][:4]) if places else None

    @property
    def spans(self) -> list[list[Span]]:
        """For each sequence, what stands in it: document 1, 2, ... Rows have none."""
        return [[Span(Address(*piece[:4]), *piece[4:]) for piece in pieces] for pieces in self._pieces or ()]

    def copy(self) -> Self:
        return copy.copy(self)

    def to(self, device: Any, *, non_blocking: bool = False) -> Self:
        """A copy with all tensors on `device`. Trainers that find this method use it, and so keep the attributes."""

        def move(value: Any) -> Any:
            return value.to(device, non_blocking=non_blocking) if hasattr(value, "to") else value

        out = self.with_attributes(move)
        for name, value in self.items():
            out[name] = move(value)
        return out

    def with_attributes(self, move: Callable[[Any], Any]) -> Self:
        """A copy whose attributes that may be tensors are what `move` gives for them."""
        out = self.copy()
        for name in TENSORS:
            if (value := getattr(self, name)) is not None:
                setattr(out, name, move(value))
        return out

    def __repr__(self) -> str:
        parts = [f"m={self.m}"] if self.m >= 0 else []
        parts += ["pad"] if self.pad else []
        parts += [f"{name}: {_shape(value)}" for name, value in self.items()]
        return f"Batch({', '.join(parts)})"


def _shape(value: Any) -> str:
    if hasattr(value, "shape"):
        return str(list(value.shape))
    return f"{len(value)} values" if isinstance(value, list) else shown(value, 40)
