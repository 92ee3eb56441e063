"""What the first rank calls its sources, for the others: names decide which rank reads what.

It goes through the store of the process group. The first rank leaves its word there and goes on, so one rank may look
at its loader while others do not.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from datetime import timedelta
from typing import Any

from headrace.catalog.identity import Identity
from headrace.errors import Changed, shown
from headrace.serve.peers import group_is_up
from headrace.serve.pipeline import Pipeline

log = logging.getLogger("headrace")

NAMES_SECONDS = 120.0
"""How long a rank waits for the first one to make its loader."""
IDENTITY_SECONDS = 60.0
"""...and to open its files. `state_dict()` compares them in any case."""

_made: Counter[str] = Counter()


class FirstRank:
    """The word of the first rank on one loader. Loaders of the same sources are told apart by their order, which is the
    same on all ranks."""

    def __init__(self, pipeline: Pipeline) -> None:
        parts = pipeline.recipe.parts
        self._rank, self._ranks = pipeline.run.rank, pipeline.run.world_size
        self._local = [part.source.is_local or part.source.kind == "lerobot" for part in parts]
        own = [[part.source.kind, None if local else part.name] for part, local in zip(parts, self._local, strict=True)]
        kinds = json.dumps(own)
        _made[kinds] += 1
        self._key = f"headrace/{_made[kinds]}/{kinds}"
        if self._speaks and self._rank == 0:
            self._tell("names", list(pipeline.names))

    def take_names(self, pipeline: Pipeline) -> None:
        """Before the facts are fixed."""
        if not self._speaks:
            return
        if self._rank == 0:
            self._tell("names", list(pipeline.names))
            return
        names = self._hear("names", NAMES_SECONDS)
        if names is None:
            log.warning(
                "rank 0 has made no loader of these sources in %d s; rank %d goes on with its own names for them, and "
                "the order is the same only where those of rank 0 are",
                NAMES_SECONDS,
                self._rank,
            )
        elif len(names) == len(pipeline.names) and tuple(names) != pipeline.names:
            log.info("rank %d takes the names of rank 0: %s", self._rank, ", ".join(map(shown, names)))
            pipeline.names = tuple(names)

    def compare(self, pipeline: Pipeline) -> None:
        """After the facts are fixed."""
        if not self._speaks:
            return
        own = [None if fact.identity is None else fact.identity.to_json() for fact in pipeline.facts]
        if self._rank == 0:
            self._tell("identities", own)
            return
        for fact, told in zip(pipeline.facts, self._hear("identities", IDENTITY_SECONDS) or [], strict=False):
            if fact.identity is not None and told is not None and not fact.identity.is_of(Identity.from_json(told)):
                raise Changed(
                    f"{shown(fact.name)}: rank {self._rank} reads other files than rank 0: their sizes, names or "
                    f"contents differ; give all ranks the same data"
                )

    @property
    def _speaks(self) -> bool:
        """Whether there is something to agree on, and a way to."""
        if self._ranks < 2 or not any(self._local) or not group_is_up():
            return False
        import torch.distributed as dist

        return (dist.get_rank(), dist.get_world_size()) == (self._rank, self._ranks)

    def _tell(self, what: str, value: Any) -> None:
        self._store().set(f"{self._key}/{what}", json.dumps(value))

    def _hear(self, what: str, seconds: float) -> Any:
        store, key = self._store(), f"{self._key}/{what}"
        try:
            store.wait([key], timedelta(seconds=seconds))
        except RuntimeError:  # torch's DistStoreError: it was not told in time
            return None
        return json.loads(store.get(key))

    def _store(self) -> Any:
        from torch.distributed import distributed_c10d

        return distributed_c10d._get_default_store()
