"""Rows with the real columns of the known data sets go all the way: file, formatter, media, tokens, batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from media_files import clip, encoded, photo, sound, tone
from schemas import WAV, rows_of
from streaming import RATE, World, write_table

from headrace import Faults, collate_fn
from headrace.catalog.known import Known, all_known, known
from headrace.errors import HeadraceError, NotAllowed
from headrace.make.formatters import FORMATTERS, formatter_for
from headrace.make.tokens import TOKENS
from headrace.sequence.finish import FLAGS, MEDIA
from headrace.sequence.media import INDEX
from headrace.testing import LocalHub

ENTRIES = [entry for entry in all_known() if entry.columns and entry.trainable]
CATEGORIES = sorted({entry.category for entry in ENTRIES})
SYNTHETIC = [entry for entry in all_known() if entry.synth]
PICTURE, FILM, VOICE = encoded(photo(), "PNG"), clip([1, 2], size=(16, 16)), sound(tone(RATE, 0.02), RATE)
LONGEST = 2048


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def real(value: Any) -> Any:
    """A value with media that can be decoded."""
    if isinstance(value, dict):
        return {name: real(one) for name, one in value.items()}
    if isinstance(value, list):
        return [real(one) for one in value]
    if isinstance(value, bytes):
        return VOICE if value == WAV else FILM if b"ftyp" in value else PICTURE
    return value


def rows_with_media(entry: Known) -> list[dict[str, Any]]:
    rows = [real(row) for row in rows_of(entry)]
    if entry.group_by:
        reply = {"message_id": "reply", "parent_id": rows[0]["message_id"], "role": "assistant", "text": "It is so."}
        return [rows[0], {**rows[0], **reply}]
    return rows


def samples_of(entry: Known) -> list[dict[str, Any]]:
    """What the formatter makes of these rows."""
    rows = rows_with_media(entry)
    given = [{"rows": rows}] if entry.group_by else rows
    made = [formatter_for(entry)(row, TOKENS) for row in given]
    return [one for found in made for one in (found if isinstance(found, list) else [found]) if one is not None]


def statuses(entry: Known) -> set[str]:
    return {status for sample in samples_of(entry) for status in sample.get("media_status", {}).values()}


def entry_of(world: World, entry: Known) -> dict[str, Any]:
    path = write_table(world.folder / f"{entry.name}.parquet", rows_with_media(entry))
    fields = {"field_map": dict(entry.field_map), "group_by": entry.group_by, "format": entry.formatter}
    return {"name": entry.name, "path": str(path), **fields}


def made(world: World, configs: dict[str, Any], count: int, **options: Any) -> Iterator[dict[str, Any]]:
    options = {"functions": FORMATTERS, "max_per_epoch": count, "sample_repeat": 1, "max_length": LONGEST, **options}
    return iter(world.make(configs, **{"learn": "assistant", **options}))


def check(world: World, sample: dict[str, Any], formatted: dict[str, Any]) -> None:
    """Tokens say the text, and those of the assistant's turns are learned."""
    learned = [text for text, is_learned in formatted["segments"] if is_learned]
    assert world.text(sample) == formatted["text"]
    assert world.text(sample, "labels") == "".join(learned)
    assert any(text.strip() for text in learned)
    learns = sample["labels"] != -100
    assert torch.equal(sample["labels"][learns], sample["input_ids"][learns])
    assert sample["dtype"] == formatted["dtype"]
    assert {flag: sample[flag] for flag in FLAGS} == {flag: bool(formatted.get(flag)) for flag in FLAGS}


def count_of(formatted: dict[str, Any], name: str) -> int:
    fields = [formatted.get(field) for field in MEDIA[name][1]]
    return sum(len(value) if isinstance(value, list) else 1 for value in fields if value is not None)


def check_batch(batch: dict[str, Any], several: list[dict[str, Any]]) -> None:
    """All media of all samples are there, decoded, each with the number of its sample."""
    for name, index in INDEX.items():
        wanted = [i for i, one in enumerate(several) for _ in range(count_of(one, name))]
        assert (batch[index].tolist() if index in batch else []) == wanted, name
        assert (len(batch[name]) if name in batch else 0) == len(wanted)
        if wanted:
            assert torch.isfinite(batch[name]).all()
    prompts = [(i, one["gen_prompts"]) for i, one in enumerate(several) if one.get("gen_prompts") is not None]
    assert [prompt for _, prompt in prompts] == batch.get("gen_prompts", [])


@pytest.mark.parametrize("category", CATEGORIES)
def test_rows_of_every_data_set_of_a_category_become_one_batch(world: World, category: str) -> None:
    entries = [entry for entry in ENTRIES if entry.category == category and statuses(entry) <= {"data"}]
    for entry in entries:
        several = samples_of(entry)
        configs = {category: [entry_of(world, entry)]}
        samples = list(made(world, configs, len(several)))
        for sample, formatted in zip(samples, several, strict=True):
            check(world, sample, formatted)
        check_batch(collate_fn(samples), several)
    assert entries


@pytest.mark.parametrize("entry", [e for e in ENTRIES if not statuses(e) <= {"data"}], ids=lambda entry: entry.name)
def test_media_that_are_only_named_are_refused_with_the_row(world: World, entry: Known) -> None:
    configs = {entry.category: [entry_of(world, entry)]}
    with pytest.raises(HeadraceError) as caught:
        list(made(world, configs, 1))
    assert isinstance(caught.value, NotAllowed | FileNotFoundError)
    assert f"{entry.name}.parquet:0" in "\n".join(caught.value.__notes__)


def test_files_beside_the_rows_may_be_named(world: World) -> None:
    (world.folder / "clips").mkdir()
    (world.folder / "clips/v1.mp4").write_bytes(FILM)
    rows = [{"video": "clips/v1.mp4", "question": "What moves?", "answer": "A cat."}]
    path = write_table(world.folder / "named.parquet", rows)
    configs = {"video": [{"name": "named", "path": str(path), "format": "format_video"}]}
    (sample,) = made(world, configs, 1)
    assert sample["videos"].shape == (2, 3, 8, 8)
    rows[0]["video"] = "../named.parquet"
    path = write_table(world.folder / "up.parquet", rows)
    with pytest.raises(NotAllowed):
        list(made(world, {"video": [{"name": "up", "path": str(path), "format": "format_video"}]}, 1))


def test_half_a_row_is_skipped_if_asked(world: World) -> None:
    """A set whose videos are names only gives nothing, and the others go on."""
    entries = [known("Video-MME"), known("LLaVA-Instruct-Mix-VSFT")]
    configs = {"vision": [entry_of(world, entry) for entry in entries]}
    samples = list(made(world, configs, 3, faults=Faults(policy="skip", budget=5)))
    assert {sample["dtype"] for sample in samples} == {"vision"}


# --- from the Hub, by name


ANSWERS = {
    "Python-Code-18k": "```python\nThe output of this row.\n```",
    "OpenAssistant": "It is so.",
    "xLAM-60k": '{"name": "weather", "arguments": {"city": "Oslo"}}',
    "AgentInstruct": "Light scatters.",
    "ScienceQA": "B. The second choices of this row.",
    "MagicBrush": f"{TOKENS['gen_image']}{TOKENS['gen_image_end']}",
    "LibriSpeech-Clean": "the text of this row.",
    "LibriTTS-R-Clean": f"{TOKENS['gen_audio']}{TOKENS['gen_audio_end']}",
    "GSM8K": f"She had 24 / 2 = 12.{TOKENS['think_end']}12",
    "SQuAD-v2": "The first text of this row.",
    "CommitPackFT": "+The new contents of this row.",
    "CodeActInstruct": "It is 42.",
    "MP-DocVQA": "1984",
    "Wikipedia": "The text of this row.",
}
"""What a model is to learn of the first row of some sets."""


def test_known_names_are_read_from_the_hub_with_their_maps(
    world: World, hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    configs: dict[str, Any] = {}
    several = {}
    for name in ANSWERS:
        entry = known(name)
        path = write_table(tmp_path / f"{name}.parquet", rows_with_media(entry))
        split, config = entry.split, entry.config or "default"
        files = f"  data_files:\n  - split: {split}\n    path: data/*.parquet\n"
        card = f"---\nconfigs:\n- config_name: {config}\n{files}---\n"
        hub.push(entry.repo, {"README.md": card.encode(), "data/0.parquet": path})
        configs.setdefault(entry.formatter, []).append({"name": name, "path": f"known:{name}", "allow_eval": True})
        several[name] = samples_of(entry)[0]
    options = {"cache_dir": tmp_path / "data", "max_per_dataset": 1}
    samples = list(made(world, configs, len(ANSWERS), **options))
    order = [entry["name"] for entries in configs.values() for entry in entries]
    for name, sample in zip(order, samples, strict=True):
        check(world, sample, several[name])
        assert ANSWERS[name] in world.text(sample, "labels")
    check_batch(collate_fn(samples), [several[name] for name in order])


def test_sets_that_are_made_here_go_the_same_way(world: World, tmp_path: Path) -> None:
    configs: dict[str, Any] = {}
    for entry in SYNTHETIC:
        configs.setdefault(entry.formatter, []).append({"name": entry.name, "path": f"known:{entry.name}"})
    count = 2 * len(SYNTHETIC)
    options = {"max_per_dataset": 2, "cache_dir": tmp_path, "max_length": 8192}
    samples = list(made(world, configs, count, **options))
    assert len(samples) == count >= 20
    for sample in samples:
        learned = world.text(sample, "labels")
        if sample["dtype"] == "document":
            assert learned == world.text(sample)
        else:
            assert learned.endswith(TOKENS["assistant_end"])
            assert TOKENS["user_start"] not in learned
            assert TOKENS["exec_result"] not in learned
