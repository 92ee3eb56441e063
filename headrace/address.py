"""What flows: an address, and a row with its address."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, NamedTuple, Self


class Address(NamedTuple):
    """Where a row came from."""

    source: str
    """The name of its part: the one that was given, else the spec."""
    epoch: int
    shard: str
    """The shard's label: the file's name, or its path where the name alone would be ambiguous."""
    row: int
    """The row's number inside the shard, from 0."""

    def __str__(self) -> str:
        """For people, and for `Skip`: `Address.parse` makes the same address of it."""
        return f"{_quoted(self.source)} epoch {self.epoch} {_quoted(self.shard)}:{self.row}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The address that is written so. What is none is a ValueError."""
        found = re.fullmatch(r"(.*?) epoch ([0-9]{1,18}) (.*):([0-9]{1,18})", text, re.DOTALL)
        if found is None or not found[1] or not found[3]:
            raise ValueError(f"{text!r} is not of the form 'source epoch 0 shard:row'")
        return cls(_unquoted(found[1]), int(found[2]), _unquoted(found[3]), int(found[4]))


def _quoted(name: str) -> str:
    """Without the word that stands between the parts of an address."""
    return re.sub(r" (?=epoch )", r" \\", name.replace("\\", "\\\\"))


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def skip_text(source: str, shard: str, row: int) -> str:
    """A row of any pass, as `Skip(addresses=...)` takes and keeps it."""
    return str(Address(source, 0, shard, row)) if "|" in shard else f"{source}|{shard}|{row}"


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
