"""The oldest versions that are allowed are the ones that are tested, and LeRobot's are among those allowed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import oldest
import pytest
from side_by_side import TESTS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLS = ("bench", "demo", "dev")
"""Extras for those who work on the package itself."""
UNUSED = ("ray", "web")
"""Extras that no code of ours imports yet."""
UNTESTED = {"torch": "only one wheel of it is without CUDA packages (requirements/oldest.txt says so)"}


def version(text: str) -> tuple[int, ...]:
    """Without zeros at the end, so that 15 is 15.0.0."""
    return tuple(int(part) for part in re.sub(r"(\.0)+$", "", text).split("."))


def allowed() -> dict[str, tuple[int, ...]]:
    """The lowest version of each package that the code may meet."""
    extras = PROJECT["optional-dependencies"]
    lines = PROJECT["dependencies"] + [x for name in extras if name not in TOOLS + UNUSED for x in extras[name]]
    pairs = (re.split(r"(?:\[.*\])?>=", line) for line in lines)
    return {name.lower(): version(least) for name, least in pairs}


def pins(file: str, sign: str) -> dict[str, tuple[int, ...]]:
    text = (ROOT / "requirements" / file).read_text()
    found = re.findall(rf"^([\w.-]+)\b[^#\n]*?(?<![<>=]){sign}([\d.]+)", text, re.MULTILINE)
    return {name.lower(): version(at) for name, at in found}


def test_the_environment_of_old_versions_has_exactly_the_oldest_ones() -> None:
    wanted = {name: least for name, least in allowed().items() if name not in UNTESTED}
    tested = pins("oldest.txt", "==")
    assert {name: tested.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("name", ["av", "huggingface_hub", "pillow", "transformers"])
def test_what_lerobot_asks_for_is_allowed(name: str) -> None:
    assert allowed()[name] < pins("lerobot.txt", "<")[name]


def test_an_extra_for_work_on_the_package_names_no_other_version_than_the_one_for_its_users() -> None:
    extras = PROJECT["optional-dependencies"]
    named = {re.split(r"[\[>]", line)[0].lower() for name in TOOLS for line in extras[name]}
    assert named & set(allowed()) == set()


def test_tests_that_are_left_out_with_old_versions_exist_and_have_a_reason() -> None:
    tests = {path.name for path in TESTS.rglob("test_*.py")}
    assert set(oldest.LEFT_OUT) <= tests
    assert all((TESTS / name).is_dir() for name in oldest.FOLDERS_LEFT_OUT)
    assert all({**oldest.LEFT_OUT, **oldest.FOLDERS_LEFT_OUT}.values())
    assert len(oldest.chosen()) > 100
