"""Where media may come from: bytes in the row, files under one folder, and nothing else unasked."""

from __future__ import annotations

import logging
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from media_files import clip, encoded, photo, sound, tone

from headrace import floors
from headrace.catalog import plain
from headrace.errors import DataError, HeadraceError, NotAllowed, NotFound, Refused, SpecError
from headrace.fetch.media import paths
from headrace.fetch.media.budget import Budget
from headrace.fetch.media.load import load_audio, load_image, load_image_tensor, load_video
from headrace.fetch.media.policy import MediaPolicy, open_media

BODY = b"\x89PNG and so on"
CLOSED = MediaPolicy()


class TestValues:
    @pytest.mark.parametrize(
        "value",
        [
            BODY,
            bytearray(BODY),
            memoryview(BODY),
            {"bytes": BODY, "path": None},
            {"bytes": BODY, "path": "/etc/passwd"},
            {"bytes": BODY},
        ],
        ids=["bytes", "bytearray", "memoryview", "struct", "struct with a path", "struct without"],
    )
    def test_bytes_in_the_row_are_always_taken(self, value: Any) -> None:
        found = open_media(value, CLOSED, "image")
        assert found == BODY
        assert type(found) is bytes

    @pytest.mark.parametrize(
        ("value", "said"),
        [
            ({"bytes": None, "path": None}, "neither bytes nor a path"),
            ({}, "neither bytes nor a path"),
            ({"array": [1.0], "sampling_rate": 5}, "neither bytes nor a path.*array, sampling_rate"),
            (None, "NoneType"),
            (17, "int"),
            ([1, 2], "list"),
            ({"bytes": 5}, "int"),
            ({"bytes": "abc.jpg"}, None),
            ("", "empty name"),
            ({"path": ""}, "empty name"),
        ],
        ids=str,
    )
    def test_what_holds_no_media_is_a_data_error(self, value: Any, said: str | None) -> None:
        with pytest.raises(DataError if said else NotAllowed, match=said):
            open_media(value, CLOSED, "image")

    def test_bytes_are_counted(self) -> None:
        with pytest.raises(Refused, match="size in bytes of the video of 14 is over the limit max_bytes=12"):
            open_media(BODY, MediaPolicy(max_bytes=12), "video")

    def test_one_step_from_value_to_model(self, tmp_path: Path) -> None:
        policy = MediaPolicy(root=tmp_path)
        picture = encoded(photo(), "PNG")
        (tmp_path / "a.png").write_bytes(picture)
        for value in (picture, {"bytes": picture, "path": "x"}, "a.png", Path("a.png"), photo()):
            assert np.array_equal(load_image(value, policy), photo())
            assert load_image_tensor(value, policy, 8).shape == (3, 8, 8)
        (tmp_path / "a.mp4").write_bytes(clip([1, 2, 3]))
        assert load_video({"path": "a.mp4", "bytes": None}, policy, 2, 8).shape == (2, 8, 8, 3)
        (tmp_path / "a.wav").write_bytes(sound(tone(), 16_000))
        assert len(load_audio("a.wav", policy, 8000)) == 8000
        assert len(load_audio({"array": tone(), "sampling_rate": 16_000, "path": None}, policy, 8000)) == 8000


class TestDescription:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"root": "data"},
            {"hosts": "images.org"},
            {"hosts": ["images.org"]},
            {"hosts": ("http://images.org",)},
            {"hosts": ("Images.org",)},
            {"hosts": ("*.org",)},
            {"hosts": ("images.org/x",)},
            {"hosts": ("user@images.org",)},
            {"hosts": ("images.org.",)},
            {"hosts": (5,)},
            {"max_bytes": 0},
            {"timeout": -1},
        ],
        ids=str,
    )
    def test_a_policy_that_cannot_mean_anything_is_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(SpecError, match=next(iter(wrong))):
            MediaPolicy(**wrong)

    @pytest.mark.parametrize("limit", [field.name for field in fields(Budget)])
    @pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "9", None])
    def test_a_limit_is_a_number_above_zero(self, limit: str, value: Any) -> None:
        with pytest.raises(SpecError, match=limit):
            MediaPolicy(**{limit: value})

    def test_a_policy_is_a_value(self) -> None:
        assert MediaPolicy(hosts=("a.org",)) == MediaPolicy(hosts=("a.org",))
        assert len({MediaPolicy(), MediaPolicy(max_bytes=1)}) == 2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A media folder with a file and a folder; beside it lies a secret."""
    folder = tmp_path / "media"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.png").write_bytes(BODY)
    (folder / "deep/b.png").write_bytes(BODY)
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "media2").mkdir()
    (tmp_path / "media2/x").write_bytes(b"secret")
    return folder


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class TestFiles:
    @pytest.mark.parametrize(
        "name",
        ["a.png", "./a.png", "deep/b.png", "deep//b.png", "deep/./b.png", "link.png", "deeper/b.png", "100%.png"],
    )
    def test_a_file_under_the_root_is_read(self, root: Path, name: str) -> None:
        (root / "link.png").symlink_to("deep/b.png")
        (root / "deeper").symlink_to(root / "deep")
        (root / "100%.png").write_bytes(BODY)
        assert open_media(name, MediaPolicy(root=root), "image") == BODY
        assert open_media(str(root / name), MediaPolicy(root=root), "image") == BODY

    def test_the_root_itself_may_be_a_link(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "alias").symlink_to(root)
        policy = MediaPolicy(root=tmp_path / "alias")
        assert open_media("a.png", policy, "image") == BODY
        assert open_media(str(tmp_path / "alias/deep/b.png"), policy, "image") == BODY
        assert open_media(str(root / "deep/b.png"), policy, "image") == BODY

    def test_a_relative_root_is_taken_from_here(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(root.parent)
        assert open_media("a.png", MediaPolicy(root=Path("media")), "image") == BODY

    def test_without_a_root_no_file_is_read(self, root: Path) -> None:
        with pytest.raises(NotAllowed, match="no folder of its own"):
            open_media(str(root / "a.png"), CLOSED, "image")

    @pytest.mark.parametrize("name", ["none.png", "a.png/x", "none/x.png", "x" * 300, "."])
    def test_a_missing_file_is_not_found(self, root: Path, name: str) -> None:
        with pytest.raises(NotFound):
            open_media(name, MediaPolicy(root=root), "image")

    def test_a_missing_root_is_not_found(self, root: Path) -> None:
        with pytest.raises(NotFound, match="media folder"):
            open_media("a.png", MediaPolicy(root=root / "none"), "image")

    def test_a_large_file_is_refused_unread(self, root: Path) -> None:
        with (root / "large").open("wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(Refused, match="1,099,511,627,776 is over the limit max_bytes"):
            open_media("large", MediaPolicy(root=root), "image")

    def test_a_file_that_grows_while_it_is_read_is_refused(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        read = plain.read_exactly

        def late(fd: int, *rest: Any) -> bytes:
            with (root / "a.png").open("ab") as file:
                file.write(b"x" * 100)
            return read(fd, *rest)

        monkeypatch.setattr(paths, "read_exactly", late)
        with pytest.raises(Refused, match="max_bytes=50"):
            open_media("a.png", MediaPolicy(root=root, max_bytes=50), "image")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_file_that_may_not_be_read_is_refused(self, root: Path) -> None:
        (root / "a.png").chmod(0)
        with pytest.raises(NotAllowed, match="may not be read"):
            open_media("a.png", MediaPolicy(root=root), "image")

    @pytest.mark.parametrize("name", ["proc/self/environ", "/proc/version", "dev/null"])
    def test_even_the_root_of_all_does_not_open_the_system(self, name: str) -> None:
        with pytest.raises(NotAllowed, match="/proc, /sys or /dev"):
            open_media(name, MediaPolicy(root=Path("/")), "image")

    def test_nothing_stays_open(self, root: Path) -> None:
        (root / "out").symlink_to("/etc/passwd")
        (root / "in").symlink_to("deep")
        before = open_files()
        for name in ("a.png", "in/b.png", "in/none", "out", "deep", "../secret", "a.png/x", "deep/b.png"):
            try:
                open_media(name, MediaPolicy(root=root), "image")
            except HeadraceError:
                pass
        assert open_files() == before


class TestFloors:
    def test_an_old_version_is_logged_once_with_its_hole(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(floors, "_SEEN", set())
        monkeypatch.setattr("PIL.__version__", "12.2.0")
        with caplog.at_level(logging.INFO):
            for _ in range(3):
                assert np.array_equal(load_image(encoded(photo(), "PNG"), CLOSED), photo())
        assert [record.levelname for record in caplog.records] == ["INFO"]
        assert "Pillow 12.2.0" in caplog.text
        assert "CVE-2026-96639" in caplog.text

    @pytest.mark.parametrize(
        ("name", "version", "told"),
        [
            ("Pillow", "13.0.0", False),
            ("Pillow", "13.1", False),
            ("Pillow", "12.99.9", True),
            ("urllib3", "2.4.0", True),
            ("urllib3", "2.5.0", False),
            ("FFmpeg", "8.1.2", True),
            ("FFmpeg", "8.1.3", False),
            ("FFmpeg", "n9.0-dev", False),
            ("FFmpeg", "unknown", False),
        ],
    )
    def test_versions_are_compared_as_numbers(
        self, name: str, version: str, told: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(floors, "_SEEN", set())
        with caplog.at_level(logging.INFO):
            floors.note_floor(name, version)
        assert bool(caplog.records) == told
