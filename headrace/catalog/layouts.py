"""Which files of a repo are a split: by its README, by the common layouts, by the Hub's own conversion. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headrace.catalog.card import front_matter
from headrace.catalog.patterns import glob_regex
from headrace.catalog.shard import LONGEST_PATH
from headrace.errors import DataError, NotFound, shown

PARQUET = ".parquet"
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Split names and the words that mean them in file names."""
MOST_PATTERNS = 100_000
"""Names of files and patterns that a README gives for all splits of a configuration."""
MOST_MATCHES = 50_000_000
"""Patterns with wildcards times files."""
MOST_COMPARED = 10_000
"""Names that are looked through for those nearest to one that is not there."""


def read_card(text: str) -> list[dict[str, Any]]:
    """The `configs` of a README's front matter; [] where it has none."""
    card = front_matter(text)
    configs = card.get("configs") if isinstance(card, dict) else None
    found = [c for c in configs if isinstance(c, dict)] if isinstance(configs, list) else []
    return [c for c in found if _is_name(c.get("config_name", "default"))]


def _is_name(value: Any) -> bool:
    """A name, and no list of lists of lists that would take forever to write out."""
    return len(value) <= LONGEST_PATH if isinstance(value, str) else isinstance(value, int | float)


def card_patterns(configs: Sequence[dict[str, Any]], config: str | None, split: str) -> list[str] | None:
    """The patterns that a README gives for a split; None where it says nothing about files."""
    if not configs:
        return None
    chosen = _choose_config(configs, config)
    if chosen is None:
        return None
    data_files = chosen.get("data_files")
    if data_files is None:
        return None
    by_split = _by_split(data_files)
    if split not in by_split:
        name = shown(chosen.get("config_name"))
        raise NotFound(
            f"no split {shown(split)!r} in the configuration {name!r}; it has {_some(list(by_split)) or 'none'}"
        )
    folder = _folder(chosen)
    prefix = f"{folder}/" if folder else ""
    found = [prefix + pattern.removeprefix("./") for pattern in by_split[split]]
    for pattern in found:
        if ".." in pattern.split("/"):
            raise NotFound(f"README.md names the files {shown(pattern)!r}, which lead out of the repo")
    return found


def card_folder(configs: Sequence[dict[str, Any]], config: str | None) -> str | None:
    """The folder that a README gives for a configuration; where it names no files, its splits go by their names."""
    chosen = _choose_config(configs, config) if configs else None
    return _folder(chosen) if chosen is not None else None


def _folder(config: dict[str, Any]) -> str | None:
    folder = config.get("data_dir")
    return folder.strip("/") if isinstance(folder, str) and folder.strip("./") else None


def _choose_config(configs: Sequence[dict[str, Any]], config: str | None) -> dict[str, Any] | None:
    names = [str(c.get("config_name", "default")) for c in configs]
    if config is not None:
        for c, name in zip(configs, names, strict=True):
            if name == config:
                return c
        raise _no_config(config, names)
    for c, name in zip(configs, names, strict=True):
        if c.get("default") is True or name == "default" or len(names) == 1:
            return c
    raise _no_config(None, names)


def _by_split(data_files: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    given = 0
    for split, paths in _given(data_files):
        patterns = [paths] if isinstance(paths, str) else paths if isinstance(paths, list) else []
        given += len(patterns)
        # One list can stand in many places, by an alias.
        if given > MOST_PATTERNS:
            raise DataError(f"README.md names more than {MOST_PATTERNS:,} files or patterns in one configuration")
        found.setdefault(split, []).extend(p for p in patterns if isinstance(p, str))
    for pattern in (pattern for patterns in found.values() for pattern in patterns):
        if len(pattern) > LONGEST_PATH:
            raise DataError(f"README.md names files by a pattern of {len(pattern):,} characters, {shown(pattern)!r}")
    return found


def _given(data_files: Any) -> Iterator[tuple[str, Any]]:
    """Splits and what a README gives as their files, in all the forms that it may have."""
    if isinstance(data_files, str):
        yield "train", data_files
    elif isinstance(data_files, dict):
        yield from ((str(split), paths) for split, paths in data_files.items())
    for item in data_files if isinstance(data_files, list) else []:
        if isinstance(item, dict) and "path" in item and _is_name(item.get("split", "train")):
            yield str(item.get("split", "train")), item["path"]
        elif isinstance(item, str):
            yield "train", item


def static_prefix(pattern: str) -> str:
    """The folder of a pattern that has no wildcard in it: what has to be listed to match it."""
    parts = []
    for part in pattern.split("/")[:-1]:
        if set(part) & set("*?[{"):
            break
        parts.append(part)
    return "/".join(parts)


def match(patterns: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Parquet files that match, each once: patterns in their order, files in name order."""
    parquet = sorted(p for p in paths if p.endswith(PARQUET))
    there, found = set(parquet), dict[str, None]()
    wild = sum(_is_wild(pattern) for pattern in patterns)
    if wild * len(parquet) > MOST_MATCHES:
        raise DataError(f"README.md gives {wild:,} patterns for {len(parquet):,} files, which takes too long to match")
    for pattern in patterns:
        if _is_wild(pattern):
            regex = glob_regex(pattern)
            found.update(dict.fromkeys(p for p in parquet if regex.fullmatch(p)))
        elif pattern in there:
            found[pattern] = None
    return list(found)


def _is_wild(pattern: str) -> bool:
    return any(c in pattern for c in "*?[")


def standard(paths: Sequence[str], config: str | None, split: str) -> list[str]:
    """A split by the layouts people use: `data/train-00000-of-00042.parquet`, `<config>/train-*.parquet`,
    `<config>/train/0000.parquet`, `train/*.parquet`, and folders of files that name no split at all (all of it train).
    """
    parquet = sorted(p for p in paths if p.endswith(PARQUET) and not _is_hidden(p))
    inside = _inside_config(parquet, config)
    words = SPLITS.get(split, (split,))
    found = [path for path, rest in inside if _names_split(rest, words)]
    if not found and split == "train" and not any(_names_any_split(rest) for _, rest in inside):
        found = [path for path, _ in inside]
    return found


def _inside_config(parquet: Sequence[str], config: str | None) -> list[tuple[str, str]]:
    """Files of a configuration, with their path inside its folder."""
    if config is not None:
        heads = (f"{config}/", f"data/{config}/")
        found = [(p, p[len(h) :]) for p in parquet for h in heads if p.startswith(h)]
        if not found and parquet:
            raise _no_config(config, _folders(parquet))
        return found
    folders = _folders(parquet)
    if len(folders) > 1 and all("/" in p for p in parquet):
        # Several folders that each hold splits are configurations: one has to be named.
        holding = [
            f for f in folders if any(_names_any_split(p[len(f) + 1 :]) for p in parquet if p.startswith(f + "/"))
        ]
        usual = next((f for f in ("default", "data", "plain_text") if f in holding), None)
        if usual is not None:
            return [(p, p[len(usual) + 1 :]) for p in parquet if p.startswith(usual + "/")]
        if len(holding) > 1 and not set(holding) & {w for words in SPLITS.values() for w in words}:
            raise _no_config(None, holding)
    return [(p, p) for p in parquet]


def _folders(parquet: Iterable[str]) -> list[str]:
    return sorted({p.split("/")[0] for p in parquet if "/" in p})


def _names_split(path: str, words: Iterable[str]) -> bool:
    """Whether a word stands by itself in the path: `train-00000`, `my.train.parquet`, `train/0.parquet`."""
    return any(re.search(rf"(?:^|[^a-zA-Z0-9]){re.escape(w)}(?:[^a-zA-Z0-9]|$)", path) for w in words)


def _names_any_split(path: str) -> bool:
    return any(_names_split(path, words) for words in SPLITS.values())


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "__")) for part in path.split("/"))


def converted(paths: Sequence[str], config: str | None, split: str, allow_partial: bool) -> list[str]:
    """A split in the Hub's own conversion (`refs/convert/parquet`): `<config>/<split>/0000.parquet`."""
    configs = _folders(paths)
    if config is None and len(configs) > 1 and "default" not in configs:
        raise _no_config(None, configs)
    folder = config or ("default" if "default" in configs else configs[0] if configs else "default")
    found = sorted(p for p in paths if p.startswith(f"{folder}/{split}/") and p.endswith(PARQUET))
    part = sorted(p for p in paths if p.startswith(f"{folder}/partial-{split}/") and p.endswith(PARQUET))
    if not found and part and not allow_partial:
        raise NotFound(
            f"the Hub converted only a part of split {shown(split)!r} to parquet ({len(part)} files); to train on that "
            f"part, say so: Source(..., allow_partial=True)"
        )
    return found or part


def nothing_found(name: str, config: str | None, split: str, patterns: Sequence[str], paths: Sequence[str]) -> NotFound:
    """The error when no file is a split: what was tried, and what is there."""
    parquet = [p for p in paths if p.endswith(PARQUET)]
    wanted = f"{config}/{split}" if config else split
    some = parquet[:MOST_COMPARED]
    near = difflib.get_close_matches(wanted, [p.rpartition("/")[0] or p for p in some], n=3, cutoff=0.1)
    near += difflib.get_close_matches(split, some, n=3, cutoff=0.1)
    there = _some(list(dict.fromkeys(near)) or parquet or paths, 6) or "no file"
    return NotFound(
        f"{name}: no parquet file for split {shown(split)!r}"
        + (f" of configuration {shown(config)!r}" if config else "")
        + f"; tried {_some(patterns, 6)}; nearest there: {there}"
    )


def _some(names: Sequence[str], most: int = 20) -> str:
    return ", ".join(shown(n) for n in names[:most]) + (" …" if len(names) > most else "")


def _no_config(config: str | None, names: Sequence[str]) -> NotFound:
    listed = _some(names)
    if config is None:
        return NotFound(
            f"the repo has several configurations; name one as hf:<repo>:<config>:<split>:<column>: {listed}"
        )
    near = difflib.get_close_matches(config, names[:MOST_COMPARED], n=3, cutoff=0.3)
    hint = f"; nearest: {', '.join(shown(n) for n in near)}" if near else ""
    return NotFound(f"no configuration {shown(config)!r}; there are {listed or 'none'}{hint}")
