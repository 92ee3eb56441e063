"""Speech to text, and words about sounds."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.make.clean import cleaner
from headrace.make.draft import Draft, Formatted
from headrace.make.fields import Row, first_of
from headrace.make.formatters.base import Tokens, flag_of, formatter
from headrace.make.formatters.chat import listed_turns, with_system
from headrace.make.formatters.media import audios_of, require_media, span_of, with_media, with_rate
from headrace.make.turns import Piece, Turn, turn
from headrace.make.values import as_text, is_media, texts

TRANSCRIBE = "Transcribe this audio."
DESCRIBE = "Describe this audio."
_PLACES = ("audio", "audio_url", "audio_id")


@formatter
def format_voice_asr(row: Row, tokens: Tokens) -> Iterator[Formatted | None]:
    """A recording and what is said in it; where a map names a caption, what there is to hear in it; else a conversation
    about it. A row without a recording is an error; where the map has `optional: =audio`, it gives nothing."""
    audio = with_rate(row, first_of(row, *_PLACES))
    said = as_text(first_of(row, "transcript", "text"))
    described = row.is_mapped("caption") or not said.strip()
    if described:
        said = ", ".join(texts(row.find("caption", "caption", "captions")))
    if row.is_mapped("clean"):
        said = cleaner(row.text("clean"))(said)
    if not said.strip():
        yield _conversation(row, tokens)
        return
    if not is_media(audio):
        require_media(row, "audio", _PLACES, about=True)
        return
    draft = Draft(tokens)
    draft.turn(Turn("user", (Piece("audio", "", audio), Piece("text", DESCRIBE if described else TRANSCRIBE))))
    draft.turn(turn("assistant", said, tagged=False))
    has_asr = None if described else True
    yield draft.sample("voice_asr", is_training=flag_of(row), has_asr=has_asr, clip=span_of(row))


def _conversation(row: Row, tokens: Tokens) -> Formatted | None:
    """Turns about recordings; None where there are none."""
    draft = Draft(tokens)
    draft.turns(with_media(row, with_system(row, listed_turns(row)), {"audio": audios_of(row)}, about="audio"))
    sample = draft.sample("voice_asr", is_training=flag_of(row), clip=span_of(row))
    return sample if sample is not None and ("audio" in sample or "audios" in sample) else None
