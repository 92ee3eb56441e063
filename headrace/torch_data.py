"""What PyTorch has for data sets; or, where it is not installed, a sentence that says so."""

from __future__ import annotations

from headrace.errors import no_torch

try:
    from torch.utils.data import IterableDataset, get_worker_info
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "torch":
        raise  # it is there, and something that it needs is not
    raise no_torch("data sets of PyTorch (TrueStreamingDataset, StreamingLeRobotDataset, loader.dataset)") from error

__all__ = ["IterableDataset", "get_worker_info"]
