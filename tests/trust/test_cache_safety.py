"""The cache folder as others may have left it: whatever is planted there, a reader gets the right bytes or an error,
soon, and nothing outside of it is touched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fetching import noise, shard_on
from odd_files import PLANTED, soon

from headrace import load, rows
from headrace.catalog.retry import Hold
from headrace.errors import FetchError, NotAllowed
from headrace.fetch import sidecar
from headrace.fetch.cache import ShardCache
from headrace.locks import Lock, locked
from headrace.testing import LocalHub, write_parquet

pytestmark = pytest.mark.usefixtures("quick")

BODY = noise(50_000)
SECRET = b"precious"


DISKS = {
    "full": ("size=16k", "head -c 1M /dev/zero > ballast 2>/dev/null || true", "(No space left|no room)"),
    "without inodes": ("nr_inodes=1", "true", "(No space left|no room)"),
    "read-only": ("size=1M", 'mount -o remount,ro "$PWD"', "Read-only file system"),
}
"""Real file systems: what they are mounted with, what is done to them, and what is said of them."""
READ_ON_DISK = """
import sys, headrace
from headrace.errors import HeadraceError
for spec in sys.argv[2:]:
    for read in (headrace.rows, lambda *a, **k: headrace.load(*a, batch_size=2, **k)):
        try:
            print("read", len(list(read(spec, cache_dir=sys.argv[1]))))
        except HeadraceError as error:
            print(type(error).__name__, " ".join(str(error).split()))
"""


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "victim"
    path.write_bytes(SECRET)
    yield path
    assert path.read_bytes() == SECRET


@pytest.mark.parametrize("what", PLANTED)
@pytest.mark.parametrize("where", ["lock", "sidecar", "shard", "revision"])
def test_what_is_planted_in_the_cache_holds_nobody_up_and_harms_no_victim(
    hub: LocalHub, tmp_path: Path, victim: Path, where: str, what: str
) -> None:
    cache, shard = ShardCache(tmp_path / "root"), shard_on(hub, BODY)
    place = cache.path_of(shard)
    cache._prepare(place)
    path = {
        "lock": cache._leases.folder / f"{cache._key(place)}.lock",
        "sidecar": sidecar.path_beside(place),
        "shard": place,
        "revision": list(cache._places(shard))[1].parent,
    }[where]
    PLANTED[what](path, victim)
    for _ in range(2):
        with soon(lambda: cache.acquire(shard)) as lease:
            assert lease.path.read_bytes() == BODY
    soon(cache.sweep)
    assert not victim.with_name("nothing").exists()


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_as_a_lock_of_an_index_holds_nobody_up(tmp_path: Path, victim: Path, what: str) -> None:
    path = tmp_path / "index.lock"
    PLANTED[what](path, victim)

    def hold() -> bool:
        with locked(path, patience=0.2):
            return True

    assert soon(hold)
    assert soon(lambda: Lock(path).owner())[0] is not True


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_as_the_mark_of_a_pause_is_no_pause(tmp_path: Path, victim: Path, what: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    hold = Hold("http://hub.example", root)
    assert hold._path is not None
    PLANTED[what](hold._path, victim)
    assert soon(hold.left) == 0


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_as_an_index_is_made_again(
    hub: LocalHub, tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    write_parquet(tmp_path / "repo" / "data", [[3], [4]])
    hub.push("org/a", tmp_path / "repo")
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    for spec in ("hf:org/a", f"parquet:{tmp_path}/repo/data/*.parquet"):
        cache = tmp_path / spec.partition(":")[0]
        assert len(list(rows(spec, cache_dir=cache))) == 7
        for path in list(cache.glob("*_index/**/*.json")):
            path.unlink()
            PLANTED[what](path, victim)
        if what == "folder":  # which cannot be replaced by a file
            with pytest.raises(FetchError, match=r"_index/.*\.json could not be written: Is a dir.*cache_dir="):
                soon(lambda: list(rows(spec, cache_dir=cache)))  # noqa: B023
        else:
            assert len(soon(lambda: list(rows(spec, cache_dir=cache)))) == 7  # noqa: B023
    assert not victim.with_name("nothing").exists()


def read_under(umask: int, hub: LocalHub, top: Path, *specs: str) -> None:
    """A process with this umask reads them all; what it fetched stays in `top / "data"`."""
    write_parquet(top / "repo" / "data", [[20], [20]])
    hub.push("org/rows", top / "repo")
    code = (
        "import os, sys, headrace\n"
        f"os.umask({umask})\n"
        "for spec in sys.argv[2:]:\n"
        "    assert len(list(headrace.rows(spec, cache_dir=sys.argv[1]))) == 40\n"
    )
    env = {**os.environ, **hub.env(), "HF_SHARD_CACHE_CLEANUP": "keep"}
    subprocess.run([sys.executable, "-c", code, str(top / "data"), *specs], env=env, check=True, timeout=60)


class TestFolder:
    def modes(self, top: Path) -> dict[str, int]:
        folders = [top, *(path for path in top.rglob("*") if path.is_dir())]
        return {str(path.relative_to(top)): path.stat().st_mode & 0o777 for path in folders}

    @pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
    def test_all_folders_of_the_cache_are_ours_alone_whatever_the_umask(
        self, hub: LocalHub, tmp_path: Path, umask: int
    ) -> None:
        read_under(umask, hub, tmp_path, "hf:org/rows")
        top = tmp_path / "data" / "hf_shards"
        assert set(self.modes(top).values()) == {0o700}
        shards = list(top.rglob("*.parquet"))
        assert len(shards) == 2
        assert {path.stat().st_mode & 0o777 for path in shards} == {0o444}
        assert not any(path.stat().st_mode & 0o022 for path in top.rglob("*") if path.is_file())

    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
    def test_nobody_else_reads_an_index_whatever_the_umask(self, hub: LocalHub, tmp_path: Path, umask: int) -> None:
        """The names in a private repo are private, and so are those in a private folder."""
        read_under(umask, hub, tmp_path, "hf:org/rows", f"parquet:{tmp_path}/repo/data/*.parquet")
        for name in ("hf_index", "file_index"):
            top = tmp_path / "data" / name
            assert top.stat().st_mode & 0o777 == 0o700
            assert list(top.rglob("*.json"))

    @pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777, 0o720, 0o702])
    def test_a_folder_that_others_may_write_to_is_refused_and_nothing_is_fetched(
        self, hub: LocalHub, tmp_path: Path, mode: int
    ) -> None:
        (tmp_path / "hf_shards").mkdir()
        (tmp_path / "hf_shards").chmod(mode)
        self.assert_refused(hub, tmp_path)

    def test_a_link_in_the_place_of_the_folder_is_refused(self, hub: LocalHub, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / "root").mkdir()
        (tmp_path / "root" / "hf_shards").symlink_to(tmp_path / "elsewhere")
        self.assert_refused(hub, tmp_path / "root")
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_a_folder_of_another_user_is_refused(
        self, hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "hf_shards").mkdir(mode=0o700)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        self.assert_refused(hub, tmp_path)

    @pytest.mark.parametrize("where", ["/proc/nope", "a file"])
    def test_a_folder_that_nothing_can_be_written_to_is_an_error_that_says_what_to_do(
        self, hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        write_parquet(tmp_path / "repo" / "data", [[5]])
        hub.push("org/rows", tmp_path / "repo")
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        cache = Path(where) if where.startswith("/") else tmp_path / "cache"
        if where == "a file":
            cache.touch()
        for spec in ("hf:org/rows", f"parquet:{tmp_path}/repo/data/*.parquet"):
            for read in (
                lambda spec=spec: list(rows(spec, cache_dir=cache)),
                lambda spec=spec: list(load(spec, batch_size=2, cache_dir=cache)),
            ):
                with pytest.raises(FetchError, match=r"(?s)(/proc/nope|cache).*(cache_dir=|HEADRACE_CACHE_DIR)"):
                    read()

    @pytest.mark.parametrize("disk", DISKS)
    def test_a_disk_that_nothing_can_be_written_to_is_an_error_that_says_what_to_do(
        self, hub: LocalHub, tmp_path: Path, disk: str
    ) -> None:
        if subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode:
            pytest.skip("no user namespaces here")
        write_parquet(tmp_path / "repo" / "data", [[5]])
        hub.push("org/rows", tmp_path / "repo")
        mount = tmp_path / "disk"
        mount.mkdir()
        options, then, why = DISKS[disk]
        script = f'mount -t tmpfs -o {options} none "{mount}" && cd "{mount}" && {{ {then}; }} && exec "$@"'
        command = ["unshare", "-Urm", "sh", "-c", script, "-", sys.executable, "-c", READ_ON_DISK, str(mount / "cache")]
        specs = ["hf:org/rows", f"parquet:{tmp_path}/repo/data/*.parquet"]
        done = subprocess.run(
            [*command, *specs], env={**os.environ, **hub.env()}, capture_output=True, text=True, check=False
        )
        lines = done.stdout.splitlines()
        assert len(lines) == 4, done.stderr[-2000:]
        said = rf"^(FetchError|NoSpace) .*{mount}/cache.*{why}.*(cache_dir=|HEADRACE_CACHE_DIR)"
        assert [line for line in lines if not re.search(said, line)] == []

    def assert_refused(self, hub: LocalHub, root: Path) -> None:
        shard = shard_on(hub, BODY)
        with pytest.raises(NotAllowed, match=r"hf_shards is a link, is owned by another user or can be written by oth"):
            ShardCache(root).acquire(shard)
        assert hub.requests == []
        assert not [path for path in root.rglob("*") if path.is_file()]
