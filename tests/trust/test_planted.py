"""The list of planted bugs is in step with the code; `make mutants` runs it."""

from __future__ import annotations

from collections import Counter

import pytest
from named import ROOT, exists
from plant import Outcome, is_caught
from planted import Bug
from planted_all import BUGS


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted_and_has_a_test_that_should_see_it(bug: Bug) -> None:
    for file, old, new in bug.edits:
        text = (ROOT / file).read_text()
        assert text.count(old) == 1, f"{file}: {old!r}"
        compile(text.replace(old, new), file, "exec")
    assert bug.tests
    assert [test for test in bug.tests if not exists(test)] == []


def test_there_are_many_of_them_and_each_has_one_name() -> None:
    assert len(BUGS) >= 150
    assert max(Counter(bug.name for bug in BUGS).values()) == 1


@pytest.mark.parametrize("folder", ["catalog", "fetch", "lerobot", "make", "mix", "sequence", "serve", "tools"])
def test_every_folder_of_the_package_has_some(folder: str) -> None:
    files = {edit.file for bug in BUGS for edit in bug.edits}
    assert len([file for file in files if file.startswith(f"headrace/{folder}/")]) >= 2


def test_what_took_too_long_counts_only_where_that_is_expected() -> None:
    quick, slow = BUGS[0]._replace(hangs=False), BUGS[0]._replace(hangs=True)
    late, red, broken = Outcome(None, 1.0, ""), Outcome(1, 1.0, "1 failed in 1 s"), Outcome(2, 1.0, "1 error in 1 s")
    assert [is_caught(bug, late) for bug in (quick, slow)] == [False, True]
    assert [is_caught(quick, outcome) for outcome in (red, broken)] == [True, False]
