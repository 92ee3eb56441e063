"""The row offsets for people in a state that was joined from the parts of ranks are those of the whole."""

from __future__ import annotations

from typing import Any

import pytest
from golden import near_workers
from near import Ranks, loader_of, packed, part, recipe_of, several, through_json

from headrace import merge_states
from headrace.fetch.plan import Coordinate
from headrace.recipe import Mix

SHAPES = [[[9, 4], [8], [0], [12, 3]], [[2, 3]]]
MANY_SHARDS = [[[2, 1]] * 12, [[1], [2]] * 10]
"""Where rows are not counted, lanes are cut between shards, and each has some."""
LENGTHS = ((3, 9, 1, 30, 4), (12, 2))

CASES: dict[str, dict[str, Any]] = {
    "rows": {},
    "rows in file order": {"shuffle": False},
    "rows without end": {"mix": Mix(stop="loop")},
    "in file order without end": {"shuffle": False, "mix": Mix(stop="loop")},
    "packed": {"pack": packed(16, slack=1), "epochs": 1},
    "packed in file order": {"pack": packed(16, slack=1), "epochs": 1, "shuffle": False},
    "packed in file order without end": {"pack": packed(16, slack=1), "shuffle": False},
    "packed without end": {"pack": packed(16, slack=1)},
}


@pytest.mark.parametrize(("coordinate", "limit"), [("rows", None), ("rows", 20), ("windows", None)])
@pytest.mark.parametrize("case", CASES)
def test_parts_of_ranks_add_up_to_what_one_process_says(case: str, coordinate: Coordinate, limit: int | None) -> None:
    """Before and after the lanes were dealt anew, and where they are in different passes."""
    data = several(SHAPES if coordinate == "rows" else MANY_SHARDS, LENGTHS, coordinate)
    recipe = recipe_of(data, batch_size=2, parts=[part(data[0], limit=limit), part(data[1])], **CASES[case])
    with near_workers():
        run, state = Ranks(recipe, data, (2, 1)), None
        for topology in ((2, 1), (3, 2), (2, 0)):
            run = Ranks(recipe, data, topology, state)
            for _ in range(4):
                state = run.state()
                one = loader_of(recipe, data)
                one.load_state_dict(state)
                whole = through_json(one.state_dict())
                assert all(0 <= e["row_offset"] <= 36 for e in whole["resume_state"]["datasets"])
                assert state["resume_state"] == whole["resume_state"]
                assert merge_states([whole])["resume_state"] == whole["resume_state"]
                if limit:
                    assert whole["resume_state"]["datasets"][0]["row_offset"] <= limit
                if not run.step():
                    break
            run.close()
