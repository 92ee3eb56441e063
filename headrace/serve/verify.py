"""Whether a state can have come about: its draws are made once more, from the start of its plan. No row is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.catalog.identity import Trust
from headrace.errors import HeadraceError, StateError, shown
from headrace.fetch.plan import Range, overlap
from headrace.fetch.pool import MOST_DRAWS, Pool
from headrace.fetch.resume import NO_TRUST
from headrace.recipe import Recipe, fingerprint_of
from headrace.run import Run
from headrace.sequence.pack import TO_THE_END
from headrace.serve.check import (
    check_lanes,
    check_passes,
    check_source,
    check_turns,
    credit_problem,
    ends_of,
    of_samples,
    settled,
    turns,
)
from headrace.serve.epoch import num_rows_left
from headrace.serve.lane import Lane
from headrace.serve.pipeline import Opener, Pipeline, open_indexed, reopened
from headrace.serve.recognised import respelled
from headrace.serve.redeal import first_digest, left_of
from headrace.serve.resume import check_same_order
from headrace.serve.state import Saved
from headrace.stage import State

if TYPE_CHECKING:
    from headrace.make.tokenize import Tokenizer

COMPARED = {"s": "slots", "c": "admitted", "d": "digest", "x": "ranges", "f": "ruled from", "g": "generation"}
MARGIN = 32
"""Batches may have been larger before the recipe changed."""

Progress: TypeAlias = Callable[[int, int], None]
"""Is told how many draws were made, and about how many there are."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """What was found about one source in one lane."""

    source: str
    lane: int
    epoch: Any
    draws: Any
    """Of this pass. Both as the state says."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    checks: tuple[Check, ...]
    problems: tuple[str, ...] = ()
    """Those of no source."""
    unchecked: str = ""
    """What could not be checked, and why."""

    @property
    def is_reachable(self) -> bool:
        return not self.problems and not any(check.problems for check in self.checks)

    def all_problems(self) -> list[str]:
        found = [f"{shown(c.source)}, lane {c.lane}: {problem}" for c in self.checks for problem in c.problems]
        return [*self.problems, *found]


def verify(
    state: State,
    *,
    recipe: Recipe | None = None,
    run: Run | None = None,
    opener: Opener = open_indexed,
    progress: Progress | None = None,
    tokenizer: Tokenizer | None = None,
    force: bool = False,
    trust: Trust = NO_TRUST,
) -> Report:
    """Check a whole state, under its own recipe or another. What cannot even be a state is a StateError.

    `tokenizer`: the recipe's, to compare the pieces that wait in packers with their rows. `force`: also a state that
    was changed since it was saved.
    """
    saved = Saved.from_state(state, force=force)
    states = saved.lane_states()
    check_lanes(saved, states)
    states = settled(saved, states)
    own = saved.read_recipe()
    problems = (
        []
        if fingerprint_of(saved.recipe) == saved.fingerprint
        else ["recipe: it is not the one that its fingerprint names"]
    )
    recipe = recipe or own
    found = Pipeline(recipe, run or Run(), opener=opener, kept=saved.facts, trust=trust)
    saved = respelled(saved, recipe, found.numbers)
    check_same_order(saved, recipe, found.numbers)
    if found.numbers != list(range(len(saved.facts))):
        names = [part.name for part in recipe.parts]
        told = ", ".join(shown(fact.name) for fact in saved.facts)
        raise StateError(f"sources: the state has {told}, the recipe {', '.join(map(shown, names))}")
    if of_samples(states):  # what made them is code and not here; their sources go round and round
        recipe = replace(recipe, mix=replace(recipe.mix, stop="loop"), epochs=None)
    pipeline = reopened(recipe, run or Run(), tokenizer, opener, saved.facts, saved.size, trust=trust)
    return _Verifier(saved, states, pipeline, progress).report(problems)


class _Verifier:
    def __init__(
        self, saved: Saved, states: Sequence[State], pipeline: Pipeline, progress: Progress | None = None
    ) -> None:
        self.saved, self.states, self.pipeline, self._progress = saved, states, pipeline, progress
        self._done = self._total = 0
        self._pools: dict[tuple[int, int], Pool] = {}

    def report(self, problems: list[str]) -> Report:
        pairs = [(i, lane) for i in range(len(self.saved.facts)) for lane in range(len(self.states))]
        checks = [self._check(i, lane, self._misplaced(i, lane)) for i, lane in pairs]
        if any(check.problems for check in checks):
            return Report(checks=tuple(checks), problems=tuple(problems))
        problems += [*self._turns(), *self._pieces_twice()]
        credit = [(lane, credit_problem(state)) for lane, state in enumerate(self.states)]
        problems += [f"lane {lane}: {problem}" for lane, problem in credit if problem is not None]
        for i, fact in enumerate(self.saved.facts):
            problems += [f"{shown(fact.name)}: {problem}" for problem in self._dealt_wrong(i)]
        if self.saved.fingerprint == self.pipeline.recipe.fingerprint():
            problems += [f"lane {lane}: {one}" for lane in range(len(self.states)) for one in self._ends(lane)]
        self._total = sum(self._about(i, lane) for i, lane in pairs)
        checks = [self._check(i, lane, self._source(i, lane)) for i, lane in pairs]
        unchecked = self._not_read()
        if not unchecked and not problems and not any(check.problems for check in checks):
            problems += self._differing_pieces()
        return Report(checks=tuple(checks), problems=tuple(problems), unchecked=unchecked)

    def _not_read(self) -> str:
        """Why the pieces that wait are not compared with their rows; empty where they are, or none waits."""
        recipe, waiting = self.pipeline.recipe, any(state["held"] or state["rest"] for state in self.states)
        if not waiting or recipe.pack is None or (recipe.tokenize is None) == (self.pipeline.tokenizer is None):
            return ""
        return "pieces of rows that wait in packers were not compared with their rows: there is no tokenizer for it"

    def _differing_pieces(self) -> Iterator[str]:
        for lane, state in enumerate(self.states):
            if self.pipeline.recipe.pack is not None and (state["held"] or state["rest"]):
                live = Lane(self.pipeline, lane, len(self.states), self.saved.epoch)
                try:
                    live.load_state_dict(state)
                except HeadraceError as error:
                    yield f"lane {lane}: {error}"
                finally:
                    live.close()

    def _check(self, i: int, lane: int, problems: Iterator[str]) -> Check:
        state = self.states[lane]["src"][i]
        epoch, draws = (state.get(key) if isinstance(state, dict) else None for key in ("e", "k"))
        name = self.saved.facts[i].name
        return Check(source=name, lane=lane, epoch=epoch, draws=draws, problems=tuple(problems))

    def _misplaced(self, i: int, lane: int) -> Iterator[str]:
        try:
            check_source(self.pipeline, i, (lane, len(self.states), self.saved.epoch), self.states[lane]["src"][i])
        except StateError as error:
            yield str(error)

    def _turns(self) -> Iterator[str]:
        for check in (partial(check_turns, self.saved, self.states), partial(check_passes, self.saved)):
            try:
                check(self.pipeline)
            except StateError as error:
                yield str(error)

    def _pool(self, i: int, lane: int) -> Pool:
        """Where the state says."""
        if (i, lane) not in self._pools:
            self._pools[i, lane] = self._opened(i, lane, self.states[lane]["src"][i])
        return self._pools[i, lane]

    def _opened(self, i: int, lane: int, state: State) -> Pool:
        pool = self.pipeline.pool(i, lane, len(self.states))
        pool.last = None
        pool.load_state_dict(state)
        return pool

    # --- one source in one lane

    def _source(self, i: int, lane: int) -> Iterator[str]:
        fact, state = self.saved.facts[i], self.states[lane]["src"][i]
        if state["y"] > (state["e"] if state["g"] else state["e"] - fact.epoch):
            yield f"y: {state['y']} passes without a sample, in pass {state['e']}"
        if fact.epoch <= state["e"] <= fact.epoch + self._most_passes():
            yield from self._replayed(i, lane, state)
            yield from self._pieces(i, lane)
        else:
            yield f"e: pass {state['e']} is not reached from pass {fact.epoch} on in {self.saved.m} micro-batches"

    def _most_passes(self) -> int:
        """A source that gives no sample in some passes counts as ended, and each sample has a token of its own."""
        recipe, lanes = self.pipeline.recipe, len(self.states)
        size = 1 if recipe.pack is None else recipe.pack.seq_len * (1 + recipe.pack.slack)
        samples = (self.saved.m // lanes + 1) * MARGIN * recipe.batch_size * size
        return samples * (lanes + 2) + (self.pipeline.passes or 0)

    def _replayed(self, i: int, lane: int, state: State) -> Iterator[str]:
        fact = self.saved.facts[i]
        fresh = {
            "e": fact.epoch,
            "c": 0,
            "k": 0,
            "s": [],
            "y": 0,
            "d": first_digest(fact.digest, self.saved.size, state),
        }
        pool = self._opened(i, lane, {**fresh, "f": state["f"], "x": state["x"], "g": state["g"]})
        goal = (state["e"], state["k"])
        while (pool.epoch, pool.draws) < goal and pool.fill() and (pool.epoch, pool.draws) < goal:
            done = pool.draw(state["k"] - pool.draws if pool.epoch == state["e"] else MOST_DRAWS)
            assert done is not None, "a pool that was filled has something to draw"
            self._done += done.count
            if self._progress is not None:
                self._progress(self._done, self._total)
        if (pool.epoch, pool.draws) != goal:
            yield f"k: draw {state['k']} of pass {state['e']} does not come: the lane has fewer rows there"
            return
        found = pool.state_dict()
        for key, name in COMPARED.items():
            if found[key] != state[key]:
                yield f"{key} ({name}): it is {shown(state[key], 60)}, and should be {shown(found[key], 60)}"

    def _about(self, i: int, lane: int) -> int:
        """The draws to be made, as far as that can be told at once."""
        fact, state = self.saved.facts[i], self.states[lane]["src"][i]
        passes: int = max(0, min(state["e"] - fact.epoch, self._most_passes()))
        draws = int(state["k"])
        share = self.pipeline.rows(i) // len(self.states) if passes and fact.coordinate == "rows" else draws
        return passes * share + draws

    # --- pieces that wait

    def _pieces(self, i: int, lane: int) -> Iterator[str]:
        for name in ("held", "rest"):
            for piece in self.states[lane][name]:
                if piece[0] == i and not self._was_drawn(i, lane, piece[1], piece[2]):
                    yield f"{name}: position {piece[2]} of pass {piece[1]} was never drawn by this lane"

    def _was_drawn(self, i: int, lane: int, epoch: int, position: int) -> bool:
        """By this lane; or by any, before the lanes were dealt anew."""
        fact, pool = self.saved.facts[i], self._pool(i, lane)
        if epoch > pool.epoch and not pool.generation:
            return False
        order = pool.orders(epoch)
        try:
            order.chunk_at(position)
        except IndexError:
            return False
        if epoch >= fact.epoch and _within(position, pool.share_of(epoch)):
            return not _within(position, left_of(pool, order))
        if not pool.generation or epoch >= pool.ruled_from:
            return False
        dealt = [part for other in range(len(self.states)) for part in self._pool(i, other).explicit.get(epoch, [])]
        return not _within(position, dealt)

    def _pieces_twice(self) -> Iterator[str]:
        pieces = [(piece, lane) for lane, state in enumerate(self.states) for piece in [*state["held"], *state["rest"]]]
        if of_samples(self.states):  # of a text that a packer has cut, the ends of several copies may wait
            pieces = [(piece, lane) for piece, lane in pieces if piece[5] == TO_THE_END]
        pieces.sort()
        for (one, lane), (two, other) in pairwise(pieces):
            # To the end (-1) means all samples of the row that follow, too; but samples on their own wait one by one.
            rest = one[5] == TO_THE_END and (one[3] == two[3] or not of_samples(self.states))
            if one[:3] == two[:3] and (rest or (one[3] == two[3] and two[4] < one[5])):
                where = f"lane {lane}" if lane == other else f"the lanes {lane} and {other}"
                name = shown(self.saved.facts[one[0]].name)
                yield f"{name}: position {one[2]} of pass {one[1]} waits twice, in {where}"

    # --- lanes

    def _dealt_wrong(self, i: int) -> Iterator[str]:
        """All lanes follow one plan: the rule, or ranges that were dealt to them, no position to two."""
        fact, states = self.saved.facts[i], [lane["src"][i] for lane in self.states]
        plans = {(state["f"], state["g"], tuple(epoch for epoch, _ in state["x"])) for state in states}
        if len(plans) > 1:
            yield "f, g, x: the lanes follow different plans"
            return
        ruled_from, generation, epochs = plans.pop()
        last = epochs[-1] + 1 if generation and epochs else fact.epoch
        if ruled_from != last or bool(generation) != bool(epochs) or (fact.digest and not generation):
            yield f"f, g, x: ranges of {len(epochs)} passes, and the rule from pass {ruled_from} on, are no plan"
        elif epochs and (epochs[0], len(epochs)) != (fact.epoch, last - fact.epoch):
            yield f"x: ranges of the passes {fact.epoch} to {last - 1} are expected, there are {len(epochs)}"
        for n, epoch in enumerate(epochs):
            twice = overlap((start, stop) for state in states for start, stop in state["x"][n][1])
            if twice is not None:
                yield f"x: position {twice} of pass {epoch} was dealt to two lanes"

    def _ends(self, lane: int) -> Iterator[str]:
        """What has ended has nothing left, and a lane is over when nothing is left."""
        pipeline, state, lanes = self.pipeline, self.states[lane], len(self.states)
        ended, over = ends_of(pipeline, lane, lanes, self.saved.epoch, state)
        for i in state["off"]:
            if i not in ended:
                yield f"off: {shown(self.saved.facts[i].name)} is said to have ended, and has rows left"
        if bool(state["o"]) != over:
            yield "o: it is said to be over, and has rows left" if state["o"] else "o: it has nothing left and goes on"
        if state["n"] < turns(self.saved, lane) and not over and pipeline.is_counted:
            rows = num_rows_left(pipeline, lane, state, lanes, self.saved.epoch)
            if rows >= (pipeline.recipe.batch_size if pipeline.recipe.tail == "drop" else 1):
                yield f"n: it gave {state['n']} micro-batches in {turns(self.saved, lane)} turns, with {rows} rows left"


def _within(position: int, ranges: Sequence[Range]) -> bool:
    return any(start <= position < stop for start, stop in ranges)
