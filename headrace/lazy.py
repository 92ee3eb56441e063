"""`cached_property` without a lock, as Python has it from 3.12 on.

The one of Python 3.11 holds a lock of the class while it computes. When the process forks meanwhile, that lock stays
taken in the child, which hangs at its first property of that kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):
    """A property that is computed once per object. Where threads compute it at once, all get the same value."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        value: T = instance.__dict__.setdefault(self._name, self._compute(instance))
        return value
