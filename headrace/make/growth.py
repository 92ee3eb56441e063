"""How much longer a tokenizer can make a text before it splits it, known from its tokenizer.json.

A rule that replaces one character by a megabyte makes gigabytes of a page. Such tokenizers are refused where they are
opened; with those that may make texts somewhat longer, a long text is measured before it is tokenized.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from headrace.errors import DataError, SpecError, shown

if TYPE_CHECKING:
    import tokenizers

MOST = 10_000
"""Times that a text may become longer. Tokenizers in use reach a few hundred by this reckoning, which takes the worst
of each rule."""
HARMLESS = 16
"""Times that no text is measured for."""
ROOM = 1 << 24
"""Characters that a text which grows more than `HARMLESS` times may have once it is normalized."""
MOST_SPECIAL = 1000
"""Tokens that may be put around each text."""
_SLICE = 4096
_LISTS = ("normalizers", "pretokenizers", "processors", "decoders")
_FORMS = {
    "NFC": 3,
    "NFD": 4,
    "NFKC": 11,
    "NFKD": 11,
    "Lowercase": 2,
    "BertNormalizer": 3,
    "ByteLevel": 2,
    "Metaspace": 4,
}
"""The most bytes that each makes of one. The same form twice in a row changes nothing, but for those in `_EACH`."""
_EACH = {"ByteLevel", "BertNormalizer", "Metaspace"}


def check(text: str, where: object) -> None:
    """Refuse a tokenizer.json that can make far more of a text than there is. What is no JSON is left to others."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return
    if not isinstance(whole, dict):
        return
    model = whole.get("model")
    around = (
        [model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix")] if _is_dict(model) else []
    )
    found = _product(whole.get("normalizer")) * _product(whole.get("pre_tokenizer"))
    for one in (found, _product(whole.get("decoder")), *(1 + _bytes(part) for part in around)):
        if one > MOST:
            raise DataError(
                f"{shown(where)}: its rules can make a text {one:,.0f} times as long, and {MOST:,} times may be; look "
                f"at its normalizer (Replace, Prepend), pre_tokenizer and decoder, and take another tokenizer"
            )
    _check_processor(whole.get("post_processor"), where)


def of(tokenizer: tokenizers.Tokenizer) -> float:
    """Times that the normalizer of an open tokenizer can make a text longer."""
    if tokenizer.normalizer is None:
        return 1.0
    return _product(json.loads(tokenizer.normalizer.__getstate__()))


def too_long(tokenizer: tokenizers.Tokenizer, growth: float, text: str) -> str | None:
    """Why a text would become too long, in words; None: it does not."""
    if growth <= HARMLESS or growth * len(text) <= ROOM or tokenizer.normalizer is None:
        return None
    size = 0
    for start in range(0, len(text), _SLICE):
        size += len(tokenizer.normalizer.normalize_str(text[start : start + _SLICE]))
        if size > max(ROOM, HARMLESS * len(text)):
            return (
                f"has {len(text):,} characters, of which the tokenizer's normalizer makes more than {size:,}; cut the "
                f"text, or take the Replace or Prepend out of its tokenizer.json"
            )
    return None


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
        return max(1.0, content / _bytes(fixed)) if fixed else 1.0 + content
    if kind == "Prepend":
        return 1.0 + _bytes(rule.get("prepend"))
    if kind == "Precompiled":
        return float(max(1, _longest_form(rule.get("precompiled_charsmap"))))
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
