"""The table of what is proved, and the page about security, name tests that exist and leave no fault out."""

from __future__ import annotations

import re

import pytest
from named import ROOT, exists, names_in
from planted_all import BUGS

TABLE = ROOT / "docs" / "reliability" / "README.md"
PAGES = [TABLE, ROOT / "SECURITY.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: object) -> None:
    text = page.read_text()  # type: ignore[attr-defined]
    named = re.findall(r"`(tests/[\w/]+\.py(?:::\w+)*)`", text)
    assert len(named) > 8
    assert [test for test in named if not exists(test)] == []
    unread = re.findall(r"`(test_\w+|tests/(?!trust/test_)[^`]*\*[^`]*)`", text)
    assert unread == [], "a test is named by its file too"


def rows() -> dict[str, list[str]]:
    """The cells of each numbered row."""
    found: dict[str, list[str]] = {}
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"[TB]\d+", cells[0]):
            assert cells[0] not in found
            found[cells[0]] = cells[1:]
    return found


def test_every_fault_has_a_row_with_a_proof_or_says_that_it_has_none() -> None:
    found = rows()
    wanted = [f"T{n}" for n in range(1, 30)] + [f"B{n}" for n in range(1, 53)]
    assert sorted(found) == sorted(wanted)
    without = [name for name, cells in found.items() if "`tests/" not in cells[1]]
    assert all("**later**" in found[name][1] for name in without)
    assert all(cells[0] for cells in found.values())


def test_the_number_of_planted_bugs_is_that_of_the_list() -> None:
    told = re.findall(r"([\d,]+) planted bugs over all promises", TABLE.read_text())
    assert told == [str(len(BUGS))]


def test_the_finder_of_tests_finds_them() -> None:
    assert exists("tests/trust/test_reliability_table.py::test_the_finder_of_tests_finds_them")
    assert exists("tests/test_cache.py::TestRot::test_a_damaged_file_is_fetched_again[cut]")
    assert not exists("tests/test_cache.py::TestRot::test_nothing_of_the_kind")
    assert not exists("tests/test_cache.py::test_a_damaged_file_is_fetched_again")
    assert not exists("tests/test_nothing.py")
    assert len(names_in("tests/test_cache.py")) > 20
