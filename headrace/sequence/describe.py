"""How tokens become sequences of one length: the description `Pack`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.errors import SpecError
from headrace.mix.describe import one_of, put, whole

Method = Literal["best_fit", "concat", "none"]


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Documents into sequences; what does not fit is carried on, never lost."""

    method: Method = "best_fit"
    """best_fit: whole documents, together where they fit; concat: one after the other, cut where a sequence is full;
    none: a sequence holds one document, or a piece of a long one."""
    seq_len: int
    """Tokens of a sequence."""
    overlap: int = 0
    """Tokens that a later piece of a document repeats as context; they are not learned twice."""
    slack: int = 4
    """best_fit: sequences' worth of tokens held beyond a batch, to choose from."""

    def __post_init__(self) -> None:
        one_of("method", self.method, Method)
        put(
            self,
            seq_len=whole("seq_len", self.seq_len, least=2),
            overlap=whole("overlap", self.overlap, least=0),
            slack=whole("slack", self.slack, least=0),
        )
        if self.overlap >= self.seq_len:
            raise SpecError(
                f"overlap={self.overlap} is not below seq_len={self.seq_len}: a piece would hold nothing new; lower it"
            )
