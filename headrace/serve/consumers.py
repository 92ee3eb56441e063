"""Who of several consumers has given how much: the turns that a DataLoader takes, as arithmetic.

A DataLoader asks its workers in turn for whole batches and passes over those that have no more, so what each has given
after so many batches follows from how much it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import StateError, shown
from headrace.stage import State

MOST = 1 << 50
EMPTY_EPOCHS = 64
"""So many epochs in a row without a batch: there will never be one."""


@dataclass(frozen=True, kw_only=True)
class Consumed:
    """What a trainer can say of where it was."""

    batches: int
    batch_size: int
    epoch: int = 0
    """The epoch that the batches are counted from."""
    drop_last: bool = False

    @classmethod
    def read(cls, state: State) -> Consumed:
        known = {"batches_consumed": 0, "batch_size": 1, "epoch": 0}
        for name, least in known.items():
            value = state.get(name, 0)
            if type(value) is not int or not least <= value < MOST:
                raise StateError(f"{name}: a whole number from {least} on is expected, not {shown(value)!r}")
        odd = set(state) - set(known) - {"drop_last"}
        if odd or not isinstance(state.get("drop_last", False), bool):
            raise StateError(
                f"this is not a state of a trainer: {shown(sorted(odd)[0] if odd else 'drop_last')!r} is not part of "
                f"it; it has batches_consumed, batch_size, and perhaps epoch and drop_last"
            )
        return cls(
            batches=state["batches_consumed"],
            batch_size=state["batch_size"],
            epoch=state.get("epoch", 0),
            drop_last=state.get("drop_last", False),
        )


def dealt(sizes: Sequence[int], count: int) -> tuple[list[int], int]:
    """How much each has given after `count` turns, and whose turn is next. Those with nothing left are passed over."""
    given, turn = [0] * len(sizes), 0
    while count:
        alive = [i for i, size in enumerate(sizes) if given[i] < size]
        if not alive:
            raise StateError(f"{count} more were given than there are")
        rounds = min(min(sizes[i] - given[i] for i in alive), count // len(alive))
        for i in alive if rounds else alive[:count]:
            given[i] += rounds or 1
        turn = 0 if rounds else (alive[count] if count < len(alive) else 0)
        count -= rounds * len(alive) if rounds else count
    left = [i for i, size in enumerate(sizes) if given[i] < size]
    return given, next((i for i in left if i >= turn), left[0] if left else 0)


def after_batches(consumed: Consumed, sizes_of: Callable[[int], Sequence[int]]) -> tuple[int, list[int], int]:
    """The epoch that comes next, what each worker has given of it, and which worker a new DataLoader must begin with.

    `sizes_of`: what each worker has to give in an epoch.
    """
    epoch, left, size, empty = consumed.epoch, consumed.batches, consumed.batch_size, 0
    while True:
        sizes = list(sizes_of(epoch))
        batches = [n // size if consumed.drop_last else -(-n // size) for n in sizes]
        if left < sum(batches) or (not left and not sum(batches)):
            given, first = dealt(batches, left)
            return epoch, [min(n * size, have) for n, have in zip(given, sizes, strict=True)], first
        empty = 0 if sum(batches) else empty + 1
        if empty > EMPTY_EPOCHS:
            raise StateError(f"{consumed.batches} batches were consumed, and here an epoch has none")
        epoch, left = epoch + 1, left - sum(batches)


def is_of_a_trainer(state: Any) -> bool:
    return isinstance(state, dict) and "batches_consumed" in state
