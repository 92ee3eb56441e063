"""The power goes at any moment: what is found afterwards loads, or is found to be damaged and fetched again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from power import PowerDisk, put

from headrace.catalog.shard import Origin, Shard
from headrace.fetch import cache as cache_module
from headrace.fetch import leases, sidecar
from headrace.fetch.cache import ShardCache
from headrace.files import Files, publish_json

BODIES = {"a": b"first shard " * 5, "b": b"second shard " * 5}


class Memory(Origin):
    name = "me/rows@00000000"
    folder = ("hf_shards", "me", "rows", "train")

    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        raise NotImplementedError

    def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
        body = BODIES[shard.path]
        half = (start + len(body)) // 2
        yield body[start:half]
        yield body[half:]


def shard(name: str) -> Shard:
    return Shard(name, len(BODIES[name]), hashlib.sha256(BODIES[name]).hexdigest(), Memory())


@pytest.fixture(autouse=True)
def _trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the size that its sidecar knows is taken for the one it was: after a crash the inode and the times may
    be right while the bytes are not. Marks of the boot before are waited for, but not for long here."""
    monkeypatch.setattr(leases, "REMOVAL_SECONDS", 0.01)
    for module in (sidecar, cache_module):
        monkeypatch.setattr(module, "look", lambda found: (0, found.st_size, 0, 0))
    monkeypatch.setattr(Files, "fsync", lambda *_: None)
    monkeypatch.setattr(Files, "fsync_dir", lambda *_: None)


def dead(state: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
    """With the names of a machine that was started again: leases and partial files of the boot before."""
    from headrace.files import host_tag

    return tuple((name.replace(host_tag(), "0" * 10), content) for name, content in state)


def test_a_state_is_the_old_one_or_the_new_one_after_a_crash_at_any_call(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    disk = PowerDisk(root)
    for step in (1, 2):
        publish_json(root / "state.json", {"step": step, "more": "x" * 50}, disk)
    found: dict[int, set[int | None]] = {}
    published = [n for n, call in enumerate(disk.calls) if call == "fsync_dir"]
    assert len(published) == 2
    for n, states in enumerate(disk.found.values()):
        for state in states:
            text = dict(state).get("state.json")
            found.setdefault(n, set()).add(None if text is None else json.loads(text)["step"])
    before, between, after = (
        range(published[0]),
        range(published[0], published[1]),
        range(published[1], len(disk.calls)),
    )
    assert all(found[n] <= {None, 1} for n in before)
    assert all(found[n] <= {1, 2} for n in between), "what was saved before is lost"
    assert all(found[n] == {2} for n in after), "what was said to be saved is not"
    assert {1, 2} in [found[n] for n in between]


def published(disk: PowerDisk, root: Path) -> None:
    ShardCache(root, files=disk).acquire(shard("a")).release(keep=True)


def evicted(disk: PowerDisk, root: Path) -> None:
    cache = ShardCache(root, limit=len(BODIES["b"]) + 5, files=disk)
    for name in "ab":
        cache.acquire(shard(name)).release(keep=True)


def removed(disk: PowerDisk, root: Path) -> None:
    ShardCache(root, files=disk).acquire(shard("a")).release()


@pytest.mark.parametrize(("scene", "least"), [(published, 60), (evicted, 200), (removed, 80)])
def test_a_shard_is_right_or_fetched_again_after_a_crash_at_any_call(tmp_path: Path, scene: object, least: int) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    disk = PowerDisk(root)
    assert callable(scene)
    scene(disk, root)
    states = {state for found in disk.found.values() for state in found}
    assert len(states) >= least
    for number, state in enumerate(sorted(states)):
        again = tmp_path / "again"
        put(dead(state), again)
        cache = ShardCache(again)
        for name in "ab":
            for _ in range(2):
                with cache.acquire(shard(name)) as lease:
                    assert lease.path.read_bytes() == BODIES[name], f"state {number}: {dict(state)}"
                    assert Path(lease.path).stat().st_size == len(BODIES[name])
        shutil.rmtree(again)


def test_the_model_finds_a_publisher_that_does_not_sync(tmp_path: Path) -> None:
    """Otherwise it would prove nothing: without one of the two syncs, a torn or a lost state is among those found."""
    for left_out in ("fsync", "fsync_dir"):
        root = tmp_path / left_out
        root.mkdir()
        disk = PowerDisk(root)
        setattr(disk, left_out, lambda *_: None)
        publish_json(root / "state.json", {"step": 1}, disk)
        texts = {dict(state).get("state.json") for state in disk.found[max(disk.found)]}
        assert len(texts) > 1
        assert (None in texts) == (left_out == "fsync_dir") or b"" in texts
