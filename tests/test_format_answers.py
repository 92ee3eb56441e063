"""Questions with options, and answers as number, letter, text or list."""

from __future__ import annotations

from typing import Any

import pytest
from formatting import T, bare, one, run

from headrace.make.formatters.anti_hallucination import ABSTAIN, UNSURE

OPTIONS = ["Red", "Green", "Blue"]
LETTERED = ["A. Red", "B. Green", "C. Blue"]
ASKED = "Which?\nA. Red\nB. Green\nC. Blue"


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS,
        LETTERED,
        ["(A) Red", "(B) Green", "(C) Blue"],
        str(OPTIONS),
        tuple(OPTIONS),
        {"C": "Blue", "A": "Red", "B": "Green", "D": None},
        '{"a": "Red", "b": "Green", "c": "Blue"}',
    ],
)
@pytest.mark.parametrize("answer", [2, 2.0, "2", "C", "c", "(C)", "C.", "Blue", "C. Blue", ["Blue", "blue"]])
@pytest.mark.parametrize("name", ["vision", "video"])
def test_an_answer_in_any_form_is_the_same_answer(name: str, options: Any, answer: Any) -> None:
    row = {"image": b"i", "video": "v.mp4", "question": "Which?", "options": options, "answer": answer}
    assert bare(one(name, row)["text"]) == f"···{ASKED}··C. Blue·"


@pytest.mark.parametrize(
    "row",
    [
        {"choices": OPTIONS, "answer": 2},
        {"candidates": OPTIONS, "answer": "Blue"},
        {"a0": "Red", "a1": "Green", "a2": "Blue", "a3": None, "a4": "", "answer": 2},
        {
            "option0": "Red",
            "option1": "Green",
            "option2": "Blue",
            "option3": "N/A",
            "option4": "N/A",
            "correct_choice": 2,
        },
        {"choices": OPTIONS, "correct_choice_idx": 2},
        {"choices": OPTIONS, "answer_key": "Blue", "answer_key_position": 2},
        {"options": LETTERED, "answer": "C"},
        {"choices": {"text": OPTIONS, "label": ["A", "B", "C"]}, "answer": "C"},
        {"choices": {"text": OPTIONS, "label": ["1", "2", "3"]}, "answer": "3"},
        {"options": {"opa": "Red", "opb": "Green", "opc": "Blue"}, "answer": "opc"},
        {"options": {"A": "Red", "C": "Green", "E": "Blue"}, "answer": "E"},
        {"choices": OPTIONS, "answer_index": 2.0},
    ],
)
def test_options_are_found_as_list_or_columns(row: dict[str, Any]) -> None:
    assert bare(one("vision", {"image": b"i", "question": "Which?", **row})["text"]) == f"···{ASKED}··C. Blue·"


@pytest.mark.parametrize("answer", [3, -1, "-1", None, "", [], 3.0, -1.0, 1.5])
def test_without_a_right_answer_there_is_no_sample(answer: Any) -> None:
    fields = {"question": "q", "options": "o", "answer_index": "a", "image": "i"}
    assert run("vision", {"i": b"i", "q": "Which?", "o": OPTIONS, "a": answer}, fields) == []


def test_a_number_with_a_point_is_an_option_if_it_is_one_and_else_the_number_of_one() -> None:
    row: dict[str, Any] = {"image": b"i", "question": "How many?"}
    row |= {"options": [1.0, 0.0], "answer": 1.0}
    assert bare(one("vision", row)["text"]).endswith("··A. 1.0·")
    row |= {"options": ["x", "y"], "answer": 2.0}
    assert run("vision", row) == []
    row |= {"options": ["x", "y"], "answer": 1.5}
    assert bare(one("vision", row)["text"]).endswith("··1.5·")


def test_an_option_that_is_a_number_is_told_from_a_number_of_an_option() -> None:
    row = {"image": b"i", "question": "How many?", "options": ["3", "2", "1"], "answer": "2"}
    assert bare(one("vision", row)["text"]).endswith("··B. 2·")
    assert bare(one("vision", row, {"answer_index": "answer"})["text"]).endswith("··C. 1·")
    assert bare(one("vision", {**row, "answer": 0})["text"]).endswith("··A. 3·")


def test_the_answer_that_was_agreed_on_comes_before_those_of_each() -> None:
    answers = [{"answer": "no", "answer_confidence": "maybe", "answer_id": 1}, {"answer": "yes", "answer_id": 2}]
    row = {"image": b"i", "question": "Is it?", "answers": answers, "multiple_choice_answer": "yes"}
    assert bare(one("vision", row)["text"]).endswith("··yes·")


def test_options_that_the_question_lists_are_not_listed_twice() -> None:
    row = {"video": "v", "question": "Which? (A) Red (B) Blue", "candidates": ["Red", "Blue"], "answer": "Blue"}
    assert bare(one("video", row)["text"]) == "···Which? (A) Red (B) Blue··B. Blue·"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("a", "a"),
        (["a", "b"], "a"),
        ("['a', 'b']", "a"),
        ([{"answer": "a", "answer_confidence": "yes"}], "a"),
        ({"text": ["a"], "answer_start": [0]}, "a"),
        ([0.1, 0.2], "[0.1, 0.2]"),
        (7, "7"),
        ({"total": 9}, '{"total": 9}'),
    ],
)
def test_without_options_the_first_accepted_answer_is_taken(answer: Any, text: str) -> None:
    assert bare(one("vision", {"image": b"i", "question": "q", "answer": answer})["text"]) == f"···q··{text}·"


def test_hints_and_reasons_are_kept() -> None:
    row = {"image": None, "question": "Which?", "choices": OPTIONS, "answer": 2}
    row |= {"hint": "Look.", "lecture": "On colours.", "solution": "It is blue."}
    sample = one("vision", row, {"optional": "=image"})
    thought = "<|think|>On colours.\n\nIt is blue.<|/think|>"
    assert sample["text"] == f"<|user|>Look.\n\n{ASKED}<|/user|><|assistant|>{thought}C. Blue<|/assistant|>"
    assert "image" not in sample
    assert T["image_start"] not in sample["text"]


# --- what has no answer


@pytest.mark.parametrize("answers", [[], {"text": [], "answer_start": []}, "[]"])
def test_an_unanswerable_question_is_answered_by_saying_so(answers: Any) -> None:
    row = {"context": "c", "question": "q", "answers": answers}
    assert bare(one("anti_hallucination", row)["text"]) == f"·Context:\nc\n\nq··{ABSTAIN}·"
    del row["context"]
    assert bare(one("anti_hallucination", row)["text"]) == f"·q··{UNSURE}·"


def test_a_flag_says_that_it_is_unanswerable() -> None:
    row = {"context": "c", "question": "q", "answers": None, "is_impossible": True}
    assert bare(one("anti_hallucination", row)["text"]).endswith(f"··{ABSTAIN}·")


def test_an_answer_that_is_missing_is_no_reason_to_abstain() -> None:
    assert run("anti_hallucination", {"context": "c", "question": "q", "answers": None}) == []
    assert run("anti_hallucination", {"context": "c", "question": "q", "answer": ""}) == []


def test_a_context_of_titles_and_sentences_is_told_in_paragraphs() -> None:
    context = {"title": ["T", "U"], "sentences": [["a. ", "b."], ["c."]]}
    sample = one("anti_hallucination", {"context": context, "question": "q", "answer": "a"})
    assert bare(sample["text"]) == "·Context:\nT\na. b.\n\nU\nc.\n\nq··a·"


# --- several questions in one row


def test_each_question_of_a_row_is_a_sample() -> None:
    pairs = [{"user": "q", "assistant": "a", "source": "s"}, {"user": "r", "assistant": "b", "source": "s"}]
    for name in ("vision", "document"):
        samples = run(name, {"images": [b"i", b"j"], "texts": pairs})
        assert [bare(sample["text"]) for sample in samples] == ["·····q··a·", "·····r··b·"]
        assert [sample["images"] for sample in samples] == [[b"i", b"j"]] * 2
    samples = run("vision", {"image": b"i", "questions": ["q", "r"], "answers": ["a", "b"]})
    assert [bare(sample["text"]) for sample in samples] == ["···q··a·", "···r··b·"]


def test_a_pair_without_an_answer_is_left_out() -> None:
    assert (
        len(
            run(
                "vision", {"images": [b"i"], "texts": [{"user": "q", "assistant": ""}, {"user": "r", "assistant": "b"}]}
            )
        )
        == 1
    )


def test_each_caption_is_a_sample() -> None:
    assert len(run("vision", {"image": b"i", "caption": ["a", "b", " "]})) == 2
    assert bare(one("vision", {"image": b"i", "text": "a cat"})["text"]) == "···Describe this image.··a cat·"
    assert (
        bare(one("video", {"mp4": b"v", "caption": {"content": "a cat"}})["text"]) == "···Describe this video.··a cat·"
    )
    assert run("vision", {"image": None, "caption": "a cat"}, {"optional": "=image"}) == []


def test_two_ways_to_ask_share_their_answer() -> None:
    fields = {"questions": "q1..q2", "answers": "a", "question": "q", "answer": "a", "video_id": "v"}
    samples = run("video", {"q": None, "q1": "x?", "q2": "y?", "a": "z", "v": "id"}, fields)
    assert [bare(sample["text"]) for sample in samples] == ["···x?··z·", "···y?··z·"]
    assert bare(one("video", {"q": "w?", "q1": None, "q2": None, "a": "z", "v": "id"}, fields)["text"]) == "···w?··z·"
