"""State files, and the commands that read them: `headrace verify`, `headrace rows --state`, `headrace describe`."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from near import through_json
from states import changed, edited, everywhere, opened, refused, restamped

import headrace
from headrace.batch import Batch
from headrace.recipe import Recipe
from headrace.serve.loader import Loader
from headrace.serve.state_file import read_state as read_state_of_a_data_set
from headrace.testing import write_jsonl, write_parquet
from headrace.tools import main
from headrace.tools import states as state_files
from headrace.tools.states import read_state, read_states

pytestmark = pytest.mark.timeout(60)


class Corpus(NamedTuple):
    """Files, and a run over them that was saved after five steps."""

    folder: Path
    kind: str

    def loader(self, **options: Any) -> Loader:
        fields = {"rows": {"batch_size": 4}, "tokens": {"batch_size": 2, "seq_len": 32}}[self.kind]
        spec = f"parquet:{self.folder}/in/*.parquet:{'text' if self.kind == 'rows' else 'ids'}"
        return headrace.load(spec, lanes=2, cache_dir=self.folder / "data", **{**fields, **options})

    def run(self, *words: str) -> Done:
        """The command line, in this process."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["headrace", *words, "--cache-dir", str(self.folder / "data")])
            patch.setenv("COLUMNS", "200")
            patch.chdir(self.folder)
            with pytest.raises(SystemExit) as ended:
                main.run()
        return Done(ended.value.code, out.getvalue(), err.getvalue())


class Done(NamedTuple):
    code: Any
    said: str
    complained: str


def ids_row(shard: str, row: int) -> dict[str, Any]:
    return {"uid": f"{shard}:{row}", "text": f"row {row}", "ids": list(range(row + 1))}


@pytest.fixture(params=["rows", "tokens"])
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Corpus:
    write_parquet(tmp_path / "in", [[20, 13], [11], [7, 7]], row=ids_row)
    found = Corpus(tmp_path, request.param)
    loader = found.loader()
    assert len(list(zip(range(5), loader, strict=False))) == 5
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    loader.close()
    return found


# --- files


FILES: dict[str, tuple[bytes, str]] = {
    "of no bytes": (b"", "it is empty; was the run killed while it was written"),
    "of blanks": (b" \n\n", "it is empty"),
    "cut off": (b'{"format": 1, "lanes": "[', "it is not JSON: .*; it may have been cut off"),
    "not JSON": (b"format: 1\n", "it is not JSON: .*; write json.dumps"),
    "a pickle": (b"\x80\x04\x95\x10\x00\x00", "it is a pickle, not text; .*a pickle is not opened"),
    "a zip": (b"PK\x03\x04\x14\xff", "it is an archive such as torch.save writes, not text; write json.dumps"),
    "not a number": (b'{"format": NaN, "lanes": "[]"}', "NaN is no number of a state"),
    "too deep": (b"[" * 200_000, "it is not JSON"),
    "a list": (b"[1, 2]", "there is no state of a loader in it"),
    "a model": (b'{"model": {"w": 1}, "\\u001b[31m": 2}', r"there is no state of a loader in it, only model, \\x1b"),
    "nothing": (b"{}", "there is no state of a loader in it, only nothing"),
    "two states": (
        b'{"train": {"format": 1, "lanes": ""}, "eval": {"data": {"format": 1, "lanes": ""}}}',
        "there are several states in it, under eval.data, train",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_state_says_what_it_is(tmp_path: Path, name: str) -> None:
    data, said = FILES[name]
    path = tmp_path / "s\x1b.json"
    path.write_bytes(data)
    message = refused(lambda: read_state(path))
    assert re.search(rf"^state file unreadable: {tmp_path}/s\\x1b.json \(.*{said}.*\); nothing was changed$", message)


def test_files_that_are_no_files_are_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert "it is not a regular file" in refused(lambda: read_state(tmp_path / "fifo"))
    assert "it is not a regular file" in refused(lambda: read_state(Path("/dev/zero")))
    assert "Is a directory" in refused(lambda: read_state(tmp_path))
    assert "No such file" in refused(lambda: read_state(tmp_path / "none"))
    assert "null" in refused(lambda: read_state(tmp_path / "a\0b"))


def test_a_file_larger_than_any_state_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(1 << 30)
    monkeypatch.setattr(state_files, "MOST_BYTES", 1000)
    assert "it is larger than 1,000 bytes, which no state is" in refused(lambda: read_state(tmp_path / "huge.json"))


def test_a_state_is_found_inside_a_checkpoint(tmp_path: Path) -> None:
    state = {"format": 1, "lanes": "[]"}
    for wrap in ("loader", "data", "dataloader"):
        (tmp_path / "c.json").write_text(json.dumps({"step": 3, "model": {"a": [1]}, wrap: state}))
        assert read_state(tmp_path / "c.json") == state
    (tmp_path / "c.json").write_text(json.dumps({"trainer": {"callbacks": {"loader": state}}}))
    assert read_state(tmp_path / "c.json") == state


def test_a_state_file_that_was_cut_anywhere_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    """By the command line's reader and by the data set's own, after every one of its bytes."""
    data = (corpus.folder / "state.json").read_bytes().rstrip()
    cut_file = tmp_path / "cut.json"
    assert len(data) > 500
    for cut in range(len(data)):
        cut_file.write_bytes(data[:cut])
        message = refused(lambda: read_state(cut_file))
        assert ("it is not JSON" if cut else "it is empty") in message, f"cut at {cut}"
        assert "nothing was changed" in message
        assert "state file unreadable" in refused(lambda: read_state_of_a_data_set(cut_file)), f"cut at {cut}"
    cut_file.write_bytes(data)
    assert read_state(cut_file) == read_state(corpus.folder / "state.json")


# --- verify


def test_verify_says_that_a_state_is_reachable(corpus: Corpus) -> None:
    done = corpus.run("verify", "state.json")
    assert done.code == 0, done.complained
    assert "This state is reachable (m=5, 2 lanes)" in done.said
    assert len(re.findall(r"│ ok +│", done.said)) == 2
    assert done.complained == ""


def test_verify_says_which_lane_cannot_be_where_it_is(corpus: Corpus) -> None:
    state = read_state(corpus.folder / "state.json")
    broken = edited(state, lambda s, lanes, facts: lanes[1]["src"][0].update(d=7))
    (corpus.folder / "broken.json").write_text(json.dumps({"loader": broken}))
    done = corpus.run("verify", "broken.json")
    assert done.code == 1, done.complained
    assert "This state is NOT reachable" in done.said
    assert re.search(r"│ 1 +│ \d +│ \d+ +│ d \(digest\): it is 7", done.said)
    assert len(re.findall(r"│ ok +│", done.said)) == 1


def test_verify_joins_the_parts_of_ranks(corpus: Corpus) -> None:
    whole = read_state(corpus.folder / "state.json")
    lanes = json.loads(whole["lanes"])
    for rank in range(2):
        part = {**whole, "lanes": json.dumps([lane if i == rank else None for i, lane in enumerate(lanes)])}
        (corpus.folder / f"rank{rank}.json").write_text(json.dumps(restamped(part)))
    paths = [corpus.folder / f"rank{rank}.json" for rank in range(2)]
    assert json.loads(read_states(paths)["lanes"]) == lanes
    assert corpus.run("verify", "rank0.json", "rank1.json").code == 0
    done = corpus.run("verify", "rank1.json")
    assert done.code == 2
    assert "no lanes 0 of 2" in done.complained


def test_verify_without_the_tokenizer_reads_no_row_and_says_what_it_did_not_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.fetch.shelf import Shelf
    from headrace.serve.verify import verify

    write_parquet(tmp_path / "in", [[20, 13]], row=ids_row)
    corpus = Corpus(tmp_path, "tokens")
    loader = corpus.loader()
    next(iter(loader))
    state = through_json(loader.state_dict())
    tokenizing = changed(state, ("recipe", "tokenize"), {"tokenizer": str(tmp_path / "gone")})
    recipe = Recipe.from_dict(json.loads(tokenizing["recipe"]))
    tokenizing = restamped({**tokenizing, "recipe": recipe.text, "fingerprint": recipe.fingerprint()})

    def not_read(*args: Any) -> None:
        raise AssertionError("a row was read")

    monkeypatch.setattr(Shelf, "__init__", not_read)
    report = verify(tokenizing, run=loader._pipeline.run)
    assert report.is_reachable, report.all_problems()
    assert "there is no tokenizer for it" in report.unchecked


def test_verify_takes_another_recipe_for_that_of_the_state(corpus: Corpus) -> None:
    recipe = corpus.loader()._pipeline.recipe
    (corpus.folder / "same.yaml").write_text(recipe.to_yaml())
    assert corpus.run("verify", "state.json", "--recipe", "same.yaml").code == 0
    values = {**yaml.safe_load(recipe.to_yaml()), "order": {"seed": 3}}
    (corpus.folder / "other.yaml").write_text(yaml.safe_dump(values))
    done = corpus.run("verify", "state.json", "--recipe", "other.yaml")
    assert done.code == 2
    assert "order.seed: the state was made with 0, here it is 3" in done.complained


def test_a_long_verify_shows_a_bar_on_a_terminal(corpus: Corpus) -> None:
    terminal, other = pty.openpty()
    command = [sys.executable, "-m", "headrace", "verify", "state.json", "--cache-dir", str(corpus.folder / "data")]
    with subprocess.Popen(command, cwd=corpus.folder, stdout=subprocess.PIPE, stderr=other) as process:
        os.close(other)
        said = b""
        while True:
            try:
                block = os.read(terminal, 4096)
            except OSError:
                break
            if not block:
                break
            said += block
        assert process.wait(30) == 0
    os.close(terminal)
    assert b"replaying draws" in said


# --- rows


def lines(done: Done) -> list[dict[str, Any]]:
    assert done.code == 0, done.complained
    return [json.loads(line) for line in done.said.splitlines()]


def addresses(batch: Batch) -> list[dict[str, Any]]:
    if not batch.packed:
        return [{"m": batch.m, **address._asdict()} for address in batch.addresses]
    return [
        {"m": batch.m, "sequence": i, **s.address._asdict(), "sample": s.sample, "tokens": [s.start, s.stop]}
        for i, spans in enumerate(batch.spans)
        for s in spans
    ]


def test_the_rows_of_a_step_to_come_are_those_that_come(corpus: Corpus) -> None:
    loader = corpus.loader()
    loader.load_state_dict(read_state(corpus.folder / "state.json"))
    found: dict[int, Batch] = {}
    while len(found) < 40:
        found.update({batch.m: batch for _, batch in zip(range(40 - len(found)), loader, strict=False)})
    for step, m in (("+0", 5), ("7", 7), ("+9", 14), ("38", 38)):
        assert lines(corpus.run("rows", "--state", "state.json", "--step", step)) == addresses(found[m])


def test_steps_that_are_over_and_steps_that_are_none_are_told_in_a_sentence(corpus: Corpus) -> None:
    said = {
        ("txt:a.txt", "--step", "4"): "steps are of a run, which a source alone is not; give --state FILE of the run",
        ("txt:a.txt", "--recipe", "r.yaml"): "headrace rows txt:a.txt --recipe: steps are of a run",
        ("--state", "state.json", "--step", "x"): "--step 'x': the number of a micro-batch",
        ("--state", "gone.json"): "state file unreadable: gone.json",
        ("--state", "state.json", "--tokenizer", "t"): "--tokenizer: the recipe of this state does not tokenize",
        ("--state", "state.json", "txt:a"): "a source (hf:org/name:train) or --state FILE is expected, one of them",
        (): "one of them",
    }
    for words, sentence in said.items():
        done = corpus.run("rows", *words)
        assert (done.code, done.said) == (2, "")
        assert sentence in done.complained


def test_a_step_far_away_is_found_by_counting(tmp_path: Path) -> None:
    write_jsonl(tmp_path, [30, 11])
    loader = headrace.load(f"jsonl:{tmp_path}/*.jsonl", batch_size=4, lanes=3, cache_dir=tmp_path / "data")
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    corpus = Corpus(tmp_path, "rows")
    batches = [(len(list(loader)), loader._here.m)[1] for _ in range(3)]
    assert batches == [12, 24, 36]
    (first, *_) = lines(corpus.run("rows", "--state", "state.json", "--step", str(12 * 10**12)))
    assert (first["m"], first["epoch"]) == (12 * 10**12, 10**12)


# --- describe


def test_a_recipe_is_drawn_with_the_rows_that_it_has(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[20, 13]])
    (tmp_path / "recipe.yaml").write_text(f"parts:\n- parquet:{tmp_path}/in/*.parquet\nbatch_size: 3\n")
    corpus = Corpus(tmp_path, "rows")
    done = corpus.run("describe", "recipe.yaml")
    recipe = Recipe.from_yaml(tmp_path / "recipe.yaml")
    assert (done.code, done.said.rstrip()) == (0, recipe.describe())
    assert "33 rows" in corpus.run("describe", "recipe.yaml", "--count").said
    (tmp_path / "recipe.yaml").write_text("parts: [txt:a]\nbatch_size: 0\n")
    done = corpus.run("describe", "recipe.yaml")
    assert done.code == 2
    assert "batch_size: 0 is not a whole number" in done.complained


# --- samples


def test_a_state_of_samples_verifies_epoch_after_epoch_and_is_no_state_of_a_loader(tmp_path: Path) -> None:
    from headrace.serve.streaming import TrueStreamingDataset
    from headrace.testing.tokenizers import write_tokenizer

    tokenizer = str(write_tokenizer(tmp_path / "tokenizer"))
    for name, rows in (("a", [9, 4]), ("b", [3])):
        write_jsonl(tmp_path / name, rows)
    entries = [{"name": name, "path": f"{tmp_path}/{name}/*.jsonl"} for name in "ab"]
    formats = {"text": lambda row, *_: {"text": row["text"]}}
    limits = {"max_per_epoch": 12, "max_per_dataset": 8}
    loader = TrueStreamingDataset({"text": entries}, formats, tokenizer, {}, None, **limits).loader(2, lanes=2)  # type: ignore[arg-type]
    corpus = Corpus(tmp_path, "rows")
    for _ in range(2):
        for _ in zip(range(5), loader, strict=False):
            (tmp_path / "state.json").write_text(json.dumps({"headrace": loader.state_dict()}))
        assert corpus.run("verify", "state.json").code == 0
        loader.close()
        list(loader)
    state = read_state(tmp_path / "state.json")
    (path,) = [path for path, _ in everywhere(opened(state)) if path == ("lanes", 0, "src", 1, "d")]
    (tmp_path / "state.json").write_text(json.dumps(changed(state, path, 1)))
    assert corpus.run("verify", "state.json").code == 1
    write_parquet(tmp_path / "in", [[5]])
    said = "the state was made by a TrueStreamingDataset, this is a loader"
    assert said in refused(lambda: corpus.loader().load_state_dict(state))
