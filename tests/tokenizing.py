"""What the tests of tokenizing share."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tokenizers
from tokenizers import processors

from headrace.make.backends import Ids, Offsets, Reference
from headrace.testing.tokenizers import BOS, EOS, PAD

TEXTS = ["", "bakori stuen", " two  spaces\r\n", "Привет, λόγος 中文 🙂👩‍👧", f"before {EOS}{PAD} after", "x" * 5000]
BEFORE = processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, 0)])


def bare(core: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in core.encode_batch(list(texts), add_special_tokens=False)]


def lists(found: Sequence[Ids]) -> list[list[int]]:
    return [ids.tolist() for ids in found]


def moved(thing: Any) -> Any:
    """As it arrives in another process."""
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - our own bytes


def run(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin", **env}
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


class PanicException(BaseException):
    """As Rust's panics arrive in Python."""


class Fake:
    """The right ids, but for some texts."""

    def __init__(self, text: str, wrong: Callable[[str], bool], error: BaseException | None) -> None:
        self._right = Reference(tokenizers.Tokenizer.from_str(text))
        self._wrong, self._error = wrong, error

    def encode_flat(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        ids, offsets = self._right.encode_flat(texts)
        for i, text in enumerate(texts):
            if self._wrong(text):
                if self._error is not None:
                    raise self._error
                ids[offsets[i]] += 1
        return ids, offsets


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
