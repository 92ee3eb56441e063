"""Commits, diffs and issues: the same changes, told in three ways."""

from __future__ import annotations

import textwrap
from typing import Any

from headrace.synth.change import Change
from headrace.synth.dice import Dice
from headrace.synth.edits import EDITS
from headrace.synth.fixes import FIXES
from headrace.synth.slips import SLIPS

BUGS = (*FIXES, *SLIPS)
CHANGES = tuple(change for pair in zip(BUGS, EDITS, strict=False) for change in pair) + BUGS[len(EDITS) :]


def commits(dice: Dice, i: int, seed: int) -> dict[str, Any]:
    """A change and the message that tells of it."""
    made = CHANGES[i % len(CHANGES)](dice)
    return {
        "type": made.type,
        **_texts(made),
        "message": f"{made.subject}\n\n{wrapped(made.body)}",
        "checks": _checks(made),
    }


def diffs(dice: Dice, i: int, seed: int) -> dict[str, Any]:
    """A wish and the diff that grants it."""
    made = CHANGES[(i + 1) % len(CHANGES)](dice)
    wish = f"{made.subject}. {made.body}"
    if made.type == "fix":
        before, after = made.checks[:2]
        does = "raises" if before.is_error else "gives"
        wish = f"`{before.call}` {does} `{before.result}`, and it should give `{after.result}`. Fix it."
    return {"type": made.type, **_texts(made), "message": wish, "checks": _checks(made)}


def issues(dice: Dice, i: int, seed: int) -> dict[str, Any]:
    """A bug as someone reports it, and the diff that mends it."""
    made = BUGS[i % len(BUGS)](dice)
    before, after = made.checks[:2]
    module = made.file.rpartition("/")[2].removesuffix(".py")
    name = before.call.partition("(")[0]
    version = f"{dice.between(0, 3)}.{dice.between(0, 12)}.{dice.between(0, 9)}"
    steps = f"```python\nfrom {module} import {name}\n\nprint({before.call})\n```"
    what = f"It {'raises' if before.is_error else 'prints'} `{before.result}`."
    body = dice.pick(
        (
            f"{steps}\n\n{what} I expected `{after.result}`.\n\nSeen with version {version}.",
            f"To reproduce, with version {version}:\n\n{steps}\n\nWhat happens: {what}\n\nExpected: `{after.result}`",
            f"I use version {version} and ran this:\n\n{steps}\n\n{what} As I read the docstring, it should be "
            f"`{after.result}`.",
        )
    )
    return {
        "title": made.title,
        "issue": body,
        "context": f"{made.file}:\n```python\n{made.before}```",
        **_texts(made),
        "cause": made.body,
        "checks": _checks(made),
    }


def _texts(made: Change) -> dict[str, str]:
    return {"language": "python", "file": made.file, "before": made.before, "after": made.after, "diff": made.diff}


def _checks(made: Change) -> list[dict[str, str]]:
    return [check._asdict() for check in made.checks]


def wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 72))
