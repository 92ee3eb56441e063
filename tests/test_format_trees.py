"""Trees of messages: which paths are samples."""

from __future__ import annotations

from typing import Any

import pytest
from formatting import bare, learned, run
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import DataError


def message(name: str, parent: str | None, rank: int | None = None, **more: Any) -> dict[str, Any]:
    """A message named by its text: capitals ask, small letters answer."""
    return {
        "message_id": f"id-{name}",
        "parent_id": None if parent is None else f"id-{parent}",
        "message_tree_id": "tree",
        "role": "prompter" if name[0].isupper() else "assistant",
        "text": name,
        "rank": rank,
        "deleted": False,
        "tree_state": "ready_for_export",
        **more,
    }


def told(*rows: dict[str, Any], fields: dict[str, str] | None = None) -> list[tuple[str, str]]:
    samples = run("conversation", {"rows": list(rows)}, fields)
    return [(bare(s["text"]).strip("·").replace("··", ">"), bare(learned(s)).replace("·", "")) for s in samples]


def test_questions_are_followed_to_their_best_answer_and_answers_to_all_questions() -> None:
    rows = [
        message("A", None),
        message("b", "A", 1),
        message("a", "A", 0),
        message("B", "a"),
        message("c", "B", 0),
        message("C", "a"),
        message("d", "C", None),
    ]
    assert told(*rows) == [("A>a>B>c", "a|c"), ("A>a>C>d", "d")]


def test_each_answer_is_learned_once() -> None:
    rows = [message("A", None), message("a", "A"), *(message(f"Q{i}", "a") for i in range(3))]
    rows += [message(f"r{i}", f"Q{i}") for i in range(3)]
    samples = told(*rows)
    assert [what for _, what in samples] == ["a|r0", "r1", "r2"]


def test_all_answers_are_taken_where_the_map_says_so() -> None:
    rows = [message("A", None), message("b", "A", 1), message("a", "A", 0)]
    assert told(*rows, fields={"answers": "=all", "role": "role"}) == [("A>a", "a"), ("A>b", "b")]


def test_without_a_rank_quality_decides() -> None:
    def quality(value: float) -> dict[str, Any]:
        return {"labels": {"name": ["spam", "quality"], "value": [0.0, value], "count": [1, 1]}}

    assert told(message("A", None), message("a", "A", **quality(0.2)), message("b", "A", **quality(0.9))) == [
        ("A>b", "b")
    ]


def test_a_question_without_an_answer_is_cut_off() -> None:
    assert told(message("A", None), message("a", "A"), message("B", "a")) == [("A>a", "a")]
    assert told(message("A", None)) == []


def test_deleted_messages_and_unfinished_trees_are_passed_over() -> None:
    assert told(message("A", None), message("a", "A", 0, deleted=True), message("b", "A", 1)) == [("A>b", "b")]
    assert told(message("A", None, tree_state="growing"), message("a", "A", tree_state="growing")) == []


def test_an_answer_whose_question_is_missing_begins_nothing() -> None:
    assert told(message("a", "Z"), message("B", "a"), message("b", "B")) == []


def test_the_order_of_rows_makes_no_difference() -> None:
    rows = [message("A", None), message("a", "A", 0), message("b", "A", 1), message("B", "a"), message("c", "B", 0)]
    assert told(*rows) == told(*reversed(rows)) == [("A>a>B>c", "a|c")]


def test_one_message_by_itself_is_refused_with_a_word_about_groups() -> None:
    with pytest.raises(DataError, match="group_by: message_tree_id"):
        run("conversation", message("A", None))


names = st.sampled_from(["A", "B", "C", "a", "b", "c", "d"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(names, st.none() | names, st.none() | st.integers(-3, 3)), max_size=10))
def test_any_graph_ends_and_learns_each_answer_at_most_once(graph: list[tuple[str, str | None, int | None]]) -> None:
    samples = told(*(message(*node) for node in graph)) if graph else []
    heard = [part for _, what in samples for part in what.split("|")]
    unique = len({name for name, _, _ in graph}) == len(graph)
    assert not unique or len(heard) == len(set(heard))
