"""The frame table of an MP4: where the samples of its video lie and when they are shown, from its index (moov) alone.

Of the file, only the index is read: the first 64 KiB, and what lies elsewhere in as few reads as its place allows. No
number of it is believed before it is checked against the bytes that are there and against the budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import DataError, Refused
from headrace.fetch.media.boxes import (
    Bytes,
    child,
    children,
    entries,
    name_of,
    named,
    need,
    number,
    read_index,
    require_room,
)
from headrace.fetch.media.budget import DEFAULT, Budget
from headrace.fetch.media.layout import MAX_EDITS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

MAX_OFFSET = 1 << 60
UNSPECIFIED = 2
"""Of colors."""

CODECS = {
    b"avc1": ("h264", b"avcC"),
    b"avc3": ("h264", b"avcC"),
    b"hvc1": ("hevc", b"hvcC"),
    b"hev1": ("hevc", b"hvcC"),
    b"av01": ("av1", b"av1C"),
    b"vp09": ("vp9", b"vpcC"),
}
"""By what an MP4 calls it: the codec, and the box that has what its decoder must know first."""


class Color(NamedTuple):
    """What the container says about colors, in the numbers of ITU-T H.273."""

    primaries: int
    transfer: int
    matrix: int
    full: bool | None
    """Whether levels take the full range; None if it does not say."""

    def known(self) -> Color:
        """Without numbers that mean nothing."""
        return Color(
            self.primaries if self.primaries <= 22 else UNSPECIFIED,
            self.transfer if self.transfer <= 18 else UNSPECIFIED,
            self.matrix if self.matrix <= 17 else UNSPECIFIED,
            self.full,
        )


class Look(NamedTuple):
    """What a sample description says."""

    codec: str
    extradata: bytes
    width: int
    height: int
    color: Color | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Track:
    """The video of an MP4, column-wise. A sample is the bytes of one frame; samples are in the order of decoding."""

    codec: str
    """"h264", "hevc", "av1" or "vp9"."""
    extradata: bytes
    width: int
    height: int
    color: Color | None
    timescale: int
    """Units of `times` in a second."""
    offsets: Ints
    """Of samples in the file, which may be cut short of them."""
    sizes: Ints
    times: Ints
    """When samples are shown. Those that an edit list takes out have a time, but no place in `order`."""
    keys: NDArray[np.bool_]
    """Whether decoding may begin at a sample."""
    order: Ints
    """The order of showing: sample `order[n]` is frame n."""
    starts: Ints
    """Of frames: the sample at which to begin, so that frame n comes out whole."""
    file_size: int

    @property
    def num_frames(self) -> int:
        return len(self.order)

    @property
    def end(self) -> int:
        """Bytes that the file has when all samples are in it."""
        return int((self.offsets + self.sizes).max())

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """The range of bytes with every sample that decoding frames `first` to `stop` takes, as far as it is there."""
        samples = self.order[max(first, 0) : max(stop, 0)]
        if not len(samples):
            return 0, 0
        begin, end = int(self.starts[max(first, 0) : stop].min()), int(samples.max()) + 1
        offsets = self.offsets[begin:end]
        last = int((offsets + self.sizes[begin:end]).max())
        return min(int(offsets.min()), self.file_size), min(last, self.file_size)


def read_track(data: Bytes, budget: Budget = DEFAULT) -> Track:
    """The frame table of the first video in an MP4. A file whose samples are cut short still has one."""
    index = read_index(data, budget)
    with named(data.name):
        return _track(memoryview(index), data.size, budget)


# Tracks


def _track(index: memoryview, file_size: int, budget: Budget) -> Track:
    import numpy as np

    media, edits = _video(index)
    table = need(media, b"minf", b"stbl")
    _require_own(child(need(media, b"minf"), b"dinf"))
    look = _only_look(need(table, b"stsd"), budget)
    sizes = _sizes(table, budget)
    count = len(sizes)
    if not count:
        raise DataError("the video has no frames")
    offsets = _offsets(table, sizes, budget)
    shown_at = _times(table, count, budget)
    keys = _keys(table, count, budget)
    scale = _scale(need(media, b"mdhd"))
    order = np.argsort(shown_at, kind="stable")
    if edits is not None and number(edits, 4):
        begin, stop, empty = _edit(edits, scale, _scale(need(index, b"mvhd")))
        order = order[(shown_at[order] >= begin) & (shown_at[order] < stop)]
        if not len(order):
            raise DataError(f"the video has no frames: its edit list takes out all {count:,} of them")
        shown_at += empty - shown_at[order[0]]
    return Track(
        **look._asdict(),
        timescale=scale,
        offsets=offsets,
        sizes=sizes,
        times=shown_at,
        keys=keys,
        order=order,
        starts=_starts(keys, shown_at, order),
        file_size=file_size,
    )


def _video(index: memoryview) -> tuple[memoryview, memoryview | None]:
    """The media of the first video, and its edit list if it has one."""
    boxes = children(index)
    kinds = {kind for kind, _ in boxes}
    if b"cmov" in kinds:
        raise Refused("the MP4 has a packed index (cmov), of a size that nobody knows before; it is not read")
    handlers = []
    for kind, track in boxes:
        if kind != b"trak":
            continue
        media = need(track, b"mdia")
        handler = bytes(need(media, b"hdlr")[8:12])
        handlers.append(name_of(handler))
        if handler == b"vide":
            if b"mvex" in kinds:
                raise Refused(
                    "the MP4 is in pieces (fragmented: moof), each with an index of its own, which are not read; "
                    "write it with one index: ffmpeg -i in.mp4 -c copy out.mp4"
                )
            edits = child(track, b"edts")
            return media, None if edits is None else child(edits, b"elst")
    raise DataError(f"the file has no video in it; its tracks are: {', '.join(handlers[:8]) or 'none'} (soun is sound)")


def _require_own(references: memoryview | None) -> None:
    """Each entry of the list of data references says that the samples are in the file itself."""
    found = None if references is None else child(references, b"dref")
    if found is not None and any(not number(body, 0) & 1 for _, body in children(found[8:])):
        raise Refused("the MP4 names another file (dref) that is to have its samples, which is not opened")


def _only_look(box: memoryview, budget: Budget) -> Look:
    """Codec, size and colors: what a sample description says, of which all must say the same."""
    count = number(box, 4)
    found = [_look(kind, body) for kind, body in children(box[8:])]
    if not found or len(found) < count:
        raise DataError(f"the MP4 has {len(found)} of {count} sample descriptions (stsd): its index is damaged")
    if any(one != found[0] for one in found):
        raise Refused(
            f"the MP4 has {len(found)} different sample descriptions: it was put together from videos that do not "
            f"fit; encode them alike"
        )
    budget.require("max_pixels", found[0].width * found[0].height, "the number of pixels of a frame")
    return found[0]


def _look(kind: bytes, body: memoryview) -> Look:
    if kind in (b"encv", b"drmi"):
        raise Refused(f"the video is encrypted ({name_of(kind)}), so that nobody can decode it without its key")
    if kind not in CODECS:
        known = ", ".join(sorted({codec for codec, _ in CODECS.values()}))
        raise Refused(f"its video codec is {name_of(kind)}, which is not decoded; those that are: {known}")
    codec, config = CODECS[kind]
    width, height = number(body, 24, 2), number(body, 26, 2)
    inside = dict(reversed(children(body[78:])))
    if config not in inside and codec in ("h264", "hevc"):
        raise DataError(f"the MP4 has no {name_of(config)}, without which {codec} cannot be decoded")
    extradata = bytes(inside.get(config, b""))
    color = None
    if codec == "vp9":
        if len(extradata) >= 10:
            color = Color(extradata[7], extradata[8], extradata[9], bool(extradata[6] & 1))
        extradata = b""  # FFmpeg's decoder wants none
    box = inside.get(b"colr")
    if box is not None and bytes(box[:4]) in (b"nclx", b"nclc"):
        full = bool(number(box, 10, 1) & 0x80) if bytes(box[:4]) == b"nclx" else None
        color = Color(number(box, 4, 2), number(box, 6, 2), number(box, 8, 2), full)
    return Look(codec, extradata, width, height, color and color.known())


# Tables of samples


def _sizes(table: memoryview, budget: Budget) -> Ints:
    import numpy as np

    box = child(table, b"stsz")
    if box is not None:
        size, count = number(box, 4), number(box, 8)
        require_room(box, "stsz", count, 12 + (0 if size else 4 * count), budget)
        if size:
            return np.full(count, size, np.int64)
        return np.frombuffer(box, ">u4", count, 12).astype(np.int64)
    box = need(table, b"stz2")
    bits, count = number(box, 7, 1), number(box, 8)
    if bits not in (4, 8, 16):
        raise DataError(f"its table stz2 has entries of {bits} bits, which cannot be: its index is damaged")
    require_room(box, "stz2", count, 12 + (count * bits + 7) // 8, budget)
    if bits == 4:
        pairs = np.frombuffer(box, np.uint8, (count + 1) // 2, 12)
        return np.stack([pairs >> 4, pairs & 15], -1).reshape(-1)[:count].astype(np.int64)
    return np.frombuffer(box, f">u{bits // 8}", count, 12).astype(np.int64)


def _repeat(values: Ints, counts: Ints, length: int) -> Ints:
    """Each value as many times as its count says, `length` in all, or fewer: no more are made."""
    import numpy as np

    ends = np.minimum(np.cumsum(counts), length)
    found: Ints = np.repeat(values, np.diff(ends, prepend=0))
    return found


def _offsets(table: memoryview, sizes: Ints, budget: Budget) -> Ints:
    """Where samples lie: one after the other, from the beginning of the chunk they are in."""
    import numpy as np

    box = child(table, b"stco")
    if box is not None:
        chunks = entries(box, "stco", 1, budget)[:, 0]
    else:
        halves = entries(need(table, b"co64"), "co64", 2, budget)
        if len(halves) and int(halves[:, 0].max()) >= MAX_OFFSET >> 32:
            raise DataError("its table co64 names places that no file has: its index is damaged")
        chunks = (halves[:, 0] << 32) | halves[:, 1]
    runs = entries(need(table, b"stsc"), "stsc", 3, budget)
    firsts, num = runs[:, 0], len(chunks)
    if not len(runs) or firsts[0] != 1 or (np.diff(firsts) <= 0).any():
        raise DataError("its table stsc is not in order: its index is damaged")
    spread = np.diff(np.minimum(np.append(firsts, num + 1), num + 1))
    chunk = _repeat(np.arange(num), np.repeat(runs[:, 1], spread), len(sizes))
    if len(chunk) < len(sizes):
        raise DataError(f"its tables stsc and stco say where {len(chunk):,} of {len(sizes):,} samples lie")
    before = np.cumsum(sizes) - sizes
    begins = np.flatnonzero(np.diff(chunk, prepend=-1))
    lengths = np.diff(begins, append=len(chunk))
    found: Ints = chunks[chunk] + before - np.repeat(before[begins], lengths)
    return found


def _times(table: memoryview, count: int, budget: Budget) -> Ints:
    """When samples are shown, before any edit."""
    import numpy as np

    steps = entries(need(table, b"stts"), "stts", 2, budget)
    lasts = _repeat(steps[:, 1], steps[:, 0], count)
    if len(lasts) < count:
        raise DataError(f"its table stts tells the times of {len(lasts):,} of {count:,} samples")
    found: Ints = np.cumsum(lasts) - lasts
    box = child(table, b"ctts")
    if box is not None:
        shifts = entries(box, "ctts", 2, budget)
        # Of either version: signed, as all writers mean it.
        late = _repeat(shifts[:, 1].astype(np.uint32).view(np.int32).astype(np.int64), shifts[:, 0], count)
        found[: len(late)] += late
    return found


def _keys(table: memoryview, count: int, budget: Budget) -> NDArray[np.bool_]:
    import numpy as np

    box = child(table, b"stss")
    if box is None:
        return np.ones(count, bool)
    numbers = entries(box, "stss", 1, budget)[:, 0]
    if len(numbers) and not (numbers.min() >= 1 and numbers.max() <= count):
        raise DataError(f"its table stss names samples that are not there: 1 to {count:,} are")
    keys = np.zeros(count, bool)
    keys[numbers - 1] = True
    return keys


def _starts(keys: NDArray[np.bool_], times: Ints, order: Ints) -> Ints:
    """The last key sample that comes before a frame both in decoding and in showing; else the first of all samples.

    A frame that is decoded after a key frame and shown before it leans on what was before that, too.
    """
    import numpy as np

    at = np.flatnonzero(keys)
    if not len(at):
        return np.zeros(len(order), np.int64)
    latest = np.maximum.accumulate(times[at])
    last = np.minimum(np.searchsorted(at, order, "right"), np.searchsorted(latest, times[order], "right")) - 1
    found: Ints = np.where(last < 0, 0, at[np.maximum(last, 0)])
    return found


def _scale(box: memoryview) -> int:
    """Units in a second, of mdhd and of mvhd."""
    found = number(box, 20 if number(box, 0, 1) == 1 else 12)
    if not 0 < found < 1 << 31:
        raise DataError(f"the MP4 has a time scale of {found}: its index is damaged")
    return found


def _edit(box: memoryview, scale: int, movie_scale: int) -> tuple[int, int, int]:
    """What an edit list shows: times from and to, and for how long there is nothing before."""
    wide, count = 8 if number(box, 0, 1) == 1 else 4, number(box, 4)
    if count > MAX_EDITS:
        raise Refused(f"the MP4 has a list of {count:,} edits; more than {MAX_EDITS:,} are not followed")
    empty = begin = stop = 0
    for i, at in enumerate(range(8, 8 + count * (2 * wide + 4), 2 * wide + 4), 1):
        length = min((number(box, at, wide) * scale + movie_scale // 2) // movie_scale, MAX_OFFSET)
        begin = number(box, at + wide, wide)
        if begin >> (8 * wide - 1):  # below 0: nothing is shown
            empty = min(empty + length, MAX_OFFSET)
            continue
        if i < count:
            raise Refused(f"the MP4 has an edit list of {count} parts; it is followed only if the last one shows all")
        begin = min(begin, MAX_OFFSET)
        stop = begin + length
    return begin, stop, empty
