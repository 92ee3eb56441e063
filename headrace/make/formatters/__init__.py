"""Rows of every kind made samples: `format_x(row, tokens) -> dict | list[dict] | None`.

A formatter is pure and opens nothing: media stay references. What it gives has `text`, its `segments` with whether each
is learned, `dtype`, and, of a conversation, the `turns` that a chat template writes (a formatter of one's own may give
`messages` and `tools` instead); beside them what applies of `image`, `images`, `video`, `videos`, `audio`, `audios`,
`target_audio`, `speaker_ref`, `gen_images`, `gen_videos`, `gen_prompts`, `clip`, `has_asr`, `has_tts`, `has_image_gen`,
`has_video_gen`, `is_training`, and `media_status`, which says of each reference whether it is data, a path, an address
or only a name.
"""

from __future__ import annotations

from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.errors import SpecError, shown
from headrace.make.fields import columns_of
from headrace.make.formatters.agentic import format_agentic
from headrace.make.formatters.anti_hallucination import format_anti_hallucination
from headrace.make.formatters.base import Format, Mapped, formatter, grouped_formatter, with_fields
from headrace.make.formatters.chain_of_thought import format_chain_of_thought
from headrace.make.formatters.chat import chat_messages
from headrace.make.formatters.code import format_code
from headrace.make.formatters.code_execution import format_code_execution
from headrace.make.formatters.conversation import format_conversation
from headrace.make.formatters.document import format_document
from headrace.make.formatters.generation import format_generation
from headrace.make.formatters.git_operations import format_git_operations
from headrace.make.formatters.text import format_text
from headrace.make.formatters.tool_use import format_tool_use
from headrace.make.formatters.video import format_video
from headrace.make.formatters.vision import format_vision
from headrace.make.formatters.voice_asr import format_voice_asr
from headrace.make.formatters.voice_tts import format_voice_tts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.catalog.known import Known

FORMATTERS: Mapping[str, Format] = MappingProxyType(
    {
        "format_agentic": format_agentic,
        "format_anti_hallucination": format_anti_hallucination,
        "format_chain_of_thought": format_chain_of_thought,
        "format_code": format_code,
        "format_code_execution": format_code_execution,
        "format_conversation": format_conversation,
        "format_document": format_document,
        "format_generation": format_generation,
        "format_git_operations": format_git_operations,
        "format_text": format_text,
        "format_tool_use": format_tool_use,
        "format_video": format_video,
        "format_vision": format_vision,
        "format_voice_asr": format_voice_asr,
        "format_voice_tts": format_voice_tts,
    }
)
"""Every formatter by its name. A new one is one file beside these and one line here."""


def find_formatter(name: str) -> Format:
    """A formatter by its name, with or without `format_`."""
    for key in (name, f"format_{name}"):
        if key in FORMATTERS:
            return FORMATTERS[key]
    near = get_close_matches(f"format_{name.removeprefix('format_')}", FORMATTERS, n=3, cutoff=0.3)
    raise SpecError(f"there is no formatter {shown(name)!r}; nearest: {', '.join(near) or ', '.join(FORMATTERS)}")


def formatter_for(known: Known) -> Format:
    """The formatter of a catalog entry, under its field map."""
    return with_fields(find_formatter(known.formatter), known.field_map)


def columns_for(known: Known, columns: Iterable[str]) -> list[str] | None:
    """Which of a source's columns have to be read for an entry; None: all of them, for nothing is known of them."""
    there = list(columns)
    found = columns_of(known.field_map, there)
    if not found:
        return None
    return [name for name in there if name in found or name == known.group_by]


__all__ = [
    "FORMATTERS",
    "Format",
    "Mapped",
    "chat_messages",
    "columns_for",
    "find_formatter",
    "format_agentic",
    "format_anti_hallucination",
    "format_chain_of_thought",
    "format_code",
    "format_code_execution",
    "format_conversation",
    "format_document",
    "format_generation",
    "format_git_operations",
    "format_text",
    "format_tool_use",
    "format_video",
    "format_vision",
    "format_voice_asr",
    "format_voice_tts",
    "formatter",
    "formatter_for",
    "grouped_formatter",
    "with_fields",
]
