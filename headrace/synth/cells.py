"""Cells of a notebook, with what running them gives."""

from __future__ import annotations

from typing import Any

Cell = dict[str, Any]


def said(text: str) -> Cell:
    return {"cell_type": "markdown", "source": text, "outputs": []}


def ran(source: str, printed: str = "", value: object = None, error: Exception | None = None) -> Cell:
    """A cell of code: what it prints, the value of its last line, and the error that ends it."""
    outputs = []
    if printed:
        outputs.append(_output("stream", printed if printed.endswith("\n") else printed + "\n"))
    if value is not None:
        outputs.append(_output("execute_result", repr(value)))
    if error is not None:
        outputs.append(_output("error", "", f"{type(error).__name__}: {error}"))
    return {"cell_type": "code", "source": source, "outputs": outputs}


def _output(kind: str, text: str, traceback: str = "") -> dict[str, str]:
    """All outputs have the same fields, so that readers with columns see one type."""
    return {"output_type": kind, "text": text, "traceback": traceback}
