"""A source of very many files is listed with one look at each, and opens none that is not read."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.catalog import plain
from headrace.catalog.identity import identity_of
from headrace.catalog.listing import Listing, Strings
from headrace.catalog.local import LocalOrigin, list_local
from headrace.catalog.shard import Shard
from headrace.catalog.source import Source
from headrace.errors import DataError, NotFound
from headrace.fetch.prefetch import ShardPrefetcher

FILES = 300


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """System calls on files below the folder, by name."""
    found: Counter[str] = Counter()
    for name in ("stat", "lstat", "open"):
        real = getattr(os, name)

        def counted(path: Any, *args: Any, name: str = name, real: Any = real, **options: Any) -> Any:
            if isinstance(path, str | Path) and str(path).startswith(f"{tmp_path}/in/"):
                found[name] += 1
            return real(path, *args, **options)

        monkeypatch.setattr(os, name, counted)
    return found


def _write(folder: Path) -> None:
    folder.mkdir()
    for i in range(FILES):
        (folder / f"{i:03d}.parquet").write_bytes(bytes(i))


def test_a_file_is_looked_at_once_and_not_opened_to_be_listed(tmp_path: Path, calls: Counter[str]) -> None:
    _write(tmp_path / "in")
    calls.clear()
    listing = list_local(Source(kind="parquet", path=f"{tmp_path}/in/*.parquet"))
    assert listing.sizes.tolist() == list(range(FILES))
    assert [os.path.basename(path) for path in listing.paths] == [f"{i:03d}.parquet" for i in range(FILES)]  # noqa: PTH119
    assert calls["open"] == 0
    assert FILES <= calls["stat"] + calls["lstat"] <= FILES + 10


def test_a_file_whose_mode_does_not_say_that_it_may_be_read_is_opened(tmp_path: Path, calls: Counter[str]) -> None:
    _write(tmp_path / "in")
    (tmp_path / "in" / "007.parquet").chmod(0o200)
    calls.clear()
    source = Source(kind="parquet", path=f"{tmp_path}/in/*.parquet")
    if os.geteuid() == 0:
        list_local(source)
        assert calls["open"] == 1
    else:
        with pytest.raises(PermissionError, match=r"007\.parquet may not be read by this user"):
            list_local(source)


def test_what_is_no_file_is_refused_with_its_name(tmp_path: Path) -> None:
    _write(tmp_path / "in")
    os.mkfifo(tmp_path / "in" / "pipe.parquet")
    with pytest.raises(DataError, match=r"pipe\.parquet is a fifo"):
        list_local(Source(kind="parquet", path=f"{tmp_path}/in/*.parquet"))
    (tmp_path / "in" / "pipe.parquet").unlink()
    (tmp_path / "in" / "link.parquet").symlink_to(tmp_path / "nothing")
    with pytest.raises(NotFound, match=r"link\.parquet is a broken symbolic link"):
        list_local(Source(kind="parquet", path=f"{tmp_path}/in/*.parquet"))


def test_files_and_folders_behind_links_are_told_apart(tmp_path: Path) -> None:
    _write(tmp_path / "in")
    (tmp_path / "in" / "a.parquet").symlink_to(tmp_path / "in" / "005.parquet")
    (tmp_path / "in" / "b.parquet").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "in" / "c.parquet").mkdir()
    listing = list_local(Source(kind="parquet", path=f"{tmp_path}/in/*.parquet"))
    assert len(listing) == FILES + 1
    assert listing.shard(FILES).path == f"{tmp_path}/in/a.parquet"
    assert listing.shard(FILES).size == 5


def test_what_is_looked_at_is_what_an_open_file_tells(tmp_path: Path) -> None:
    _write(tmp_path / "in")
    path = str(tmp_path / "in" / "123.parquet")
    with plain.PlainFile(path) as file:
        assert plain.look_at(path) == file.signature


def test_a_listing_holds_no_objects_per_shard() -> None:
    count = 20_000
    files = [(f"data/CC-MAIN-{i // 250:03d}/{i % 250:05d}.parquet", i, f"{i:040x}") for i in range(count)]
    gc.collect()
    tracemalloc.start()
    try:
        listing = Listing.of(Source(kind="parquet", path="data"), "files-0", LocalOrigin(), iter(files))
        identity_of(listing.paths, listing.sizes, None)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 120 * count  # names and tags, and three numbers
    assert peak < 600 * count


@pytest.mark.parametrize("name", ["{}.parquet", "ü{}.parquet", "\udce4{}.parquet", "\ud83d\ude00 {}"])
def test_names_come_back_as_they_were(name: str) -> None:
    files = [(name.format(i), i, f"t{i}") for i in range(12)]
    listing = Listing.of(Source(kind="parquet", path="data"), "files-0", LocalOrigin(), files)
    assert listing.files() == files
    assert [listing.paths[i] for i in range(12)] == [path for path, _, _ in files]
    assert [listing.paths.places(path) for path, _, _ in files] == [[i] for i in range(12)]
    assert listing.paths.places("parquet") == listing.paths.places("") == []


def test_a_name_is_found_at_all_its_places_and_at_no_others() -> None:
    strings = ["a", "aa", "", "ba", "a", "ab", "", "b", "ü", "a"]
    for wanted in {*strings, "bb", "aab", "\u00c3"}:
        assert Strings(strings).places(wanted) == [i for i, s in enumerate(strings) if s == wanted]
    assert Strings([]).places("a") == []


def test_a_jump_to_another_shard_makes_no_other_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "in")
    listing = list_local(Source(kind="parquet", path=f"{tmp_path}/in/*.parquet"))
    made: list[int] = []
    shard = Listing.shard

    def noted(self: Listing, i: int) -> Shard:
        made.append(i)
        return shard(self, i)

    monkeypatch.setattr(Listing, "shard", noted)
    numbers = np.random.default_rng(0).permutation(FILES)
    with ShardPrefetcher(listing.ordered(numbers), tmp_path / "data", lookahead=0) as prefetch:
        for place in (250, 3, 120, 121, 0):
            wanted = shard(listing, int(numbers[place]))
            made.clear()
            assert prefetch.wait_for(wanted) == Path(wanted.path)
            assert prefetch._at == place
            assert len(made) <= 3


@pytest.mark.parametrize("as_list", [False, True])
def test_a_shard_that_comes_again_is_the_next_one_from_here_on(tmp_path: Path, as_list: bool) -> None:
    _write(tmp_path / "in")
    listing = list_local(Source(kind="parquet", path=f"{tmp_path}/in/*.parquet"))
    shards = listing.ordered(np.array([5, 1, 2, 5, 3, 2, 4, 5, 1, 9]))
    with ShardPrefetcher(list(shards) if as_list else shards, tmp_path / "data", lookahead=0) as prefetch:
        found = []
        for number in (2, 5, 5, 4, 1, 2, 2, 5, 9, 7, 5, 2):
            prefetch.wait_for(listing.shard(number))
            found.append(prefetch._at)
    assert found == [2, 3, 3, 6, 8, 2, 2, 3, 9, 9, 0, 2]
