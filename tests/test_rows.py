"""`headrace.rows` keeps the laws, for every kind of file, with and without shuffle."""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace
from headrace import Row, rows
from headrace.errors import Changed, SpecError, StateError
from headrace.fetch.parquet import ParquetReader
from headrace.fetch.plan import Chunk
from headrace.fetch.rows import Rows
from headrace.testing import check_laws, is_whole, write_jsonl, write_parquet, write_txt

SHAPE = [[7, 0, 40], [], [1], [33, 5], [0]]


def key(row: Row) -> tuple[str, int, str]:
    return row.address.shard, row.address.row, str(row.data.get("uid", row.data.get("text")))


@pytest.fixture(params=["parquet", "jsonl", "jsonl.gz", "txt", "txt.zst"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind = request.param
    if kind == "parquet":
        write_parquet(tmp_path / "in", SHAPE)
        return f"parquet:{tmp_path}/in/*.parquet"
    sizes = [sum(groups) for groups in SHAPE]
    write = write_jsonl if kind.startswith("jsonl") else write_txt
    paths = write(tmp_path / "in", sizes)
    for path in paths:
        if kind.endswith(".gz"):
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        if kind.endswith(".zst"):
            import zstandard

            path.with_name(path.name + ".zst").write_bytes(zstandard.compress(path.read_bytes()))
    return f"{kind.partition('.')[0]}:{tmp_path}/in/*.{kind}"


def opener(spec: str, tmp_path: Path, **options: object) -> Callable[[], Rows]:
    return lambda: rows(spec, cache_dir=tmp_path / "data", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shuffled_rows_keep_the_laws_at_every_position(spec: str, tmp_path: Path, seed: int) -> None:
    items = check_laws(opener(spec, tmp_path, shuffle=True, seed=seed, pool_size=3), key=key)
    assert len(set(items)) == len(items) == 86


def test_rows_in_order_keep_the_laws_at_every_position(spec: str, tmp_path: Path) -> None:
    items = check_laws(opener(spec, tmp_path), key=key)
    assert items == sorted(items)
    assert len(items) == 86


def test_lanes_together_give_every_row_once_and_each_keeps_the_laws(spec: str, tmp_path: Path) -> None:
    seen: list[object] = []
    for lane in range(3):
        make = opener(spec, tmp_path, shuffle=True, lane=lane, lanes=3, pool_size=2)
        seen += check_laws(make, positions=range(0, 40, 7), key=key)
    assert len(seen) == len(set(seen)) == 86


@pytest.mark.parametrize("shuffle", [False, True])
def test_three_epochs_give_every_row_once_each_and_differ_only_when_shuffled(
    spec: str, tmp_path: Path, shuffle: bool
) -> None:
    def epoch(e: int) -> list[tuple[str, int, str]]:
        with rows(spec, shuffle=shuffle, epoch=e, pool_size=3, cache_dir=tmp_path / "data") as stage:
            return [key(row) for row in stage]

    ledger = [epoch(e) for e in range(3)]
    assert Counter(ledger[0]) == Counter(ledger[1]) == Counter(ledger[2])
    assert len(set(ledger[0])) == 86
    assert epoch(1) == ledger[1]
    assert (ledger[0] != ledger[1] != ledger[2]) is shuffle


def test_every_row_is_what_its_address_says(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[1, 7, 1000, 1], [2500], [3]])
    with rows(f"parquet:{tmp_path}/in/*.parquet", shuffle=True, cache_dir=tmp_path / "data") as stage:
        for row in stage:
            assert row.data["uid"] == f"{Path(row.address.shard).name}:{row.address.row}"
            assert is_whole(row.data)


def test_slices_of_large_row_groups_keep_the_laws(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[2500, 300], [1001]])
    make = opener(f"parquet:{tmp_path}/in/*.parquet", tmp_path, shuffle=True, pool_size=2)
    items = check_laws(make, positions=range(0, 3802, 411), key=key)
    assert len(set(items)) == 3801
    assert all(uid == f"{Path(shard).name}:{row}" for shard, row, uid in items)


def test_another_seed_gives_another_order(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[50, 50], [50]])
    orders = []
    for seed in (0, 0, 1):
        with rows(f"parquet:{tmp_path}/in/*.parquet", shuffle=True, seed=seed, cache_dir=tmp_path / "data") as stage:
            orders.append([key(row) for row in stage])
    assert orders[0] == orders[1] != orders[2]


def test_the_state_has_the_readable_row_offset_and_stays_small(tmp_path: Path) -> None:
    paths = write_parquet(tmp_path / "in", [[5], [5], [5]])
    spec = f"parquet:{tmp_path}/in/*.parquet"
    with rows(spec, cache_dir=tmp_path / "data") as stage:
        for _ in range(7):
            next(stage)
        state = stage.state_dict()
    entry = {"spec": f"{spec}:text", "shard": str(paths[1]), "row_offset": 7, "offset": 2}
    assert state["resume_state"] == {"datasets": [{**entry, "revision": state["revision"]}]}
    assert len(json.dumps(state)) < 1500


def test_a_state_in_a_full_pool_is_a_few_hundred_bytes(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[100] * 40])
    with rows(f"parquet:{tmp_path}/in/*.parquet", shuffle=True, cache_dir=tmp_path / "data") as stage:
        for _ in range(1700):
            next(stage)
        assert len(stage.state_dict()["source"]["s"]) >= 14
        assert len(json.dumps(stage.state_dict()["source"])) < 500


@pytest.mark.parametrize("at", [0, 1, 7, 46, 47, 85, 86])
def test_the_row_offset_alone_resumes_exactly_without_shuffle(spec: str, tmp_path: Path, at: int) -> None:
    with rows(spec, cache_dir=tmp_path / "data") as stage:
        items = [key(row) for row in stage]
    with rows(spec, cache_dir=tmp_path / "data") as stage:
        for _ in range(at):
            next(stage)
        offsets = {"resume_state": stage.state_dict()["resume_state"]}
    with rows(spec, cache_dir=tmp_path / "data") as stage:
        stage.load_state_dict(offsets)
        assert [key(row) for row in stage] == items[at:]


def test_row_offsets_of_lanes_resume_each_lane(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[30], [30]])
    make = opener(f"parquet:{tmp_path}/in/*.parquet", tmp_path, lane=1, lanes=2)
    first = make()
    items = [key(row) for row in first]
    first.close()
    second = make()
    for _ in range(11):
        next(second)
    offsets = second.state_dict()["resume_state"]
    second.close()
    assert [e["lane"] for e in offsets["datasets"][0]["per_lane"]] == [1]
    with make() as third:
        third.load_state_dict({"resume_state": offsets})
        assert [key(row) for row in third] == items[11:]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_checkpoint_with_only_sample_index_still_resumes(spec: str, tmp_path: Path, shuffle: bool) -> None:
    with rows(spec, shuffle=shuffle, cache_dir=tmp_path / "data") as stage:
        items = [key(row) for row in stage]
    with rows(spec, shuffle=shuffle, cache_dir=tmp_path / "data") as stage:
        stage.load_state_dict({"sample_index": 50})
        assert [key(row) for row in stage] == items[50:]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_sample_index_counts_rows_of_the_epoch_beside_it(spec: str, tmp_path: Path, shuffle: bool) -> None:
    with rows(spec, shuffle=shuffle, epoch=1, cache_dir=tmp_path / "data") as stage:
        items = [row.address for row in stage]
    states: list[dict[str, object]] = [{"sample_index": 50, "epoch": 1}]
    for asked in (0, 1):
        with rows(spec, shuffle=shuffle, epoch=asked, cache_dir=tmp_path / "data") as stage:
            stage.load_state_dict(states[0])
            assert next(stage).address == items[50]
            states.append(stage.state_dict())
            assert [row.address for row in stage] == items[51:]
    with rows(spec, shuffle=shuffle, cache_dir=tmp_path / "data") as stage:
        stage.load_state_dict(states[1])  # the same script, resumed once more
        assert [row.address for row in stage] == items[51:]
    with rows(spec, shuffle=shuffle, cache_dir=tmp_path / "data") as stage:
        stage.load_state_dict({"sample_index": 50, "epoch": None})
        assert next(stage).address.epoch == 0


@pytest.mark.parametrize(
    ("epoch", "said"),
    [
        (1, "epoch: the checkpoint is in epoch 1, and rows\\(\\) was opened with epoch=2"),
        (0, "epoch: the checkpoint is in epoch 0, and rows\\(\\) was opened with epoch=2"),
        (-1, "epoch: a whole number from 0 on"),
        ("x", "epoch: a whole number from 0 on"),
    ],
)
def test_a_sample_index_of_another_epoch_than_the_one_asked_for_is_refused(
    tmp_path: Path, epoch: object, said: str
) -> None:
    write_parquet(tmp_path / "in", [[20]])
    with rows(f"parquet:{tmp_path}/in/*.parquet", epoch=2, cache_dir=tmp_path / "data") as stage:
        with pytest.raises(StateError, match=said):
            stage.load_state_dict({"sample_index": 7, "epoch": epoch})
        assert [row.address.epoch for row in stage] == [2] * 20


def test_resuming_logs_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = write_parquet(tmp_path / "in", [[5], [5]])
    with rows(f"parquet:{tmp_path}/in/*.parquet", cache_dir=tmp_path / "data") as stage:
        for _ in range(7):
            next(stage)
        with caplog.at_level(logging.INFO, "headrace"):
            stage.load_state_dict(stage.state_dict())
    lines = [r.message for r in caplog.records if r.message.startswith("resume:")]
    assert lines == [f"resume: spec=parquet:{tmp_path}/in/*.parquet:text sample_row=7 shard={paths[1]} offset=2"]


def test_other_columns_at_resume_do_not_move_a_row(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[60] * 8, [60] * 3])
    spec = f"parquet:{tmp_path}/in/*.parquet"
    with rows(spec, shuffle=True, columns=["uid"], cache_dir=tmp_path / "data") as stage:
        for _ in range(100):
            next(stage)
        state = stage.state_dict()
        rest = [row.address for row in stage]
    with rows(spec, shuffle=True, columns=["n", "text"], cache_dir=tmp_path / "data") as stage:
        stage.load_state_dict(state)
        found = list(stage)
    assert [row.address for row in found] == rest
    assert list(found[0].data) == ["n", "text"]


def test_columns_are_projected_for_every_kind(spec: str, tmp_path: Path) -> None:
    with rows(spec, columns=["text"], cache_dir=tmp_path / "data") as stage:
        assert {tuple(row.data) for row in stage} == {("text",)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 1}, "seed: the state was made with '1', here it is '0'"),
        ({"shuffle": False}, "shuffle: "),
        ({"lanes": 2}, "lanes: "),
        ({"spec": "txt:x:text"}, "spec: "),
        ({"format": 2}, "format 2"),
        ({"K": 0}, "K: a whole number from 1 on"),
        ({"epoch": -1}, "epoch: "),
        ({"coordinate": "diagonal"}, "coordinate: "),
        ({"counted": "text"}, "counted: "),
        ({"source": None}, "not the state of a source"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    write_parquet(tmp_path / "in", [[20], [20]])
    with rows(f"parquet:{tmp_path}/in/*.parquet", shuffle=True, cache_dir=tmp_path / "data") as stage:
        next(stage)
        before = stage.state_dict()
        with pytest.raises(StateError, match=said):
            stage.load_state_dict({**before, **change})
        assert stage.state_dict() == before
        assert len(list(stage)) == 39


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({}, "neither 'source' nor 'resume_state' nor 'sample_index'"),
        ({"sample_index": -1}, "sample_index"),
        ({"sample_index": True}, "sample_index"),
        ({"sample_index": 41}, "only 40"),
        ({"resume_state": {}}, "resume_state.datasets"),
        ({"resume_state": {"datasets": [{"spec": "txt:x"}]}}, "no entry for"),
        ([], "a state is a dict"),
    ],
)
def test_a_checkpoint_that_says_nothing_usable_is_refused(tmp_path: Path, state: dict[str, object], said: str) -> None:
    write_parquet(tmp_path / "in", [[20], [20]])
    with rows(f"parquet:{tmp_path}/in/*.parquet", cache_dir=tmp_path / "data") as stage:
        with pytest.raises(StateError, match=said):
            stage.load_state_dict(state)
        assert len(list(stage)) == 40


def test_row_offsets_alone_cannot_place_a_shuffled_source(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[20]])
    with rows(f"parquet:{tmp_path}/in/*.parquet", shuffle=True, cache_dir=tmp_path / "data") as stage:
        offsets = {"resume_state": stage.state_dict()["resume_state"]}
        with pytest.raises(StateError, match="lacks 'source'"):
            stage.load_state_dict(offsets)


def test_changed_local_files_are_named_at_resume(tmp_path: Path) -> None:
    paths = write_parquet(tmp_path / "in", [[20], [20]])
    spec = f"parquet:{tmp_path}/in/*.parquet"
    with rows(spec, cache_dir=tmp_path / "data") as stage:
        next(stage)
        state = stage.state_dict()
    write_parquet(tmp_path / "in", [[20], [21]])
    with rows(spec, cache_dir=tmp_path / "data") as stage, pytest.raises(Changed, match=paths[1].name):
        stage.load_state_dict(state)


def test_a_file_replaced_between_opening_and_reading_is_noticed(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[20]])
    stage = rows(f"parquet:{tmp_path}/in/*.parquet", cache_dir=tmp_path / "data")
    write_parquet(tmp_path / "in", [[21]])
    with pytest.raises(Changed, match="changed since it was listed"):
        next(stage)
    stage.close()


def test_user_files_are_never_touched(spec: str, tmp_path: Path) -> None:
    """All of what can be seen of them; `tests/trust/test_user_files.py` does it for every other way to read."""

    def manifest() -> list[tuple[object, ...]]:
        found = [(path, path.stat()) for path in sorted((tmp_path / "in").iterdir())]
        facts = [(f.st_mode, f.st_ino, f.st_nlink, f.st_uid, f.st_gid, f.st_mtime_ns, f.st_ctime_ns) for _, f in found]
        kept = [(path.name, path.read_bytes(), os.listxattr(path)) for path, _ in found]
        return [*facts, *kept]

    for path in (tmp_path / "in").iterdir():
        path.chmod(0o640)
    before = manifest()
    with rows(spec, shuffle=True, cache_dir=tmp_path / "data") as stage:
        assert len(list(stage)) == 86
    assert manifest() == before


def test_closed_rows_say_so(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[20]])
    stage = rows(f"parquet:{tmp_path}/in/*.parquet", cache_dir=tmp_path / "data")
    stage.close()
    with pytest.raises(headrace.HeadraceError, match="closed"):
        next(stage)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lane": 2, "lanes": 2}, "lane=2 of lanes=2"),
        ({"seed": -1}, "seed='-1'"),
        ({"pool_size": 0}, "pool_size='0'"),
        ({"epoch": 1.5}, "epoch='1.5'"),
        ({"columns": "text"}, "a list of column names"),
        ({"columns": ["nope"]}, "no column 'nope'"),
    ],
)
def test_wrong_arguments_get_a_sentence_at_once(tmp_path: Path, options: dict[str, object], said: str) -> None:
    write_parquet(tmp_path / "in", [[20]])
    write_txt(tmp_path / "in", [20])
    for spec in (f"parquet:{tmp_path}/in/*.parquet", f"txt:{tmp_path}/in/*.txt"):
        with pytest.raises(SpecError, match=said):
            rows(spec, cache_dir=tmp_path / "data", **options)  # type: ignore[arg-type]


def test_nested_and_media_columns_come_through_undecoded(tmp_path: Path) -> None:
    def media(shard: str, row: int) -> dict[str, object]:
        turns = [{"role": "user", "content": str(row)}, {"role": "assistant", "content": "ok"}]
        return {"image": {"bytes": b"\xff\xd8" + bytes([row % 256]), "path": None}, "messages": turns, "v": [1.5, row]}

    write_parquet(tmp_path / "in", [[9, 9]], row=media)
    with rows(f"parquet:{tmp_path}/in/*.parquet", shuffle=True, cache_dir=tmp_path / "data") as stage:
        for row in stage:
            assert row.data == media("", row.address.row)


def test_dictionary_columns_give_plain_values(tmp_path: Path) -> None:
    def repeated(shard: str, row: int) -> dict[str, object]:
        return {"lang": None if row % 11 == 0 else "a language with a long name" * 20, "n": row}

    write_parquet(tmp_path / "in", [[500, 500]], row=repeated)
    with rows(f"parquet:{tmp_path}/in/*.parquet", shuffle=True, cache_dir=tmp_path / "data") as stage:
        assert all(row.data == repeated("", row.data["n"]) for row in stage)


@pytest.mark.parametrize("shuffle", [False, True])
def test_blocks_give_the_same_rows_and_states_as_items(spec: str, tmp_path: Path, shuffle: bool) -> None:
    make = opener(spec, tmp_path, shuffle=shuffle, pool_size=3)
    with make() as items, make() as blocks:
        sizes = iter([1, 5, 2, 30] * 40)
        while (block := blocks.next_block(next(sizes))) is not None:
            wanted = [next(items) for _ in range(len(block))]
            assert block.addresses == [row.address for row in wanted]
            for i, row in enumerate(wanted):
                assert {name: column[i] for name, column in block.columns.items()} == row.data
            assert blocks.state_dict() == items.state_dict()
            if row_by_item := next(blocks, None):
                assert row_by_item == next(items)
                assert blocks.state_dict() == items.state_dict()
        assert list(items) == []


@pytest.mark.parametrize("error", [OSError, RuntimeError, StopIteration, MemoryError, KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_error_in_reading_comes_out_once_and_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], shuffle: bool
) -> None:
    write_parquet(tmp_path / "in", [[30, 30], [30]])
    make = opener(f"parquet:{tmp_path}/in/*.parquet", tmp_path, shuffle=shuffle, pool_size=2)
    with make() as stage:
        wanted = [key(row) for row in stage]
    real, calls = ParquetReader.read, iter(range(100))

    def fails_twice(self: ParquetReader, chunk: Chunk) -> object:
        if next(calls) in (1, 3):
            raise error("planted")
        return real(self, chunk)

    monkeypatch.setattr(ParquetReader, "read", fails_twice)
    found: list[object] = []
    raised: list[BaseException] = []
    with make() as stage:
        while True:
            try:
                found.append(key(next(stage)))
            except StopIteration:
                break
            except BaseException as caught:
                raised.append(caught)
    assert found == wanted
    assert len(raised) == 2
    for each in raised:
        assert "planted" in str(each)
        if isinstance(each, Exception):
            told = " ".join([str(each), *getattr(each, "__notes__", [])])
            assert re.search(r"rows \d+ to \d+ of .*\.parquet", told)
