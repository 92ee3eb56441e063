"""Text to speech: the recording is the target, a second one may say whose voice it is."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.make.clean import cleaner
from headrace.make.draft import Draft, Formatted
from headrace.make.fields import Row, first_of
from headrace.make.formatters.base import Tokens, flag_of, formatter
from headrace.make.formatters.media import require_media, span_of, with_rate
from headrace.make.turns import Piece, Turn, turn
from headrace.make.values import is_media

READ = "Read this text aloud"
_PLACES = ("audio", "audio_url")
_VOICES = ("speaker_ref",)


@formatter
def format_voice_tts(row: Row, tokens: Tokens) -> Iterator[Formatted | None]:
    """A text to be read out, in the manner that the row describes. A row without a recording is an error; where the map
    has `optional: =audio`, it gives nothing. So is one without the voice that a map names; where that is optional, the
    text is read in any."""
    audio = with_rate(row, first_of(row, *_PLACES))
    spoken = row.text("text") if row.is_mapped("text") else row.text("spoken")
    if row.is_mapped("clean"):
        spoken = cleaner(row.text("clean"))(spoken)
    if not spoken.strip():
        return
    if not is_media(audio):
        require_media(row, "audio", _PLACES, about=True)
        return
    reference = with_rate(row, row.find("speaker_ref"))
    if not is_media(reference):
        require_media(row, "audio", _VOICES)
    style = row.text("style", "style", "text_description").strip().rstrip(".")
    draft = Draft(tokens)
    draft.turn(turn("user", f"{READ} ({style}): {spoken}" if style else f"{READ}: {spoken}"))
    draft.turn(Turn("assistant", (Piece("gen_audio"),)))
    yield draft.sample(
        "voice_tts",
        is_training=flag_of(row),
        target_audio=audio,
        speaker_ref=reference if is_media(reference) else None,
        has_tts=True,
        clip=span_of(row),
    )
