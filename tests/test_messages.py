"""Messages say what a value is and quote none of it, whatever it is, and whatever a library says of it."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from headrace.errors import described, unquoted

SECRET = "Zx9-Qv7wKj4z"


class Odd:
    shape = ()

    def item(self) -> Any:
        raise RuntimeError(SECRET)

    def __repr__(self) -> str:
        return SECRET


VALUES: dict[str, tuple[Any, str]] = {
    "text": (SECRET, "text of 12 characters"),
    "a character": ("Z", "text of 1 character"),
    "bytes": (SECRET.encode(), "12 bytes"),
    "a list": ([SECRET] * 1200, "a list of 1,200"),
    "a mapping": ({SECRET: SECRET}, "an object of 1 key"),
    "nothing": (None, "null"),
    "false": (False, "false"),
    "a number": (-7, "-7"),
    "no number": (float("nan"), "nan"),
    "a number of numpy": (np.int64(7), "7"),
    "a number of torch": (torch.tensor(7), "7"),
    "a long number": (1 << 4000, "a whole number of 4,001 bits"),
    "an array": (np.zeros((2, 3), np.float32), "an array of float32 and shape (2, 3)"),
    "a decimal": (Decimal("1.5"), "a value of type Decimal"),
    "one that fails": (Odd(), "a value of type Odd"),
    "no array": (SimpleNamespace(dtype=SECRET, shape=5), "a value of type SimpleNamespace"),
    "a tensor without numbers": (torch.tensor(7, device="meta"), "a value of type Tensor"),
}


@pytest.mark.parametrize("case", VALUES)
def test_a_value_is_described_and_not_quoted(case: str) -> None:
    value, said = VALUES[case]
    assert described(value) == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"no such type '{SECRET}' in it", "no such type … in it"),
        (f'expected `{SECRET}` or "{SECRET}", not this', "expected …, not this"),
        (f"b'{SECRET}' is not UTF-8", "b… is not UTF-8"),
        (f"it's '{SECRET}', isn't it", "it's …, isn't it"),
        (f"'utf-8' codec can't decode '{SECRET}'", "…"),
        ("'utf-8' codec can't decode byte 0xff", "… codec can't decode byte 0xff"),
        (f'one "{SECRET}', "one …"),
        (f"it's '{SECRET}", "it's …"),
        ("nothing is quoted", "nothing is quoted"),
    ],
)
def test_what_a_library_quotes_is_left_out(words: str, said: str) -> None:
    assert unquoted(ValueError(words)) == said
