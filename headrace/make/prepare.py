"""A row made ready: what of a block of rows becomes samples. One row may give none, one or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from headrace.errors import DataError, described, shown
from headrace.fetch.block import RowBlock
from headrace.make.faults import Fault
from headrace.make.sample import Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ids: TypeAlias = NDArray[np.int32]

Samples: TypeAlias = Sequence[Any]
"""Of a row: `Sample`s where it is tokenized, else the row itself, a dict."""


class Ready(NamedTuple):
    """A row that was made ready, and where it lies."""

    source: int
    """The number of its source in the recipe."""
    epoch: int
    position: int
    shard: str
    row: int
    samples: Samples
    most: int | None = None
    """How many of its tokens may be given; None: all of them."""
    fault: Fault | None = None
    """Why it has no sample, where it failed and may be left out."""


class Prepare(Protocol):
    """Makes the rows of a source ready, a block at a time."""

    @property
    def columns(self) -> list[str] | None:
        """What has to be read."""
        ...

    @property
    def arrays(self) -> str | None:
        """A column of lists of numbers that it wants as numpy arrays."""
        ...

    def __call__(self, block: RowBlock) -> list[Samples]: ...


@runtime_checkable
class KeepsErrors(Protocol):
    """A `Prepare` whose samples may stand for rows that failed."""

    def failed(self, error: DataError) -> Samples | None:
        """What such a row gives; None: its error is raised."""
        ...


class AsRows:
    """Rows as they are."""

    arrays = None

    def __init__(self, columns: list[str] | None = None) -> None:
        self.columns = columns

    def __call__(self, block: RowBlock) -> list[Samples]:
        names = tuple(block.columns)
        if not names:
            return [[{}] for _ in range(len(block))]
        return [[dict(zip(names, values, strict=True))] for values in zip(*block.columns.values(), strict=True)]


class AsFrames:
    """Frames of episodes, which become items when they are given out."""

    columns = arrays = None

    def __call__(self, block: RowBlock) -> list[Samples]:
        return [[frame] for frame in block.columns["frame"]]


class FromText:
    """A column of text, tokenized. An empty text gives no sample: bos and eos alone are nothing to learn from."""

    arrays = None

    def __init__(self, column: str, encode: Callable[[list[str]], list[Ids]]) -> None:
        self._column, self._encode = column, encode
        self.columns = [column]

    def __call__(self, block: RowBlock) -> list[Samples]:
        texts = _column(block, self._column)
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise _unfit(
                    block,
                    i,
                    self._column,
                    f"is {described(text)}: a text is expected; name another column, or repair the row",
                )
        try:
            found = self._encode(list(texts))
        except ValueError as error:
            if len(block) > 1:
                raise
            raise DataError(f"{shown(block.addresses[0], 1000)}, column {shown(self._column)!r}: {error}") from error
        return [[Sample(ids)] if text and len(ids) else [] for text, ids in zip(texts, found, strict=True)]


class FromIds:
    """A column of token numbers, as it is: no Python list is made of it on the way out of parquet."""

    def __init__(self, column: str, vocab_size: int | None = None) -> None:
        self._column, self._vocab_size = column, vocab_size
        self.columns, self.arrays = [column], column

    def __call__(self, block: RowBlock) -> list[Samples]:
        values = _column(block, self._column)
        return [[Sample(ids)] if len(ids := self._ids(block, i, value)) else [] for i, value in enumerate(values)]

    def _ids(self, block: RowBlock, i: int, value: Any) -> Ids:
        import numpy as np

        listed = isinstance(value, list) and all(map(_is_token, value))
        if not listed and not isinstance(value, np.ndarray):
            what = f"is {described(value)}{_wrong_item(value)}"
            raise _unfit(
                block, i, self._column, f"{what}: a list of token numbers from 0 on is expected; text needs a tokenizer"
            )
        ids: Ids = np.asarray(value, dtype=np.int32)
        if self._vocab_size and len(ids) and (most := int(ids.max())) >= self._vocab_size:
            what = f"is a list of {len(ids):,} with the token number {most} in it"
            raise _unfit(block, i, self._column, f"{what}: the tokenizer has only {self._vocab_size} tokens")
        return ids


def _column(block: RowBlock, name: str) -> Sequence[Any]:
    if name in block.columns:
        return block.columns[name]
    there = ", ".join(shown(n) for n in list(block.columns)[:20]) or "no column"
    raise DataError(
        f"{shown(block.addresses[0], 1000)} has no column {shown(name)!r}; it has {there}. "
        f"Name the column at the end of the spec"
    )


def _unfit(block: RowBlock, i: int, column: str, why: str) -> DataError:
    """The value is not quoted: its file may be a link to any other."""
    return DataError(f"{shown(block.addresses[i], 1000)}, column {shown(column)!r} {why}")


def _wrong_item(value: Any) -> str:
    """What in a list is no token number."""
    items = enumerate(value if isinstance(value, list) else ())
    return next((f" with {described(item)} at place {i:,}" for i, item in items if not _is_token(item)), "")


def _is_token(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 31
