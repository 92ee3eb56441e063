"""Images: the right pixels, or an error that says what is wrong."""

from __future__ import annotations

import struct
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from media_files import U8, chunk, encoded, mutants, photo, png
from PIL import Image, ImageFile
from PIL import __version__ as pillow_version

from headrace.errors import DataError, Refused
from headrace.fetch.media.budget import Budget
from headrace.fetch.media.images import decode_image, open_image
from headrace.fetch.media.tensors import image_tensor

OLD_PILLOW = int(pillow_version.split(".")[0]) < 13
PHOTO = photo()
GREY = PHOTO[:, :, 0]
RAMP = (np.arange(48 * 64, dtype=np.uint32).reshape(48, 64) * 21 % 65536).astype(np.uint16)
HALF = np.dstack([PHOTO, np.where(np.arange(64) < 32, 0, 255)[None].repeat(48, 0).astype(np.uint8)])
ON_WHITE = np.where(HALF[:, :, 3:] == 0, 255, PHOTO).astype(np.uint8)


def palette(transparency: Any = None) -> tuple[bytes, U8]:
    """A PNG with a palette, and its pixels; colour 0 may be transparent."""
    image = Image.fromarray(PHOTO).quantize(16)
    pixels = np.asarray(image.convert("RGB")).copy()
    options = {}
    if transparency is not None:
        pixels[np.asarray(image) == 0] = 255
        options["transparency"] = transparency
    return encoded(image, "PNG", **options), pixels


def stack(grey: Any) -> U8:
    return np.dstack([grey] * 3).astype(np.uint8)


def deep_rgb() -> bytes:
    """A PNG of 16 bits per colour, which Pillow cannot write."""
    wide = PHOTO.astype(">u2") * 257
    return png(64, 48, 16, 2, b"".join(b"\0" + row.tobytes() for row in wide))


def big_endian(array: Any) -> Image.Image:
    return Image.frombytes("I;16B", array.shape[::-1], array.astype(">u2").tobytes())


def head_only(width: int, height: int) -> bytes:
    return png(width, height, 8, 2, b"\0" * 100)


def edited_gif(width: int, height: int) -> bytes:
    data = bytearray(encoded(Image.fromarray(PHOTO).quantize(16), "GIF"))
    data[6:10] = struct.pack("<HH", width, height)
    return bytes(data)


def edited_jpeg(width: int, height: int) -> bytes:
    data = encoded(PHOTO, "JPEG")
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def bad_sum(kind: bytes) -> bytes:
    data = bytearray(encoded(PHOTO, "PNG"))
    at = data.index(kind) - 4
    (length,) = struct.unpack_from(">I", data, at)
    data[at + 8 + length] ^= 1
    return bytes(data)


LOSSLESS: dict[str, tuple[bytes, U8]] = {
    "png": (encoded(PHOTO, "PNG"), PHOTO),
    "png, grey": (encoded(GREY, "PNG"), stack(GREY)),
    "png, one bit": (encoded(Image.fromarray(GREY > 127), "PNG"), stack((GREY > 127) * 255)),
    "png, palette": palette(),
    "png, palette with one transparent colour": palette(0),
    "png, palette with alpha": palette(bytes([0]) + bytes([255]) * 15),
    "png, grey with alpha": (
        encoded(Image.fromarray(HALF).convert("LA"), "PNG"),
        np.where(HALF[:, :, 3:] == 0, 255, stack(np.asarray(Image.fromarray(PHOTO).convert("L")))).astype(np.uint8),
    ),
    "png, alpha": (encoded(HALF, "PNG"), ON_WHITE),
    "png, grey with one transparent shade": (
        encoded(GREY, "PNG", transparency=int(GREY[0, 0])),
        stack(np.where(GREY[0, 0] == GREY, 255, GREY)),
    ),
    "png, 16 bits": (encoded(RAMP, "PNG"), stack(RAMP >> 8)),
    "png, 16 bits of colour": (deep_rgb(), PHOTO),
    "bmp": (encoded(PHOTO, "BMP"), PHOTO),
    "gif": (encoded(Image.fromarray(PHOTO).quantize(16), "GIF"), palette()[1]),
    "gif whose screen is smaller than its frame": (edited_gif(0, 0), palette()[1]),
    "webp": (encoded(PHOTO, "WEBP", lossless=True), PHOTO),
    "webp, alpha": (encoded(HALF, "WEBP", lossless=True, exact=True), ON_WHITE),
    "tiff": (encoded(PHOTO, "TIFF"), PHOTO),
    "tiff, deflated": (encoded(PHOTO, "TIFF", compression="tiff_deflate"), PHOTO),
    "tiff, 16 bits": (encoded(RAMP, "TIFF"), stack(RAMP >> 8)),
    "tiff, 16 bits, the high one first": (encoded(big_endian(RAMP), "TIFF"), stack(RAMP >> 8)),
    "tiff, 16 bits, all dark": (encoded(RAMP % 256, "TIFF"), stack(RAMP * 0)),
    "tiff, 16 bits, all dark, the high one first": (encoded(big_endian(RAMP % 256), "TIFF"), stack(RAMP * 0)),
    "tiff, fractions": (encoded(Image.fromarray((GREY / 255).astype(np.float32)), "TIFF"), stack(GREY)),
    "tiff, 32 bits": (encoded(Image.fromarray(RAMP.astype(np.int32)), "TIFF"), stack(RAMP >> 8)),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_pixels_come_as_they_were_written(name: str) -> None:
    data, pixels = LOSSLESS[name]
    found = decode_image(data)
    assert found.dtype == np.uint8
    assert found.shape == (48, 64, 3)
    assert found.flags.writeable
    assert np.array_equal(found, pixels)


@pytest.mark.parametrize(
    ("data", "pixels"),
    [
        (encoded(PHOTO, "JPEG", quality=95), PHOTO),
        (encoded(PHOTO, "JPEG", quality=95, progressive=True), PHOTO),
        (encoded(GREY, "JPEG", quality=95), stack(GREY)),
        (encoded(Image.fromarray(PHOTO).convert("CMYK"), "JPEG", quality=95), PHOTO),
        (encoded(Image.fromarray(PHOTO).convert("CMYK"), "TIFF"), PHOTO),
        (encoded(PHOTO, "WEBP", quality=95), PHOTO),
        (encoded(PHOTO, "MPO", quality=95, save_all=True, append_images=[Image.new("RGB", (64, 48))]), PHOTO),
    ],
    ids=["jpeg", "progressive", "grey", "CMYK jpeg", "CMYK tiff", "webp", "two pictures in one jpeg"],
)
def test_lossy_pixels_come_close(data: bytes, pixels: U8) -> None:
    assert np.abs(decode_image(data).astype(int) - pixels).mean() < 2


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, Any] = {"lossless": True} if form == "WEBP" else {"quality": 95} if form == "JPEG" else {}
    found = decode_image(encoded(PHOTO, form, exif=exif, **options)).astype(int)
    turns = {3: 2, 4: 2, 5: -1, 6: -1, 7: 1, 8: 1}.get(orientation, 0)
    upright = np.rot90(PHOTO, turns)
    expected = upright[:, ::-1] if orientation in (2, 4, 5, 7) else upright
    assert found.shape == expected.shape
    assert np.abs(found - expected).mean() < 2


def test_an_exif_block_that_cannot_be_read_says_nothing() -> None:
    data = encoded(PHOTO, "PNG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert np.array_equal(decode_image(data), PHOTO)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_a_moving_image_the_first_frame_counts(form: str) -> None:
    first, other = Image.new("RGB", (8, 8), (255, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 255))
    options = {"lossless": True} if form == "WEBP" else {}
    data = encoded(first, form, save_all=True, append_images=[other] * 5, **options)
    assert np.array_equal(decode_image(data), np.asarray(first))


ARRAYS = {
    "HWC": PHOTO,
    "CHW": PHOTO.transpose(2, 0, 1),
    "nested lists": PHOTO.tolist(),
    "int64": PHOTO.astype(np.int64),
    "uint16": PHOTO.astype(np.uint16) * 257,
    "fractions up to 1": PHOTO / 255,
    "float16 up to 1": (PHOTO / 255).astype(np.float16),
    "fractions up to 255": PHOTO.astype(np.float32),
    "a tensor": torch.from_numpy(PHOTO.copy()),
    "opaque RGBA": np.dstack([PHOTO, np.full((48, 64), 255, np.uint8)]),
    "a PIL image": Image.fromarray(PHOTO),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_and_images_are_taken_as_they_are(name: str) -> None:
    found = decode_image(ARRAYS[name])
    assert found.dtype == np.uint8
    assert np.array_equal(found, PHOTO)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (GREY, stack(GREY)),
        (GREY[:, :, None], stack(GREY)),
        (GREY[None], stack(GREY)),
        (GREY > 127, stack((GREY > 127) * 255)),
        (RAMP, stack(RAMP >> 8)),
        (RAMP.astype(">u2"), stack(RAMP >> 8)),
        ((RAMP % 256).astype(">u2"), stack(RAMP * 0)),
        (big_endian(RAMP % 256), stack(RAMP * 0)),
        (HALF, ON_WHITE),
        (HALF.transpose(2, 0, 1), ON_WHITE),
        (np.zeros((2, 2, 2), np.uint8), np.full((2, 2, 3), 255)),
        (np.zeros((3, 3, 3), np.float32), np.zeros((3, 3, 3))),
    ],
    ids=[
        "HW",
        "HW1",
        "1HW",
        "bool",
        "16 bits",
        ">16 bits",
        ">dark",
        ">PIL",
        "RGBA",
        "RGBA first",
        "grey and alpha",
        "HWC wins where both fit",
    ],
)
def test_other_shapes_become_three_channels(array: Any, expected: Any) -> None:
    found = decode_image(array)
    assert np.array_equal(found, expected)
    assert found.flags.c_contiguous


def test_a_given_image_is_left_as_it_was() -> None:
    given = Image.fromarray(HALF)
    assert np.array_equal(decode_image(given), ON_WHITE)
    assert given.mode == "RGBA"
    plain = Image.fromarray(PHOTO)
    decode_image(plain)[:] = 0
    assert np.array_equal(np.asarray(plain), PHOTO)


BAD: dict[str, tuple[Any, str]] = {
    "empty": (b"", "0 bytes"),
    "none": (None, "NoneType"),
    "a text": ("a.jpg", "str"),
    "a number": (7, "int"),
    "a struct with neither": ({"bytes": None, "path": "x.jpg"}, "NoneType"),
    "one byte": (b"\xff", "nothing known"),
    "a text in bytes": (b"hello, world, this is no image", "nothing known"),
    "a JPEG of two bytes": (b"\xff\xd8\xff", "cannot be decoded"),
    "a PNG of its signature": (b"\x89PNG\r\n\x1a\n", "cut short"),
    "a damaged head": (bad_sum(b"IHDR"), "checksum of chunk"),
    "damaged pixels": (bad_sum(b"IDAT"), "checksum of chunk"),
    "0 x 0 PNG": (head_only(0, 0), "0 x 0|cannot be decoded"),
    "0 x 5 PNG": (head_only(0, 5), "0 x 5|cannot be decoded"),
    "1 x 2^31 PNG": (head_only(1, 2**31 - 1), "max_pixels"),
    "1 x 2^31 + 1 PNG": (head_only(1, 2**31 + 1), "max_pixels|cannot be decoded"),
    "65535 x 65535 GIF": (edited_gif(65535, 65535), "max_pixels"),
    "0 x 0 JPEG": (edited_jpeg(0, 0), "0 x 0|cannot be decoded"),
    "65535 x 65535 JPEG": (edited_jpeg(65535, 65535), "max_pixels"),
    "too little in the pixels": (png(64, 48, 8, 2, b"\0" * 100), "cannot be decoded"),
    "NaN": (np.full((4, 4, 3), np.nan), "nan"),
    "negative": (np.full((4, 4, 3), -1), "-1"),
    "above 255": (np.full((4, 4, 3), 300), "300"),
    "objects": (np.array([[{}]], dtype=object), "not of numbers"),
    "texts": (np.array([["a"]]), "not of numbers"),
    "one dimension": (np.zeros(5), "shape"),
    "five channels": (np.zeros((8, 8, 5)), "channels"),
    "four dimensions": (np.zeros((1, 8, 8, 3)), "shape"),
    "no pixels": (np.zeros((0, 8, 3)), "channels"),
    "ragged lists": ([[1, 2], [3]], "not of one length"),
    "a view of too many pixels": (np.broadcast_to(np.zeros((), np.uint8), (1 << 14, 1 << 14, 3)), "max_pixels"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_image_is_a_data_error(name: str) -> None:
    value, said = BAD[name]
    with pytest.raises(DataError, match=said) as caught:
        decode_image(value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("GIF", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {}),
        ("BMP", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_deflate"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("percent", [*range(10, 100, 10), 99])
def test_a_file_that_is_cut_short_is_never_a_grey_picture(form: str, options: dict[str, Any], percent: int) -> None:
    given = Image.fromarray(PHOTO).quantize(16) if form == "GIF" else Image.fromarray(PHOTO)
    data = encoded(given, form, **options)
    whole = decode_image(data)
    try:
        found = decode_image(data[: len(data) * percent // 100])
    except DataError:
        return
    assert np.array_equal(found, whole)


@pytest.mark.parametrize("name", ["png", "png, palette", "gif", "webp", "bmp", "tiff, deflated", "jpeg"])
def test_mutated_files_give_pixels_or_a_data_error(name: str) -> None:
    small = photo(16, 12)
    given = {
        "png": encoded(small, "PNG"),
        "png, palette": encoded(Image.fromarray(small).quantize(4), "PNG"),
        "gif": encoded(Image.fromarray(small).quantize(4), "GIF"),
        "webp": encoded(small, "WEBP"),
        "bmp": encoded(small, "BMP"),
        "tiff, deflated": encoded(small, "TIFF", compression="tiff_deflate"),
        "jpeg": encoded(small, "JPEG"),
    }
    outcomes = set()
    budget = Budget(max_pixels=1 << 20)
    for mutant in mutants(given[name], 150):
        try:
            found = decode_image(mutant, budget)
        except DataError:
            outcomes.add("error")
        else:
            outcomes.add("pixels")
            assert found.shape[2] == 3
    assert "error" in outcomes


class TestBombs:
    def test_pixels_are_counted_before_anything_is_decoded(self) -> None:
        rows = zlib.compress(b"\0" * (60_000 * 180_001 // 8192), 9)
        data = head_only(60_000, 60_000).replace(zlib.compress(b"\0" * 100), rows)
        with pytest.raises(Refused, match=r"60000 x 60000.*3,600,000,000.*max_pixels=67,108,864"):
            decode_image(head_only(60_000, 60_000))
        with pytest.raises(DataError):
            decode_image(data)

    def test_a_budget_can_be_raised_above_the_limit_of_pillow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        assert np.array_equal(decode_image(encoded(PHOTO, "PNG")), PHOTO)
        with pytest.raises(Refused, match="max_pixels"):
            decode_image(encoded(PHOTO, "PNG"), Budget(max_pixels=3071))
        assert decode_image(encoded(PHOTO, "PNG"), Budget(max_pixels=3072)).shape == (48, 64, 3)

    def test_a_text_that_unpacks_to_much_is_refused(self) -> None:
        bomb = chunk(b"zTXt", b"k\0\0" + zlib.compress(b"a" * (64 << 20), 9))
        data = encoded(PHOTO, "PNG")
        with pytest.raises(Refused, match="MAX_TEXT|Decompressed Data Too Large"):
            decode_image(data[:33] + bomb + data[33:])

    def test_many_frames_cost_nothing(self) -> None:
        frames = [Image.new("P", (8, 8), i % 256) for i in range(2000)]
        data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
        bomb = data[:-1] * 20 + b";"
        assert decode_image(bomb, Budget(timeout=1)).shape == (8, 8, 3)

    def test_endless_scans_are_refused(self) -> None:
        data = encoded(PHOTO, "JPEG", progressive=True)
        start = data.index(b"\xff\xda")
        scan = data[start : data.index(b"\xff\xda", start + 2)]
        with pytest.raises(Refused, match="200 scans"):
            decode_image(data[:start] + scan * 300 + data[start:])

    def test_endless_chunks_are_refused(self) -> None:
        data = encoded(PHOTO, "PNG")
        with pytest.raises(Refused, match="chunks"):
            decode_image(data[:33] + chunk(b"tEXt", b"") * 100_001 + data[33:])

    def test_bytes_are_counted_first(self) -> None:
        data = encoded(PHOTO, "PNG")
        with pytest.raises(Refused, match=f"of {len(data):,} is over the limit max_bytes=100"):
            decode_image(data, Budget(max_bytes=100))

    @pytest.mark.parametrize("edge", [8193, 13_000, 65_535])
    def test_a_frame_larger_than_the_picture_is_counted_before_room_is_made_for_it(
        self, monkeypatch: pytest.MonkeyPatch, edge: int
    ) -> None:
        """Pillow fills what a frame covers while it opens the file, if the frame says that it is disposed of."""
        data = bytearray(encoded(Image.fromarray(PHOTO).quantize(16), "GIF"))
        at = data.index(b",\0\0\0\0\x40\0\x30\0")
        data[at + 5 : at + 9] = struct.pack("<HH", edge, edge)
        data[at:at] = b"!\xf9\x04" + bytes([2 << 2, 0, 0, 0]) + b"\0"
        monkeypatch.setattr("PIL.Image.core.fill", lambda *given: pytest.fail("room was made"))
        # From 89 million pixels on Pillow 13 warns before it tells the size, and here warnings are errors.
        ours = rf"{edge} x {edge}.*max_pixels=67,108,864"
        said = ours if edge < 9000 or OLD_PILLOW else "far more room"
        with pytest.raises(Refused, match=said):
            decode_image(bytes(data))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(Refused, match=ours if edge < 20_000 or OLD_PILLOW else "far more room"):
                decode_image(bytes(data))

    @pytest.mark.parametrize("form", ["TIFF", "GIF"])
    def test_decoding_leaves_the_filters_of_warnings_alone(self, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
        """They are the process's: whoever changes them does so for all threads."""
        monkeypatch.setattr(warnings, "simplefilter", lambda *given: pytest.fail("a filter was set"))
        monkeypatch.setattr(warnings.catch_warnings, "__enter__", lambda self: pytest.fail("filters were copied"))
        picture = Image.fromarray(PHOTO)
        assert decode_image(encoded(picture.quantize(16) if form == "GIF" else picture, form)).shape == (48, 64, 3)

    def test_nothing_global_is_changed(self) -> None:
        before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
        for value in (encoded(PHOTO, "TIFF"), edited_gif(65535, 65535), edited_gif(8, 8)):
            try:
                decode_image(value)
            except DataError:
                pass
        assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES) == before == (89478485, False)


class TestTensor:
    def test_it_is_resized_and_normalised(self) -> None:
        resized = np.asarray(Image.fromarray(PHOTO).resize((32, 32), Image.Resampling.BILINEAR)).astype(np.float32)
        found = image_tensor(PHOTO, 32)
        assert found.dtype == torch.float32
        assert found.shape == (3, 32, 32)
        assert found.is_contiguous()
        assert np.allclose(found.numpy(), (resized.transpose(2, 0, 1) / 255 - 0.5) / 0.5, atol=1e-6)

    @pytest.mark.parametrize(
        "shape",
        [(1, 1), (1, 3000), (3000, 1), (2, 2), (31, 33), (500, 375), (375, 500), (1600, 1200), (2600, 2400)],
        ids=str,
    )
    @pytest.mark.parametrize("size", [1, 7, 32, 256])
    def test_it_is_what_pillow_makes_to_the_level(self, shape: tuple[int, int], size: int) -> None:
        """2600 x 2400 is more than Pillow has in one piece."""
        picture = Image.fromarray(np.random.default_rng(size).integers(0, 256, (*shape, 3), np.uint8))
        made = image_tensor(picture, size)
        assert torch.equal(made, image_tensor(np.array(picture), size))
        levels = ((made + 1) * 127.5).round().permute(1, 2, 0).numpy()
        expected = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR)).astype(int)
        assert abs(levels - expected).max() <= 1

    def test_arrays_may_lie_in_any_way(self) -> None:
        expected = image_tensor(PHOTO[::-1, ::-1].copy(), 32)
        assert torch.equal(image_tensor(PHOTO[::-1, ::-1], 32), expected)
        fixed = PHOTO[::-1, ::-1].copy()
        fixed.flags.writeable = False
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(image_tensor(fixed, 32), expected)

    def test_a_pillow_that_shares_no_memory_is_copied_from(self, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = image_tensor(Image.fromarray(PHOTO), 32)
        monkeypatch.delattr(Image.Image, "__arrow_c_array__", raising=False)  # before Pillow 11.2 it has none
        assert torch.equal(image_tensor(Image.fromarray(PHOTO), 32), expected)

    def test_what_has_no_three_channels_is_not_half_a_picture(self) -> None:
        with pytest.raises(ValueError, match="zip"):
            image_tensor(PHOTO[:, :, :1], 32)

    def test_the_picture_stays_as_it_is(self) -> None:
        picture = Image.fromarray(PHOTO)
        for size in (32, 64):
            made = image_tensor(picture, size)
            made.zero_()
        assert np.array_equal(np.asarray(picture), PHOTO)

    def test_mean_and_spread_are_per_channel(self) -> None:
        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        found = image_tensor(np.full((4, 4, 3), 100, np.uint8), 2, mean=mean, std=std)
        assert np.allclose(found[:, 0, 0], [(100 / 255 - m) / s for m, s in zip(mean, std, strict=True)], atol=1e-6)

    @pytest.mark.parametrize("size", [(1280, 960), (2000, 3000), (4000, 300)], ids=str)
    def test_a_jpeg_decoded_at_a_fraction_gives_nearly_the_same(self, size: tuple[int, int]) -> None:
        noise = np.random.default_rng(0).normal(0, 8, (size[1], size[0], 3))
        data = encoded(np.clip(photo(*size) + noise, 0, 255).astype(np.uint8), "JPEG", quality=90)
        fast = image_tensor(open_image(data, size=128), 128)
        slow, other = (
            image_tensor(open_image(data).resize((128, 128), how), 128)
            for how in (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
        )
        moved = float((fast - slow).abs().mean() * 127.5)
        assert moved < 2
        assert moved < 0.5 * float((other - slow).abs().mean() * 127.5)

    def test_a_size_makes_large_jpegs_smaller_and_keeps_what_is_needed(self) -> None:
        data = encoded(photo(1280, 960), "JPEG")
        assert open_image(data).size == (1280, 960)
        assert open_image(data, size=256).size == (640, 480)
        assert open_image(data, size=400).size == (1280, 960)
        assert decode_image(data, size=100).shape[:2] == (240, 320)

    def test_a_picture_of_the_right_size_is_not_resampled(self) -> None:
        found = image_tensor(photo(32, 32), 32)
        assert np.array_equal(((found + 1) * 127.5).round().byte().permute(1, 2, 0).numpy(), photo(32, 32))


def test_images_from_bytes_do_not_keep_the_bytes() -> None:
    data = bytearray(encoded(PHOTO, "PNG"))
    image = open_image(memoryview(data))
    data[:] = b"\0" * len(data)
    assert np.array_equal(np.asarray(image), PHOTO)
