"""Wrappers of other libraries: none splits our data a second time, and none makes a state that skips a batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate.utils import concatenate
from robots import small_set
from serving import UIDS, loader_of, seen, uids_in, write_rows
from streaming import World
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from wrapped_ranks import Around

import headrace
from headrace.errors import SpecError, StateError
from headrace.serve.loader import Loader

LIMIT = 3000

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata still calls it


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wrapped")


@pytest.fixture(scope="module")
def pattern(folder: Path) -> str:
    return write_rows(folder)


@pytest.fixture(scope="module")
def ranks(folder: Path, pattern: str) -> dict[str, list[Any]]:
    """What two ranks saw, scene by scene."""
    given = {
        "robots": str(small_set(folder / "robots")),
        "world": str(folder / "world"),
        "cache": str(folder / "cache"),
        "pattern": pattern,
        "states": str(folder / "states.json"),
        "limit": LIMIT,
    }
    (folder / "states.json").write_text(json.dumps(_limited_states(pattern, folder)))
    told = folder / "given.json"
    told.write_text(json.dumps(given))
    here = Path(__file__).parent
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = subprocess.Popen(
        [*launch, str(here / "wrapped_ranks.py"), str(told), str(folder)],
        env={
            **os.environ,
            "ACCELERATE_USE_CPU": "true",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(here), *sys.path]),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, said = run.communicate(timeout=240)
    finally:
        run.terminate()  # it ends its ranks then
        run.communicate()
    assert run.returncode == 0, said[-5000:]
    scenes = ("refused", "passed_on", "split_once", "limits")
    return {name: [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)] for name in scenes}


def _limited_states(pattern: str, folder: Path) -> dict[str, Any]:
    """After one and three micro-batches, which two ranks do not divide."""
    part = headrace.Part(source=headrace.Source.parse(f"parquet:{pattern}:ids"), tokens=LIMIT)
    recipe = headrace.Recipe.of([part], batch_size=2, epochs=1, pack=headrace.Pack(seq_len=48))
    found = {}
    with headrace.load(recipe, cache_dir=folder / "cache", lanes=4) as loader:
        for number, _ in enumerate(loader, 1):
            found[str(number)] = loader.state_dict()
            if number == 3:
                break
    return found


# --- split twice


def test_data_that_ranks_share_already_is_not_split_again_by_accelerate(ranks: dict[str, list[Any]]) -> None:
    for rank in ranks["refused"]:
        assert len(rank) == 6 + 6 + 4 + 2 + 4 + 1
        for case, said in rank.items():
            assert said.startswith("SpecError: Accelerate's "), f"{case}: {said!r}"
            assert "over 2 processes, and it gives each of 2 ranks its own part already" in said, case
            assert "leave it out of accelerator.prepare(...)" in said, case


def test_a_loader_goes_through_prepare_as_it_is_and_gives_every_row_once(ranks: dict[str, list[Any]]) -> None:
    assert all(rank["same"] for rank in ranks["passed_on"])
    assert sorted(uid for rank in ranks["passed_on"] for uid in rank["uids"]) == UIDS
    assert all("gives each rank its own batches already" in rank["said"] for rank in ranks["passed_on"])


def test_data_that_is_not_shared_by_ranks_may_be_split_by_accelerate(ranks: dict[str, list[Any]]) -> None:
    found = [index for rank in ranks["split_once"] for batch in rank["index"] for index in batch]
    assert all(not rank["said"] for rank in ranks["split_once"])
    assert len(found) == len(set(found)) == 48, "six batches of eight frames, of the fifty that there are"


def test_a_token_limit_of_real_ranks_holds_when_their_lanes_change(ranks: dict[str, list[Any]]) -> None:
    for number in ("1", "3"):
        found = sum(rank[number] for rank in ranks["limits"])
        assert 0 < found <= LIMIT - 48 * int(number), "what the first leg gave counts"


def test_batches_are_skipped_by_accelerate_as_by_a_state(pattern: str) -> None:
    with loader_of("rows", pattern, lanes=1) as loader:
        whole = [batch["uid"] for batch in loader]
    with loader_of("rows", pattern, lanes=1) as loader:
        later = skip_first_batches(DataLoader(loader.dataset, batch_size=None), 3)
        assert [batch["uid"] for batch in later] == whole[3:]
        with pytest.raises(SpecError, match="batches_consumed"):
            skip_first_batches(loader, 3)


# --- read ahead


@pytest.fixture
def endless(pattern: str) -> Iterator[Loader]:
    with loader_of("endless", pattern, lanes=2, steps_per_epoch=None) as loader:
        yield loader


def prepared_by_accelerate(loader: Loader, dispatch: bool) -> Any:
    how = DataLoaderConfiguration(dispatch_batches=dispatch)
    return Accelerator(cpu=True, dataloader_config=how).prepare(DataLoader(Around(loader), batch_size=None))


def needs_dispatch_of_bools() -> None:
    """Accelerate hands batches from rank to rank; older versions stop at `use_cache`, which is no tensor."""
    try:
        concatenate([{"use_cache": False}])
    except TypeError:
        pytest.skip(f"Accelerate {accelerate.__version__} cannot dispatch values that are no tensors, and says so")


@pytest.mark.parametrize("dispatch", [False, True])
def test_under_accelerate_plain_states_are_refused_and_at_gives_the_right_one(
    pattern: str, endless: Loader, dispatch: bool
) -> None:
    if dispatch:
        needs_dispatch_of_bools()
    prepared = prepared_by_accelerate(endless, dispatch)
    name = "DataLoaderDispatcher" if dispatch else "DataLoaderShard"
    assert endless.state_dict()["m"] == 0, "nothing was given yet"
    seen: list[Any] = []
    for batch in prepared:
        seen.append(batch["input_ids"])
        with pytest.raises(StateError, match=rf"Accelerate's {name} reads 1 batch ahead.*at={len(seen)}\)"):
            endless.state_dict()
        state = endless.state_dict(at=len(seen))
        assert dispatch or batch.m + 1 == len(seen)
        if len(seen) == 5:
            break
    with pytest.raises(StateError, match="reads 1 batch ahead"):
        endless.state_dict()
    with (
        loader_of("endless", pattern, lanes=2, steps_per_epoch=None) as whole,
        loader_of("endless", pattern) as resumed,
    ):
        wanted = [next(steps) for steps in [iter(whole)] for _ in range(7)]
        assert all(torch.equal(one, two["input_ids"]) for one, two in zip(seen, wanted, strict=False))
        resumed.load_state_dict(state)
        assert torch.equal(next(iter(resumed))["input_ids"], wanted[5]["input_ids"])
    again = next(iter(endless))
    assert torch.equal(again["input_ids"], wanted[5]["input_ids"]), "what was read ahead and not given comes again"
    assert endless.state_dict()["m"] == 6, "a plain loop does not read ahead"


def test_a_wrapped_epoch_that_ends_leaves_an_exact_state(pattern: str) -> None:
    with loader_of("rows", pattern, lanes=2) as loader:
        prepared = prepared_by_accelerate(loader, dispatch=False)
        assert sorted(uids_in(prepared)) == UIDS
        assert loader.state_dict()["epoch"] == 1
        assert sorted(uids_in(prepared)) == UIDS


def test_a_plain_loop_and_a_plain_data_loader_read_nothing_ahead(pattern: str, endless: Loader) -> None:
    for number, _ in enumerate(DataLoader(Around(endless), batch_size=None), 1):
        assert endless.state_dict()["m"] == number
        if number == 4:
            break


class Saving:
    """A Lightning module that asks for a state at each step."""

    def __new__(cls, loader: Any, at: bool | None, column: str = "input_ids") -> Any:
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(1, 1)
                self.said: list[str] = []
                self.states: list[Any] = []
                self.seen: list[Any] = []

            def training_step(self, batch: Any, number: int) -> Any:
                self.seen.append(batch[column].clone())
                try:
                    asked = {} if at is None else {"at": batch.m + 1 if at else None}
                    self.states.append(loader.state_dict(**asked))
                except StateError as error:
                    self.said.append(str(error))
                return self.layer(torch.ones(1, 1)).sum()

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        return Module()


def trainer(folder: Path, **options: Any) -> Any:
    import lightning

    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        accelerator="cpu", devices=1, default_root_dir=folder, **quiet, **{"enable_checkpointing": False, **options}
    )


LIGHTNING = pytest.mark.filterwarnings("ignore")  # its own, of workers and of what it will change


@LIGHTNING
def test_under_lightning_without_a_length_plain_states_are_refused(
    pattern: str, endless: Loader, tmp_path: Path
) -> None:
    module = Saving(endless, at=False)
    trainer(tmp_path, max_steps=4).fit(module, endless)
    assert len(module.said) == 4
    assert "Lightning's _PrefetchDataFetcher reads 1 batch ahead" in module.said[0]
    assert "state_dict(at=m)" in module.said[0]
    assert "with steps_per_epoch= Lightning knows the length" in module.said[0]


@LIGHTNING
def test_under_lightning_a_state_at_the_trained_batch_loses_nothing(
    pattern: str, endless: Loader, tmp_path: Path
) -> None:
    module = Saving(endless, at=True)
    trainer(tmp_path, max_steps=4).fit(module, endless)
    assert not module.said
    with loader_of("endless", pattern, lanes=2, steps_per_epoch=None) as whole:
        wanted = [next(steps)["input_ids"] for steps in [iter(whole)] for _ in range(8)]
    assert all(torch.equal(one, two) for one, two in zip(module.seen, wanted, strict=False))
    for number, state in enumerate(module.states, 1):
        with loader_of("endless", pattern, steps_per_epoch=None) as resumed:
            resumed.load_state_dict(state)
            assert torch.equal(next(iter(resumed))["input_ids"], wanted[number])


@LIGHTNING
def test_lightning_epochs_of_an_endless_loader_lose_no_batch_between_them(
    pattern: str, endless: Loader, tmp_path: Path
) -> None:
    module = Saving(endless, at=True)
    trainer(tmp_path, max_epochs=3, limit_train_batches=3).fit(module, endless)
    with loader_of("endless", pattern, lanes=2, steps_per_epoch=None) as whole:
        wanted = [next(steps)["input_ids"] for steps in [iter(whole)] for _ in range(9)]
    assert len(module.seen) == 9
    assert all(torch.equal(one, two) for one, two in zip(module.seen, wanted, strict=True))


@LIGHTNING
def test_under_lightning_with_a_length_plain_states_are_exact_and_its_checkpoints_have_them(
    pattern: str, tmp_path: Path
) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    with loader_of("endless", pattern, lanes=2, steps_per_epoch=6) as loader:
        module = Saving(loader, at=False)
        save = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=2, save_top_k=-1)
        trainer(tmp_path, max_steps=5, callbacks=[save], enable_checkpointing=True).fit(module, loader)
        assert not module.said
        assert [state["m"] for state in module.states] == [1, 2, 3, 4, 5]
    checkpoint = torch.load(tmp_path / "step=4.ckpt", weights_only=False)
    assert checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"][0]["m"] == 4


# --- data sets of ours in a DataLoader, under such wrappers


def accelerated(data: Any, **options: Any) -> Any:
    how = DataLoaderConfiguration(dispatch_batches=False, use_stateful_dataloader=options.pop("stateful", False))
    return Accelerator(cpu=True, dataloader_config=how).prepare(DataLoader(data, **options))


@pytest.fixture(scope="module")
def robots(folder: Path) -> Path:
    return folder / "few" if (folder / "few").exists() else small_set(folder / "few", cameras={})


def robot(robots: Path, folder: Path) -> headrace.StreamingLeRobotDataset:
    return headrace.StreamingLeRobotDataset("org/robot", root=robots, cache_dir=folder / "cache")


def test_a_robot_data_set_under_accelerate_refuses_a_state_and_a_count_of_batches_resumes(
    robots: Path, folder: Path
) -> None:
    data, found = robot(robots, folder), []
    for batch in accelerated(data, batch_size=4):
        found += batch["index"].tolist()
        with pytest.raises(StateError, match=r"Accelerate's DataLoaderShard reads 1 batch ahead.*batches_consumed"):
            data.state_dict()
        if len(found) == 20:
            break
    with pytest.raises(StateError, match="reads 1 batch ahead"):
        data.state_dict()
    again = robot(robots, folder)
    again.load_state_dict({"batches_consumed": 5, "batch_size": 4})
    found += [int(item["index"]) for item in again]
    assert sorted(found) == list(range(data.num_frames))


def test_a_whole_epoch_of_frames_under_accelerate_leaves_an_exact_state(robots: Path, folder: Path) -> None:
    data = robot(robots, folder)
    prepared = accelerated(data, batch_size=4)
    assert sorted(i for batch in prepared for i in batch["index"].tolist()) == list(range(data.num_frames))
    again = robot(robots, folder)
    again.load_state_dict(data.state_dict())
    assert [int(item["index"]) for item in again] == [i for batch in prepared for i in batch["index"].tolist()]
    plain = iter(DataLoader(data, batch_size=4))
    next(plain)
    assert data.state_dict()["m"] == 4, "a plain loop does not read ahead"


@LIGHTNING
def test_a_robot_data_set_under_lightning_refuses_a_state(robots: Path, folder: Path, tmp_path: Path) -> None:
    data = robot(robots, folder)
    module = Saving(data, at=None, column="index")
    trainer(tmp_path, max_steps=4).fit(module, DataLoader(data, batch_size=4))
    assert len(module.said) == 4
    assert "Lightning's _PrefetchDataFetcher reads 1 batch ahead" in module.said[0]


@pytest.mark.parametrize("kind", ["rows", "endless"])
def test_a_loaders_dataset_under_accelerate_refuses_a_state_and_a_count_of_batches_resumes(
    pattern: str, kind: str
) -> None:
    options: dict[str, Any] = {"lanes": 2, "steps_per_epoch": None}
    wanted = [seen(batch) for _, batch in zip(range(12), loader_of(kind, pattern, **options), strict=False)]
    dataset = loader_of(kind, pattern, **options).dataset
    for number, batch in enumerate(accelerated(dataset, batch_size=None), 1):
        assert seen(batch) == wanted[number - 1]
        with pytest.raises(StateError, match=r"Accelerate's DataLoaderShard reads 1 batch ahead.*batches_consumed"):
            dataset.state_dict()
        if number == 5:
            break
    loader = loader_of(kind, pattern, **options)
    loader.load_state_dict({"batches_consumed": 5, "batch_size": 5 if kind == "rows" else 2})
    rest = zip(range(7), loader.dataset, strict=False)
    assert [seen(batch) for _, batch in rest] == wanted[5:]


def test_a_loop_over_an_endless_dataset_that_is_left_under_accelerate_loses_no_batch(pattern: str) -> None:
    options: dict[str, Any] = {"lanes": 2, "steps_per_epoch": None}
    wanted = [seen(batch) for _, batch in zip(range(12), loader_of("endless", pattern, **options), strict=False)]
    prepared, found = accelerated(loader_of("endless", pattern, **options).dataset, batch_size=None), []
    for steps in (5, 1, 6):
        for number, batch in enumerate(prepared, 1):
            found.append(seen(batch))
            if number == steps:
                break
    assert found == wanted


@pytest.mark.parametrize("num_workers", [0, 2])
def test_accelerates_stateful_loaders_keep_their_exact_state(pattern: str, num_workers: int) -> None:
    """They ask before they read ahead."""
    whole = [seen(batch) for batch in DataLoader(loader_of("rows", pattern).dataset, None, num_workers=num_workers)]
    options: dict[str, Any] = {"batch_size": None, "num_workers": num_workers, "stateful": True}
    prepared = accelerated(loader_of("rows", pattern).dataset, **options)
    for number, batch in enumerate(prepared, 1):
        assert seen(batch) == whole[number - 1]
        if number == 7:
            state = prepared.state_dict()
            break
    again = StatefulDataLoader(loader_of("rows", pattern).dataset, batch_size=None, num_workers=num_workers)
    again.load_state_dict(state)
    assert [seen(batch) for batch in again] == whole[7:]


def test_samples_under_accelerate_refuse_a_state_and_a_loop_after_one_that_was_left(tmp_path: Path) -> None:
    data = World(tmp_path).make(["code"], max_per_epoch=None, max_per_dataset=None, sample_repeat=1)
    prepared = accelerated(data, batch_size=None)
    for number, _ in enumerate(prepared, 1):
        if number == 3:
            break
    asks: list[Any] = [
        lambda: data._streaming_state,
        lambda: data._save_streaming_state(tmp_path / "state.json"),
        lambda: data.loader(1),
        lambda: next(iter(data)),
    ]
    for ask in asks:
        with pytest.raises(StateError, match=r"DataLoaderShard reads 1 batch ahead.*make the dataset again"):
            ask()
    assert not (tmp_path / "state.json").exists()


def test_a_whole_epoch_of_samples_under_accelerate_leaves_an_exact_state(tmp_path: Path) -> None:
    world = World(tmp_path)
    data = world.make(["code"], max_per_epoch=None, max_per_dataset=None, sample_repeat=1)
    assert len(list(accelerated(data, batch_size=None))) == 7
    assert data._streaming_state["epoch"] == 1
    samples = iter(data)
    next(samples)
    assert data._streaming_state["unique_samples"] == 1, "a plain loop does not read ahead"
