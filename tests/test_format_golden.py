"""A row of each category gives the text that was read through by eye; see tests/golden."""

from __future__ import annotations

from pathlib import Path

import pytest
from formatting import check, drawn
from golden_rows import ROWS

from headrace.catalog.known import all_known, known
from headrace.make.formatters import FORMATTERS, formatter_for
from headrace.make.tokens import TOKENS

GOLDEN = Path(__file__).parent / "golden"


def text_of(name: str) -> str:
    found = formatter_for(known(name))(ROWS[name], TOKENS)
    samples = found if isinstance(found, list) else [found]
    assert None not in samples
    for sample in samples:
        assert sample is not None
        check(sample)
    return "===\n".join(drawn(sample) for sample in samples if sample is not None)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_real_row_reads_as_it_did(name: str) -> None:
    assert text_of(name) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_golden_row_has_the_columns_of_its_schema(name: str) -> None:
    row = ROWS[name]["rows"][0] if "rows" in ROWS[name] else ROWS[name]
    columns = {column for column in known(name).columns if ".." not in column}
    assert columns <= set(row)


def test_every_formatter_has_a_golden_text_and_every_text_a_row() -> None:
    assert {known(name).formatter for name in ROWS} == set(FORMATTERS)
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(ROWS)
    shown = {known(name).category for name in ROWS}
    assert shown >= {entry.category for entry in all_known()} - {"pretrain"}
