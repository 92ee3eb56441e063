"""Tools and calls of them, in every form that data sets write them, as one form of JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.make.values import as_text, dumped, json_objects, listed, parsed

_ARGUMENTS = ("arguments", "parameters", "args", "input", "kwargs")
_QUOTED = re.compile(r"""(["']arguments["']\s*:\s*)'(.*)'(\s*\}\s*)$""", re.DOTALL)
"""Arguments as JSON inside single quotes, which no JSON reader takes."""
MOST_CALL = 2**16
_PYTHONIC = re.compile(r"\[?\s*[A-Za-z_][\w .\-/]*\(.*\)\s*\]?", re.DOTALL)


def call_text(value: Any) -> str | None:
    """A call as `{"name": ..., "arguments": {...}}`; None where it is none."""
    value = parsed(value)
    if not isinstance(value, Mapping):
        return None
    inner = parsed(value.get("function"))
    if isinstance(inner, Mapping):
        value = inner
    name = value.get("name") or (inner if isinstance(inner, str) else None) or value.get("tool_name")
    if not isinstance(name, str) or not name:
        return None
    arguments: Any = next((value[key] for key in _ARGUMENTS if value.get(key) is not None), {})
    return dumped({"name": name, "arguments": _arguments(arguments)})


def _arguments(value: Any) -> Any:
    """Written into a string they are read; in a struct, nulls are what other rows' arguments left there."""
    if isinstance(value, Mapping):
        return {key: item for key, item in value.items() if item is not None}
    found = listed(value)
    return found if isinstance(found, Mapping | list) else value


def calls_of(value: Any) -> list[str]:
    """All calls of a list, an object, or either written into a string; [] where anything else is among them."""
    if value is None:
        return []
    value = listed(value)
    if isinstance(value, str):
        found = call_in_quotes(value)
        return [found] if found else []
    items = value if isinstance(value, list | tuple) else [value]
    calls = [call_text(item) for item in items]
    return [call for call in calls if call is not None] if all(calls) else []


def call_in_quotes(text: str) -> str | None:
    """A call whose arguments are JSON inside single quotes; or one that is JSON already."""
    text = text.strip()
    whole = call_text(text)
    if whole is not None:
        return whole
    found = _QUOTED.search(text) if text.startswith("{") and len(text) < MOST_CALL else None
    if not found:
        return None
    head = parsed(text[: found.start()].rstrip().rstrip(",") + "}")
    name = head.get("name") if isinstance(head, Mapping) else None
    if not isinstance(name, str):
        return None
    inside = found[2].replace("\\'", "'")
    return dumped({"name": name, "arguments": _arguments(inside)})


def is_pythonic(text: str) -> bool:
    """Whether a text is nothing but calls as Python writes them: `[get_weather(city="Oslo")]`."""
    return len(text) < MOST_CALL and bool(_PYTHONIC.fullmatch(text.strip()))


def tools_of(value: Any) -> list[Any] | str:
    """Descriptions of tools: a list where they are JSON (also several objects in one string), else the text."""
    value = listed(value)
    if isinstance(value, str):
        return json_objects(value) or value.strip()
    if isinstance(value, Mapping):
        return [_without_nulls(value)]
    if isinstance(value, list | tuple):
        return [_without_nulls(parsed(item)) for item in value if item is not None]
    return ""


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value


def tools_text(tools: list[Any] | str) -> str:
    return tools if isinstance(tools, str) else dumped(tools, indent=2)


def shows_tools(text: str, tools: list[Any] | str) -> bool:
    """Whether a system text already has the tools in it, so that they are not told twice."""
    if isinstance(tools, str):
        return tools in text
    names = [_name(tool) for tool in tools]
    return bool(text) and all(name and re.search(rf"\b{re.escape(name)}\b", text) for name in names)


def _name(tool: Any) -> str:
    if isinstance(tool, str):
        return tool
    inner = tool.get("function") if isinstance(tool, Mapping) else None
    holder = inner if isinstance(inner, Mapping) else tool
    return as_text(holder.get("name")) if isinstance(holder, Mapping) else ""
