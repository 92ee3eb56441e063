"""A source by name: spec strings and their object form."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal, Self, get_args

from headrace.catalog.frames import Frames
from headrace.errors import SpecError, shown

Kind = Literal["hf", "jsonl", "parquet", "txt", "known", "lerobot"]
KINDS: tuple[str, ...] = get_args(Kind)
FILES: tuple[Kind, ...] = ("jsonl", "parquet", "txt")
"""Kinds whose path is a local file or glob, unless it is a URL."""

FORMS = {
    "hf": "hf:<repo>[:<split>[:<column>]] or hf:<repo>:<config>:<split>:<column>",
    "jsonl": "jsonl:<path or glob>[:<column>]",
    "parquet": "parquet:<path, glob or fsspec url>[:<column>]",
    "txt": "txt:<path or glob>[:<column>]",
    "known": "known:<name>[:<split>]",
    "lerobot": "lerobot:<repo, path of a folder or fsspec url>",
}

REPO = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?", re.ASCII)
SYNTH = "synth://"
"""Before a kind of `headrace synth`, in the place of a path: its rows, which are written when they are first opened."""
_NAME = re.compile(r"[^\x00-\x1f/\\:]{1,200}")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where rows come from. `Source.parse` reads a spec; paths with colons or commas are given here directly.

    A source of kind `known` becomes the one that the catalog has under the name given as its path.
    """

    kind: Kind
    path: str
    """A Hub dataset repo, a local path or glob, or (parquet, lerobot) a URL that fsspec knows."""
    config: str | None = None
    """Hub only: the configuration (subset); None takes the repo's default."""
    split: str = "train"
    """Hub only."""
    column: str = "text"
    """The column that is tokenized; for txt, the name that the line gets."""
    revision: str | None = None
    """Hub only: a branch, tag or commit; pinned to a commit when it is first seen."""
    allow_partial: bool = False
    """Hub only: accept an automatic parquet conversion that covers only a part of the data."""
    allow_eval: bool = False
    """Accept a known data set, or a split of one, that is for testing."""
    frames: Frames | None = None
    """lerobot only: what is made of its frames; None: each as it is."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SpecError(f"kind={shown(self.kind)!r} is not a kind of source; kinds: {', '.join(KINDS)}")
        if not self.path or "\0" in self.path:
            raise _wrong(f"{self.kind}:{self.path}", "the path is empty or holds a NUL", self.kind)
        if self.is_local:
            object.__setattr__(self, "path", well_spelled(self.path))
        if self.kind == "known":
            _resolve(self)
        elif self.kind == "hf":
            _check_hub(self)
        elif "://" in self.path:
            _check_url(self)
        _check_frames(self)
        if not self.column:
            raise _wrong(str(self), "the column is empty", self.kind)

    @property
    def is_local(self) -> bool:
        """Whether it is read from files where they lie."""
        return self.kind in FILES and ("://" not in self.path or self.path.startswith("file://"))

    @property
    def place(self) -> tuple[str | None, ...]:
        """Where its rows lie, however that is written and whichever column is read. Only for comparing two sources."""
        if self.kind == "hf":
            return self.kind, self.path, self.config, self.split
        path = os.path.abspath(self.path.removeprefix("file://")) if self.is_local else self.path  # noqa: PTH100
        return self.kind, path

    @classmethod
    def parse(cls, spec: str) -> Self:
        """One spec. Several, joined by commas: `parse_specs`."""
        if not isinstance(spec, str):
            raise SpecError(f"a spec is a string like {FORMS['hf']!r}; got {type(spec).__name__}")
        kind, colon, rest = spec.strip().partition(":")
        if kind not in KINDS or not colon:
            known = "\n  ".join(FORMS.values())
            raise SpecError(
                f"spec {shown(spec)!r} does not start with a kind of source. A spec has one of the forms\n  {known}\n"
                f"(paths with colons or commas: Source(kind=..., path=...))"
            )
        if kind == "hf":
            return cls._hub(spec, rest)
        if kind == "known":
            name, _, split = rest.partition(":")
            return cls(kind="known", path=name.strip(), split=split or "train")
        scheme, mark, tail = rest.partition("://")
        if kind == "lerobot":
            if ":" in (tail if mark else rest):
                why = "it has no split and no column (a path with colons, or a revision: Source(kind=..., path=...))"
                raise _wrong(f"lerobot:{scheme}://…" if mark else spec, why, kind)
            return cls(kind="lerobot", path=rest.strip())
        parts = (tail if mark else rest).split(":")
        if len(parts) > 2:
            raise _wrong(spec, "it has too many colons (a path with colons: Source(kind=..., path=...))", kind)
        path = f"{scheme}://{parts[0]}" if mark else parts[0]
        if len(parts) == 2 and set(parts[1]) & set("/@?"):
            # What stands here may be a password; it is not shown.
            where = f"{scheme}://…" if mark else f"{parts[0]}:…"
            raise _wrong(f"{kind}:{where}", "what comes after the colon is refused as a column name", kind)
        if len(parts) == 2:
            return cls(kind=kind, path=path, column=parts[1])  # type: ignore[arg-type]
        return cls(kind=kind, path=path)  # type: ignore[arg-type]

    @classmethod
    def _hub(cls, spec: str, rest: str) -> Self:
        parts = rest.split(":")
        if "" in parts:
            raise _wrong(spec, "a part between colons is empty", "hf")
        match parts:
            case [repo]:
                return cls(kind="hf", path=repo)
            case [repo, split]:
                return cls(kind="hf", path=repo, split=split)
            case [repo, split, column]:
                return cls(kind="hf", path=repo, split=split, column=column)
            case [repo, config, split, column]:
                return cls(kind="hf", path=repo, config=config, split=split, column=column)
        raise _wrong(spec, f"it has {len(parts)} parts", "hf")

    def __str__(self) -> str:
        """The spec, with defaults written out: the source's name in states, logs and draws."""
        if self.kind == "hf":
            config = f":{self.config}" if self.config else ""
            return f"hf:{self.path}{config}:{self.split}:{self.column}"
        if self.kind == "lerobot":
            return f"lerobot:{self.path}"
        return f"{self.kind}:{self.path}:{self.column}"


def parse_specs(specs: str | Source | list[str | Source] | tuple[str | Source, ...]) -> list[Source]:
    """One or several sources: a string (several joined by commas), a `Source`, or a list of both."""
    if isinstance(specs, Source):
        return [specs]
    if isinstance(specs, str):
        parts = [part for part in specs.split(",") if part.strip()]
        if not parts:
            Source.parse(specs)
        return [Source.parse(part) for part in parts]
    if not isinstance(specs, list | tuple):
        return [Source.parse(specs)]
    return [source for spec in specs for source in parse_specs(spec)]


def well_spelled(path: str) -> str:
    """A local path or glob without what has no meaning in it: `//`, `.` between slashes, a slash at the end."""
    scheme, path = ("file://", path[7:]) if path.startswith("file://") else ("", path)
    parts = [part for part in path.split("/") if part not in ("", ".")]
    root = "/" if path.startswith("/") else ""
    return scheme + root + ("/".join(parts) or ("" if root else "."))


def one_source(spec: str | Source) -> Source:
    """Exactly one source, where only one makes sense."""
    sources = parse_specs(spec)
    if len(sources) != 1:
        raise SpecError(f"{shown(spec)!r} names {len(sources)} sources; open one at a time here")
    return sources[0]


def _wrong(spec: str, why: str, kind: str) -> SpecError:
    return SpecError(f"spec {shown(spec)!r}: {why}. It should read {FORMS.get(kind, FORMS['hf'])}")


def _resolve(source: Source) -> None:
    """Put what the catalog knows in the place of a name. A split that is not the usual one is meant."""
    from headrace.catalog.known import resolve

    split = None if source.split == "train" else source.split
    found = resolve(source.path, split=split, config=source.config, allow_eval=source.allow_eval)
    for name in ("kind", "path", "config", "split", "column"):
        object.__setattr__(source, name, getattr(found, name))


def _check_hub(source: Source) -> None:
    if not REPO.fullmatch(source.path) or ".." in source.path:
        raise _wrong(str(source), f"{shown(source.path)!r} is not a repo name like 'org/name'", "hf")
    for name, value in (("config", source.config), ("split", source.split), ("column", source.column)):
        if value is not None and (not _NAME.fullmatch(value) or value in {".", ".."}):
            raise _wrong(str(source), f"the {name} {shown(value)!r} is not a plain name", "hf")


def _check_url(source: Source) -> None:
    scheme, _, rest = source.path.partition("://")
    authority = rest.partition("/")[0]
    if scheme == "file" or (source.kind == "jsonl" and source.path.startswith(SYNTH)):
        return
    if source.kind not in ("parquet", "lerobot"):
        raise _wrong(f"{source.kind}:{scheme}://…", "only parquet is read from a URL", "parquet")
    if "@" in authority or "?" in rest or "::" in source.path or not re.fullmatch(r"[a-z][a-z0-9+.\-]*", scheme):
        # The rest is not shown: it may hold a password or a signature.
        why = "URLs with users, passwords, queries or chains are refused"
        raise _wrong(f"{source.kind}:{scheme}://…", why, source.kind)


def _check_frames(source: Source) -> None:
    if source.kind != "lerobot":
        if source.frames is not None:
            raise SpecError(f"frames: only sources of kind lerobot have frames; {shown(source)} has rows")
        return
    object.__setattr__(source, "path", spelled(source.path))
    if source.frames is not None and not isinstance(source.frames, Frames):
        raise SpecError(f"frames={shown(repr(source.frames))} is not of type Frames")
    for name, default in (("config", None), ("split", "train"), ("column", "text")):
        if getattr(source, name) != default:
            raise _wrong(str(source), f"a LeRobot data set has no {name}; leave it out", "lerobot")


def spelled(place: str) -> str:
    """The place of a robot data set without what means nothing in it: `//`, `.` between slashes, a slash at the end."""
    scheme, mark, rest = place.rpartition("://")
    parts = [part for part in rest.split("/") if part not in ("", ".")]
    top = "/" if rest.startswith("/") else ""
    if not mark and rest.startswith("./") and len(parts) > 1:
        top = "./"  # or it could be the name of a repo
    return f"{scheme}{mark}{top}{'/'.join(parts)}" if parts else place
