"""Where the package looks at the clock that people and NTP set. It jumps, so nothing may be waited for by it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from named import ROOT

PACKAGE = ROOT / "headrace"
TOLD_TO_OTHERS = {
    "catalog/open.py::_is_fresh",  # a file's age, which is compared with hours; one from the future is not fresh
    "catalog/retry.py::_at",  # for a message
    "catalog/retry.py::Hold.left",  # shared by processes through a file; too much counts as a clock set back
    "catalog/retry.py::Hold.ask",
    "catalog/transport.py::Transport.open",  # Retry-After may be a date
    "fetch/media/urls.py::_require_useful",
    "fetch/needs.py::needed",  # a file's age, which is compared with days
    "files.py::_boot_moment",  # compared with times of files, with room for a jump
    "tools/demo.py::play_rows",
    "tools/demo_run.py::main",
    "tools/demo_train.py::_train_both",
    "tools/train_text.py::run",
}
"""Where the time of day is told to others, or comes from them."""

CLOCKS = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "CLOCK_REALTIME"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}


def looks(node: ast.AST, within: str = "") -> Iterator[str]:
    """The functions in which the time of day is asked for, in the order of the lines."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield from looks(child, f"{within}.{child.name}".lstrip("."))
            continue
        if isinstance(child, ast.Attribute):
            owner = child.value.attr if isinstance(child.value, ast.Attribute) else getattr(child.value, "id", "")
            if child.attr in CLOCKS.get(owner, set()):
                yield within
        if isinstance(child, ast.ImportFrom) and child.module == "time":
            yield from (within for name in child.names if name.name in CLOCKS["time"])
        yield from looks(child, within)


def test_the_time_of_day_is_asked_for_only_where_others_are_told() -> None:
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith("testing/"):
            found |= {f"{name}::{place}" for place in looks(ast.parse(path.read_text()))}
    assert found == TOLD_TO_OTHERS


@pytest.mark.parametrize(
    "line",
    [
        "import time\ndef f():\n    return time.time() + 1",
        "import time\ndef f(clock=time.time): ...",
        "from time import time, sleep\ndef f(): ...",
        "def f():\n    return datetime.datetime.now()",
        "def f():\n    return [date.today() for _ in x]",
        "def f():\n    return time.clock_gettime(time.CLOCK_REALTIME)",
    ],
)
def test_each_way_to_ask_is_seen(line: str) -> None:
    assert list(looks(ast.parse(line))) in (["f"], [""])


def test_other_clocks_are_no_time_of_day() -> None:
    lines = ("time.monotonic()", "time.clock_gettime(time.CLOCK_BOOTTIME)", "self.time", "datetime.fromtimestamp(x)")
    assert [list(looks(ast.parse(line))) for line in lines] == [[]] * 4
