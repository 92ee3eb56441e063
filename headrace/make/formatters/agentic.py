"""Agents at work: conversations with thoughts, calls and observations, lists of steps, actions on a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.make.calls import calls_of
from headrace.make.draft import Draft, Formatted
from headrace.make.fields import Row
from headrace.make.formatters.answers import answered
from headrace.make.formatters.base import Tokens, flag_of, formatter, text_sample
from headrace.make.formatters.chat import chat_turns
from headrace.make.formatters.media import images_of, with_media
from headrace.make.turns import Piece, Turn, is_learned, turn
from headrace.make.values import as_text, joined, listed, texts

_THOUGHTS = ("thought", "thinking", "reasoning")
_ACTIONS = ("action", "tool_call", "act", "command")
_RESULTS = ("observation", "result", "output", "response")


@formatter
def format_agentic(row: Row, tokens: Tokens) -> Iterator[Formatted | None]:
    """A task and what was done for it: system and tool turns are kept, loss flags are honoured."""
    turns = _action(row) or chat_turns(row) or _steps(row)
    if turns:
        draft = Draft(tokens)
        draft.turns(with_media(row, turns, {"image": images_of(row)}))
        yield draft.sample("agentic", is_training=flag_of(row))
    else:
        yield text_sample(row, tokens, "agentic", row.text("text"))


def _action(row: Row) -> list[Turn]:
    """One step on a page: the task, what was done before, the page as it looks, and the next action."""
    task, action = row.text("task", "confirmed_task"), row.text("action", "target_action_reprs")
    if not task.strip() or not action.strip():
        return []
    done = texts(row.find("actions", "action_reprs"))
    at = as_text(row.find("action_number", "target_action_index")).strip()
    done = done[: int(at)] if at.isdecimal() and len(at) < 9 else []
    before = "\n".join(f"{i}. {text}" for i, text in enumerate(done, 1))
    asked = joined(task, f"Done so far:\n{before}" if before else "", "What is the next action?")
    return [turn("user", asked), answered(action)]


def _steps(row: Row) -> list[Turn]:
    """A list of steps, each with a thought, an action and what came of it."""
    task = row.text("prompt", "task", "instruction", "goal", "prompt", "question")
    steps = listed(row.find("trajectory", "trajectory", "steps", "actions"))
    if not task.strip() or not isinstance(steps, list):
        return []
    turns = [turn("user", task)]
    for step in steps:
        if isinstance(step, Mapping):
            turns += _step(step)
    return turns if len(turns) > 1 else []


def _step(step: Mapping[str, object]) -> list[Turn]:
    thought, action, result = (
        next((step[key] for key in keys if step.get(key) is not None), None) for keys in (_THOUGHTS, _ACTIONS, _RESULTS)
    )
    pieces = [Piece("think", as_text(thought).strip())] if as_text(thought).strip() else []
    calls = calls_of(action)
    pieces += [Piece("call", call) for call in calls] or [Piece("text", as_text(action))] if as_text(action) else []
    found = [Turn("assistant", tuple(pieces), is_learned(step))] if pieces else []
    return [*found, turn("tool", as_text(result))] if as_text(result).strip() else found
