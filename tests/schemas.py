"""Rows with the columns of a known data set: its schema read, and values made up for it, the same each time."""

from __future__ import annotations

import json
import re
from typing import Any

from headrace.catalog.known import Known

PNG = b"\x89PNG\r\n\x1a\nnot really"
WAV = b"RIFF0000WAVEnot really"
TURNS = [("system", "Be kind."), ("user", "Why is the sky blue?"), ("assistant", "Light scatters.")]
_KEYS = {"from": {"user": "human", "assistant": "gpt", "system": "system"}}


def rows_of(entry: Known) -> list[dict[str, Any]]:
    """A full row; and one with null wherever the schema allows it, unless that changes nothing."""
    full = {column: value for name, kind in entry.columns.items() for column, value in _columns(name, kind).items()}
    full |= SPECIAL.get(entry.name, {})
    nulls = [name for name, kind in entry.columns.items() if kind.endswith("?")]
    sparse = {name: None if name in nulls else value for name, value in full.items()}
    return [full, sparse] if nulls else [full]


def _columns(name: str, kind: str) -> dict[str, Any]:
    """A column, or the first three of numbered ones (the rest are null)."""
    numbered = re.fullmatch(r"(\D+)(\d+)\.\.\D+(\d+)", name)
    if not numbered:
        return {name: made(kind, name)}
    first, last = int(numbered[2]), int(numbered[3])
    columns = [f"{numbered[1]}{i}" for i in range(first, last + 1)]
    return {column: made(kind, column) if i < 3 else None for i, column in enumerate(columns)}


def made(kind: str, name: str) -> Any:
    """A value of a type, told from its name."""
    kind = kind.removesuffix("?")
    if kind.startswith("list<"):
        return _listed(kind[5:-1], name)
    if kind.startswith("struct{"):
        return {key: made(inner, key) for key, inner in struct_of(kind)}
    if kind == "image":
        return {"bytes": PNG, "path": f"{name}.png"}
    if kind == "audio":
        return {"bytes": WAV, "path": f"{name}.wav"}
    if kind == "binary":
        return b"\x00\x00\x00\x18ftypmp42" if name == "mp4" else PNG
    if kind == "bool":
        return False
    if "int" in kind or "float" in kind:
        return 1 if "int" in kind else 0.25
    if re.search("url|link|^video[12]?$", name, re.IGNORECASE):
        return f"https://videos.example/{name}.mp4"
    return f"The {name.replace('_', ' ')} of this row."


def _listed(kind: str, name: str) -> list[Any]:
    keys = [key for key, _ in struct_of(kind)] if kind.startswith("struct{") else []
    role = next((key for key in ("role", "from") if key in keys), None)
    if role is None:
        return [made(kind, f"{word} {name}") for word in ("first", "second")]
    said = "content" if "content" in keys else "value"
    inner = dict(struct_of(kind))
    turns = []
    for who, text in TURNS:
        turn = {key: None if inner[key].endswith("?") else made(inner[key], key) for key in keys}
        parts: list[dict[str, Any]] = [{"type": "text", "text": text, "index": None}]
        if who == "user":
            parts.insert(0, {"type": "image", "text": None, "index": 0})
        turn |= {role: _KEYS.get(role, {}).get(who, who), said: parts if inner[said].startswith("list<") else text}
        turns.append(turn)
    return turns


def struct_of(kind: str) -> list[tuple[str, str]]:
    """The fields of `struct{name: T, ...}`; commas inside of T are its own."""
    fields, depth, start = [], 0, 0
    inside = kind.removesuffix("?")[len("struct{") : -1] + ","
    for i, c in enumerate(inside):
        depth += (c in "<{") - (c in ">}")
        if c == "," and depth == 0:
            name, _, inner = inside[start:i].strip().partition(": ")
            fields.append((name, inner))
            start = i + 1
    return fields


# --- values that mean something

WEATHER = {"name": "weather", "description": "Tells it.", "parameters": {"city": {"type": "str"}}}
CALL = {"name": "weather", "arguments": {"city": "Oslo"}}
HERMES = [
    {"from": "system", "value": f"Tools: <tools>{json.dumps(WEATHER)}</tools>"},
    {"from": "human", "value": "Weather in Oslo?"},
    {"from": "gpt", "value": f"<think>Look it up.</think>\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>"},
    {"from": "tool", "value": '<tool_response>{"celsius": 4}</tool_response>'},
    {"from": "gpt", "value": "Four degrees."},
]
THOUGHT = [
    {"from": "user", "value": "1 + 1?"},
    {
        "from": "assistant",
        "value": "<|begin_of_thought|>\nCount.\n<|end_of_thought|>\n\n<|begin_of_solution|>\n2\n<|end_of_solution|>",
    },
]
OPTIONS = ["Red", "Green", "Blue", "White", "Black"]
SPECIAL: dict[str, dict[str, Any]] = {
    "MBPP": {"code": "def f():\r\n    return 1"},
    "OpenAssistant": {"role": "prompter", "parent_id": None, "tree_state": "ready_for_export"},
    "Function-Calling-ChatML": {
        "function_description": json.dumps(WEATHER, indent=4) + "\n\n" + json.dumps({**WEATHER, "name": "time"}),
        "conversations": [
            {"from": "system", "value": "The system message of this row."},
            {"from": "human", "value": "Weather in Oslo?"},
            {
                "from": "gpt",
                "value": '<functioncall> {"name": "weather", "arguments": \'{"city": "Oslo"}\'} </functioncall>',
            },
            {"from": "function-response", "value": '{"celsius": 4}'},
            {"from": "gpt", "value": "Four degrees."},
        ],
    },
    "Pythonic-Function-Calling": {"tools": "def weather(city: str) -> float:\n    ..."},
    "Synth-APIGen": {"tools": json.dumps([WEATHER]), "answers": json.dumps([CALL, CALL])},
    "Tool-Calls-SingleTurn": {"conversations": HERMES, "tools": json.dumps([WEATHER])},
    "Tool-Calls-Multiturn": {"conversations": HERMES, "tools": json.dumps([WEATHER])},
    "Hermes-Reasoning-Tool-Use": {"conversations": HERMES, "tools": json.dumps([WEATHER])},
    "Hermes-Function-Calling-v1": {"conversations": HERMES, "tools": json.dumps([WEATHER])},
    "xLAM-60k": {"tools": json.dumps([WEATHER]), "answers": json.dumps([CALL, CALL])},
    "Glaive-Function-Calling-v2": {
        "system": f"SYSTEM: You have these functions -\n{json.dumps(WEATHER)}",
        "chat": 'USER: Weather in Oslo?\n\n\nASSISTANT: <functioncall> {"name": "weather", "arguments": '
        '\'{"city": "Oslo"}\'} <|endoftext|>\n\n\nFUNCTION RESPONSE: {"celsius": 4}\n\n\n'
        "ASSISTANT: Four degrees. <|endoftext|>",
    },
    "Glaive-Toolcall-ShareGPT": {
        "conversations": [
            {"from": "human", "value": "Weather in Oslo?"},
            {"from": "function_call", "value": json.dumps(CALL)},
            {"from": "observation", "value": '{"celsius": 4}'},
            {"from": "gpt", "value": "Four degrees."},
        ],
        "tools": json.dumps([WEATHER]),
    },
    "ToolACE": {
        "conversations": [
            {"from": "user", "value": "Weather in Oslo?"},
            {"from": "assistant", "value": '[Get Weather(city="Oslo")]'},
            {"from": "tool", "value": '[{"celsius": 4}]'},
            {"from": "assistant", "value": "Four degrees."},
        ]
    },
    "UltraChat": {"data": ["Hello?", "Hello.", "How are you?", "Well.", "Bye?"]},
    "Multimodal-Mind2Web": {
        "action_reprs": ["[link] Home -> CLICK", "[box] City -> TYPE: Oslo"],
        "target_action_index": "1",
    },
    "Video-MME": {"options": [f"{c}. {o}" for c, o in zip("ABCD", OPTIONS, strict=False)], "answer": "C"},
    "MVBench": {"candidates": OPTIONS, "answer": "Blue", "start": 0.5, "end": 2.0},
    "YouCook2": {"segment": [0.5, 2.0]},
    "MusicCaps": {"start_s": 30, "end_s": 40},
    "EgoSchema": {"option": [f"{c}. {o}" for c, o in zip("ABCDE", OPTIONS, strict=True)], "answer": "2"},
    "NExTQA": {"answer": 2, **{f"a{i}": option for i, option in enumerate(OPTIONS)}},
    "LongVideoBench": {"option3": "N/A", "option4": "N/A", "correct_choice": 2},
    "MLVU-dev": {"question": "Which? (A) Red (B) Blue", "candidates": ["Red", "Blue"], "answer": "Blue"},
    "LVBench": {"question": "Which?\n(A) Red\n(B) Blue", "options": None, "answer": "B"},
    "VideoChatGPT": {"question_1": None, "question_2": None},
    "LLaVA-Video-178K": {
        "conversations": [{"from": "human", "value": "<image>\nWhat is shown?"}, {"from": "gpt", "value": "A cat."}]
    },
    "Panda-70M": {
        "url": "https://www.youtube.com/watch?v=x",
        "caption": str(["A cat runs.", "It's asleep."]),
        "timestamp": str([["0:00:01.5", "0:00:04.0"], ["0:00:04.0", "0:00:09.0"]]),
    },
    "TIP-I2V": {"Text_NSFW": 0.01, "Image_NSFW": "Normal"},
    "Pexels-I2V-350k": {"column0": "https://images.example/1.jpg", "column1": "https://videos.example/1.mp4"},
    "Pick-a-Pic-v2": {"jpg_0": b"first", "jpg_1": b"second", "label_0": 0.0, "label_1": 1.0},
    "T2V-Human-Preferences": {
        "video1": "https://v.example/1.mp4",
        "video2": "https://v.example/2.mp4",
        "weighted_results1_Coherence": 0.2,
        "weighted_results2_Coherence": 0.8,
    },
    "GigaSpeech": {"text": "AS IT WERE <COMMA> YES <PERIOD>"},
    "GSM8K": {"answer": "She had 24 / 2 = <<24/2=12>>12.\n#### 12"},
    "OpenThoughts-114k": {"conversations": THOUGHT},
    "Bespoke-Stratos-17k": {"conversations": THOUGHT},
    "OpenR1-Math-220k": {
        "generations": ["<think>No.</think>3", "<think>Yes.</think>2"],
        "correctness_math_verify": [False, True],
    },
    "POPE": {"answer": "yes"},
    "CodeActInstruct": {
        "conversations": [
            {"role": "user", "content": "What is 6 * 7?"},
            {"role": "assistant", "content": "I compute it. <execute>\nprint(6 * 7)\n</execute>"},
            {"role": "user", "content": "Observation:\n42"},
            {"role": "assistant", "content": "It is 42."},
        ]
    },
    "Code-Feedback-Parsed": {
        "messages": [
            {"role": "user", "content": "What is 6 * 7?", "tool_call": None},
            {"role": "assistant", "content": "I compute it.", "tool_call": "print(6 * 7)"},
            {"role": "tool", "content": "42", "tool_call": None},
            {"role": "assistant", "content": "It is 42.", "tool_call": None},
        ]
    },
    "NuminaMath-TIR": {"solution": "So:\n```python\nprint(6 * 7)\n```\n```output\n42\n```\nIt is 42."},
    "MBPP-Stacktraces": {"exec_results": ["passed", "failed"], "exec_stacktraces": ["", "AssertionError: 2"]},
    "MP-DocVQA": {"answers": str(["1984", "in 1984"])},
    "CORD-v2": {"ground_truth": json.dumps({"gt_parse": {"total": {"price": "9.00"}}, "meta": {"id": 1}})},
    "SWE-bench": {"patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"},
}
