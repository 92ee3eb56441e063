"""Batches on their way to the device: the next one is copied while the last one is being computed on.

A copy from pinned memory on a CUDA stream of its own needs no thread: it is asked for and runs by itself. Reading ahead
changes nothing about what was delivered: a batch counts when it leaves here, and carries its number with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from headrace.batch import Batch
from headrace.errors import SpecError, shown

if TYPE_CHECKING:
    import torch

B = TypeVar("B", bound=dict[str, Any])


class Road(Protocol):
    """The way to a device beside the one its work goes. `CudaRoad` is the real one; a test may watch another."""

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begin the copy and return where it will be."""

    def mark(self) -> Any:
        """Something to wait for: all that was sent so far."""

    def receive(self, mark: Any, tensors: Iterable[torch.Tensor]) -> None:
        """Let the work from here on begin after `mark`, and keep the tensors' memory until that work is done."""


class CudaRoad:
    """The CUDA calls, and nothing else."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._cuda = torch.cuda
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu" and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        with self._cuda.stream(self._stream):
            # the pinned side may be forgotten at once: torch reuses it only when this copy is through
            return tensor.to(self._device, non_blocking=True)

    def mark(self) -> Any:
        return self._stream.record_event()

    def receive(self, mark: Any, tensors: Iterable[torch.Tensor]) -> None:
        current = self._cuda.current_stream(self._device)
        current.wait_event(mark)
        for tensor in tensors:
            # allocated on our stream: without this it could be reused for a later batch while it is still computed on
            tensor.record_stream(current)


class DeviceFeed(Iterator[B], Generic[B]):
    """Gives out the batches of `batches` with their tensors on `device`, and everything else as it was.

    On CUDA the copies of the next `ahead` batches are under way when one is given out; elsewhere nothing is read ahead.
    An error or the end of `batches` comes after all batches before it have been given out.
    """

    def __init__(
        self, batches: Iterator[B], device: str | torch.device, *, ahead: int = 1, road: Road | None = None
    ) -> None:
        self._batches = batches
        self._device = _device(device)
        if not isinstance(ahead, int) or ahead < 0:
            raise SpecError(f"ahead={shown(ahead)}: a number of batches to copy ahead, 0 or more; 1 is enough for most")
        self._ahead = ahead
        self._road = CudaRoad(self._device) if road is None and self._device.type == "cuda" else road
        self._waiting: deque[B] = deque()
        self._sent: deque[tuple[B, Any, list[torch.Tensor]]] = deque()
        self._error: Exception | None = None

    def __next__(self) -> B:
        if self._road is None:
            return _moved(next(self._batches), lambda tensor: tensor.to(self._device))
        while len(self._sent) <= self._ahead and self._read():
            self._sent.append(self._send(self._waiting[0], self._road))
            self._waiting.popleft()
        if self._sent:
            batch, mark, tensors = self._sent.popleft()
            self._road.receive(mark, tensors)
            return batch
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        raise StopIteration

    def close(self) -> None:
        """Forget what is under way. What was given out stays; `batches` belongs to who made it."""
        self._waiting.clear()
        self._sent.clear()
        self._batches = iter(())

    def _read(self) -> bool:
        """Whether a batch waits to be sent; reads one if need be."""
        if self._error is not None:
            return False
        try:
            if not self._waiting:
                # one step for an interrupt: a batch that was read is in the queue, so none is lost
                self._waiting.extend(islice(self._batches, 1))
        except Exception as error:
            self._error = error
        return bool(self._waiting)

    def _send(self, batch: B, road: Road) -> tuple[B, Any, list[torch.Tensor]]:
        tensors: list[torch.Tensor] = []

        def move(tensor: torch.Tensor) -> torch.Tensor:
            tensors.append(road.send(tensor))
            return tensors[-1]

        moved = _moved(batch, move)
        return moved, road.mark(), tensors


def _device(given: str | torch.device) -> torch.device:
    import torch

    try:
        device = torch.device(given)
    except (RuntimeError, TypeError) as error:
        why = str(error).partition("\n")[0]
        raise SpecError(f"device={shown(given)!r} is no device of torch ({why}); give 'cpu' or 'cuda'") from error
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise SpecError(f"device={shown(given)!r}: this torch sees no CUDA device; give 'cpu', or install a CUDA build")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def _moved(batch: B, move: Callable[[torch.Tensor], torch.Tensor]) -> B:
    """A batch of the same class with the same attributes, those that are tensors moved too."""
    made = batch.with_attributes(partial(_moved_value, move=move)) if isinstance(batch, Batch) else copy(batch)
    for name, value in batch.items():
        made[name] = _moved_value(value, move)
    return made


def _moved_value(value: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, dict):
        return {name: _moved_value(item, move) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved_value(item, move) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_moved_value(item, move) for item in value)
    return value
