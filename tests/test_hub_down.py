"""The Hub cannot be asked, and what is needed lies in the cache; or in a copy of one that cannot be written to."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import NotFound, Unreachable
from headrace.testing import LocalHub, write_parquet

SPEC, ROWS = "hf:org/corpus", 4 * 30

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that everything was read into, of a Hub that is gone."""
    monkeypatch.setenv("HF_SHARD_CACHE_CLEANUP", "keep")
    write_parquet(tmp_path / "repo" / "data", [[15, 15]] * 4)
    with LocalHub() as hub:
        hub.push("org/corpus", tmp_path / "repo")
        for name, value in hub.env().items():
            monkeypatch.setenv(name, value)
        assert len(set(by_rows(tmp_path / "data"))) == ROWS
    return tmp_path / "data"


def by_rows(cache: Path, **options: Any) -> list[str]:
    with headrace.rows(SPEC, cache_dir=cache, **options) as stage:
        return [row.data["uid"] for row in stage]


def shuffled(cache: Path) -> list[str]:
    return by_rows(cache, shuffle=True)


def sharded(cache: Path) -> list[str]:
    with headrace.hf_load_dataset_sharded("org/corpus", cache_dir=cache) as stage:
        return [row["uid"] for row in stage]


def loaded(cache: Path) -> list[str]:
    with headrace.load(SPEC, batch_size=7, cache_dir=cache) as loader:
        return [uid for batch in loader for uid in batch["uid"]]


@pytest.mark.parametrize("read", [by_rows, shuffled, sharded, loaded])
def test_what_is_in_the_cache_is_read_from_the_last_commit_with_a_warning(
    cache: Path, caplog: pytest.LogCaptureFixture, read: Callable[[Path], list[str]]
) -> None:
    assert len(set(read(cache))) == ROWS
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "the Hub cannot be asked which commit is the newest" in told[0]
    assert "which was the newest when this cache was last used" in told[0]


def test_all_ranks_of_a_launch_read_the_same_commit_when_the_hub_comes_back_in_between(
    cache: Path, tmp_path: Path, as_rank: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def revision(rank: int) -> str:
        as_rank(rank, 2)
        with headrace.rows(SPEC, cache_dir=cache) as stage:
            return str(stage.state_dict()["revision"])

    monkeypatch.setenv("MASTER_ADDR", "here")
    first = revision(0)
    write_parquet(tmp_path / "other" / "data", [[3]])
    with LocalHub() as hub:
        hub.push("org/corpus", tmp_path / "other")
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        assert revision(1) == first


def test_what_is_not_in_the_cache_is_still_an_error(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="gave up after"):
        by_rows(tmp_path / "empty")
    for path in (cache / "hf_shards").rglob("*00003*.parquet"):
        path.unlink()
    with pytest.raises(Unreachable, match="00003"):
        by_rows(cache)


def test_a_repo_that_is_gone_is_no_hub_that_is_down(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        with pytest.raises(NotFound):
            by_rows(cache)


READ = """
import json, sys
from headrace.catalog import retry
retry.RETRY = retry.Retry(attempts=2, base=0.01)
import headrace
with headrace.rows("hf:org/corpus", cache_dir=sys.argv[1], shuffle=True) as stage:
    assert len({row.data["uid"] for row in stage}) == 120
with headrace.rows("hf:org/corpus", cache_dir=sys.argv[1]) as stage:
    next(stage)
    again = stage.state_dict()
    rest = [row.data["uid"] for row in stage]
    stage.load_state_dict(again)
    assert [row.data["uid"] for row in stage] == rest
with headrace.load("hf:org/corpus", batch_size=8, cache_dir=sys.argv[1], num_workers=1) as loader:
    uids = [uid for batch in loader for uid in batch["uid"]]
    loader.state_dict()
assert len(set(uids)) == len(uids) == 120
print("all")
"""


def read_copy(*before: str, copy: Path) -> str:
    env = {**os.environ, "HOME": str(copy.parent), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*before, sys.executable, "-c", READ, str(copy)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("cleanup", ["auto", "keep"])
def test_a_copy_of_a_cache_on_a_read_only_disk_works(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cleanup: str
) -> None:
    monkeypatch.setenv("HF_SHARD_CACHE_CLEANUP", cleanup)
    copy = tmp_path / "copy"
    shutil.copytree(cache, copy)
    (copy / "hf_shards").chmod(0o700)
    mount = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
    before = ["unshare", "--mount", "sh", "-c", mount, "sh", str(copy)]
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may mount nothing")
    assert read_copy(*before, copy=copy) == "all\n"


def test_a_copy_of_a_cache_that_its_user_may_not_write_to_works(cache: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-copy-") as name:
        Path(name).chmod(0o755)
        copy = Path(name, "copy")
        shutil.copytree(cache, copy)
        before: list[str] = []
        if os.geteuid() == 0:
            if not shutil.which("setpriv"):
                pytest.skip("setpriv is missing, and the superuser may write anywhere")
            user = pwd.getpwnam("nobody").pw_uid
            before = ["setpriv", f"--reuid={user}", "--clear-groups"]
            for path in [copy, *copy.rglob("*")]:
                os.chown(path, user, -1)
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o500 if path.is_dir() else 0o400)
        try:
            assert read_copy(*before, copy=copy) == "all\n"
        finally:
            for path in [copy, *copy.rglob("*")]:
                path.chmod(0o700)
