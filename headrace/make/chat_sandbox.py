"""Chat templates in a sandbox that counts: loops, calls, operators, filters and output all draw on one `Budget`.

The sandbox of jinja2 keeps a template from reaching Python. It does not keep it from running for years or from filling
the memory. What is written is what transformers writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.lexer import Token, TokenStream
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context

from headrace.make.chat_budget import LONGEST, Budget, Counted, TooMuch
from headrace.make.chat_parts import Format, bounded_filters, bounded_tests, call_method, operate

LONGEST_TEMPLATE = 1 << 17
"""Characters of a template. The longest that models have are of about 40,000."""
MOST_TOKENS, MOST_NAMES = 50_000, 1_000
"""Tokens of a template, and different names in it. jinja2 takes a few KB for each token, and copies all names for each
`if`."""
MOST_CODE = 1 << 22
"""Characters of Python code that a template becomes. Some statements write every name that there is."""
_ROUND = 4
"""Steps that a block takes in addition to what is in it."""
_CALL, _MACRO_CALL = 16, 128
"""Steps of a call in jinja2, and of one of a macro."""
_LOOP, _MACRO = 512, 1024
"""Bytes that stay where a template keeps the `loop` or the macro."""
_SCALARS = {str, int, float, bool, type(None)}
_BARE: dict[type, Any] = {str: str.__str__, int: int.__int__, float: float.__float__}
_BODIES = (nodes.For, nodes.If, nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.With, nodes.AssignBlock)


class Written(NamedTuple):
    text: str
    said: list[tuple[int, int]]
    """Characters between generation marks: from the first number up to the second."""


def write(template: str, variables: Mapping[str, Any], *, marks: bool) -> Written:
    """What a template makes of `variables`; `marks`: with what stands between generation marks. It raises `TooMuch`,
    or whatever the template makes it raise."""
    if len(template) > LONGEST_TEMPLATE:
        raise TooMuch(f"has {len(template):,} characters; {LONGEST_TEMPLATE:,} may be")
    compiled = _compiled(template)
    context = compiled.new_context({name: _plain(value) for name, value in variables.items()})
    assert isinstance(context, Counted)
    text = "".join(_counted(compiled.root_render_func(context), context))
    return Written(text, context.said if marks else [])


def _counted(pieces: Iterable[str], context: Counted) -> Iterator[str]:
    for piece in pieces:
        context.written += len(piece)
        if context.written > LONGEST:
            raise TooMuch(f"makes more than {LONGEST:,} characters of one sample")
        yield piece


@lru_cache(maxsize=64)
def _compiled(template: str) -> jinja2.Template:
    return _Environment().from_string(template)


def _plain(value: Any) -> Any:
    """JSON's kinds of values and nothing else: other objects have methods that no sandbox knows."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is dict or isinstance(value, Mapping):
        return {_plain(key): one if type(one) is str else _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    for base, bare in _BARE.items():
        if isinstance(value, base):
            return bare(value)
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if type(value).__module__ == "numpy" and hasattr(value, "item") and not getattr(value, "shape", ()):
        return _plain(value.item())
    return f"<{type(value).__name__}>"


class _Code(CodeGenerator):
    """Python code of a template that counts what it does."""

    _length = 0

    def write(self, x: str) -> None:
        self._length += len(x)
        if self._length > MOST_CODE:
            raise TooMuch(f"becomes more than {MOST_CODE:,} characters of Python code")
        super().write(x)

    def blockvisit(self, nodes: Iterable[Node], frame: Frame) -> None:
        statements = list(nodes)
        self.writeline(f"context.tick({_ROUND + sum(map(_steps, statements))})")
        super().blockvisit(statements, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        if node.test is not None:  # rounds that it leaves out are rounds
            tick = nodes.Getattr(nodes.ContextReference(), "tick", "load")
            count = nodes.Call(tick, [nodes.Const(4 * _ROUND + _steps(node.test))], [], None, None)
            node.test = nodes.And(count, node.test).set_environment(self.environment)
        self.writeline(f"context.take({_LOOP})")
        super().visit_For(node, frame)

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:
        self.writeline(f"context.take({_MACRO})")
        super().visit_Macro(node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._within("made", super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("context.keyed((")
        for pair in node.items:
            self.write("(")
            self.visit(pair.key, frame)
            self.write(", ")
            self.visit(pair.value, frame)
            self.write("), ")
        self.write("))")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._within("made", super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._within("made", super().visit_Getitem, node, frame)
        elif isinstance(node.arg, nodes.Const):
            super().visit_Getitem(node, frame)
        else:
            self.write("environment.getitem(")
            self.visit(node.node, frame)
            self.write(", ")
            self._within("key", self.visit, node.arg, frame)
            self.write(")")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        parts: list[nodes.Expr] = []
        left: nodes.Expr = node
        while isinstance(left, nodes.Add):
            parts.append(left.right)
            left = left.left
        self._of_all("added", [left, *reversed(parts)], frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self._of_all("joined", node.nodes, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        operands = [node.expr, *(operand.expr for operand in node.ops)]
        signs = [operand.op for operand in node.ops]
        if len(signs) == 1 and signs[0] in ("in", "notin") and not _is_small(operands[1]):
            self.write("(not " if signs[0] == "notin" else "(")
            self._of_two("sought", operands, frame)
            self.write(")")
            return
        method = "chained" if {"in", "notin"}.intersection(signs) else "used"
        easy = len(signs) == 1 and any(map(_is_small, operands))
        self.write("(")
        for sign, one in zip(["", *(f" {_SIGNS[sign]} " for sign in signs)], operands, strict=True):
            self.write(sign)
            if easy or _is_small(one):
                self.visit(one, frame)
            else:
                self._within(method, self.visit, one, frame)
        self.write(")")

    def _within(self, method: str, visit: Any, node: nodes.Node, frame: Frame) -> None:
        self.write(f"context.{method}(")
        visit(node, frame)
        self.write(")")

    def _of_two(self, method: str, operands: list[nodes.Expr], frame: Frame) -> None:
        self.write(f"context.{method}(")
        self.visit(operands[0], frame)
        self.write(", ")
        self.visit(operands[1], frame)
        self.write(")")

    def _of_all(self, method: str, parts: Iterable[nodes.Expr], frame: Frame) -> None:
        self.write(f"context.{method}((")
        for part in parts:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        text = "".join(group)
        return repr(text) if text.isascii() else f"context.constant({text!r})"

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo) -> None:
        self.write("context.shown(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo) -> None:
        self.write(")")


_SIGNS = {"eq": "==", "ne": "!=", "gt": ">", "gteq": ">=", "lt": "<", "lteq": "<=", "in": "in", "notin": "not in"}


def _is_small(node: nodes.Expr) -> bool:
    """Whether a comparison with it takes no longer than to read it in the template."""
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(isinstance(item, nodes.Const) for item in node.items)
    return isinstance(node, nodes.Const)


def _steps(node: nodes.Node) -> int:
    """Parts of a statement, without those of blocks in it, which count by themselves. Text counts by its length."""
    if isinstance(node, nodes.TemplateData):
        return 1 + len(node.data)
    if isinstance(node, nodes.Const):
        return 1 + (len(node.value) if isinstance(node.value, str) else 0)
    inside = node.iter_child_nodes(exclude=("body", "else_") if isinstance(node, _BODIES) else ())
    return 1 + sum(map(_steps, inside))


class _Measure(Extension):
    """Counts what a template consists of while it is read, before anything is made of it."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        names: set[str] = set()
        for number, token in enumerate(stream):
            if number == MOST_TOKENS:
                raise TooMuch(f"has more than {MOST_TOKENS:,} tokens")
            if token.type == "name":
                names.add(token.value)
            if len(names) > MOST_NAMES:
                raise TooMuch(f"has more than {MOST_NAMES:,} different names")
            yield token


class _Generation(Extension):
    """`{% generation %}` and `{% endgeneration %}` around what the assistant says."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("said"), [], [], body).set_lineno(line)

    @pass_context
    def said(self, context: Context, caller: Macro) -> str:
        assert isinstance(context, Counted)
        text = str(caller())
        context.said.append((context.written, context.written + len(text)))
        return text


class _Environment(ImmutableSandboxedEnvironment):
    """What transformers gives to chat templates, with everything counted."""

    code_generator_class = _Code
    context_class = Counted
    intercepted_binops = frozenset({"*", "%", "**", "-", "//", "/"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Measure, _Generation, loopcontrols])
        self.filters["tojson"] = _tojson
        self.filters = bounded_filters(self.filters)
        self.tests = bounded_tests(self.tests)  # type: ignore[assignment, arg-type]
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise
        self.globals["dict"] = _Dicts()
        self.globals["namespace"] = _Namespace

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        assert isinstance(context, Counted)
        return operate(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Any:
        if super().wrap_str_format(value) is None:
            return None
        return Format(value.__self__, self, is_map=value.__name__ == "format_map")

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(argument) is tuple:  # of which the hash may take for ever
            raise SecurityError("a chat template cannot look a tuple up")
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(__context, Counted)
        __context.tick((_MACRO_CALL if isinstance(__obj, Macro) else _CALL) + len(args) + len(kwargs))
        owner = getattr(__obj, "__self__", None)
        if isinstance(__obj, Format) or (owner is not None and not isinstance(owner, Budget | Extension | _Dicts)):
            for name in ("_loop_vars", "_block_vars"):  # which jinja2 adds for its own functions
                kwargs.pop(name, None)
            return call_method(__context, __obj, args, kwargs)
        if isinstance(__obj if owner is None else owner, _Dicts):
            for arg in args:
                _check_keys(__context, arg, pairs=owner is None)
        if __obj is _Namespace:  # which copies what it is given
            for arg in args:
                __context.used(arg)
        return __context.made(super().call(__context, __obj, *args, **kwargs))


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: Any) -> NoReturn:
    raise TemplateError(message)


def _check_keys(context: Counted, value: Any, pairs: bool) -> None:
    """Check what become keys where a dict is made of a value: of another, of a list of pairs, or of a list of keys."""
    context.used(value)
    if isinstance(value, Mapping):
        context.hashed(value.keys())
    elif isinstance(value, list | tuple):
        context.hashed(map(_first, value) if pairs else value)


def _first(item: Any) -> Any:
    """The key in what may be a pair of one and a value."""
    return next(iter(item), None) if hasattr(type(item), "__len__") and type(item) is not str else None


class _Dicts:
    """`dict(...)` without what hangs on Python's own."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    def __init__(*args: Any, **kwargs: Any) -> None:  # a template may name an attribute `self`
        self, rest = args[0], args[1:]
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a chat template cannot store {name!r} in a namespace; names there begin with a letter")
