"""Two loss curves in a picture, to be seen lying on each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

SIZE = (1000, 560)
SCALE = 2
"""Drawn so much larger and shrunk, which smooths the lines."""
LEFT, TOP, RIGHT, BOTTOM = 70, 50, 30, 60
INK, GRID, BROAD, FINE, MARK = "#222222", "#e4e4e4", "#f2b56b", "#1f4e9c", "#c0392b"


def draw(path: Path, alone: Sequence[float], killed: Sequence[float], kills: Sequence[tuple[int, int]]) -> None:
    """`kills`: at which step it was killed, and after which it went on."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (SIZE[0] * SCALE, SIZE[1] * SCALE), "white")
    paper = _Paper(ImageDraw.Draw(image), max(len(alone), len(killed), 2), max([*alone, *killed, 1.0]))
    paper.axes()
    for at, since in kills:
        paper.kill(at, since)
    paper.curve(alone, BROAD, 7)
    paper.curve(killed, FINE, 2)
    paper.legend([("left alone", BROAD, 7), ("killed with SIGKILL and resumed", FINE, 2)])
    path.parent.mkdir(parents=True, exist_ok=True)
    image.resize(SIZE, Image.Resampling.BOX).save(path, "PNG")


class _Paper:
    """Steps from left to right, loss from the bottom to the top, 0 at the bottom."""

    def __init__(self, pen: ImageDraw, steps: int, top: float) -> None:
        from PIL import ImageFont

        self._pen, self._steps, self._top = pen, steps, top
        self._font = ImageFont.load_default(15 * SCALE)

    def _at(self, step: float, loss: float) -> tuple[float, float]:
        width, height = SIZE[0] - LEFT - RIGHT, SIZE[1] - TOP - BOTTOM
        x = LEFT + (step - 1) / (self._steps - 1) * width
        return x * SCALE, (TOP + (1 - loss / self._top) * height) * SCALE

    def _line(self, points: Sequence[tuple[float, float]], color: str, width: int) -> None:
        self._pen.line(points, fill=color, width=width * SCALE, joint="curve")

    def _text(self, at: tuple[float, float], text: str, anchor: str, color: str = INK) -> None:
        self._pen.text(at, text, fill=color, font=self._font, anchor=anchor)

    def axes(self) -> None:
        for loss in range(int(self._top) + 1):
            x, y = self._at(1, loss)
            self._line([(x, y), self._at(self._steps, loss)], GRID, 1)
            self._text((x - 10 * SCALE, y), str(loss), "rm")
        stride = next(n for k in range(9) for n in (10**k, 2 * 10**k, 5 * 10**k) if 6 * n >= self._steps)
        for step in [1, *range(stride, self._steps + 1, stride)]:
            x, y = self._at(step, 0)
            self._text((x, y + 8 * SCALE), str(step), "mt")
        self._line([self._at(1, self._top), self._at(1, 0), self._at(self._steps, 0)], INK, 1)
        self._text((SIZE[0] * SCALE / 2, (SIZE[1] - 12) * SCALE), "step", "mb")
        self._text((12 * SCALE, 22 * SCALE), "loss", "lm")

    def kill(self, at: int, since: int) -> None:
        (left, top), (right, bottom) = self._at(since, self._top), self._at(at, 0)
        self._pen.rectangle((left, top, right, bottom), fill="#fbeceb")
        self._line([(right, top), (right, bottom)], MARK, 1)
        for line, text in enumerate((f"killed at {at},", f"back to {since}")):
            self._text((right + 6 * SCALE, top + (60 + 20 * line) * SCALE), text, "lt", MARK)

    def curve(self, losses: Sequence[float], color: str, width: int) -> None:
        self._line([self._at(step, loss) for step, loss in enumerate(losses, 1)], color, width)

    def legend(self, entries: Sequence[tuple[str, str, int]]) -> None:
        x, y = LEFT * 3 * SCALE, 22 * SCALE
        for text, color, width in entries:
            self._line([(x, y), (x + 40 * SCALE, y)], color, width)
            self._text((x + 52 * SCALE, y), text, "lm")
            x += 180 * SCALE
