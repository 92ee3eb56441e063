"""What is given as the path of a state: a file of a sensible size is read, all else is an error at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from odd_files import PLANTED, soon
from streaming import World

from headrace.errors import StateError
from headrace.tools.states import read_state

ODD: dict[str, Callable[[Path, Path], object]] = {
    **PLANTED,
    "device": lambda path, victim: path.symlink_to("/dev/zero"),
    "huge": lambda path, victim: make_huge(path),
}


def make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 32)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("what", ODD)
def test_what_is_no_state_file_is_refused_soon(tmp_path: Path, world: World, what: str) -> None:
    path, victim = tmp_path / "state\x1b[31m.json", tmp_path / "victim"
    victim.write_text("[]")
    ODD[what](path, victim)
    readers: list[Callable[[], object]] = [
        lambda: read_state(path),
        lambda: world.make(["code"], resume_state_path=str(path)),
    ]
    for read in readers:
        with pytest.raises(StateError) as caught:
            soon(read)
        assert str(caught.value).isprintable()
        assert "unreadable" in str(caught.value) or "JSON object" in str(caught.value)
    assert victim.read_text() == "[]"


def test_a_path_with_nothing_at_it_begins_a_run_and_one_that_may_not_be_looked_at_does_not(
    tmp_path: Path, world: World
) -> None:
    assert next(iter(world.make(["code"], resume_state_path=str(tmp_path / "none.json"))))
    with pytest.raises(StateError, match="unreadable"):
        world.make(["code"], resume_state_path=str(tmp_path / ("x" * 300)))
