"""What is published: a source archive in which the README's links lead somewhere, and a wheel that works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from pages import PAGES, ROOT, name

SDIST = "import sys, setuptools.build_meta as b; b.build_sdist(sys.argv[1])"
WHEEL = "import sys, setuptools.build_meta as b; b.build_wheel(sys.argv[1])"


def build(code: str, source: Path, out: Path) -> Path:
    """As `pip` and `build` do it, with what is installed here: nothing is downloaded."""
    out.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)], cwd=source, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (found,) = out.iterdir()
    return found


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive of what git has, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for file in filter(None, files):
        if (ROOT / file).is_file():  # it may be removed, and not yet committed
            (folder / "tree" / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / "tree" / file).write_bytes((ROOT / file).read_bytes())
    archive = build(SDIST, folder / "tree", folder / "out")
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "in", filter="data")
    (found,) = (folder / "in").iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from the source archive, as most are."""
    return build(WHEEL, unpacked, tmp_path_factory.mktemp("wheel") / "out")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed") / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*command, str(wheel)], check=True, timeout=100)
    return target


def test_every_link_of_every_page_leads_somewhere_in_the_source_archive(unpacked: Path) -> None:
    assert {name(page) for page in PAGES if not (unpacked / name(page)).is_file()} == set()
    links = [
        (unpacked / name(page)).parent / target
        for page in PAGES
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    ]
    assert len(links) > 50
    assert [link for link in links if not (link.exists() and link.resolve().is_relative_to(unpacked))] == []


def test_files_that_the_readme_names_are_in_the_source_archive(unpacked: Path) -> None:
    readme = (unpacked / "README.md").read_text()
    named = set(re.findall(r"`((?:examples|benchmarks|docs|slurm|headrace)/[\w./-]+)`", readme))
    assert "examples/scaling/train_streaming_multinode.py" in named
    assert {file for file in named if not (unpacked / file).exists()} == set()
    for file in ("CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "constraints.txt"):
        assert (unpacked / file).is_file(), file


def test_the_source_archive_has_every_file_that_git_has_of_what_is_published(unpacked: Path) -> None:
    for folder in ("docs", "examples", "headrace", "requirements", "slurm", "tests"):
        ours = {
            name(p)
            for p in (ROOT / folder).rglob("*")
            if p.is_file() and not {"__pycache__", ".hypothesis"} & set(p.parts)
        }
        assert {file for file in ours if not (unpacked / file).is_file()} == set()


def test_the_wheel_has_the_package_with_its_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    assert {"headrace/py.typed", "headrace/catalog/known.yaml"} <= names
    assert {part for part in names if not re.match(r"headrace(-[\d.]+\.dist-info)?/", part)} == set()
    ours = {name(path) for path in (ROOT / "headrace").rglob("*.py")}
    assert ours - names == set()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["-c", "import headrace; print(headrace.__file__)"], "installed.*headrace"),
        (["-m", "headrace", "--help"], "verify"),
        (["-m", "headrace", "datasets"], "Synth-CoT"),
        (["bin/headrace", "--help"], "verify"),
    ],
    ids=["import", "module", "known data sets", "command"],
)
def test_an_installed_wheel_works_away_from_the_sources(
    command: list[str], said: str, installed: Path, tmp_path: Path
) -> None:
    env = {**os.environ, "PYTHONPATH": str(installed)}
    words = [str(installed / word) if word.startswith("bin/") else word for word in command]
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(said, done.stdout)
