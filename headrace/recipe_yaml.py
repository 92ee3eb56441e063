"""Descriptions as plain values and as YAML, both ways.

The fields and types of the dataclasses are the grammar, so a new field needs nothing here. YAML is read as nodes, never
as objects: every value keeps its line, and tags, anchors and aliases are refused.
"""

from __future__ import annotations

import dataclasses
import errno
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from headrace.catalog.source import Source
from headrace.errors import NotFound, SpecError, shown
from headrace.files import read_whole
from headrace.mix.describe import Part, given
from headrace.recipe_plain import plain

T = TypeVar("T")
Lines: TypeAlias = dict[str, int]
"""The line of each field, by its path."""

MOST_BYTES = 2**20
MOST_DEPTH = 16
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping of fields",
    NoneType: "nothing",
}


class _Wrong(Exception):
    """What is wrong, and at which path; becomes a SpecError where it is known whether there are lines."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"{shown(self.path)}: {self.why}" if self.path else self.why


# --- out


class _Dumper(yaml.SafeDumper):
    """Writes strings so that `_scalar` reads them back as strings; lists are set in under their field."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Line breaks that only YAML knows (NEL, U+2028) survive in escapes alone.
    style = None if isinstance(_scalar(text), str) and text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(description: Any) -> str:
    values = plain(description, defaults=False)
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9, default_flow_style=False)


# --- in


def from_plain(cls: type[T], values: object) -> T:
    """The description that `plain` wrote."""
    try:
        made: T = _value(cls, values, "")
    except _Wrong as wrong:
        raise SpecError(str(wrong)) from None
    return made


def from_yaml(cls: type[T], text_or_path: str | Path) -> T:
    """The description in a YAML text, or in a file where a Path is given."""
    if isinstance(text_or_path, Path):
        label, text = shown(text_or_path), _read(text_or_path)
    else:
        label, text = "recipe", _sized(text_or_path, "recipe")
    lines: Lines = {}
    try:
        values = _plain_nodes(text, label, lines)
        made: T = _value(cls, values, "")
    except _Wrong as wrong:
        path = wrong.path
        while path and path not in lines:
            path = re.sub(r"(^|\.)[^.\[]*$|\[[^\[]*$", "", path)
        raise SpecError(f"{label} line {lines.get(path, 1)}: {wrong}") from None
    return made


def _read(path: Path) -> str:
    try:
        data = read_whole(path, MOST_BYTES)
    except FileNotFoundError:
        raise NotFound(f"{shown(path)}: there is no such recipe file") from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            raise SpecError(f"{shown(path)} is larger than {MOST_BYTES:,} bytes, which no recipe is") from None
        why = getattr(error, "strerror", None) or error
        raise SpecError(f"{shown(path)} cannot be read as a recipe: {shown(why)}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpecError(f"{shown(path)} line {line}: this is not UTF-8 text; save the recipe as UTF-8") from None


def _sized(text: object, label: str) -> str:
    if not isinstance(text, str):
        raise SpecError(f"{label}: YAML text or a pathlib.Path is expected; got {type(text).__name__}")
    if len(text) > MOST_BYTES:
        raise SpecError(f"{label}: the text is longer than {MOST_BYTES:,} characters, which no recipe is")
    return text


# --- YAML to plain values and lines


class _Loader(yaml.SafeLoader):
    """Composes nodes; it never constructs anything."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _Refused(line, "anchors and aliases (& and *) are not read; write the value out")
        if getattr(event, "tag", None) is not None:
            raise _Refused(line, f"the tag {shown(event.tag)!r} is not read; a recipe holds plain values only")
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise _Refused(line, "this is nested deeper than any recipe")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _Refused(Exception):
    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


def _plain_nodes(text: str, label: str, lines: Lines) -> Any:
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
        return None if node is None else _plain_node(node, "", lines)
    except _Refused as refused:
        raise SpecError(f"{label} line {refused.line}: {refused}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError(f"{label} line {line}: the character {error.character!r} may not stand in YAML") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = ", ".join(shown(part) for part in (error.context, error.problem) if part)
        raise SpecError(f"{label} line {mark.line + 1 if mark else 1}: this is not YAML: {why}") from None


def _plain_node(node: yaml.Node, path: str, lines: Lines) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node.value) if node.style is None else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_plain_node(item, f"{path}[{i}]", lines) for i, item in enumerate(node.value)]
    out: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise _Refused(line, "a field's name is plain text")
        below = f"{path}.{key.value}" if path else key.value
        if key.value in out:
            raise _Refused(line, f"{shown(below)} stands here again; it was given on line {lines[below]}")
        lines[below] = line
        out[key.value] = _plain_node(value, below, lines)
    return out


_INT = re.compile(r"[-+]?[0-9][0-9_]{0,30}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_FIXED: dict[str, Any] = {"": None, "~": None, "null": None, "true": True, "false": False}
_FIXED |= {".nan": float("nan"), ".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf")}


def _scalar(text: str) -> Any:
    """An unquoted scalar, by the core schema of YAML 1.2: `no` is text, `1e-3` is a number, `1:30` is not 90."""
    if text.lower() in _FIXED:
        return _FIXED[text.lower()]
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    return float(text) if _FLOAT.fullmatch(text) else text


# --- plain values to descriptions


def _value(hint: Any, value: Any, path: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in get_args(hint):
            return None
        kinds = [arg for arg in get_args(hint) if arg is not NoneType]
        if len(kinds) > 1 and all(kind in _WORDS for kind in kinds) and type(value) not in kinds:
            raise _Wrong(path, f"{given(value)} is not {', or '.join(_WORDS[kind] for kind in kinds)}")
        hint = next((kind for kind in kinds if type(value) is kind), kinds[0])
        origin = get_origin(hint)
    if origin is Literal:
        if value not in get_args(hint):
            raise _Wrong(path, f"{given(value)} is not one of {', '.join(map(str, get_args(hint)))}")
        return value
    if origin is tuple:
        return tuple(_value(get_args(hint)[0], v, f"{path}[{i}]") for i, v in enumerate(_of(list, value, path)))
    if origin is Mapping:
        # As it stands: the description checks names and numbers, and its message names both.
        return _of(dict, value, path)
    if dataclasses.is_dataclass(hint):
        return _description(hint, value, path)
    return _of(hint, value, path)


def _of(kind: type[T], value: Any, path: str) -> T:
    if kind is float and type(value) is int:
        return value  # type: ignore[return-value]
    if type(value) is not kind:
        if value is None:
            way = "leave the field out to take its default, or give" if path else "a recipe is"
            raise _Wrong(path, f"nothing is given; {way} {_WORDS[kind]}")
        hint = "; put it in quotes" if kind is str and isinstance(value, bool | int | float) else ""
        raise _Wrong(path, f"{given(value)} is not {_WORDS[kind]}{hint}")
    return value


def _description(cls: Any, value: Any, path: str) -> Any:
    if cls in (Source, Part) and isinstance(value, str):
        try:
            source = Source.parse(value)
        except SpecError as error:
            raise _Wrong(path, str(error)) from None
        return source if cls is Source else Part(source=source)
    hints, fields = get_type_hints(cls), {field.name: field for field in dataclasses.fields(cls)}
    found = {}
    for name, item in _of(dict, value, path).items():
        below = f"{path}.{name}" if path else str(name)
        if name not in fields:
            close = get_close_matches(str(name), fields, n=1)
            known = f"did you mean {close[0]}?" if close else f"the fields here are {', '.join(fields)}"
            raise _Wrong(below, f"there is no such field; {known}")
        found[name] = _value(hints[name], item, below)
    for name, field in fields.items():
        if name not in found and field.default is field.default_factory is dataclasses.MISSING:
            raise _Wrong(path, f"the field {name} is missing")
    try:
        return cls(**found)
    except SpecError as error:
        raise _placed(error, path, fields) from None


def _placed(error: SpecError, path: str, fields: Mapping[str, Any]) -> _Wrong:
    """A description's complaint starts with `field=value` or `field:`; the field goes into the path."""
    match = re.match(r"((\w+)([\w.\[\]]*|\[[^=]*\]))(=|: )", str(error))
    if match is None or match[2] not in fields:
        return _Wrong(path, str(error))
    return _Wrong(f"{path}.{match[1]}" if path else match[1], str(error)[match.end() :])
