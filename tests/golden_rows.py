"""One row of each category as its data set has them, for texts that were read through by eye (tests/golden)."""

from __future__ import annotations

import json
from typing import Any

PNG = {"bytes": b"\x89PNG\r\n\x1a\n" + bytes(92), "path": "image.png"}
FLAC = {"bytes": b"fLaC" + bytes(196), "path": "103-1240-0000.flac"}
SEARCH = {
    "name": "search_flights",
    "description": "Finds flights between two cities.",
    "parameters": {
        "from": {"type": "str", "description": "City to leave from."},
        "to": {"type": "str", "description": "City to go to."},
        "stops": {"type": "int", "description": "Most stops.", "default": 0},
    },
}


def _message(number: int, parent: int | None, role: str, text: str, rank: int | None = None) -> dict[str, Any]:
    return {
        "message_id": f"m{number}",
        "parent_id": None if parent is None else f"m{parent}",
        "user_id": "u",
        "created_date": "2023-02-05T14:23:50.983374+00:00",
        "text": text,
        "role": role,
        "lang": "en",
        "review_count": 3,
        "review_result": True,
        "deleted": False,
        "rank": rank,
        "synthetic": False,
        "model_name": None,
        "detoxify": None,
        "message_tree_id": "m0",
        "tree_state": "ready_for_export",
        "emojis": {"name": ["+1"], "count": [2]},
        "labels": {"name": ["spam", "quality"], "value": [0.0, 0.75], "count": [3, 3]},
    }


ROWS: dict[str, dict[str, Any]] = {
    "Python-Code-18k": {
        "instruction": "Create a function that returns the sum of a list of numbers.",
        "input": "[1, 2, 3]",
        "output": "def sum_of(numbers):\n    total = 0\n    for number in numbers:\n        total += number\n"
        "    return total\n",
        "prompt": "Below is an instruction that describes a task. ### Instruction: ... ### Output: def sum_of ...",
    },
    "Dolly-15k": {
        "instruction": "When did Virgin Australia start operating?",
        "context": "Virgin Australia commenced services on 31 August 2000 as Virgin Blue, with two aircraft.[3]",
        "response": "Virgin Australia commenced services on 31 August 2000 as Virgin Blue.",
        "category": "closed_qa",
    },
    "OpenAssistant": {
        "rows": [
            _message(0, None, "prompter", "Why do cats purr?"),
            _message(1, 0, "assistant", "They just do.", 1),
            _message(2, 0, "assistant", "Mostly to show that they are content, and to calm themselves.", 0),
            _message(3, 2, "prompter", "Do lions purr as well?"),
            _message(4, 3, "assistant", "No. Lions roar; most big cats that roar cannot purr.", 0),
            _message(5, 2, "prompter", "How do they do it?"),
            _message(6, 5, "assistant", "With quick movements of the muscles of the larynx."),
            _message(7, 6, "prompter", "Thanks!"),
        ]
    },
    "xLAM-60k": {
        "id": 7,
        "query": "Find me direct flights from Oslo to Rome, and from Rome to Malta.",
        "answers": json.dumps(
            [
                {"name": "search_flights", "arguments": {"from": "Oslo", "to": "Rome", "stops": 0}},
                {"name": "search_flights", "arguments": {"from": "Rome", "to": "Malta"}},
            ]
        ),
        "tools": json.dumps([SEARCH]),
    },
    "Hermes-Reasoning-Tool-Use": {
        "conversations": [
            {
                "from": "system",
                "value": "You are a function calling AI model. Here are the available tools: <tools> "
                + json.dumps([{"type": "function", "function": SEARCH}])
                + " </tools>",
            },
            {"from": "human", "value": "Any direct flight from Oslo to Rome?"},
            {
                "from": "gpt",
                "value": "<think>\nThe user wants flights. I have a tool for that.\n</think>\n<tool_call>\n"
                '{"name": "search_flights", "arguments": {"from": "Oslo", "to": "Rome"}}\n</tool_call>',
            },
            {"from": "tool", "value": '<tool_response>\n{"flights": ["DY1872 09:40"]}\n</tool_response>'},
            {"from": "gpt", "value": "<think>\nOne flight was found.\n</think>\nYes: DY1872 leaves at 09:40."},
        ],
        "tools": json.dumps([{"type": "function", "function": SEARCH}]),
        "task": "Flight search",
        "category": "Travel",
        "source": "ToolAce",
        "scenario_category": "multiturn",
    },
    "AgentInstruct": {
        "conversations": [
            {
                "from": "human",
                "loss": None,
                "value": "You are an assistant that acts in a Linux shell. Think, then act.",
            },
            {"from": "gpt", "loss": False, "value": "Ok."},
            {"from": "human", "loss": None, "value": "How many files are in /etc?"},
            {
                "from": "gpt",
                "loss": True,
                "value": "Think: I count the files.\n\nAct: bash\n\n```bash\nls -p /etc | grep -v / | wc -l\n```",
            },
            {"from": "human", "loss": None, "value": "The output of the OS:\n91"},
            {"from": "gpt", "loss": True, "value": "Think: It printed 91.\n\nAct: answer(91)"},
        ],
        "id": "os_0",
    },
    "ScienceQA": {
        "image": PNG,
        "question": "Which of these states is farthest north?",
        "choices": ["West Virginia", "Louisiana", "Arizona", "Oklahoma"],
        "answer": 0,
        "hint": "Look at the compass rose.",
        "task": "closed choice",
        "grade": "grade2",
        "subject": "social science",
        "topic": "geography",
        "category": "Geography",
        "skill": "Read a map: cardinal directions",
        "lecture": "Maps have four cardinal directions, or main directions.",
        "solution": "To find the answer, look at the compass rose. West Virginia is farthest north.",
    },
    "LLaVA-Instruct-Mix-VSFT": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Who wrote this book?\n", "index": None},
                    {"type": "image", "text": None, "index": 0},
                ],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "Donna Eden", "index": None}]},
            {"role": "user", "content": [{"type": "text", "text": "What is its title?", "index": None}]},
            {"role": "assistant", "content": [{"type": "text", "text": "The Energy Medicine Kit", "index": None}]},
        ],
        "images": [PNG],
    },
    "Video-MME": {
        "video_id": "001",
        "duration": "short",
        "domain": "Knowledge",
        "sub_category": "Humanity & History",
        "url": "https://www.youtube.com/watch?v=fFjv93ACGo8",
        "videoID": "fFjv93ACGo8",
        "question_id": "001-1",
        "task_type": "Counting Problem",
        "question": "How many red socks are above the fireplace at the end of this video?",
        "options": ["A. 1.", "B. 4.", "C. 2.", "D. 3."],
        "answer": "D",
    },
    "MagicBrush": {
        "img_id": "242679",
        "turn_index": 1,
        "source_img": PNG,
        "mask_img": PNG,
        "instruction": "Put a cat on the seat.",
        "target_img": {"bytes": b"\x89PNG\r\n\x1a\n" + bytes(40), "path": "target.png"},
    },
    "T2V-Human-Preferences": {
        "prompt": "A whimsical tea party of owls under a willow tree.",
        "video1": "https://assets.example/0001_sora.mp4",
        "video2": "https://assets.example/0001_ray2.mp4",
        "weighted_results1_Coherence": 0.31,
        "weighted_results2_Coherence": 0.69,
        "weighted_results1_Preference": 0.52,
        "weighted_results2_Preference": 0.48,
    },
    "LibriSpeech-Clean": {
        "file": "103-1240-0000.flac",
        "audio": FLAC,
        "text": "CHAPTER ONE MISSUS RACHEL LYNDE IS SURPRISED",
        "speaker_id": 103,
        "chapter_id": 1240,
        "id": "103-1240-0000",
    },
    "LibriTTS-R-Clean": {
        "audio": {"bytes": b"RIFF" + bytes(96), "path": "103_1241_000000_000001.wav"},
        "text_normalized": "Matthew Cuthbert is surprised.",
        "text_original": "Matthew Cuthbert is surprised.",
        "speaker_id": "103",
        "path": "103_1241_000000_000001.wav",
        "chapter_id": "1241",
        "id": "103_1241_000000_000001",
    },
    "GSM8K": {
        "question": "Natalia sold clips to 48 of her friends in April, and half as many in May. How many in all?",
        "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nThat is 48+24 = <<48+24=72>>72 in all.\n#### 72",
    },
    "SQuAD-v2": {
        "id": "5a8d9ed5df8bba001a0f9b1a",
        "title": "Normans",
        "context": "The Normans were the people who in the 10th and 11th centuries gave their name to Normandy.",
        "question": "Who was the duke in the battle of Hastings?",
        "answers": {"text": [], "answer_start": []},
    },
    "CommitPackFT": {
        "commit": "0f9c1e",
        "old_file": "setup.py",
        "new_file": "setup.py",
        "old_contents": 'from setuptools import setup\n\nsetup(\n    name="clock",\n    version="0.1.0",\n)\n',
        "new_contents": 'from setuptools import setup\n\nsetup(\n    name="clock",\n    version="0.2.0",\n)',
        "subject": "Bump version to 0.2.0",
        "message": "Bump version to 0.2.0\n",
        "lang": "Python",
        "license": "mit",
        "repos": "ada/clock,bob/clock",
    },
    "CodeActInstruct": {
        "id": "mint_math/12",
        "conversations": [
            {"role": "system", "content": "You can run Python code in <execute> tags."},
            {"role": "user", "content": "What is the sum of the primes below 20?"},
            {
                "role": "assistant",
                "content": "I add them.\n<execute>\nsum(p for p in range(2, 20) if all(p % d for d in range(2, p)))\n"
                "</execute>",
            },
            {"role": "user", "content": "Observation:\n77"},
            {"role": "assistant", "content": "The sum is 77."},
        ],
    },
    "MP-DocVQA": {
        "questionId": "49153",
        "question": "What is the date on the letter?",
        "doc_id": "pybv0228",
        "page_ids": "['pybv0228_p80', 'pybv0228_p81']",
        "answers": "['June 4, 1984', '6/4/84']",
        "answer_page_idx": "1",
        **{f"image_{i}": PNG if i < 3 else None for i in range(1, 21)},
    },
    "Wikipedia": {
        "id": "12",
        "url": "https://en.wikipedia.org/wiki/Anarchism",
        "title": "Anarchism",
        "text": "Anarchism is a political philosophy and movement.\n\nIt is skeptical of authority.",
    },
}
