"""Headrace feeds PyTorch training runs from raw data where it lies, and resumes any row exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.address import Address, Row
    from headrace.catalog.source import Source
    from headrace.errors import HeadraceError
    from headrace.fetch.doors import hf_load_dataset_sharded, list_shards, rows
    from headrace.fetch.prefetch import ShardPrefetcher
    from headrace.fetch.resume import resolve_resume_plan
    from headrace.stage import Stage

__version__ = "0.1.0"

__all__ = [
    "Address",
    "HeadraceError",
    "Row",
    "ShardPrefetcher",
    "Source",
    "Stage",
    "__version__",
    "hf_load_dataset_sharded",
    "list_shards",
    "resolve_resume_plan",
    "rows",
]

# Loaded when first asked for, so that `import headrace` costs nothing.
_HOMES = {
    "Address": "headrace.address",
    "HeadraceError": "headrace.errors",
    "Row": "headrace.address",
    "ShardPrefetcher": "headrace.fetch.prefetch",
    "Source": "headrace.catalog.source",
    "Stage": "headrace.stage",
    "hf_load_dataset_sharded": "headrace.fetch.doors",
    "list_shards": "headrace.fetch.doors",
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
