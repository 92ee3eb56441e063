"""Files that were moved, touched or spelled in another way are the same files; others are not taken for them."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.catalog import lines as lines_module
from headrace.catalog.source import Source
from headrace.errors import Changed, DataError, StateError
from headrace.fetch import text as text_module
from headrace.stage import State

KINDS = ("parquet", "jsonl", "txt")


def write_shard(path: Path, first: int, rows: int = 40) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [f"row {first + n:05}" for n in range(rows)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": texts}), path, row_group_size=7, compression="none")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        path.write_text("".join(f"{text}\n" for text in texts))
    return path


def write_shards(folder: Path, kind: str, count: int = 3) -> str:
    for n in range(count):
        write_shard(folder / f"s{n}.{kind}", n * 100)
    return f"{kind}:{folder}/*.{kind}"


def texts(stage: Any) -> list[str]:
    return [row.data["text"] for row in stage]


def half_read(spec: str, data: Path, **options: Any) -> tuple[State, list[str], list[str]]:
    """A state in the middle, what was given before it, and what comes after it."""
    with headrace.rows(spec, shuffle=True, cache_dir=data, **options) as stage:
        given = [next(stage).data["text"] for _ in range(50)]
        state = json.loads(json.dumps(stage.state_dict()))
        return state, given, texts(stage)


def resumed(spec: str | Source, state: State, data: Path, **trust: Any) -> list[str]:
    with headrace.rows(spec, shuffle=True, cache_dir=data) as stage:
        stage.load_state_dict(state, **trust)
        again = json.loads(json.dumps(stage.state_dict()))
        found = texts(stage)
    with headrace.rows(spec, shuffle=True, cache_dir=data) as stage:  # a state of the resumed run is as good
        stage.load_state_dict(again)
        assert texts(stage) == found
    return found


def refused(spec: str, state: State, data: Path, said: str, **trust: Any) -> None:
    with headrace.rows(spec, shuffle=True, cache_dir=data) as stage, pytest.raises((Changed, StateError), match=said):
        stage.load_state_dict(state, **trust)


def moved(folder: Path, kind: str) -> str:
    folder.rename(folder.with_name("elsewhere"))
    return f"{kind}:{folder.with_name('elsewhere')}/*.{kind}"


def touched(folder: Path, kind: str) -> str:
    for path in folder.iterdir():
        os.utime(path)
    return f"{kind}:{folder}/*.{kind}"


def copied(folder: Path, kind: str) -> str:
    shutil.copytree(folder, folder.with_name("copy"))
    shutil.rmtree(folder)
    return f"{kind}:{folder.with_name('copy')}/*.{kind}"


def renamed(folder: Path, kind: str) -> str:
    for path in sorted(folder.iterdir()):
        path.rename(path.with_name(f"train-{path.name}"))
    return f"{kind}:{folder}/*.{kind}"


def spelled(folder: Path, kind: str) -> str:
    return f"{kind}:{folder.parent}//{folder.name}/./*.{kind}"


def relative(folder: Path, kind: str) -> str:
    return f"{kind}:{os.path.relpath(folder)}/*.{kind}"


WAYS: dict[str, Callable[[Path, str], str]] = {
    way.__name__: way for way in (moved, touched, copied, renamed, spelled, relative)
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cache", ["same", "fresh"])
def test_rows_go_on_over_the_same_files_wherever_they_lie_now(
    tmp_path: Path, kind: str, way: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = write_shards(tmp_path / "in", kind)
    state, _, rest = half_read(spec, tmp_path / "data")
    spec = WAYS[way](tmp_path / "in", kind)
    assert resumed(spec, state, tmp_path / ("data" if cache == "same" else "other")) == rest


@pytest.mark.parametrize("kind", KINDS)
def test_another_column_of_the_same_files_is_the_same_source(tmp_path: Path, kind: str) -> None:
    spec = write_shards(tmp_path / "in", kind)
    state, _, rest = half_read(spec, tmp_path / "data")
    if kind == "txt":
        with headrace.rows(f"{spec}:line", shuffle=True, cache_dir=tmp_path / "data") as stage:
            stage.load_state_dict(state)
            assert [row.data["line"] for row in stage] == rest
    else:
        assert resumed(f"{spec}:body", state, tmp_path / "data") == rest


def one_word(folder: Path, kind: str) -> None:
    path = folder / f"s1.{kind}"
    rows = [f"row {100 + n:05}" for n in range(40)]
    rows[17] = "ROW 00117"
    if kind == "parquet":
        pq.write_table(pa.table({"text": rows}), path, row_group_size=7, compression="none")
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    else:
        path.write_text("".join(f"{text}\n" for text in rows))


def one_row_more(folder: Path, kind: str) -> None:
    write_shard(folder / f"s1.{kind}", 100, 41)


def one_file_more(folder: Path, kind: str) -> None:
    write_shard(folder / f"s0a.{kind}", 900)


def one_file_less(folder: Path, kind: str) -> None:
    (folder / f"s1.{kind}").unlink()


def swapped(folder: Path, kind: str) -> None:
    one, two = folder / f"s0.{kind}", folder / f"s1.{kind}"
    one.rename(folder / "tmp")
    two.rename(one)
    (folder / "tmp").rename(two)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [one_word, one_row_more, one_file_more, one_file_less, swapped])
@pytest.mark.parametrize("place", ["there", "moved"])
def test_other_files_are_not_taken_for_those_of_the_state(
    tmp_path: Path, kind: str, change: Callable[[Path, str], None], place: str
) -> None:
    spec = write_shards(tmp_path / "in", kind)
    state, _, _ = half_read(spec, tmp_path / "data")
    change(tmp_path / "in", kind)
    if place == "moved":
        spec = moved(tmp_path / "in", kind)
    with headrace.rows(spec, shuffle=True, cache_dir=tmp_path / "data") as stage:
        for trust in (False, True):
            with pytest.raises((Changed, StateError)):
                stage.load_state_dict(state, trust_moved=trust)


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_come_in_another_order_since_one_was_renamed_are_not_told_to_be_trusted(
    tmp_path: Path, kind: str
) -> None:
    spec = write_shards(tmp_path / "in", kind)
    state, _, _ = half_read(spec, tmp_path / "data")
    (tmp_path / "in" / f"s0.{kind}").rename(tmp_path / "in" / f"z.{kind}")
    with headrace.rows(spec, shuffle=True, cache_dir=tmp_path / "data") as stage:
        for trust in (False, True):
            with pytest.raises(Changed, match="files were renamed, so they come in another order") as caught:
                stage.load_state_dict(state, trust_moved=trust, trust_changed=trust)
            assert "trust_changed" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mended_shard_goes_on_where_it_is_trusted(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = write_shards(tmp_path / "in", kind)
    state, _, rest = half_read(spec, tmp_path / "data")
    one_word(tmp_path / "in", kind)
    with headrace.rows(spec, shuffle=True, cache_dir=tmp_path / "data") as stage:
        with pytest.raises(Changed, match=rf"s1\.{kind} .*trust_changed"):
            stage.load_state_dict(state)
        with pytest.raises(Changed, match=rf"s1\.{kind} "):
            stage.load_state_dict(state, trust_changed=[f"s0.{kind}"])
    mended = [text.replace("row 00117", "ROW 00117") for text in rest]
    assert resumed(spec, state, tmp_path / "data", trust_changed=[f"s1.{kind}"]) == mended
    assert resumed(spec, state, tmp_path / "data", trust_changed=True) == mended
    assert f"s1.{kind} has other contents" in caplog.text
    one_row_more(tmp_path / "in", kind)
    with (
        headrace.rows(spec, shuffle=True, cache_dir=tmp_path / "data") as stage,
        pytest.raises(Changed, match="other rows"),
    ):
        stage.load_state_dict(state, trust_changed=True)


def test_what_is_said_of_a_line_that_is_not_json_can_be_done(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "in" / "a.jsonl", 0)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:20], '{"text": no}\n', *lines[21:]]))
    options: dict[str, Any] = {"batch_size": 1, "shuffle": False, "cache_dir": tmp_path / "data"}
    with headrace.load(f"jsonl:{path}", **options) as loader:
        steps = iter(loader)
        given = [next(steps)["text"][0] for _ in range(20)]
        with pytest.raises(DataError, match="correct the line, or put another object in its place: a state of a run"):
            next(steps)
        state = loader.state_dict()

    def rest(trust: bool) -> list[str]:
        with headrace.load(f"jsonl:{path}", **options) as loader:
            loader.load_state_dict(state, trust_changed=trust)
            return [batch["text"][0] for batch in loader]

    for line in (lines[20], '{"text": "another"}\n'):
        path.write_text("".join([*lines[:20], line, *lines[21:]]))
        assert given + rest(trust=True) == [json.loads(line)["text"] for line in path.read_text().splitlines()]
    path.write_text("".join([*lines[:20], *lines[21:]]))  # what it says not to do
    with pytest.raises(Changed, match="has other rows"):
        rest(trust=True)


def test_a_state_that_tells_nothing_of_its_files_goes_on_where_they_are_trusted(tmp_path: Path) -> None:
    spec = write_shards(tmp_path / "in", "jsonl")
    state, _, rest = half_read(spec, tmp_path / "data")
    del state["identity"]
    assert resumed(spec, state, tmp_path / "data") == rest
    touched(tmp_path / "in", "jsonl")
    refused(spec, state, tmp_path / "data", r"s0\.jsonl has another size or mtime.*trust_moved=True")
    assert resumed(spec, state, tmp_path / "data", trust_moved=True) == rest
    spec = moved(tmp_path / "in", "jsonl")
    refused(spec, state, tmp_path / "data", "trust_moved=True")
    assert resumed(spec, state, tmp_path / "data", trust_moved=True) == rest


def test_a_state_of_before_that_has_its_path_in_another_spelling_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_shard(tmp_path / "in" / "a.jsonl", 0, 90)
    with monkeypatch.context() as patch:
        patch.setattr("headrace.catalog.source.well_spelled", lambda path: path)
        state, _, rest = half_read(f"jsonl:{tmp_path}//in/./a.jsonl", tmp_path / "data")
    del state["identity"]
    assert "//in/./a.jsonl" in state["spec"]
    assert resumed(f"jsonl:{path}", state, tmp_path / "data") == rest
    monkeypatch.chdir(tmp_path)
    assert resumed("jsonl:in/a.jsonl", state, tmp_path / "data") == rest


def test_no_path_of_a_state_is_looked_at(tmp_path: Path) -> None:
    spec = write_shards(tmp_path / "in", "txt")
    state, _, _ = half_read(spec, tmp_path / "data")
    secret = tmp_path / "fifo.txt"
    os.mkfifo(secret)
    for identity in ("keep", None):
        hostile = {**state, "spec": f"txt:{secret}:text", "revision": "files-00"}
        if identity is None:
            del hostile["identity"]
        with headrace.rows(spec, shuffle=True, cache_dir=tmp_path / "data") as stage:
            if identity is None:
                with pytest.raises(StateError, match="spec: "):
                    stage.load_state_dict(hostile)
            else:
                stage.load_state_dict(hostile)


@pytest.mark.parametrize("identity", ["", "{}", "[]", 3, '{"shards": -1, "sizes": "", "names": ""}', '{"odd": 1}'])
def test_an_identity_that_is_none_is_refused(tmp_path: Path, identity: Any) -> None:
    spec = write_shards(tmp_path / "in", "txt")
    state, _, _ = half_read(spec, tmp_path / "data")
    refused(spec, {**state, "identity": identity}, tmp_path / "data", "identity")


# --- large files, many files


def test_large_text_is_compared_by_samples_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lines_module, "BLOCK", 64)
    monkeypatch.setattr(lines_module, "WHOLE_BYTES", 1024)
    monkeypatch.setattr("headrace.catalog.recognise.WHOLE_BYTES", 1024)
    spec = f"txt:{write_shard(tmp_path / 'in' / 'a.txt', 0, 1500)}"
    state, _, rest = half_read(spec, tmp_path / "data")
    touched(tmp_path / "in", "txt")
    assert resumed(spec, state, tmp_path / "data") == rest
    assert sum("by samples only" in record.message for record in caplog.records) >= 1
    good = (tmp_path / "in" / "a.txt").read_text()
    for other in ("X" + good[1:], good[:-2] + "X\n"):  # its first and its last bytes are always among them
        (tmp_path / "in" / "a.txt").write_text(other)
        with headrace.rows(spec, shuffle=True, cache_dir=tmp_path / "data") as stage, pytest.raises(Changed):
            stage.load_state_dict(state)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_ranks_that_read_other_contents_in_as_many_rows_are_refused(
    tmp_path: Path, kind: str, as_rank: Callable[[int, int], None]
) -> None:
    for name, first in (("one", 0), ("copy", 0), ("other", 500)):
        write_shard(tmp_path / name / f"s.{kind}", first)
    assert len({(tmp_path / name / f"s.{kind}").stat().st_size for name in ("one", "copy", "other")}) == 1

    def part(rank: int, name: str) -> State:
        as_rank(rank, 2)
        source = Source.parse(f"{kind}:{tmp_path}/{name}/*.{kind}")
        options: dict[str, Any] = {"batch_size": 4, "cache_dir": tmp_path / "data"}
        with headrace.load([headrace.Part(source=source, name="x")], **options) as loader:
            next(iter(loader))
            return loader.state_dict(gather=False)

    assert headrace.merge_states([part(0, "one"), part(1, "copy")])
    with pytest.raises(StateError, match="facts: x: part 1 has"):
        headrace.merge_states([part(0, "one"), part(1, "other")])


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """More parquet files than are counted before the first row."""
    monkeypatch.setattr("headrace.fetch.plan.LARGE", 8)
    return write_shards(tmp_path / "in", "parquet", 24)


def test_shards_of_a_large_source_are_compared_when_they_are_opened(tmp_path: Path, many: str) -> None:
    state, given, rest = half_read(many, tmp_path / "data")
    assert state["coordinate"] == "windows"
    identity = json.loads(state["identity"])
    assert "marks" not in identity
    assert 0 < len(identity["opened"]) < 9
    assert sorted(given + rest) == sorted(f"row {100 * n + i:05}" for n in range(24) for i in range(40))
    spec = moved(tmp_path / "in", "parquet")
    assert resumed(spec, state, tmp_path / "other") == rest
    number = sorted(map(int, identity["opened"]))[0]
    path = sorted((tmp_path / "elsewhere").iterdir())[number]
    write_shard(path, 5000)
    assert path.stat().st_size == path.with_name("s0.parquet").stat().st_size
    refused(spec, state, tmp_path / "third", rf"{path.name} is not the file that the state was made on")


def test_renamed_files_of_a_large_source_cannot_be_told_and_may_be_trusted(tmp_path: Path, many: str) -> None:
    state, _, rest = half_read(many, tmp_path / "data")
    spec = renamed(tmp_path / "in", "parquet")
    refused(spec, state, tmp_path / "data", "trust_moved=True")
    assert resumed(spec, state, tmp_path / "data", trust_moved=True) == rest


def test_the_state_of_a_hundred_thousand_shards_is_small(tmp_path: Path) -> None:
    import numpy as np

    from headrace.catalog.identity import identity_of, mark_of

    mark = mark_of(np.array([1000]), np.array([1 << 20]), "x")
    paths, sizes = [f"in/s{n:06}.txt" for n in range(100_000)], np.arange(100_000)
    assert len(identity_of(paths, sizes, [mark] * 100_000).to_text()) < 200
    assert len(identity_of(paths[:512], sizes[:512], [mark] * 512).to_text()) < 8192


# --- counts are kept per file


@pytest.mark.parametrize("suffix", ["jsonl", "txt", "jsonl.gz"])
def test_one_more_file_is_the_only_one_that_is_counted(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    index_lines = lines_module.index_lines

    def watched(source: Any, *args: Any, **options: Any) -> Any:
        counted.append(Path(source.label).name)
        return index_lines(source, *args, **options)

    def write(n: int) -> None:
        path = write_shard(tmp_path / "in" / f"s{n}.{suffix.removesuffix('.gz')}", n * 100)
        if suffix.endswith(".gz"):
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()

    def rows() -> int:
        with headrace.rows(f"{suffix[:5].rstrip('.')}:{tmp_path}/in/*.{suffix}", cache_dir=tmp_path / "data") as stage:
            return len(list(stage))

    monkeypatch.setattr(text_module, "index_lines", watched)
    for n in range(6):
        write(n)
    assert rows() == 6 * 40
    assert len(counted) == 6
    write(6)
    counted.clear()
    assert rows() == 7 * 40
    assert counted == [f"s6.{suffix}"]
    os.utime(tmp_path / "in" / f"s2.{suffix}")
    (tmp_path / "in" / f"s3.{suffix}").unlink()
    counted.clear()
    assert rows() == 6 * 40
    assert counted == [f"s2.{suffix}"]
    (kept,) = (tmp_path / "data" / "file_index" / "lines").glob("*.json")
    kept.write_text(kept.read_text()[:-7])
    (tmp_path / "in" / f"s4.{suffix}").unlink()
    counted.clear()
    assert rows() == 5 * 40
    assert len(counted) == 5


# --- spellings


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("parquet:/a//b/./c.parquet", "parquet:/a/b/c.parquet:text"),
        ("jsonl:a/b/", "jsonl:a/b:text"),
        ("txt:./a.txt", "txt:a.txt:text"),
        ("txt://a/b.txt", "txt:/a/b.txt:text"),
        ("txt:../a.txt", "txt:../a.txt:text"),
        ("txt:a/../b.txt", "txt:a/../b.txt:text"),
        ("parquet:file:///a//b.parquet", "parquet:file:///a/b.parquet:text"),
        ("parquet:s3://bucket//a/./b.parquet", "parquet:s3://bucket//a/./b.parquet:text"),
        ("txt:.", "txt:.:text"),
        ("parquet:/", "parquet:/:text"),
        ("parquet:a/**/*.parquet:body", "parquet:a/**/*.parquet:body"),
    ],
)
def test_a_path_has_one_spelling(given: str, wanted: str) -> None:
    assert str(Source.parse(given)) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_two_spellings_give_the_same_order(tmp_path: Path, kind: str) -> None:
    spec = write_shards(tmp_path / "in", kind)
    with headrace.rows(spec, shuffle=True, cache_dir=tmp_path / "data") as stage:
        found = [(row.address, row.data["text"]) for row in stage]
    other = spelled(tmp_path / "in", kind)
    with headrace.rows(other, shuffle=True, cache_dir=tmp_path / "data") as stage:
        assert [(row.address, row.data["text"]) for row in stage] == found
