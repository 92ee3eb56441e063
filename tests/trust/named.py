"""The tests of this repository by name, found by reading the files, not by running them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def names_in(file: str) -> frozenset[str]:
    """`name` and `Class::name` of each test in a file; "" for the file itself; nothing where there is no such file."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    return frozenset({"", *_tests(ast.parse(path.read_text()).body, "")})


def _tests(body: Iterable[ast.stmt], within: str) -> set[str]:
    found = set()
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found.add(f"{within}{node.name}")
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found |= {f"{within}{node.name}", *_tests(node.body, f"{within}{node.name}::")}
    return found


def exists(test: str) -> bool:
    """Whether there is a test `file::name` or `file::Class::name`, or such a file. Ids in brackets do not count."""
    file, _, name = test.partition("[")[0].partition("::")
    return name in names_in(file)
