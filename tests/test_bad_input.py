"""Bad sources through the public door: an error of the family that says what, where and what to do, or the right rows.

The details of lines, archives and layouts have tests of their own.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from refused import CANARY, check_refused, everything, refusal

from headrace import rows
from headrace.catalog.source import Source
from headrace.errors import Changed, DataError, HeadraceError, NotAllowed, NotFound
from headrace.testing import LocalHub, write_jsonl, write_parquet, write_txt

pytestmark = pytest.mark.timeout(20)

KINDS = ("parquet", "jsonl", "txt")
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 12345\n"


def a_parquet(columns: dict[str, Any] | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns or {"text": ["a", "b"], "n": [1, 2]}), sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


# --- repos


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with LocalHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub


CARD = b"---\nconfigs:\n- config_name: en\n  data_files:\n  - {split: train, path: 'x/tr*.parquet'}\n---\n"
NO_RIGHTS = r"hf auth login.*HF_TOKEN"
REPOS: dict[str, tuple[str | Source, type[HeadraceError], str]] = {
    "missing": ("hf:org/none", NotFound, rf"^org/none@main: there is no such repo, or it is private.*{NO_RIGHTS}"),
    "private": ("hf:org/private", NotFound, rf"^org/private@main: .* or it is private.*{NO_RIGHTS}"),
    "gated": (
        "hf:org/gated",
        NotAllowed,
        rf"^org/gated@main: .*gated.*accept its terms on http\S+/org/gated.*{NO_RIGHTS}",
    ),
    "gated files": ("hf:org/files", NotAllowed, rf"^org/files@[0-9a-f]{{8}}/\S+: .*gated.*{NO_RIGHTS}"),
    "no such branch": (Source(kind="hf", path="org/good", revision="v9"), NotFound, "^org/good@v9: not found"),
    "no such commit": (
        Source(kind="hf", path="org/good", revision="0" * 40),
        NotFound,
        "^org/good@00000000: not found",
    ),
    "no such split": (
        "hf:org/good:validation",
        NotFound,
        r"^org/good@[0-9a-f]{8}: no parquet file for split 'validation'; tried data/validation-\*.parquet.*"
        "nearest there: data.*data/train-0.parquet",
    ),
    "no such configuration": (
        "hf:org/good:fr:train:text",
        NotFound,
        r"^org/good@[0-9a-f]{8}: no configuration 'fr'; there are data",
    ),
    "card, no such file": (
        "hf:org/card",
        NotFound,
        r"^org/card@[0-9a-f]{8}: .*; tried x/tr\*.parquet; nearest there: x/train.json",
    ),
    "card, no such split": (
        "hf:org/card:test",
        NotFound,
        r"^org/card@[0-9a-f]{8}: no split 'test' .*'en'; it has train",
    ),
    "card, no such configuration": (
        "hf:org/card:fr:train:text",
        NotFound,
        r"^org/card@[0-9a-f]{8}: no configuration 'fr'; there are en",
    ),
    "several configurations": (
        "hf:org/two",
        NotFound,
        r"^org/two@[0-9a-f]{8}: .*several configurations; name one as hf:.*: de, en",
    ),
    "only a part converted": (
        "hf:org/part",
        NotFound,
        r"^org/part@[0-9a-f]{8}: the Hub converted only a part.*allow_partial=True",
    ),
    "no parquet": (
        "hf:org/csv",
        NotFound,
        r"^org/csv@[0-9a-f]{8}: no parquet file for split 'train'; tried data/train-\*.*: train.csv",
    ),
    "nothing in it": ("hf:org/nothing", NotFound, r"no parquet file for split 'train'.*nearest there: no file"),
    "a file of 0 bytes": ("hf:org/zero", DataError, r"^org/zero@[0-9a-f]{8}/data/train-0.parquet has 0 bytes.*again"),
    "a pointer": (
        "hf:org/pointer",
        DataError,
        r"^org/pointer@[0-9a-f]{8}/data/train-0.parquet .*Git LFS pointer.*git lfs",
    ),
    "mixed columns": (
        "hf:org/mixed",
        DataError,
        r"column 'n' is int64 in org/mixed@\w{8}/data/train-0.parquet but string in org/mixed@\w{8}/data/train-1",
    ),
}


@pytest.mark.parametrize("token", ["", CANARY])
@pytest.mark.parametrize("case", REPOS)
def test_a_repo_that_cannot_be_read_says_which_why_and_what_to_do(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, token: str
) -> None:
    good, name = {"data/train-0.parquet": a_parquet(), "data/test-0.parquet": a_parquet()}, "data/train-0.parquet"
    repos: dict[str, dict[str, bytes]] = {
        **dict.fromkeys(("good", "private", "gated", "files"), good),
        "card": {"README.md": CARD, "x/train.json": b"1"},
        "two": {"en/train-0.parquet": a_parquet(), "de/train-0.parquet": a_parquet()},
        "part": {"train.csv": b"a\n"},
        "csv": {"train.csv": b"a\n"},
        "nothing": {},
        "zero": {name: b""},
        "pointer": {name: POINTER},
        "mixed": {name: a_parquet(), "data/train-1.parquet": a_parquet({"text": ["a"], "n": ["x"]})},
    }
    for repo, files in repos.items():
        hub.push(f"org/{repo}", files)
    hub.push("org/part", {"default/partial-train/0000.parquet": a_parquet()}, branch="refs/convert/parquet")
    hub.restrict("org/private", "private")
    hub.restrict("org/gated", "gated")
    hub.restrict("org/files", "gated-files")
    monkeypatch.setenv("HF_TOKEN", token)
    spec, kind, said = REPOS[case]
    check_refused(refusal(spec, tmp_path), kind, said)


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


# --- files that change


def write_rows(path: Path, kind: str, mark: str) -> list[dict[str, Any]]:
    """4,000 rows of a few kilobytes in several chunks; `mark` sets them apart and is of the same size everywhere."""
    found = [{"text": f"{mark} {i:05d}"} for i in range(4000)]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(found), path, row_group_size=500, use_dictionary=False, compression="none")
    else:
        text = "\n".join(row["text"] if kind == "txt" else json.dumps(row) for row in found)
        path.write_text(text + "\n")
    return found


def replace_with(path: Path, make: Callable[[Path], object]) -> None:
    other = path.with_name("other")
    make(other)
    other.replace(path)


CHANGES: dict[str, tuple[Callable[[Path, str], object], type[HeadraceError], str]] = {
    "is replaced": (lambda p, kind: replace_with(p, lambda q: write_rows(q, kind, "new")), Changed, "start anew"),
    "is rewritten": (lambda p, kind: write_rows(p, kind, "new"), Changed, "start anew"),
    "is cut": (lambda p, kind: os.truncate(p, 3000), Changed, "start anew"),
    "grows": (lambda p, kind: os.truncate(p, 300_000), Changed, "start anew"),
    "is removed": (lambda p, kind: p.unlink(), NotFound, "no such file"),
    "becomes a fifo": (lambda p, kind: replace_with(p, os.mkfifo), DataError, "is a fifo"),
    "becomes a folder": (lambda p, kind: (p.unlink(), p.mkdir()), DataError, "is a folder"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CHANGES)
def test_a_file_that_changes_before_it_is_read_is_named(tmp_path: Path, kind: str, case: str) -> None:
    change, error, said = CHANGES[case]
    path = tmp_path / f"a.{kind}"
    write_rows(path, kind, "old")
    os.utime(path, ns=(1, 1))
    with rows(f"{kind}:{path}", cache_dir=tmp_path / "data") as stage:
        change(path, kind)
        with pytest.raises(HeadraceError) as caught:
            next(stage)
    check_refused(caught.value, error, rf"a\.{kind}:? .*{said}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CHANGES)
def test_a_file_that_changes_while_it_is_read_gives_its_own_rows_or_is_named(
    tmp_path: Path, kind: str, case: str
) -> None:
    change = CHANGES[case][0]
    path, found = tmp_path / f"a.{kind}", []
    want = write_rows(path, kind, "old")
    os.utime(path, ns=(1, 1))
    with rows(f"{kind}:{path}", cache_dir=tmp_path / "data") as stage:
        found += [next(stage).data for _ in range(600)]
        change(path, kind)
        if case in ("is rewritten", "is cut", "grows"):
            with pytest.raises(Changed, match=rf"a\.{kind} changed while reading: .*; let its writer finish"):
                found += [row.data for row in stage]
        else:  # what was opened is still there
            found += [row.data for row in stage]
            assert len(found) == 4000
    assert found == want[: len(found)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_replaced_between_epochs_is_counted_anew_and_fits_no_state(tmp_path: Path, kind: str) -> None:
    path, spec = tmp_path / f"a.{kind}", f"{kind}:{tmp_path}/a.{kind}"
    write_rows(path, kind, "old")
    with rows(spec, cache_dir=tmp_path / "data", shuffle=True) as stage:
        next(stage)
        state = stage.state_dict()
        list(stage)
    os.utime(path, ns=(1, 1))
    want = write_rows(path.with_name("b"), kind, "new!")
    path.with_name("b").replace(path)
    with rows(spec, cache_dir=tmp_path / "data", shuffle=True, epoch=1) as stage:
        assert sorted(row.data["text"] for row in stage) == [row["text"] for row in want]
        with pytest.raises(Changed, match=rf"the files changed since .*a\.{kind} has another size or mtime"):
            stage.load_state_dict(state)


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
