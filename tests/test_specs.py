from __future__ import annotations

import pytest

from headrace.catalog.source import Source, parse_specs
from headrace.errors import SpecError, shown


@pytest.mark.parametrize(
    ("spec", "source", "name"),
    [
        ("hf:org/name", Source(kind="hf", path="org/name"), "hf:org/name:train:text"),
        ("hf:squad", Source(kind="hf", path="squad"), "hf:squad:train:text"),
        ("hf:o/n:test", Source(kind="hf", path="o/n", split="test"), "hf:o/n:test:text"),
        ("hf:o/n:test:code", Source(kind="hf", path="o/n", split="test", column="code"), "hf:o/n:test:code"),
        (
            "hf:o/n:en:test:code",
            Source(kind="hf", path="o/n", config="en", split="test", column="code"),
            "hf:o/n:en:test:code",
        ),
        ("txt:/data/a.txt", Source(kind="txt", path="/data/a.txt"), "txt:/data/a.txt:text"),
        ("txt:a/*.txt:line", Source(kind="txt", path="a/*.txt", column="line"), "txt:a/*.txt:line"),
        ("jsonl:a.jsonl.gz", Source(kind="jsonl", path="a.jsonl.gz"), "jsonl:a.jsonl.gz:text"),
        (
            "parquet:s3://b/k/*.parquet",
            Source(kind="parquet", path="s3://b/k/*.parquet"),
            "parquet:s3://b/k/*.parquet:text",
        ),
        (
            "parquet:s3://b/k.parquet:body",
            Source(kind="parquet", path="s3://b/k.parquet", column="body"),
            "parquet:s3://b/k.parquet:body",
        ),
        ("lerobot:org/name", Source(kind="lerobot", path="org/name"), "lerobot:org/name"),
        ("lerobot: /data/set ", Source(kind="lerobot", path="/data/set"), "lerobot:/data/set"),
        (
            "lerobot:hf://buckets/org/name",
            Source(kind="lerobot", path="hf://buckets/org/name"),
            "lerobot:hf://buckets/org/name",
        ),
    ],
)
def test_a_spec_is_its_source_and_back(spec: str, source: Source, name: str) -> None:
    assert Source.parse(spec) == source
    assert str(source) == name
    assert Source.parse(name) == source


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "does not start with a kind"),
        ("org/name", "hf:<repo>"),
        ("csv:x.csv", "does not start with a kind"),
        ("hf:", "empty"),
        ("hf:a/b/c", "not a repo name like 'org/name'"),
        ("hf:../x", "not a repo name"),
        ("hf:a/b::text", "empty"),
        ("hf:a/b:1:2:3:4", "5 parts"),
        ("hf:a/b:tr/ain", "the split 'tr/ain' is not a plain name"),
        ("txt:", "path is empty"),
        ("txt:a:b:c", "too many colons"),
        ("txt:a:", "the column is empty"),
        ("txt:s3://b/x.txt", "only parquet is read from a URL"),
        ("parquet:s3://user:secret@b/x", "refused"),
        ("parquet:https://h/x?token=secret", "refused"),
        ("parquet:zip://x::https://h/y", "too many colons"),
        ("lerobot:", "path is empty"),
        ("lerobot:org/name:train", "it has no split and no column"),
        ("lerobot:s3://host:9000/x", "it has no split and no column"),
        ("lerobot:s3://user:secret@b/x", "it has no split and no column"),
        ("lerobot:s3://secret@b/x", "refused"),
        ("lerobot:s3://b/x?secret", "refused"),
        ("lerobot:S3://b/x", "refused"),
    ],
)
def test_a_wrong_spec_gets_the_form_it_should_have(spec: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        Source.parse(spec)
    assert said in str(caught.value)
    assert "<" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_several_specs_are_joined_by_commas() -> None:
    assert [str(s) for s in parse_specs("hf:a/b, txt:x.txt")] == ["hf:a/b:train:text", "txt:x.txt:text"]
    assert [s.path for s in parse_specs(["hf:a/b", Source(kind="txt", path="with,comma:colon")])] == [
        "a/b",
        "with,comma:colon",
    ]


@pytest.mark.parametrize("value", [7, None, b"hf:a/b"])
def test_what_is_no_string_is_no_spec(value: object) -> None:
    with pytest.raises(SpecError, match="a spec is a string"):
        Source.parse(value)  # type: ignore[arg-type]


def test_an_unknown_kind_of_source_lists_the_kinds() -> None:
    with pytest.raises(SpecError, match="hf, jsonl, parquet, txt, known, lerobot"):
        Source(kind="csv", path="x")  # type: ignore[arg-type]


def test_escape_sequences_are_shown_not_sent_to_the_terminal() -> None:
    with pytest.raises(SpecError) as caught:
        Source.parse("hf:\x1b[31mred")
    assert "\x1b" not in str(caught.value)
    for number in range(0x3000):
        text = shown(f"a{chr(number)}b")
        assert text.isprintable(), number
        assert (text[0], text[-1]) == ("a", "b")
