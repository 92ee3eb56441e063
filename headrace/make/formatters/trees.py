"""Trees of messages, one row each: which paths through a tree are samples.

Every question is followed to its best-ranked answer only, and every answer to all questions asked after it. So each
path is a conversation with the best answers, and each question that was answered is in one. Paths share their
beginnings: an answer is learned on the first path it stands on and is context on the others, so nothing is learned
twice. With `answers: =all` in the map, a question is followed to all of its answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from headrace.make.draft import Draft, Formatted
from headrace.make.fields import Row
from headrace.make.formatters.base import Tokens
from headrace.make.turns import Role, role_of, turn
from headrace.make.values import as_text, is_empty, whole

_READY = ("", "ready_for_export")


class _Message(NamedTuple):
    id: str
    parent: str
    role: Role
    text: str
    rank: tuple[int, float, float]
    """Lower is better: those that were ranked, by rank; then by how good people found them."""


def is_message(row: Row) -> bool:
    """Whether a row is a message that names its parent."""
    return all(row.find(*names) is not None for names in (("id", "message_id"), ("tree", "message_tree_id"), ("role",)))


def tree_samples(rows: list[Row], tokens: Tokens) -> Iterator[Formatted | None] | None:
    """The samples of a tree; None where the rows are no messages of one."""
    return _samples(rows, tokens) if rows and all(is_message(row) for row in rows) else None


def _samples(rows: list[Row], tokens: Tokens) -> Iterator[Formatted | None]:
    if any(as_text(row.find("state", "tree_state")) not in _READY for row in rows):
        return
    everything = rows[0].text("answers", "answers") == "all" if rows[0].is_mapped("answers") else False
    # An id stands for one message: with one parent each, no path can come back to where it was.
    messages = list({m.id: m for m in map(_message, reversed(rows)) if m is not None}.values())[::-1]
    learned: set[str] = set()
    for path in _paths(messages, everything):
        while path and path[-1].role != "assistant":
            path.pop()
        if all(message.id in learned for message in path if message.role == "assistant"):
            continue
        draft = Draft(tokens)
        for message in path:
            draft.turn(turn(message.role, message.text, learned=message.id not in learned))
        learned.update(message.id for message in path)
        yield draft.sample("conversation")


def _paths(messages: list[_Message], everything: bool) -> Iterator[list[_Message]]:
    """From each root to each leaf, best first. A message whose parent is missing begins nothing unless it asks."""
    ids = {message.id for message in messages}
    children: dict[str, list[_Message]] = {}
    roots = []
    for message in messages:
        if message.parent in ids and message.parent != message.id:
            children.setdefault(message.parent, []).append(message)
        elif message.role == "user":
            roots.append(message)
    stack = [[root] for root in reversed(roots)]
    while stack:
        path = stack.pop()
        following = sorted(children.get(path[-1].id, ()), key=lambda message: message.rank)
        answers = [message for message in following if message.role == "assistant"]
        if answers and not everything:
            following = answers[:1]
        if not following:
            yield path
        stack.extend([*path, message] for message in reversed(following))


def _message(row: Row) -> _Message | None:
    role = role_of(row.find("role"))
    text = row.text("content", "text")
    if role is None or role == "call" or row.find("deleted") is True or not text.strip():
        return None
    parent, rank = row.find("parent", "parent_id"), whole(row.find("rank"))
    ranked = (0, float(rank)) if rank is not None and abs(rank) < 2**31 else (1, 0.0)
    above = "" if is_empty(parent) else as_text(parent)
    return _Message(as_text(row.find("id", "message_id")), above, role, text, (*ranked, -_quality(row)))


def _quality(row: Row) -> float:
    """Labels are kept as a struct of lists."""
    labels: Any = row.find("labels")
    if not isinstance(labels, Mapping):
        return 0.0
    names, values = labels.get("name"), labels.get("value")
    if not isinstance(names, list | tuple) or not isinstance(values, list | tuple) or "quality" not in names:
        return 0.0
    at = list(names).index("quality")
    value = values[at] if at < len(values) else None
    return float(value) if isinstance(value, int | float) and abs(value) < 1e9 else 0.0
