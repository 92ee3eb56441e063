"""Code: instructions and programs, conversations about code, whole files."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.make.draft import Draft, Formatted
from headrace.make.fields import Row
from headrace.make.formatters.base import Tokens, flag_of, formatter, text_sample
from headrace.make.formatters.chat import answer_turns, listed_turns, question_turns, with_system
from headrace.make.formatters.media import with_media
from headrace.make.turns import Turn, turn
from headrace.make.values import as_text, joined

SYSTEM = "You are an expert programmer. Write clean, efficient code."
COMPLETE = "Complete this code."
_DEFAULT_LANGUAGE = "python"
_TASK_LANGUAGES = ("python", "javascript", "js", "java", "cpp", "go", "rust")


@formatter
def format_code(row: Row, tokens: Tokens) -> Iterator[Formatted | None]:
    """A program as an answer, in a fence; a conversation as it is; a file, all of it learned."""
    turns = _turns(row)
    if turns:
        draft = Draft(tokens)
        draft.turns(with_media(row, turns))
        yield draft.sample("code", is_training=flag_of(row))
    elif not row.is_mapped("prompt"):
        yield text_sample(row, tokens, "code", row.text("text"))


def _turns(row: Row) -> list[Turn]:
    if _is_task(row):
        task = _completed(row)
        return _system(row, task) if task else []
    turns = listed_turns(row)
    if turns:
        return with_system(row, turns)
    code = _code(row)
    if code:
        explanation = row.text("explanation") if row.is_mapped("explanation") else ""
        answers = [turn("assistant", joined(fenced(code, language_of(row)), explanation), tagged=False)]
    else:
        answers = answer_turns(row)
    question = question_turns(row)
    return _system(row, [*question, *answers]) if question and answers else []


def _system(row: Row, turns: list[Turn]) -> list[Turn]:
    found = with_system(row, turns)
    return found if found[0].role == "system" else [turn("system", SYSTEM), *found]


def _code(row: Row) -> str:
    """The program, where the row has one; an answer in words that brings its own fences is none."""
    if row.is_mapped("response") and not row.is_mapped("code"):
        return ""
    found = row.find("code")
    return found if isinstance(found, str) and found.strip() else ""


def language_of(row: Row) -> str:
    if row.is_mapped("language"):
        return row.text("language").strip().lower()
    return row.text("language").strip().lower() or _DEFAULT_LANGUAGE


def fenced(code: str, language: str) -> str:
    """Code in a fence; what has fences stays as it is."""
    if "```" in code:
        return code
    return f"```{language}\n{code.removesuffix(chr(10))}\n```"


# --- tasks: a beginning that has to be completed


def _is_task(row: Row) -> bool:
    return row.is_mapped("prefix") or (bool(row.text("canonical_solution").strip()) and not row.is_mapped("prompt"))


def _completed(row: Row) -> list[Turn]:
    """The instruction, or else the beginning; the answer is the whole program, its parts as they are."""
    mapped = row.is_mapped("prefix")
    prefix = row.text("prefix") if mapped else row.text("prompt", "prompt", "declaration")
    solution = row.text("response") if mapped else row.text("canonical_solution")
    if not solution.strip():
        return []
    language = _task_language(row)
    instruction = row.text("prompt") if mapped and row.is_mapped("prompt") else as_text(row.get("instruction"))
    question = instruction if instruction.strip() else joined(COMPLETE, fenced(prefix, language))
    return [turn("user", question), turn("assistant", fenced(prefix + solution, language), tagged=False)]


def _task_language(row: Row) -> str:
    """Of `Python/0` and the like, the part before the number."""
    if row.is_mapped("language"):
        return language_of(row).partition("/")[0]
    name = as_text(row.get("task_id")).partition("/")[0].lower()
    return name if name in _TASK_LANGUAGES else _DEFAULT_LANGUAGE
