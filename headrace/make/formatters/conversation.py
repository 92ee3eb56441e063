"""Conversations: lists of messages, pairs of columns, trees of messages."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.errors import DataError
from headrace.make.draft import Formatted
from headrace.make.fields import Row
from headrace.make.formatters.base import Tokens, grouped_formatter, text_sample
from headrace.make.formatters.chat import chat_sample
from headrace.make.formatters.trees import is_message, tree_samples


@grouped_formatter(tree_samples)
def format_conversation(row: Row, tokens: Tokens) -> Iterator[Formatted | None]:
    """A conversation; of a group of rows that are the messages of a tree, its paths."""
    if is_message(row):
        raise DataError(
            "this row is one message of a tree, not a conversation; give the rows of a tree as a group "
            "(group_by: message_tree_id)"
        )
    sample = chat_sample(row, tokens, "conversation") or _summary(row, tokens)
    if sample is None and not row.is_mapped("prompt"):
        sample = text_sample(row, tokens, "conversation", row.text("text"))
    yield sample


def _summary(row: Row, tokens: Tokens) -> Formatted | None:
    """A dialogue as one text, and what it was about."""
    dialogue, summary = row.text("dialogue"), row.text("response", "summary")
    if not dialogue.strip() or not summary.strip():
        return None
    asked = {"prompt": f"Summarize this conversation.\n\n{dialogue}", "response": summary}
    return chat_sample(Row(asked), tokens, "conversation")
