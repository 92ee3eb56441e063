"""Rows made samples by a formatter: its text becomes tokens, its media go along as they are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.address import Address
from headrace.errors import DataError, HeadraceError, NotAllowed, described, shown
from headrace.fetch.block import RowBlock
from headrace.make.cut import ends_of_media, marks_of, without_cut
from headrace.make.draft import rendered
from headrace.make.prepare import Samples
from headrace.make.sample import ERROR, MEDIA_STOP, Sample, has_media
from headrace.make.template import Span, Template, media_stop
from headrace.make.tokenize import Tokenizer
from headrace.make.tokens import TOKENS, token
from headrace.make.values import said_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Formatter: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, str]], Any]
"""(row, special tokens) -> a sample (a dict with `text`), several of them, or None."""

_SPANS, _STOP = "__spans__", "__stop__"
"""In a sample on its way: the characters that are learned, and where its media end."""
_TEXTS = ("text", "segments", "turns", "messages", "tools", _SPANS, _STOP)
"""What tokens are made of, and nobody needs once they are."""


@dataclass(frozen=True, kw_only=True)
class Rendering:
    """How the text of a sample comes about, and what is to be known of its tokens."""

    learn_all: bool = True
    """Every token is learned from; else only what the assistant says."""
    template: Template | None = None
    """Writes conversations; None: the formatter's own text is taken."""
    media_stops: bool = False
    """Whether to find out which tokens come after the last of a sample's media."""
    room: int | None = None
    """Tokens of a sample that are given, where its end is cut off."""


class Formatted:
    arrays = None
    columns: list[str] | None = None
    """All of them: only the formatter knows what it needs."""

    def __init__(
        self,
        formatter: Formatter,
        tokens: Mapping[str, str],
        tokenizer: Tokenizer,
        rendering: Rendering | None = None,
        *,
        group_by: str | None = None,
        keep_errors: bool = False,
    ) -> None:
        """`keep_errors`: a row that fails gives a sample that holds the error, for whoever may skip it."""
        self._formatter, self._tokens, self._tokenizer = formatter, tokens, tokenizer
        self._rendering = rendering or Rendering()
        self.group_by, self._keep_errors = group_by, keep_errors

    def __call__(self, block: RowBlock) -> list[Samples]:
        addresses = block.addresses
        rows: list[dict[str, Any]] = [{} for _ in addresses]
        for name, values in block.columns.items():
            for row, value in zip(rows, values, strict=True):
                row[name] = value
        found = [self._tried(row, address) for row, address in zip(rows, addresses, strict=True)]
        try:
            made = self._tokenized([one for several in found for one in several])
        except DataError as error:
            if len(rows) > 1:
                raise  # one by one, to know which
            error.add_note(f"in {shown(addresses[0], 1000)}")
            if not self._keep_errors:
                raise
            found = [[{"text": "", ERROR: error}]]
            made = self._tokenized(found[0])
        return [[sample for _ in several if (sample := next(made)) is not None] for several in found]

    def failed(self, error: DataError) -> Samples | None:
        """Of a row that could not even be read."""
        return list(self._tokenized([{"text": "", ERROR: error}])) if self._keep_errors else None

    def _tried(self, row: dict[str, Any], address: Address) -> list[dict[str, Any]]:
        if self.group_by is not None and row["rows"] is None:
            return []  # the first row of its group stands for it
        try:
            return [self._rendered(one, address) for one in self._formatted(row, address)]
        except (DataError, NotAllowed) as error:
            if not self._keep_errors:
                raise
            return [{"text": "", ERROR: error}]

    def _formatted(self, row: dict[str, Any], address: Address) -> list[dict[str, Any]]:
        try:
            made = self._formatter(row, self._tokens)
        except HeadraceError as error:
            error.add_note(f"in {shown(address, 1000)}")
            raise
        except Exception as error:
            where = shown(address, 1000)
            raise DataError(f"{where}: its formatter failed: {type(error).__name__}: {shown(error)}") from error
        several = made if isinstance(made, list) else [] if made is None else [made]
        for one in several:
            if not isinstance(one, dict) or not isinstance(one.get("text"), str):
                raise DataError(
                    f"{shown(address, 1000)}: its formatter gave {_given(one)}; a dict with 'text', a list of them, or "
                    f"None is expected"
                )
            if one.get("segments") and not _makes(one["segments"], one["text"]):
                raise DataError(
                    f"{shown(address, 1000)}: its formatter gave segments that do not make its text; pairs of a text "
                    f"and whether it is learned are expected"
                )
        return [_flagged(one, address) for one in several]

    # --- text

    def _rendered(self, one: dict[str, Any], address: Address) -> dict[str, Any]:
        """The sample with the text that is asked for; where a template writes it, with what of it is learned."""
        template, learn = self._rendering.template, not self._rendering.learn_all
        if template is None:
            stop = media_stop(one["text"], self._tokens) if self._rendering.media_stops else None
            return one if stop is None else {**one, _STOP: stop}
        try:
            written = template.render(one, learn)
        except HeadraceError as error:
            error.add_note(f"in {shown(address, 1000)}")
            raise
        if written is not None:
            return {**one, "text": written.text, _SPANS: written.learned, _STOP: written.media_stop}
        start = token(self._tokens, "assistant_start")
        if start and start in one["text"]:
            raise DataError(
                f"{shown(address, 1000)}: its formatter gave a text with {shown(start)!r} in it and neither turns nor "
                f"messages, so that no template can write it; give 'messages', or take render='tokens'"
            )
        return {**one, _SPANS: _spans(self._segments(one)), _STOP: media_stop(one["text"], self._tokens)}

    def _segments(self, one: dict[str, Any]) -> Sequence[tuple[str, bool]]:
        """What is tokenized on its own: so that it is known for each token whether it is learned from."""
        if self._rendering.learn_all:
            return [(one["text"], True)]
        segments: Sequence[tuple[str, bool]] | None = one.get("segments")
        return segments or rendered(one["text"], self._tokens) or [("", True)]

    # --- tokens

    def _tokenized(self, several: Sequence[dict[str, Any]]) -> Iterator[Sample | None]:
        """A sample of each; None: there is no token in it to learn from. Fails before the first."""
        if self._rendering.template is not None and not self._rendering.learn_all:
            made = [self._by_places(one, found) for one, found in self._placed(several)]
        else:
            made = self._by_segments(several)
        return iter(made)

    def _placed(self, several: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Any]]:
        return zip(several, self._tokenizer.encode_with_places([one["text"] for one in several]), strict=True)

    def _by_places(self, one: dict[str, Any], found: Any) -> Sample | None:
        """Of a text that is tokenized as a whole: a token is learned if it has a character that is."""
        import numpy as np

        ids, places = found
        loss = np.zeros(len(ids), dtype=np.bool_)
        for start, stop in one.get(_SPANS, ()):
            loss |= (places[:, 0] < stop) & ((places[:, 1] > start) | (places[:, 0] >= start))
        one = self._fitted(one, len(ids), partial(counts_before, places))
        return self._sample(one, ids, loss, _tokens_before(places, one.get(_STOP)))

    def _by_segments(self, several: Sequence[dict[str, Any]]) -> list[Sample | None]:
        import numpy as np

        parts = [self._segments(one) for one in several]
        ids = iter(self._tokenizer.encode([text for segments in parts for text, _ in segments]))
        in_one = [one for one, segments in zip(several, parts, strict=True) if len(segments) == 1 and self._stops(one)]
        stops = {id(one): _tokens_before(places, one.get(_STOP)) for one, (_, places) in self._placed(in_one)}
        made = []
        for one, segments in zip(several, parts, strict=True):
            tokens = [next(ids) for _ in segments]
            sizes = [len(part) for part in tokens]
            learned = [own for _, own in segments]
            loss = None if all(learned) else np.repeat(learned, sizes)
            stop = stops.get(id(one), None if len(segments) == 1 else _sizes_before(segments, sizes, one.get(_STOP)))
            one = self._fitted(one, sum(sizes), partial(self._tokens_in, segments, sizes))
            made.append(self._sample(one, tokens[0] if len(tokens) == 1 else np.concatenate(tokens), loss, stop))
        return made

    def _tokens_in(self, segments: Sequence[tuple[str, bool]], sizes: Sequence[int], stops: list[int]) -> list[int]:
        """Tokens of the segments up to each of some characters, in order. No segment is tokenized more than once."""
        inside: list[tuple[str, int, list[int]]] = []
        """Segments with such a character, the tokens before them, and the characters."""
        at = tokens = done = 0
        for (text, _), size in zip(segments, sizes, strict=True):
            first, done = done, bisect_right(stops, at + len(text))
            if done > first:
                inside.append((text, tokens, [stop - at for stop in stops[first:done]]))
            at, tokens = at + len(text), tokens + size
        found = self._tokenizer.encode_with_places([text for text, _, _ in inside])
        counts: list[int] = []
        for (_, start, own), (_, places) in zip(inside, found, strict=True):
            counts += [start + count for count in counts_before(places, own)]
        return counts + [tokens] * (len(stops) - done)

    def _fitted(
        self, one: dict[str, Any], size: int, tokens_before: Callable[[list[int]], list[int]]
    ) -> dict[str, Any]:
        """Without the media that stand where it will be cut off."""
        room, template = self._rendering.room, self._rendering.template
        if room is None or size <= room or not has_media(one):
            return one
        marks = marks_of(self._tokens) if template is None else template.marks
        return without_cut(one, ends_of_media(one["text"], marks), tokens_before, room)

    def _stops(self, one: dict[str, Any]) -> bool:
        return self._rendering.media_stops and one.get(_STOP) is not None and has_media(one)

    def _sample(
        self, one: dict[str, Any], tokens: NDArray[np.int32], loss: NDArray[np.bool_] | None, stop: int | None
    ) -> Sample | None:
        idle = loss is not None and not loss[: self._rendering.room].any() and one.get("is_training") is not False
        if (idle or not len(tokens)) and ERROR not in one:
            return None
        extras = {name: value for name, value in one.items() if name not in _TEXTS}
        if self._rendering.media_stops and has_media(one):
            extras[MEDIA_STOP] = len(tokens) if stop is None else stop
        return Sample(tokens, None if loss is None or bool(loss.all()) else loss, extras)


class FromFormatter(Formatted):
    """Only what a formatter writes: for sequences of tokens that nothing goes along with."""

    def __init__(self, name: str, formatter: Formatter, tokenizer: Tokenizer, group_by: str | None) -> None:
        """`name`: changes with what the formatter does."""
        super().__init__(formatter, TOKENS, tokenizer, group_by=group_by)
        self.name = name

    def _formatted(self, row: dict[str, Any], address: Address) -> list[dict[str, Any]]:
        several = super()._formatted(row, address)
        if any(has_media(one) for one in several):
            raise DataError(
                f"{shown(address, 1000)} has images, videos or sounds, which do not go into sequences of tokens; read "
                f"this data set by TrueStreamingDataset, or name a column of text"
            )
        return [{"text": one["text"]} for one in several]


def _given(one: Any) -> str:
    """What a formatter gave instead of a sample. It is not quoted: it may have text of a row."""
    if not isinstance(one, dict):
        return described(one)
    if "text" in one:
        return f"a dict whose 'text' is {described(one['text'])}"
    keys = ", ".join(repr(shown(key, 40)) if isinstance(key, str) else described(key) for key in list(one)[:8])
    return f"a dict without 'text' ({f'its keys: {keys}' if one else 'it is empty'})"


def _makes(segments: Any, text: str) -> bool:
    try:
        return "".join([part for part, _ in segments]) == text
    except (TypeError, ValueError):
        return False


def _spans(segments: Sequence[tuple[str, bool]]) -> list[Span]:
    """The characters of the learned ones."""
    found, at = [], 0
    for text, learned in segments:
        found += [(at, at + len(text))] if learned else []
        at += len(text)
    return found


def _flagged(one: dict[str, Any], address: Address) -> dict[str, Any]:
    """The sample, with a flag that is true or false, or with none."""
    if type(one.get("is_training", True)) is bool:
        return one
    try:
        flag = said_of("is_training", one["is_training"])
    except DataError as error:
        error.add_note(f"in {shown(address, 1000)}")
        raise
    rest = {name: value for name, value in one.items() if name != "is_training"}
    return rest if flag is None else {**rest, "is_training": flag}


def _tokens_before(places: Any, stop: int | None) -> int | None:
    """Tokens up to the last that has a character before `stop`."""
    if stop is None:
        return None
    before = (places[:, 0] < stop).nonzero()[0]
    return int(before[-1]) + 1 if len(before) else 0


def counts_before(places: Any, stops: Sequence[int]) -> list[int]:
    """The same of several, each looked up: of all tokens from one on, the first character is known."""
    import numpy as np

    firsts = np.minimum.accumulate(places[::-1, 0])[::-1]
    return [int(count) for count in np.searchsorted(firsts, stops)]


def _sizes_before(segments: Sequence[tuple[str, bool]], sizes: Sequence[int], stop: int | None) -> int | None:
    """Tokens up to the end of the segment that has the character before `stop`."""
    at = tokens = 0
    for (text, _), size in zip(segments, sizes, strict=True):
        if stop is None or at >= stop:
            break
        at, tokens = at + len(text), tokens + size
    return None if stop is None else tokens
