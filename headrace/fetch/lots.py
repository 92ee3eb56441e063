"""Rows drawn evenly out of many slots."""

from __future__ import annotations

from collections.abc import Sequence


class Lots:
    """How many rows each slot has left, as a Fenwick tree: to draw one takes as many steps as their number has bits."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._tree = tree = [0, *counts]
        for i in range(1, len(tree)):
            above = i + (i & -i)
            if above < len(tree):
                tree[above] += tree[i]
        self._top = 1 << (len(counts).bit_length() - 1)
        self._total = sum(counts)

    def take(self, word: int) -> int:
        """The slot of the row that a number of 32 bits stands for; it has one less from now on."""
        tree, left = self._tree, (word * self._total) >> 32
        slot, step = 0, self._top
        while step:
            node = slot + step
            if node < len(tree):
                if tree[node] <= left:
                    left -= tree[node]
                    slot = node
                else:
                    tree[node] -= 1  # the row is below it
            step >>= 1
        self._total -= 1
        return slot
