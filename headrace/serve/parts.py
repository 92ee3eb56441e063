"""Which part of a recipe is which source of a state: by name, by where the data lies, or by what is in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from headrace.catalog.identity import Trust
from headrace.catalog.source import Source
from headrace.errors import SpecError
from headrace.recipe import Part


class Named(Protocol):
    """A source as a state has it."""

    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> str: ...


F = TypeVar("F", bound=Named)


def match_parts(
    parts: Sequence[Part], kept: Sequence[F], same: Callable[[int, F], bool], trust: Trust
) -> list[int | None]:
    """For each part the number of its source among those of a state; None: it is new.

    A name that was given to a part is taken at its word: the source that had it in the state must be the same. `same`
    looks into the data, and is asked only where names and places do not tell.
    """
    found: list[int | None] = [None] * len(parts)
    free = list(range(len(kept)))

    def pair(fits: Callable[[int, F], bool]) -> None:
        for i in range(len(parts)):
            n = next((n for n in free if found[i] is None and fits(i, kept[n])), None)
            if n is not None:
                found[i] = n
                free.remove(n)

    pair(lambda i, one: parts[i].name == one.name and same_place(one.spec, parts[i].source))
    pair(lambda i, one: parts[i].name == one.name and parts[i].name != str(parts[i].source))
    pair(lambda i, one: same_place(one.spec, parts[i].source))
    pair(same)
    rest = [i for i, n in enumerate(found) if n is None]
    if trust.moved and len(rest) == len(free) == 1 and kept[free[0]].spec.startswith(f"{parts[rest[0]].source.kind}:"):
        found[rest[0]] = free[0]
    return found


def same_place(spec: str, source: Source) -> bool:
    """Whether a spec of a state names the place of a source, in whatever spelling, and whichever column is read."""
    if spec == str(source):
        return True
    try:
        return Source.parse(spec).place == source.place
    except SpecError:
        return False
