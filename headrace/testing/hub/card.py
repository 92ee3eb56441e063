"""What the Hub says of a repo as a whole."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from headrace.testing.hub.answers import Asked
from headrace.testing.hub.repos import Commit, Repo

_TAG_FIELDS = ("task_categories", "language", "license", "size_categories")


def describe(repo: Repo, commit: Commit, asked: Asked) -> dict[str, Any]:
    """The answer to a repo info request: everything, or the fields it names by `expand`."""
    asked_fields = [*asked.query.get("expand", []), *asked.query.get("expand[]", [])]
    card = card_data(commit)
    size = sum(blob.size for blob in commit.tree.blobs.values())
    facts: dict[str, Any] = {
        "_id": commit.id[:24],
        "id": repo.id,
        "author": repo.id.split("/")[0],
        "sha": commit.id,
        "lastModified": commit.stub.date,
        "createdAt": commit.history()[-1].stub.date,
        "private": repo.restriction == "private",
        "gated": "auto" if repo.restriction in ("gated", "gated-files") else False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": _tags(card),
        "cardData": card,
        "siblings": commit.tree.siblings_with_blobs if asked.flag("blobs") else commit.tree.siblings,
        "usedStorage": size,
        "mainSize": size,
    }
    if asked_fields:
        return {name: value for name, value in facts.items() if name in ("_id", "id", *asked_fields)}
    return facts


def card_data(commit: Commit) -> dict[str, Any] | None:
    """The YAML at the head of the README; None where there is none, or none that can be read."""
    readme = commit.tree.blobs.get("README.md")
    if readme is None:
        return None
    readme.check()
    return _front_matter(readme.source.read_bytes() if isinstance(readme.source, Path) else readme.source)


@functools.lru_cache(maxsize=64)
def _front_matter(readme: bytes) -> dict[str, Any] | None:
    lines = readme.decode("utf-8", "replace").splitlines()
    if lines[:1] != ["---"] or "---" not in lines[1:]:
        return None
    try:
        import yaml
    except ImportError:
        return None
    try:
        data = yaml.safe_load("\n".join(lines[1 : lines.index("---", 1)]))
    except yaml.YAMLError:
        return None
    return data if isinstance(data, dict) else None


def _tags(card: dict[str, Any] | None) -> list[str]:
    tags = []
    for name in _TAG_FIELDS:
        value = (card or {}).get(name, [])
        tags += [f"{name}:{one}" for one in (value if isinstance(value, list) else [value])]
    extra = (card or {}).get("tags", [])
    return tags + [str(one) for one in (extra if isinstance(extra, list) else [extra])]
