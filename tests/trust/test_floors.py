"""Versions below which a known hole is open are not asked for, or are named in the log where we cannot choose."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from named import ROOT

import headrace
from headrace import floors
from headrace.floors import FLOORS
from headrace.testing import write_parquet

LEAST = {
    "pyarrow": ((14, 0, 1), "CVE-2023-47248"),
    "torch": ((2, 6, 0), "CVE-2025-32434"),
    "jinja2": ((3, 1, 6), "CVE-2025-27516"),
    "pyyaml": ((5, 4, 0), "CVE-2020-14343"),
    "typer": ((0, 16, 0), "--help ends in a TypeError with click 8.2 or later"),
}
TOLD = {"pillow": "Pillow", "urllib3": "urllib3"}
"""What others in an environment keep below its floor, so that we take it as it is and say so."""
ABSENT = {
    "filelock": "CVE-2025-68146, CVE-2026-22701: locks are our own",
    "orjson": "CVE-2025-67221: JSON is Python's own",
    "dill": "it unpickles",
    "cloudpickle": "it unpickles",
    "requests": "one HTTP client is enough",
}


def asked_for() -> list[tuple[str, tuple[int, ...]]]:
    """Name and lowest version of everything that is installed with us, from the core and from every extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    found = []
    for line in lines:
        match = re.fullmatch(r"([A-Za-z0-9_.\-]+)(?:\[[^\]]*\])?(?:>=([\d.]+))?", line)
        assert match, line
        found.append((match[1].lower(), version(match[2] or "0")))
    return found


def version(text: str) -> tuple[int, ...]:
    parts = [int(part) for part in re.findall(r"\d+", text)[:3]]
    return tuple(parts + [0] * (3 - len(parts)))


@pytest.mark.parametrize("name", LEAST)
def test_nothing_older_is_asked_for_or_installed_than_has_the_hole_closed(name: str) -> None:
    floor, hole = LEAST[name]
    lowest = [least for other, least in asked_for() if other == name]
    assert lowest
    assert min(lowest) >= floor, hole
    assert version(metadata.version(name)) >= floor, hole


def test_what_had_holes_and_is_not_needed_is_not_asked_for() -> None:
    assert {name for name, _ in asked_for()} & set(ABSENT) == set()


@pytest.mark.parametrize("name", TOLD)
def test_what_may_be_older_than_its_floor_is_named_in_the_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    lowest = min(least for other, least in asked_for() if other == name)
    floor = FLOORS[TOLD[name]]
    assert lowest < floor.version
    floors._SEEN.discard(TOLD[name])
    with caplog.at_level("INFO"):
        for _ in range(2):
            floors.note_floor(TOLD[name], ".".join(map(str, lowest)))
    assert len(caplog.records) == 1
    assert "CVE-" in caplog.text
    assert ".".join(map(str, floor.version)) in caplog.text


def test_the_decoder_that_comes_in_a_wheel_is_watched_when_it_is_used() -> None:
    assert FLOORS["FFmpeg"].version >= (8, 1, 3)
    assert all("CVE-" in floor.hole for floor in FLOORS.values())


@pytest.mark.parametrize(
    ("version", "pack", "told"), [("4.53.0", "best_fit", 1), ("4.56.0", "best_fit", 0), ("4.53.0", "none", 0)]
)
def test_a_transformers_that_mixes_packed_documents_up_is_warned_of_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    version: str,
    pack: Any,
    told: int,
) -> None:
    """`tests/test_packed_models.py` fails with 4.53 and 4.54 and passes with 4.56."""
    write_parquet(tmp_path / "in", [[8]], row=lambda shard, row: {"ids": [row + 1] * 5})
    monkeypatch.setattr(metadata, "version", lambda name: version)
    floors._SEEN.discard("Transformers")
    for _ in range(2):
        headrace.load(f"parquet:{tmp_path}/in/*.parquet:ids", seq_len=8, batch_size=1, pack=pack, cache_dir=tmp_path)
    warnings = [record for record in caplog.records if record.name == "headrace.floors"]
    assert [record.levelname for record in warnings] == ["WARNING"] * told
    assert all("attend across the documents" in record.getMessage() for record in warnings)


def test_no_transformers_that_mixes_packed_documents_up_is_asked_for() -> None:
    (lowest,) = [least for other, least in asked_for() if other == "transformers"]
    assert lowest >= floors.KEEPS_APART
