"""What a row becomes: tokens, and which of them are learned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


ERROR = "__error__"
"""In the extras of a sample that stands for a row that could not be formatted: the error."""


class Sample(NamedTuple):
    """One row made ready for training."""

    tokens: NDArray[np.int32]
    loss: NDArray[np.bool_] | None = None
    """Per token, whether it is learned from; None: all are."""
    extras: Mapping[str, Any] | None = None
    """What goes along: media, not decoded yet, and flags."""
