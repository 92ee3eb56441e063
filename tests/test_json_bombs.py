"""Small files of JSON with very many values: refused by a process that has twice the documented budget of memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import robot_meta as made
from bombs import met

from headrace.lerobot.meta import STATS
from headrace.lerobot.root import INFO, LARGEST
from headrace.make.growth import MOST_VALUES as MOST_OF_A_TOKENIZER
from headrace.outside_json import MOST_VALUES, PARSED_BYTES, VALUE_BYTES, TooManyValues, count_values, parse
from headrace.serve import state_file

pytestmark = pytest.mark.timeout(120)

ROBOT = """
import headrace
for folder in sys.argv[2:]:
    def work():
        return len(headrace.StreamingLeRobotDataset(folder).meta.stats)
    if folder == sys.argv[-1]:
        limited(work, int(sys.argv[1]))
    else:
        work()
"""
BODIES = {"objects": b"{},", "lists": b"[],", "numbers": b"1.5,", "objects of one key": b'{"":0},'}


def opened(tmp_path: Path, name: str, body: bytes) -> tuple[str, str]:
    """How a robot data set with this file is opened with twice the budget, after one that is as it should be."""
    for folder, files in (("warm", made.files()), ("bomb", made.files() | {name: body})):
        for path, data in files.items():
            (tmp_path / folder / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / path).write_bytes(data)
    env = {"HEADRACE_CACHE_DIR": str(tmp_path / "cache")}
    budget = LARGEST + PARSED_BYTES
    kind, said, taken = met(ROBOT, str(budget), str(tmp_path / "warm"), str(tmp_path / "bomb"), env=env)
    assert taken < 2 * budget
    return kind, said


@pytest.mark.parametrize("case", BODIES)
@pytest.mark.parametrize("name", [INFO, STATS])
def test_metadata_of_a_robot_with_very_many_values_is_refused(tmp_path: Path, name: str, case: str) -> None:
    count = LARGEST // len(BODIES[case]) - 10
    kind, said = opened(tmp_path, name, b'{"x":[' + BODIES[case] * count + b"0]}")
    assert (kind, "values, more than the 1,048,576" in said, name in said) == ("DataError", True, True), said


@pytest.mark.parametrize("name", [INFO, STATS])
def test_metadata_of_a_robot_with_very_many_bytes_is_refused_unread(tmp_path: Path, name: str) -> None:
    kind, said = opened(tmp_path, name, b"[" + b" " * (60 << 20) + b"]")
    assert (kind, "more than the 16,777,216 that" in said) == ("DataError", True), said


def test_statistics_with_one_long_text_among_many_are_refused(tmp_path: Path) -> None:
    """numpy would make each text as long as the longest."""
    body = b'{"a": {"min": ["' + b"x" * (4 << 20) + b'"' + b',"y"' * 10_000 + b"]}}"
    kind, said = opened(tmp_path, STATS, body)
    assert (kind, "is not an array of numbers" in said) == ("DataError", True), said


TOKENIZER = """
from headrace.make.load import by_name
def work():
    return by_name(sys.argv[2])
limited(work, int(sys.argv[1]))
"""


def test_a_tokenizer_with_very_many_values_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b'{"x":[' + b"{}," * (MOST_OF_A_TOKENIZER // 2) + b"0]}")
    budget = path.stat().st_size + (64 << 20)
    kind, said, taken = met(TOKENIZER, str(budget), str(path), env={})
    assert (kind, "values, more than the 8,388,608" in said) == ("DataError", True), said
    assert taken < 2 * budget


STATES = """
from pathlib import Path
from headrace.serve.state_file import read_state
from headrace.tools import states
limited(lambda: (read_state if sys.argv[3] == "run" else states.read_state)(Path(sys.argv[2])), int(sys.argv[1]))
"""


@pytest.mark.parametrize("reader", ["run", "command"])
def test_a_state_file_with_very_many_values_is_refused(tmp_path: Path, reader: str) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b'{"x":[' + b"{}," * (20 << 20) + b"0]}")
    budget = state_file.LARGEST_STATE + state_file.MOST_VALUES * VALUE_BYTES
    kind, said, taken = met(STATES, str(budget), str(path), reader, env={})
    assert (kind, "values, more than the 16,777,216" in said) == ("StateError", True), said
    assert taken < 2 * budget


def test_a_text_and_bytes_count_alike() -> None:
    text = '{"a": [1, 2, {"b": "x,y"}]}'
    assert count_values(text) == count_values(text.encode()) == 8
    assert parse(text, 8) == parse(text.encode(), 8)
    with pytest.raises(TooManyValues, match="8 values, more than the 7"):
        parse(text, 7)
    assert MOST_VALUES == 1 << 20
