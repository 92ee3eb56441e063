"""What flows: an address, and a row with its address."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, NamedTuple, Self


class Address(NamedTuple):
    """Where a row came from."""

    source: str
    """The spec, as it is written in states and logs."""
    epoch: int
    shard: str
    """The shard's label: the file's name, or its path where the name alone would be ambiguous."""
    row: int
    """The row's number inside the shard, from 0."""

    def __str__(self) -> str:
        return f"{self.source} epoch {self.epoch} {self.shard}:{self.row}"


class Row(tuple[tuple[str, int, str], int, dict[str, Any]]):
    """A row as it stands in its file, and where that is.

    Its address is put together when it is asked for: most are not, and a million small tuples keep the garbage
    collector busy.
    """

    __slots__ = ()

    def __new__(cls, address: Address, data: dict[str, Any]) -> Self:
        return tuple.__new__(cls, (address[:3], address[3], data))

    @property
    def address(self) -> Address:
        return Address(*self[0], self[1])

    data: dict[str, Any] = property(itemgetter(2))  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Any]:
        """`address, data = row`"""
        return iter((self.address, self.data))

    def __repr__(self) -> str:
        return f"Row(address={self.address!r}, data={self.data!r})"

    def __getnewargs__(self) -> tuple[Address, dict[str, Any]]:
        return self.address, self.data


class Unmade(ABC):
    """What stands for a row until it is given out: only then its data is made, because that is dear."""

    __slots__ = ()

    @abstractmethod
    def made(self) -> dict[str, Any]: ...
