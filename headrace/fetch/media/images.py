"""Images: encoded bytes, PIL images and arrays become RGB pixels.

Turned as their EXIF orientation says. Transparent pixels lie on white. Of a moving image the first frame counts. Colour
profiles are not applied. What is cut short is an error, never a picture with a grey rest; but a JPEG that was given an
end after the cut looks whole. What is damaged is one where the format tells, as by the checksums of a PNG.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.errors import DataError, HeadraceError, Refused, SpecError, shown
from headrace.fetch.media.budget import DEFAULT, Budget
from headrace.fetch.media.sniff import BYTES, image_format
from headrace.floors import note_floor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

_PLUGINS = {
    "JPEG": ("PIL.JpegImagePlugin", "JpegImageFile"),
    "PNG": ("PIL.PngImagePlugin", "PngImageFile"),
    "WEBP": ("PIL.WebPImagePlugin", "WebPImageFile"),
    "GIF": ("PIL.GifImagePlugin", "GifImageFile"),
    "BMP": ("PIL.BmpImagePlugin", "BmpImageFile"),
    "TIFF": ("PIL.TiffImagePlugin", "TiffImageFile"),
}
DRAFT_GAP = 1.5
"""A JPEG may be decoded at a fraction of its size if what comes out is still so many times the size that is asked for.
That moves the result by one level of 255 or two, less than half of what another resampling filter would."""
MAX_SCANS = 200
MAX_CHUNKS = 100_000
ORIENTATION = 0x0112


def decode_image(value: Any, budget: Budget = DEFAULT, *, size: int | None = None) -> NDArray[np.uint8]:
    """Pixels, height x width x 3, of bytes, {bytes, path}, a PIL image, or an array (see `picture_of_array`).

    With `size`, a picture that is much larger may come smaller, but never below 1.5 times that size.
    """
    import numpy as np

    return np.array(open_image(value, budget, size=size))


def open_image(value: Any, budget: Budget = DEFAULT, *, size: int | None = None) -> Image:
    """An RGB image of PIL, loaded and upright. For who goes on to resize it: `image_tensor` takes it as it is."""
    module = _pillow()
    if isinstance(value, Mapping):
        value = value.get("bytes")
    try:
        if isinstance(value, BYTES):
            return _decode(bytes(value), budget, size)
        if isinstance(value, module.Image):
            _require_size(value.size, budget)
            return rgb(_upright(value))
        return _of_array(value, budget)
    except (HeadraceError, MemoryError):
        raise
    except Exception as error:  # a decoder may fail in any way when bytes are wrong
        raise _damaged(error) from error


def _of_array(value: Any, budget: Budget) -> Image:
    from PIL import Image

    from headrace.fetch.media.arrays import picture_of_array

    if isinstance(value, str) or not hasattr(value, "__len__"):
        raise DataError(f"the image is of type {type(value).__name__}; bytes, a PIL image or an array is expected")
    return Image.fromarray(picture_of_array(value, budget))


def _pillow() -> Any:
    try:
        import PIL
        from PIL import Image
    except ImportError as error:
        raise SpecError(
            "images take the package pillow, which is not installed; pip install 'headrace[image]'"
        ) from error
    note_floor("Pillow", PIL.__version__)
    return Image


def _decode(data: bytes, budget: Budget, size: int | None) -> Image:
    budget.require("max_bytes", len(data), "the size in bytes of the image")
    kind = image_format(data)
    if kind == "PNG":
        _require_whole_png(data)
    opener = _measured(_opener(kind), budget) if kind == "GIF" else _opener(kind)
    image: Image = opener(io.BytesIO(data))
    _require_size(image.size, budget)
    if "progressive" in image.info and data.count(b"\xff\xda") > MAX_SCANS:
        raise Refused(f"the JPEG has more than {MAX_SCANS} scans, each of which goes over the whole picture")
    if size is not None and kind == "JPEG":
        image.draft(None, (int(size * DRAFT_GAP),) * 2)
    image.load()
    return rgb(_upright(image))


@cache
def _opener(kind: str) -> Any:
    """The class itself and not Image.open, which looks at the size after its own, global limit, and only warns."""
    module, name = _PLUGINS[kind]
    return getattr(import_module(module), name)


def _measured(opener: Any, budget: Budget) -> Any:
    """Pillow makes room for the first frame of a GIF while it opens it, so each size is looked at when it is set."""

    class Measured(opener):  # type: ignore[misc]
        @property
        def _size(self) -> tuple[int, int]:
            return self.__dict__.get("measured", (0, 0))  # type: ignore[no-any-return]

        @_size.setter
        def _size(self, size: tuple[int, int]) -> None:
            _require_pixels(size, budget)
            self.__dict__["measured"] = size

    return Measured


def _require_size(size: tuple[int, int], budget: Budget) -> None:
    if min(size) < 1:
        raise DataError(f"the image has {size[0]} x {size[1]} pixels, which is none")
    _require_pixels(size, budget)


def _require_pixels(size: tuple[int, int], budget: Budget) -> None:
    # Pillow keeps an address for each row: one of a single pixel takes as much as eight.
    width, height = max(size[0], 8), size[1]
    budget.require("max_pixels", width * height, f"the number of pixels ({size[0]} x {size[1]})")


def _require_whole_png(data: bytes) -> None:
    """Compare the checksum of each chunk, of which Pillow passes over those that matter most."""
    view = memoryview(data)
    at = 8
    for _ in range(MAX_CHUNKS):
        if at + 12 > len(data):
            raise DataError(f"the PNG is cut short, after {len(data):,} bytes")
        length, kind = struct.unpack_from(">I4s", data, at)
        stop = at + 8 + length
        if stop + 4 > len(data):
            raise DataError(f"the PNG is cut short, in chunk {shown(kind)} at byte {at:,}")
        if zlib.crc32(view[at + 4 : stop]) != struct.unpack_from(">I", data, stop)[0]:
            raise DataError(f"the PNG is damaged: the checksum of chunk {shown(kind)} at byte {at:,} is wrong")
        if kind == b"IEND":
            return
        at = stop + 4
    raise Refused(f"the PNG has more than {MAX_CHUNKS:,} chunks")


def _upright(image: Image) -> Image:
    """Turned and mirrored as its EXIF orientation says. An EXIF block that cannot be read says nothing."""
    from PIL import Image

    info = image.info
    if "exif" not in info and "xmp" not in info and "XML:com.adobe.xmp" not in info and image.format != "TIFF":
        return image
    try:
        orientation = image.getexif().get(ORIENTATION, 1)
    except Exception:  # the picture is good without it
        return image
    turn = Image.Transpose
    turns = (
        turn.FLIP_LEFT_RIGHT,
        turn.ROTATE_180,
        turn.FLIP_TOP_BOTTOM,
        turn.TRANSPOSE,
        turn.ROTATE_270,
        turn.TRANSVERSE,
        turn.ROTATE_90,
    )
    if isinstance(orientation, int) and 2 <= orientation <= 8:
        return image.transpose(turns[orientation - 2])
    return image


def rgb(image: Image) -> Image:
    """8 bits of red, green and blue; whatever is transparent lies on white."""
    mode = image.mode
    if mode.startswith("I") or mode == "F":
        return _deep(image)
    if mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        return _on_white(image.convert("RGBA"))
    return image if mode == "RGB" else image.convert("RGB")


def _on_white(image: Image) -> Image:
    from PIL import Image

    opacity = image.getchannel("A")
    if opacity.getextrema() == (255, 255):
        return image.convert("RGB")
    ground = Image.new("RGB", image.size, (255, 255, 255))
    ground.paste(image, mask=opacity)
    return ground


def _deep(image: Image) -> Image:
    """16 bits lose their lower half; PIL itself would cut off all above 255."""
    import numpy as np
    from PIL import Image

    from headrace.fetch.media.arrays import bytes_of

    array = np.asarray(image)
    if array.dtype.kind in "iu" and array.size and 255 < array.max() <= 0xFFFF and array.min() >= 0:
        array = array.astype(np.uint16)
    return Image.fromarray(bytes_of(array)).convert("RGB")


def _damaged(error: Exception) -> DataError:
    from PIL.Image import DecompressionBombError, DecompressionBombWarning

    said = shown(" ".join(str(error).split()))
    is_text_bomb = "MAX_TEXT" in said or "Decompressed Data Too Large" in said  # since and before Pillow 11
    if is_text_bomb or isinstance(error, DecompressionBombError | DecompressionBombWarning):
        return Refused(f"the image would take far more room than its bytes say: {said}")
    return DataError(f"the image cannot be decoded: {said or type(error).__name__}")
