"""The shard cache: one copy for all processes, always right, never removed under a reader, never beyond its limit."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fetching import finish, leftovers, noise, shard_on, shards_on, start

from headrace.catalog.shard import Origin, Shard
from headrace.errors import Integrity, NotAllowed, SpecError, Unreachable
from headrace.fetch import heartbeat, sidecar
from headrace.fetch.cache import ShardCache
from headrace.files import host_tag, process_tag
from headrace.testing.hub import Flip, LocalHub

BODY = noise(200_000)
N = len(BODY)
FILE = "*/resolve/*"


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def cache(tmp_path: Path) -> ShardCache:
    return ShardCache(tmp_path)


def shards_in(root: Path) -> list[str]:
    """The shard files there are, by name."""
    files = (path for path in (root / "hf_shards").rglob("*") if path.is_file() and path.parent.name != ".leases")
    return sorted(path.name for path in files if not path.name.startswith("."))


def files_in(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


class TestPlaces:
    def test_a_shard_lies_under_repo_split_and_path_with_its_sidecar(self, hub: LocalHub, cache: ShardCache) -> None:
        shard = shard_on(hub, BODY)
        with cache.acquire(shard) as lease:
            assert lease.path == cache.root / "hf_shards/me/rows/train/data/a.parquet" == cache.path_of(shard)
            assert lease.path.read_bytes() == BODY
            known = json.loads(sidecar.path_beside(lease.path).read_text())
            assert (known["etag"], known["size"], known["origin"]) == (shard.etag, N, shard.origin.name)
            assert (cache.root / "hf_shards").stat().st_mode & 0o777 == 0o700

    def test_the_same_content_at_another_commit_is_the_same_file(self, hub: LocalHub, cache: ShardCache) -> None:
        first = cache.acquire(shard_on(hub, BODY))
        hub.push("me/rows", {"other": b"x"})
        second = cache.acquire(shard_on(hub, BODY))
        assert first.path == second.path
        assert len(hub.requests) == 1

    def test_another_content_under_the_same_name_lies_beside_it(self, hub: LocalHub, cache: ShardCache) -> None:
        old, new = shard_on(hub, BODY), shard_on(hub, noise(500))
        first, second = cache.acquire(old), cache.acquire(new)
        assert first.path.read_bytes() == BODY
        assert second.path.read_bytes() == noise(500)
        assert second.path.parent.name == f".rev-{getattr(new.origin, 'commit')[:8]}"  # noqa: B009
        assert cache.path_of(new) == second.path
        first.release()
        assert cache.acquire(new).path == second.path

    def test_repos_whose_paths_collide_do_not_share_a_file(self, hub: LocalHub, cache: ShardCache) -> None:
        one = shard_on(hub, noise(10), "c/d.parquet", "a/b", split="s")
        two = shard_on(hub, noise(20), "d.parquet", "a/b", split="s/c")
        assert cache.acquire(one).path.read_bytes() == noise(10)
        assert cache.acquire(two).path.read_bytes() == noise(20)

    def test_a_file_where_a_folder_should_be_is_no_obstacle(self, hub: LocalHub, cache: ShardCache) -> None:
        first = cache.acquire(shard_on(hub, noise(10), "x"))
        second = cache.acquire(shard_on(hub, noise(20), "x/y"))
        assert (first.path.read_bytes(), second.path.read_bytes()) == (noise(10), noise(20))

    @pytest.mark.parametrize(
        "path",
        ["/etc/passwd", "../x", "a/../../x", "a\\b", "a\0b", "a//b", ".", "x" * 300, "a\x1bb", "a/.x.part", ".rev-1/x"],
    )
    def test_a_name_that_leads_out_or_is_ours_is_refused(self, hub: LocalHub, cache: ShardCache, path: str) -> None:
        shard = Shard(path, 1, "", shard_on(hub, BODY).origin)
        with pytest.raises(NotAllowed, match="refused"):
            cache.acquire(shard)
        assert files_in(cache.root) == []

    @pytest.mark.parametrize("name", ["x" * 255, "語" * 85, "CON", "a b", "-rf"])
    def test_a_long_or_odd_name_is_a_name(self, hub: LocalHub, cache: ShardCache, name: str) -> None:
        with cache.acquire(shard_on(hub, BODY, name)) as lease:
            assert lease.path.read_bytes() == BODY
        assert files_in(cache.root) == []

    def test_a_folder_that_others_can_write_to_is_refused(self, hub: LocalHub, cache: ShardCache) -> None:
        (cache.root / "hf_shards").mkdir()
        (cache.root / "hf_shards").chmod(0o777)
        with pytest.raises(NotAllowed, match="chmod 0700"):
            cache.acquire(shard_on(hub, BODY))

    def test_a_link_out_of_the_cache_is_not_followed(self, hub: LocalHub, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        cache = ShardCache(tmp_path / "root")
        (tmp_path / "root/hf_shards").mkdir(parents=True, mode=0o700)
        (tmp_path / "root/hf_shards/me").symlink_to(outside)
        with pytest.raises(NotAllowed, match="is a link"):
            cache.acquire(shard_on(hub, BODY))
        assert list(outside.iterdir()) == []

    def test_a_planted_link_as_lock_or_sidecar_harms_no_victim(self, hub: LocalHub, tmp_path: Path) -> None:
        victim = tmp_path / "victim"
        victim.write_text("precious")
        cache, shard = ShardCache(tmp_path / "root"), shard_on(hub, BODY)
        place = cache.path_of(shard)
        cache._prepare(place)
        (cache._leases.folder / f"{cache._key(place)}.lock").symlink_to(victim)
        sidecar.path_beside(place).symlink_to(victim)
        with cache.acquire(shard) as lease:
            assert lease.path.read_bytes() == BODY
        assert victim.read_text() == "precious"

    def test_an_origin_without_a_folder_is_refused(self, cache: ShardCache) -> None:
        class Nowhere(Origin):
            name, folder = "nowhere", None

            def read(self, shard: Shard, start: int, stop: int) -> bytes:
                raise NotImplementedError

            def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
                raise NotImplementedError

        with pytest.raises(SpecError, match="no folder"):
            cache.acquire(Shard("a", 1, "", Nowhere()))

    def test_a_file_of_the_user_is_given_as_it_is_and_never_removed(self, cache: ShardCache, tmp_path: Path) -> None:
        class Local(Origin):
            name, folder = "", None

            def read(self, shard: Shard, start: int, stop: int) -> bytes:
                raise NotImplementedError

            def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
                raise NotImplementedError

            def local_path(self, shard: Shard) -> Path:
                return Path(shard.path)

        mine = tmp_path / "mine.parquet"
        mine.write_bytes(BODY)
        shard = Shard(str(mine), N, "", Local())
        for lease in (cache.acquire(shard), cache.find(shard)):
            assert lease is not None
            assert lease.path == mine == cache.path_of(shard)
            lease.release()
        assert mine.read_bytes() == BODY
        assert files_in(tmp_path) == ["mine.parquet"]


class TestLeases:
    def test_a_shard_goes_when_its_last_lease_goes(self, hub: LocalHub, cache: ShardCache) -> None:
        shard = shard_on(hub, BODY)
        first, second = cache.acquire(shard), cache.acquire(shard)
        first.release()
        first.release()
        assert first.path.exists()
        second.release()
        assert files_in(cache.root) == []

    def test_a_kept_shard_stays_and_is_used_again_without_a_request(self, hub: LocalHub, tmp_path: Path) -> None:
        shard = shard_on(hub, BODY)
        ShardCache(tmp_path).acquire(shard).release(keep=True)
        ShardCache(tmp_path, cleanup="keep").acquire(shard).release()
        assert len(hub.requests) == 1
        assert shards_in(tmp_path) == ["a.parquet"]

    def test_a_lease_of_a_dead_process_holds_nothing(self, hub: LocalHub, cache: ShardCache) -> None:
        shard = shard_on(hub, BODY)
        code = "lease = ShardCache(root).acquire(shards[0])\nos.kill(os.getpid(), signal.SIGKILL)"
        process = start(code, cache.root, [shard])
        process.communicate()
        assert len(leftovers(cache.root)) == 1
        cache.acquire(shard).release()
        assert files_in(cache.root) == []
        assert len(hub.requests) == 1

    def test_a_lease_of_a_process_whose_number_another_has_now_holds_nothing(
        self, hub: LocalHub, cache: ShardCache
    ) -> None:
        shard = shard_on(hub, BODY)
        lease = cache.acquire(shard)
        assert lease.file is not None
        host, pid, started = process_tag().split(".")
        other = lease.file.with_name(lease.file.name.replace(process_tag(), f"{host}.{pid}.{int(started) - 1}"))
        other.touch()
        lease.release()
        assert files_in(cache.root) == []

    def test_a_lease_of_another_machine_holds_until_that_is_silent(
        self, hub: LocalHub, cache: ShardCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shard = shard_on(hub, BODY)
        lease = cache.acquire(shard)
        assert lease.file is not None
        other = lease.file.with_name(lease.file.name.replace(host_tag(), "0" * 10))
        other.touch()
        lease.release()
        assert lease.path.exists()
        monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 0.0)
        monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.0)
        cache.acquire(shard).release()
        assert files_in(cache.root) == []

    def test_a_forgotten_lease_ends(self, hub: LocalHub, cache: ShardCache) -> None:
        shard = shard_on(hub, BODY)
        cache.acquire(shard)
        gc.collect()
        assert leftovers(cache.root) == []

    def test_a_forked_child_cannot_end_its_parents_lease(self, hub: LocalHub, cache: ShardCache) -> None:
        code = """
lease = ShardCache(root).acquire(shards[0])
for explicit in (True, False):
    if (pid := os.fork()) == 0:
        if explicit:
            lease.release()
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0 and lease.path.exists() and lease.file.exists()
"""
        finish(start(code, cache.root, [shard_on(hub, BODY)]))

    def test_a_remover_and_a_reader_never_miss_each_other(self, hub: LocalHub, cache: ShardCache) -> None:
        """Two processes take, read and release the same shard as fast as they can: nobody finds it gone."""
        shard = shard_on(hub, noise(100))
        code = """
cache = ShardCache(root)
for _ in range(60):
    with cache.acquire(shards[0]) as lease:
        assert len(lease.path.read_bytes()) == 100
"""
        for process in [start(code, cache.root, [shard]) for _ in range(2)]:
            finish(process)
        assert files_in(cache.root) == []

    def test_a_removal_waits_for_nobody_and_a_reader_waits_for_a_removal(
        self, hub: LocalHub, cache: ShardCache
    ) -> None:
        shard = shard_on(hub, BODY)
        cache.acquire(shard).release(keep=True)
        key = cache._key(cache.path_of(shard))
        claim = cache._leases.claim(key)
        mark = claim.rename(claim.with_name(f"{claim.name}.rm"))
        assert cache.find(shard) is None
        threading.Timer(0.3, mark.unlink).start()
        began = time.monotonic()
        assert cache.acquire(shard).path.exists()
        assert time.monotonic() - began > 0.2


class TestRot:
    @pytest.mark.parametrize("rot", ["truncate", "edit", "quiet edit", "delete", "folder", "chmod", "link", "empty"])
    def test_a_damaged_file_is_fetched_again(
        self, hub: LocalHub, cache: ShardCache, rot: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        shard = shard_on(hub, BODY)
        lease = cache.acquire(shard)
        path = lease.path
        lease.release(keep=True)
        damage(path, rot, tmp_path)
        again = cache.acquire(shard)
        assert again.path.read_bytes() == BODY
        assert again.path.stat().st_mode & 0o777 == 0o444
        assert len(hub.requests) == (1 if rot == "chmod" else 2)
        if rot in ("truncate", "edit", "quiet edit", "empty"):
            assert str(path) in caplog.text
        cache.acquire(shard)
        assert len(hub.requests) == (1 if rot == "chmod" else 2)

    def test_a_touched_file_is_hashed_once_and_not_fetched(
        self, hub: LocalHub, cache: ShardCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shard = shard_on(hub, BODY)
        path = cache.acquire(shard).path
        cache.acquire(shard).release(keep=True)
        os.utime(path)
        hashed: list[Path] = []

        def hash_of(path: Path, shard: Shard) -> str:
            hashed.append(path)
            return shard.etag

        monkeypatch.setattr("headrace.fetch.cache.hash_of", hash_of)
        cache.acquire(shard)
        cache.acquire(shard)
        assert hashed == [path]
        assert len(hub.requests) == 1

    def test_a_lost_or_torn_sidecar_costs_a_hash_not_a_download(self, hub: LocalHub, cache: ShardCache) -> None:
        shard = shard_on(hub, BODY)
        for content in (None, b"", b"{", b"[]", b'{"file": 5}', b"\xff"):
            lease = cache.acquire(shard)
            lease.release(keep=True)
            beside = sidecar.path_beside(lease.path)
            beside.unlink()
            if content is not None:
                beside.write_bytes(content)
        assert cache.acquire(shard).path == lease.path
        assert len(hub.requests) == 1

    def test_a_file_that_is_not_ours_is_used_if_right_and_left_alone_in_any_case(
        self, hub: LocalHub, cache: ShardCache
    ) -> None:
        right, wrong = shards_on(hub, {"right.parquet": BODY, "wrong.parquet": BODY})
        for shard, content in ((right, BODY), (wrong, b"mine")):
            place = cache.path_of(shard)
            cache._prepare(place)
            place.write_bytes(content)
            with cache.acquire(shard) as lease:
                assert lease.path.read_bytes() == BODY
                assert (lease.path == place) == (shard is right)
            assert place.read_bytes() == content
        assert len(hub.requests) == 1

    def test_offline_a_right_file_is_enough_and_a_wrong_one_an_error(self, hub: LocalHub, cache: ShardCache) -> None:
        lease = cache.acquire(shard_on(hub, BODY))
        offline = shard_on(hub, BODY, offline=True)
        hub.clear_log()
        assert cache.acquire(offline).path == lease.path
        found = cache.find(offline)
        assert found is not None
        damage(lease.path, "truncate", cache.root)
        with pytest.raises(Unreachable, match="HF_HUB_OFFLINE"):
            cache.acquire(offline)
        assert hub.requests == []

    def test_bytes_that_never_come_right_are_never_seen_by_others(self, hub: LocalHub, cache: ShardCache) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, Flip(5))
        with pytest.raises(Integrity):
            cache.acquire(shard)
        assert cache.find(shard) is None
        assert files_in(cache.root) == []

    def test_find_neither_fetches_nor_takes_a_name(self, hub: LocalHub, cache: ShardCache) -> None:
        shard = shard_on(hub, BODY)
        assert cache.find(shard) is None
        assert files_in(cache.root) == []
        cache.acquire(shard).release(keep=True)
        lease = cache.find(shard)
        assert lease is not None
        assert len(hub.requests) == 1


def damage(path: Path, rot: str, scratch: Path) -> None:
    if rot == "chmod":
        path.chmod(0o000)
        return
    before = path.stat()
    path.chmod(0o644)
    if rot == "truncate":
        os.truncate(path, N // 2)
    elif rot == "empty":
        os.truncate(path, 0)
    elif rot in ("edit", "quiet edit"):
        with path.open("r+b") as file:
            file.write(bytes([BODY[0] ^ 1]))
        if rot == "quiet edit":
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        path.unlink()
        if rot == "folder":
            path.mkdir()
        elif rot == "link":
            (scratch / "elsewhere").write_bytes(BODY)
            path.symlink_to(scratch / "elsewhere")
