"""Code, code that was run, changes to files, documents."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from formatting import T, bare, learned, one, run
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.make.clean import html
from headrace.make.diffs import unified_diff

SYSTEM = "·You are an expert programmer. Write clean, efficient code.·"
RESULT = (T["exec_result"], T["exec_result_end"])


def test_code_that_has_fences_gets_no_others() -> None:
    answer = "So:\n```go\nx\n```\nDone."
    assert bare(one("code", {"instruction": "q", "output": answer})["text"]) == f"{SYSTEM}·q··{answer}·"


def test_a_mapped_response_is_words_and_mapped_code_is_code() -> None:
    row = {"q": "q", "a": "x"}
    assert bare(one("code", row, {"prompt": "q", "response": "a"})["text"]).endswith("··x·")
    assert bare(one("code", row, {"prompt": "q", "code": "a", "language": "=sql"})["text"]).endswith(
        "··```sql\nx\n```·"
    )
    assert bare(one("code", row, {"prompt": "q", "code": "a", "language": ""})["text"]).endswith("··```\nx\n```·")


def test_a_context_and_an_explanation_stand_beside_the_code() -> None:
    row = {"sql_prompt": "q", "sql_context": "CREATE TABLE t;", "sql": "SELECT 1;", "sql_explanation": "One."}
    fields = {"prompt": "sql_prompt", "context": "sql_context", "code": "sql", "explanation": "sql_explanation"}
    sample = one("code", row, {**fields, "language": "=sql"})
    assert bare(sample["text"]) == f"{SYSTEM}·q\n\nCREATE TABLE t;··```sql\nSELECT 1;\n```\n\nOne.·"


def test_a_task_is_answered_by_its_beginning_and_its_solution() -> None:
    task = {"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "    return 1\n", "test": "t"}
    text = bare(one("code", task)["text"])
    assert text == f"{SYSTEM}·Complete this code.\n\n```python\ndef f():\n```··```python\ndef f():\n    return 1\n```·"
    pack = {**task, "task_id": "Rust/1", "instruction": "Write f.", "declaration": "fn f"}
    text = bare(one("code", pack)["text"])
    assert text == f"{SYSTEM}·Write f.··```rust\ndef f():\n    return 1\n```·"


def test_whole_files_are_learned_from_first_to_last() -> None:
    sample = one("code", {"content": "import os\n", "path": "a.py", "license": "mit"})
    assert sample["segments"] == [("import os\n", True)]


# --- code that was run


def test_what_code_gives_is_not_learned() -> None:
    row = {"prompt": "q", "response": "So:\n```python\nprint(1)\n```\n```output\n1\n```\nOne."}
    sample = one("code_execution", row)
    assert learned(sample) == "So:\n```python\nprint(1)\n```\n|\nOne.<|/assistant|>"
    assert f"{RESULT[0]}1{RESULT[1]}" in sample["text"]


def test_code_in_marks_is_run_and_observations_are_results() -> None:
    turns = [("user", "q"), ("assistant", "Let me see.\n<execute>\nprint(1)\n</execute>"), ("user", "Observation:\n1")]
    messages = [{"role": who, "content": what} for who, what in [*turns, ("assistant", "One.")]]
    sample = one("code_execution", {"conversations": messages})
    assert learned(sample) == "Let me see.\n<|exec|>print(1)<|/exec|><|/assistant|>|One.<|/assistant|>"
    assert f"{RESULT[0]}1{RESULT[1]}" in sample["text"]


def test_only_exit_codes_and_traces_say_that_something_failed() -> None:
    steps = [
        {"command": "grep error log", "output": "an error in words", "exit_code": 0},
        {"command": "cat x", "output": "", "error": "No such file", "exit_code": 1},
        {"command": "make", "output": "broken", "exit_code": 2},
        {"command": "tool", "output": "", "error": "a warning", "exit_code": 0},
    ]
    text = one("code_execution", {"question": "q", "steps": steps, "answer": "Done."})["text"]
    results = [
        f"<|exec_{kind}|>{said}<|/exec_{kind}|>"
        for kind, said in (("result", "an error in words"), ("error", "No such file"))
    ]
    results += ["<|exec_error|>broken<|/exec_error|>", "<|exec_result|>a warning<|/exec_result|>"]
    assert (
        text
        == "<|user|>q<|/user|><|assistant|>"
        + "".join(f"<|exec|>{step['command']}<|/exec|>{result}" for step, result in zip(steps, results, strict=True))
        + "Done.<|/assistant|>"
    )


def test_a_notebook_is_told_cell_by_cell() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# A\n", "words"]},
        {
            "cell_type": "code",
            "source": "1 + 1",
            "outputs": [{"output_type": "execute_result", "data": {"text/plain": ["2"]}}],
        },
        {
            "cell_type": "code",
            "source": "1 / 0",
            "outputs": [{"output_type": "error", "traceback": ["ZeroDivisionError"]}],
        },
        {"cell_type": "code", "source": "print(3)", "outputs": [{"output_type": "stream", "text": "3\n"}]},
    ]
    sample = one("code_execution", {"prompt": "q", "cells": cells})
    assert bare(sample["text"]) == "·q··# A\nwords\n·1 + 1··2··1 / 0··ZeroDivisionError··print(3)··3\n··"
    assert "ZeroDivisionError" not in learned(sample)


def test_a_program_and_its_tests() -> None:
    row = {"q": "q", "c": "def f(): ...", "r": ["passed", "failed"], "e": ["", "AssertionError"]}
    fields = {"prompt": "q", "code": "c", "results": "r", "errors": "e"}
    text = one("code_execution", row, fields)["text"]
    assert text.endswith(
        "<|exec_result|>passed<|/exec_result|><|exec_error|>AssertionError<|/exec_error|><|/assistant|>"
    )


# --- changes to files


def test_a_wish_a_file_and_its_diff() -> None:
    row = {"old_contents": "a\nb\n", "new_contents": "a\nc\n", "message": "", "subject": "Use c", "new_file": "x.py"}
    sample = one("git_operations", row, {"message": "message|subject"})
    diff = "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
    assert bare(sample["text"]) == f"·Use c\n\nx.py:\n```\na\nb\n```···{diff}··"
    assert learned(sample) == f"<|diff|>{diff}<|/diff|><|/assistant|>"


def test_a_new_file_is_all_added() -> None:
    text = one("git_operations", {"before": "", "after": "a\n", "message": "Add a", "file": "a"})["text"]
    assert "a does not exist yet.<|/user|>" in text
    assert "--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+a\n" in text


def test_an_issue_is_fixed_by_a_diff_and_a_diff_is_told_by_a_message() -> None:
    fixed = one("git_operations", {"repo": "o/n", "problem_statement": "It fails.", "patch": "-a\n+b\n"})
    assert bare(fixed["text"]) == "·Repository: o/n\n\nIt fails.\n\nFix this issue.···-a\n+b\n··"
    told = one("git_operations", {"diff": "-a\n+b\n", "message": "Use b"})
    assert bare(told["text"]) == "·Write a commit message for this change.\n\n```\n-a\n+b\n```···Use b··"


def test_a_row_without_a_change_gives_the_file() -> None:
    text = one("git_operations", {"before": "a", "after": "a", "message": "Nothing"})["text"]
    assert text.endswith("<|assistant|>```\na\n```<|/assistant|>")


lines = st.lists(st.sampled_from(["a", "b", "", " c", "é\u2028x", "\x0cd"]), max_size=8).map("\n".join)
texts = st.tuples(lines, st.booleans()).map(lambda pair: pair[0] + "\n" * (pair[1] and bool(pair[0])))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(texts, texts), min_size=8, max_size=8))
def test_diffs_apply_whatever_the_texts_are(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("repo")
    changed = [(str(i), before, after) for i, (before, after) in enumerate(pairs) if before != after]
    for name, before, _ in changed:
        if before:
            (folder / name).write_text(before, newline="")
    patch = "".join(unified_diff(before, after, name) for name, before, after in changed)
    if patch:
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"], cwd=folder, input=patch.encode(), capture_output=True
        )
        assert done.returncode == 0, done.stderr
    for name, _, after in changed:
        assert ((folder / name).read_bytes() if (folder / name).exists() else b"") == after.encode()


def test_texts_too_long_to_compare_have_no_diff() -> None:
    assert unified_diff("a" * 2**21, "b", "x") == ""
    assert unified_diff("same", "same", "x") == ""


# --- documents and pages


def test_a_title_comes_before_a_text_that_does_not_begin_with_it() -> None:
    assert one("text", {"title": "T", "text": "words"})["text"] == "T\n\nwords"
    assert one("text", {"title": "T", "text": "# T\nwords"})["text"] == "# T\nwords"
    assert one("document", {"title": "T", "text": "words"})["text"] == "T\n\nwords"


@pytest.mark.parametrize("column", ["text", "content", "raw_content"])
def test_texts_are_found_under_their_names(column: str) -> None:
    assert one("text", {column: "words", "url": "u"})["segments"] == [("words", True)]


def test_a_question_about_a_document_is_answered() -> None:
    assert bare(one("document", {"question": "q", "context": "c", "answer": "a"})["text"]) == "·q\n\nc··a·"
    json_text = '{"gt_parse": {"total": "9"}, "meta": {}}'
    sample = one("document", {"image": b"i", "gt": json_text}, {"prompt": "=Read.", "response": "gt.gt_parse"})
    assert bare(sample["text"]) == '···Read.··{"total": "9"}·'


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("no tags, 1 < 2", "no tags, 1 < 2"),
        ("<p>one &amp; two</p><p>three</p>", "one & two\n\nthree"),
        ("<ul><li>a</li><li>b</li></ul>", "- a\n- b"),
        ("<pre><code>x = 1\ny</code></pre>after", "```\nx = 1\ny\n```\n\nafter"),
        ("say <code>x</code><br>next", "say `x`\nnext"),
        ("<b>bold</b", "bold"),
        ("<p>x<![", "x"),
    ],
)
def test_html_becomes_plain_text(markup: str, text: str) -> None:
    assert html(markup).startswith(text)


def test_html_is_cleaned_in_turns_where_the_map_says_so() -> None:
    turns: list[dict[str, Any]] = [{"from": "human", "value": "<p>q</p>"}, {"from": "gpt", "value": "<div>a</div>"}]
    row = {"conversations": turns}
    assert bare(one("agentic", row, {"messages": "conversations", "clean": "=html"})["text"]) == "·q··a·"
    assert run("agentic", {"conversations": []}, {"messages": "conversations", "clean": "=html"}) == []
