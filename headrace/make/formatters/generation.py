"""Images and videos to be made: from words, from an image, by editing; of two candidates, the one people liked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from headrace.errors import DataError
from headrace.fetch.media.likely import is_frames
from headrace.make.draft import Draft, Formatted
from headrace.make.fields import Row, first_of
from headrace.make.formatters.base import Tokens, flag_of, formatter
from headrace.make.formatters.media import require_media, span_of, without_holes
from headrace.make.turns import Piece, Turn
from headrace.make.values import as_text, is_media, joined, listed, media_status, texts

Made: TypeAlias = Literal["image", "video"]

_ASK = {"image": "Generate an image", "video": "Generate a video"}
EDIT = "Edit this image"
ANIMATE = "Animate this image."
_SOURCES = ("source_image", "source_image_url")
_TARGETS: dict[Made, tuple[str, ...]] = {
    "image": ("image", "target_image", "image_a", "image_b"),
    "video": ("video", "video_path", "video_url", "video_id", "video_a", "video_b"),
}
"""The fields that a map may name what was made by."""
_PROMPTS = ("prompt", "Text_Prompt", "text", "caption", "name")


@formatter
def format_generation(row: Row, tokens: Tokens) -> Iterator[Formatted | None]:
    """What is asked for and what was made. A row of prompts alone teaches only when to make something.

    Where a map names what was made, or what it was made of, a row without it is an error, unless the map says that it
    is optional.
    """
    sources = _sources(row)
    edited = row.find("target_image")
    instruction = row.text("instruction", "instruction", "edit_prompt", "edit_instruction")
    if sources and instruction.strip() and (is_media(edited) or not _is_video(row)):
        yield _sample(row, tokens, "image", instruction, sources, edited)
        return
    if _is_video(row):
        yield from _videos(row, tokens, sources)
        return
    made = _liked(row, "image") if row.is_mapped("image_a") else _image(row)
    for prompt in texts(_prompt(row)):
        yield _sample(row, tokens, "image", prompt, sources, made)


def _videos(row: Row, tokens: Tokens, sources: list[Any]) -> Iterator[Formatted | None]:
    """Of a video with several clips, one sample of each."""
    made = _liked(row, "video")
    found = texts(_prompt(row))
    if not found and sources and made is not None:
        found = [ANIMATE]
    clips = _clips(row, len(found))
    shot = joined(
        f"Shot: {row.text('shot')}" if row.is_mapped("shot") and row.text("shot") else "",
        f"Camera: {row.text('camera')}" if row.is_mapped("camera") and row.text("camera") else "",
        by="\n",
    )
    for prompt, clip in zip(found, clips, strict=True):
        yield _sample(row, tokens, "video", joined(prompt, shot, by="\n"), sources, made, clip)


def _clips(row: Row, count: int) -> list[Any]:
    """The clip of each prompt: one for each, or one for all."""
    value = span_of(row)
    if value is None or count == 0:
        return [None] * count
    if not isinstance(value, list) or not any(isinstance(one, list | tuple) for one in value):
        return [value] * count
    if len(value) != count:
        raise DataError(f"the row has {len(value)} clips and {count} prompts, which should be as many")
    return value


def _sample(
    row: Row, tokens: Tokens, kind: Made, prompt: str, sources: list[Any], made: Any, clip: Any = None
) -> Formatted | None:
    _require(row, "image", _SOURCES)
    _require(row, kind, _TARGETS[kind])
    edits = kind == "image" and bool(sources)
    ask = prompt if prompt == ANIMATE else f"{EDIT if edits else _ASK[kind]}: {prompt}"
    draft = Draft(tokens)
    draft.turn(Turn("user", (*(Piece("image", "", source) for source in sources), Piece("text", ask))))
    draft.turn(Turn("assistant", (Piece("gen_image" if kind == "image" else "gen_video"),)))
    targets = {f"gen_{kind}s": made if is_media(made) else None, f"has_{kind}_gen": True}
    return draft.sample("generation", is_training=flag_of(row), gen_prompts=prompt, clip=clip, **targets)


def _require(row: Row, kind: Made, names: tuple[str, ...]) -> None:
    given = [name for name in names if row.path(name)]
    if given and not any(is_media(row.find(name)) for name in given):
        require_media(row, kind, given)


# --- what the row has


def _prompt(row: Row) -> Any:
    """One prompt, or several where the row has several clips; else a text that looks like a list is a text."""
    value = row.find("prompt", *_PROMPTS)
    if isinstance(value, str) and not row.is_mapped("clip"):
        return [value]
    found = listed(value)
    return found if isinstance(found, list) else [as_text(value)]


def _sources(row: Row) -> list[Any]:
    """The image that is edited or set in motion. An address must be one: a heading among the rows is none."""
    if row.is_mapped("source_image_url"):
        value = row.find("source_image_url")
        return [value] if isinstance(value, str) and media_status(value) == "url" else []
    return without_holes(row, "image", row.find("source_image"))


def _is_video(row: Row) -> bool:
    """Whether a video is made: the row has one, or the map says that it should have."""
    names = ("video", "video_a", "video_url", "video_path", "video_id")
    if any(row.is_mapped(name) for name in names) or row.text("makes") == "video":
        return True
    if row.is_mapped("image") or row.is_mapped("image_a"):
        return False
    return is_media(first_of(row, "video", "video_url")) or is_media(row.find("video_a", "video1"))


def _liked(row: Row, kind: Made) -> Any:
    """The better of two; the first where nobody can tell. Without a pair, the one there is."""
    pair = row.find(f"{kind}_a", f"{kind}1"), row.find(f"{kind}_b", f"{kind}2")
    if is_media(pair[0]) and is_media(pair[1]):
        scores = [_score(row, f"score_{side}", number) for side, number in (("a", 1), ("b", 2))]
        return pair[1] if scores[1] > scores[0] else pair[0]
    made = first_of(row, "video", "video_path", "video_url", "video_id") if kind == "video" else row.find("image")
    made = pair[0] if not is_media(made) and is_media(pair[0]) else made
    if row.is_mapped("video_url") and isinstance(made, str) and media_status(made) == "id":
        return None
    return _one(made, kind)


def _image(row: Row) -> Any:
    """The image that was made: its data, else its address, unless the map speaks of none."""
    found = row.find("image")
    return _one(found if is_media(found) or row.has_map else row.find("image_url"), "image")


def _score(row: Row, name: str, number: int) -> float:
    value = row.find(name, f"weighted_results{number}_*")
    values = value if isinstance(value, list | tuple) else [value]
    return sum(v for v in values if isinstance(v, int | float) and abs(v) < 1e9)


def _one(value: Any, kind: Made) -> Any:
    """A single medium out of a list of one. One frame in a list is still a video."""
    alone = isinstance(value, list) and len(value) == 1 and not (kind == "video" and is_frames(value))
    return value[0] if alone else value
