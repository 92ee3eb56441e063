"""Where images, videos and recordings stand in a conversation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from numbers import Number
from typing import Any

from headrace.errors import DataError, SpecError, described, shown
from headrace.fetch.media.likely import is_frames, named_kind
from headrace.make.fields import Row, first_of
from headrace.make.turns import Kind, Piece, Turn
from headrace.make.values import as_text, is_empty, is_media, listed, media_list, media_status

_MARKS: dict[Kind, str] = {"image": "<image>", "video": "<video>", "audio": "<audio>"}
_FIELDS: dict[Kind, tuple[str, ...]] = {
    "image": ("images", "image", "image_url"),
    "video": ("video", "videos", "video_path", "video_url", "video_id"),
    "audio": ("audios", "audio", "audio_url"),
}
"""The fields that a map may name media of each kind by."""
_NAMES = frozenset(name for names in _FIELDS.values() for name in names)
_MARKED_AS_IMAGES = ("<video>", "<image>")
KINDS = tuple(_MARKS)


# --- what a row has


def images_of(row: Row) -> list[Any]:
    """The row's images: in one column, a list, or a column each."""
    found = without_holes(row, "image", first_of(row, "images", "image"))
    if found or row.is_mapped("image"):
        return found
    return _addresses(row) if row.is_mapped("image_url") else []


def pictures_of(row: Row) -> list[Any]:
    """The same, of a row that is about them: also those that are only named by an address."""
    found = images_of(row)
    return found if found or row.is_mapped("image") or row.is_mapped("images") else _addresses(row)


def _addresses(row: Row) -> list[Any]:
    """Images by their addresses, which may stand in structs."""
    found = without_holes(row, "image", row.find("image_url"))
    return [one["url"] if isinstance(one, Mapping) and isinstance(one.get("url"), str) else one for one in found]


def videos_of(row: Row) -> list[Any]:
    """The row's videos: the bytes, else a file, else an address, else a name."""
    _, found = _first(row, "video")
    several = without_holes(row, "video", found)
    return [found] if is_frames(found) else several


def _first(row: Row, kind: Kind) -> tuple[str, Any]:
    """The first field that has media, and what it has; of the fields that the map names, if it names any."""
    mapped = [name for name in _FIELDS[kind] if row.is_mapped(name)]
    found = ((name, row.find(name)) for name in mapped or _FIELDS[kind])
    return next(((name, value) for name, value in found if is_media(value)), ("", None))


def audios_of(row: Row) -> list[Any]:
    """The row's recordings. Numbers in a list are the samples of one; lists of numbers are its channels, unless the
    field holds several."""
    name, found = _first(row, "audio")
    several = [found] if name != "audios" and _is_wave(found) else without_holes(row, "audio", found)
    return [with_rate(row, one) for one in several]


def with_rate(row: Row, audio: Any) -> Any:
    """Bare samples with the rate that the row has for them; anything else as it is."""
    rate = row.find("sampling_rate")
    if rate is None or isinstance(audio, str | bytes):
        return audio
    rate = int(rate) if isinstance(rate, float) and rate.is_integer() else rate
    if isinstance(audio, Mapping):
        bare = not is_empty(audio.get("array")) and audio.get("sampling_rate") is None
        return {**audio, "sampling_rate": rate} if bare else audio
    return {"array": audio, "sampling_rate": rate} if _is_wave(audio) else audio


def _is_wave(value: Any) -> bool:
    """Samples: numbers in a list, in lists of channels, or in an array."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, Number) or hasattr(value, "__array__")


_LOOK: dict[Kind, Callable[[Row], list[Any]]] = {"image": pictures_of, "video": videos_of, "audio": audios_of}


# --- what a row lacks


def require_media(row: Row, kind: Kind, names: Sequence[str] = (), *, about: bool = False) -> None:
    """Refuse a row in which no medium was found: one that its map names or its formatter is `about`, if not optional.

    `names`: the fields that were looked at; default: all that such media are found by.
    """
    names = names or _FIELDS[kind]
    given = {name: path for name in names if (path := row.path(name))}
    if not (given or about) or is_optional(row, kind):
        return
    if given:
        places = ", ".join(f"{name}: {path}" for name, path in given.items())
        where = f"where the field map has it ({shown(places, 200)}), it holds nothing"
    else:
        where = "its column is missing or holds nothing"
    raise DataError(
        f"the row has no {kind}: {where}; repair or leave out the row, or give the field map `optional: ={kind}` if "
        f"rows of this data set may lack it"
    )


def is_optional(row: Row, kind: Kind) -> bool:
    """Whether the map says that rows may lack media of this kind, or that they have none."""
    if any(row.is_mapped(name) for name in _FIELDS[kind]) and not any(row.path(name) for name in _FIELDS[kind]):
        return True
    words = [word.strip() for word in row.text("optional").split(",")] if row.path("optional") else []
    for word in words:
        if word not in _MARKS:
            raise SpecError(f"optional: {shown(word)!r} is not one of {', '.join(_MARKS)}")
    return kind in words


def without_holes(row: Row, kind: Kind, value: Any) -> list[Any]:
    """The media of a value. One that is missing between others would move those after it to another's place."""
    found = media_list(value)
    several = isinstance(value, list | tuple) and bool(found) and found[0] is not value  # which would be samples
    at = next((i for i, item in enumerate(value) if not is_media(item)), None) if several else None
    if at is not None and not is_optional(row, kind):
        raise DataError(
            f"{kind} {at} of {len(value)} in the row holds nothing ({described(value[at])}); repair or leave out the "
            f"row, or give the field map `optional: ={kind}` to go without"
        )
    return found


# --- where it stands in a conversation


def with_media(
    row: Row, turns: Sequence[Turn], given: Mapping[Kind, list[Any]] | None = None, *, about: Kind | None = None
) -> list[Turn]:
    """The conversation with all media that it speaks of, or else that the row has for it. `given`: those that are known
    already. `about`: what should be shown, if nothing else is, and unless it is optional.

    In a row that has no column for its kind, a mark is a word: a text may be about `<image>`. Where there is such a
    column, one that holds nothing is an error, be it null, and so are fewer media than marks.
    """
    given = given or {}
    alone, spoken = not any(given.values()), _spoken_of(turns)
    found = {k: given.get(k) or _media_for(row, turns, k, k in spoken, alone) for k in _MARKS}
    if turns and (about or spoken or row.maps_any(_NAMES)):
        there = {kind for kind in _MARKS if found[kind]} | {piece.kind for one in turns for piece in one.pieces}
        for kind in [kind for kind in _MARKS if kind not in there]:
            taken = kind == "image" and bool(found["video"]) and "video" not in spoken
            lost = kind in spoken and not taken and row.is_blank(*_FIELDS[kind])
            require_media(row, kind, about=lost or (kind == about and there.isdisjoint(_MARKS)))
    placed = list(turns)
    for kind in reversed(_MARKS):
        if found[kind] or kind in spoken:
            several = _MARKED_AS_IMAGES if kind == "video" and not found["image"] else (_MARKS[kind],)
            marks, roles = _marking(turns, kind, len(found[kind]), several)
            placed = place(placed, kind, found[kind], marks, roles)
            _require_all(row, placed, kind, len(found[kind]), roles, marks)
    return placed


def _marking(turns: Sequence[Turn], kind: Kind, count: int, marks: Sequence[str]) -> tuple[Sequence[str], Set[str]]:
    """The marks that stand for media, and the roles in whose texts they do, and are no words: of nobody where parts
    stand for all media, of the user where his marks do, else of all but the assistant.

    `marks`: its own, and then the one that sets of other media keep: sets of videos have that for images. It is a word
    where the user's own marks stand for all media.
    """
    parts = sum(piece.kind == kind and piece.data is None for one in turns for piece in one.pieces)
    if count and parts == count:
        return marks, set()
    asked = [piece.text for one in turns if one.role == "user" for piece in one.pieces if piece.kind == "text"]
    for some in (marks[:1], marks):
        if count and parts + sum(text.count(mark) for text in asked for mark in some) == count:
            return some, {"user"}
    return marks, {one.role for one in turns} - {"assistant"}


def _require_all(
    row: Row, placed: Sequence[Turn], kind: Kind, count: int, roles: Set[str], marks: Sequence[str]
) -> None:
    """Refuse a conversation in which marks are left over, where the row has media of their kind."""
    texts = [piece.text for one in placed if one.role in roles for piece in one.pieces if piece.kind == "text"]
    over = Counter({mark: sum(text.count(mark) for text in texts) for mark in marks}) if count else Counter[str]()
    left = over.total()
    if left and not is_optional(row, kind):
        raise DataError(
            f"{left} {over.most_common(1)[0][0]} in the conversation {'stands' if left == 1 else 'stand'} for nothing: "
            f"the row has {count} {kind}{'' if count == 1 else 's'}, and more marks; repair or leave out the row, or "
            f"give the field map `optional: ={kind}` to keep such marks as words"
        )


def _media_for(row: Row, turns: Sequence[Turn], kind: Kind, spoken: bool, alone: bool) -> list[Any]:
    """What the turns stand for, or the map names; without both, what is kept under the very name of its kind, unless
    the turns bring their own or are about something else."""
    if spoken or (row.has_map and any(row.is_mapped(name) for name in _FIELDS[kind])):
        return _LOOK[kind](row)
    if row.has_map or not alone:
        return []
    value = row.find(kind, kind, f"{kind}s")
    if not is_media(value) or any(piece.kind == kind for one in turns for piece in one.pieces):
        return []
    first = value[0] if isinstance(value, list | tuple) and value else value
    name = first.get("path") if isinstance(first, Mapping) and media_status(first) != "data" else first
    return _LOOK[kind](row) if _is_data(name) or named_kind(as_text(name)) == kind else []


def _is_data(value: Any) -> bool:
    return not isinstance(value, str) and media_status(value) == "data"


def _spoken_of(turns: Sequence[Turn]) -> set[Kind]:
    """The kinds that a part without data, or a mark in what is not the assistant's, stands for."""
    found: set[Kind] = set()
    for one in turns:
        for piece in one.pieces:
            if piece.kind in _MARKS and piece.data is None:
                found.add(piece.kind)
            elif piece.kind == "text" and one.role != "assistant" and "<" in piece.text:
                found.update(kind for kind, mark in _MARKS.items() if mark in piece.text)
    return found


def place(turns: Sequence[Turn], kind: Kind, media: list[Any], marks: Sequence[str], roles: Set[str]) -> list[Turn]:
    """The conversation with its media in place: where a part or a mark in the text stands for them, the rest before
    the first question. A mark that nothing is left for stays a text, which `with_media` looks at."""
    waiting = list(media)
    found = []
    for one in turns:
        pieces = _placed(one, kind, media, waiting, marks if one.role in roles else ())
        found.append(Turn(one.role, tuple(pieces), one.learned))
    if not waiting:
        return found
    ahead = tuple(Piece(kind, "", value) for value in waiting)
    first = next((i for i, one in enumerate(found) if one.role == "user"), None)
    if first is None:
        return [Turn("user", ahead), *found]
    found[first] = found[first]._replace(pieces=(*ahead, *found[first].pieces))
    return found


def _placed(turn: Turn, kind: Kind, media: list[Any], waiting: list[Any], marks: Sequence[str]) -> list[Piece]:
    pieces: list[Piece] = []
    for piece in turn.pieces:
        if piece.kind == kind and piece.data is None:
            pieces.append(piece._replace(data=_numbered(piece, media, waiting)))
        elif piece.kind == "text" and marks:
            pieces += _marked(piece.text, kind, waiting, marks)
        else:
            pieces.append(piece)
    return pieces


def _numbered(piece: Piece, media: list[Any], waiting: list[Any]) -> Any:
    """By its number, and then no more of those that wait; else the next that waits."""
    if piece.number is not None and 0 <= piece.number < len(media):
        value = media[piece.number]
        at = next((i for i, other in enumerate(waiting) if other is value), None)
        if at is not None:
            waiting.pop(at)
        return value
    if not waiting:
        which = "" if piece.number is None else f", number {piece.number}"
        raise DataError(
            f"a part of the conversation stands for {piece.kind}{which}, and the row has "
            + (f"{len(media)}, all taken by the parts before it" if media else "none under any name that is known")
        )
    return waiting.pop(0)


def _marked(text: str, kind: Kind, waiting: list[Any], marks: Sequence[str]) -> list[Piece]:
    if not waiting or not any(mark in text for mark in marks):
        return [Piece("text", text)]
    pieces: list[Piece] = []
    at = 0
    for match in re.finditer("|".join(re.escape(mark) for mark in marks), text):
        if not waiting:
            break
        pieces += [Piece("text", text[at : match.start()])] if match.start() > at else []
        pieces.append(Piece(kind, "", waiting.pop(0)))
        at = match.end()
        at += text[at : at + 1] == "\n"
    return [*pieces, Piece("text", text[at:])] if at < len(text) else pieces


def span_of(row: Row, name: str = "clip") -> Any:
    """From where to where a clip goes in its video or recording, as the row has it: in one column, or in two."""
    if not row.is_mapped(name):
        return None
    value = listed(row.find(name))
    if value is None:
        several = row.each(name)
        return several if any(one is not None for one in several) else None
    return list(value) if isinstance(value, list | tuple) else value
