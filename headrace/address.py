"""What flows: an address, and a row with its address."""

from __future__ import annotations

from typing import Any, NamedTuple


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


class Row(NamedTuple):
    """A row as it stands in its file, and where that is."""

    address: Address
    data: dict[str, Any]
