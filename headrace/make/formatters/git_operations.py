"""Changes to files: commits, diffs, issues and their fixes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from headrace.make.diffs import unified_diff
from headrace.make.draft import Draft, Formatted
from headrace.make.fields import Row
from headrace.make.formatters.base import Tokens, flag_of, formatter, text_sample
from headrace.make.formatters.chat import chat_turns
from headrace.make.formatters.code import fenced
from headrace.make.formatters.media import with_media
from headrace.make.turns import Piece, Turn, turn
from headrace.make.values import joined

DESCRIBE = "Write a commit message for this change."
FIX = "Fix this issue."
_DIFFS = ("diff", "patch")
_MESSAGES = ("message", "commit_message", "subject")
_ISSUES = ("problem_statement", "issue", "issue_body")


@formatter
def format_git_operations(row: Row, tokens: Tokens) -> Iterator[Formatted | None]:
    """A wish and the diff that grants it, or a diff and the message that tells of it."""
    draft = Draft(tokens)
    if _change(row, draft) or _fix(row, draft) or _message(row, draft) or _chat(row, draft):
        yield draft.sample("git_operations", is_training=flag_of(row))
    else:
        yield text_sample(row, tokens, "git_operations", row.text("text"))


def _answer(draft: Draft, mark: Literal["diff", "commit"], text: str) -> bool:
    """An assistant's turn of one marked text, as it is: the white space of a diff counts."""
    draft.turn(Turn("assistant", (Piece(mark, text),)))
    return True


def _change(row: Row, draft: Draft) -> bool:
    """What a file was, what it became, and why."""
    before, after = row.find("before", "before", "old_contents"), row.find("after", "after", "new_contents")
    wish = row.text("message", *_MESSAGES).strip()
    if not isinstance(before, str | None) or not isinstance(after, str | None) or not wish or not (before or after):
        return False
    path = row.text("file", "file", "path", "filename", "new_file", "old_file").strip() or "file"
    diff = row.text("diff", *_DIFFS) or unified_diff(before or "", after or "", path)
    shown = f"{path}:\n{_block(before)}" if before else f"{path} does not exist yet."
    draft.turn(turn("user", joined(wish, shown)))
    return _answer(draft, "diff", diff) if diff else _whole(draft, after or "")


def _block(text: str) -> str:
    """A file in a fence longer than any in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.removesuffix(chr(10))}\n{fence}"


def _whole(draft: Draft, after: str) -> bool:
    """Where a diff would take too long, the file as it became."""
    draft.turn(turn("assistant", fenced(after, ""), tagged=False))
    return True


def _fix(row: Row, draft: Draft) -> bool:
    issue, diff = row.text("issue", *_ISSUES), row.text("diff", *_DIFFS)
    if not issue.strip() or not diff.strip():
        return False
    repo, title = row.text("repo", "repo", "repository").strip(), row.text("title").strip()
    given = row.text("context", "context", "code", "file_contents")
    draft.turn(turn("user", joined(f"Repository: {repo}" if repo else "", title, issue, given, FIX)))
    return _answer(draft, "diff", diff)


def _message(row: Row, draft: Draft) -> bool:
    diff, message = row.text("diff", *_DIFFS), row.text("message", *_MESSAGES).strip()
    if not diff.strip() or not message:
        return False
    draft.turn(turn("user", f"{DESCRIBE}\n\n{_block(diff)}"))
    return _answer(draft, "commit", message)


def _chat(row: Row, draft: Draft) -> bool:
    turns: list[Turn] = chat_turns(row)
    draft.turns(with_media(row, turns))
    return bool(turns)
