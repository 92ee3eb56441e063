"""Entries of `TrueStreamingDataset`: which source, which formatter, which modality."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.serve.entries import entries_of


def entry_of(entry: dict[str, Any], category: str = "code", functions: Any = None) -> Any:
    (found,) = entries_of({category: [entry]}, functions or {"code": code, "chat": chat, category: code})
    return found


def code(sample: Any, tokens: Any) -> Any:
    return None


def chat(sample: Any, tokens: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("entry", "spec"),
    [
        ({"path": "org/name", "config": "c", "split": "test"}, "hf:org/name:c:test:text"),
        ({"path": "org/name"}, "hf:org/name:train:text"),
        ({"path": "a.jsonl"}, "jsonl:a.jsonl:text"),
        ({"path": "a.jsonl.zst"}, "jsonl:a.jsonl.zst:text"),
        ({"path": "in/*.parquet", "local": True}, "parquet:in/*.parquet:text"),
        ({"path": "a.json", "local": True}, "jsonl:a.json:text"),
        ({"path": "a", "format": "jsonl"}, "jsonl:a:text"),
        ({"path": "a", "format": "parquet"}, "parquet:a:text"),
        ({"path": "known:Dolly-15k", "split": "train"}, "hf:databricks/databricks-dolly-15k:train:text"),
        ({"path": "known:Synth-CoT"}, "jsonl:synth://cot:text"),
    ],
)
def test_an_entry_names_hub_or_files(entry: dict[str, Any], spec: str) -> None:
    assert str(entry_of(entry).part.source) == spec


def test_format_names_another_function_or_the_kind_of_the_files() -> None:
    assert entry_of({"path": "a.jsonl"}).shape.formatter is code
    assert entry_of({"path": "a.jsonl", "format": "chat"}).shape.formatter is chat
    assert entry_of({"path": "a.jsonl", "format": "jsonl"}).shape.formatter is code
    assert entry_of({"path": "a.jsonl", "format": "jsonl"}, functions={"jsonl": chat}).shape.formatter is chat


def test_the_catalog_brings_its_map_for_its_own_formatter_only() -> None:
    ours = {"conversation": headrace.format_conversation}
    found = entry_of({"path": "OpenAssistant/oasst1"}, "conversation", ours).shape
    assert found.group_by == "message_tree_id"
    assert found.formatter.fields["id"] == "message_id"
    mine = entry_of({"path": "OpenAssistant/oasst1"}, "conversation").shape
    assert (mine.formatter, mine.group_by) == (code, None)
    fields = {"messages": "m"}
    own = entry_of({"path": "known:OpenAssistant", "field_map": fields}, "conversation", ours).shape
    assert own.formatter.fields == fields


@pytest.mark.parametrize(
    ("category", "modality"),
    [
        ("code", "text"),
        ("revision", "text"),
        ("text_generation", "text"),
        ("generation", "image"),
        ("image_generation", "image"),
        ("video_generation", "video"),
        ("Vision", "image"),
        ("video", "video"),
        ("voice_asr", "audio"),
        ("tts", "audio"),
    ],
)
def test_the_category_tells_the_modality(category: str, modality: str) -> None:
    assert entry_of({"path": "a.jsonl"}, category).shape.modality == modality
    assert entry_of({"path": "a.jsonl", "modality": "audio"}, category).shape.modality == "audio"


@pytest.mark.parametrize(
    ("path", "root"), [("in/a.jsonl", "in"), ("in/*/a.jsonl", "in"), ("in/a-*.parquet", "in"), ("*.jsonl", ".")]
)
def test_rows_may_name_files_in_the_folder_of_their_data_set(path: str, root: str) -> None:
    assert entry_of({"path": path}).shape.policy.root == Path(root).absolute()
    assert entry_of({"path": "org/name"}).shape.policy.root is None
