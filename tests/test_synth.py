"""Made-up sets: the same bytes everywhere, written whole, read as sources, and made into samples."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import headrace
from headrace import synth
from headrace.catalog.known import all_known, known
from headrace.catalog.source import Source
from headrace.errors import Changed, SpecError
from headrace.make.formatters import formatter_for
from headrace.make.tokens import TOKENS
from headrace.tools.main import app

NAMES = {entry.synth: entry.name for entry in all_known() if entry.synth}
DIGEST = "6280ef2f56ded8a0"
"""Of the first rows of every kind; `digest` gives it."""


def digest(rows: int) -> str:
    h = hashlib.blake2b(digest_size=8)
    for kind in synth.KINDS:
        h.update(json.dumps([synth.row(kind, i) for i in range(rows)], ensure_ascii=False).encode())
    return h.hexdigest()


def formatted(kind: str, row: dict[str, Any]) -> dict[str, Any]:
    made = formatter_for(known(NAMES[kind]))(row, TOKENS)
    assert isinstance(made, dict)
    return made


def learned(made: dict[str, Any]) -> str:
    return "".join(text for text, is_learned in made["segments"] if is_learned)


# --- the same everywhere


def test_the_rows_are_those_of_every_other_machine() -> None:
    # A changed text changes it; a changed Python, platform or hash seed must not.
    assert digest(60) == DIGEST


def test_another_process_with_another_hash_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    code = f"from headrace import synth\nfor kind in synth.KINDS: synth.write(kind, {str(tmp_path / 'there')!r}, 30, 7)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONHASHSEED": "4711"})
    for kind in synth.KINDS:
        here, there = synth.write(kind, tmp_path / "here", 30, 7), tmp_path / "there" / f"{kind}.jsonl"
        assert here.read_bytes() == there.read_bytes()
        assert here.stat().st_mtime_ns == there.stat().st_mtime_ns


@pytest.mark.parametrize("kind", synth.KINDS)
def test_a_row_stands_by_itself(kind: str, tmp_path: Path) -> None:
    lines = synth.write(kind, tmp_path, 40, seed=3).read_text().splitlines()
    assert len(lines) == 40
    assert json.loads(lines[17]) == synth.row(kind, 17, 3)
    assert synth.write(kind, tmp_path, 10, seed=3).read_text().splitlines() == lines[:10]


@pytest.mark.parametrize("kind", synth.KINDS)
def test_rows_differ_by_number_and_by_seed(kind: str) -> None:
    rows = [synth.row(kind, i, seed) for seed in (0, 1) for i in range(100)]
    assert len({row["id"] for row in rows}) == 200
    assert {row["kind"] for row in rows} == {kind}
    bodies = {json.dumps({k: v for k, v in row.items() if k not in ("id", "seed")}) for row in rows}
    assert len(bodies) > 180


@pytest.mark.parametrize("kind", synth.KINDS)
def test_readers_with_columns_see_one_type_per_column(kind: str, tmp_path: Path) -> None:
    import pyarrow.json

    path = synth.write(kind, tmp_path, 60)
    table = pyarrow.json.read_json(path)
    assert table.column_names == list(synth.row(kind, 0))
    assert all(table.column(name).null_count == 0 for name in table.column_names)


# --- files


def test_a_file_with_the_same_rows_is_left_as_it_is_and_another_is_replaced(tmp_path: Path) -> None:
    path = synth.write("cot", tmp_path, 5)
    first = path.stat()
    assert synth.write("cot", tmp_path, 5).stat().st_ino == first.st_ino
    assert synth.write("cot", tmp_path, 5, seed=1).stat().st_mtime_ns != first.st_mtime_ns
    assert synth.write("cot", tmp_path, 5).stat().st_mtime_ns == first.st_mtime_ns


def test_a_set_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    before = synth.write("idk", tmp_path, 3).read_bytes()
    made = []

    def stop() -> None:
        made.append(1)
        if len(made) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synth.write("idk", tmp_path, 9, on_row=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["idk.jsonl"]
    assert (tmp_path / "idk.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: synth.write("poems", p), "no synthetic set 'poems'; there are cot,"),
        (lambda p: synth.write("cot", p, 0), "rows=0"),
        (lambda p: synth.write("cot", p, 2, -1), "seed=-1"),
        (lambda p: synth.row("cot", -1), "row number -1"),
        (lambda p: headrace.rows("jsonl:synth://poems", cache_dir=p), "no synthetic set 'poems'"),
    ],
)
def test_what_cannot_be_made_is_refused(call: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=words):
        call(tmp_path)
    assert list(tmp_path.glob("**/*.jsonl")) == []


# --- as sources


def test_every_kind_is_in_the_catalog() -> None:
    assert set(NAMES) == set(synth.KINDS)


@pytest.mark.parametrize("kind", synth.KINDS)
def test_a_known_set_is_written_when_it_is_first_opened(kind: str, tmp_path: Path) -> None:
    source = Source.parse(f"known:{NAMES[kind]}")
    assert Source.parse(str(source)) == source
    assert list(tmp_path.iterdir()) == []
    with headrace.rows(source, cache_dir=tmp_path) as stage:
        assert [row.data for row in stage] == [synth.row(kind, i) for i in range(synth.ROWS)]
    assert (tmp_path / "synth" / f"{kind}.jsonl").is_file()


def test_a_set_that_was_written_with_more_rows_is_the_one_that_is_read(tmp_path: Path) -> None:
    synth.write("shell", tmp_path / "synth", 3, seed=5)
    with headrace.rows("known:Synth-Shell", cache_dir=tmp_path) as stage:
        assert [row.data["id"] for row in stage] == ["shell-5-0", "shell-5-1", "shell-5-2"]


def test_a_run_goes_on_where_the_set_had_to_be_written_anew(tmp_path: Path) -> None:
    with headrace.rows("known:Synth-Diffs", shuffle=True, cache_dir=tmp_path / "a") as stage:
        rows = iter(stage)
        for _ in range(50):
            next(rows)
        state = stage.state_dict()
        rest = [row.data["id"] for row in rows]
    with headrace.rows("known:Synth-Diffs", shuffle=True, cache_dir=tmp_path / "b") as stage:
        stage.load_state_dict(state)
        assert [row.data["id"] for row in stage] == rest
    synth.write("diffs", tmp_path / "c" / "synth", seed=1)
    with headrace.rows("known:Synth-Diffs", shuffle=True, cache_dir=tmp_path / "c") as stage, pytest.raises(Changed):
        stage.load_state_dict(state)


# --- as samples


@pytest.mark.parametrize("kind", synth.KINDS)
def test_every_row_is_a_sample_with_something_to_learn(kind: str) -> None:
    for i in range(60):
        made = formatted(kind, synth.row(kind, i))
        assert made["text"] == "".join(text for text, _ in made["segments"])
        assert learned(made).strip()
        assert "None" not in made["text"].replace("None.", "").replace("=None", "").replace("is None", "")
        assert "$name" not in made["text"]


@pytest.mark.parametrize("kind", ["cot", "idk", "fact_check", "uncertainty"])
def test_questions_are_given_and_answers_are_learned(kind: str) -> None:
    for i in range(40):
        row = synth.row(kind, i)
        made = formatted(kind, row)
        assert row["question"] in made["text"]
        assert row.get("context", "") in made["text"]
        assert learned(made).removesuffix(TOKENS["assistant_end"]).endswith(row["answer"])
        for step in row.get("steps", []):
            assert step in learned(made)


def test_commits_teach_messages_and_diffs_and_issues_teach_diffs() -> None:
    for i in range(60):
        for kind, taught, given in (
            ("commits", "message", ("diff",)),
            ("diffs", "diff", ("message", "before", "file")),
            ("issues", "diff", ("title", "issue", "before", "file")),
        ):
            row = synth.row(kind, i)
            made = formatted(kind, row)
            assert row[taught] in learned(made)
            for name in given:
                assert row[name].strip() in made["text"].removesuffix(learned(made))


def test_code_and_commands_are_learned_and_what_they_print_is_not() -> None:
    for i in range(60):
        row = synth.row("jupyter", i)
        text, said = formatted("jupyter", row)["text"], learned(formatted("jupyter", row))
        for cell in row["cells"]:
            assert cell["source"] in said
            for output in cell["outputs"]:
                assert output["text"] + output["traceback"] in text
        row = synth.row("shell", i)
        said = learned(formatted("shell", row))
        for step in row["steps"]:
            assert step["command"] in said
            assert not step["error"] or step["error"].strip() not in said
        assert row["answer"] in said


def test_documents_are_read_asked_about_and_written() -> None:
    uses = set()
    for i in range(60):
        row = synth.row("documents", i)
        made = formatted("documents", row)
        uses.add(row["use"])
        assert row["text"].strip() in made["text"]
        if row["use"] == "read":
            assert learned(made) == row["answer"] + TOKENS["assistant_end"]
        else:
            assert row["text"].strip() in learned(made)
    assert uses == {"whole", "read", "write"}


# --- the command


def test_the_command_writes_all_sets(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["synth", "--out", str(tmp_path), "--rows", "3", "--seed", "2"])
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.iterdir()} == {f"{kind}.jsonl" for kind in synth.KINDS}
    assert json.loads((tmp_path / "cot.jsonl").read_text().splitlines()[2]) == synth.row("cot", 2, 2)
    assert f"{tmp_path / 'cot.jsonl'}  3 rows" in done.output


def test_the_command_says_where_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    done = CliRunner().invoke(app, ["synth", "cot", "--out", str(tmp_path / "file"), "--rows", "3"])
    assert isinstance(done.exception, SpecError)
    assert f"{tmp_path / 'file'}: cot cannot be written there" in str(done.exception)


def test_the_command_writes_where_known_sets_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))
    assert CliRunner().invoke(app, ["synth", "jupyter", "--rows", "4"]).exit_code == 0
    with headrace.rows("known:Synth-Jupyter") as stage:
        assert len(list(stage)) == 4


def test_the_command_refuses_an_unknown_kind_before_it_writes(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["synth", "cot", "poems", "--out", str(tmp_path)])
    assert isinstance(done.exception, SpecError)
    assert "'poems'" in str(done.exception)
    assert list(tmp_path.iterdir()) == []
