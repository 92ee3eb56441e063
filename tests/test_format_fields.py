"""Where a map leads, what is detected without one, and what strings are read as lists."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from formatting import bare, one, run

from headrace.errors import DataError, SpecError
from headrace.make.fields import Row, columns_of, look
from headrace.make.formatters import FORMATTERS, with_fields
from headrace.make.values import as_text, is_media, json_objects, listed, media_status, parsed

ROW: dict[str, Any] = {
    "a": "A",
    "empty": "",
    "meta": {"id": "m", "deep": {"list": [1, 2]}},
    "json": '{"x": {"y": "z"}}',
    "raw": b'{"x": 1}',
    "turns": [{"t": "one"}, {"t": "two"}],
    "p.q": "dotted",
    "w x": "spaced",
    "o0": "zero",
    "o1": "one",
    "o2": None,
    "s1_a": 1,
    "s1_b": 2,
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a", "A"),
        ("meta.id", "m"),
        ("meta.deep.list[0]", 1),
        ("meta.deep.list[-1]", 2),
        ("meta.deep.list[9]", None),
        ("json.x.y", "z"),
        ("raw.x", 1),
        ("turns[1].t", "two"),
        ("turns.t", ["one", "two"]),
        ("p.q", "dotted"),
        ("w x", "spaced"),
        ("empty|a", "A"),
        ("nothing|empty", None),
        ("a+meta.id", "A\n\nm"),
        ("o0..o2", ["zero", "one"]),
        ("o0..", ["zero", "one"]),
        ("q0..q4", None),
        ("s1_*", [1, 2]),
        ("=Say a|b+c.", "Say a|b+c."),
        ("a.b.c", None),
        ("nothing.at.all", None),
    ],
)
def test_a_path_leads_where_it_says(path: str, value: Any) -> None:
    assert look(ROW, path) == value


@pytest.mark.parametrize("path", ["shots.image", "nowhere|shots.image"])
def test_an_item_without_fields_keeps_its_place_where_that_matters(path: str) -> None:
    row = {"shots": [{"image": 1}, None, "x", {}, {"image": 2}]}
    assert look(row, path) == [1, None, 2]
    assert look(row, path, holes=True) == [1, None, None, None, 2]


def test_a_map_names_the_columns_to_read() -> None:
    fields = {"prompt": "meta.id|a", "options": "o0..o1", "x": "json.x+w x", "f": "s1_a,s1_b", "k": "=a", "n": ""}
    assert columns_of(fields, ROW) == ["a", "meta", "json", "w x", "o0", "o1", "o2", "s1_a", "s1_b"]


def test_the_map_comes_first_and_detection_last() -> None:
    row = {"instruction": "wrong", "q": "right", "output": "answer"}
    assert bare(one("conversation", row)["text"]) == "·wrong··answer·"
    assert bare(one("conversation", row, {"prompt": "q"})["text"]) == "·right··answer·"


def test_an_empty_path_says_that_there_is_none() -> None:
    row = {"prompt": "q", "response": "a", "context": "c"}
    assert bare(one("conversation", row)["text"]) == "·q\n\nc··a·"
    assert bare(one("conversation", row, {"context": ""})["text"]) == "·q··a·"


def test_a_column_that_the_map_gives_away_is_not_detected_again() -> None:
    row = {"prompt": "the question", "question": "the answer", "answer": "other"}
    assert bare(one("conversation", row, {"response": "question"})["text"]) == "·the question··the answer·"


def test_messages_beside_mapped_columns_do_not_count() -> None:
    row = {"messages": [{"role": "user", "content": "only this"}], "problem": "p", "answer_code": "s"}
    fields = {"prompt": "problem", "response": "answer_code"}
    assert bare(one("conversation", row, fields)["text"]) == "·p··s·"


def test_messages_that_end_with_the_question_take_the_answer_beside_them() -> None:
    row = {"messages": [{"role": "user", "content": "q"}], "solution": "s", "ground_truth": "[1]"}
    assert bare(one("conversation", row)["text"]) == "·q··s·"
    assert run("conversation", {"messages": [{"role": "user", "content": "q"}], "ground_truth": "x"}) == []


def test_names_are_found_in_any_case() -> None:
    assert bare(one("conversation", {"Question": "q", "RESPONSE": "a"})["text"]) == "·q··a·"


def test_a_map_that_fits_nothing_says_what_is_there() -> None:
    with pytest.raises(
        DataError, match="none of the mapped fields .prompt: quetion. is in the row; it has question, answer"
    ):
        run("conversation", {"question": "q", "answer": "a"}, {"prompt": "quetion"})


@pytest.mark.parametrize("fields", [7, {"prompt": 7}, {7: "x"}])
def test_a_map_is_made_of_strings(fields: Any) -> None:
    with pytest.raises(SpecError, match="map"):
        with_fields(FORMATTERS["format_text"], fields)


def test_a_formatter_of_ones_own_sees_our_names() -> None:
    def mine(row: Any, tokens: Any) -> dict[str, Any]:
        return {"text": row["prompt"] + row.get("other", "!") + row["Q"], "keys": sorted(row)}

    assert with_fields(mine, {"prompt": "Q"})({"Q": "q"}, {}) == {"text": "q!q", "keys": ["Q", "prompt"]}


def test_rows_that_a_filter_marks_are_passed_over() -> None:
    for bad, good in ((True, False), (1, 0), (0.5, 0.49), ("NSFW", "Normal"), ("true", None)):
        fields = {"text": "t", "filter": "flag,meta.flag"}
        assert run("text", {"t": "x", "flag": bad}, fields) == []
        assert run("text", {"t": "x", "flag": None, "meta": {"flag": bad}}, fields) == []
        assert len(run("text", {"t": "x", "flag": good, "meta": {"flag": good}}, fields)) == 1


# --- strings that are lists


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('["a", "b"]', ["a", "b"]),
        (' {"a": [1, null]} ', {"a": [1, None]}),
        ("['a', \"it's\", -1.5e3, None, True]", ["a", "it's", -1500.0, None, True]),
        ("[['0:00:01', '0:00:02'], ('x',)]", [["0:00:01", "0:00:02"], ("x",)]),
        ("{'a': {'b': []}}", {"a": {"b": []}}),
    ],
)
def test_lists_written_into_strings_are_read(text: str, value: Any) -> None:
    assert listed(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "[link] Home",
        "[1, 2",
        "[__import__('os').system('true')]",
        "[open('/etc/passwd').read()]",
        "[1 + 1]",
        "['a' * 9]",
        "[x for x in 'ab']",
        "['a' 'b']",
        "[f'{1}']",
        "[1][0]",
        "(1)(2)",
        "[" * 65 + "]" * 65,
        "[" + "-" * 100_000 + "1]",
        "[" * 100_000,
        '["' + "\\" * 1001 + '"',
        "{'a': 1",
        "{[1]: 2}",
        '{"a": ' * 5000 + "1" + "}" * 5000,
        "[" + "9" * 5000 + "]",
    ],
)
def test_what_only_looks_like_a_list_stays_a_text(text: str) -> None:
    assert listed(text) == text or listed(text) == parsed(text)
    assert isinstance(listed(text), str) or json.loads(text) == listed(text)


def test_strings_beyond_the_limit_are_texts() -> None:
    long = "['" + "x" * 2**20 + "']"
    assert listed(long) == long


@pytest.mark.parametrize("text", ["<think>" * 100_000, "<tool_call>{" * 100_000, "['" * 200_000, "<execute>" * 50_000])
def test_marks_that_are_never_closed_cost_no_time(text: str) -> None:
    start = time.perf_counter()
    for name in ("conversation", "tool_use", "code_execution", "agentic"):
        assert text.strip() in one(name, {"prompt": "q", "response": text})["text"]
    assert time.perf_counter() - start < 2


def test_several_objects_in_one_string_are_all_read() -> None:
    objects = [{"name": "f"}, {"name": "g", "text": "{ not\n\na brace"}]
    assert json_objects("\n\n".join(json.dumps(o, indent=2) for o in objects)) == objects
    assert json_objects(json.dumps(objects)) == objects
    assert json_objects('{"a": 1} and {"b": 2}') == []
    assert json_objects("{" * 100_000) == []


# --- values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("x", "x"),
        (b"\xff", ""),
        (True, "true"),
        (7, "7"),
        (0.5, "0.5"),
        (["a", "b"], "a\nb"),
        ([1, "é"], '[1, "é"]'),
        ({"a": b"xy"}, '{"a": "<2 bytes>"}'),
    ],
)
def test_values_as_texts(value: Any, text: str) -> None:
    assert as_text(value) == text


def test_a_value_that_cannot_be_written_is_an_error_of_ours() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (10**5000, deep):
        with pytest.raises(DataError, match="cannot be written"):
            as_text(value)


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"x", "data"),
        ({"bytes": b"x", "path": "a.png"}, "data"),
        ({"array": [0.1], "sampling_rate": 8000}, "data"),
        ({"bytes": None, "path": "a.png"}, "path"),
        ({"bytes": None, "path": "https://h/a.png"}, "url"),
        ("videos/a.mp4", "path"),
        ("a.mp4", "path"),
        ("https://h/x", "url"),
        ("data:image/png;base64,xx", "url"),
        ("v_abc", "id"),
        (4010069381, "id"),
        ([b"x"], "data"),
    ],
)
def test_references_say_what_they_are(value: Any, status: str) -> None:
    assert media_status(value) == status
    assert is_media(value)


@pytest.mark.parametrize(
    "value", [None, "", " ", b"", {}, {"bytes": None, "path": None}, {"bytes": b""}, [], [None], False]
)
def test_missing_media_are_missing(value: Any) -> None:
    assert not is_media(value)


def test_a_row_tells_its_columns_and_its_fields() -> None:
    row = Row({"a": 1}, {"b": "a"})
    assert (list(row), len(row), row["b"], row.get("c")) == (["a", "b"], 2, 1, None)


def test_what_was_found_out_about_columns_is_of_these_columns_only() -> None:
    """It is kept from row to row: neither other columns, nor another map, nor what the values are may go by it."""
    assert Row({"question": "q", "Prompt": "p"}).find("prompt") == "p"
    assert Row({"question": "q", "Prompt": ""}).find("prompt") == "q"
    assert Row({"Prompt": "p", "question": "q"}, {"context": "Prompt"}).find("prompt") == "q"
    assert Row({"question": "q", "Prompt": "p"}, {"context": "question"}).find("prompt") == "p"
    assert Row({"question": "q"}).find("prompt") == "q"
    assert Row({"a0": "x", "a1": "y"}).find("options") == ["x", "y"]
    assert Row({"a0": "x", "a1": ""}).find("options") == ["x"]
    assert Row({"a1": "y"}).find("options") is None
    assert Row({"meta": {"video_id": "v"}}).find("video_id") == "v"
    assert Row({"meta": {}}).find("video_id") is None
    assert Row({"x": 1}).find("x", "y", "X") == 1
    assert Row({"x": 1}).find("x", "y") is None
    many = {f"c{i}": i for i in range(1000)}
    assert Row({**many, "question": "q"}).find("prompt") == "q"
    assert Row(many).find("prompt") is None
