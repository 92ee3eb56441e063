"""Data sets whose shapes are known: `known("Dolly-15k")`, or `known:Dolly-15k` as a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from headrace.catalog.source import SYNTH, Source
from headrace.errors import SpecError, shown

Confidence = Literal["confirmed", "partly_confirmed", "likely", "unverified"]

_GROUPS = {"audio": ("voice_asr", "voice_tts"), "voice": ("voice_asr", "voice_tts")}
"""Words for several categories at once."""
_TESTS = ("test", "eval")


@dataclass(frozen=True, kw_only=True)
class Known:
    """One data set: where it is, and how its rows become samples."""

    name: str
    category: str
    """What it is for: code, conversation, tool_use, agentic, vision, video, generation, voice_asr, voice_tts, ..."""
    formatter: str
    """The name of a function in headrace.make.formatters."""
    confidence: Confidence
    """How much of the schema was seen: all of it, some of it, a sibling's, or nothing but the repo's name."""
    repo: str = ""
    """On the Hub."""
    synth: str = ""
    """Instead of a repo: a kind of rows that `headrace synth` writes."""
    config: str | None = None
    split: str = "train"
    splits: tuple[str, ...] = ()
    """All of them, where there are several."""
    field_map: Mapping[str, str] = field(default_factory=dict)
    """Our names of fields and where the rows have them; empty: they are detected. To be read, not changed."""
    group_by: str | None = None
    """Rows with the same value in this column, side by side, are one group and go to the formatter together."""
    eval_only: bool = False
    """A test set: refused unless asked for."""
    eval_splits: tuple[str, ...] = ()
    """Splits that are test sets, beside those whose names say so."""
    trainable: bool = True
    """Whether its rows give samples by themselves."""
    gated: bool = False
    license: str | None = None
    alt_repos: tuple[str, ...] = ()
    """The same data elsewhere."""
    quirks: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    """The schema: `list<T>`, `struct{name: T}`, `T?` may be null; `image` and `audio` are structs of bytes and path."""

    def is_eval(self, split: str | None = None) -> bool:
        """Whether a split is for testing; None: the one that is read unless another is named."""
        split = self.split if split is None else split
        if self.eval_only or split in self.eval_splits:
            return True
        return split != self.split and split.lower().startswith(_TESTS)

    def refusal(self, split: str, instead: str) -> SpecError:
        """Of a test set. `instead`: how it is asked for."""
        return SpecError(
            f"{self.name} ({split}) is for testing; a model that trains on it cannot be tested with it. To read it all "
            f"the same, {instead}"
        )

    def source(self, *, split: str | None = None, config: str | None = None, allow_eval: bool = False) -> Source:
        """Where its rows are. A test set has to be asked for by `allow_eval`."""
        split = self._split(split)
        if self.is_eval(split) and not allow_eval:
            raise self.refusal(
                split,
                f"take known({self.name!r}).source(allow_eval=True), or "
                f"Source(kind='known', path={self.name!r}, allow_eval=True)",
            )
        if self.synth:
            return Source(kind="jsonl", path=SYNTH + self.synth)
        text = self.field_map.get("text", "text")
        return Source(
            kind="hf",
            path=self.repo,
            config=config or self.config,
            split=split,
            column=text if text in self.columns else "text",
            allow_eval=self.is_eval(split),
        )

    def _split(self, split: str | None) -> str:
        if split is None or split == self.split:
            return self.split
        there = self.splits or (self.split,)
        if split not in there:
            raise SpecError(f"{self.name} has no split {shown(split)!r}; it has {', '.join(there)}")
        return split


def known(name: str) -> Known:
    """A data set by its name."""
    if not isinstance(name, str):
        raise SpecError(f"a data set is named by a string; got {type(name).__name__}")
    entries = _entries()
    if name in entries:
        return entries[name]
    folded = {key.lower(): key for key in entries}
    if name.lower() in folded:
        return entries[folded[name.lower()]]
    near = [folded[key] for key in get_close_matches(name.lower(), folded, n=5, cutoff=0.4)]
    hint = f"; nearest: {', '.join(near)}" if near else ""
    raise SpecError(f"there is no known data set {shown(name)!r}{hint}; `headrace datasets` lists all {len(entries)}")


def all_known(category: str | None = None) -> list[Known]:
    """All data sets, or those of a category, in the order of the catalog."""
    entries = list(_entries().values())
    if category is None:
        return entries
    wanted = category.strip().lower().replace(" ", "_").replace("-", "_")
    found = [entry for entry in entries if entry.category in _GROUPS.get(wanted, (wanted,))]
    if not found:
        names = ", ".join(dict.fromkeys(entry.category for entry in entries))
        raise SpecError(f"there is no category {shown(category)!r}; there are {names}")
    return found


def known_of(source: Source) -> Known | None:
    """The entry that a source belongs to, by its repo and, where entries differ by it, its configuration."""
    if source.kind != "hf":
        made_up = source.path.removeprefix(SYNTH) if source.path.startswith(SYNTH) else None
        return next((entry for entry in all_known() if made_up and entry.synth == made_up), None)
    same = _in_repo(source.path)
    exact = [entry for entry in same if entry.config == source.config]
    return exact[0] if exact else same[0] if len(same) == 1 else None


def for_testing(source: Source) -> Known | None:
    """The entry of a source that is for testing; None: it is not, or nothing is known of it."""
    if source.kind != "hf":
        return None
    same = _in_repo(source.path)
    found = [entry for entry in same if entry.config == source.config] or same
    return found[0] if found and all(entry.is_eval(source.split) for entry in found) else None


def _in_repo(path: str) -> list[Known]:
    """The Hub minds no capitals, and leads from old names, which have no owner, to those with one."""
    wanted = path.lower()
    if wanted not in _text().lower():  # to parse it takes a while
        return []
    return [
        entry
        for entry in all_known()
        if any(wanted in (repo.lower(), repo.lower().partition("/")[2]) for repo in (entry.repo, *entry.alt_repos))
    ]


def resolve(name: str, *, split: str | None = None, config: str | None = None, allow_eval: bool = False) -> Source:
    """What `known:<name>[:<split>]` stands for."""
    return known(name).source(split=split, config=config, allow_eval=allow_eval)


# --- the file


@cache
def _text() -> str:
    return files("headrace.catalog").joinpath("known.yaml").read_text(encoding="utf-8")


@cache
def _entries() -> dict[str, Known]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows = yaml.load(_text(), Loader=loader)  # noqa: S506 - both are safe loaders; the C one is ten times as fast
    found = [_entry(row) for row in rows]
    return {entry.name: entry for entry in found}


def _entry(row: dict[str, Any]) -> Known:
    frozen: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    assert frozen.keys() <= {f.name for f in fields(Known)}, row["name"]
    assert frozen["confidence"] in get_args(Confidence), row["name"]
    return Known(**frozen)
