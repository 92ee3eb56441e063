"""Filters, tests, methods and operators of chat templates, each with what it makes known before it is made."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter
from jinja2.runtime import LoopContext, Macro, Undefined
from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter
from jinja2.utils import _PassArg, pass_context

from headrace.make.chat_budget import BITS, SPELLED, Counted, TooMuch, size_of, weigh, width_of

_DIGITS = 100
_CALL = 32
"""Steps of a filter or of a method, and of what a filter does with each item of a list."""
_PER_FIELD = 128
"""Steps of each field that `format` fills in."""
_PIECE = 64
"""Bytes of a short text in a list."""
_WORD = 96
"""Bytes for each character of a text that is taken apart into words, and each of those made anew."""
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_FIELD = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d+))?")

Forecast = Callable[..., None]
"""Called with the context and the arguments: it takes what the result will need, or raises `TooMuch`."""


# --- operators


_EASY: dict[str, Callable[[Any, Any], Any]] = {
    "-": operator.sub,
    "/": operator.truediv,
    "//": operator.floordiv,
}


def operate(context: Counted, sign: str, left: Any, right: Any) -> Any:
    """All that takes two numbers, but for `+`."""
    for number in (left, right):
        if isinstance(number, int):
            if number.bit_length() > BITS:
                raise TooMuch(f"calculates with a number of more than {BITS:,} bits")
            context.tick(number.bit_length() >> 4)
    if sign in _EASY:
        return context.made(_EASY[sign](left, right))
    if sign == "%":
        if isinstance(left, str):
            _foresee_format(context, left, right)
        return context.made(left % right)
    if sign == "**":
        made = context.made(_power(left, right))
        context.tick(made.bit_length() >> 2 if isinstance(made, int) else 0)
        return made
    for count, thing in ((left, right), (right, left)):
        if isinstance(count, int) and hasattr(thing, "__len__") and not isinstance(thing, Undefined):
            context.take(max(count, 0) * (size_of(thing) if isinstance(thing, str) else 16 * len(thing)))
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > BITS:
        raise TooMuch(f"makes a number of more than {BITS:,} bits")
    return left * right


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * max(right, 0) > BITS:
        raise TooMuch(f"makes a number of more than {BITS:,} bits")
    return operator.pow(left, right)


def _foresee_format(context: Counted, form: str, values: Any) -> None:
    size = weigh(values, context.budget.room)
    context.tick(len(form))
    context.take(len(form) + size)
    total = size_of(form)
    for width, precision in _FIELD.findall(form):
        if "*" in (width, precision):
            raise TooMuch("takes the width of a field from a value, which is not done here")
        field = size + _number(width) + _number(precision)
        context.take(field)
        total += field
    context.hold(SPELLED * total)


def _number(digits: str) -> int:
    if len(digits) > 12:
        raise TooMuch("gives a field a width of more than 12 digits")
    return int(digits or 0)


# --- filters and tests


def _whole(context: Counted, *values: Any, **named: Any) -> None:
    """What comes out is about as large as what goes in, all of which is read."""
    for value in (*values, *named.values()):
        context.used(value)


def _cased(context: Counted, value: Any) -> None:
    """Python gives room to three characters for each that is not ASCII, and then makes the result of them."""
    text = context.spelled(value)
    context.hold((1 if text.isascii() else 24) * len(text))


def _spelled(context: Counted, value: Any) -> None:
    context.spelled(value)


def _searched(context: Counted, text: Any, *rest: Any, **named: Any) -> None:
    _whole(context, text, *rest, **named)
    for one in rest:
        context.compared(text, one)


def _searched_backward(context: Counted, text: Any, *rest: Any, **named: Any) -> None:
    _whole(context, text, *rest, **named)
    for one in rest:
        context.compared(text, one, backward=True)


def _sought(context: Counted, value: Any, seq: Any) -> None:
    _searched(context, seq, value)


def _foresee_strip(context: Counted, value: Any, chars: Any = None) -> None:
    """Each character may be looked for among those that go."""
    text = context.spelled(value)
    context.used(chars)
    context.tick(_len(text) * (len(chars) if isinstance(chars, str) else 0) >> 6)


def _top(context: Counted, value: Any, *rest: Any, **named: Any) -> None:
    """Only the list itself is read, not what is in it."""
    if hasattr(value, "__len__") and not isinstance(value, str):
        context.take(16 * len(value))


def _each(context: Counted, value: Any, *rest: Any, **named: Any) -> None:
    """Something is done with each item of a list."""
    context.tick(_CALL * _len(value) * _parts(*rest[:1], **named))


def _len(value: Any) -> int:
    return len(value) if hasattr(type(value), "__len__") and not isinstance(value, Undefined) else 1


def _parts(*names: Any, **named: Any) -> int:
    """Attributes that are looked up for each item: a filter may be given `a.b.c`."""
    texts = [name for name in (*names, named.get("attribute")) if isinstance(name, str)]
    return 1 + sum(text.count(".") + text.count(",") for text in texts)


def _foresee_sort(context: Counted, value: Any, *rest: Any, **named: Any) -> None:
    """Each item is compared with some others, by their attributes where those are given."""
    _whole(context, value)
    context.tick(2 * _CALL * _len(value) * _parts(*rest, **named))


def _foresee_unique(context: Counted, value: Any, case_sensitive: Any = False, attribute: Any = None) -> None:
    _foresee_sort(context, value, attribute)
    if not isinstance(value, list | tuple | str | Mapping | range):
        raise SecurityError("unique is there for lists only in a chat template")
    context.hashed(value if attribute is None else map(make_attrgetter(context.environment, attribute), value))


def _foresee_slow(per_character: int, size: int = 1) -> Forecast:
    """Each character of a text is looked at in Python, or by a regular expression."""

    def foresee(context: Counted, value: Any, *rest: Any, **named: Any) -> None:
        _whole(context, value, *rest, **named)
        length = _len(str(value))
        context.tick(per_character * length)
        context.hold(size * length)

    return foresee


def _foresee_int(context: Counted, value: Any, *rest: Any, **named: Any) -> None:
    """The time to read a number grows with the square of its digits, of which Python takes so many."""
    _whole(context, value, *rest, **named)
    if isinstance(value, str):
        context.tick(len(value))
        context.tick(min(len(value), sys.get_int_max_str_digits() or len(value)) ** 2 >> 4)


def _none(context: Counted, *values: Any, **named: Any) -> None:
    """It takes no time."""


def _foresee_characters(context: Counted, value: Any) -> None:
    context.take((_PIECE if isinstance(value, str) else 16) * (len(value) if hasattr(value, "__len__") else 1))


def _foresee_join(context: Counted, value: Any, d: Any = "", attribute: Any = None) -> None:
    count = _len(value)
    context.tick(_CALL * count * _parts(attribute) if attribute is not None else count)
    size = weigh(value, context.budget.room) + count * weigh(d, context.budget.room)
    context.take(size)
    is_of_texts = attribute is None and isinstance(value, list | tuple) and all(type(item) is str for item in value)
    context.hold((4 if is_of_texts and type(d) is str else SPELLED) * size)


def _foresee_replace(context: Counted, s: Any, old: Any, new: Any, count: Any = None) -> None:
    text, old, new = context.spelled(s), context.spelled(old), context.spelled(new)
    context.compared(text, old)
    made = (len(text) + text.count(old) * len(new)) * _widest(text, new)
    context.take(made)
    if type(s) is not str:  # a marked text escapes the new one
        context.hold(6 * made)


def _widest(*texts: Any) -> int:
    return max((width_of(text) for text in texts if isinstance(text, str)), default=1)


def _foresee_indent(context: Counted, s: Any, width: Any = 4, first: bool = False, blank: bool = False) -> None:
    text = context.spelled(s)
    lines = 2 + sum(map(text.count, _LINE_ENDS))
    context.take(lines * (_PIECE + (len(width) if isinstance(width, str) else int(width)) * _widest(text, width)))
    context.hold(4 * size_of(text))


def _foresee_center(context: Counted, value: Any, width: Any = 80) -> None:
    text = context.spelled(value)
    context.take(abs(int(width)) * width_of(text))


def _foresee_truncate(context: Counted, s: Any, length: Any = 255, *more: Any, **named: Any) -> None:
    _whole(context, s, *more, **named)
    context.hold(4 * _len(s))


def _foresee_parts(context: Counted, value: Any, count: Any, fill_with: Any = None) -> None:
    _top(context, value)
    context.take(2 * _PIECE * abs(int(count)))


def _foresee_round(context: Counted, value: Any, precision: Any = 0, method: Any = "common") -> None:
    if abs(int(precision)) > _DIGITS:
        raise TooMuch(f"rounds to more than {_DIGITS} digits")


def _foresee_sum(context: Counted, value: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, int | float):
        raise TooMuch("adds up what are no numbers, which takes the square of the time")
    _foresee_sort(context, value, attribute)


def _foresee_json(
    context: Counted,
    x: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> None:
    size = weigh(x, context.budget.room)
    context.take(size * (6 if ensure_ascii else 1))
    context.hold(SPELLED * size)
    space = len(indent) if isinstance(indent, str) else int(indent or 0)
    if space > _DIGITS:
        raise TooMuch(f"indents JSON by more than {_DIGITS} characters")
    marks = sum(len(str(mark)) for mark in separators or ())
    context.take(size // _PIECE * (marks + (space * _depth(x) if space else 0)))


def _depth(value: Any) -> int:
    found, layer = 0, [value]
    while layer:
        found += 1
        inner: list[Any] = []
        for one in layer:
            inner += one.values() if isinstance(one, Mapping) else one if isinstance(one, list | tuple) else ()
        layer = inner
    return found


def _foresee_filled(context: Counted, value: Any, *values: Any, **named: Any) -> None:
    _foresee_format(context, str(context.used(value)), named or values)


def _times(factor: int) -> Forecast:
    """What comes out is up to `factor` times as large as what goes in."""

    def foresee(context: Counted, *values: Any, **named: Any) -> None:
        for value in (*values, *named.values()):
            context.take(factor * weigh(value, context.budget.room))

    return foresee


def _foresee_striptags(context: Counted, value: Any) -> None:
    """Some versions of MarkupSafe copy all of the text for each tag in it."""
    text = context.spelled(value)
    context.tick(min(text.count("<"), text.count(">")) * len(text) >> 8)
    context.hold(_WORD * len(text))
    _times(6)(context, text)


_FILTERS: dict[str, Forecast] = {
    **dict.fromkeys(("d", "default", "length", "count", "first", "abs"), _none),
    "safe": _spelled,
    "attr": _whole,
    **dict.fromkeys(("last", "reverse", "items", "random"), _top),
    **dict.fromkeys(("map", "select", "reject", "selectattr", "rejectattr"), _each),
    **dict.fromkeys(("capitalize", "lower", "upper"), _cased),
    "trim": _foresee_strip,
    "string": _spelled,
    "filesizeformat": _whole,
    **dict.fromkeys(("sort", "min", "max", "groupby", "dictsort"), _foresee_sort),
    "unique": _foresee_unique,
    "title": _foresee_slow(8, _WORD),
    "wordcount": _foresee_slow(2, _WORD),
    "float": _foresee_slow(2),
    "int": _foresee_int,
    **dict.fromkeys(("e", "escape", "forceescape"), _times(6)),
    "striptags": _foresee_striptags,
    "urlencode": _times(24),  # of each byte in UTF-8 it makes an item of a list, and up to three characters
    "list": _foresee_characters,
    "join": _foresee_join,
    "replace": _foresee_replace,
    "indent": _foresee_indent,
    "center": _foresee_center,
    "truncate": _foresee_truncate,
    "batch": _foresee_parts,
    "slice": _foresee_parts,
    "round": _foresee_round,
    "sum": _foresee_sum,
    "tojson": _foresee_json,
    "format": _foresee_filled,
}
"""Others (pprint, urlize, wordwrap, xmlattr) are not known here, and no chat template has a use for them."""

_READING_TESTS = ("eq", "==", "equalto", "ne", "!=", "lt", "<", "lessthan", "le", "<=", "gt", ">", "greaterthan")
_MORE_READING_TESTS = ("ge", ">=", "upper", "lower")


def bounded_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    return {name: _bounded(filters[name], foresee) for name, foresee in _FILTERS.items() if name in filters}


def bounded_tests(tests: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    reading = {**dict.fromkeys((*_READING_TESTS, *_MORE_READING_TESTS), _whole), "in": _sought}
    return {name: _bounded(test, reading[name]) if name in reading else test for name, test in tests.items()}


def _bounded(function: Callable[..., Any], foresee: Forecast) -> Callable[..., Any]:
    wants = _PassArg.from_obj(function)

    @wraps(function)
    def bounded(context: Counted, *args: Any, **kwargs: Any) -> Any:
        context.tick(_CALL)
        foresee(context, *args, **kwargs)
        if wants is None:
            return context.made(function(*args, **kwargs))
        first = {_PassArg.context: context, _PassArg.eval_context: context.eval_ctx}.get(wants, context.environment)
        return context.made(function(first, *args, **kwargs))

    return pass_context(bounded)


# --- methods


def _foresee_width(context: Counted, text: str, width: Any, *fill: Any) -> None:
    context.take((len(text) + abs(int(width))) * _widest(text, *fill))


def _foresee_tabs(context: Counted, text: str, tabsize: Any = 8) -> None:
    context.take((len(text) + text.count("\t") * abs(int(tabsize))) * width_of(text))


def _foresee_rsplit(context: Counted, text: str, sep: Any = None, maxsplit: Any = -1) -> None:
    context.compared(text, sep, backward=True)
    _foresee_split(context, text, sep, maxsplit)


def _foresee_split(context: Counted, text: str, sep: Any = None, maxsplit: Any = -1) -> None:
    context.compared(text, sep)
    count = text.count(sep) if isinstance(sep, str) and sep else len(text) // 2
    context.take(len(text) + _PIECE * (1 + (min(count, maxsplit) if maxsplit >= 0 else count)))


def _foresee_lines(context: Counted, text: str, keepends: Any = False) -> None:
    _foresee_indent(context, text, 0)
    context.take(len(text))


def _foresee_get(context: Counted, mapping: Any, key: Any, default: Any = None) -> None:
    context.key(key)


def _foresee_joined(context: Counted, text: str, parts: Any) -> None:
    _foresee_join(context, parts, text)


_METHODS: dict[str, Forecast] = {
    **dict.fromkeys(
        [
            "endswith",
            "isalnum",
            "isalpha",
            "isascii",
            "isdecimal",
            "isdigit",
            "isidentifier",
            "islower",
            "isnumeric",
            "isprintable",
            "isspace",
            "istitle",
            "isupper",
            "removeprefix",
            "removesuffix",
            "startswith",
        ],
        _whole,
    ),
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _foresee_width),
    "expandtabs": _foresee_tabs,
    "replace": _foresee_replace,
    "join": _foresee_joined,
    "split": _foresee_split,
    "rsplit": _foresee_rsplit,
    **dict.fromkeys(("count", "find", "index", "partition"), _searched),
    **dict.fromkeys(("rfind", "rindex", "rpartition"), _searched_backward),
    **dict.fromkeys(("capitalize", "casefold", "lower", "swapcase", "title", "upper"), _cased),
    **dict.fromkeys(("lstrip", "rstrip", "strip"), _foresee_strip),
    "splitlines": _foresee_lines,
}
_ALLOWED: dict[type, dict[str, Forecast]] = {
    dict: {**dict.fromkeys(("items", "keys", "values", "copy"), _none), "get": _foresee_get},
    list: {"copy": _top, "index": _whole, "count": _whole},
    tuple: {"index": _whole, "count": _whole},
}


def call_method(context: Counted, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method of a value of the template."""
    if isinstance(method, Format):
        return method.run(context, args, kwargs)
    owner, name = method.__self__, method.__name__
    known = _METHODS if isinstance(owner, str) else _ALLOWED.get(type(owner))
    if known is None:
        if isinstance(owner, LoopContext | Macro) or type(owner).__module__.startswith("jinja2."):
            _whole(context, *(arg for arg in args if not isinstance(arg, Macro)))
            return context.made(method(*args, **kwargs))
        known = {}
    if name not in known:
        raise SecurityError(f"{type(owner).__name__}.{name} is not safely callable in a chat template")
    if type(owner) is dict and name == "get" and args and not isinstance(args[0], str | int | float | None):
        raise SecurityError("a chat template looks up names and numbers only")
    context.tick(_CALL)
    if isinstance(owner, str) and type(owner) is not str:  # a marked text escapes others, and is made of what it makes
        for value in (owner, *args, *kwargs.values()):
            context.hold(6 * weigh(value, context.budget.room))
    known[name](context, owner, *args, **kwargs)
    return context.made(method(*args, **kwargs))


class Format:
    """`format` of a text, which is called with a context only."""

    def __init__(self, text: str, environment: SandboxedEnvironment, is_map: bool) -> None:
        self._text, self._environment, self._is_map = text, environment, is_map

    def run(self, context: Counted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if type(self._text) is not str:
            raise SecurityError("format of a marked text is not safely callable in a chat template")
        if self._is_map:
            (named,) = args
            args, kwargs = (), named
        context.tick(4 * len(self._text))
        made = _Formatter(self._environment, context).vformat(self._text, args, kwargs)
        return str(context.made(made))


class _Formatter(SandboxedFormatter):
    def __init__(self, environment: SandboxedEnvironment, context: Counted) -> None:
        super().__init__(environment)
        self._context, self._characters = context, 0

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion is None:
            return super().convert_field(self._context.used(value), conversion)
        self._context.hold(SPELLED * weigh(value, self._context.budget.room))
        return self._context.made(super().convert_field(self._context.used(value), conversion))

    def format_field(self, value: Any, format_spec: str) -> Any:
        self._context.tick(_PER_FIELD)
        for digits in re.findall(r"\d+", format_spec):
            self._context.take(_number(digits))
            self._context.hold(4 * _number(digits))
        if not isinstance(value, str | int | float):
            value = self._context.spelled(value) if not format_spec else value
        made = self._context.made(super().format_field(value, format_spec))
        self._characters += len(made)
        self._context.hold(4 * self._characters)
        return made
