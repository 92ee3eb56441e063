"""Path templates of `meta/info.json`: text from outside, so no more is done with them than the format asks for."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from string import Formatter
from typing import Self

from headrace.catalog.shard import safe_parts
from headrace.errors import DataError, NotAllowed, described

LONGEST = 1000
_WIDTH = re.compile(r"(?:0([1-9][0-9]?)d)?")


@dataclass(frozen=True)
class Template:
    """A path with places for numbers and names, such as `data/chunk-{chunk_index:03d}/file-{file_index}.parquet`."""

    name: str
    """The field of meta/info.json that has it. No message quotes it: the file may be a link to any other."""
    text: str
    parts: tuple[tuple[str, str, int], ...]
    """Text, the field after it ('': none), and the digits that the field has at least."""

    @classmethod
    def parse(cls, name: str, text: str, names: Collection[str]) -> Self:
        """Fields are of `names` only, plain or with a width like `03d`; the path leads nowhere but down."""
        if not isinstance(text, str) or not 0 < len(text) <= LONGEST:
            raise _wrong(name, f"it is {described(text)}, not text of 1 to {LONGEST} characters", names)
        try:
            pieces = list(Formatter().parse(text))
        except ValueError:
            raise _wrong(
                name, f"it is {described(text)} with a brace that is not closed or not opened", names
            ) from None
        parts: list[tuple[str, str, int]] = []
        for literal, field, spec, conversion in pieces:
            width = _WIDTH.fullmatch(spec or "")
            if spec and not (field or "").endswith("_index"):
                width = None  # only numbers have one
            if field is not None and (field not in names or conversion is not None or width is None):
                number = sum(bool(field) for _, field, _ in parts) + 1
                raise _wrong(name, f"field {number} in braces is refused", names)
            parts.append((literal, field or "", int(width[1] or 0) if width else 0))
        made = cls(name, text, tuple(parts))
        made._path(dict.fromkeys(names, "0"))
        return made

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(field for _, field, _ in self.parts if field)

    def format(self, **values: int | str) -> str:
        """The path. A number that it has no place for must be 0, or two files would have one name."""
        for name, value in values.items():
            if not isinstance(value, str) and (value < 0 or (value and name not in self.fields)):
                raise DataError(f"path template {self.name} in meta/info.json has no place for {name}={value}")
        return self._path(values)

    def _path(self, values: dict[str, str] | dict[str, int | str]) -> str:
        found = "".join(text + (str(values[field]).zfill(width) if field else "") for text, field, width in self.parts)
        try:
            safe_parts(found)
        except NotAllowed:
            raise NotAllowed(
                f"path template {self.name} in meta/info.json gives a file name that is refused: a part of it is "
                f"empty, leads out of its folder, is too long, has characters that are not for names, or is a name "
                f"this library keeps for itself"
            ) from None
        return found


def _wrong(name: str, why: str, names: Collection[str]) -> DataError:
    return DataError(
        f"path template {name} in meta/info.json: {why}; a template has the fields "
        f"{', '.join('{' + name + '}' for name in names)}, plain or with a width like {{chunk_index:03d}}"
    )
