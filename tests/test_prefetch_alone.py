"""A `ShardPrefetcher` by itself: it takes names of files, and keeps to what the environment says of the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fetching import noise, shards_on

from headrace import ShardPrefetcher, list_shards, resolve_resume_plan
from headrace.errors import NotFound, SpecError
from headrace.fetch import sidecar
from headrace.testing import LocalHub, write_parquet

N = 20_000

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def shards(hub: LocalHub) -> list[Any]:
    return shards_on(hub, {f"data/{name}.parquet": noise(N, seed) for seed, name in enumerate("abcd")})


def names(root: Path) -> list[str]:
    return sorted(path.stem for path in (root / "hf_shards").rglob("*.parquet"))


def read_all(prefetch: ShardPrefetcher, shards: list[Any]) -> None:
    with prefetch:
        for number, shard in enumerate(shards):
            assert prefetch.wait_for(shard).read_bytes() == noise(N, number)


def test_it_keeps_shards_where_the_environment_says_so(
    shards: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_all(ShardPrefetcher(shards, tmp_path / "auto"), shards)
    assert names(tmp_path / "auto") == ["d"]
    monkeypatch.setenv("HF_SHARD_CACHE_CLEANUP", "keep")
    read_all(ShardPrefetcher(shards, tmp_path / "keep"), shards)
    assert names(tmp_path / "keep") == ["a", "b", "c", "d"]
    read_all(ShardPrefetcher(shards, tmp_path / "argument", cleanup="auto"), shards)
    assert names(tmp_path / "argument") == ["d"]


def uses(root: Path) -> list[tuple[str, float]]:
    """When each shard was used last, and the leases: which of them goes depends on that."""
    shards = [(path.stem, sidecar.last_use(path)) for path in (root / "hf_shards").rglob("*.parquet")]
    return shards + [(path.name, path.stat().st_mtime) for path in root.rglob(f"{sidecar.LEASES}/*")]


@pytest.mark.alone
def test_it_keeps_to_the_limit_of_the_environment(
    shards: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_SHARD_CACHE_CLEANUP", "keep")
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", str(2 * N))
    read_all(ShardPrefetcher(shards, tmp_path / "two"), shards)
    assert names(tmp_path / "two") == ["c", "d"], uses(tmp_path / "two")
    read_all(ShardPrefetcher(shards, tmp_path / "three", limit=3 * N), shards)
    assert names(tmp_path / "three") == ["b", "c", "d"], uses(tmp_path / "three")


def test_names_of_local_files_are_given_back_where_they_lie(tmp_path: Path) -> None:
    paths = write_parquet(tmp_path / "in", [[3], [4], [5]])
    for given in (paths, [str(path) for path in paths], [f"file://{path}" for path in paths]):
        with ShardPrefetcher(given, tmp_path / "data") as prefetch:
            assert [prefetch.wait_for(name) for name in given] == paths
    assert all(path.exists() for path in paths)
    assert not list((tmp_path / "data").rglob("*.parquet"))


def test_names_of_files_in_a_source_are_those_of_a_resume_plan(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "repo" / "data", [[3], [4], [5]])
    hub.push("org/a", tmp_path / "repo")
    for name, value in hub.env().items():
        monkeypatch.setenv(name, value)
    data_files, offset, label = resolve_resume_plan("hf:org/a", 5, cache_dir=str(tmp_path / "cache"))
    assert (offset, label) == (2, "train-00001-of-00003.parquet")
    with ShardPrefetcher(data_files, tmp_path / "cache", source="hf:org/a") as prefetch:
        for name in data_files:
            assert prefetch.wait_for(name).read_bytes() == (tmp_path / "repo" / name).read_bytes()
        assert prefetch.wait_for(label).name == label
        shard = list_shards("hf:org/a", cache_dir=tmp_path / "cache")[2]
        assert prefetch.wait_for(shard) == prefetch.wait_for(data_files[1])
        with pytest.raises(NotFound, match=r"has no file other\.parquet; list_shards"):
            prefetch.wait_for("other.parquet")


def test_a_name_of_no_file_says_how_files_of_a_repo_are_named(tmp_path: Path) -> None:
    prefetch = ShardPrefetcher(["data/train-00000-of-00001.parquet"], tmp_path)
    with pytest.raises(NotFound, match="no such file here; for a file of a Hub repo name the source"):
        prefetch.start()
    prefetch.close()


@pytest.mark.parametrize("given", [3, None, b"name"])
def test_what_is_no_shard_is_refused_with_a_sentence(tmp_path: Path, given: Any) -> None:
    with pytest.raises(SpecError, match="is no shard: give those of list_shards"):
        ShardPrefetcher([given], tmp_path).start()
    with pytest.raises(SpecError, match="a list of shards or of file names is expected"):
        ShardPrefetcher("a.parquet", tmp_path)
