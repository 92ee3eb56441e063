"""Code that was run: what was run is learned, what came out is not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.make.draft import Draft, Formatted
from headrace.make.fields import Row
from headrace.make.formatters.base import Tokens, flag_of, formatter, text_sample
from headrace.make.formatters.chat import listed_turns, pair_turns, with_system
from headrace.make.formatters.media import KINDS, with_media
from headrace.make.turns import Piece, Turn, turn
from headrace.make.values import as_text, is_empty, is_whole, joined, listed

_OBSERVATION = re.compile(r"\s*Observation:\s*")
_OUTPUT = re.compile(r"```output\n(.*?)(?:\n?```|\Z)", re.DOTALL)
_COMMANDS = ("command", "code", "input", "source")
_OUTPUTS = ("output", "stdout", "result", "outputs")
_ERRORS = ("stderr", "error", "stacktrace", "traceback")
_CODES = ("exit_code", "returncode", "return_code", "status")


@formatter
def format_code_execution(row: Row, tokens: Tokens) -> Iterator[Formatted | None]:
    """A conversation with code that is run in it, a notebook, commands and their outputs, a program and its tests."""
    turns = [part for one in listed_turns(row) for part in _acted(one)] or _asked(row)
    if turns:
        draft = Draft(tokens, tool="exec_result")
        draft.turns(with_media(row, with_system(row, turns)))
        yield draft.sample("code_execution", is_training=flag_of(row))
    else:
        yield text_sample(row, tokens, "code_execution", row.text("text"))


# --- conversations


def _acted(one: Turn) -> list[Turn]:
    """Code in marks is run; a user's turn that begins with `Observation:` is what it gave."""
    if one.role == "user" and (seen := _OBSERVATION.match(one.text)):
        shown = tuple(piece for piece in one.pieces if piece.kind in KINDS)
        return [Turn("tool", (*turn("tool", one.text[seen.end() :]).pieces, *shown))]
    if one.role != "assistant":
        return [one]
    pieces = [part for piece in one.pieces for part in (_split(piece.text) if piece.kind == "text" else [piece])]
    return [one._replace(pieces=tuple(pieces))]


def _split(text: str) -> list[Piece]:
    """A text with code that is run, and with outputs in fences, which are not learned."""
    found: list[Piece] = []
    at = 0
    while (start := text.find("<execute>", at)) >= 0 and (end := text.find("</execute>", start)) >= 0:
        found += [*_outputs(text[at:start]), Piece("code", text[start + len("<execute>") : end].strip())]
        at = end + len("</execute>")
    found += _outputs(text[at:])
    return [piece for piece in found if piece.text.strip()]


def _outputs(text: str) -> list[Piece]:
    found: list[Piece] = []
    at = 0
    for match in _OUTPUT.finditer(text):
        found += [Piece("text", text[at : match.start()]), Piece("result", match[1])]
        at = match.end()
    return [*found, Piece("text", text[at:])]


# --- columns


def _asked(row: Row) -> list[Turn]:
    prompt = row.text("prompt")
    cells = _cells(listed(row.find("cells"))) or _steps(listed(row.find("steps")))
    if cells and (row.is_mapped("answer") or row.is_mapped("steps") or "steps" in row):
        answer = row.text("answer", "answer", "conclusion").strip()
        cells += [Piece("text", answer)] if answer else []
    if not cells:
        cells = _program(row)
    if cells:
        return [*([turn("user", prompt)] if prompt.strip() else []), Turn("assistant", tuple(cells))]
    return [part for one in pair_turns(row) for part in _acted(one)]


def _cells(value: Any) -> list[Piece]:
    """A notebook: its words are said, its code is run."""
    found: list[Piece] = []
    for cell in value if isinstance(value, list) else []:
        if not isinstance(cell, Mapping):
            continue
        source = cell.get("source", cell.get("content"))
        text = "".join(map(as_text, source)) if isinstance(source, list | tuple) else as_text(source)
        if as_text(cell.get("cell_type", cell.get("type"))) == "code":
            found += [Piece("code", text), *_cell_outputs(cell.get("outputs", cell.get("output")))]
        else:
            found.append(Piece("text", f"{text.strip()}\n"))
    if found and found[-1].kind == "text":
        found[-1] = Piece("text", found[-1].text.rstrip())
    return found if any(piece.kind == "code" for piece in found) else []


def _cell_outputs(value: Any) -> list[Piece]:
    if not isinstance(value, list | tuple):
        return [Piece("result", as_text(value))] if as_text(value).strip() else []
    found: list[Piece] = []
    for item in value:
        if not isinstance(item, Mapping):
            found.append(Piece("result", as_text(item)))
        elif not is_empty(item.get("traceback")) or item.get("output_type") == "error":
            trace = as_text(item.get("traceback")) or joined(as_text(item.get("ename")), as_text(item.get("evalue")))
            found.append(Piece("error", trace))
        else:
            data = item.get("data")
            plain = data.get("text/plain") if isinstance(data, Mapping) else item.get("text")
            text = "".join(map(as_text, plain)) if isinstance(plain, list | tuple) else as_text(plain)
            found.append(Piece("result", text))
    return [piece for piece in found if piece.text.strip()]


def _steps(value: Any) -> list[Piece]:
    """Commands one after the other, each with what it gave."""
    steps = [step for step in value if isinstance(step, Mapping)] if isinstance(value, list) else []
    found = [piece for step in steps for piece in _ran(step)]
    return found if any(piece.kind == "code" for piece in found) else []


def _ran(step: Mapping[Any, Any]) -> list[Piece]:
    """A command and its output. Only its exit code, or an error kept as such, says that it failed."""
    command = next((as_text(step[key]) for key in _COMMANDS if not is_empty(step.get(key))), "")
    if not command.strip():
        return []
    output = next((step[key] for key in _OUTPUTS if not is_empty(step.get(key))), None)
    error = next((step[key] for key in _ERRORS if isinstance(step.get(key), str) and step[key].strip()), "")
    code = next((step[key] for key in _CODES if is_whole(step.get(key))), 0)
    found = [Piece("code", command), *_cell_outputs(output)]
    if code and not error and found[1:]:
        found = [found[0], *(piece._replace(kind="error") for piece in found[1:])]
    return [*found, Piece("error" if code else "result", error)] if error else found


def _program(row: Row) -> list[Piece]:
    """A program with the results of its tests, or a command with its output."""
    code = row.text("code", *_COMMANDS[:2])
    if not code.strip():
        return []
    if not row.is_mapped("results") and not row.is_mapped("errors"):
        step = {**row, _COMMANDS[0]: code}
        found = _ran(step)
        return found if len(found) > 1 or row.is_mapped("code") else []
    results, errors = listed(row.find("results")), listed(row.find("errors"))
    found = [Piece("code", code)]
    traces = errors if isinstance(errors, list) else []
    for i, result in enumerate(results if isinstance(results, list) else [results]):
        trace = as_text(traces[i]) if i < len(traces) else ""
        found.append(Piece("error", trace) if trace.strip() else Piece("result", as_text(result)))
    return [piece for piece in found if piece.text.strip()]
