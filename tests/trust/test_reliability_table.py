"""The table of what is proved, and the page about security, name tests that exist and leave no fault out."""

from __future__ import annotations

import json
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


def test_what_the_table_says_of_long_runs_is_what_their_reports_say() -> None:
    text = TABLE.read_text()
    totals = json.loads((TABLE.parent / "chaos.json").read_text())["totals"]
    told = re.search(
        r"\(chaos\.md\) ([\d,]+) kills, ([\d,]+) of them with torch workers, ([\d,]+) resumes, ([\d,]+) changes of "
        r"topology in ([\d,]+) runs, no row lost",
        text,
    )
    assert told is not None
    names = ("kills", "with torch workers", "resumes", "topology changes", "runs")
    assert [int(number.replace(",", "")) for number in told.groups()] == [totals[name] for name in names]
    assert totals["problems"] == totals["runs with problems"] == 0
    assert totals["kills"] >= 2000


def test_all_planted_bugs_are_in_the_report_and_were_caught() -> None:
    text = (TABLE.parent / "mutants.md").read_text()
    assert f"{len(BUGS)} of {len(BUGS)} planted bugs were caught" in text
    assert sorted(re.findall(r"^\| ([^|]+) \| `headrace/", text, re.MULTILINE)) == sorted(bug.name for bug in BUGS)
    assert "**nothing**" not in text


def test_the_finder_of_tests_finds_them() -> None:
    assert exists("tests/trust/test_reliability_table.py::test_the_finder_of_tests_finds_them")
    assert exists("tests/test_cache.py::TestRot::test_a_damaged_file_is_fetched_again[cut]")
    assert not exists("tests/test_cache.py::TestRot::test_nothing_of_the_kind")
    assert not exists("tests/test_cache.py::test_a_damaged_file_is_fetched_again")
    assert not exists("tests/test_nothing.py")
    assert len(names_in("tests/test_cache.py")) > 20
