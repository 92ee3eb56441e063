"""The catalog of known data sets, its specs and its command."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import headrace
from headrace.catalog.known import all_known, for_testing, known, known_of
from headrace.catalog.source import SYNTH as MADE_UP
from headrace.catalog.source import Source, parse_specs
from headrace.errors import SpecError
from headrace.make.clean import CLEANERS
from headrace.make.formatters import FORMATTERS
from headrace.recipe import Recipe
from headrace.serve.entries import entries_of
from headrace.tools.main import app

ROOT = Path(__file__).parents[1]
SYNTH = ["CoT", "IDK", "FactCheck", "Uncertainty", "Commits", "Diffs", "Issues", "Jupyter", "Shell", "Documents"]


def test_it_holds_more_than_sixty_sets_of_every_category() -> None:
    entries = all_known()
    assert len(entries) >= 180
    counts = Counter(entry.category for entry in entries)
    for category in [
        "code",
        "conversation",
        "tool_use",
        "agentic",
        "vision",
        "video",
        "generation",
        "voice_asr",
        "voice_tts",
    ]:
        assert counts[category] >= 6, category
    for category in [
        "chain_of_thought",
        "anti_hallucination",
        "git_operations",
        "code_execution",
        "document",
        "pretrain",
    ]:
        assert counts[category] >= 5, category
    assert {f"Synth-{name}" for name in SYNTH} == {entry.name for entry in entries if entry.synth}


def test_every_entry_is_whole() -> None:
    rows = yaml.safe_load((ROOT / "headrace/catalog/known.yaml").read_text())
    assert len({row["name"].lower() for row in rows}) == len(rows) == len(all_known())
    for entry in all_known():
        assert entry.formatter in FORMATTERS
        assert bool(entry.repo) != bool(entry.synth)
        assert not entry.splits or entry.split in entry.splits
        assert all(quirk.endswith(".") for quirk in entry.quirks)
        assert set(entry.field_map.get("clean", "=lower")[1:].split(",")) <= set(CLEANERS)
        source = entry.source(allow_eval=True)
        assert source.kind == ("jsonl" if entry.synth else "hf")
        assert Source.parse(str(source)).path == source.path


def test_a_name_is_a_spec() -> None:
    assert Source.parse("known:Dolly-15k") == Source(kind="hf", path="databricks/databricks-dolly-15k")
    assert Source.parse("known:xLAM-60k") == Source(
        kind="hf", path="Salesforce/xlam-function-calling-60k", config="dataset"
    )
    assert Source.parse("known:UltraChat-200k").split == "train_sft"
    assert Source.parse("known:RefinedWeb").column == "content"
    assert Source.parse("known:dolly-15K") == Source.parse("known:Dolly-15k")
    assert [s.path for s in parse_specs("known:TinyStories, hf:a/b")] == ["roneneldan/TinyStories", "a/b"]
    assert Source(kind="known", path="Dolly-15k", revision="abc").revision == "abc"


def test_another_split_may_be_named() -> None:
    assert Source.parse("known:AgentInstruct").split == "os"
    assert Source.parse("known:AgentInstruct:db").split == "db"
    with pytest.raises(SpecError, match="AgentInstruct has no split 'train_sft'; it has os, db, alfworld"):
        Source.parse("known:AgentInstruct:train_sft")


def test_a_configuration_may_be_named() -> None:
    assert known("The-Cauldron").source(config="vqav2").config == "vqav2"
    assert Source(kind="known", path="FLEURS", config="de_de").config == "de_de"


def test_a_recipe_takes_a_name_and_keeps_what_it_stands_for() -> None:
    recipe = Recipe.of("known:Dolly-15k")
    assert recipe.parts[0].source.kind == "hf"
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe
    tested = Recipe.of([Source(kind="known", path="HumanEval", allow_eval=True)])
    assert Recipe.from_yaml(tested.to_yaml()) == tested
    asked = "parts:\n  - source: {kind: known, path: HumanEval, allow_eval: true}\n  - known:C4\n"
    assert [part.source.path for part in Recipe.from_yaml(asked).parts] == ["openai/openai_humaneval", "allenai/c4"]


@pytest.mark.parametrize(
    "spec", ["known:HumanEval", "known:Video-MME", "known:MBPP:test", "known:SWE-bench:dev", "known:TIP-I2V:Eval"]
)
def test_what_is_for_testing_is_refused_unless_asked_for(spec: str) -> None:
    with pytest.raises(SpecError, match="is for testing.*allow_eval=True"):
        Source.parse(spec)
    name, _, split = spec.removeprefix("known:").partition(":")
    source = Source(kind="known", path=name, split=split or "train", allow_eval=True)
    assert source == known(name).source(split=split or None, allow_eval=True)
    assert source.kind == "hf"


@pytest.mark.parametrize(
    ("path", "config", "split"),
    [
        ("openai/openai_humaneval", None, "test"),
        ("OpenAI/OpenAI_HumanEval", None, "test"),
        ("openai_humaneval", None, "test"),
        ("bigcode/humanevalpack", None, "test"),
        ("bigcode/humanevalpack", "default", "test"),
        ("bigcode/humanevalpack", "rust", "test"),
        ("google-research-datasets/mbpp", None, "test"),
        ("SWE-bench/SWE-bench", None, "dev"),
        ("lmms-eval/Video-MME", "videomme", "test"),
    ],
)
def test_a_repo_for_testing_is_refused_by_whatever_name(path: str, config: str | None, split: str) -> None:
    source = Source(kind="hf", path=path, config=config, split=split)
    with pytest.raises(SpecError, match="is for testing.*allow_eval=True"):
        headrace.load(source)
    entry = {"path": path, "config": config, "split": split}
    with pytest.raises(SpecError, match="is for testing.*allow_eval: True"):
        entries_of({"code": [entry]}, {"code": FORMATTERS["format_code"]})
    assert entries_of({"code": [{**entry, "allow_eval": True}]}, {"code": FORMATTERS["format_code"]})


@pytest.mark.parametrize(
    ("path", "config", "split"),
    [
        ("google-research-datasets/mbpp", None, "train"),
        ("SWE-bench/SWE-bench", None, "train"),
        ("nobody/openai_humaneval", None, "test"),
        ("allenai/c4", "en", "train"),
    ],
)
def test_what_is_for_training_is_not_taken_for_a_test_set(path: str, config: str | None, split: str) -> None:
    assert for_testing(Source(kind="hf", path=path, config=config, split=split)) is None


def test_the_sets_people_are_tested_with_are_marked() -> None:
    tests = {entry.name for entry in all_known() if entry.eval_only}
    assert tests >= {
        "HumanEval",
        "HumanEvalPack-rust",
        "Video-MME",
        "MVBench",
        "TruthfulQA",
        "POPE",
        "SWE-bench-Verified",
    }
    assert len(tests) == 29
    assert known("SWE-rebench").source().split == "test"
    assert known("SWE-bench").source().split == "train"


def test_a_name_that_is_not_there_brings_the_nearest() -> None:
    with pytest.raises(SpecError, match="no known data set 'Doly-15k'; nearest: Dolly-15k"):
        known("Doly-15k")
    with pytest.raises(SpecError, match="no known data set"):
        Source.parse("known:\x1b[31mzzzz")
    with pytest.raises(SpecError, match="named by a string"):
        known(7)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="known:<name>"):
        Source.parse("known:")


def test_made_up_sets_are_specs_too() -> None:
    assert Source.parse("known:Synth-CoT") == Source(kind="jsonl", path=f"{MADE_UP}cot")
    assert Source.parse("known:Synth-FactCheck").path == f"{MADE_UP}fact_check"


def test_a_source_is_traced_back_to_its_entry() -> None:
    for name in ("Dolly-15k", "LibriSpeech-Other", "HumanEvalPack-go", "OpenAssistant", "Synth-Shell"):
        assert known_of(known(name).source(allow_eval=True)) is known(name)
    assert known_of(Source(kind="hf", path="blabble-io/libritts_r", config="clean")) is known("LibriTTS-R-Clean")
    assert known_of(Source(kind="hf", path="no/body")) is None
    assert known_of(Source(kind="txt", path="x")) is None


def test_entries_are_frozen_and_travel() -> None:
    entry = known("OpenAssistant")
    assert entry.group_by == "message_tree_id"
    assert pickle.loads(pickle.dumps(entry)) == entry  # noqa: S301
    with pytest.raises(FrozenInstanceError):
        entry.repo = "x"  # type: ignore[misc]


def test_categories_go_by_their_names_and_by_one_word_for_speech() -> None:
    assert {entry.category for entry in all_known("Audio")} == {"voice_asr", "voice_tts"}
    assert {entry.category for entry in all_known("Tool Use")} == {"tool_use"}
    with pytest.raises(SpecError, match="no category 'nonsense'; there are code, conversation"):
        all_known("nonsense")


def test_the_catalog_is_read_only_when_it_is_asked_for() -> None:
    code = "import sys, headrace; from headrace.catalog.source import Source; Source.parse('hf:a/b'); "
    code += "print('headrace.catalog.known' in sys.modules); Source.parse('known:C4'); "
    code += "print('headrace.catalog.known' in sys.modules, 'numpy' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "False", "False"]


def test_the_catalog_is_shipped_with_the_package() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "catalog/known.yaml" in data["tool"]["setuptools"]["package-data"]["headrace"]


# --- the command


def test_the_command_lists_them_by_category() -> None:
    done = CliRunner().invoke(app, ["datasets", "--category", "tool_use"])
    assert done.exit_code == 0
    assert done.output.splitlines()[0] == "tool_use"
    assert "xLAM-60k" in done.output
    assert "Dolly-15k" not in done.output
    whole = CliRunner().invoke(app, ["datasets"]).output
    assert all(entry.name in whole for entry in all_known())
    assert f"{len(all_known())} data sets" in whole


def test_the_command_shows_one() -> None:
    shown = CliRunner().invoke(app, ["datasets", "video-mme"]).output
    for said in ("Video-MME  (video)  [for testing]", "lmms-lab/Video-MME", "format_video", "answer_letter: answer"):
        assert said in shown
    for said in (
        "options: list<string>",
        "known:Video-MME",
        "allow_eval=True is needed",
        "also at     lmms-eval/Video-MME",
    ):
        assert said in shown
    assert "headrace synth (cot)" in CliRunner().invoke(app, ["datasets", "-c", "chain_of_thought"]).output


def test_the_command_says_what_is_near() -> None:
    done = subprocess.run([sys.executable, "-m", "headrace", "datasets", "Doly"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "nearest: Dolly-15k" in done.stderr
