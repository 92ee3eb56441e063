"""What the tests of formatters share."""

from __future__ import annotations

from typing import Any

from headrace.make.formatters import FORMATTERS, with_fields
from headrace.make.tokens import TOKENS

T = TOKENS
MEDIA = (
    "image",
    "images",
    "video",
    "videos",
    "audio",
    "audios",
    "target_audio",
    "speaker_ref",
    "gen_images",
    "gen_videos",
)


def run(name: str, row: Any, fields: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """All samples of a row, each checked for its shape."""
    found = with_fields(FORMATTERS[f"format_{name}"], fields or {})(row, TOKENS)
    samples = found if isinstance(found, list) else [] if found is None else [found]
    assert not isinstance(found, list) or len(found) > 1
    for sample in samples:
        check(sample)
    return samples


def one(name: str, row: Any, fields: dict[str, str] | None = None) -> dict[str, Any]:
    (sample,) = run(name, row, fields)
    return sample


def check(sample: dict[str, Any]) -> None:
    """The law of samples: segments make the text, and media are told of."""
    assert sample["text"] == "".join(text for text, _ in sample["segments"])
    assert sample["text"].strip()
    assert all(text and type(learned) is bool for text, learned in sample["segments"])
    assert sample["dtype"]
    media = {key for key in MEDIA if sample.get(key) is not None}
    assert set(sample.get("media_status", {})) == media
    for kind in ("image", "video", "audio"):
        shown = [sample[kind]] if kind in sample else sample.get(f"{kind}s", [])
        placeholder = T[f"{kind}_start"] + T[f"{kind}_end"]
        assert [text for text, _ in sample["segments"]].count(placeholder) == len(shown)


def learned(sample: dict[str, Any]) -> str:
    """What is learned, with a bar where something else stands between."""
    return "|".join(text for text, is_learned in sample["segments"] if is_learned)


def bare(text: str) -> str:
    """A text without our marks, for reading."""
    for mark in TOKENS.values():
        text = text.replace(mark, "·")
    return text


def drawn(sample: dict[str, Any]) -> str:
    """A sample as a text to be looked at: what is learned stands in ⟦brackets⟧, and below it everything else."""
    text = "".join(f"⟦{text}⟧" if is_learned else text for text, is_learned in sample["segments"])
    rest = {key: value for key, value in sample.items() if key not in ("text", "segments", "turns")}
    lines = [f"{key}: {_short(value)}" for key, value in sorted(rest.items())]
    return "\n".join([text, "---", *lines]) + "\n"


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_short(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value)) + "]"
    return str(value)
