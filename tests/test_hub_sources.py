"""Sources on the Hub, against the real client code and a local Hub."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fetching import wait_until

from headrace import ShardPrefetcher, hf_load_dataset_sharded, list_shards, resolve_resume_plan, rows
from headrace.catalog.open import open_index
from headrace.catalog.source import Source
from headrace.errors import Changed, NotAllowed, NotFound, StateError, Unreachable
from headrace.run import Run
from headrace.testing import LocalHub, check_laws, write_parquet
from headrace.testing.hub import Exchange, RateLimit

SHAPE = [[20, 20], [30], [5, 5, 5], [40]]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with LocalHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "data"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        write_parquet(tmp_path / "repo" / "data", SHAPE)
        hub.push("org/corpus", tmp_path / "repo")
        yield hub


SPEC = "hf:org/corpus:train:text"


def uids(spec: str | Source = SPEC, **options: object) -> list[str]:
    with rows(spec, **options) as stage:  # type: ignore[arg-type]
        return [row.data["uid"] for row in stage]


def cached(tmp_path: Path) -> list[str]:
    top = tmp_path / "data" / "hf_shards"
    return sorted(str(p.relative_to(top)) for p in top.rglob("*.parquet") if not p.name.startswith("."))


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_from_the_hub_keep_the_laws(hub: LocalHub, shuffle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_SHARD_CACHE_CLEANUP", "keep")
    items = check_laws(
        lambda: rows(SPEC, shuffle=shuffle, pool_size=3), positions=range(0, 126, 9), key=lambda row: row.data["uid"]
    )
    assert len(set(items)) == len(items) == 125


def test_the_next_shard_is_fetched_when_one_is_opened_and_passed_ones_go(hub: LocalHub, tmp_path: Path) -> None:
    with rows(SPEC) as stage:
        seen = []
        for row in stage:
            seen.append(row.data["uid"])
            if len(seen) == 45:
                assert "org/corpus/train/data/train-00001-of-00004.parquet" in cached(tmp_path)
                assert "org/corpus/train/data/train-00000-of-00004.parquet" not in cached(tmp_path)
                assert len(cached(tmp_path)) <= 2
    assert len(set(seen)) == 125
    assert cached(tmp_path) == []


def test_kept_shards_are_fetched_once(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_SHARD_CACHE_CLEANUP", "keep")
    first = uids()
    assert len(cached(tmp_path)) == 4
    hub.clear_log()
    assert uids() == first
    assert hub.count(kind="resolve") == 0


def test_what_the_last_state_needs_stays_on_disk(hub: LocalHub, tmp_path: Path) -> None:
    with rows(SPEC) as stage:
        for _ in range(35):
            next(stage)
        state = stage.state_dict()
        for _ in range(50):
            next(stage)
    assert "org/corpus/train/data/train-00000-of-00004.parquet" in cached(tmp_path)
    hub.clear_log()
    with rows(SPEC) as stage:
        stage.load_state_dict(state)
        assert next(stage).data["n"] == 35
    assert hub.count(kind="resolve", path="*train-00000*") == 0


def test_a_moved_branch_does_not_move_a_resumed_run(hub: LocalHub, tmp_path: Path) -> None:
    before = uids()
    with rows(SPEC) as stage:
        for _ in range(33):
            next(stage)
        state = stage.state_dict()
    write_parquet(tmp_path / "other" / "data", [[3]])
    hub.push("org/corpus", tmp_path / "other")
    assert len(uids()) == 3
    with rows(SPEC) as stage:
        stage.load_state_dict(state)
        assert [row.data["uid"] for row in stage] == before[33:]


def test_a_state_of_another_revision_than_asked_for_is_an_error(hub: LocalHub, tmp_path: Path) -> None:
    with rows(SPEC) as stage:
        state = stage.state_dict()
    commit = hub.push("org/corpus", {"data/train-0.parquet": (tmp_path / "repo/data/train-00001-of-00004.parquet")})
    with rows(Source(kind="hf", path="org/corpus", revision=commit)) as stage, pytest.raises(Changed, match="revision"):
        stage.load_state_dict(state)


def test_the_commit_is_pinned_in_index_and_state(hub: LocalHub, tmp_path: Path) -> None:
    commit = hub.push("org/corpus", tmp_path / "repo")
    with rows(SPEC) as stage:
        assert stage.state_dict()["revision"] == commit
    files = list((tmp_path / "data" / "hf_index" / "org" / "corpus").glob(f"*{commit}.json"))
    assert len(files) == 1
    assert json.loads(files[0].read_bytes())["revision"] == commit


def test_a_known_index_needs_no_listing(hub: LocalHub) -> None:
    uids()
    hub.clear_log()
    with rows(SPEC):
        pass
    assert hub.count(kind="tree") == 0
    assert hub.count() == 1


def test_ranks_of_one_launch_share_one_listing_and_one_commit(hub: LocalHub, tmp_path: Path) -> None:
    def rank(r: int) -> str:
        env = {"RANK": str(r), "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "job7", "HF_ENDPOINT": hub.endpoint}
        run = Run.here(cache_dir=tmp_path / "data", environ=env)
        return open_index(Source.parse(SPEC), run).listing.revision

    first = rank(0)
    write_parquet(tmp_path / "other" / "data", [[3]])
    hub.push("org/corpus", tmp_path / "other")
    hub.clear_log()
    assert {rank(r) for r in range(1, 4)} == {first}
    assert hub.count() == 0


def test_offline_the_cache_suffices(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_SHARD_CACHE_CLEANUP", "keep")
    wanted = uids()
    hub.clear_log()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert uids() == wanted
    assert hub.count() == 0


def test_offline_without_a_cache_says_so(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Unreachable, match="HF_HUB_OFFLINE"):
        uids()


def test_footers_are_read_by_range_only(hub: LocalHub) -> None:
    open_index(Source.parse(SPEC), Run.here()).complete()
    shards = [r for r in hub.requests if r.kind == "resolve" and r.path.endswith(".parquet")]
    assert len(shards) == 4
    assert all(r.range is not None for r in shards)


@pytest.mark.parametrize("config", ["en", "de"])
def test_configurations_of_a_readme_are_found(hub: LocalHub, tmp_path: Path, config: str) -> None:
    paths = write_parquet(tmp_path / "x", [[3], [4]])
    card = (
        "---\nconfigs:\n- config_name: en\n  data_files: a/*.parquet\n"
        "- config_name: de\n  data_files:\n  - {split: train, path: b/*.parquet}\n---\n"
    )
    hub.push("org/two", {"README.md": card.encode(), "a/0.parquet": paths[0], "b/0.parquet": paths[1]})
    assert len(uids(f"hf:org/two:{config}:train:text")) == {"en": 3, "de": 4}[config]
    with pytest.raises(NotFound, match="several configurations.*en, de"):
        uids("hf:org/two")


def test_a_repo_without_parquet_is_read_from_its_conversion(hub: LocalHub, tmp_path: Path) -> None:
    paths = write_parquet(tmp_path / "x", [[3], [4]])
    hub.push("org/csv", {"train.csv": b"a,b\n1,2\n"})
    converted = {"default/train/0000.parquet": paths[0], "default/train/0001.parquet": paths[1]}
    commit = hub.push("org/csv", converted, branch="refs/convert/parquet")
    with rows("hf:org/csv") as stage:
        assert len(list(stage)) == 7
        state = stage.state_dict()
    assert state["revision"] == f"convert-{commit}"
    with rows("hf:org/csv") as stage:
        stage.load_state_dict(state)
        assert list(stage) == []
    hub.push("org/csv", {"default/train/0000.parquet": paths[0]}, branch="refs/convert/parquet")
    with rows("hf:org/csv", cache_dir=tmp_path / "another node") as stage:
        next(stage)
        assert stage.state_dict()["revision"] != state["revision"]
        stage.load_state_dict({**state, "source": {**state["source"], "c": 0, "k": 0}})
        assert len(list(stage)) == 7


def test_same_names_in_other_folders_of_a_repo_do_not_collide(hub: LocalHub, tmp_path: Path) -> None:
    paths = write_parquet(tmp_path / "x", [[3], [4]])
    hub.push("org/dirs", {"2013/000.parquet": paths[0], "2014/000.parquet": paths[1]})
    with rows("hf:org/dirs") as stage:
        found = [row.address.shard for row in stage]
    assert Counter(found) == {"2013/000.parquet": 3, "2014/000.parquet": 4}


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("hf:org/nothere", NotFound, "org/nothere.*hf auth login"),
        ("hf:org/gated", NotAllowed, "org/gated.*accept"),
        ("hf:org/private", NotFound, "org/private.*hf auth login"),
        ("hf:org/corpus:validation", NotFound, "split 'validation'.*nearest there: data"),
        ("hf:org/corpus:fr:train:text", NotFound, "no configuration 'fr'"),
        ("hf:org/empty", NotFound, "no parquet file for split 'train'"),
    ],
)
def test_what_cannot_be_found_says_what_and_how(
    hub: LocalHub, tmp_path: Path, spec: str, error: type[Exception], said: str
) -> None:
    for name in ("gated", "private"):
        hub.push(f"org/{name}", tmp_path / "repo")
    hub.restrict("org/gated", "gated")
    hub.restrict("org/private", "private")
    hub.push("org/empty", {"README.md": b"# nothing"})
    hub.clear_log()
    with pytest.raises(error, match=f"(?s){said}"):
        uids(spec)
    assert hub.count(kind="api") <= 2


def test_a_token_opens_a_private_repo_and_is_written_nowhere(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("org/private", tmp_path / "repo")
    hub.restrict("org/private", "private")
    monkeypatch.setenv("HF_TOKEN", "hf_local")
    with rows("hf:org/private") as stage:
        next(stage)
        state = stage.state_dict()
        index = pickle.dumps(stage.index.listing)
    assert b"hf_local" not in index
    assert "hf_local" not in json.dumps(state)
    for path in (tmp_path / "data").rglob("*"):
        assert path.is_dir() or b"hf_local" not in path.read_bytes()


def test_a_listing_survives_errors_that_heal(hub: LocalHub) -> None:
    hub.fault("/api/*", 503, nth=[1, 3])
    hub.fault("/api/*/tree/*", RateLimit(1), times=1)
    assert len(uids()) == 125


class NextElsewhere:
    """A `next` link to another host."""

    def __init__(self, url: str) -> None:
        self.url = url

    def acts_on(self, exchange: Exchange) -> bool:
        return "/tree/" in exchange.path

    def act(self, exchange: Exchange) -> None:
        exchange.answer.headers["Link"] = f'<{self.url}>; rel="next"'


def test_a_listing_is_not_followed_to_another_host(hub: LocalHub) -> None:
    with LocalHub() as other:
        hub.fault("/api/*", NextElsewhere(f"{other.endpoint}/api/datasets/org/corpus/tree/main"))
        with pytest.raises(Unreachable, match="goes on at another host"):
            uids()
        assert other.requests == []


def test_an_index_made_for_a_part_is_not_served_to_those_who_want_all(hub: LocalHub, tmp_path: Path) -> None:
    paths = write_parquet(tmp_path / "x", [[3]])
    hub.push("org/part", {"train.csv": b"a"})
    hub.push("org/part", {"default/partial-train/0000.parquet": paths[0]}, branch="refs/convert/parquet")
    assert len(uids(Source(kind="hf", path="org/part", allow_partial=True))) == 3
    with pytest.raises(NotFound, match="allow_partial"):
        uids("hf:org/part")


def test_configurations_and_splits_with_odd_names_do_not_share_an_index(hub: LocalHub, tmp_path: Path) -> None:
    paths = write_parquet(tmp_path / "x", [[3], [4]])
    card = (
        "---\nconfigs:\n- config_name: a--b\n  data_files: [{split: c, path: 0.parquet}]\n"
        "- config_name: a\n  data_files: [{split: b--c, path: 1.parquet}]\n---\n"
    )
    hub.push("org/odd", {"README.md": card.encode(), "0.parquet": paths[0], "1.parquet": paths[1]})
    assert len(uids("hf:org/odd:a--b:c:text")) == 3
    assert len(uids("hf:org/odd:a:b--c:text")) == 4


def test_a_launch_of_the_same_name_later_sees_the_branch_as_it_is_then(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", "HF_ENDPOINT": hub.endpoint}
    run = Run.here(cache_dir=tmp_path / "data", environ=env)
    first = open_index(Source.parse(SPEC), run).listing.revision
    commit = hub.push("org/corpus", {"data/train-0.parquet": tmp_path / "repo/data/train-00001-of-00004.parquet"})
    assert open_index(Source.parse(SPEC), run).listing.revision == first
    monkeypatch.setattr("headrace.catalog.open.LAUNCH_SECONDS", -1)
    assert open_index(Source.parse(SPEC), run).listing.revision == commit


def test_a_resume_plan_uses_the_index_that_is_there(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    uids()
    hub.clear_log()
    resolve_resume_plan(SPEC, 100)
    assert hub.count(kind="resolve") == 0
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve_resume_plan(SPEC, 100)[1] == 15


def test_a_listing_comes_page_by_page(hub: LocalHub, tmp_path: Path) -> None:
    with LocalHub(page_size=2) as small:
        small.push("org/corpus", tmp_path / "repo")
        run = Run.here(environ={"HF_ENDPOINT": small.endpoint, "HEADRACE_CACHE_DIR": str(tmp_path / "d2")})
        assert open_index(Source.parse(SPEC), run).num_rows == 125
        assert small.count(kind="tree") >= 2


@pytest.mark.parametrize("offset", [0, 39, 40, 69, 70, 124])
def test_a_resume_plan_names_the_shard_and_the_row_in_it(hub: LocalHub, offset: int) -> None:
    files, inside, label = resolve_resume_plan(SPEC, offset)
    shard = next(i for i, end in enumerate([40, 70, 85, 125]) if offset < end)
    assert label == f"train-{shard:05d}-of-00004.parquet"
    assert files == [f"data/train-{i:05d}-of-00004.parquet" for i in range(shard, 4)]
    assert inside == offset - [0, 40, 70, 85][shard]
    with hf_load_dataset_sharded("org/corpus", data_files=files, in_shard_offset=inside) as stage:
        assert [row["uid"] for row in stage] == uids()[offset:]


def test_a_resume_plan_at_the_end_is_empty_and_beyond_it_an_error(hub: LocalHub) -> None:
    assert resolve_resume_plan(SPEC, 125) == ([], 0, "")
    with pytest.raises(StateError, match="beyond the 125 rows"):
        resolve_resume_plan(SPEC, 126)
    with pytest.raises(StateError, match="row_offset"):
        resolve_resume_plan(SPEC, -1)


def test_hf_load_dataset_sharded_keeps_the_laws_and_gives_plain_rows(hub: LocalHub) -> None:
    items = check_laws(
        lambda: hf_load_dataset_sharded("org/corpus", split="train"),
        positions=range(0, 126, 25),
        key=lambda row: row["uid"],
    )
    assert items == uids()


def test_shards_can_be_listed_and_fetched_one_ahead_by_hand(hub: LocalHub, tmp_path: Path) -> None:
    shards = list_shards(SPEC)
    with ShardPrefetcher(shards, tmp_path / "data") as prefetch:
        sizes = [prefetch.wait_for(shard).stat().st_size for shard in shards]
        assert len(cached(tmp_path)) <= 2
    assert sizes == [shard.size for shard in shards]
    assert shards[-1].path == "data/train-00003-of-00004.parquet"
    assert [s.path for s in shards[1:3]] == ["data/train-00001-of-00004.parquet", "data/train-00002-of-00004.parquet"]


def test_data_files_that_are_not_the_rest_of_the_listing_are_refused(hub: LocalHub) -> None:
    with pytest.raises(StateError, match="data_files"):
        hf_load_dataset_sharded("org/corpus", data_files=["data/train-00000-of-00004.parquet"])


def test_a_refused_range_says_why_and_the_next_try_goes_on(
    hub: LocalHub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_parquet(tmp_path / "many" / "data", [[50] * 20])
    hub.push("org/many", tmp_path / "many")
    with rows("hf:org/many") as stage:
        refused = hub.fault("*/resolve/*.parquet", 403)
        with pytest.raises(NotAllowed, match="org/many@.*train-00000"):
            next(stage)
        # The whole shard is fetched beside that. Who asks for it while this fails is told so as well.
        wait_until(lambda: "fetching it ahead failed" in caplog.text)
        assert refused.hits == 2
        hub.clear_faults()
        assert len({row.data["uid"] for row in stage}) == 1000
