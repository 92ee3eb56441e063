"""The list of planted bugs is in step with the code; `make mutants` runs it."""

from __future__ import annotations

from collections import Counter

import pytest
from named import ROOT, exists
from planted import BUGS, Bug


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted_and_has_a_test_that_should_see_it(bug: Bug) -> None:
    for file, old, new in bug.edits:
        text = (ROOT / file).read_text()
        assert text.count(old) == 1, f"{file}: {old!r}"
        compile(text.replace(old, new), file, "exec")
    assert bug.tests
    assert [test for test in bug.tests if not exists(test)] == []


def test_there_are_twenty_of_them_and_each_has_one_name() -> None:
    assert len(BUGS) >= 20
    assert max(Counter(bug.name for bug in BUGS).values()) == 1
