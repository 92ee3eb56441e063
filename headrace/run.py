"""Who and where we are: rank, folders, environment. Read here only, once, and passed down."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Literal, Self

from headrace.errors import NotAllowed, SpecError, shown
from headrace.files import start_time

DEFAULT_ENDPOINT = "https://huggingface.co"
RETRY_SECONDS = 600.0
MOST_RETRY_SECONDS = 30 * 86_400.0


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
    worker_seconds: float = 300.0
    """A worker that gives no batch for so long has hung."""
    memory_bytes: int = 1 << 62
    """What the pools of one process may take."""

    def disk_bytes(self) -> int:
        """What fetched shards may take: the limit that was set, or half of the free disk."""
        return _half_of_disk(self.cache_dir) if self.cache_bytes is None else self.cache_bytes

    @classmethod
    def here(
        cls,
        *,
        cache_dir: str | Path | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """The run as its surroundings describe it; arguments win.

        Rank and world size come from the first that knows them: arguments, an initialised torch.distributed, an
        initialised Accelerate, RANK and WORLD_SIZE, SLURM_PROCID and SLURM_NTASKS. Otherwise there is one process.
        """
        env = os.environ if environ is None else environ
        retry_seconds(env)  # a value that cannot be is told now, not in the middle of an outage
        here, size = _argued(rank, world_size) or _torch_rank() or _accelerate_rank() or _environ_rank(env) or (0, 1)
        return cls(
            rank=here,
            world_size=size,
            launch=_launch(env) if size > 1 else "",
            cache_dir=Path(cache_dir or env.get("HEADRACE_CACHE_DIR") or "data"),
            cleanup=_cleanup(env.get("HF_SHARD_CACHE_CLEANUP") or "auto"),
            cache_bytes=_bytes("HEADRACE_CACHE_BYTES", env),
            endpoint=(env.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/"),
            offline=env.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"},
            stall_seconds=_seconds("HEADRACE_STALL_SECONDS", env, 30.0),
            worker_seconds=_seconds("HEADRACE_WORKER_SECONDS", env, 300.0),
            memory_bytes=_bytes("HEADRACE_MEMORY_BYTES", env) or _half_of_memory(),
        )


def _half_of_disk(folder: Path) -> int:
    """Half of what is free where the cache lies, or will lie."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free // 2


def _half_of_memory() -> int:
    """Half of what is free on this machine, or of what our control group allows."""
    found = [1 << 62]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        pass  # another system, or no limit
    return min(found) // 2


def retry_seconds(environ: Mapping[str, str] | None = None) -> float:
    """How long a server that does not answer is tried again; 0: it is asked once."""
    text = (os.environ if environ is None else environ).get("HEADRACE_RETRY_SECONDS", "")
    if not text:
        return RETRY_SECONDS
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MOST_RETRY_SECONDS:
        raise SpecError(
            f"HEADRACE_RETRY_SECONDS={shown(text)!r}: a number of seconds from 0 (ask once) to "
            f"{MOST_RETRY_SECONDS:g} (30 days), for example 600"
        )
    return value


def hub_token() -> str | None:
    """The user's Hub token, read at each use and kept nowhere."""
    from huggingface_hub import constants, get_token

    try:
        return get_token()
    except UnicodeDecodeError:
        where = shown(constants.HF_TOKEN_PATH, 1000)
        raise SpecError(f"{where} should hold the Hub's token and is no text; log in again (hf auth login)") from None
    except OSError as error:
        if error.filename is None or os.fspath(error.filename) != os.fspath(constants.HF_TOKEN_PATH):
            raise
        where = shown(constants.HF_TOKEN_PATH, 1000)
        raise NotAllowed(
            f"{where} should hold the Hub's token and cannot be read ({error.strerror}); "
            f"make it a file of yours (chown, chmod 600), or remove it to go on without a token, or set HF_TOKEN"
        ) from error


_TOKENIZER_THREADS = {"fast": 0, "forked": 0}
"""How many threads fastokens may have started in this process, and in the one that this process was forked from."""


def limit_tokenizer_threads(n: int | None) -> None:
    """Let each tokenizer library of this process use `n` threads; one that has started its threads keeps those.

    None leaves `tokenizers` alone, which takes all cores, and gives fastokens one, with which it may be forked.
    """
    env = os.environ
    if n is not None:
        env["RAYON_NUM_THREADS"] = env["FASTOKENS_BPE_THREADS"] = str(n)
        if n > 1 and not _TOKENIZER_THREADS["forked"]:
            env.pop("TOKENIZERS_PARALLELISM", None)
        else:
            env["TOKENIZERS_PARALLELISM"] = "false"
    fast = env.setdefault("FASTOKENS_BPE_THREADS", "1")
    if not _TOKENIZER_THREADS["fast"]:
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_forked_child)
    # What is no number above 0 means all cores to it.
    started = int(fast) if fast.isdecimal() and int(fast) else 2
    _TOKENIZER_THREADS["fast"] = max(_TOKENIZER_THREADS["fast"], started)


def fast_tokenizer_lost() -> bool:
    """Whether fastokens may hang here: threads it had before a fork are gone, and with them the locks they held."""
    return _TOKENIZER_THREADS["forked"] > 1


_PARALLELISM_BEFORE_FORK: list[str | None] = []


def _before_fork() -> None:
    # Threads do not live on in the child. `tokenizers` finds that out by itself, but prints about it unless it is told.
    _PARALLELISM_BEFORE_FORK.append(os.environ.get("TOKENIZERS_PARALLELISM"))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _after_fork() -> None:
    value = _PARALLELISM_BEFORE_FORK.pop()
    if value is None:
        os.environ.pop("TOKENIZERS_PARALLELISM", None)
    else:
        os.environ["TOKENIZERS_PARALLELISM"] = value


def _in_forked_child() -> None:
    _PARALLELISM_BEFORE_FORK.clear()
    _TOKENIZER_THREADS["forked"] = _TOKENIZER_THREADS["fast"]


def _argued(rank: int | None, world_size: int | None) -> tuple[int, int] | None:
    if rank is None and world_size is None:
        return None
    given = f"rank={shown(rank)}, world_size={shown(world_size)}"
    if rank is None or world_size is None:
        raise SpecError(f"{given}: one means nothing without the other; give both, or neither to have them found")
    try:
        pair = index(rank), index(world_size)
    except TypeError:
        raise SpecError(f"{given}: two whole numbers are expected") from None
    if not 0 <= pair[0] < pair[1]:
        raise SpecError(f"{given}: ranks count from 0 and stay below the world size")
    return pair


def _torch_rank() -> tuple[int, int] | None:
    """From the process group, if this process has one. Who has not imported torch has none."""
    group = sys.modules.get("torch.distributed")
    # a torch built without distributed has the module, but not its functions
    if group is None or not group.is_available() or not group.is_initialized():
        return None
    return group.get_rank(), group.get_world_size()


def _accelerate_rank() -> tuple[int, int] | None:
    """From Accelerate's shared state, which is read and not asked: asking an empty one would initialise it."""
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    known = getattr(state, "_shared_state", None) or {}
    if "process_index" not in known or "num_processes" not in known:
        return None
    if known["num_processes"] == 1:
        return None  # on CPUs it takes every rank of torchrun for the only process, unless it is told cpu=True
    return known["process_index"], known["num_processes"]


def _environ_rank(env: Mapping[str, str]) -> tuple[int, int] | None:
    for rank, size in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if env.get(rank) and env.get(size):
            if env[rank].isdecimal() and env[size].isdecimal() and int(env[rank]) < int(env[size]):
                return int(env[rank]), int(env[size])
            given = f"{rank}={shown(env[rank])!r}, {size}={shown(env[size])!r}"
            raise SpecError(f"{given}: two whole numbers are expected, the first below the second")
    # Half of SLURM's pair is what every shell of an allocation has; half of the other is a launcher gone wrong, and
    # going on as a single process would feed every rank the same rows.
    for name, other in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if env.get(name) and (name, env[name]) != ("WORLD_SIZE", "1"):
            raise SpecError(
                f"{name}={shown(env[name])!r} is set and {other} is not, so this process cannot know its share of the "
                f"rows; set both, or unset {name} if this is the only process"
            )
    return None


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


def use_token(token: str | None) -> None:
    """Have the Hub's client use this token, here and in workers; None: the one that it finds by itself."""
    if isinstance(token, str):
        os.environ["HF_TOKEN"] = token
