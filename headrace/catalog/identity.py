"""What tells that files are those that a state was made on, wherever they lie now and however they are named.

A state holds the identity of each of its sources. Files with the path, size and modification time of before are taken
unread. Others are compared by what is in them: parquet by its footer, text by all of its bytes, or by samples of them
where it is large.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from headrace.errors import SpecError, shown

if TYPE_CHECKING:
    from headrace.rng import I64

LISTED = 512
"""Up to so many shards, the mark of each is in the state; of more, one digest of all."""
CHUNK_BYTES = 16 << 20
"""Row groups are cut into chunks by rows and by these bytes (`plan.Rules`), so both are part of a shard's shape."""
_SHAPE, _CONTENT = 4, 8
MARK = _SHAPE + _CONTENT
"""Letters of a mark: of the shape (which rows are in which row group), then of the content."""
UNKNOWN = "-" * _CONTENT
"""In the place of a content that was not looked at."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """What is taken on the user's word where a state is loaded."""

    moved: bool = False
    """Files that cannot be compared with those of the state are the same."""
    changed: bool | frozenset[str] = False
    """All shards, or those with these names or paths, may have other contents, in as many rows."""

    @classmethod
    def given(cls, moved: bool, changed: bool | Iterable[str]) -> Self:
        """As the arguments of a `load_state_dict` say."""
        if not isinstance(moved, bool):
            raise SpecError(f"trust_moved={shown(moved)!r} is not True or False")
        if isinstance(changed, str):
            changed = [changed]
        if not isinstance(changed, bool):
            changed = frozenset(changed)
            if not all(isinstance(label, str) for label in changed):
                raise SpecError(f"trust_changed={shown(changed)!r}: True, or names of shards, are expected")
        return cls(moved=moved, changed=changed)

    def allows_change(self, label: str) -> bool:
        if isinstance(self.changed, bool):
            return self.changed
        return label in self.changed or label.rpartition("/")[2] in self.changed


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Of a source with its shards in order."""

    shards: int
    """How many there are."""
    sizes: str
    """A digest of their sizes."""
    names: str
    """A digest of their names below the folder that all lie in."""
    shape: str = ""
    """A digest of the shapes of all shards, where all are counted."""
    content: str = ""
    """...and of their contents, where these are all known."""
    marks: str = ""
    """The marks of all shards, one after the other, where all are counted and there are at most `LISTED`."""
    opened: Mapping[int, str] = field(default_factory=dict)
    """Where shards are counted when they are opened: the marks of those that are being read."""

    def to_json(self) -> dict[str, Any]:
        found = {name: value for name, value in vars(self).items() if value}
        if self.opened:
            found["opened"] = {str(number): mark for number, mark in sorted(self.opened.items())}
        return found

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Back from `to_json`; a ValueError for anything else."""
        if not isinstance(value, dict):
            raise ValueError("identity: a mapping is expected")  # noqa: TRY004 - one kind for all
        opened = value.get("opened", {})
        try:
            found = cls(**{**value, "opened": {int(number): mark for number, mark in opened.items()}})
        except (AttributeError, TypeError, ValueError):
            raise ValueError("identity: its fields are not those of an identity") from None
        texts = [found.sizes, found.names, found.shape, found.content, found.marks, *found.opened.values()]
        if not all(isinstance(text, str) for text in texts) or type(found.shards) is not int or found.shards < 0:
            raise ValueError("identity: a text or a number is of another kind")
        if found.marks and len(found.marks) != MARK * found.shards:
            raise ValueError(f"identity: marks of {found.shards} shards are expected")
        return found

    def to_text(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: Any) -> Self:
        """Back from `to_text`; a ValueError for anything else."""
        try:
            value = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            raise ValueError("identity: this is not the text of an identity") from None
        return cls.from_json(value)

    def mark(self, shard: int) -> str | None:
        """The mark of a shard, where it is known."""
        return self.marks[MARK * shard : MARK * (shard + 1)] if self.marks else self.opened.get(shard)

    @property
    def is_whole(self) -> bool:
        """Whether it tells the contents of all shards."""
        return bool(self.content)

    def is_of(self, other: Identity) -> bool:
        """Whether both can be of the same data, as far as both tell."""
        if (self.shards, self.sizes) != (other.shards, other.sizes):
            return False
        if self.is_whole and other.is_whole:
            return (self.shape, self.content) == (other.shape, other.content)
        shared = self.opened.keys() & other.opened.keys()
        return self.names == other.names and all(self.opened[n] == other.opened[n] for n in shared)


def identity_of(paths: Sequence[str], sizes: I64, marks: Sequence[str] | None) -> Identity:
    """`marks`: of all shards; None where they are not counted."""
    found = Identity(shards=len(paths), sizes=_digest(sizes.tolist()), names=_digest(_below(paths)))
    if marks is None:
        return found
    known = not any(mark.endswith(UNKNOWN) for mark in marks)
    return replace(
        found,
        shape=_digest(mark[:_SHAPE] for mark in marks),
        content=_digest(mark[_SHAPE:] for mark in marks) if known else "",
        marks="".join(marks) if len(marks) <= LISTED else "",
    )


def mark_of(rows: I64, nbytes: I64, content: str) -> str:
    """The mark of a shard with these row groups. `content`: a digest of what is in it; '': not known."""
    shape = "\n".join(f"{r} {-(-b // CHUNK_BYTES)}" for r, b in zip(rows.tolist(), nbytes.tolist(), strict=True))
    return _letters(shape, _SHAPE) + (_letters(content, _CONTENT) if content else UNKNOWN)


def same_shape(one: str, two: str) -> bool:
    """Whether marks are of shards with the same rows in the same row groups."""
    return one[:_SHAPE] == two[:_SHAPE]


def same_mark(one: str, two: str) -> bool:
    """Whether marks can be of the same shard."""
    return same_shape(one, two) and (one[_SHAPE:] == two[_SHAPE:] or UNKNOWN in (one[_SHAPE:], two[_SHAPE:]))


def _letters(text: str, count: int) -> str:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=count * 3 // 4).digest()
    return base64.b64encode(digest).decode()


def _digest(values: Iterable[object]) -> str:
    h = hashlib.blake2b(digest_size=12)
    for value in values:
        text = str(value)
        h.update(f"{len(text)}:{text}\n".encode("utf-8", "surrogatepass"))
    return base64.b64encode(h.digest()).decode()


def _below(paths: Sequence[str]) -> list[str]:
    """Names below the folder that all paths have in common."""
    if not len(paths):
        return []
    first = paths[0]
    parts = [path.split("/") for path in (first, paths[-1])]
    depth = 0
    for one, two in zip(*(part[:-1] for part in parts), strict=False):
        if one != two:
            break
        depth += 1
    start = sum(len(part) + 1 for part in parts[0][:depth])
    if not all(path.startswith(first[:start]) for path in paths):  # not in name order
        start = 0
    return [path[start:] for path in paths]
