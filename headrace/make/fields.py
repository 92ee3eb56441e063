"""Which column is what: an explicit map first, the names people use last.

A map gives our name of a field the place where a row has it:

    column                 a column; names with dots, bars or spaces are taken whole where the row has them
    meta.video_id          inside a struct, or inside JSON that was written into a string
    label[0], turns[-1]    an item of a list;   captions.content: that field of every item
    a0..a4, page_1..       numbered columns, as a list;   weighted_results1_*: columns by their beginning, as a list
    short|long             the first that says something
    lecture+solution       the texts of both, joined by a blank line;   toxic,redacted: several, for `filter` and `clip`
    =Describe this image.  a constant;   nothing at all: the row does not have it, whatever its columns are called

A map that names an image, a video or a sound promises it: a row without it is an error. `optional: =image` says that
rows may lack it; so for several kinds (`=image,audio`), and for the formatters of vision, video and voice, which expect
it without a map, too. Of numbered columns, those at the end may hold nothing (`image_3` to `image_7` of a row with two
images): that is how rows of different lengths are written. Nothing before something, or in a list, is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from headrace.errors import DataError, SpecError, shown
from headrace.make.values import as_text, is_empty, is_media, joined, parsed

ALIASES: Mapping[str, tuple[str, ...]] = {
    "messages": ("messages", "conversations", "conversation", "dialog", "items"),
    "chat": ("chat",),
    "alternating": ("data",),
    "history": ("history",),
    "system": ("system", "system_prompt", "system_message"),
    "tools": ("tools", "functions", "function_description", "available_tools"),
    "prompt": ("instruction", "prompt", "question", "query", "problem", "user", "q", "goal"),
    "input": ("input",),
    "context": ("context", "passage", "knowledge", "hint"),
    "response": ("output", "response", "answer", "completion", "chosen", "solution", "assistant", "target", "a"),
    "code": ("output", "code", "response"),
    "thinking": (
        "thinking",
        "reasoning_content",
        "reasoning",
        "chain_of_thought",
        "cot",
        "Complex_CoT",
        "deepseek_reasoning",
        "rationale",
        "steps",
    ),
    "tool_calls": ("tool_calls", "answers", "function_calls"),
    "language": ("language", "lang", "programming_language", "target_language"),
    "text": ("text", "content", "raw_content", "document", "body", "markdown"),
    "title": ("title",),
    "question": ("question", "prompt", "query", "instruction", "q", "problem"),
    "questions": ("questions",),
    "answer": (
        "answer",
        "response",
        "output",
        "multiple_choice_answer",
        "answers",
        "label",
        "best_answer",
        "right_answer",
        "a",
    ),
    "answers": ("answers",),
    "answer_index": ("correct_choice_idx", "answer_key_position", "correct_choice", "answer_id", "answer_index"),
    "options": ("options", "choices", "candidates", "option", "a0..a9", "option0..option9"),
    "rationale": ("rationale", "rationales", "lecture+solution"),
    "qa_pairs": ("texts", "qa_pairs", "qAndA", "qa"),
    "image": ("image", "images", "jpg", "png", "screenshot", "image_path", "image_1..", "page_1.."),
    "image_url": ("image_url", "img_url", "image_urls"),
    "video": ("video", "videos", "mp4", "video_path", "video_bytes", "frames", "video_data"),
    "video_url": ("video_url", "contentUrl", "Video", "mp4_url", "video_link", "media_url"),
    "video_id": ("video_id", "videoID", "video_name", "video_idx", "clip_id", "meta.video_id", "youtube_id"),
    "audio": ("audio", "speech", "waveform", "audio_path", "wav", "flac", "mp3", "file"),
    "audio_url": ("audio_url", "audio_urls"),
    "sampling_rate": ("sampling_rate", "sample_rate", "sr"),
    "transcript": ("text", "transcript", "sentence", "transcription", "normalized_text", "text_normalized", "raw_text"),
    "spoken": (
        "text_normalized",
        "text",
        "transcript",
        "transcription_normalised",
        "transcription",
        "normalized_text",
        "sentence",
    ),
    "caption": ("caption", "captions", "text", "description"),
    "speaker_ref": ("speaker_ref", "reference_audio"),
    "source_image": ("source_img", "original_image", "input_image", "Image_Prompt", "prompt_asset", "source_image"),
    "target_image": ("target_img", "edited_image", "output_image", "result_image", "target_image"),
    "is_training": ("is_training",),
}
"""Our names and the columns they are looked for in, best first. A name that is not here is found by itself only."""

CHATS = frozenset({"messages", "chat", "alternating", "qa_pairs"})
TEXTS = frozenset({"prompt", "response", "code", "question", "questions", "answer", "text", "caption", "tool_calls"})
_WHOLE = CHATS | {"text"}
_WORDS = _WHOLE | TEXTS
"""A map that says where the words are does not want a list of messages, or a text, to be found beside them."""
MEDIA = frozenset(
    {
        *("image", "images", "image_url", "image_a", "image_b", "source_image", "source_image_url", "target_image"),
        *("video", "videos", "video_path", "video_url", "video_id", "video_a", "video_b"),
        *("audio", "audios", "audio_url", "audio_id", "speaker_ref"),
    }
)
"""In a list of these, what is missing keeps its place: so that it is noticed."""
_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d+)\]|\.")
_RANGE = re.compile(r"(.*?)(\d+)\.\.(?:(.*?)(\d+))?")
_MOST_NUMBERED = 1000


class Row(Mapping[str, Any]):
    """A row, its columns under their own names and under those that a map gives them."""

    __slots__ = ("_columns", "_data", "_fields")

    def __init__(self, data: Mapping[str, Any], fields: Mapping[str, str] | None = None) -> None:
        self._data, self._fields = data, fields or {}
        claimed = frozenset(path for path in self._fields.values() if path in data) if fields else _NONE
        self._columns = (_columns if len(data) <= _MOST_KEPT else _Columns)(tuple(data), claimed)
        if self._fields and not claimed:
            self._check()

    def find(self, name: str, *aliases: str) -> Any:
        """A field: where the map says it is, else in the first column of the usual names that says something."""
        if name in self._fields:
            path = self._fields[name]
            return look(self._data, path, holes=name in MEDIA) if path else None
        if name in _WHOLE and not _WORDS.isdisjoint(self._fields):
            return None
        for place, is_column in self._columns.places(name, aliases):
            value = self._data.get(place) if is_column else look(self._data, place)
            if not is_empty(value):
                return value
        return None

    def text(self, name: str, *aliases: str) -> str:
        return as_text(self.find(name, *aliases))

    def each(self, name: str) -> list[Any]:
        """The values at several places, where the map joins them by commas."""
        path = self._fields.get(name, "")
        return [look(self._data, part.strip()) for part in path.split(",")] if path else []

    def is_mapped(self, name: str) -> bool:
        """Whether the map says anything about it, be it that there is none."""
        return name in self._fields

    def maps_any(self, names: frozenset[str]) -> bool:
        """Whether the map says anything about one of them."""
        return not names.isdisjoint(self._fields)

    def path(self, name: str) -> str:
        """Where the map says that it is; empty: the map does not say, or says that there is none."""
        return self._fields.get(name, "")

    def has_column(self, *names: str) -> bool:
        """Whether a column that may hold one of these fields is there, whatever it holds."""
        return bool(self._column_names(names))

    def is_blank(self, *names: str) -> bool:
        """Whether a column that may hold one of these fields is there, and holds no media. A null in a column that may
        be about anything does not count."""
        columns = {name: self._data[name] for name in self._column_names(names)}
        return any(
            not is_media(value) and (value is not None or name.lower() not in _ABOUT_ANYTHING)
            for name, value in columns.items()
        )

    def _column_names(self, names: Iterable[str]) -> list[str]:
        return [place for name in names for place, is_column in self._columns.places(name, ()) if is_column]

    @property
    def has_map(self) -> bool:
        return bool(self._fields)

    def _check(self) -> None:
        wanted = columns_of(self._fields, self._data)
        if wanted or all(not path or path.startswith("=") for path in self._fields.values()):
            return
        there = ", ".join(shown(key, 40) for key in list(self._data)[:20]) or "no column"
        mapped = ", ".join(f"{name}: {path}" for name, path in list(self._fields.items())[:20])
        raise DataError(f"none of the mapped fields ({shown(mapped, 400)}) is in the row; it has {there}")

    def of(self, data: Mapping[str, Any]) -> Row:
        """Another row under the same map."""
        return Row(data, self._fields)

    # --- as a mapping, for formatters of one's own

    def __getitem__(self, name: str) -> Any:
        if self._fields.get(name):
            return look(self._data, self._fields[name], holes=name in MEDIA)
        return self._data[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._data
        yield from (name for name in self._fields if name not in self._data)

    def __len__(self) -> int:
        return len(self._data.keys() | self._fields.keys())


class _Columns:
    """Where rows with these columns may have a field. Rows of one source have the same, so it is found out once."""

    def __init__(self, names: tuple[str, ...], claimed: frozenset[str]) -> None:
        self._names, self._claimed = names, claimed
        self._lower = {name.lower(): name for name in names if isinstance(name, str)}
        self._places: dict[tuple[str, tuple[str, ...]], list[tuple[str, bool]]] = {}

    def places(self, name: str, aliases: tuple[str, ...]) -> list[tuple[str, bool]]:
        """Columns, or paths (and which of the two each is) that may lead to something, best first."""
        found = self._places.get((name, aliases))
        if found is None:
            several = [self._place(alias) for alias in aliases or ALIASES.get(name, (name,))]
            found = self._places[name, aliases] = [place for place in several if place is not None]
        return found

    def _place(self, alias: str) -> tuple[str, bool] | None:
        if alias not in self._names and not alias.isidentifier():
            return (alias, False) if columns_of({"": alias}, list(self._names)) else None
        column = alias if alias in self._names else self._lower.get(alias.lower())
        return None if column is None or column in self._claimed else (column, True)


_NONE: frozenset[str] = frozenset()
_ABOUT_ANYTHING = frozenset({"file", "frames", "media_url", "contenturl", "clip_id"})
"""Columns for media that rows without any have too, with nothing in them."""
_MOST_KEPT = 256
"""Columns; rows with more of them are kept nothing of."""
_columns = lru_cache(maxsize=64)(_Columns)


def first_of(row: Row, *names: str) -> Any:
    """The first of several names that the map gives; where it gives none of them, the first that is found."""
    mapped = [name for name in names if row.is_mapped(name)]
    for name in mapped or names:
        value = row.find(name)
        if not is_empty(value):
            return value
    return None


# --- paths


def check_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """A map as it should be: strings to strings, each a path."""
    if not isinstance(fields, Mapping):
        raise SpecError(f"a field map is a mapping of our names to columns; got {type(fields).__name__}")
    for name, path in fields.items():
        if not isinstance(name, str) or not isinstance(path, str):
            raise SpecError(
                f"the field map has {shown(name)!r}: {shown(path)!r}; both are strings, like prompt: question"
            )
    return dict(fields)


def look(data: Any, path: str, *, holes: bool = False) -> Any:
    """What a path leads to; None where it leads nowhere. `holes`: an item of a list that has no fields gives None, and
    is not left out."""
    if isinstance(data, Mapping) and path in data:
        return data[path]
    if path.startswith("="):
        return path[1:]
    if "|" in path:
        found = (look(data, part.strip(), holes=holes) for part in path.split("|"))
        return next((value for value in found if not is_empty(value)), None)
    if "+" in path:
        return joined(*(as_text(look(data, part.strip())) for part in path.split("+"))) or None
    numbered = _RANGE.fullmatch(path)
    if numbered:
        return _numbered(data, numbered)
    if path.endswith("*"):
        keys = [key for key in data if isinstance(key, str) and key.startswith(path[:-1])]
        return [data[key] for key in sorted(keys)]
    return _walk(data, path, holes)


def _numbered(data: Mapping[str, Any], found: re.Match[str]) -> list[Any] | None:
    name, first, _, last = found.groups()
    values: list[Any] = []
    most = int(first) + _MOST_NUMBERED
    for i in range(int(first), min(int(last) + 1, most) if last else most):
        if f"{name}{i}" not in data:
            break
        values.append(data[f"{name}{i}"])
    while values and is_empty(values[-1]):
        values.pop()
    return values or None


def _walk(value: Any, path: str, holes: bool) -> Any:
    for key, number in _STEP.findall(path):
        if not key and not number:
            continue
        value = parsed(value)
        if number:
            at = int(number)
            inside = isinstance(value, list | tuple) and -len(value) <= at < len(value)
            value = value[at] if inside else None
        elif isinstance(value, list | tuple):
            items = [item if isinstance(item, Mapping) else None for item in value]
            value = [None if item is None else item.get(key) for item in items if holes or item is not None]
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is None:
            return None
    return value


def columns_of(fields: Mapping[str, str], columns: Mapping[str, Any] | list[str]) -> list[str]:
    """The columns that a map leads to, of those that there are: all that has to be read for it."""
    there = list(columns)
    found: dict[str, None] = {}
    for path in fields.values():
        for part in [path] if path in there or path.startswith("=") else re.split(r"[|+,]", path):
            found.update(dict.fromkeys(_heads(part.strip(), there)))
    return [name for name in there if name in found]


def _heads(path: str, there: list[str]) -> list[str]:
    if path in there:
        return [path]
    numbered = _RANGE.fullmatch(path)
    if numbered:
        return [name for name in there if isinstance(name, str) and re.fullmatch(re.escape(numbered[1]) + r"\d+", name)]
    if path.endswith("*"):
        return [name for name in there if isinstance(name, str) and name.startswith(path[:-1])]
    head = re.split(r"[.\[]", path)[0]
    return [head] if head in there else []
