"""Memory for the pictures of one batch: each is made where it will lie, so that none is copied to be stacked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Room:
    def __init__(self, count: int, size: int) -> None:
        import torch

        self._whole: torch.Tensor | None = torch.empty(count, 3, size, size, dtype=torch.float32, device="cpu")
        self.slots: list[torch.Tensor] = list(self._whole)

    def whole(self, pictures: Sequence[Any]) -> torch.Tensor | None:
        """All of it, if these are the pictures that were made in it, each in its slot; else they have to be stacked.

        Only once: who gets it may write into it, and then the pictures are not what they were.
        """
        if len(pictures) != len(self.slots) or any(a is not b for a, b in zip(pictures, self.slots, strict=True)):
            return None
        assert self._whole is not None
        found, self._whole = self._whole, None
        return found
