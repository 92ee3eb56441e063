"""What `StreamingLeRobotDataset` is asked for, made plain: places, names, random generators and other libraries' words.

LeRobot's own arguments are all taken. One that has no meaning here is said to have none, and does no harm.
"""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Iterable, Mapping
from operator import index
from pathlib import Path
from typing import Any

from headrace.catalog.source import spelled
from headrace.errors import SpecError, shown
from headrace.make.describe import Faults

log = logging.getLogger("headrace")

BACKENDS = ("pyav", "torchcodec", "video_reader")
SEEDS = 1 << 62


def place_of(repo_id: str | Path, root: str | Path | None, repo_type: str | None) -> str:
    """Where the data set lies: a folder or a URL, where there is one, else the name of a repo."""
    if repo_type not in (None, "dataset", "bucket"):
        raise SpecError(f"repo_type={shown(repo_type)!r}: a data set lies in a 'dataset' repo or in a 'bucket'")
    if root is not None and ("://" in str(root) or Path(root, "meta", "info.json").exists()):
        return spelled(str(root))
    if repo_type == "bucket" and "://" not in str(repo_id):
        return f"hf://buckets/{spelled(str(repo_id))}"
    return spelled(str(repo_id))


def drawn_seed(rng: Any, seed: int, ranks: int) -> tuple[int, Any]:
    """A seed, and the generator it comes from: of numpy, torch or Python, or whatever numpy makes one of. Without one,
    `seed` itself."""
    import numpy as np
    import torch

    if rng is None:
        return seed, np.random.default_rng(seed if isinstance(seed, int) and seed >= 0 else 0)
    if isinstance(rng, torch.Generator):
        found = int(torch.randint(SEEDS, (), generator=rng, device=rng.device))
    elif isinstance(rng, np.random.RandomState):
        found = int(rng.randint(SEEDS, dtype=np.int64))
    elif isinstance(rng, random.Random):
        found = rng.randrange(SEEDS)
    else:
        try:
            found = int(np.random.default_rng(rng).integers(SEEDS))
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"rng={shown(repr(rng))} is no source of random numbers ({shown(error)}); give a generator of numpy, "
                f"torch or Python, or a seed"
            ) from error
    if ranks > 1:
        log.warning("rng: this rank drew the seed %d; frames are split rightly only where all ranks drew it", found)
    return found, rng


def check_asked(buffer_size: int | None, tail: str | None, video_backend: str | None, videos: bool) -> None:
    if buffer_size is not None:
        warnings.warn(
            "buffer_size is deprecated and ignored: frames are drawn from a pool of whole episodes; set "
            "episode_pool_size",
            DeprecationWarning,
            stacklevel=3,
        )
    if tail not in (None, "drop", "wrap"):
        raise SpecError(f"tail={shown(tail)!r}: None, 'drop' or 'wrap' is expected (batches can 'pad': loader())")
    if video_backend not in (None, *BACKENDS):
        raise SpecError(f"video_backend={shown(video_backend)!r}: one of {', '.join(BACKENDS)} is expected, or None")
    if video_backend not in (None, "pyav"):
        log.info("video_backend=%r: frames are decoded by PyAV, which gives the same pixels", video_backend)
    if not isinstance(videos, bool):
        raise SpecError(f"download_videos={shown(repr(videos))} is not True or False")


def checked_faults(faults: Any, tail: str | None) -> Faults:
    if faults is None:
        return Faults()
    if not isinstance(faults, Faults):
        raise SpecError(f"faults={shown(repr(faults))} is not of type Faults")
    if faults.policy == "skip" and tail is not None:
        raise SpecError(f"tail={tail!r} counts frames before they are read, and faults may leave some out; give one")
    return faults


def data_files(max_num_shards: Any) -> int | None:
    """Of `max_num_shards`, which LeRobot sets to its number of workers: 0 is no limit."""
    try:
        none = not isinstance(max_num_shards, bool) and max_num_shards is not None and index(max_num_shards) == 0
    except TypeError:
        none = False
    return None if none else max_num_shards


def plain(value: Any) -> Any:
    """Numbers of numpy and torch as Python's; what it is otherwise is looked at by who gets it."""
    if isinstance(value, Mapping):
        return {name: plain(times) for name, times in value.items()}
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else value
