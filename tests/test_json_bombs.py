"""Small files of JSON with very many values: refused by a process that has twice the documented budget of memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import robot_meta as made
from bombs import met

from headrace.lerobot.meta import LARGEST_STATS, MOST_STATS, STATS
from headrace.lerobot.root import INFO, LARGEST
from headrace.make.growth import MOST_VALUES as MOST_OF_A_TOKENIZER
from headrace.make.load import LARGEST_FILE
from headrace.outside_json import MOST_VALUES, PARSED_BYTES, VALUE_BYTES, TooManyValues, count_values, parse
from headrace.serve import state_file
from headrace.testing.tokenizers import write_tokenizer

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


BUDGET = LARGEST + PARSED_BYTES
STATS_BUDGET = LARGEST_STATS + MOST_STATS * VALUE_BYTES


def opened(tmp_path: Path, name: str, body: bytes, budget: int = BUDGET, **env: str) -> tuple[str, str]:
    """How a robot data set with this file is opened with twice the budget, after one that is as it should be."""
    for folder, files in (("warm", made.files()), ("bomb", made.files() | {name: body})):
        for path, data in files.items():
            (tmp_path / folder / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / path).write_bytes(data)
    env = {"HEADRACE_CACHE_DIR": str(tmp_path / "cache"), "HEADRACE_MEMORY_BYTES": "4GB"} | env
    kind, said, taken = met(ROBOT, str(budget), str(tmp_path / "warm"), str(tmp_path / "bomb"), env=env)
    assert taken < 2 * budget
    return kind, said


@pytest.mark.parametrize("case", BODIES)
def test_metadata_of_a_robot_with_very_many_values_is_refused(tmp_path: Path, case: str) -> None:
    body = b'{"x":[' + BODIES[case] * (LARGEST // len(BODIES[case]) - 10) + b"0]}"
    kind, said = opened(tmp_path, INFO, body)
    assert (kind, "values, more than the 1,048,576" in said, INFO in said) == ("DataError", True, True), said


@pytest.mark.parametrize(
    ("case", "memory"), [*((case, "100MB") for case in BODIES), ("objects", "4GB"), ("objects of one key", "4GB")]
)
def test_statistics_of_a_robot_with_very_many_values_are_refused(tmp_path: Path, case: str, memory: str) -> None:
    """They may have more where there is memory for them."""
    largest, most, budget = (LARGEST, "1,048,576", BUDGET)
    if memory == "4GB":
        largest, most, budget = LARGEST_STATS, "4,194,304", STATS_BUDGET
    body = b'{"x":[' + BODIES[case] * (largest // len(BODIES[case]) - 10) + b"0]}"
    kind, said = opened(tmp_path, STATS, body, budget, HEADRACE_MEMORY_BYTES=memory)
    assert (kind, f"values, more than the {most}" in said, STATS in said) == ("DataError", True, True), said


def test_statistics_of_a_grid_of_sensors_are_read(tmp_path: Path) -> None:
    """A frame of 100,000 numbers, nine statistics of each: LeRobot writes no fewer."""
    grid = [[round(x * 0.123, 3) for x in range(200)]] * 500
    body = json.dumps({"touch": dict.fromkeys(("min", "max", "mean", "std", "q01", "q10", "q50", "q90", "q99"), grid)})
    assert LARGEST_STATS // 16 < len(body) < LARGEST_STATS
    assert opened(tmp_path, STATS, body.encode(), STATS_BUDGET) == ("", "1")


@pytest.mark.parametrize(
    ("name", "most", "memory"),
    [(INFO, "16,777,216", "4GB"), (STATS, "16,777,216", "100MB"), (STATS, "67,108,864", "4GB")],
)
def test_metadata_of_a_robot_with_very_many_bytes_is_refused_unread(
    tmp_path: Path, name: str, most: str, memory: str
) -> None:
    body = b"[" + b" " * (80 << 20) + b"]"
    kind, said = opened(tmp_path, name, body, HEADRACE_MEMORY_BYTES=memory)
    assert (kind, f"more than the {most} that" in said) == ("DataError", True), said


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


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_a_file_of_a_tokenizer_that_is_one_long_text_is_refused(tmp_path: Path, name: str) -> None:
    """It has few values, and was read whole before they were counted."""
    pytest.importorskip("tokenizers")
    if name != "tokenizer.json":
        write_tokenizer(tmp_path)
    if name == "special_tokens_map.json":  # read where the other one does not say it all
        (tmp_path / "tokenizer_config.json").unlink(missing_ok=True)
    with (tmp_path / name).open("wb") as file:
        file.write(b'{"x": "')
        file.truncate(4 << 30)
    kind, said, taken = met(TOKENIZER, str(LARGEST_FILE), str(tmp_path), env={})
    assert (kind, f"{name}: it cannot be read: it has more than 134,217,728 bytes" in said) == ("DataError", True), said
    assert taken < 2 * LARGEST_FILE


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
