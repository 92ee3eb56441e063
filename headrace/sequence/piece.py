"""A piece: some tokens of one sample of one row, on their way into a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Piece(NamedTuple):
    """Tokens `start` to `stop` of a sample. A sequence is a list of pieces."""

    source: int
    """The source's number in the recipe."""
    epoch: int
    position: int
    """The row's number in the order of that epoch."""
    sub: int
    """The sample's number inside the row, from 0."""
    start: int
    stop: int
    context: int
    """So many tokens before `start` come along to be seen, not to be learned: the overlap of a split document."""
    tokens: NDArray[np.int32]
    """The context, then `start` to `stop`."""
    loss: NDArray[np.bool_] | None
    """For each of `tokens`, whether it is learned; None: all of them."""
    shard: str
    row: int
