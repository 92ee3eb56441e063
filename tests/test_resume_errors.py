"""Rows that cannot be made ready, errors of others' code, Ctrl-C: what was given stays given, and nothing is lost."""

from __future__ import annotations

import linecache
import sys
from types import FrameType
from typing import Any

import pytest
from near import Ranks, Whole, key, keys, loader_of, near, packed, prepared, recipe_of, several

from headrace.batch import Batch
from headrace.errors import DataError, HeadraceError
from headrace.make.prepare import Samples

__all__ = ["near"]  # a fixture

pytestmark = pytest.mark.usefixtures("near")

SHAPES = [[[13, 4], [0], [9]], [[17]]]
LENGTHS = ((3, 9, 1, 30, 4), (12, 2))


@pytest.mark.parametrize("fields", [{"epochs": 1, "pack": packed()}, {"epochs": 1, "pack": packed(method="concat")}])
@pytest.mark.parametrize("topology", [(1, 0), (1, 2)])
def test_a_bad_row_is_named_again_and_again_and_nothing_is_lost_when_it_is_mended(
    fields: dict[str, Any], topology: tuple[int, int]
) -> None:
    data = several(SHAPES, LENGTHS)
    recipe = recipe_of(data, batch_size=2, **fields)
    wanted = keys(Ranks(recipe, data, topology).steps())
    for shard, row in [(0, 0), (0, 9), (0, 16), (2, 3), (2, 8)]:
        bad = data[0].row(shard, row)
        good, bad["text"] = bad["text"], "no tokens"
        (loader,) = Ranks(recipe, data, topology).loaders
        found: list[Batch] = []
        batches = iter(loader)
        with pytest.raises(DataError, match=rf"{data[0].spec} epoch 0 shard-{shard}:{row}, column 'text'"):
            found.extend(batches)
        state = loader.state_dict()
        assert keys(found) == wanted[: len(found)]
        with pytest.raises(DataError, match=f"shard-{shard}:{row}"):
            next(batches)
        with pytest.raises(DataError, match=f"shard-{shard}:{row}"):
            next(iter(loader))
        assert loader.state_dict() == state
        other = loader_of(recipe, data, num_workers=topology[1])
        other.load_state_dict(state)
        bad["text"] = good
        assert keys([*found, *loader]) == wanted
        assert keys([*found, *other]) == wanted


class Interrupt:
    """KeyboardInterrupt at the nth line of the code that makes and gives batches, once."""

    def __init__(self, nth: int) -> None:
        self.nth, self.seen, self.fired = nth, 0, False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        ours = "/headrace/" in name and name.endswith(("steps.py", "crew.py", "feed.py", "mixer.py", "pack.py"))
        return self.line if ours and not self.fired else None

    def line(self, frame: FrameType, event: str, arg: Any) -> Any:
        # Python looks for signals where something is called, and these lines call nothing.
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        quiet = text in ("self._is_torn = False", "return batch", "self._is_over = True")
        if event == "line" and not self.fired and not quiet:
            self.seen += 1
            if self.seen == self.nth:
                self.fired = True
                raise KeyboardInterrupt
        return self.line


def test_an_interrupt_at_any_line_loses_and_repeats_nothing() -> None:
    data = several([[[3], [2]]], ((3, 9, 1, 30, 4),))
    recipe = recipe_of(data, batch_size=1, epochs=1, pack=packed(20, method="concat"))
    wanted = keys(list(loader_of(recipe, data, lanes=2)))
    assert len(wanted) == 3
    points = 0
    while True:
        interrupt, loader = Interrupt(points + 1), loader_of(recipe, data, lanes=2)
        found: list[Any] = []
        batches = iter(loader)
        while True:
            sys.settrace(interrupt)
            try:
                batch = next(batches, None)
            except KeyboardInterrupt:
                continue
            finally:
                sys.settrace(None)
            if batch is None:
                break
            found.append(key(batch))
        if not interrupt.fired:
            break
        assert found == wanted, f"line {points + 1}"
        points += 1
    assert points > 300


def test_an_error_of_the_code_that_prepares_keeps_its_kind_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Whole):
        def samples(self, ids: Any) -> Samples:
            if ids[0] == data[0].starts[11]:
                raise ZeroDivisionError("of the user's code")
            return super().samples(ids)

    data = several([[[20]]])
    prepared(monkeypatch, Failing())
    loader = loader_of(recipe_of(data, batch_size=1, epochs=1, shuffle=False, pack=packed(5, method="none")), data)
    found: list[Batch] = []
    with pytest.raises(ZeroDivisionError) as caught:
        found.extend(loader)
    assert not isinstance(caught.value, HeadraceError)
    assert len(found) == 11
    assert any("shard-0:11" in note for note in caught.value.__notes__)
