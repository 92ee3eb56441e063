"""Conversations in all their forms: roles, loss flags, thoughts, calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from formatting import T, bare, learned, one, run

from headrace.make.formatters import chat_messages
from headrace.make.turns import role_of, turns_of

CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
CALLED = f"{T['tool_call']}{CALL}{T['tool_call_end']}"
ANSWER = f"<|assistant|>{CALLED}<|/assistant|>"


def said(*turns: tuple[str, str], role: str = "role", content: str = "content", **more: Any) -> dict[str, Any]:
    return {"messages": [{role: who, content: what} for who, what in turns], **more}


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("user", "user human prompter Human"),
        ("assistant", "assistant gpt chatgpt bing bard bot model Assistant"),
        ("system", "system instruction developer"),
        ("call", "function_call tool_call function-call"),
        ("tool", "tool function observation function_response function-response tool_response"),
    ],
)
def test_each_role_is_known_by_all_its_names(role: str, names: str) -> None:
    assert {role_of(name) for name in names.split()} == {role}
    assert role_of({"role": names.split()[0]}) == role


@pytest.mark.parametrize(
    ("role", "content"), [("role", "content"), ("from", "value"), ("from", "content"), ("speaker", "text")]
)
@pytest.mark.parametrize("column", ["messages", "conversations", "conversation"])
def test_keys_and_columns_of_messages_mix(role: str, content: str, column: str) -> None:
    messages = said(("system", "s"), ("human", "u"), ("assistant", "a"), role=role, content=content)["messages"]
    assert bare(one("conversation", {column: messages})["text"]) == "·s··u··a·"


@pytest.mark.parametrize(
    "value",
    [
        [["u", "a"], ["v", "b"]],
        [{"human": "u", "assistant": "a"}, {"human": "v", "assistant": "b"}],
        [{"user": "u", "assistant": "a", "source": "x"}, {"user": "v", "assistant": "b", "source": "x"}],
        [{"user": "u"}, {"assistant": "a"}, {"user": "v"}, {"assistant": "b"}],
        ["u", "a", "v", "b", "dangling"],
        {"role": ["user", "assistant", "user", "assistant"], "content": ["u", "a", "v", "b"]},
        {"messages": [{"role": r, "content": c} for r, c in zip(["user", "gpt", "user", "gpt"], "uavb", strict=True)]},
        json.dumps([{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}, ["v", "b"]]),
        str([{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}, ["v", "b"]]),
        "USER: u\nASSISTANT: a <|endoftext|>\n\nUSER: v\nASSISTANT: b",
    ],
)
def test_every_form_of_a_conversation_is_the_same_conversation(value: Any) -> None:
    assert bare(one("conversation", {"messages": value})["text"]) == "·u··a··v··b·"
    assert [turn.role for turn in turns_of(value)] == ["user", "assistant"] * 2


def test_a_role_that_nobody_knows_is_kept_and_not_learned() -> None:
    sample = one("conversation", said(("user", "u"), ("narrator", "n"), ("assistant", "a")))
    assert bare(sample["text"]) == "·u··n··a·"
    assert learned(sample) == "a<|/assistant|>"


def test_system_and_tool_turns_are_kept_and_not_learned() -> None:
    row = said(("system", "s"), ("user", "u"), ("assistant", "a"), ("tool", "t"), ("assistant", "b"))
    for name in ("conversation", "agentic", "tool_use", "code"):
        sample = one(name, row)
        assert bare(sample["text"]) == "·s··u··a··t··b·"
        assert learned(sample) == "a<|/assistant|>|b<|/assistant|>"


@pytest.mark.parametrize("key", ["loss", "weight", "train", "training"])
@pytest.mark.parametrize("value", [False, 0, 0.0, "false"])
def test_a_turn_that_is_flagged_is_kept_and_not_learned(key: str, value: Any) -> None:
    row = said(("user", "u"), ("assistant", "Ok"), ("user", "v"), ("assistant", "b"))
    row["messages"][1][key] = value
    row["messages"][3][key] = None
    sample = one("agentic", row)
    assert bare(sample["text"]) == "·u··Ok··v··b·"
    assert learned(sample) == "b<|/assistant|>"


def test_a_flag_never_makes_a_question_learned() -> None:
    row = said(("user", "u"), ("assistant", "a"))
    row["messages"][0]["loss"] = True
    assert learned(one("agentic", row)) == "a<|/assistant|>"


def test_nothing_is_learned_from_an_empty_answer() -> None:
    sample = one("agentic", said(("user", "u"), ("assistant", ""), ("user", "v"), ("assistant", "b")))
    assert learned(sample) == "b<|/assistant|>"
    assert run("agentic", said(("user", "u"), ("assistant", " "))) == []


# --- system and tools


def test_a_system_text_that_the_first_turn_repeats_is_told_once() -> None:
    for column, first in (("s", "s"), ("s", "s and more"), ("s and more", "s"), ("", "s and more")):
        row = said(("system", first), ("user", "u"), ("assistant", "a"), system=column)
        assert one("conversation", row)["text"].startswith(f"<|system|>{max(column, first, key=len)}<|/system|>")
    row = said(("system", "other"), ("user", "u"), ("assistant", "a"), system="s")
    assert one("conversation", row)["text"].startswith("<|system|>s\n\nother<|/system|>")


@pytest.mark.parametrize(
    "tools",
    [
        [{"name": "f", "x": None}, {"name": "g"}],
        json.dumps([{"name": "f"}, {"name": "g"}]),
        '{"name": "f"}\n\n{"name": "g"}',
        ['{"name": "f"}', '{"name": "g"}'],
    ],
)
def test_tools_in_every_form_are_told_in_one(tools: Any) -> None:
    wanted = json.dumps([{"name": "f"}, {"name": "g"}], indent=2)
    text = one("tool_use", said(("user", "u"), ("assistant", "a"), tools=tools))["text"]
    assert text.startswith(f"<|system|>You have access to the following tools:\n{wanted}<|/system|>")


def test_tools_that_are_code_stay_code() -> None:
    text = one("tool_use", said(("user", "u"), ("assistant", "a"), tools="def f(x: int): ..."))["text"]
    assert "tools:\ndef f(x: int): ...<|/system|>" in text


def test_tools_that_the_system_turn_lists_are_not_told_twice() -> None:
    row = said(("system", '<tools>{"name": "f"}</tools>'), ("user", "u"), ("assistant", "a"), tools='[{"name": "f"}]')
    assert one("tool_use", row)["text"].count('"f"') == 1


def test_no_tools_are_no_system_turn() -> None:
    nothing: list[Any] = ["", "[]", [], None]
    for tools in nothing:
        assert one("tool_use", said(("user", "u"), ("assistant", "a"), tools=tools))["text"].startswith("<|user|>")


# --- calls


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": json.loads(CALL)}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}],
        },
        {"role": "assistant", "tool_calls": [{"name": "weather", "arguments": {"city": "Oslo", "other": None}}]},
        {"role": "assistant", "content": "", "tool_calls": f"[{CALL}]"},
        {"role": "assistant", "function_call": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
        {"from": "function_call", "value": CALL},
        {"from": "gpt", "value": f"<tool_call>\n{CALL}\n</tool_call>"},
        {"from": "gpt", "value": "<tool_call>{'name': 'weather', 'arguments': {'city': 'Oslo'}}</tool_call>"},
        {"from": "gpt", "value": '<functioncall> {"name": "weather", "arguments": \'{"city": "Oslo"}\'} <|endoftext|>'},
        {"from": "gpt", "value": f"<functioncall> {CALL} </functioncall>"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Oslo"}}],
        },
    ],
)
def test_a_call_in_any_form_is_the_same_call(message: dict[str, Any]) -> None:
    row = {"messages": [{"role": "user", "content": "u"}, message, {"role": "tool", "content": "4"}]}
    for name in ("tool_use", "agentic", "conversation"):
        assert ANSWER in one(name, row)["text"]
        assert learned(one(name, row)) == f"{CALLED}<|/assistant|>"


@pytest.mark.parametrize("answers", [[json.loads(CALL)] * 2, f"[{CALL}, {CALL}]", str([json.loads(CALL)] * 2)])
def test_all_calls_of_an_answer_are_given(answers: Any) -> None:
    text = one("tool_use", {"query": "q", "tools": "[]", "answers": answers})["text"]
    assert text.endswith(f"<|assistant|>{CALLED * 2}<|/assistant|>")


def test_a_refusal_in_the_place_of_calls_is_a_text() -> None:
    text = one("tool_use", {"query": "q", "tools": "[]", "answers": "I have no tool for that."})["text"]
    assert text.endswith("<|assistant|>I have no tool for that.<|/assistant|>")
    assert run("tool_use", {"query": "q", "answers": "[]"}) == []


TOOLED: dict[str, Any] = {"query": "q", "tools": [{"name": "f"}]}


@pytest.mark.parametrize(
    "text",
    [
        "I cannot help with that.",
        "I need to know more (which city?)",
        "You can call f(x) for that.",
        "Which of them: [a], [b]?",
        '["I cannot."]',
        "Use this:\n```python\nf(x)\n```",
    ],
)
def test_a_response_that_is_no_call_is_a_text(text: str) -> None:
    for column in ("response", "output", "answer"):
        for row in ({**TOOLED, column: text}, {"query": "q", column: text}):
            assert one("tool_use", row)["text"].endswith(f"<|assistant|>{text}<|/assistant|>")


@pytest.mark.parametrize(
    "text",
    [
        "f(x=1)",
        'tools.get-it(city="Oslo (Norway)")',
        "f(x=1)\ng(y=2)",
        '[Get It(a="b"), f(x=1)]',
        '{"tool": "f", "with": {"x": 1}}',
        "[{'tool': 'f'}]",
        '["f(x=1)", "g()"]',
        "```python\nx = f(1)\ng(x)\n```",
    ],
)
def test_a_response_that_is_written_as_a_call_is_one(text: str) -> None:
    assert learned(one("tool_use", {**TOOLED, "response": text})) == (
        f"{T['tool_call']}{text}{T['tool_call_end']}<|/assistant|>"
    )


def test_a_response_without_calls_is_none() -> None:
    assert run("tool_use", {**TOOLED, "response": "[]"}) == []


def test_calls_as_python_writes_them_stay_as_they_are() -> None:
    row = {"conversations": [{"from": "user", "value": "u"}, {"from": "assistant", "value": '[Get It(a="b"), f(x=1)]'}]}
    assert f'{T["tool_call"]}[Get It(a="b"), f(x=1)]{T["tool_call_end"]}' in one("tool_use", row)["text"]
    row["conversations"][1]["value"] = "See [the list (of all)]"
    assert T["tool_call"] not in one("tool_use", row)["text"]


def test_words_around_a_call_are_kept() -> None:
    row = said(("user", "u"), ("assistant", f"Let me look.\n<tool_call>{CALL}</tool_call>\nDone."))
    assert f"<|assistant|>Let me look.{CALLED}Done.<|/assistant|>" in one("tool_use", row)["text"]


def test_results_among_the_parts_of_a_turn_are_the_tools() -> None:
    parts = [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "4"}]}]
    row = {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "a"}]}
    assert one("agentic", row)["text"] == f"{T['tool_result']}4{T['tool_result_end']}<|assistant|>a<|/assistant|>"


# --- thoughts

THOUGHT = "<|assistant|><|think|>t<|/think|>a<|/assistant|>"


@pytest.mark.parametrize(
    "message",
    [
        {"content": "<think>\nt\n</think>\n\na"},
        {"content": "<thinking>t</thinking>a"},
        {"content": "<reasoning>t</reasoning> a"},
        {"content": "t\n</think>\n\na"},
        {"content": "<|begin_of_thought|>\nt\n<|end_of_thought|>\n<|begin_of_solution|>\na\n<|end_of_solution|>"},
        {"content": "a", "reasoning_content": "t"},
        {"content": "a", "thinking": "<think>t</think>"},
        {"content": "<think>t</think>a", "reasoning_content": "t"},
        {"content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "a"}]},
    ],
)
def test_a_thought_in_any_form_is_the_same_thought(message: dict[str, Any]) -> None:
    row = {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", **message}]}
    for name in ("conversation", "chain_of_thought", "code", "tool_use"):
        assert one(name, row)["text"].endswith(THOUGHT)


@pytest.mark.parametrize(
    "row",
    [
        {"Question": "u", "Complex_CoT": "t", "Response": "a"},
        {"problem": "u", "deepseek_reasoning": "t", "solution": "a"},
        {"question": "u", "steps": ["t"], "answer": "a"},
        {"question": "u", "answer": "t <<1+1=2>>\n#### a"},
        {
            "problem": "u",
            "generations": ["<think>x</think>y", "<think>t</think>a"],
            "correctness_math_verify": [False, True],
        },
    ],
)
def test_thoughts_in_columns_of_their_own_come_before_the_answer(row: dict[str, Any]) -> None:
    assert one("chain_of_thought", row)["text"] == f"<|user|>u<|/user|>{THOUGHT}"


def test_without_a_right_attempt_the_messages_are_taken() -> None:
    row = {
        "problem": "p",
        "generations": ["x"],
        "correctness_math_verify": [False],
        **said(("user", "u"), ("assistant", "<think>t</think>a")),
    }
    assert one("chain_of_thought", row)["text"] == f"<|user|>u<|/user|>{THOUGHT}"


def test_marks_of_thoughts_in_questions_are_words() -> None:
    assert "<think>x</think>" in one("conversation", said(("user", "<think>x</think>"), ("assistant", "a")))["text"]


def test_a_conversation_is_also_a_list_of_messages_for_templates() -> None:
    row = said(("human", "u"), ("gpt", f"<think>t</think>I look.<tool_call>{CALL}</tool_call>"), ("observation", "4"))
    assert chat_messages({**row, "system": "s"}) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "t",
            "tool_calls": [{"type": "function", "function": json.loads(CALL)}],
        },
        {"role": "tool", "content": "4"},
    ]
    assert chat_messages({"q": "u", "a": "b"}, {"prompt": "q", "response": "a"})[1] == {
        "role": "assistant",
        "content": "b",
    }
    assert chat_messages({"text": "words"}) == []


# --- columns


def test_instructions_are_joined_with_their_input() -> None:
    for extra, asked in (("i", "q\ni"), ("", "q"), ("Not applicable", "q"), (None, "q")):
        assert bare(one("conversation", {"instruction": "q", "input": extra, "output": "a"})["text"]) == f"·{asked}··a·"
    assert bare(one("conversation", {"input": "q", "output": "a"})["text"]) == "·q··a·"


def test_a_history_comes_before_the_question() -> None:
    row = {"instruction": "q", "input": "", "output": "a", "history": [["h", "i"]], "system": "s"}
    assert bare(one("conversation", row)["text"]) == "·s··h··i··q··a·"


def test_system_user_and_assistant_may_be_columns() -> None:
    for name in ("agentic", "conversation"):
        assert bare(one(name, {"system": "s", "user": "u", "assistant": "a"})["text"]) == "·s··u··a·"


def test_prompts_and_completions_may_be_messages() -> None:
    row = {"prompt": said(("user", "u"))["messages"], "completion": said(("assistant", "a"))["messages"]}
    assert bare(one("conversation", row)["text"]) == "·u··a·"
    assert (
        bare(
            one("conversation", {"chosen": said(("user", "u"), ("assistant", "a"))["messages"], "prompt": "u"})["text"]
        )
        == "·u··a·"
    )


@pytest.mark.parametrize("name", ["conversation", "agentic", "code", "tool_use", "chain_of_thought"])
def test_an_answer_may_have_its_question_in_it(name: str) -> None:
    turns = [("user", "u"), ("assistant", "a"), ("user", "v"), ("assistant", "b\n\nc")]
    other = [*turns[:3], ("assistant", "worse")]
    messages = {"chosen": said(*turns)["messages"], "rejected": said(*other)["messages"]}
    text = {
        "chosen": "\n\nHuman: u\n\nAssistant: a\n\nHuman: v\n\nAssistant: b\n\nc",
        "rejected": "\n\nHuman: u\n\nAssistant: a\n\nHuman: v\n\nAssistant: worse",
    }
    for row in (messages, {**messages, "prompt": "u"}, text, {**text, "prompt": "\n\nHuman: u\n\nAssistant:"}):
        sample = one(name, row)
        assert bare(sample["text"]) == "·u··a··v··b\n\nc·"
        assert learned(sample) == "a<|/assistant|>|b\n\nc<|/assistant|>"
    assert bare(one(name, text, {"messages": "chosen"})["text"]) == "·u··a··v··b\n\nc·"


def test_an_answer_without_a_question_needs_one() -> None:
    assert run("conversation", {"chosen": said(("assistant", "a"))["messages"]}) == []
    assert run("conversation", {"chosen": "Human: u"}) == []
    row = {"prompt": "What does this say?", "response": "Human: u\n\nAssistant: a"}
    assert bare(one("conversation", row)["text"]) == "·What does this say?··Human: u\n\nAssistant: a·"


def test_steps_of_an_agent_are_turns() -> None:
    steps = [{"thought": "t", "action": CALL, "observation": "o"}, {"thought": "", "action": "finish", "loss": False}]
    sample = one("agentic", {"task": "q", "trajectory": steps})
    assert bare(sample["text"]) == f"·q···t··{CALL}···o··finish·"
    assert learned(sample) == f"<|think|>t<|/think|>{CALLED}<|/assistant|>"
