"""Bad rows of sources that a formatter reads: in sequences of tokens, in samples, and in groups of rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spoiled_rows import delivered
from streaming import World, code_row, picture

import headrace
from headrace import Faults, Skip
from headrace.errors import DataError
from headrace.testing import LocalHub
from headrace.testing.tokenizers import write_tokenizer

SKIP = Faults(policy="skip")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_row_that_its_formatter_refuses_is_left_out_of_sequences(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {3, 8, 9}
    image = {"bytes": picture(3), "path": "3.png"}
    fields = {"choices": ["three", "four"], "answer": 1, "hint": "", "lecture": "", "solution": ""}
    rows = [{"image": image if i in bad else None, "question": f"how many {i}?", **fields} for i in range(20)]
    path = tmp_path / "repo" / "data" / "train-00000-of-00001.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    hub.push("derek-thomas/ScienceQA", tmp_path / "repo")
    for name, value in hub.env().items():
        monkeypatch.setenv(name, value)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", vocab=400)
    how: dict[str, Any] = {"tokenizer": tokenizer, "seq_len": 48, "epochs": 1, "cache_dir": tmp_path / "data"}
    wanted = Counter((path.name, i) for i in range(20) if i not in bad)
    with headrace.load("known:ScienceQA", faults=SKIP, **how) as loader:
        assert delivered(loader) == wanted
        assert len(loader.faults) == len(bad)
        assert all("has images, videos or sounds" in fault.reason for fault in loader.faults)
        addresses = tuple(fault.address for fault in loader.faults)
    with headrace.load("known:ScienceQA", skip=Skip(addresses=addresses), **how) as loader:
        assert delivered(loader) == wanted
    with headrace.load("known:ScienceQA", **how) as loader:
        with pytest.raises(DataError) as caught:
            list(loader)
        (address,) = re.findall(r"Skip\(addresses=\['(.*?)'\]\)", str(caught.value))
        assert address in addresses


# --- samples


def write(path: Path, rows: list[dict[str, Any]], bad: set[int], spoiled: bytes) -> Path:
    lines = [spoiled if i in bad else json.dumps(row).encode() for i, row in enumerate(rows)]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


@pytest.mark.parametrize("spoiled", [b"oops", b'{"instruction": "caf\xe9"}'])
def test_a_sample_whose_row_cannot_be_read_is_skipped_like_others_that_fail(world: World, spoiled: bytes) -> None:
    path = write(world.folder / "code.jsonl", [code_row(i) for i in range(12)], {0, 4, 5}, spoiled)
    configs = {"code": [{"name": "code", "path": str(path)}]}
    options: dict[str, Any] = {"max_per_epoch": 9, "sample_repeat": 1}
    dataset = world.make(configs, faults=Faults(policy="skip", budget=3), **options)
    assert world.names(dataset) == [f"code {i}" for i in (1, 2, 3, 6, 7, 8, 9, 10, 11)]
    assert dataset._streaming_state["skipped_rows"] == 3
    with pytest.raises(DataError, match=r"configure\(faults=Faults\(policy='skip'\)\)"):
        list(world.make(configs, **options))


# --- groups


def test_a_group_with_a_bad_row_in_it_fails_and_the_others_come_whole(world: World) -> None:
    trees = [0, 0, 0, 1, 1, 2, 3, 3, 3, 4]
    rows = [{"tree": tree, "n": i} for i, tree in enumerate(trees)]
    path = write(world.folder / "g.jsonl", rows, {4}, b"oops")
    configs = {"code": [{"name": "g", "path": str(path), "group_by": "tree"}]}

    def joined(row: Any, tokens: Any) -> Any:
        return {"text": f"[g {row['rows'][0]['tree']}] " + ",".join(str(one["n"]) for one in row["rows"])}

    def make(**options: Any) -> Any:
        return world.make(configs, functions={"code": joined}, max_per_epoch=3, sample_repeat=1, **options)

    # The tree before the bad row may go on in it, and so may the one after it have begun there.
    assert [world.text(sample) for sample in make(faults=SKIP)] == ["[g 0] 0,1,2", "[g 3] 6,7,8", "[g 4] 9"]
    with pytest.raises(DataError, match="row 4 .*is not JSON"):
        list(make())
