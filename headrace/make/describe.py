"""How rows become tokens, and what happens to rows that cannot: as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from headrace.errors import SpecError, shown

Backend = Literal["auto", "reference", "fast"]
BACKENDS: tuple[str, ...] = get_args(Backend)


@dataclass(frozen=True, kw_only=True)
class Tokenize:
    """Which tokenizer, and what it puts around each document."""

    tokenizer: str
    """A folder with a tokenizer.json, such a file, or a model on the Hub."""
    bos: bool | None = None
    """Begin each document with the bos token; None: only where the tokenizer does so by itself."""
    eos: bool | str | None = None
    """End each document with the tokenizer's eos token (True), with this token ("<|endoftext|>"), or with none (False).
    None: with the tokenizer's own, which must then be known."""
    backend: Backend = "auto"
    """`reference` is the tokenizers library, `fast` is fastokens; `auto` takes the fast one while it gives the same."""
    column: str | None = None
    """The column that holds the text; None: the one the source names."""
    threads: int | None = None
    """Of each tokenizer library in this process; None: what the library takes, and one for the fast backend."""

    def __post_init__(self) -> None:
        if not isinstance(self.tokenizer, str) or not self.tokenizer.strip() or "\0" in self.tokenizer:
            raise SpecError(
                f"tokenizer={shown(self.tokenizer)!r}: the path of a folder with a tokenizer.json, of such a file, or "
                f"the name of a model on the Hub like 'org/name' is expected"
            )
        if not (self.bos is None or isinstance(self.bos, bool)):
            raise SpecError(f"bos={shown(self.bos)!r}: it is true, false, or left out to do as the tokenizer does")
        if not (self.eos is None or isinstance(self.eos, bool) or (isinstance(self.eos, str) and self.eos)):
            raise SpecError(
                f"eos={shown(self.eos)!r}: it is a token like '<|endoftext|>', true, false, or left out to do as the "
                f"tokenizer does"
            )
        if self.backend not in BACKENDS:
            raise SpecError(f"backend={shown(self.backend)!r} is not a backend; backends: {', '.join(BACKENDS)}")
        if self.column is not None and (not isinstance(self.column, str) or not self.column):
            raise SpecError(f"column={shown(self.column)!r}: the name of a column is expected, or none at all")
        if self.threads is not None and (type(self.threads) is not int or not 1 <= self.threads <= 1024):
            raise SpecError(f"threads={shown(self.threads)!r}: a whole number from 1 to 1024 is expected")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What happens to a row that cannot be read or made ready: bad JSON, a null text, a corrupt image."""

    policy: Literal["raise", "skip"] = "raise"
    """raise: the run stops at the row. skip: the row is left out and recorded, and the next one takes its place."""
    budget: int = 100
    """skip: rows that each lane may leave out over the whole run; one more stops the run. `load` counts a row once,
    however often it comes; a `TrueStreamingDataset` counts it each time."""

    def __post_init__(self) -> None:
        if self.policy not in ("raise", "skip"):
            raise SpecError(f"policy={shown(self.policy)!r}: rows that fail 'raise', or the run may 'skip' them")
        if type(self.budget) is not int or self.budget < 0:
            raise SpecError(f"budget={shown(self.budget)!r}: a whole number of rows from 0 on is expected")

    @property
    def skips(self) -> bool:
        return self.policy == "skip"
