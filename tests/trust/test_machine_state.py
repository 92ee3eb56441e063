"""A whole run with all its ranks, stopped, resumed, refused and dealt to other topologies in any order."""

from __future__ import annotations

import json
from typing import Any

import machines
import pytest
from golden import near_workers
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from near import Ledger, Ranks, keys, packed, part, recipe_of, several
from states import edited

from headrace.errors import HeadraceError
from headrace.recipe import Mix
from headrace.stage import State

EXAMPLES = 350

shapes = st.lists(st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=3), min_size=1, max_size=3)
topologies = st.tuples(st.integers(1, 4), st.integers(0, 3))
LENGTHS = ((3, 9, 1, 30, 0, 4), (12, 2), (1, 40, 5))

SPOILED: list[Any] = [
    lambda state, lanes, facts: state.update(m=-1),
    lambda state, lanes, facts: state.update(format=9),
    lambda state, lanes, facts: lanes[0]["src"][0].update(c=1 << 50),
    lambda state, lanes, facts: lanes[-1]["src"][-1].update(s=[[1 << 40, 1]]),
    lambda state, lanes, facts: facts[0].update(revision="moved"),
    lambda state, lanes, facts: lanes.pop(),
]


class Run(RuleBasedStateMachine):
    @initialize(
        shape=shapes,
        topology=topologies,
        fields=st.sampled_from(
            [
                {},
                {"mix": Mix(order="round_robin")},
                {"pack": packed(16, slack=1), "epochs": 1},
                {"pack": packed(12, method="concat", overlap=2), "epochs": 1, "mix": Mix(by="tokens")},
            ]
        ),
        shuffle=st.booleans(),
        batch=st.integers(1, 4),
        seed=st.integers(0, 3),
    )
    def begin(
        self,
        shape: list[list[list[int]]],
        topology: tuple[int, int],
        fields: dict[str, Any],
        shuffle: bool,
        batch: int,
        seed: int,
    ) -> None:
        self.data = several(shape, LENGTHS)
        odd = 0 if fields.get("mix") == Mix(order="round_robin") else 3
        weights = [part(one, weight=1.0 + odd * (i % 2)) for i, one in enumerate(self.data)]
        self.recipe = recipe_of(
            self.data, parts=weights, batch_size=batch, seed=seed, shuffle=shuffle, pool=2, **fields
        )
        self.topology = topology
        self.run = Ranks(self.recipe, self.data, topology)
        self.ledger = Ledger(self.data, self.recipe.pack is not None)
        self.is_over = False
        self.kept: list[tuple[State, Ledger, int, list[Any]]] = []
        """States to come back to: with what was delivered before them, the lanes, and what came after them."""

    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            batches = [] if self.is_over else self.run.step()
            self.is_over = self.is_over or not batches
            self.ledger.add(batches)
            for _, _, lanes, after in self.kept:
                if lanes:
                    after += keys(batches)

    @rule(topology=topologies)
    def resume(self, topology: tuple[int, int]) -> None:
        """The run is killed; another one goes on from its last state, on other ranks and workers."""
        if self.is_over:
            return
        state = self.run.state()
        self.run.close()
        self.run = Ranks(self.recipe, self.data, topology, state)
        if state["L"] % topology[0] == 0:
            assert self.run.state() == state, "restoring changed the state"
        else:
            self.kept = [(one, ledger, 0, after) for one, ledger, _, after in self.kept]
        self.topology = topology

    @rule()
    def keep(self) -> None:
        if not self.is_over and len(self.kept) < 3:
            state = self.run.state()
            self.kept.append((state, self.ledger.copy(), state["L"], []))

    @rule(which=st.integers(0, 2), topology=topologies)
    def go_back(self, which: int, topology: tuple[int, int]) -> None:
        """The last checkpoint was lost; an older one is loaded, and what came after it comes again."""
        if which >= len(self.kept):
            return
        state, ledger, lanes, after = self.kept[which]
        run = Ranks(self.recipe, self.data, topology, json.loads(json.dumps(state)))
        batches = run.steps()
        ledger.copy().add(batches).assert_only(0)
        if lanes and state["L"] % topology[0] == 0:
            assert keys(batches)[: len(after)] == after, "what was replayed differs from what was lost"
        run.close()

    @rule(spoil=st.sampled_from(SPOILED))
    def refuse(self, spoil: Any) -> None:
        """A bad state is refused, and the run that was asked to load it goes on as it was."""
        if self.is_over:
            return
        state = self.run.state()
        self.run.close()
        self.run = Ranks(self.recipe, self.data, self.topology, state)
        before = self.run.state()
        for loader in self.run.loaders:
            with pytest.raises(HeadraceError):
                loader.load_state_dict(edited(state, spoil))
        assert self.run.state() == before
        if state["L"] % self.topology[0]:
            self.kept = [(one, ledger, 0, after) for one, ledger, _, after in self.kept]

    @invariant()
    def nothing_came_twice(self) -> None:
        self.ledger.assert_nothing_twice()

    def teardown(self) -> None:
        if not hasattr(self, "ledger"):
            return
        if not self.is_over:
            self.ledger.add(self.run.steps())
        self.run.close()
        self.ledger.assert_only(0)


@pytest.mark.timeout(120 * machines.TIMES)
def test_a_run_gives_everything_once_whatever_is_done_to_its_states() -> None:
    with near_workers():
        machines.run(Run, EXAMPLES, 12)
