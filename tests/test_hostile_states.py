"""Whatever text stands in a state: it is never opened, never run, and shown escaped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from near import through_json
from states import at, changed, edited, everywhere, fit_to_show, opened, refused

import headrace
from headrace.errors import HeadraceError
from headrace.stage import State
from headrace.testing import LocalHub, write_parquet

pytestmark = pytest.mark.timeout(60)

HOSTILE = (
    "/etc/HOSTILE",
    "../../../HOSTILE",
    "file:///HOSTILE",
    "http://HOSTILE.invalid/x",
    "parquet:/HOSTILE/*.parquet",
    "hf:HOSTILE/x",
    "__class__.HOSTILE",
    "{0.__class__}HOSTILE",
    "\x1b[31mHOSTILE\x00\r\n",
    "HOSTILE" * 50_000,
    "\ud800HOSTILE",
)

_heard: list[str] | None = None


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if _heard is not None and (event.split(".")[0] in ("open", "os", "socket", "subprocess", "exec", "import")):
        text = repr(args)
        if "HOSTILE" in text:
            _heard.append(f"{event} {text[:300]}")


@cache
def hear() -> None:
    sys.addaudithook(_hear)


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """What was asked of the system that has to do with a hostile string."""
    global _heard
    hear()
    _heard = []
    with suppress(OSError):
        Path("/HOSTILE").read_bytes()
    assert len(_heard) == 1, "it hears"
    _heard.clear()
    yield _heard
    _heard = None


def texts(state: State) -> list[tuple[Any, ...]]:
    parts = opened(state)
    return [path for path, value in everywhere(parts) if isinstance(value, str)]


def test_strings_in_a_state_are_never_opened_and_are_shown_escaped(
    tmp_path: Path, heard: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    write_parquet(tmp_path / "in", [[20, 13], [11], [7, 7]])
    loader = headrace.load(f"parquet:{tmp_path}/in/*.parquet", batch_size=4, lanes=2, cache_dir=tmp_path / "data")
    next(iter(loader))
    state = through_json(loader.state_dict())
    loader.close()
    paths = [path for path in texts(state) if path[0] not in ("recipe", "revisions", "resume_state")]
    assert len(paths) >= 6
    for path in paths:
        for text in HOSTILE:
            try:
                loader.load_state_dict(changed(state, path, text))
            except HeadraceError as error:
                fit_to_show(error)
    assert heard == []
    assert all(c.isprintable() for record in caplog.records for c in record.getMessage())
    loader.load_state_dict(state)


@pytest.mark.parametrize("path", [("lanes", 0), ("lanes", 0, "src", 0), ("sources", 0), ("sources", 0, "identity")])
def test_names_of_fields_in_a_state_are_shown_escaped(tmp_path: Path, heard: list[str], path: tuple[Any, ...]) -> None:
    write_parquet(tmp_path / "in", [[20, 13], [11]])
    loader = headrace.load(f"parquet:{tmp_path}/in/*.parquet", batch_size=4, lanes=2, cache_dir=tmp_path / "data")
    state = through_json(loader.state_dict())
    assert isinstance(at(opened(state), path), dict)
    for text in HOSTILE:
        try:
            loader.load_state_dict(changed(state, (*path, text), 1))
        except HeadraceError as error:
            fit_to_show(error)
    assert heard == []
    loader.load_state_dict(state)


def test_a_revision_in_a_state_is_a_commit_or_nothing_is_asked(tmp_path: Path, hub: LocalHub, heard: list[str]) -> None:
    write_parquet(tmp_path / "in", [[8]], name="train-00000-of-00001.parquet")
    hub.push("me/rows", tmp_path / "in")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in hub.env().items():
            patch.setenv(name, value)
        loader = headrace.load("hf:me/rows", batch_size=2, cache_dir=tmp_path / "data")
        state = through_json(loader.state_dict())
        for text in HOSTILE:
            broken = edited(state, lambda s, lanes, facts: facts[0].update(revision=text))  # noqa: B023
            assert "is not a commit" in refused(lambda: loader.load_state_dict(broken))  # noqa: B023
        assert heard == []
        loader.load_state_dict(state)
        assert len(list(loader)) == 4
