"""What `TrueStreamingDataset` is given, as sources and what their rows are made into."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.catalog.known import Known, for_testing, known, known_of
from headrace.catalog.source import Source
from headrace.errors import SpecError, shown
from headrace.fetch.media.policy import MediaPolicy
from headrace.make.formatters import FORMATTERS, with_fields
from headrace.mix.describe import Part, whole, whole_or_none
from headrace.mix.turns import MODALITIES, UNLIMITED, Limits, Quotas
from headrace.serve.samples import Shape

FILES = ("jsonl", "parquet")
KNOWN = "known:"
WORDS = {
    "image": {"image", "images", "vision", "visual", "picture", "pictures", "photo", "photos", "ui", "screenshots"},
    "video": {"video", "videos", "film", "films"},
    "audio": {"audio", "voice", "speech", "asr", "tts", "sound", "sounds", "music"},
}
"""Words in the name of a category that tell its modality. Without one of them it is text."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One source of a configuration."""

    part: Part
    shape: Shape


def entries_of(configs: Any, functions: Any) -> list[Entry]:
    """All of them, in order. Nothing is opened."""
    if not isinstance(configs, Mapping) or not configs:
        raise SpecError("dataset_configs: a mapping of categories to lists of entries with name and path is expected")
    if not isinstance(functions, Mapping):
        raise SpecError(f"format_functions: a mapping of categories to functions is expected, not {shown(functions)!r}")
    found = []
    for category, several in configs.items():
        if not isinstance(category, str) or not isinstance(several, list | tuple):
            raise SpecError(f"dataset_configs[{shown(category)!r}]: a list of entries is expected")
        if not several:
            _function(category, {}, functions)
        found += [_entry(category, entry, functions) for entry in several]
    if not found:
        raise SpecError("dataset_configs has no entries")
    return found


def are_ours(functions: Mapping[str, Any]) -> bool:
    """Whether all format functions are those of headrace."""
    return all(function in FORMATTERS.values() for function in functions.values())


def limits_of(per_epoch: int | None, per_source: int | None, modalities: Any, kinds: Sequence[str]) -> Limits:
    """`kinds`: the modality of each source. A limit of None is what the other allows; both: one pass over each."""
    if modalities is not None and not isinstance(modalities, Mapping):
        raise SpecError(f"modality_max_values: numbers by modality are expected, not {shown(modalities)!r}")
    for name, value in (modalities or {}).items():
        if name not in MODALITIES:
            raise SpecError(f"modality_max_values: {shown(name)!r} is not one of {', '.join(MODALITIES)}")
        whole(f"modality_max_values[{name!r}]", value, 0)
    most = UNLIMITED >> 2
    per_epoch = whole_or_none("max_per_epoch", per_epoch, 1, most)
    per_source = whole_or_none("max_per_dataset", per_source, 1, most)
    if per_epoch is None and per_source is None and modalities is not None:
        raise SpecError(
            "modality_max_values with max_per_epoch=None and max_per_dataset=None: an epoch is then the whole set, of "
            "which nothing is left out; give max_per_epoch or max_per_dataset"
        )
    found = Limits(
        per_epoch=per_epoch,
        per_source=per_epoch if per_source is None else per_source,
        per_modality=None if modalities is None else dict(modalities),
    )
    if per_epoch is None and per_source is not None:
        found = replace(found, per_epoch=max(1, Quotas.of(found, kinds).reached(kinds).total))
    return found


def _entry(category: str, entry: Any, functions: Mapping[str, Any]) -> Entry:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("path"), str) or not entry["path"]:
        raise SpecError(f"dataset_configs[{shown(category)!r}]: an entry has a name and a path, not {shown(entry)!r}")
    function = _function(category, entry, functions)
    source = _source(entry, functions)
    listed = known(entry["path"][len(KNOWN) :].partition(":")[0]) if _is_known(entry) else known_of(source)
    tests = for_testing(source)
    if tests is not None and not entry.get("allow_eval"):
        instead = f"set allow_eval: True in the entry of dataset_configs[{shown(category)!r}]"
        raise tests.refusal(source.split, instead)
    name = entry.get("name") or entry["path"]
    return Entry(part=Part(source=source, name=name), shape=_shape(category, entry, function, source, listed))


def _function(category: str, entry: Mapping[str, Any], functions: Mapping[str, Any]) -> Any:
    kind = entry.get("format")
    if kind is None or (kind in FILES and kind not in functions):
        kind = category
    if not callable(functions.get(kind)):
        there = ", ".join(map(shown, functions)) or "none"
        what = entry.get("name") or entry.get("path")
        raise SpecError(
            f"dataset_configs[{shown(category)!r}]: there is no format function {shown(kind)!r}"
            f"{f' for {shown(what)}' if what else ''}; format_functions has {there}"
        )
    return functions[kind]


def _is_known(entry: Mapping[str, Any]) -> bool:
    return bool(entry["path"].startswith(KNOWN))


def _source(entry: Mapping[str, Any], functions: Mapping[str, Any]) -> Source:
    path, config, split = entry["path"], entry.get("config"), entry.get("split") or "train"
    allow_eval = bool(entry.get("allow_eval", False))
    if _is_known(entry):
        name, _, own = path[len(KNOWN) :].partition(":")
        return Source(kind="known", path=name, config=config, split=own or split, allow_eval=allow_eval)
    form = entry.get("format")
    if form not in FILES or form in functions:
        form = None
    if form == "parquet" or (form is None and path.endswith(".parquet")):
        return Source(kind="parquet", path=path)
    if form == "jsonl" or entry.get("local") or re.search(r"\.(jsonl|ndjson)(\.gz|\.zst)?$", path):
        return Source(kind="jsonl", path=path)
    revision = entry.get("revision")
    return Source(kind="hf", path=path, config=config, split=split, revision=revision, allow_eval=allow_eval)


def _shape(category: str, entry: Mapping[str, Any], function: Any, source: Source, listed: Known | None) -> Shape:
    """A map of the entry's own comes first; that of the catalog holds for the formatter that it was written for."""
    ours = listed is not None and function is FORMATTERS.get(listed.formatter)
    fields, group_by = entry.get("field_map"), entry.get("group_by")
    if listed is not None and ours:
        fields = listed.field_map if fields is None else fields
        group_by = listed.group_by if group_by is None else group_by
    if group_by is not None and not isinstance(group_by, str):
        raise SpecError(f"group_by={shown(group_by)!r} of {shown(entry['path'])}: the name of a column is expected")
    modality: Any = entry.get("modality") or _modality(category)
    if modality not in MODALITIES:
        what = shown(entry.get("name") or entry["path"])
        raise SpecError(f"modality={shown(modality)!r} of {what} is not one of {', '.join(MODALITIES)}")
    return Shape(
        formatter=with_fields(function, fields) if fields else function,
        modality=modality,
        policy=MediaPolicy(root=_root(source)),
        group_by=group_by,
    )


def _modality(category: str) -> str:
    words = set(re.findall("[a-z]+", category.lower()))
    found = [modality for modality, own in WORDS.items() if words & own]
    return found[0] if found else "image" if words == {"generation"} else "text"


def _root(source: Source) -> Path | None:
    """The data set's own folder: of a pattern, as far as it is one folder."""
    if source.kind not in FILES or "://" in source.path:
        return None
    fixed = re.split(r"[*?\[]", source.path, maxsplit=1)[0]
    path = Path(fixed or ".").absolute()
    return path if fixed.endswith("/") or not fixed else path.parent
