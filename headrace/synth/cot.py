"""Chain of thought: a question, the steps to its answer, and the answer."""

from __future__ import annotations

from typing import Any

from headrace.synth.arithmetic import ARITHMETIC
from headrace.synth.dice import Dice
from headrace.synth.stories import STORIES

TOPICS = {**ARITHMETIC, **STORIES}


def cot(dice: Dice, i: int, seed: int) -> dict[str, Any]:
    topic = list(TOPICS)[i % len(TOPICS)]
    made = TOPICS[topic](dice)
    return {
        "topic": topic,
        "question": made.question,
        "steps": made.steps,
        "answer": made.answer,
        "result": made.result,
        "expression": made.expression,
    }
