"""What a part is called, everywhere: in addresses, statistics and skip lists; and what statistics say of each part."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from near import Data, loader_of, near, packed, recipe_of, several

from headrace.address import Address
from headrace.errors import SpecError
from headrace.recipe import Change, Mix, Part, Recipe, Skip, Source, skip_address

__all__ = ["near"]  # a fixture

pytestmark = pytest.mark.usefixtures("near")

WORDS = [*"ab|:\\ %0é\n", " epoch ", "epoch 1 ", " epoch"]
NAMES = st.lists(st.sampled_from(WORDS), min_size=1).map("".join)
ODD = NAMES | st.text(min_size=1)


def named(data: list[Data], **fields: Any) -> list[Part]:
    return [Part(source=one.spec, name=f"part {i}", **fields) for i, one in enumerate(data)]


# --- addresses


@given(ODD, st.integers(0, 10**17), ODD, st.integers(0, 10**17))
def test_an_address_can_be_written_and_read_back_whatever_its_names_are(
    s: str, epoch: int, shard: str, row: int
) -> None:
    address = Address(s, epoch, shard, row)
    assert Address.parse(str(address)) == address
    assert skip_address(str(address)) == (s, shard, row)
    assert [skip_address(text) for text in Skip(addresses=(str(address),)).addresses] == [(s, shard, row)]


def test_an_ordinary_address_reads_as_it_always_did() -> None:
    assert str(Address("hf:org/a:train:text", 2, "a/b.parquet", 7)) == "hf:org/a:train:text epoch 2 a/b.parquet:7"


def test_a_skip_list_takes_addresses_in_each_form_and_keeps_a_row_once() -> None:
    address = Address("txt:a:text", 3, "a.txt", 5)
    skip = Skip(addresses=("txt:a:text|a.txt|5", str(address), str(address._replace(epoch=0)), address))  # type: ignore[arg-type]
    assert skip.addresses == ("txt:a:text|a.txt|5",), "recipes that were written before keep their fingerprints"
    with pytest.raises(SpecError, match=r"addresses\[0\]='a.txt:5' is not of the form .*'spec epoch 0 shard:row'"):
        Skip(addresses=("a.txt:5",))


def test_what_a_batch_says_of_a_row_leaves_it_out() -> None:
    data = several([[[6]], [[6]]])
    for parts in (named(data), [Part(source=one.spec) for one in data]):
        recipe = recipe_of(data, parts=parts, batch_size=4)
        whole = [address for batch in loader_of(recipe, data) for address in batch.addresses]
        assert {address.source for address in whole} == {part.name for part in parts}
        chosen = whole[2], whole[7]
        less = recipe_of(data, parts=parts, batch_size=4, skip=Skip(addresses=tuple(map(str, chosen))))
        found = [address for batch in loader_of(less, data) for address in batch.addresses]
        assert sorted([*found, *chosen]) == sorted(whole)


def test_two_parts_of_one_source_are_told_apart() -> None:
    data = several([[[6]]])
    recipe = recipe_of(data, parts=[Part(source=data[0].spec), Part(source=data[0].spec)], batch_size=4)
    with loader_of(recipe, data) as loader:
        names = {address.source for batch in loader for address in batch.addresses}
    assert names == {data[0].spec, f"{data[0].spec}#2"} == set(loader.stats()["sources"])


def test_a_part_takes_a_spec_as_text() -> None:
    assert Part(source="parquet:a/*.parquet") == Part(source=Source.parse("parquet:a/*.parquet"))
    recipe = Recipe.of([Part(source="parquet:a/*.parquet", weight=3)])
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe
    with pytest.raises(SpecError, match="nothing:a"):
        Part(source="nothing:a")
    with pytest.raises(SpecError, match="source=5 is neither a spec"):
        Part(source=5)  # type: ignore[arg-type]


# --- statistics


def test_statistics_have_rows_and_shares_of_each_part() -> None:
    data = several([[[60]], [[60]]])
    parts = [Part(source=data[0].spec, name="a", weight=3), Part(source=data[1].spec)]
    with loader_of(recipe_of(data, parts=parts, mix=Mix(stop="loop"), batch_size=8), data) as loader:
        fresh = loader.stats()["sources"]
        list(islice(loader, 10))
        found = loader.stats()["sources"]
    assert fresh["a"] == {"rows": 0, "share_asked": 0.75, "share": 0.0}
    assert found == {
        "a": {"rows": 60, "share_asked": 0.75, "share": 0.75},
        data[1].spec: {"rows": 20, "share_asked": 0.25, "share": 0.25},
    }


@pytest.mark.parametrize("by", ["rows", "tokens"])
def test_shares_are_of_what_the_mix_counts(by: Any) -> None:
    data = several([[[400]], [[400]]], [[40], [10]])
    mix = Mix(by=by)
    recipe = recipe_of(data, parts=named(data), mix=mix, batch_size=2, pack=packed(64, method="concat"))
    with loader_of(recipe, data) as loader:
        batches = list(islice(loader, 60))
        found = loader.stats()
    spans = [span for batch in batches for spans in batch.spans for span in spans]
    for name, one in found["sources"].items():
        own = [span for span in spans if span.address.source == name]
        assert one["tokens"] == sum(span.stop - span.start for span in own)
        assert one["rows"] == sum(span.start == 0 for span in own)
        assert one["share_asked"] == 0.5
        assert one["share"] == pytest.approx(0.5, abs=0.02)
    assert sum(one["tokens"] for one in found["sources"].values()) == found["tokens"]


def test_the_share_asked_is_that_of_the_schedule_now() -> None:
    data = several([[[60]], [[60]]])
    mix = Mix(stop="loop", schedule=(Change(at=5, weights={"part 0": 4.0}),))
    with loader_of(recipe_of(data, parts=named(data), mix=mix, batch_size=5), data) as loader:
        for number, _ in enumerate(islice(loader, 10), 1):
            asked = loader.stats()["sources"]["part 0"]["share_asked"]
            assert asked == (0.5 if number <= 5 else 0.8)


def test_padding_counts_for_no_part() -> None:
    data = several([[[7]]])
    with loader_of(recipe_of(data, parts=named(data), batch_size=2), data, lanes=3) as loader:
        list(loader)
        assert loader.stats()["sources"]["part 0"]["rows"] == 7
