"""From texts to tokens, with bos and eos."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from headrace.errors import DataError, SpecError, shown, unquoted
from headrace.make import backends, growth
from headrace.make.describe import Tokenize
from headrace.make.load import AN_OBJECT, CONFIG, Names, by_name, from_object, parse
from headrace.run import limit_tokenizer_threads

if TYPE_CHECKING:
    import numpy as np
    import tokenizers
    from numpy.typing import NDArray

    from headrace.make.backends import Ids, Offsets

    Places: TypeAlias = NDArray[np.int64]
    """[tokens, 2]"""

MOST_SHOWN = 8
"""Special tokens of a tokenizer that a message lists."""

LONGEST_WORD = 64
"""Characters of a token that is tokenized to find out what comes before and after a text."""


class TextError(DataError):
    """A text that cannot be tokenized; `index` is its place in the list that was given."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"text {index} of the list {why}")
        self.index = index

    def __reduce__(self) -> tuple[Any, ...]:
        return _text_error, (type(self), self.index, str(self))


class NotText(TextError, TypeError):
    """Something that is no string where a text belongs."""


class Tokenizer:
    """Turns texts into ids, with bos and eos as the description wants them. Made by `open_tokenizer`."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, names: Names, how: Tokenize, backend: str | None = None
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = names.split_special
        for name in ("dropout", "alpha"):
            if getattr(tokenizer.model, name, None):
                raise SpecError(
                    f"the tokenizer has {name}={getattr(tokenizer.model, name)}: it gives other ids each time, and no "
                    f"run could be repeated; set model.{name} to null in its tokenizer.json"
                )
        self._tokenizer, self._names, self.how = tokenizer, names, how
        self._growth = growth.of(tokenizer)
        self.vocab_size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        """One more than the highest id."""
        before, after = _template(tokenizer)
        self.bos_id = self._id(names.bos) if names.bos else next(iter(before), None)
        own = how.eos if isinstance(how.eos, str) else names.eos
        self.eos_id = self._id(own) if own else next(reversed(after), None)
        self.pad_id = self._id(names.pad) if names.pad else None
        self._before, self._after = self._start(before), self._end(after)
        self._fingerprint = ""
        self._encoder = backends.choose(tokenizer, backend or how.backend)

    def __repr__(self) -> str:
        return f"Tokenizer({self.how.tokenizer!r}, vocab_size={self.vocab_size}, backend={self.backend!r})"

    @property
    def backend(self) -> str:
        """Which library is at work: `reference` or `fast`."""
        return "fast" if getattr(self._encoder, "is_fast", False) else "reference"

    @property
    def needs_eos(self) -> bool:
        """Whether nobody said what documents end with: neither the tokenizer nor the description."""
        return self.how.eos is None and self.eos_id is None

    def ask_for_eos(self) -> SpecError:
        """What to say where documents are packed and `needs_eos`."""
        special = [shown(token.content) for token in self._tokenizer.get_added_tokens_decoder().values()]
        there = f" Its special tokens are {', '.join(special[:MOST_SHOWN])}." if special else ""
        return SpecError(
            f"the tokenizer {shown(self.how.tokenizer)!r} names no end-of-document token, so packed documents would "
            f'run into each other.{there} Give the one to end documents with, for example eos="<|endoftext|>" '
            f"(in YAML under tokenize), or eos=False to pack without one"
        )

    @property
    def fingerprint(self) -> str:
        """Two tokenizers with the same one give the same ids. It hangs on neither path, library nor process."""
        if not self._fingerprint:
            whole = json.loads(self._tokenizer.to_str())
            parts = [whole.get(name) for name in ("added_tokens", "normalizer", "pre_tokenizer")]
            # Vocabulary and merges are long, and the library writes them in the order of their ids: no sorting.
            model = dict(whole["model"])
            long = [json.dumps(model.pop(name, None), separators=(",", ":")) for name in ("vocab", "merges")]
            rest = [model, self._before, self._after, self._names.split_special, self.how.column]
            text = json.dumps([parts, rest], sort_keys=True, separators=(",", ":"))
            self._fingerprint = hashlib.blake2b("\n".join([text, *long]).encode(), digest_size=8).hexdigest()
        return self._fingerprint

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text. Nothing is ever cut off."""
        ids, offsets = self.encode_flat(texts)
        bounds = offsets.tolist()
        # Copies: a short text that is kept for long would keep the ids of all others with it.
        return [ids[start:stop].copy() for start, stop in pairwise(bounds)]

    def encode_flat(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        """The ids of all texts in one array; text i has those from offsets[i] to offsets[i + 1]."""
        parts = self._parts(texts)
        try:
            ids, offsets = _together([self._encoder.encode_flat(part) for part in parts])
        except BaseException as error:
            if not backends.is_failure(error) or isinstance(error, SpecError):
                raise
            self._blame(texts, error)
        return _framed(ids, offsets, self._before, self._after)

    def encode_with_places(self, texts: Sequence[str]) -> list[tuple[Ids, Places]]:
        """The same ids without bos and eos, and of each the characters that it stands for: from the first, up to the
        second. The tokenizers library finds them, whatever the backend."""
        import numpy as np

        parts, found = self._parts(texts), []
        try:
            for part in parts:
                for one in self._tokenizer.encode_batch(list(part), add_special_tokens=False):
                    places = np.array(one.offsets, dtype=np.int64).reshape(-1, 2)
                    found.append((np.array(one.ids, dtype=np.int32), places))
        except BaseException as error:
            if not backends.is_failure(error):
                raise
            self._blame(texts, error)
        return found

    def pieces(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text becomes; 0 for one that holds an added token, as special ones are."""
        added = set(self._tokenizer.get_added_tokens_decoder())
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [0 if added.intersection(one.ids) else len(one.ids) for one in found]

    def __reduce__(self) -> tuple[Any, ...]:
        # Made anew from its JSON: the path may lead nowhere where this arrives. What was found to differ here differs
        # there as well.
        backend = None if self.backend == "fast" else "reference"
        return _remake, (self._tokenizer.to_str(), self._names, self.how, backend, self.fingerprint)

    def _parts(self, texts: Sequence[str]) -> list[Sequence[str]]:
        """The texts in lists that the library can take without filling the memory."""
        _check(texts)
        try:
            return growth.parts(self._tokenizer, self._growth, texts)
        except growth.TooLong as error:
            raise TextError(error.index, str(error)) from None

    def _blame(self, texts: Sequence[str], error: BaseException) -> NoReturn:
        for i, text in enumerate(texts):
            try:
                text.encode()
            except UnicodeEncodeError as wrong:
                why = f"holds half of a surrogate pair at character {wrong.start}, which is no Unicode text"
                raise TextError(i, f"{why}; drop the row, or repair it where it was written") from error
        for i, text in enumerate(texts):
            try:
                self._encoder.encode_flat([text])
            except BaseException as wrong:
                if not backends.is_failure(wrong):
                    raise
                raise TextError(i, f"cannot be tokenized: the tokenizer says: {unquoted(wrong)}") from None
        raise DataError(f"{len(texts)} texts cannot be tokenized together: {unquoted(error)}") from None

    def _id(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def _start(self, before: list[int]) -> list[int]:
        """What every document begins with; `before`: what the post-processor puts there."""
        bos, own = self.how.bos, self._names.adds_bos
        if bos is None and own is None:
            return before
        if not (own if bos is None else bos):
            return []
        if self.bos_id is None and bos:
            raise _no_token("bos", self._names.bos)
        if self.bos_id is None or self.bos_id in before:
            return before
        return [self.bos_id]

    def _end(self, after: list[int]) -> list[int]:
        """What every document ends with; `after`: what the post-processor puts there."""
        if self.how.eos is False:
            return []
        if self.eos_id is None and isinstance(self.how.eos, str):
            raise self._no_such_eos(self.how.eos)
        if self.eos_id is None and (self.how.eos or self._names.eos):
            raise _no_token("eos", self._names.eos)
        if self.eos_id is None:
            return after
        return after if self.eos_id in after else [self.eos_id]

    def _no_such_eos(self, eos: str) -> SpecError:
        close = get_close_matches(eos, self._tokenizer.get_vocab(with_added_tokens=True), n=1)
        way = f"did you mean {shown(close[0])!r}?" if close else "give one of its tokens, or eos=False for none"
        return SpecError(f"eos={shown(eos)!r}: the tokenizer's vocabulary has no such token; {way}")


def name_of(tokenizer: Any) -> str:
    """What a tokenizer is called where it is described."""
    if isinstance(tokenizer, str | Path):
        return str(tokenizer)
    return str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)


def open_tokenizer(what: Tokenize | object, how: Tokenize | None = None) -> Tokenizer:
    """A tokenizer from a description; or from a path, a Hub name or an object, described in all else by `how`.

    A path is a folder with a tokenizer.json or such a file. An object is a `tokenizers.Tokenizer` or a fast tokenizer
    of transformers; it is copied, and what becomes of it later makes no difference here.
    """
    if isinstance(what, Tokenize):
        if how is not None and how != what:
            raise SpecError("two descriptions of one tokenizer were given; give one of them")
        return open_tokenizer(what.tokenizer, what)
    if isinstance(what, Tokenizer):
        if how is not None and replace(how, tokenizer=what.how.tokenizer) != what.how:
            raise SpecError(
                f"the tokenizer is open already, as {what.how}, and not as {how}; open it anew from its path"
            )
        return what
    if isinstance(what, Path):
        what = str(what)
    if how is None:
        how = Tokenize(tokenizer=what if isinstance(what, str) else type(what).__name__)
    # Before anything is loaded: the libraries start their threads once.
    limit_tokenizer_threads(how.threads)
    tokenizer, names = by_name(what) if isinstance(what, str) else from_object(what)
    return Tokenizer(tokenizer, names, how)


def _template(tokenizer: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """What the post-processor puts before and after a text."""
    if tokenizer.post_processor is None:
        return [], []
    words = (token for token in tokenizer.get_vocab(with_added_tokens=False) if len(token) <= LONGEST_WORD)
    some = (token for token, _ in zip(words, range(64), strict=False))
    for text in ("a", "0", *some):
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        if plain:
            whole = tokenizer.encode(text).ids
            for at in range(len(whole)):
                if whole[at : at + len(plain)] == plain:
                    return whole[:at], whole[at + len(plain) :]
    return [], []


def _together(found: list[tuple[Ids, Offsets]]) -> tuple[Ids, Offsets]:
    """The ids of lists of texts as those of one list."""
    import numpy as np

    if len(found) == 1:
        return found[0]
    lengths = np.concatenate([np.diff(offsets) for _, offsets in found])
    return np.concatenate([ids for ids, _ in found]), np.concatenate([[0], np.cumsum(lengths)])


def _framed(ids: Ids, offsets: Offsets, before: list[int], after: list[int]) -> tuple[Ids, Offsets]:
    """Put `before` and `after` around each text."""
    import numpy as np

    extra = len(before) + len(after)
    if not extra:
        return ids.copy(), offsets.copy()
    count = len(offsets) - 1
    framed = offsets + extra * np.arange(count + 1)
    out = np.empty(int(framed[-1]), np.int32)
    inside = np.ones(len(out), np.bool_)
    for k, token in enumerate(before):
        out[framed[:-1] + k] = token
        inside[framed[:-1] + k] = False
    for k, token in enumerate(reversed(after)):
        out[framed[1:] - 1 - k] = token
        inside[framed[1:] - 1 - k] = False
    out[inside] = ids
    return out, framed


def _check(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise TypeError("a list of texts is expected, and this is one text; put it into a list")
    if set(map(type, texts)) - {str}:
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise NotText(i, f"is {type(text).__name__} and not a string; choose another column, or drop the row")


def _no_token(kind: str, name: str | None) -> SpecError:
    if name is None:
        way = "leave bos out" if kind == "bos" else 'name the token, for example eos="<|endoftext|>", or set eos=False'
        return SpecError(f"{kind}=True, and the tokenizer has no {kind} token; {way}, or name one in {CONFIG}")
    return SpecError(
        f"the tokenizer names {shown(name)!r} as its {kind} token, and its vocabulary has no such token; correct "
        f"{CONFIG}, or open it with transformers and give the object, or set {kind}=False"
    )


def _remake(text: str, names: Names, how: Tokenize, backend: str | None, fingerprint: str) -> Tokenizer:
    limit_tokenizer_threads(how.threads)
    made = Tokenizer(parse(text, AN_OBJECT), names, how, backend)
    made._fingerprint = fingerprint
    return made


def _text_error(kind: type[TextError], index: int, message: str) -> TextError:
    error = kind.__new__(kind, message)
    error.args, error.index = (message,), index
    return error
