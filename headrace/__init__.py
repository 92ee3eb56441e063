"""Headrace feeds PyTorch training runs from raw data where it lies, and resumes any row exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.address import Address, Row
    from headrace.batch import Batch
    from headrace.catalog.source import Source
    from headrace.errors import HeadraceError
    from headrace.fetch.doors import hf_load_dataset_sharded, list_shards, rows
    from headrace.fetch.prefetch import ShardPrefetcher
    from headrace.fetch.resume import resolve_resume_plan
    from headrace.make.describe import Faults, Tokenize
    from headrace.make.formatters import (
        format_agentic,
        format_anti_hallucination,
        format_chain_of_thought,
        format_code,
        format_code_execution,
        format_conversation,
        format_document,
        format_generation,
        format_git_operations,
        format_text,
        format_tool_use,
        format_video,
        format_vision,
        format_voice_asr,
        format_voice_tts,
    )
    from headrace.mix.describe import Change, Mix, Part
    from headrace.recipe import Order, Recipe, Skip
    from headrace.sequence.describe import Pack
    from headrace.sequence.media import collate_fn
    from headrace.serve.door import load
    from headrace.serve.lerobot import StreamingLeRobotDataset
    from headrace.serve.loader import Loader
    from headrace.serve.state import merge_states
    from headrace.serve.streaming import TrueStreamingDataset
    from headrace.stage import Stage

__version__ = "0.2.0"

__all__ = [
    "Address",
    "Batch",
    "Change",
    "Faults",
    "Frames",
    "HeadraceError",
    "Loader",
    "Mix",
    "Order",
    "Pack",
    "Part",
    "Recipe",
    "Row",
    "ShardPrefetcher",
    "Skip",
    "Source",
    "Stage",
    "StreamingLeRobotDataset",
    "Tokenize",
    "TrueStreamingDataset",
    "VideoDecoderCache",
    "__version__",
    "collate_fn",
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
    "hf_load_dataset_sharded",
    "list_shards",
    "load",
    "merge_states",
    "resolve_resume_plan",
    "rows",
]

# Loaded when first asked for, so that `import headrace` costs nothing.
_HOMES = {
    "Address": "headrace.address",
    "Batch": "headrace.batch",
    "Change": "headrace.mix.describe",
    "Faults": "headrace.make.describe",
    "Frames": "headrace.catalog.frames",
    "HeadraceError": "headrace.errors",
    "Loader": "headrace.serve.loader",
    "Mix": "headrace.mix.describe",
    "Order": "headrace.recipe",
    "Pack": "headrace.sequence.describe",
    "Part": "headrace.mix.describe",
    "Recipe": "headrace.recipe",
    "Row": "headrace.address",
    "ShardPrefetcher": "headrace.fetch.prefetch",
    "Skip": "headrace.recipe",
    "Source": "headrace.catalog.source",
    "Stage": "headrace.stage",
    "StreamingLeRobotDataset": "headrace.serve.lerobot",
    "Tokenize": "headrace.make.describe",
    "TrueStreamingDataset": "headrace.serve.streaming",
    "VideoDecoderCache": "headrace.lerobot.decoders",
    "collate_fn": "headrace.sequence.media",
    "format_agentic": "headrace.make.formatters",
    "format_anti_hallucination": "headrace.make.formatters",
    "format_chain_of_thought": "headrace.make.formatters",
    "format_code": "headrace.make.formatters",
    "format_code_execution": "headrace.make.formatters",
    "format_conversation": "headrace.make.formatters",
    "format_document": "headrace.make.formatters",
    "format_generation": "headrace.make.formatters",
    "format_git_operations": "headrace.make.formatters",
    "format_text": "headrace.make.formatters",
    "format_tool_use": "headrace.make.formatters",
    "format_video": "headrace.make.formatters",
    "format_vision": "headrace.make.formatters",
    "format_voice_asr": "headrace.make.formatters",
    "format_voice_tts": "headrace.make.formatters",
    "hf_load_dataset_sharded": "headrace.fetch.doors",
    "list_shards": "headrace.fetch.doors",
    "load": "headrace.serve.door",
    "merge_states": "headrace.serve.state",
    "resolve_resume_plan": "headrace.fetch.resume",
    "rows": "headrace.fetch.doors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
