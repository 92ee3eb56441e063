"""Finds out what iterates over a loader or dataset: wrappers that split the data again, or that read batches ahead.

Classes of other packages are found on the stack by their names, once for each `iter()`. Nothing is imported for that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from headrace.errors import SpecError, StateError

PACKAGES = {
    "accelerate": "Accelerate",
    "transformers": "Transformers",
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
}
SPLITTERS = ("IterableDatasetShard", "DataLoaderDispatcher")
"""They give each process a part of what all processes read, or of what the first one reads."""
READERS = ("DataLoaderShard", "DataLoaderDispatcher", "_PrefetchDataFetcher")
"""They take a batch before they give the one before it to the trainer."""


def refuse_second_split(ranks: int, what: str) -> None:
    """An error where a wrapper splits data over processes that was split over `ranks` before."""
    if ranks == 1:
        return
    for package, wrapper in _wrappers(SPLITTERS):
        processes = _processes(wrapper)
        if processes > 1:
            raise SpecError(
                f"{package}'s {type(wrapper).__name__} splits this {what} over {processes} processes, and it gives "
                f"each of {ranks} ranks its own part already: rows would be lost, and others come twice; leave it out "
                f"of accelerator.prepare(...), iterate over it as it is, and move batches with "
                f"batch.to(accelerator.device). For Transformers' Trainer, return a headrace.Loader from "
                f"get_train_dataloader()"
            )


def refuse_wrapping() -> None:
    """An error where Accelerate takes a loader apart to make one of its own."""
    if sys._getframe(2).f_globals.get("__name__") == "accelerate.data_loader":
        raise SpecError(
            "Accelerate cannot make a loader of its own of a headrace.Loader, which gives each rank its own batches "
            "already; iterate over it as it is, with device=accelerator.device where batches are to arrive there. "
            'To skip batches, use load_state_dict({"batches_consumed": n, "batch_size": b})'
        )


class Reader:
    """A wrapper that reads ahead, as it was found on the stack."""

    def __init__(self, package: str, wrapper: Any) -> None:
        self.name, self._wrapper = f"{package}'s {type(wrapper).__name__}", wrapper

    def batches_ahead(self) -> int:
        """How many batches it reads ahead. Asked when the first batch is delivered: by then it knows itself."""
        if type(self._wrapper).__name__ != "_PrefetchDataFetcher":
            return 1
        # It reads ahead to find out which batch is the last, so it does not where the length is known.
        return 0 if self._wrapper.length is not None else int(self._wrapper.prefetch_batches)


def reader() -> Reader | None:
    """The wrapper that reads ahead in whose iteration we are called, if there is one."""
    return next((Reader(package, wrapper) for package, wrapper in _wrappers(READERS)), None)


class ReadAhead:
    """Knows whether the loop over a data set, in this process, is a wrapper's that reads batches ahead.

    What such a wrapper has read was given, but not to the trainer.
    """

    def __init__(self) -> None:
        self._reader: Reader | None = None

    def begin(self) -> None:
        """Called in `iter()`."""
        self._reader = reader()

    def end(self) -> None:
        """The trainer has all that was given, or another place was set."""
        self._reader = None

    @property
    def name(self) -> str:
        """Of the wrapper; empty where none is seen."""
        return "" if self._reader is None else self._reader.name

    def batches(self) -> int:
        return 0 if self._reader is None else self._reader.batches_ahead()

    def refuse(self, what: str, way_out: str) -> None:
        """An error where the trainer does not have all that was given.

        Accelerate's loaders that are stateful ask before they read ahead, through torchdata: they get what is so then.
        """
        count = self.batches()
        if not count or (self.name.startswith("Accelerate") and _is_asked_by_torchdata()):
            return
        raise StateError(
            f"{what}: {self.name} reads {count} batch{'es' if count > 1 else ''} ahead, so what the trainer has not "
            f"received yet would be left out; {way_out}"
        )


def _is_asked_by_torchdata() -> bool:
    frame = sys._getframe(2) if "torchdata" in sys.modules else None
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("torchdata."):
        frame = frame.f_back
    return frame is not None


def _wrappers(names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Objects of these classes whose methods are on the stack, and the packages they are of."""
    if not any(package in sys.modules for package in PACKAGES):
        return
    frame = sys._getframe(2)
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package in PACKAGES:
            owner = frame.f_locals.get("self")
            if type(owner).__name__ in names:
                yield PACKAGES[package], owner
        frame = frame.f_back  # type: ignore[assignment]


def _processes(wrapper: Any) -> int:
    """Over how many processes it splits."""
    found = getattr(wrapper, "num_processes", None)
    if found is None:  # a dispatcher, which may still be in the making
        found = sys.modules["accelerate"].PartialState().num_processes
    return int(found)
