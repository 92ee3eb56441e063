"""Where images, videos and recordings stand in a conversation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from headrace.fetch.media.likely import is_frames
from headrace.make.fields import Row, first_of
from headrace.make.turns import Kind, Piece, Turn
from headrace.make.values import is_media, listed, media_list

_MARKS: dict[str, str] = {"image": "<image>", "video": "<video>", "audio": "<audio>"}


def images_of(row: Row) -> list[Any]:
    """The row's images: in one column, a list, or a column each."""
    found = media_list(first_of(row, "images", "image"))
    if found or row.is_mapped("image"):
        return found
    return media_list(row.find("image_url")) if row.is_mapped("image_url") else []


def videos_of(row: Row) -> list[Any]:
    """The row's videos: the bytes, else a file, else an address, else a name."""
    names = ("video", "video_path", "video_url", "video_id")
    mapped = [name for name in names if row.is_mapped(name)]
    for name in mapped or names:
        found = row.find(name)
        if is_media(found):
            return [found] if is_frames(found) else media_list(found)
    return []


def place(turns: Sequence[Turn], kind: Kind, media: list[Any], marks: Sequence[str] = ()) -> list[Turn]:
    """The conversation with its media in place: where a part or a mark in the text stands for them, the rest before
    the first question. A mark that nothing is left for stays a text."""
    waiting = list(media)
    marks = marks or (_MARKS[kind],)
    found = [Turn(one.role, tuple(_placed(one, kind, media, waiting, marks)), one.learned) for one in turns]
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
            value = _numbered(piece, media, waiting)
            pieces += [piece._replace(data=value)] if value is not None else []
        elif piece.kind == "text" and turn.role != "assistant":
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
    return waiting.pop(0) if waiting else None


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
