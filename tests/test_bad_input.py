"""Bad sources through the public door: an error of the family that says what, where and what to do, or the right rows.

The details of lines, archives and layouts have tests of their own.
"""

from __future__ import annotations

import gzip
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zstandard
from refused import POINTER, a_parquet, check_refused, everything, refusal

from headrace.errors import DataError, HeadraceError, NotAllowed, NotFound
from headrace.testing import write_jsonl, write_parquet, write_txt

pytestmark = pytest.mark.timeout(20)

KINDS = ("parquet", "jsonl", "txt")


# --- files that are not files


def make_socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    # a path below /proc is short, which the address of a socket has to be
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


ODD: dict[str, tuple[Callable[[Path], object], type[HeadraceError], str]] = {
    "fifo": (os.mkfifo, DataError, "is a fifo, not a regular file.*save them in a file"),
    "socket": (make_socket, DataError, "is a socket, not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), DataError, "is a device, not a regular file"),
    "broken link": (lambda path: path.symlink_to("gone"), NotFound, "is a broken symbolic link: gone does not exist"),
    "loop": (lambda path: path.symlink_to(path), NotFound, "lead in a circle; point the link at the file"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("glob", [False, True])
@pytest.mark.parametrize("case", ODD)
def test_what_is_not_a_regular_file_is_named_and_never_waited_for(
    tmp_path: Path, case: str, kind: str, glob: bool
) -> None:
    make, error, said = ODD[case]
    make(tmp_path / f"odd.{kind}")
    spec = f"{kind}:{tmp_path}/{'*' if glob else 'odd'}.{kind}"
    check_refused(
        refusal(spec, tmp_path), error, rf"/odd\.{kind}:? .*{said}" if case != "loop" else f"odd.{kind}: .*{said}"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_named_with_the_glob_for_its_files(tmp_path: Path, kind: str) -> None:
    (tmp_path / f"in.{kind}").mkdir()
    for spec in (f"{kind}:{tmp_path}/in.{kind}", f"{kind}:{tmp_path}/*.{kind}"):
        check_refused(
            refusal(spec, tmp_path), DataError, rf"in\.{kind} is a folder.*glob, for example .*/in\.{kind}/\*\.{kind}$"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_not_there_names_its_neighbours(tmp_path: Path, kind: str) -> None:
    (tmp_path / f"train-00.{kind}").touch()
    said = rf"nearest there: train-00\.{kind}"
    check_refused(
        refusal(f"{kind}:{tmp_path}/train-0.{kind}", tmp_path), NotFound, f"train-0.{kind}: no such file.*{said}"
    )
    check_refused(
        refusal(f"{kind}:{tmp_path}/train_*.{kind}", tmp_path),
        NotFound,
        rf"no file matches \S+/train_\*\.{kind}; {said}",
    )
    check_refused(
        refusal(f"{kind}:{tmp_path}/no/*.{kind}", tmp_path), NotFound, r"no file matches .*/no/\*.*; \S+ has .*train-00"
    )


@contextmanager
def as_nobody() -> Iterator[None]:
    """Not as root, who may read everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """A folder that everybody may look into."""
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_may_not_be_read_says_so(open_path: Path, kind: str) -> None:
    path = open_path / f"a.{kind}"
    path.write_bytes(b"{}\n" * 9)
    path.chmod(0)
    for spec in (f"{kind}:{path}", f"{kind}:{open_path}/*.{kind}"):
        with as_nobody():
            error = refusal(spec, open_path)
        check_refused(error, NotAllowed, rf"a\.{kind} may not be read by this user \(Permission denied\); chmod")


@pytest.mark.parametrize("pattern", ["*/*.txt", "**/*.txt", "[a-z]/?.txt", "?/0.txt"])
def test_a_folder_that_cannot_be_read_does_not_make_a_glob_smaller(open_path: Path, pattern: str) -> None:
    for name in "ab":
        (open_path / name).mkdir()
        (open_path / name / "0.txt").write_text("row\n")
    assert len(everything(f"txt:{open_path}/{pattern}", open_path)) == 2
    (open_path / "b").chmod(0)
    with as_nobody():
        error = refusal(f"txt:{open_path}/{pattern}", open_path)
    (open_path / "b").chmod(0o755)
    check_refused(error, NotAllowed, r"/b(/0\.txt)? may not be read by this user \(Permission denied\)")


def test_links_that_lead_in_a_circle_do_not_make_a_glob_larger(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "0.txt").write_text("row\n")
    (tmp_path / "a" / "b" / "again").symlink_to(tmp_path / "a")
    (tmp_path / "elsewhere").symlink_to(tmp_path / "a" / "b")
    assert len(everything(f"txt:{tmp_path}/a/**/*.txt", tmp_path)) == 1
    assert len(everything(f"txt:{tmp_path}/elsewhere/**/*.txt", tmp_path)) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [b"a\xff", b"\x1b[31m", b"new\nline", b"a:b,c", "größe ✓".encode()])
def test_a_file_name_of_any_bytes_is_read_and_shown_escaped(tmp_path: Path, kind: str, name: bytes) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name + b"." + kind.encode()))
    path.write_bytes(a_parquet() if kind == "parquet" else b'{"n": 1}\n{"n": 2}\n')
    assert len(everything(f"{kind}:{tmp_path}/*.{kind}", tmp_path)) == 2
    path.write_bytes(POINTER)
    check_refused(refusal(f"{kind}:{tmp_path}/*.{kind}", tmp_path), DataError, "Git LFS pointer")


# --- nothing in it


@pytest.mark.parametrize("shuffle", [False, True])
def test_shards_without_rows_are_passed_over(tmp_path: Path, shuffle: bool) -> None:
    write_parquet(tmp_path / "in", [[0], [], [3], [0, 2, 0], []])
    spec = f"parquet:{tmp_path}/in/*.parquet"
    assert len(everything(spec, tmp_path, shuffle=shuffle)) == 5
    assert sum(len(everything(spec, tmp_path, shuffle=shuffle, lane=k, lanes=7)) for k in range(7)) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_without_a_single_row_has_none_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    write = {"parquet": write_parquet, "jsonl": write_jsonl, "txt": write_txt}[kind]
    write(tmp_path / "in", [[0], []] if kind == "parquet" else [0, 0])  # type: ignore[operator]
    spec = f"{kind}:{tmp_path}/in/*.{kind}"
    with caplog.at_level(logging.WARNING):
        assert everything(spec, tmp_path, shuffle=True) == []
    assert [r.message for r in caplog.records] == [f"{spec}:text has no rows, in 2 shards"]


# --- lines and archives (one of each; their own tests have the rest)

GOOD_LINE = b'{"a": 1}\n'
LINES: dict[str, tuple[str, bytes, str]] = {
    "not JSON": (
        "a.jsonl",
        GOOD_LINE * 1500 + b"\n{'a': 1}\n",
        r"a\.jsonl: row 1500 \(line 1502, byte 13502\) is not JSON",
    ),
    "an array": ("a.jsonl", b'[{"a": 1}]', r"row 0 \(line 1, byte 0\) is an array.*jq"),
    "a pointer": ("a.jsonl", POINTER, r"a\.jsonl is not plain text: .*Git LFS pointer.*git lfs pull"),
    "a pointer for text": ("a.txt", POINTER, r"a\.txt is not plain text: .*Git LFS pointer.*git lfs pull"),
    "bzip2": ("a.txt.bz2", b"BZh91AY&SY\0\1\2", r"a\.txt\.bz2 is not plain text: .*bzip2"),
    "latin1": ("a.txt", b"ok\nna\xefve\n", r"a\.txt: row 1 \(line 2, byte 5\) is not UTF-8.*iconv"),
    "parquet as text": ("a.txt", a_parquet(), r"a\.txt is not plain text: .*parquet: spec"),
    "cut gzip": (
        "a.txt.gz",
        gzip.compress(b"row\n" * 999)[:-5],
        r"a\.txt\.gz: it ends at byte \d+, inside the gzip member.*again",
    ),
    "cut zstd": (
        "a.jsonl.zst",
        zstandard.compress(GOOD_LINE * 9)[:-2],
        r"a\.jsonl\.zst: it ends at byte \d+, inside the zstd frame",
    ),
    "no bytes of gzip": ("a.txt.gz", b"", r"a\.txt\.gz: it ends at byte 0"),
    "garbage behind": (
        "a.jsonl.gz",
        gzip.compress(GOOD_LINE) + b"tail",
        r"byte \d+: what follows the last gzip member",
    ),
}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("case", LINES)
def test_bad_lines_and_archives_are_named_by_file_and_place(tmp_path: Path, case: str, shuffle: bool) -> None:
    name, data, said = LINES[case]
    (tmp_path / name).write_bytes(data)
    check_refused(refusal(f"{name.split('.')[1]}:{tmp_path}/{name}", tmp_path, shuffle=shuffle), DataError, said)
