"""The contract of everything that gives out items and can be resumed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

T = TypeVar("T")

State: TypeAlias = dict[str, Any]
"""JSON: str, int, float, bool, None, list, dict. Keeps its shape for life."""


class Stage(Iterator[T], ABC):
    """A live, checkpointable iterator.

    The laws (run by `headrace.testing.check_laws`): resume after k items gives items k+1…; restore then save gives the
    same state; state survives JSON and keeps its shape; asking twice changes nothing; the end stays the end; close
    twice is fine, changes no state and leaves no thread or file. Besides, an exception caused by a row carries its
    address, and changes nothing: the next call tries the same row again.
    """

    @abstractmethod
    def __next__(self) -> T: ...

    @abstractmethod
    def state_dict(self) -> State:
        """The point just after the last item given out."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Go there."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent; then the parents."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
