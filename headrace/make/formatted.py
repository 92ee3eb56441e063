"""Rows made samples by a formatter: its text becomes tokens, its media go along as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from headrace.address import Address
from headrace.errors import DataError, HeadraceError, NotAllowed, shown
from headrace.fetch.block import RowBlock
from headrace.make.prepare import Samples
from headrace.make.sample import ERROR, Sample
from headrace.make.tokenize import Tokenizer

Formatter: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, str]], Any]
"""(row, special tokens) -> a sample (a dict with `text`), several of them, or None."""


class Formatted:
    arrays = None
    columns: list[str] | None = None
    """All of them: only the formatter knows what it needs."""

    def __init__(
        self,
        formatter: Formatter,
        tokens: Mapping[str, str],
        tokenizer: Tokenizer,
        *,
        learn_all: bool = True,
        group_by: str | None = None,
        keep_errors: bool = False,
    ) -> None:
        """`learn_all`: every token is learned from; else only the segments that the formatter says are. `keep_errors`:
        a row that fails gives a sample that holds the error, for whoever may skip it."""
        self._formatter, self._tokens, self._tokenizer, self._learn_all = formatter, tokens, tokenizer, learn_all
        self.group_by, self._keep_errors = group_by, keep_errors

    def __call__(self, block: RowBlock) -> list[Samples]:
        addresses = block.addresses
        rows: list[dict[str, Any]] = [{} for _ in addresses]
        for name, values in block.columns.items():
            for row, value in zip(rows, values, strict=True):
                row[name] = value
        found = [self._tried(row, address) for row, address in zip(rows, addresses, strict=True)]
        texts = [text for several in found for one in several for text, _ in self._segments(one)]
        try:
            ids = iter(self._tokenizer.encode(texts))
        except DataError as error:
            if len(rows) > 1:
                raise  # one by one, to know which
            error.add_note(f"in {shown(addresses[0], 1000)}")
            if not self._keep_errors:
                raise
            found = [[{"text": "", ERROR: error}]]
            ids = iter(self._tokenizer.encode([""]))
        return [[sample for one in several if (sample := self._sample(one, ids)) is not None] for several in found]

    def _tried(self, row: dict[str, Any], address: Address) -> list[dict[str, Any]]:
        if self.group_by is not None and row["rows"] is None:
            return []  # the first row of its group stands for it
        try:
            return self._formatted(row, address)
        except (DataError, NotAllowed) as error:
            if not self._keep_errors:
                raise
            return [{"text": "", ERROR: error}]

    def _formatted(self, row: dict[str, Any], address: Address) -> list[dict[str, Any]]:
        try:
            made = self._formatter(row, self._tokens)
        except HeadraceError as error:
            error.add_note(f"in {shown(address, 1000)}")
            raise
        except Exception as error:
            where = shown(address, 1000)
            raise DataError(f"{where}: its formatter failed: {type(error).__name__}: {shown(error)}") from error
        several = made if isinstance(made, list) else [] if made is None else [made]
        for one in several:
            if not isinstance(one, dict) or not isinstance(one.get("text"), str):
                raise DataError(
                    f"{shown(address, 1000)}: its formatter gave {shown(one)!r}; a dict with 'text', a list of "
                    f"them, or None is expected"
                )
            if one.get("segments") and not _makes(one["segments"], one["text"]):
                raise DataError(
                    f"{shown(address, 1000)}: its formatter gave segments that do not make its text; pairs of a text "
                    f"and whether it is learned are expected"
                )
        return several

    def _segments(self, one: dict[str, Any]) -> Sequence[tuple[str, bool]]:
        """What is tokenized on its own: so that it is known for each token whether it is learned from."""
        segments: Sequence[tuple[str, bool]] | None = one.get("segments")
        return [(one["text"], True)] if self._learn_all or not segments else segments

    def _sample(self, one: dict[str, Any], ids: Any) -> Sample | None:
        """None: there is no token in it, so nothing to learn from."""
        import numpy as np

        segments = self._segments(one)
        parts = [next(ids) for _ in segments]
        tokens = np.concatenate(parts)
        if not len(tokens) and ERROR not in one:
            return None
        loss = np.repeat([learned for _, learned in segments], [len(part) for part in parts])
        extras = {name: value for name, value in one.items() if name not in ("text", "segments")}
        return Sample(tokens, None if bool(loss.all()) else loss, extras)


def _makes(segments: Any, text: str) -> bool:
    try:
        return "".join([part for part, _ in segments]) == text
    except (TypeError, ValueError):
        return False
