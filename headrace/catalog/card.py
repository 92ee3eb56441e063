"""The front matter of a README as plain values. It is YAML that anybody may have written."""

from __future__ import annotations

import re
from typing import Any

from headrace.errors import DataError, shown

DEEPEST = 64
"""Levels of a README's front matter."""
MOST_NODES = 200_000
"""Values and keys in it. The largest known cards have half as many."""
LONGEST_NUMBER = 18
"""Characters of a number; what is longer stays a text."""

_TAG = "tag:yaml.org,2002:"
_TAGS = ("str", "int", "float", "bool", "null", "seq", "map")
"""Those that may be written out. Others make sets, pairs, bytes or merges, which no card needs."""
_PLAIN = {None, "!", *(f"{_TAG}{name}" for name in _TAGS)}
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def front_matter(text: str) -> Any:
    """What stands between the two lines of dashes at the head of a README; None where there is nothing."""
    import yaml

    if not text.startswith("---"):
        return None
    head, mark, _ = text[3:].partition("\n---")
    if not mark:
        return None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times as fast
    try:
        _check_shape(head, loader)
        root = yaml.compose(head, Loader=loader)
        if root is None:
            return None
        _spare_numbers(root)
        return yaml.constructor.SafeConstructor().construct_document(root)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
        raise DataError(f"the front matter of README.md is not YAML: {_why(error)}") from error


def _why(error: Exception) -> str:
    """What is wrong and where, without the text that it stands in."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return shown(error) if type(error) is ValueError else type(error).__name__
    return f"line {mark.line + 1}, column {mark.column + 1}: {_QUOTED.sub('…', shown(problem))}"


def _check_shape(text: str, loader: Any) -> None:
    """Refuse what would bring the C loader down (depth), fill the memory (values) or never end (merges of merges,
    which a tag can ask for as well as the key `<<`)."""
    import yaml

    depth = nodes = 0
    for event in yaml.parse(text, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        nodes += isinstance(event, yaml.NodeEvent)
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")
        if nodes > MOST_NODES:
            raise ValueError(f"it has more than {MOST_NODES:,} values")
        if isinstance(event, yaml.ScalarEvent) and event.value == "<<":
            raise ValueError("it has merge keys (<<), which are not supported")
        if getattr(event, "tag", None) not in _PLAIN:
            mark: Any = event.start_mark
            raise ValueError(
                f"line {mark.line + 1}: it has a tag (!), and only {', '.join(_TAGS[:-1])} and {_TAGS[-1]} "
                f"are supported; write the value without a tag"
            )


def _spare_numbers(root: Any) -> None:
    """Leave numbers as texts that are long, or to the base of 60 (1:30): to read those can take as long as they like.

    Keys that are long numbers could also be chosen so that all of them fall into one place of a dictionary.
    """
    import yaml

    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            waiting += [one for pair in node.value for one in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif node.tag in (f"{_TAG}int", f"{_TAG}float") and (":" in node.value or len(node.value) > LONGEST_NUMBER):
            node.tag = f"{_TAG}str"
