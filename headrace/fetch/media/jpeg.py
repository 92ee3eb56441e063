"""JPEGs whose data ends before their pixels do: libjpeg makes up the rest, and Pillow does not pass on its warning.

A plain JPEG is one scan, which is decoded while it is read. So Pillow gets all before its end first, and has to have
made the last row by then, but for what the last 8 bytes or so may hold. Progressive ones, and others of several scans,
are decoded only when all is read: of them, it cannot be told.
"""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING, Any

from headrace.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

AHEAD = b"\xff\0" * 8
"""A decoder looks beyond the bits it needs. These are ones, which are no code, and with which a scan is filled up."""
_MARKS = 1, 254
"""With these the last row begins and ends before it is decoded. What is made up is the same all along a row."""


def open_jpeg(data: bytes) -> Image:
    """As Pillow opens it. To load it is an error where pixels are missing, and that can be told."""
    plain, watched = _openers()
    stop = scan_end(data)
    image: Image = watched(io.BytesIO(data)) if stop else plain(io.BytesIO(data))
    if stop:
        image.stop = stop  # type: ignore[attr-defined]
    return image


def scan_end(data: bytes) -> int:
    """Where the only scan of a JPEG ends, if it is one of Huffman codes with all channels in it; 0 if not."""
    at, channels = 2, 0
    while at + 10 <= len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xFF:
            at += 1
            continue
        if kind == 0xC0 or kind == 0xC1:
            channels = data[at + 9]
        elif kind == 0xDA:
            # The last end there is. If it is that of another picture behind, nobody will stop there.
            return max(0, data.rfind(b"\xff\xd9", at)) if channels and data[at + 4] == channels else 0
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    return 0


@cache
def _openers() -> tuple[Any, Any]:
    """Pillow's own, and one that looks at what is there when a scan ends."""
    from PIL.JpegImagePlugin import JpegImageFile

    class Watched(JpegImageFile):
        stop = 0
        """Where the scan ends."""
        is_short: bool | None = None
        """Whether the last row was missing there. None: it has not come so far."""

        def load_prepare(self) -> None:
            super().load_prepare()
            for place, value in self._marks():
                self.im.putpixel(place, value)

        def load_read(self, read_bytes: int) -> bytes:
            left = self.stop - self.fp.tell()  # type: ignore[union-attr]
            if left > 0:
                body = self.fp.read(min(read_bytes, left))  # type: ignore[union-attr]
                return body + AHEAD if len(body) == left else body
            if self.is_short is None:
                self.is_short = self._is_marked()
            return super().load_read(read_bytes)

        def load_end(self) -> None:
            super().load_end()
            if self.is_short and not self._is_marked():
                raise DataError("the JPEG is cut short or damaged: its data ends before its last row of pixels")

        def _is_marked(self) -> bool:
            return all(self.im.getpixel(place) == value for place, value in self._marks())

        def _marks(self) -> list[tuple[tuple[int, int], Any]]:
            (width, height), bands = self.size, self.im.bands
            first, last = _MARKS if bands == 1 else ((mark,) * bands for mark in _MARKS)
            marks = [((width - 1, height - 1), last), ((0, height - 1), first)]
            return marks if width > 1 else marks[1:]

    return JpegImageFile, Watched
