"""From texts to ids: the tokenizers library, and a faster one that is only used while it gives the same ids.

A tokenizer's ids are part of what a resumed run repeats, so both must be equal to the last id. That is found out where
it is cheap: before the first text, on probes of every script and of the tokenizer's own special tokens, and on the
first texts of the run. Whether a library treats a tokenizer rightly depends on its rules for normalizing, splitting and
merging, which do not change while it runs. What could still slip through is a character or a word that neither the
probes nor the first texts hold; so a stretch of one text in a few thousand goes through both for as long as the run
lasts. A difference found that late is no reason to stop: the reference takes over for good, and the log says what to do
about the tokens that were given before.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from headrace import rng
from headrace.errors import SpecError, shown, unquoted
from headrace.make import growth, probes
from headrace.run import fast_tokenizer_lost

if TYPE_CHECKING:
    import numpy as np
    import tokenizers
    from numpy.typing import NDArray

Ids: TypeAlias = "NDArray[np.int32]"
Offsets: TypeAlias = "NDArray[np.int64]"

log = logging.getLogger(__name__)

FIRST_TEXTS = 64
"""So many texts of the run are compared before the fast backend is trusted,"""
FIRST_CHARS = 65_536
"""or so many characters of them, which the reference reads in a few hundredths of a second."""
CHECK_TEXTS = 1024
"""Between two comparisons later on lie at least so many texts,"""
CHECK_CHARS = 16_000_000
"""and at least so many characters, so that they take less than a hundredth of the time also where texts are short."""
STRETCH = 256
"""Characters of a text that are compared later on."""
INSTALL_FAST = "pip install 'headrace[fast]'"
LOST = (
    "fastokens is not used, tokenizers is: this process was forked from one where fastokens had threads of its own, "
    "which are gone; threads=1, or processes that are spawned, avoid that"
)


class Encoder(Protocol):
    """Texts in, ids out, with nothing before or after them."""

    def encode_flat(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        """The ids of all texts in one array; text i has those from offsets[i] to offsets[i + 1]."""


class Reference:
    """The tokenizers library."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode_flat(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        import numpy as np

        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        offsets = np.zeros(len(encodings) + 1, np.int64)
        offsets[1:] = np.cumsum([len(encoding) for encoding in encodings])
        ids = np.empty(int(offsets[-1]), np.int32)
        start = 0
        for encoding in encodings:
            stop = start + len(encoding)
            ids[start:stop] = encoding.ids
            start = stop
        return ids, offsets


class Fast:
    """fastokens."""

    def __init__(self, text: str, split_special: bool) -> None:
        import fastokens

        self._split_special = split_special
        self._tokenizer: Any = fastokens.Tokenizer.from_json_str(text)

    def encode_flat(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        import numpy as np

        ids, offsets = self._tokenizer.encode_batch_flat(texts, False, self._split_special)
        return np.frombuffer(ids, "<i4"), np.frombuffer(offsets, "<i8")


def open_fast(text: str, split_special: bool) -> Encoder:
    """The fast backend for a tokenizer.json; where it does not know the tokenizer, it raises what it likes."""
    return Fast(text, split_special)


class Watched:
    """The fast backend for as long as it gives what the reference gives, then the reference for good."""

    def __init__(self, reference: Encoder, fast: Encoder, must: bool) -> None:
        self._reference = reference
        self._fast: Encoder | None = fast
        self._must = must
        """A difference in the first texts is an error."""
        self._first_texts = FIRST_TEXTS
        self._first_chars = FIRST_CHARS
        self._texts = self._chars = 0
        """Given since the last comparison."""
        self._trusted = 0
        """Texts given that were not compared."""

    @property
    def is_fast(self) -> bool:
        return self._fast is not None

    def encode_flat(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        if self._fast is not None and fast_tokenizer_lost():
            self._fast = None
            log.warning("%s", LOST)
        if self._fast is None:
            return self._reference.encode_flat(texts)
        try:
            found = self._fast.encode_flat(texts)
        except BaseException as error:
            if not is_failure(error):
                raise
            # Where the reference fails as well, the texts are to blame, and this is where it says so.
            right = self._reference.encode_flat(texts)
            self._fall_back(f"it failed: {unquoted(error)}")
            return right
        sample = self._sample(texts)
        if sample and (difference := first_difference(self._reference, self._fast, sample)):
            self._fall_back(difference)
            return self._reference.encode_flat(texts)
        self._trusted += len(texts) - len(sample)
        return found

    def _sample(self, texts: Sequence[str]) -> list[str]:
        """Those of the first texts, or that stretch of a later one, that both have to agree on now."""
        chosen = []
        for text in texts[: self._first_texts]:
            chosen.append(text[: self._first_chars])
            self._first_chars -= len(chosen[-1])
            self._first_texts = self._first_texts - 1 if self._first_chars else 0
            if not self._first_texts:
                break
        if chosen:
            return chosen
        self._texts += len(texts)
        self._chars += sum(map(len, texts))
        if self._texts < CHECK_TEXTS or self._chars < CHECK_CHARS:
            return []
        self._texts = self._chars = 0
        stream = rng.key("tokenize", self._trusted)
        text = texts[rng.draw(stream, 0, len(texts))]
        start = rng.draw(stream, 1, max(len(text) - STRETCH, 0) + 1)
        return [text[start : start + STRETCH]]

    def _fall_back(self, why: str) -> None:
        self._fast = None
        if self._must and not self._trusted:
            raise unequal(why)
        log.warning(
            "fastokens is not used any longer, tokenizers is: %s; %s",
            why,
            f"{self._trusted} texts given before were not compared: if their tokens matter, go back to a state from "
            f"before this run and set backend='reference'"
            if self._trusted
            else "no text was given before that had not been compared",
        )


def choose(reference: tokenizers.Tokenizer, backend: str) -> Encoder:
    """The encoder that `backend` asks for."""
    plain = Reference(reference)
    if backend == "reference":
        return plain
    if fast_tokenizer_lost():
        log.warning("%s", LOST)
        return plain
    must = backend == "fast"
    texts = probes.texts([token.content for token in reference.get_added_tokens_decoder().values()])
    if growth.too_much(reference, texts):
        if must:
            raise unequal("its rules make too much of the texts that both are compared on")
        log.info("tokenizing with tokenizers; this tokenizer makes too much of the texts to compare fastokens on")
        return plain
    try:
        fast = open_fast(reference.to_str(), reference.encode_special_tokens)
    except ModuleNotFoundError as error:
        if must:
            raise SpecError(f"backend='fast' needs {error.name}, which is not installed; {INSTALL_FAST}") from error
        return plain
    except BaseException as error:
        if not is_failure(error):
            raise
        if must:
            raise unequal(f"it cannot open it: {unquoted(error)}") from None
        log.info("tokenizing with tokenizers; fastokens cannot open this tokenizer: %s", unquoted(error))
        return plain
    difference = first_difference(plain, fast, texts, quoted=True)
    if difference and must:
        raise unequal(difference)
    if difference:
        log.warning("fastokens is not used, tokenizers is: %s", difference)
        return plain
    log.info("tokenizing with fastokens, which is equal to tokenizers on %d probe texts", len(texts))
    return Watched(plain, fast, must)


def first_difference(reference: Encoder, fast: Encoder, texts: Sequence[str], *, quoted: bool = False) -> str | None:
    """What the fast backend gives that the reference does not, in words; None: they are equal on `texts`. `quoted`:
    these are ours, and not those of a data set."""
    right, right_offsets = reference.encode_flat(texts)
    try:
        ids, offsets = fast.encode_flat(texts)
    except BaseException as error:
        if not is_failure(error):
            raise
        return f"it failed: {unquoted(error)}"
    if len(offsets) != len(right_offsets):
        return f"it gives {len(offsets) - 1} lists of ids for {len(texts)} texts"
    for i, text in enumerate(texts):
        wanted = right[right_offsets[i] : right_offsets[i + 1]].tolist()
        found = ids[offsets[i] : offsets[i + 1]].tolist()
        if wanted != found:
            pairs = zip(wanted, found, strict=False)
            at = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(wanted), len(found)))
            what = f"the text {shown(text, 60)!r}" if quoted else f"text {i} of {len(texts)} ({len(text):,} characters)"
            return (
                f"{what} has {len(wanted)} ids, from number {at} on {wanted[at : at + 5]}, and "
                f"it gives {len(found)}, from there on {found[at : at + 5]}"
            )
    return None


def is_failure(error: BaseException) -> bool:
    """Whether a library failed, and not somebody who wants to stop. A panic in Rust comes as a BaseException."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def unequal(why: str) -> SpecError:
    return SpecError(
        f"backend='fast': fastokens does not give this tokenizer's ids: {why}. Use backend='auto' or 'reference'"
    )
