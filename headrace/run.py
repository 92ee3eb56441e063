"""Who and where we are: rank, folders, environment. Read here only, once, and passed down."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from headrace.errors import SpecError, shown
from headrace.files import start_time

DEFAULT_ENDPOINT = "https://huggingface.co"


@dataclass(frozen=True, kw_only=True)
class Run:
    rank: int = 0
    world_size: int = 1
    launch: str = ""
    """Names this launch of a multi-process job (torchrun id, SLURM step), so that its ranks share one listing."""
    cache_dir: Path = Path("data")
    """Shards in `hf_shards/` and indices in `hf_index/` and `file_index/` live below it."""
    cleanup: Literal["auto", "keep"] = "auto"
    cache_bytes: int | None = None
    """At most this many bytes of fetched shards stay on disk, beside what is being read."""
    endpoint: str = DEFAULT_ENDPOINT
    offline: bool = False
    stall_seconds: float = 30.0
    """A download without a byte for so long has stalled."""

    @classmethod
    def here(cls, *, cache_dir: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Self:
        """The run as the environment describes it; arguments win."""
        env = os.environ if environ is None else environ
        rank, world_size = _rank(env)
        return cls(
            rank=rank,
            world_size=world_size,
            launch=_launch(env) if world_size > 1 else "",
            cache_dir=Path(cache_dir or env.get("HEADRACE_CACHE_DIR") or "data"),
            cleanup=_cleanup(env.get("HF_SHARD_CACHE_CLEANUP") or "auto"),
            cache_bytes=_bytes("HEADRACE_CACHE_BYTES", env),
            endpoint=(env.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/"),
            offline=env.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"},
            stall_seconds=_seconds("HEADRACE_STALL_SECONDS", env, 30.0),
        )


def hub_token() -> str | None:
    """The user's Hub token, read at each use and kept nowhere."""
    from huggingface_hub import get_token

    return get_token()


def _rank(env: Mapping[str, str]) -> tuple[int, int]:
    for rank, size in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if env.get(rank) and env.get(size):
            if env[rank].isdecimal() and env[size].isdecimal() and int(env[rank]) < int(env[size]):
                return int(env[rank]), int(env[size])
            given = f"{rank}={shown(env[rank])!r}, {size}={shown(env[size])!r}"
            raise SpecError(f"{given}: two whole numbers are expected, the first below the second")
    return 0, 1


def _launch(env: Mapping[str, str]) -> str:
    names = (
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "MASTER_ADDR",
        "MASTER_PORT",
    )
    parent = f"parent={os.getppid()}.{start_time(os.getppid())}"  # some launchers give every run the same names
    return "|".join([*(f"{name}={env[name]}" for name in names if env.get(name)), parent])


def _cleanup(value: str) -> Literal["auto", "keep"]:
    if value == "auto" or value == "keep":
        return value  # type: ignore[return-value]
    raise SpecError(f"HF_SHARD_CACHE_CLEANUP={shown(value)!r}: it is 'auto' (remove shards behind us) or 'keep'")


def _bytes(name: str, env: Mapping[str, str]) -> int | None:
    text = env.get(name, "")
    if not text:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    if not found:
        raise SpecError(f"{name}={shown(text)!r}: a size like '50GB', '800MiB' or a plain number of bytes")
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** " KMGT".index(found[2].upper() or " "))


def _seconds(name: str, env: Mapping[str, str], default: float) -> float:
    text = env.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 86_400:
        raise SpecError(f"{name}={shown(text)!r}: a number of seconds above 0, for example 30")
    return value
