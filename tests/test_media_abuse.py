"""Hostile rows: each is refused by a rule that its error names, and nothing was opened, asked or run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import hostile
import pytest

from headrace.errors import DataError, NotAllowed, NotFound
from headrace.fetch.media import ffmpeg, paths
from headrace.fetch.media.policy import MediaPolicy, open_media

STRACE = shutil.which("strace")
CALLS = "open,openat,openat2,socket,connect,sendto,execve,execveat,unlink,rename,mkdir"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("abuse") / "media"
    hostile.prepare(folder)
    return folder


def child(how: str, root: Path, *before: str) -> dict[str, Any]:
    command = [*before, os.path.realpath(sys.executable), hostile.__file__, how, str(root)]
    paths = [str(Path(__file__).parent), *(p for p in sys.path if "site-packages" in p), str(Path(__file__).parents[1])]
    env = {"PYTHONPATH": os.pathsep.join(paths), "PATH": os.environ["PATH"], "SVT_LOG": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def traced(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    """How each case ended, and the system calls that were made meanwhile."""
    trace = tmp_path_factory.mktemp("trace") / "log"
    if not STRACE or subprocess.run([STRACE, "-o", "/dev/null", "true"], capture_output=True, check=False).returncode:
        pytest.skip("strace is missing, or may not trace here")
    found = child("plain", root, str(STRACE), "-f", "-qq", "-e", f"trace={CALLS}", "-o", str(trace))
    lines = trace.read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if hostile.BEGIN in line)
    end = next(i for i, line in enumerate(lines) if hostile.END in line)
    return found, lines[begin + 1 : end]


@pytest.fixture(scope="module")
def outcomes(root: Path) -> dict[str, Any]:
    return child("plain", root)


@pytest.mark.parametrize("name", [f"name {name!r}" for name in hostile.NAMES])
def test_a_name_is_refused_by_a_rule(outcomes: dict[str, Any], name: str) -> None:
    found = outcomes[name]
    assert "NotAllowed" in found["kinds"] or "no such file" in found["message"], found
    assert re.search(found["rule"], found["message"]), found
    assert found["message"].isprintable()
    assert len(found["message"]) < 600


HARMLESS = {"AVI with a playlist in it", "AVI with a script in it"}


@pytest.mark.parametrize("name", sorted({*hostile.contents()} - HARMLESS))
def test_content_is_refused_by_a_rule(outcomes: dict[str, Any], name: str) -> None:
    found = outcomes[name]
    assert {"NotAllowed", "DataError"} <= set(found["kinds"]), found
    assert re.search(found["rule"], found["message"]), found


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_what_hides_in_good_media_is_not_looked_at(outcomes: dict[str, Any], name: str) -> None:
    found = outcomes[name]
    assert found["message"] == "it was let through", found


def test_files_of_other_demuxers_have_nothing_opened_for_them(outcomes: dict[str, Any]) -> None:
    assert "opened in its turn" in outcomes["forced hls"]["message"]
    assert "DataError" in outcomes["forced concat"]["kinds"]


def test_no_pickle_was_run(outcomes: dict[str, Any]) -> None:
    assert outcomes["a pickle"]["kinds"]
    assert not Path("/tmp/headrace-was-here").exists()


def test_python_opened_nothing_and_asked_nobody(root: Path) -> None:
    found = child("hook", root)
    assert len(found) > 80
    assert {name: case["events"] for name, case in found.items() if case["events"]} == {}


def test_the_kernel_was_asked_for_nothing(traced: tuple[dict[str, Any], list[str]]) -> None:
    outcomes, calls = traced
    assert len(outcomes) > 80
    # A handle is no open file: nothing can be read through it, and no device notices it.
    opened = [call for call in calls if "O_PATH" not in call]
    assert opened == []
    assert calls != []


def test_the_watchers_see_what_is_opened(root: Path, tmp_path: Path) -> None:
    """Both would see a file that is read; otherwise they would prove nothing."""
    code = f"""
import os, sys
sys.path[:0] = {sys.path!r}
import hostile, pathlib
hostile.NAMES = {{"a.png": ""}}
hostile.contents = dict
found = hostile.watched_by_hook(pathlib.Path({str(root)!r}))
assert any("/proc/self/fd" in event for event in found["name 'a.png'"]["events"]), found
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)


class TestSwaps:
    """A file that is changed for a link between the moment it is looked at and the moment it is read."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "media"
        (folder / "deep").mkdir(parents=True)
        (folder / "deep/x").write_bytes(b"good")
        (tmp_path / "x").write_bytes(b"secret")
        return folder

    def test_what_was_looked_at_is_what_is_read(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        read = paths._read

        def swapped(*args: Any) -> bytes:
            (folder / "deep/x").unlink()
            (folder / "deep/x").symlink_to("../../x")
            return read(*args)

        monkeypatch.setattr(paths, "_read", swapped)
        assert open_media("deep/x", MediaPolicy(root=folder), "image") == b"good"

    def test_a_link_that_comes_after_the_links_were_followed_is_refused(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (folder / "link").symlink_to("deep/x")
        realpath: Any = os.path.realpath

        def swapped(path: Any) -> Any:
            found = realpath(path)
            (folder / "deep").rename(folder / "was")
            (folder / "deep").symlink_to("..")
            return found

        monkeypatch.setattr(paths.os.path, "realpath", swapped)  # type: ignore[attr-defined]
        with pytest.raises(NotAllowed, match="replaced by a link"):
            open_media("link", MediaPolicy(root=folder), "image")

    def test_no_race_is_ever_won(self, folder: Path) -> None:
        good, bad, name = folder / "good", folder / "bad", folder / "name"
        over = threading.Event()

        def swap() -> None:
            while not over.is_set():
                good.write_bytes(b"good")
                good.replace(name)
                time.sleep(1e-5)
                bad.symlink_to("../x")
                bad.replace(name)
                time.sleep(1e-5)

        thread = threading.Thread(target=swap)
        thread.start()
        seen: set[bytes] = set()
        tries, begin = 0, time.monotonic()
        try:
            while tries < 1000 or (not {b"good", b"NotAllowed"} <= seen and time.monotonic() < begin + 20):
                tries += 1
                try:
                    seen.add(open_media("name", MediaPolicy(root=folder), "image"))
                except (NotAllowed, NotFound) as error:
                    seen.add(type(error).__name__.encode())
        finally:
            over.set()
            thread.join()
        assert b"secret" not in seen
        assert {b"good", b"NotAllowed"} <= seen


def test_a_nested_open_is_refused_with_its_name() -> None:
    with pytest.raises(NotAllowed, match="'/etc/passwd' to be opened in its turn"):
        ffmpeg._refuse_open("/etc/passwd", 0, {})


def test_a_refusal_is_both_a_policy_error_and_a_data_error() -> None:
    from headrace.errors import Refused

    error = Refused("over")
    assert isinstance(error, NotAllowed)
    assert isinstance(error, DataError)
    assert str(error) == "over"
