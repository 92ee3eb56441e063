"""Bad settings through the public door: each is refused in a sentence of its own, before anything is fetched; or it is
unusual, works, and is told."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from near import Data, Ledger, loader_of, recipe_of, through_json
from states import refused

import headrace
from headrace import Mix, Order, Part, Recipe
from headrace.errors import NoSpace, SpecError
from headrace.recipe import Pack
from headrace.serve.loader import Loader
from headrace.testing import LocalHub, write_jsonl, write_parquet, write_txt

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_parquet(tmp_path / "in", [[20, 13], [9]])
    write_txt(tmp_path / "in", [12])
    write_jsonl(tmp_path / "in", [12])
    return tmp_path


def opened(files: Path, spec: Any = "parquet:{}/in/*.parquet", **options: Any) -> Loader:
    given: Any = spec.format(files) if isinstance(spec, str) else spec
    return headrace.load(given, **{"cache_dir": files / "data", **options})


def first_batch(loader: Loader) -> object:
    with loader:
        return next(iter(loader))


# --- refused


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no rows in a batch": ({"batch_size": 0}, r"batch_size=0 is not a whole number of at least 1"),
    "less than no rows": ({"batch_size": -4}, r"batch_size=-4 is not a whole number"),
    "half a row": ({"batch_size": 2.5}, r"batch_size=2.5 is not a whole number"),
    "a truth for a size": ({"batch_size": True}, r"batch_size=True is not a whole number"),
    "a negative seed": ({"seed": -1}, r"seed=-1 is not a whole number of at least 0"),
    "a seed of too many bits": ({"seed": 1 << 64}, r"seed=\d+ is not a whole number .* at most 18446744073709551615"),
    "a word for shuffle": ({"shuffle": "yes"}, r"shuffle='yes' is not True or False"),
    "no passes": ({"epochs": 0}, r"epochs=0 is not a whole number of at least 1"),
    "an unknown tail": ({"tail": "cut"}, r"tail='cut' is not one of drop, pad, wrap"),
    "an unknown way to pack": ({"seq_len": 8, "pack": "tight"}, r"method='tight' is not one of best_fit, concat, none"),
    "sequences of one token": ({"seq_len": 1}, r"seq_len=1 is not a whole number of at least 2"),
    "a tokenizer and no length": ({"tokenizer": "org/x"}, r"tokenizer without seq_len.*give seq_len, for example 2048"),
    "negative workers": ({"num_workers": -1}, r"num_workers=-1 is not a whole number of at least 0"),
    "a million workers": ({"num_workers": 10**6}, r"num_workers=1000000 is not .* at most 1024"),
    "no lanes": ({"lanes": 0}, r"lanes=0 is not a whole number of at least 1"),
    "a rank alone": ({"rank": 1}, r"rank=1, world_size=None: one means nothing without the other; give both"),
    "a world alone": ({"world_size": 2}, r"rank=None, world_size=2: one means nothing without the other"),
    "a rank beyond the world": ({"rank": 2, "world_size": 2}, r"ranks count from 0 and stay below the world size"),
    "a negative rank": ({"rank": -1, "world_size": 2}, r"rank=-1, world_size=2: ranks count from 0"),
    "a rank in words": ({"rank": "0", "world_size": 2}, r"rank=0, world_size=2: two whole numbers are expected"),
    "no steps": ({"steps_per_epoch": 0}, r"steps_per_epoch=0 is not a whole number of at least 1"),
    "steps and passes": ({"steps_per_epoch": 5, "epochs": 2}, r"steps_per_epoch and epochs: .* give one"),
    "steps and an end": (
        {"steps_per_epoch": 5, "mix": Mix(stop="first_exhausted")},
        r"steps_per_epoch with stop='first_exhausted': .* leave stop out",
    ),
    "an unknown start method": ({"start_method": "magic"}, r"start_method='magic' is not one of fork, spawn"),
    "nothing ahead": ({"prefetch": 0}, r"prefetch=0 is not a whole number of at least 1"),
    "shares of tokens without tokens": ({"mix": Mix(by="tokens")}, r"mix.by: tokens are counted in sequences only"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_cannot_be_are_refused_by_name(files: Path, name: str) -> None:
    options, said = REFUSED[name]
    assert re.search(said, refused(lambda: opened(files, **options), SpecError), re.DOTALL)
    assert not (files / "data").exists()


def test_the_text_of_escapes_in_a_setting_is_not_printed(files: Path) -> None:
    assert r"\x1b[31m' is not one of fork" in refused(lambda: opened(files, start_method="\x1b[31m"), SpecError)


@pytest.mark.parametrize("spec", ["parquet:{}/in/*.parquet:text", "txt:{}/in/*.txt"])
def test_text_without_a_tokenizer_is_refused_before_a_row_is_read(files: Path, spec: str) -> None:
    loader = opened(files, spec, seq_len=16)
    said = refused(lambda: first_batch(loader), SpecError)
    assert re.search(r"seq_len without a tokenizer: column 'text' of \S+ holds text; give a tokenizer, or name a", said)
    with pytest.raises(SpecError, match="seq_len without a tokenizer"):
        loader.state_dict()


def test_text_in_lines_without_a_tokenizer_names_the_row(files: Path) -> None:
    from headrace.errors import DataError

    said = refused(lambda: first_batch(opened(files, "jsonl:{}/in/*.jsonl", seq_len=16)), DataError)
    assert re.search(
        r"jsonl:\d+, column 'text' is text of \d+ characters: a list of token numbers from 0 on is expected", said
    )


def test_pools_that_do_not_fit_into_memory_are_refused(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MEMORY_BYTES", "100")
    said = refused(lambda: len(opened(files, lanes=8)), SpecError)
    assert re.search(r"8 lanes in one process, 1 sources, pools of 24 chunks: about .*\(HEADRACE_MEMORY_BYTES\)", said)
    monkeypatch.setenv("HEADRACE_MEMORY_BYTES", "1GB")
    assert len(opened(files, lanes=8, batch_size=50)) == 8


@pytest.mark.parametrize("name", ["HEADRACE_MEMORY_BYTES", "HEADRACE_CACHE_BYTES"])
@pytest.mark.parametrize("value", ["lots", "-1", "1XB", "\x1b[31m"])
def test_sizes_in_the_environment_that_are_none_are_named(
    files: Path, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert f"{name}=" in refused(lambda: opened(files), SpecError)


# --- a cache that is too small


@pytest.fixture
def small_cache(tmp_path: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    """Two small shards, and a large one behind them that does not fit into the cache."""
    for i, rows in enumerate((10, 10, 4000)):
        write_parquet(tmp_path / "repo", [[rows]], name=f"train-{i:05d}-of-00003.parquet")
    hub.push("me/rows", tmp_path / "repo")
    for name, value in hub.env().items():
        monkeypatch.setenv(name, value)
    sizes = sorted(path.stat().st_size for path in (tmp_path / "repo").iterdir())
    assert 4 * sizes[1] < sizes[2]
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", str(2 * sizes[1]))
    return hub


def whole_files(cache: Path) -> list[str]:
    return [path.name for path in (cache / "hf_shards").rglob("*.parquet")]


def test_a_cache_smaller_than_the_largest_shard_is_refused_before_anything_is_fetched(
    small_cache: LocalHub, tmp_path: Path
) -> None:
    largest = (tmp_path / "repo" / "train-00002-of-00003.parquet").stat().st_size
    said = refused(lambda: next(headrace.rows("hf:me/rows", cache_dir=tmp_path / "data")), NoSpace)
    assert re.search(rf"train-00002-of-00003.parquet needs {largest:,} bytes, but the cache limit is .* raise", said)
    assert whole_files(tmp_path / "data") == []


def test_a_loader_with_a_cache_smaller_than_its_shards_reads_by_range_and_says_so(
    small_cache: LocalHub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    largest = (tmp_path / "repo" / "train-00002-of-00003.parquet").stat().st_size
    loader = headrace.load("hf:me/rows", batch_size=67, shuffle=False, cache_dir=tmp_path / "data")
    with caplog.at_level(logging.WARNING, "headrace"):
        assert sum(len(batch["uid"]) for batch in loader) == 4020
    told = [record.getMessage() for record in caplog.records if "by range" in record.getMessage()]
    assert len(told) == 1
    assert f"one of each source needs {largest:,}" in told[0]
    assert whole_files(tmp_path / "data") == []


# --- unusual, and right


@pytest.mark.parametrize("fields", [{}, {"pack": Pack(seq_len=16), "epochs": 1}], ids=["rows", "tokens"])
def test_a_pool_larger_than_the_data_holds_all_of_it(fields: dict[str, Any]) -> None:
    data = [Data(0, [[7, 2], [5]])]
    recipe = Recipe.of(
        data[0].spec, batch_size=3, order=Order(pool_chunks=10**6, pool_bytes=1 << 40, shard_window=10**6), **fields
    )
    batches = list(loader_of(recipe, data, lanes=2))
    Ledger(data, packed="pack" in fields).add(batches).assert_only(0)
    loader = loader_of(recipe, data, lanes=2)
    next(iter(loader))
    lanes = json.loads(through_json(loader.state_dict())["lanes"])
    assert lanes[0]["src"][0]["c"] == 7


@pytest.mark.parametrize("shuffle", [False, True])
def test_more_workers_than_shards_read_each_row_once_and_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, shuffle: bool
) -> None:
    write_parquet(tmp_path / "in", [[20, 20]])
    with (
        caplog.at_level(logging.INFO, "headrace"),
        headrace.load(
            f"parquet:{tmp_path}/in/*.parquet",
            num_workers=3,
            batch_size=4,
            shuffle=shuffle,
            cache_dir=tmp_path / "data",
        ) as loader,
    ):
        uids = [uid for batch in loader for uid in batch["uid"]]
    assert sorted(uids) == sorted(f"train-00000-of-00001.parquet:{row}" for row in range(40))
    assert "3 lanes share 1 shards, each reads its part of them" in caplog.text


def test_more_lanes_than_rows_give_each_row_once() -> None:
    data = [Data(0, [[2], [1]])]
    loader = loader_of(recipe_of(data, batch_size=2), data, lanes=64)
    Ledger(data, packed=False).add(list(loader)).assert_only(0)
    assert len(loader) == 3


def test_more_workers_than_lanes_are_not_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_parquet(tmp_path / "in", [[20, 20]])
    with caplog.at_level(logging.INFO, "headrace"), opened(tmp_path, num_workers=2, lanes=1, batch_size=40) as loader:
        assert len([*loader]) == 1
    assert "num_workers=2: 1 are used, one for each lane" in caplog.text


def test_a_batch_larger_than_the_data_is_a_short_one(files: Path) -> None:
    with opened(files, batch_size=10**6) as loader:
        assert [len(batch["uid"]) for batch in loader] == [42]
    with opened(files, batch_size=10**6, tail="drop") as loader:
        assert list(loader) == []


def test_parts_of_one_source_are_told_apart(files: Path) -> None:
    source = headrace.Source.parse(f"parquet:{files}/in/*.parquet")
    with opened(files, [source, Part(source=source, weight=2.0)], batch_size=84) as loader:
        assert len(loader.state_dict()["revisions"]) == 2
        assert [len(batch["uid"]) for batch in loader] == [84]
