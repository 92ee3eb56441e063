"""Small text files whose rows are large in memory: they are read within the budget, or refused before."""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from read_limited import BATCH, BUDGET, MB, cost

from headrace import rows
from headrace.fetch.line_memory import json_bytes, weight
from headrace.fetch.lines import NO_LIMIT

pytestmark = pytest.mark.timeout(100)

OBJECTS = b"{}," * 500_000
NESTED = (b"[" * 300 + b"]" * 300 + b",") * 2_000
BOMBS = {
    "objects": b'{"l": [' + OBJECTS + b"1]}\n",
    "lists in lists": b'{"l": [' + NESTED + b"1]}\n",
    "short texts": b'{"l": [' + b'"ab",' * 700_000 + b"1]}\n",
    "behind a text": b'{"t": "' + b"x" * 600_000 + b'", "l": [' + OBJECTS + b"1]}\n",
    "behind a backslash": b'{"t": "' + b"x" * 900_000 + b'\\\\", "l": [' + b"{}," * 450_000 + b'1], "u": ""}\n',
    "behind a line that is cut off": b'{"t": "a\n' + (b'{"l": [' + b"{}," * 500 + b'1], "u": ""}\n') * 1000,
    "one large character": b'{"t": "\xf0\x9f\x98\x80' + b"x" * (6 * MB) + b'"}\n',
    "one large character that is escaped": b'{"t": "\\ud83d\\ude00' + b"x" * (6 * MB) + b'"}\n',
    "many lines": (b'{"l": [' + b"{}," * 500 + b"1]}\n") * 1000,
    "one line": b'{"l": [' + b"{}," * (10 * MB) + b"1]}\n",
}


def packed(folder: Path, data: bytes, name: str = "a.jsonl.gz") -> str:
    (folder / name).write_bytes(gzip.compress(data, 1))
    return f"{name.split('.')[1]}:{folder}/{name}"


@pytest.mark.parametrize(
    ("case", "way"), [*((case, "shuffled") for case in BOMBS), ("objects", "in order"), ("objects", "loader")]
)
def test_lines_that_become_much_are_refused_before_they_are_parsed(tmp_path: Path, case: str, way: str) -> None:
    found = cost(packed(tmp_path, BOMBS[case]), tmp_path, way)
    assert re.match(
        rf"DataError: {tmp_path}/a\.jsonl\.gz: (rows \d+ to \d+ may take [\d,]+ bytes in memory|the line at byte 0 has)"
        rf".*; a chunk may take [\d,]+: other chunks hold 0 and the budget is {BUDGET:,} \(HEADRACE_MEMORY_BYTES\)\. "
        r"Raise it, lower pool_chunks, or split",
        found["error"],
    ), found
    assert found["bytes"] < 2 * BUDGET, found


def test_chunks_of_lines_that_fit_one_by_one_are_refused_where_all_of_them_do_not(tmp_path: Path) -> None:
    for i in range(12):
        packed(tmp_path, b'{"l": [' + b"{}," * 100_000 + b"1]}\n", f"a{i}.jsonl.gz")
    spec = f"jsonl:{tmp_path}/a*.jsonl.gz"
    in_order = cost(spec, tmp_path, "in order")
    assert (in_order["error"], in_order["rows"]) == ("", 12)
    assert in_order["bytes"] < 2 * BUDGET, in_order
    found = cost(spec, tmp_path, "shuffled")
    assert re.search(r"rows 0 to 0 may take .*other chunks hold [1-9][\d,]+ and the budget is", found["error"]), found
    assert found["bytes"] < 2 * BUDGET, found


@pytest.mark.parametrize("way", ["shuffled", "in order"])
def test_long_lines_of_text_stay_within_the_budget(tmp_path: Path, way: str) -> None:
    found = cost(packed(tmp_path, (b"x" * (4 * MB) + b"\n") * 40, "a.txt.gz"), tmp_path, way)
    if way == "in order":
        assert (found["error"], found["rows"]) == ("", 40)
    else:
        assert re.search(r"a\.txt\.gz: rows \d+ to \d+ may take .*other chunks hold [1-9]", found["error"]), found
    assert found["bytes"] < 2 * BUDGET, found


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_a_line_that_does_not_fit_is_not_held(tmp_path: Path, kind: str) -> None:
    line = b'{"t": "' + b"x" * (50 * MB) + b'"}\n'
    found = cost(packed(tmp_path, line, f"a.{kind}.gz"), tmp_path, "in order")
    assert "the line at byte 0 has more than" in found["error"]
    assert "split the line" in found["error"]
    assert found["bytes"] < 2 * BUDGET, found


# --- ordinary data


def chat(i: int) -> dict[str, Any]:
    said = f"It\u2019s number {i}, as we said before: " + "take the list, sort it, and look again. " * 12
    asked = "How do I do this, please? " * 6 + ("\U0001f600" if i % 5 == 0 else "")
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": said + "\n\n```\nf({1: [2]})\n```"}]
    return {"id": f"conversation-{i}", "messages": turns * (1 + i % 3), "score": i / 7, "lang": None}


ORDINARY: dict[str, Any] = {
    "chat": chat,
    "texts": lambda i: {"text": f"{i}: " + "words, and more words; " * 120},
    "calls": lambda i: {"arguments": json.dumps({"a": [{"b": j, "c": "x"} for j in range(40)]}), "id": i},
    "tokens": lambda i: {"ids": [i * j % 50_000 for j in range(500)]},
    "numbers": lambda i: {"v": [(i + j) / 7 for j in range(300)]},
    "records": lambda i: {f"field{j}": j * i for j in range(20)},
}


def size(value: Any) -> int:
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return sys.getsizeof(value) + sum(map(size, inner))


def size_once(values: list[Any]) -> int:
    """Of different values, each once: of a line of JSON, equal keys are one."""
    found: dict[int, Any] = {}
    waiting = [*values]
    while waiting:
        value = waiting.pop()
        found[id(value)] = value
        waiting += [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return sum(map(sys.getsizeof, found.values()))


def weighed(lines: list[bytes]) -> int:
    data = b"\n".join(lines)
    return weight(data, np.cumsum([len(line) + 1 for line in lines]), is_ascii=data.isascii())


@pytest.mark.parametrize("ensure_ascii", [False, True])
@pytest.mark.parametrize("case", ORDINARY)
def test_ordinary_rows_are_weighed_at_about_what_they_take(case: str, ensure_ascii: bool) -> None:
    values = [ORDINARY[case](i) for i in range(200)]
    lines = [json.dumps(value, ensure_ascii=ensure_ascii).encode() for value in values]
    taken = sum(size(json.loads(line)) for line in lines)
    assert taken <= weighed(lines) <= 2.3 * taken


@pytest.mark.parametrize("text", ["\u0416", "\U0001f600", "plain, \u20ac", "a \\ b"])
def test_texts_weigh_as_much_where_their_characters_are_escaped(text: str) -> None:
    """As much as their characters, and the escapes that stand in the line."""
    value = {"a": text * 500, "b": "words " * 500, "c": [text, "word", text]}
    lines = [json.dumps(value, ensure_ascii=True).encode()]
    assert size(value) <= weighed(lines)
    alone = weighed([json.dumps({**value, "a": ""}).encode()])
    escaped = len(json.dumps(value["a"])) - 1
    width = 1 if text.isascii() else 4 if max(text) > "\uffff" else 2
    assert weighed(lines) - alone == escaped * width - 1


@pytest.mark.parametrize("data", [b'"', b'"\\', b"", b"\\u", b'\\"'])
def test_lines_that_are_hardly_any_can_be_weighed(data: bytes) -> None:
    assert weight(data, np.array([len(data) + 1]), is_ascii=True) >= 0


@pytest.mark.parametrize("case", [case for case in BOMBS if case not in ("one line", "behind a line that is cut off")])
def test_no_row_takes_more_than_it_is_weighed_at(case: str) -> None:
    lines = BOMBS[case].splitlines()[:10]
    assert sum(size(json.loads(line)) for line in lines) <= weighed(lines)


@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_lines_read_in_little_memory_are_those_read_in_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_text("\n\n".join(json.dumps(chat(i), ensure_ascii=False) for i in range(1500)))
    found = []
    for budget in (1 << 40, 30 * MB):
        monkeypatch.setenv("HEADRACE_MEMORY_BYTES", str(budget))
        with rows(f"{kind}:{path}", shuffle=False, cache_dir=tmp_path / "data") as stage:
            found.append([(row.address, row.data) for row in stage])
    assert found[0] == found[1]
    assert len(found[0]) == (1500 if kind == "jsonl" else 2999)


# --- lines of many small objects: at the most, a key takes as much as a text, and here none does

TRACK = json.dumps({"track": [{"x": i, "y": i, "at": i, "to": i, "on": None} for i in range(20)]}).encode()


@pytest.mark.parametrize(("way", "budget"), [("shuffled", 100 * MB), ("loader", 100 * MB), ("in order", 20 * MB)])
def test_dense_lines_count_as_what_they_became_where_memory_is_short(tmp_path: Path, way: str, budget: int) -> None:
    lines = [TRACK] * 1000
    assert weighed(lines) > 2 * json_bytes([json.loads(line) for line in lines], NO_LIMIT)
    spec = packed(tmp_path, b"\n".join(lines * 20))
    found = cost(spec, tmp_path, way, budget)
    assert (found["error"], found["rows"]) == ("", 20_000 // (BATCH if way == "loader" else 1))
    assert found["bytes"] < 2 * budget, found


def test_lines_that_are_measured_need_little_more_while_they_are(tmp_path: Path) -> None:
    line = json.dumps({"a": [999] * 6600}).encode()
    for i in range(12):
        packed(tmp_path, b"\n".join([line] * 64), f"a{i:02}.jsonl.gz")
    found = cost(f"jsonl:{tmp_path}/a*.jsonl.gz", tmp_path, "shuffled")
    assert "other chunks hold" in found["error"], found
    assert found["bytes"] < 2 * BUDGET, found


@pytest.mark.parametrize("case", [*ORDINARY, "dense"])
def test_what_rows_of_json_take_is_measured(case: str) -> None:
    lines = [TRACK if case == "dense" else json.dumps(ORDINARY[case](i)).encode() for i in range(150)]
    values = [json.loads(line) for line in lines]
    assert size_once(values) <= json_bytes(values, NO_LIMIT) <= 1.6 * size_once(values)
    assert json_bytes([], NO_LIMIT) == 0
