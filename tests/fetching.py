"""Shards on a local Hub, and processes that want them: what the tests of catalog and fetch share."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.catalog.hub_origin import HubOrigin
from headrace.catalog.shard import Shard
from headrace.fetch.leases import Grade
from headrace.testing.hub import LocalHub

REPO = "me/rows"


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def etag_of(path: str, body: bytes) -> str:
    if path.endswith((".parquet", ".mp4")):
        return hashlib.sha256(body).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()


def shard_on(hub: LocalHub, body: bytes, path: str = "data/a.parquet", repo: str = REPO, **options: Any) -> Shard:
    """Push one file and give it as a shard. `options` go to its origin."""
    return shards_on(hub, {path: body}, repo, **options)[0]


def shards_on(hub: LocalHub, files: dict[str, bytes], repo: str = REPO, **options: Any) -> list[Shard]:
    commit = hub.push(repo, files)
    origin = HubOrigin(repo, commit, options.pop("split", "train"), endpoint=hub.endpoint, **options)
    return [Shard(path, len(body), etag_of(path, body), origin) for path, body in files.items()]


def leftovers(root: Path) -> list[str]:
    """Names below `root` that only unfinished or dead work leaves: partial files, leases, marks, locks."""
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.name.endswith(".part") or (path.parent.name == ".leases" and path.is_file())
    )


def leases_of(root: Path, grade: Grade) -> set[str]:
    """The keys of the files that somebody has a lease of this grade on."""
    try:
        names = [path.name for path in (root / "hf_shards" / ".leases").iterdir()]
    except FileNotFoundError:
        return set()
    return {name.partition(".")[0] for name in names if Grade.of(name) is grade}


def wait_until(what: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


PRELUDE = """
import os, signal, sys, time, json
from pathlib import Path
from headrace import run
run.hub_token = lambda: os.environ.get("HF_TOKEN")
from headrace.catalog.hub_origin import HubOrigin
from headrace.catalog.shard import Shard
from headrace.fetch.cache import ShardCache
from headrace.fetch.prefetch import ShardPrefetcher
def given(text):
    fields = json.loads(text)
    root = fields.pop("root")
    shards = fields.pop("shards")
    origin = HubOrigin(**fields, cache_root=Path(root))
    return Path(root), [Shard(path, size, etag, origin) for path, size, etag in shards]
root, shards = given(sys.argv[1])
"""


def start(code: str, root: Path, shards: list[Shard], *before: str, **env: str) -> subprocess.Popen[str]:
    """A process that runs `code` with `root` and `shards` at hand, behind the command line `before`, if any."""
    origin = shards[0].origin
    assert isinstance(origin, HubOrigin)
    given = json.dumps(
        {
            "root": str(root),
            "shards": [[shard.path, shard.size, shard.etag] for shard in shards],
            "repo_id": origin.repo_id,
            "commit": origin.commit,
            "split": origin.split,
            "endpoint": origin.endpoint,
            "stall_seconds": origin.stall_seconds,
            "offline": origin.offline,
        }
    )
    return subprocess.Popen(
        [*before, *python(), "-c", PRELUDE + code, given],
        env=environment() | env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], seconds: float = 30) -> str:
    """What the process printed, once it has ended well."""
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err
    return out


def python() -> list[str]:
    """The interpreter itself (a shim would make system calls of its own), without what start-up can do without."""
    return [os.path.realpath(sys.executable), "-S", "-s", "-B"]


def environment() -> dict[str, str]:
    import urllib3

    import headrace

    paths = [str(Path(str(module.__file__)).parents[1]) for module in (headrace, urllib3)]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PATH": os.environ["PATH"], "PYTHONWARNINGS": "error"}
