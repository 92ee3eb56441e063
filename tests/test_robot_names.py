"""A robot data set is the same one wherever its folder lies and however that is spelled; old states keep names."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from robots import NUM_FRAMES, numbers, small_set
from torchdata.stateful_dataloader import StatefulDataLoader

import headrace
from headrace import StreamingLeRobotDataset
from headrace.errors import Changed, HeadraceError
from headrace.testing import LocalHub

GOLDEN = Path(__file__).parent / "trust/golden/robots-0.1.0"
DATE = 1_700_000_000 * 10**9
"""Of all files, when the golden states were made."""
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_set(tmp_path_factory.mktemp("robots") / "set", cameras={})


def stream(place: str | Path, cache: Path, **options: Any) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset(str(place), episode_pool_size=3, cache_dir=cache, **options)


def spellings(folder: Path, tmp_path: Path) -> list[str]:
    """The folder in several spellings, a link to it, and copies of it with other dates."""
    shutil.copytree(folder, tmp_path / "a/set", copy_function=shutil.copyfile)
    shutil.copytree(folder, tmp_path / "b/set", copy_function=shutil.copyfile)
    (tmp_path / "c").mkdir()
    (tmp_path / "c/set").symlink_to(folder)
    near = os.path.relpath(folder)
    plain = [str(folder), f"{folder}/", f"{folder.parent}//./set", near, f"./{near}/", f"file://{folder}"]
    return [*plain, str(tmp_path / "a/set"), f"{tmp_path}/b/set/", str(tmp_path / "c/set")]


def test_the_order_is_the_same_in_all_spellings_and_copies(folder: Path, tmp_path: Path) -> None:
    wanted = numbers(stream(folder, tmp_path / "cache"))
    for place in spellings(folder, tmp_path):
        assert numbers(stream(place, tmp_path / "cache")) == wanted, place


def test_ranks_that_spell_the_folder_differently_see_every_frame_once(folder: Path, tmp_path: Path) -> None:
    places = spellings(folder, tmp_path)
    for first in places:
        for ranks in (2, 3):
            own = [first, *places[-ranks + 1 :]]
            seen = [
                number
                for rank, place in enumerate(own)
                for number in numbers(stream(place, tmp_path / "cache", rank=rank, world_size=ranks))
            ]
            assert sorted(seen) == list(range(NUM_FRAMES)), own


def test_the_spelling_of_a_root_makes_no_difference_to_states_of_ranks(folder: Path, tmp_path: Path) -> None:
    parts, seen = [], []
    for rank, root in enumerate([str(folder), f"{folder}/", f"{folder.parent}//set"]):
        data = StreamingLeRobotDataset("org/robot", root=root, rank=rank, world_size=3, cache_dir=tmp_path / "cache")
        items = iter(data)
        seen += numbers(itertools.islice(items, 4))
        parts.append(data.state_dict())
    rest = StreamingLeRobotDataset("org/robot", root=folder, cache_dir=tmp_path / "cache")
    rest.load_state_dict(headrace.merge_states(parts))
    assert sorted(seen + numbers(rest)) == list(range(NUM_FRAMES))


def test_specs_in_several_spellings_draw_the_same(folder: Path, tmp_path: Path) -> None:
    def drawn(place: str) -> list[int]:
        with headrace.load(f"lerobot:{place}", batch_size=4, cache_dir=tmp_path / "cache") as loader:
            return [number for batch in loader for number in batch["index"].tolist()]

    assert drawn(f"{folder}/") == drawn(str(folder)) == drawn(f"{folder.parent}/.//set")


def test_a_repo_is_named_by_its_id_wherever_it_is_read(
    folder: Path, tmp_path: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("org/robot", folder)
    hub.push("org/robot", folder, branch="refs/tags/v3.0")
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    wanted = numbers(stream("org/robot", tmp_path / "cache"))
    places: list[str | Path] = [folder, f"{folder}/", tmp_path / "nowhere"]
    for root in places:
        assert numbers(stream("org/robot", tmp_path / "cache", root=root)) == wanted


def after(place: Path | str, cache: Path, count: int, **options: Any) -> tuple[dict[str, Any], list[int]]:
    """A state after so many items, and the items that come next."""
    data = stream(place, cache, **options)
    items = iter(data)
    numbers(itertools.islice(items, count))
    state = json.loads(json.dumps(data.state_dict()))
    return state, numbers(items)


@pytest.mark.parametrize("options", [{}, {"episodes": [0, 2, 3, 5]}])
def test_a_run_goes_on_after_its_folder_was_moved_and_touched(
    folder: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    here = Path(shutil.copytree(folder, tmp_path / "set"))
    state, rest = after(here, tmp_path / "cache", 9, **options)
    moved = shutil.move(here, tmp_path / "elsewhere")
    for path in Path(moved).rglob("*.parquet"):
        path.touch()
    data = stream(moved, tmp_path / "cache", **options)
    data.load_state_dict(state)
    assert numbers(data) == rest
    with stream(moved, tmp_path / "cache", **options).loader(1) as loader:
        loader.load_state_dict(state)
        assert [int(batch["index"]) for batch in loader] == rest


def another_length(folder: Path) -> None:
    shutil.rmtree(folder)
    small_set(folder, cameras={}, episodes=(8, 11, 5, 9, 11, 6))


def other_statistics(folder: Path) -> None:
    path = folder / "meta/stats.json"
    text = path.read_text()
    place = text.index("0.", text.index('"mean"')) + 2
    path.write_text(f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}")


def longer_data(folder: Path) -> None:
    path = folder / "data/chunk-000/file-001.parquet"
    path.write_bytes(path.read_bytes()[:4] + b"\0" + path.read_bytes()[4:])


@pytest.mark.parametrize("change", [another_length, other_statistics, longer_data])
def test_a_folder_that_holds_something_else_is_refused(
    folder: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    here = Path(shutil.copytree(folder, tmp_path / "set"))
    state, _ = after(here, tmp_path / "cache", 9)
    pinned = stream(here, tmp_path / "cache").pinned
    change(here)
    with pytest.raises(Changed, match="revision"):
        stream(here, tmp_path / "cache", revision=pinned)
    data = stream(here, tmp_path / "cache")
    data.load_state_dict(state)
    with pytest.raises(HeadraceError, match="revision"):
        next(iter(data))


# --- states of version 0.1.0, which named folders as they were spelled


@pytest.fixture
def before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The states, in a folder that holds their data set as `set`."""
    shutil.copytree(GOLDEN / "set", tmp_path / "set")
    for path in (tmp_path / "set").rglob("*"):
        os.utime(path, ns=(DATE, DATE))
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = json.loads((GOLDEN / "states.json").read_text())
    return found


CASES = [("set", None), ("set/", None), ("org/robot", "set"), ("org/robot", "set/")]


@pytest.mark.parametrize(("repo_id", "root"), CASES)
def test_old_states_go_on(before: dict[str, Any], tmp_path: Path, repo_id: str, root: str | None) -> None:
    states = before[f"{repo_id}|{root or ''}"]
    data = stream(repo_id, tmp_path / "cache", root=root)
    data.load_state_dict(states["items"]["state"])
    assert numbers(data) == states["items"]["rest"]
    assert sorted(numbers(data)) == list(range(NUM_FRAMES))
    with stream(repo_id, tmp_path / "cache", root=root).loader(4) as loader:
        loader.load_state_dict(states["loader"]["state"])
        assert [n for batch in loader for n in batch["index"].tolist()] == states["loader"]["rest"]


@pytest.mark.parametrize(("repo_id", "root"), CASES)
def test_old_states_of_workers_go_on(before: dict[str, Any], tmp_path: Path, repo_id: str, root: str | None) -> None:
    states = before[f"{repo_id}|{root or ''}"]["stateful"]
    data = stream(repo_id, tmp_path / "cache", root=root)
    loader = StatefulDataLoader(data, batch_size=4, num_workers=2)
    loader.load_state_dict(states["state"])
    assert [n for batch in loader for n in batch["index"].tolist()] == states["rest"]


@pytest.mark.parametrize("spelling", ["set", "set/"])
def test_old_states_of_specs_go_on(before: dict[str, Any], tmp_path: Path, spelling: str) -> None:
    states = before[f"{spelling}|"]["load"]
    with headrace.load(f"lerobot:{spelling}", batch_size=4, cache_dir=tmp_path / "cache") as loader:
        loader.load_state_dict(states["state"])
        assert [n for batch in loader for n in batch["index"].tolist()] == states["rest"]


def test_an_old_state_goes_on_in_another_folder(before: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "set").rename(tmp_path / "moved")
    data = stream(tmp_path / "moved", tmp_path / "cache")
    data.load_state_dict(before["set|"]["items"]["state"])
    assert numbers(data) == before["set|"]["items"]["rest"]


def test_an_old_state_of_data_that_was_touched_is_refused_as_before(before: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "set/data/chunk-000/file-001.parquet").touch()
    data = stream("set", tmp_path / "cache")
    data.load_state_dict(before["set|"]["items"]["state"])
    with pytest.raises(Changed, match="its files are not those the state was made on"):
        next(iter(data))
