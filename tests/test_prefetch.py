"""The prefetcher: the next shard comes while the current one is read, errors arrive, and it always ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import pytest
from fetching import leftovers, noise, shards_on, wait_until

from headrace.catalog.shard import Shard
from headrace.errors import NotFound, SpecError, Stalled, Unreachable
from headrace.fetch import prefetch as module
from headrace.fetch.cache import ShardCache
from headrace.fetch.prefetch import ShardPrefetcher
from headrace.testing.hub import Delay, LocalHub, StallAfter, Status

N = 50_000
NAMES = [f"train-{n:05}.parquet" for n in range(5)]


pytestmark = [pytest.mark.timed, pytest.mark.usefixtures("quick")]


@pytest.fixture
def shards(hub: LocalHub) -> list[Shard]:
    return shards_on(hub, {name: noise(N, seed) for seed, name in enumerate(NAMES)})


def on_disk(root: Path) -> list[int]:
    """The numbers of the shards that lie there."""
    return sorted(int(path.name[6:11]) for path in root.rglob("train-*.parquet"))


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headrace-prefetch"]


class TestOrder:
    def test_the_loop_of_the_readme_reads_everything_with_two_shards_on_disk(
        self, shards: list[Shard], tmp_path: Path
    ) -> None:
        most = 0
        with ShardPrefetcher(shards, tmp_path) as prefetch:
            for n, shard in enumerate(shards):
                assert prefetch.wait_for(shard).read_bytes() == noise(N, n)
                if n + 1 < len(shards):
                    wait_until(lambda: on_disk(tmp_path) == [n, n + 1])  # noqa: B023
                most = max(most, len(on_disk(tmp_path)))
        assert most == 2
        assert on_disk(tmp_path) == [4]
        assert leftovers(tmp_path) == []

    def test_the_next_shard_comes_while_the_current_one_is_read(
        self, hub: LocalHub, shards: list[Shard], tmp_path: Path
    ) -> None:
        with ShardPrefetcher(shards, tmp_path) as prefetch:
            prefetch.wait_for(shards[0])
            wait_until(lambda: prefetch.poll(shards[1]))
            hub.fault("*", Status(500))
            assert prefetch.wait_for(shards[1]).exists()
            assert prefetch.poll(shards[3]) is None

    def test_lookahead_is_how_far_it_goes(self, hub: LocalHub, shards: list[Shard], tmp_path: Path) -> None:
        for lookahead, expected in [(0, [0]), (3, [0, 1, 2, 3])]:
            with ShardPrefetcher(shards, tmp_path / str(lookahead), lookahead=lookahead) as prefetch:
                prefetch.wait_for(shards[0])
                wait_until(lambda: on_disk(tmp_path / str(lookahead)) == expected)  # noqa: B023
                time.sleep(0.05)
                assert on_disk(tmp_path / str(lookahead)) == expected
        with pytest.raises(SpecError):
            ShardPrefetcher(shards, tmp_path, lookahead=-1)

    def test_keep_keeps_all(self, shards: list[Shard], tmp_path: Path) -> None:
        with ShardPrefetcher(shards, tmp_path, cleanup="keep") as prefetch:
            for shard in shards:
                prefetch.wait_for(shard)
        assert on_disk(tmp_path) == [0, 1, 2, 3, 4]

    def test_a_jump_is_served_at_once_while_another_download_stalls(
        self, hub: LocalHub, shards: list[Shard], tmp_path: Path
    ) -> None:
        with ShardPrefetcher(shards, tmp_path) as prefetch:
            fault = hub.fault("*-00001.parquet", StallAfter(100))
            prefetch.wait_for(shards[0])
            wait_until(lambda: fault.hits)
            began = time.monotonic()
            assert prefetch.wait_for(shards[4]).read_bytes() == noise(N, 4)
            assert time.monotonic() - began < 1
            assert prefetch.wait_for(shards[2]).read_bytes() == noise(N, 2)
            wait_until(lambda: on_disk(tmp_path) == [2, 3])
            wait_until(lambda: not list(tmp_path.rglob("*.part")))

    def test_without_auto_release_shards_stay_until_they_are_released(
        self, shards: list[Shard], tmp_path: Path
    ) -> None:
        with ShardPrefetcher(shards, tmp_path, lookahead=0, auto_release=False) as prefetch:
            for shard in shards[:3]:
                prefetch.wait_for(shard)
            assert on_disk(tmp_path) == [0, 1, 2]
            prefetch.release(shards[0])
            prefetch.release(shards[1], keep=True)
            prefetch.release(shards[4])
            assert on_disk(tmp_path) == [1, 2]
            prefetch.want(shards[3])
            wait_until(lambda: prefetch.poll(shards[3]))

    def test_a_released_download_is_given_up(self, hub: LocalHub, shards: list[Shard], tmp_path: Path) -> None:
        with ShardPrefetcher(shards, tmp_path, lookahead=0, auto_release=False) as prefetch:
            fault = hub.fault("*-00001.parquet", StallAfter(100))
            prefetch.want(shards[1])
            wait_until(lambda: fault.hits)
            prefetch.release(shards[1])
            wait_until(lambda: not list(tmp_path.rglob("*.part")))
            hub.clear_faults()
            prefetch.want(shards[1])
            wait_until(lambda: prefetch.poll(shards[1]))

    def test_two_prefetchers_share_files_and_neither_removes_the_others(
        self, hub: LocalHub, shards: list[Shard], tmp_path: Path
    ) -> None:
        cache = ShardCache(tmp_path)
        slow, fast = (ShardPrefetcher(shards, tmp_path, cache=cache) for _ in range(2))
        with slow, fast:
            path = slow.wait_for(shards[0])
            for shard in shards:
                fast.wait_for(shard)
            assert path.read_bytes() == noise(N, 0)

    def test_twenty_five_thousand_shards_are_neither_copied_nor_searched(
        self, hub: LocalHub, shards: list[Shard], tmp_path: Path
    ) -> None:
        class Long(Sequence[Shard]):
            asked = 0

            @overload
            def __getitem__(self, n: int) -> Shard: ...
            @overload
            def __getitem__(self, n: slice) -> Sequence[Shard]: ...
            def __getitem__(self, n: int | slice) -> Shard | Sequence[Shard]:
                assert isinstance(n, int)
                self.asked += 1
                return shards[n] if n < 5 else Shard(f"x{n}", 1, "", shards[0].origin)

            def __len__(self) -> int:
                return 25_000

        long = Long()
        with ShardPrefetcher(long, tmp_path) as prefetch:
            for shard in shards[:4]:
                prefetch.wait_for(shard)
            assert long.asked < 40

    def test_a_shard_that_is_not_in_the_list_is_fetched_too(self, shards: list[Shard], tmp_path: Path) -> None:
        with ShardPrefetcher(shards[:2], tmp_path) as prefetch:
            assert prefetch.wait_for(shards[3]).read_bytes() == noise(N, 3)
        with ShardPrefetcher([], tmp_path) as prefetch:
            assert prefetch.wait_for(shards[3]).exists()


class TestErrors:
    def test_an_error_names_the_shard_and_is_raised_once(
        self, hub: LocalHub, shards: list[Shard], tmp_path: Path
    ) -> None:
        with ShardPrefetcher(shards, tmp_path) as prefetch:
            hub.fault("*-00000.parquet", Status(404))
            with pytest.raises(NotFound, match=r"me/rows@.*/train-00000\.parquet"):
                prefetch.wait_for(shards[0])
            hub.clear_faults()
            assert prefetch.wait_for(shards[0]).exists()

    def test_a_failed_prefetch_is_tried_again_when_it_is_asked_for(
        self, hub: LocalHub, shards: list[Shard], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with ShardPrefetcher(shards, tmp_path) as prefetch:
            hub.fault("*-00001.parquet", Status(404), nth=1)
            prefetch.wait_for(shards[0])
            wait_until(lambda: "fetching it ahead failed" in caplog.text)
            assert prefetch.wait_for(shards[1]).read_bytes() == noise(N, 1)

    def test_a_prefetch_that_fails_while_it_is_waited_for_is_raised(
        self, hub: LocalHub, shards: list[Shard], tmp_path: Path
    ) -> None:
        with ShardPrefetcher(shards, tmp_path) as prefetch:
            fault = hub.fault("*-00001.parquet", Delay(0.3))
            hub.fault("*-00001.parquet", Status(500))
            prefetch.wait_for(shards[0])
            wait_until(lambda: fault.hits)
            with pytest.raises(Unreachable, match=r"train-00001\.parquet.*500"):
                prefetch.wait_for(shards[1])
            assert fault.hits == 4

    def test_any_exception_arrives_with_the_shard_named(self, shards: list[Shard], tmp_path: Path) -> None:
        class Broken(ShardCache):
            def acquire(self, shard: Shard, stop: Any = None) -> Any:
                raise MemoryError("no more")

        with ShardPrefetcher(shards, tmp_path, cache=Broken(tmp_path)) as prefetch:
            for _ in range(2):
                with pytest.raises(MemoryError) as caught:
                    prefetch.wait_for(shards[0])
                assert str(shards[0]) in "".join(caught.value.__notes__)

    def test_a_background_download_that_shows_no_life_is_an_error(
        self, shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "PATIENCE_SECONDS", -30.0)
        let_go = threading.Event()

        class Hung(ShardCache):
            def acquire(self, shard: Shard, stop: Any = None) -> Any:
                let_go.wait(10)
                raise NotFound("late")

        with ShardPrefetcher(shards, tmp_path, cache=Hung(tmp_path)) as prefetch:
            wait_until(lambda: threads() and prefetch._desk._jobs)
            with pytest.raises(Stalled, match=r"train-00000\.parquet: .*no sign of life"):
                prefetch.wait_for(shards[0])
            let_go.set()

    def test_without_a_thread_to_be_had_shards_still_come(
        self, shards: list[Shard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            prefetch = ShardPrefetcher(shards, tmp_path)
            prefetch.start()
        assert "no background thread" in caplog.text
        assert prefetch.wait_for(shards[0]).exists()
        prefetch.close()
