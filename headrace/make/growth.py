"""How much longer a tokenizer can make a text before it looks its tokens up, known from its tokenizer.json.

A rule that replaces one character by a megabyte makes gigabytes of a page. Such tokenizers are refused where they are
opened; with those that may make texts somewhat longer, a text is measured before it is tokenized, and so are the texts
that two libraries are compared on.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from headrace import outside_json
from headrace.errors import DataError, SpecError, shown

if TYPE_CHECKING:
    import tokenizers

MOST_VALUES = 8 << 20
"""Of a tokenizer.json. The largest in use have about 2,500,000."""
MOST = 10_000
"""Times that a text may become longer. Tokenizers in use reach a few thousand by this reckoning, which takes the worst
of each rule."""
MOST_IN_WORDS = 8
"""Times that its words may become longer once they are split. Tokenizers in use reach 5."""
MOST_AROUND = 256
"""Bytes that a model may put before or after a part of a word. Tokenizers in use have 4."""
HARMLESS = 8
"""Times that no text is measured for, and that a text of any length may become longer."""
ROOM = 1 << 22
"""Bytes that a text may have after all rules where they make it more than `HARMLESS` times as long."""
BATCH = 1 << 24
"""Bytes after all rules of texts that are tokenized together. The library takes about 80 times as much for them."""
MOST_SPECIAL = 1000
"""Tokens that may be put around each text."""
_SLICE = 1024
_LONG_PATTERN = 64
"""Bytes of a text that a rule replaces. A longer one may not be found where a text is measured in slices."""
_LISTS = ("normalizers", "pretokenizers", "processors", "decoders")
_FORMS = {
    "NFC": 3,
    "NFD": 4,
    "NFKC": 11,
    "NFKD": 11,
    "Lowercase": 2,
    "BertNormalizer": 3,
    "ByteLevel": 2,
    "Metaspace": 5,
}
"""The most bytes that each makes of one. The same form twice in a row changes nothing, but for those in `_EACH`."""
_EACH = {"ByteLevel", "BertNormalizer", "Metaspace"}


def check(text: str, where: object) -> None:
    """Refuse a tokenizer.json that can make far more of a text than there is. What is no JSON is left to others."""
    try:
        whole = outside_json.parse(text, MOST_VALUES)
    except outside_json.TooManyValues as error:
        raise DataError(f"{shown(where)}: {error}; take another tokenizer") from error
    except (ValueError, RecursionError):
        return
    if not isinstance(whole, dict):
        return
    model = whole.get("model")
    around = (
        [model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix")] if _is_dict(model) else []
    )
    words = _product(whole.get("pre_tokenizer"))
    for times, most, part in (
        (words, MOST_IN_WORDS, "pre_tokenizer (ByteLevel, Metaspace)"),
        (_product(whole.get("normalizer")) * words, MOST, "normalizer (Replace, Prepend)"),
        (_product(whole.get("decoder")), MOST, "decoder"),
        *((1 + _bytes(text), MOST_AROUND, "model (continuing_subword_prefix, end_of_word_suffix)") for text in around),
    ):
        if times > most:
            raise DataError(
                f"{shown(where)}: its rules can make a text {times:,.0f} times as long, and {most:,} times may be; "
                f"look at its {part}, and take another tokenizer"
            )
    _check_processor(whole.get("post_processor"), where)


class Growth(NamedTuple):
    """Times that the rules of a tokenizer can make a text longer, in bytes."""

    times: float
    """All rules that run before a model."""
    in_words: float
    """Those of the pre_tokenizer, which are part of `times`."""


class TooLong(Exception):
    """A text that would become too long; `index` is its place in the list."""

    def __init__(self, index: int, why: str) -> None:
        super().__init__(why)
        self.index = index


def of(tokenizer: tokenizers.Tokenizer) -> Growth:
    normalizer, words = (
        1.0 if part is None else _product(json.loads(part.__getstate__()))
        for part in (tokenizer.normalizer, tokenizer.pre_tokenizer)
    )
    return Growth(normalizer * words, words)


def parts(tokenizer: tokenizers.Tokenizer, growth: Growth, texts: Sequence[str]) -> list[Sequence[str]]:
    """The texts in lists that can each be tokenized together. Raises `TooLong`."""
    sizes = [len(text.encode("utf-8", "surrogatepass")) for text in texts] if growth.times > HARMLESS else []
    if growth.times * sum(sizes) <= BATCH and growth.times * max(sizes, default=0) <= ROOM:
        return [texts]
    found: list[Sequence[str]] = []
    start, total = 0, 0.0
    for i, (text, size) in enumerate(zip(texts, sizes, strict=True)):
        grown = growth.times * size
        if grown > ROOM:  # others need not be measured, which takes as long as the rules do
            most = max(ROOM, HARMLESS * size)
            grown = _grown(tokenizer, growth, text, most)
            if grown > most:
                raise TooLong(
                    i,
                    f"has {len(text):,} characters in {size:,} bytes, of which the tokenizer's rules make more than "
                    f"{most:,}; cut the text, or take the Replace or Prepend out of the normalizer in its "
                    f"tokenizer.json",
                )
        if total + grown > BATCH and i > start:
            found.append(texts[start:i])
            start, total = i, 0
        total += grown
    return [*found, texts[start:]]


def too_much(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> bool:
    """Whether its rules make too much of texts to tokenize them together."""
    try:
        return len(parts(tokenizer, of(tokenizer), texts)) > 1
    except TooLong:
        return True


def _grown(tokenizer: tokenizers.Tokenizer, growth: Growth, text: str, most: int) -> float:
    """Bytes that a text can have after all rules; it stops soon after `most`."""
    size = 0
    for start in range(0, len(text), _SLICE):
        piece = text[start : start + _SLICE].encode("utf-8", "replace").decode()
        if tokenizer.normalizer is not None:
            piece = tokenizer.normalizer.normalize_str(piece)
        size += len(piece.encode())
        if size * growth.in_words > most:
            break
    return size * growth.in_words


def _product(rule: Any) -> float:
    found, before = 1.0, ""
    for one in _rules(rule):
        kind = str(one.get("type"))
        if kind != before or kind not in _FORMS or kind in _EACH:
            found *= _factor(kind, one)
        before = kind
    return found


def _rules(rule: Any) -> Iterator[Mapping[str, Any]]:
    """A rule, or those of a sequence, in order."""
    waiting = [rule]
    while waiting:
        one = waiting.pop()
        if not _is_dict(one):
            continue
        inner = [part for name in _LISTS for part in one.get(name) or () if isinstance(one.get(name), list)]
        if inner:
            waiting += reversed(inner)
        else:
            yield one


def _factor(kind: str, rule: Mapping[str, Any]) -> float:
    if kind == "Replace":
        pattern, content = rule.get("pattern"), _bytes(rule.get("content"))
        fixed = pattern.get("String") if _is_dict(pattern) else None
        size = _bytes(fixed)
        return max(1.0, content / size) if 0 < size <= _LONG_PATTERN else 1.0 + content
    if kind == "Prepend":
        return 1.0 + _bytes(rule.get("prepend"))
    if kind == "Precompiled":
        return float(max(1, _longest_form(rule.get("precompiled_charsmap"))))
    if kind == "ByteLevel" and rule.get("add_prefix_space"):
        return 3.0  # a word of one letter becomes that letter and two bytes for the space
    return _FORMS.get(kind, 1)


def _longest_form(charsmap: Any) -> int:
    """Bytes of the longest text in a map of SentencePiece: a size, a trie of that size, and texts that end with NUL."""
    try:
        blob = base64.b64decode(charsmap or "")
    except (ValueError, TypeError, binascii.Error):
        return 1  # the library says why it cannot read it
    texts = blob[4 + int.from_bytes(blob[:4], "little") :]
    return max(map(len, texts.split(b"\0")))


def _check_processor(rule: Any, where: object) -> None:
    copies = 1
    for one in _rules(rule):
        single = one.get("single")
        pieces = [piece for piece in single if _is_dict(piece)] if isinstance(single, list) else []
        copies *= max(1, sum("Sequence" in piece for piece in pieces))
        ids = 0
        for piece in pieces:
            name = piece["SpecialToken"].get("id") if _is_dict(piece.get("SpecialToken")) else None
            tokens = one.get("special_tokens")
            token = tokens.get(name) if _is_dict(tokens) and isinstance(name, str) else None
            ids += len(token.get("ids") or ()) if _is_dict(token) else 0
        if copies > 1 or ids > MOST_SPECIAL:
            raise SpecError(
                f"{shown(where)}: its post_processor writes a text {copies:,} times with {ids:,} special tokens; once "
                f"and {MOST_SPECIAL:,} may be; correct it, or take another tokenizer"
            )


def _is_dict(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _bytes(text: Any) -> int:
    return len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else 0
