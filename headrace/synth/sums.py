"""Arithmetic that is written down and worked out by the same call, so that no step can show a wrong result."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

_SIGNS = str.maketrans({"×": "*", "÷": "/", ",": ""})
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def value(expression: str) -> Fraction:
    """What an expression of numbers, `+ - × ÷ /` and brackets comes to, exactly."""
    return _value(ast.parse(expression.translate(_SIGNS).strip(), mode="eval").body)


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    assert isinstance(node, ast.BinOp), ast.dump(node)
    return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))


def written(number: Fraction | int) -> str:
    """A number as people write it: whole, as a decimal where that ends, else as a fraction."""
    number = Fraction(number)
    if number.denominator == 1:
        return str(number.numerator)
    for places in range(1, 5):
        scaled = number * 10**places
        if scaled.denominator == 1:
            digits = f"{abs(scaled.numerator):0{places + 1}d}"
            return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    return f"{number.numerator}/{number.denominator}"


def shown(expression: str) -> str:
    """`12 × 7 = 84`."""
    return f"{expression} = {written(value(expression))}"


@dataclass(frozen=True, kw_only=True)
class Problem:
    question: str
    steps: list[str]
    answer: str
    """A sentence with the result in it."""
    result: str
    expression: str = ""
    """The whole problem as one expression; "" where the result is no number."""

    def __post_init__(self) -> None:
        assert self.result in self.answer, self
        assert not self.expression or value(self.expression) == Fraction(self.result.replace(",", "")), self
