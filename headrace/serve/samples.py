"""Lanes of samples: formatters, media, limits that start anew with each epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from headrace.address import Address
from headrace.batch import Batch
from headrace.errors import shown
from headrace.fetch.media.policy import MediaPolicy
from headrace.make.describe import Faults
from headrace.make.feed import Feed
from headrace.make.formatted import Formatted, Formatter, Rendering
from headrace.make.prepare import Ready
from headrace.mix.turns import MODALITIES, Limits, Quotas, Turns, quotas_in, turns_state
from headrace.sequence.finish import Finish
from headrace.sequence.media import collate_in, copied
from headrace.sequence.sample_collate import collate_sequences
from headrace.sequence.sample_pack import Packing, SamplePacker
from headrace.sequence.samples import SampleBatcher, copies_in
from headrace.sequence.side_by_side import Helpers, num_threads
from headrace.stage import State

if TYPE_CHECKING:
    import torch

    from headrace.make.template import Template
    from headrace.make.tokenize import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a source's rows are made into."""

    formatter: Formatter
    modality: Literal["text", "image", "video", "audio"] = "text"
    policy: MediaPolicy = field(default_factory=MediaPolicy)
    group_by: str | None = None
    """Rows that follow each other with the same value in this column are one row to the formatter."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Everything about samples that is not in the recipe, because it may be code."""

    shapes: tuple[Shape, ...]
    """Of each source."""
    tokens: Mapping[str, str]
    finish: Finish
    limits: Limits
    repeat: int = 1
    """How often each sample is given."""
    learn_all: bool = True
    template: Template | None = None
    """Writes conversations instead of the formatters."""
    faults: Faults = field(default_factory=Faults)
    together: bool = True
    """Whether batches are collated; else each is one sample, as it is."""
    packing: Packing | None = None
    """Several samples share a sequence; None: each is one."""
    threads: int | None = None
    """Samples of a batch that are decoded side by side; None: a few in the trainer's process, one in each worker."""

    def prepare(self, i: int, tokenizer: Tokenizer) -> Formatted:
        shape = self.shapes[i]
        return Formatted(
            shape.formatter,
            self.tokens,
            tokenizer,
            Rendering(
                learn_all=self.learn_all,
                template=self.template,
                media_stops=self.packing is not None,
                room=self.finish.max_length if self.packing is None else None,
            ),
            group_by=shape.group_by,
            keep_errors=self.faults.policy == "skip",
        )

    def mark(self, i: int) -> str:
        """Changes with what makes the rows of a source ready. Of code, the name stands for it."""
        shape = self.shapes[i]
        name = getattr(shape.formatter, "__qualname__", type(shape.formatter).__qualname__)
        learned = "True" if self.learn_all else f"False {self.finish.max_length if self.packing is None else None}"
        parts = [name, str(shape.group_by), learned, *(f"{k}={v}" for k, v in sorted(self.tokens.items()))]
        text = "\n".join([*parts, self.template.mark] if self.template is not None else parts)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def mixer(
        self,
        feeds: Sequence[Feed],
        names: Sequence[str],
        lane: tuple[int, int],
        fetch: Callable[[Sequence[tuple[int, int, int]]], Sequence[Ready]],
    ) -> Turns:
        return Turns(feeds, names, self._modalities, lane, self.limits, fetch)

    def helpers(self) -> Helpers:
        own = self.finish.image_processor is not None or self.finish.voice_processor is not None
        return Helpers(1 if own and self.threads is None else num_threads(self.threads))  # whose code may mind threads

    def batcher(self, batch_size: int, names: Sequence[str], turns: Turns, helpers: Helpers) -> SampleBatcher:
        def address(row: Ready) -> Address:
            return Address(names[row.source], row.epoch, row.shard, row.row)

        make = self.finish if self.packing is None else self.finish.beside

        def finish(row: Ready, sub: int, out: torch.Tensor | None = None) -> dict[str, Any]:
            return make(row.samples[sub], address(row), self.shapes[row.source].policy, out)

        if self.packing is None:
            length = self.finish.max_length
            found = SampleBatcher(batch_size, self.repeat, length, finish, self.faults, turns.take_back, helpers)
            found.make_ready = turns.make_ready
            if self.finish.image_processor is None and self.repeat == 1:
                found.picture_size = self.finish.image_size
            return found
        return SamplePacker(
            self.packing, self.repeat, finish, lambda row: shown(address(row), 1000), self.faults, turns.take_back
        )

    def collated(self, items: Sequence[Any], names: Sequence[str], helpers: Helpers) -> Batch:
        if self.packing is not None:
            return collate_sequences(items, self.packing, self.finish.pad_id, names)
        places = [(names[item.row.source], item.row.epoch, item.row.shard, item.row.row) for item in items]
        if self.together:
            return Batch.of_rows(collate_in(items[0].room, [item.made for item in items], helpers), places)
        # What is given again must not have changed because someone wrote into it.
        return Batch.of_rows(copied(items[0].made) if self.repeat > 1 else items[0].made, places)

    # --- states of lanes

    def fresh(self, lane: int, lanes: int, epoch: int) -> State:
        """What the state of a lane has at the start of an epoch. Lanes begin with different sources."""
        quotas = Quotas.of(self.limits, self._modalities).share(self._modalities, lane, lanes, epoch)
        return {**self._state(quotas, lane), "num": [0] * (1 + len(MODALITIES)), "bad": 0}

    def redealt(self, states: Sequence[State], lane: int, lanes: int) -> State:
        """What one of `lanes` lanes gets of all that is left of the limits."""
        left = [quotas_in(state) for state in states]
        together = Quotas(
            sum(one.total for one in left),
            [sum(values) for values in zip(*(one.sources for one in left), strict=True)],
            [sum(values) for values in zip(*(one.kinds for one in left), strict=True)],
        )
        return self._state(together.share(self._modalities, lane, lanes), lane)

    def fitted(self, state: State, new: Sequence[int], fresh: State) -> State:
        """A state for these sources, some of them `new`: they get what they have at the start of an epoch."""
        left, fresh_left = quotas_in(state), quotas_in(fresh)
        sources = [fresh_left.sources[i] if i in new else one for i, one in enumerate(left.sources)]
        limited = self.limits.per_modality or {}
        rooms = [
            sum(one for one, modality in zip(sources, self._modalities, strict=True) if modality == kind)
            for kind in MODALITIES
        ]
        kinds = [
            one if kind in limited else room for kind, one, room in zip(MODALITIES, left.kinds, rooms, strict=True)
        ]
        return {**state, **self._state(Quotas(left.total, sources, kinds).reached(self._modalities), state["lim"][0])}

    def _state(self, quotas: Quotas, first: int) -> State:
        return turns_state(quotas, first % len(self.shapes))

    def items_left(self, state: State) -> int:
        """What a lane has still to give in this epoch."""
        return int(state["lim"][1]) * self.repeat + self.copies_waiting(state)

    def copies_waiting(self, state: State) -> int:
        """Samples that a lane has taken and not given, each as often as it is still to come."""
        return sum(copies_in(part, self.repeat) for part in state["rest"])

    def taken_back(self, state: State, sources: Sequence[int]) -> State:
        """A state that does not count samples of these sources (one number for each sample)."""
        left, given = quotas_in(state), list(state["num"])
        for i in sources:
            kind = MODALITIES.index(self.shapes[i].modality)
            left.sources[i] += 1
            left.kinds[kind] += 1
            left = left._replace(total=left.total + 1)
            given[0], given[1 + kind] = max(0, given[0] - 1), max(0, given[1 + kind] - 1)
        return {**state, **self._state(left, state["lim"][0]), "num": given}

    @property
    def _modalities(self) -> list[str]:
        return [shape.modality for shape in self.shapes]
