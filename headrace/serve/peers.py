"""The other ranks of a run: what must be agreed on, over CPU groups of our own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def group_is_up() -> bool:
    """Whether there is a process group. Nothing is imported for the question."""
    torch = sys.modules.get("torch")
    found = getattr(torch, "distributed", None)
    return bool(found and found.is_available() and found.is_initialized())


class Peers:
    """Made by all ranks at the same moment."""

    def __init__(self) -> None:
        import torch.distributed as dist

        # A group each: where ranks are at different steps, a vote of one would meet the question of another, and both
        # would wait for ever.
        self._talk, self._votes = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks."""
        import torch.distributed as dist

        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, value, group=self._talk)
        return found

    def ask(self, number: int) -> Vote:
        """The greatest number that any rank gives; the answer comes by itself."""
        import torch
        import torch.distributed as dist

        word = torch.tensor([number], dtype=torch.int64)
        return Vote(word, dist.all_reduce(word, op=dist.ReduceOp.MAX, group=self._votes, async_op=True))

    def tally(self, counts: Sequence[int]) -> Tally:
        """Of each count, the largest that any rank has; the answer comes by itself."""
        import torch
        import torch.distributed as dist

        numbers = torch.tensor(counts, dtype=torch.int64)
        return Tally(numbers, dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self._votes, async_op=True))


class Vote:
    def __init__(self, word: Any, work: Any) -> None:
        self._word, self._work = word, work

    def answer(self) -> int:
        self._work.wait()
        return int(self._word.item())


class Tally:
    def __init__(self, numbers: Any, work: Any) -> None:
        self._numbers, self._work = numbers, work

    def answer(self) -> list[int]:
        self._work.wait()
        found: list[int] = self._numbers.tolist()
        return found
