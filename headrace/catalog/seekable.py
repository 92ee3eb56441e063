"""Compressed text, rewritten once so that any byte of it can be read without reading what lies before.

The rewritten file is in the zstd seekable format, so `zstd -d` reads it as well: plain blocks of one size, each a frame
of its own with a checksum, then a table of the frames' sizes in a frame that decoders skip. Its name is made from the
path, size and time of the user's file, so a changed file is rewritten. Blocks ignore lines; the line index knows them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from headrace.catalog.lines import known_format
from headrace.catalog.plain import PlainBytes, PlainFile, Signature, open_regular, read_exactly, require_same
from headrace.catalog.shard import Origin, Restart, Shard
from headrace.errors import Changed, DataError, Integrity, shown
from headrace.files import remove_quietly

SUFFIXES = (".gz", ".zst")
BLOCK = 1 << 20
"""Plain bytes of one frame: what is decompressed to read a single row."""
LEVEL = 1
"""Twice as fast as the usual 3, for a tenth more bytes."""
MAX_RATIO = 200
MIN_CAP = 1 << 30
MAX_WINDOW = 1 << 27

_SKIPPABLE, _SEEKABLE = 0x184D2A5E, 0x8F92EAB1


def is_compressed(path: str | Path) -> bool:
    return Path(path).suffix.lower() in SUFFIXES


@dataclass(frozen=True)
class SeekableOrigin(Origin):
    """The seekable form of a compressed file, as a shard: made instead of fetched, and cached like any other."""

    original: Path
    signature: Signature
    cap: int
    """Plain bytes beyond which it is taken for a bomb."""
    name: str = "seekable"
    folder: tuple[str, ...] | None = ("hf_shards", "_text")

    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        raise AssertionError("it is read from the cache")

    def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
        if start:
            raise Restart("it is made from the beginning")
        with PlainFile(self.original, signature=self.signature) as source:
            yield from _frames(_blocks(_capped(_plain(source, _codec(self.original)), self.cap, source)))


def seekable_shard(path: Path, signature: Signature, cap: int | None = None) -> Shard:
    """The shard that is the seekable form of a compressed file. A changed file has another name for it."""
    key = f"1|{signature.size}|{signature.mtime_ns}|".encode() + os.fsencode(path.resolve())
    name = f"{hashlib.blake2b(key, digest_size=16).hexdigest()}.zst"
    most = max(MAX_RATIO * signature.size, MIN_CAP) if cap is None else cap
    return Shard(name, -1, "", SeekableOrigin(path, signature, most))


class SeekableFile(PlainBytes):
    """The plain bytes of a rewritten file."""

    def __init__(self, path: Path, original: Path, signature: Signature, label: str) -> None:
        self.path, self.original, self.signature, self.label = path, original, signature, label
        fd, found = open_regular(path, shown(path))
        self._hold(fd)
        self._starts, self.size = self._read_table(found.size)
        self._last = (-1, b"")

    def read_bytes(self, start: int, stop: int) -> bytes:
        if not 0 <= start <= stop <= self.size:
            raise Changed(f"{self.label} has {self.size} plain bytes, but bytes {start} to {stop} were asked for")
        first = start // BLOCK
        blocks = [self._block(number) for number in range(first, -(-stop // BLOCK))]
        if not blocks:
            return b""
        blocks[-1] = blocks[-1][: stop - (first + len(blocks) - 1) * BLOCK]
        blocks[0] = blocks[0][start - first * BLOCK :]
        return b"".join(blocks)

    def check(self) -> None:
        with PlainFile(self.original, label=self.label) as now:
            require_same(self.label, self.signature, now.signature)

    def _block(self, number: int) -> bytes:
        import zstandard

        # Rows are mostly read in order, and the next ones begin in the block where these ended.
        last, data = self._last
        if last == number:
            return data
        frame = read_exactly(self._fd, self._starts[number], self._starts[number + 1], shown(self.path))
        size = min(BLOCK, self.size - number * BLOCK)
        try:
            # The size is checked first, since it is what gets allocated.
            if zstandard.frame_content_size(frame) != size:
                self._refuse(f"block {number} has another size")
            data = zstandard.ZstdDecompressor().decompress(frame)
        except zstandard.ZstdError as error:
            self._refuse(f"block {number}, byte {self._starts[number]}: {error}")
        self._last = (number, data)
        return data

    def _read_table(self, size: int) -> tuple[list[int], int]:
        """Where each frame starts, where the last one ends, and how many plain bytes they hold."""
        tail = read_exactly(self._fd, max(size - 9, 0), size, shown(self.path))
        count, _, magic = struct.unpack("<IBI", tail) if len(tail) == 9 else (0, 0, 0)
        table = 8 * count + 9
        begin = size - table - 8
        if magic != _SEEKABLE or begin < 0:
            self._refuse("it has no table at its end")
        raw = read_exactly(self._fd, begin, size, shown(self.path))
        entries = list(struct.iter_unpack("<II", raw[8:-9]))
        starts = [0]
        for compressed, _ in entries:
            starts.append(starts[-1] + compressed)
        full = all(plain == BLOCK for _, plain in entries[:-1]) and all(0 < plain <= BLOCK for _, plain in entries[-1:])
        if struct.unpack("<II", raw[:8]) != (_SKIPPABLE, table) or starts[-1] != begin or not full:
            self._refuse("its table does not fit its frames")
        return starts, sum(plain for _, plain in entries)

    def _refuse(self, why: str) -> NoReturn:
        remove_quietly(self.path)
        raise Integrity(
            errno.EIO,
            f"{shown(self.path)}, the seekable form of {self.label}, was damaged on disk ({why}) and is removed; "
            f"start again, and it is made anew",
        )


def _frames(blocks: Iterable[bytes]) -> Iterator[bytes]:
    import zstandard

    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True)
    table = bytearray()
    for block in blocks:
        frame = compressor.compress(block)
        table += struct.pack("<II", len(frame), len(block))
        yield frame
    yield struct.pack("<II", _SKIPPABLE, len(table) + 9) + table + struct.pack("<IBI", len(table) // 8, 0, _SEEKABLE)


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= BLOCK:
            yield bytes(held[:BLOCK])
            del held[:BLOCK]
    if held:
        yield bytes(held)


def _capped(pieces: Iterable[bytes], cap: int, source: PlainFile) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > cap:
            raise DataError(
                f"{source.label}: its {source.size:,} bytes decompress to more than {cap:,}, which looks like a bomb; "
                f"if they should, decompress it by hand and name the plain file"
            )
        yield piece


class _Codec(NamedTuple):
    """A way to decompress in bounded steps. Members (of gzip) and frames (of zstd) follow each other in a file."""

    name: str
    unit: str
    step: int
    """Compressed bytes given at once."""
    start: Callable[[], Any]
    feed: Callable[[Any, bytes], bytes]
    error: type[Exception]
    not_ours: str
    """What the error says where no member begins."""
    padding: bytes
    """What may fill the file up after its last member."""


def _codec(path: Path) -> _Codec:
    if path.suffix.lower() == ".gz":
        # Each new member copies the rest of its step, and members can be tiny: small steps keep that cheap.
        return _Codec(
            name="gzip",
            unit="member",
            step=32 << 10,
            start=lambda: zlib.decompressobj(wbits=31),
            feed=lambda engine, data: engine.decompress(data, BLOCK),
            error=zlib.error,
            not_ours="incorrect header check",
            padding=b"\0",
        )
    import zstandard

    # zstd gives out all that a step holds, up to 32,768 times its size.
    return _Codec(
        name="zstd",
        unit="frame",
        step=1 << 10,
        start=lambda: zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj(),
        feed=lambda engine, data: engine.decompress(data),
        error=zstandard.ZstdError,
        not_ours="Unknown frame descriptor",
        padding=b"",
    )


def _plain(source: PlainFile, codec: _Codec) -> Iterator[bytes]:
    """What all members of the file hold, in small pieces."""
    engine = None
    began, members = 0, 0
    for end, step in _steps(source, codec.step):
        data = step
        while data:
            if engine is None:
                data = data.lstrip(codec.padding) if members and codec.padding else data
                if not data:
                    break
                engine, began, members = codec.start(), end - len(data), members + 1
            try:
                plain = codec.feed(engine, data)
            except codec.error as error:
                raise _bad_data(source, codec, began, end, str(error)) from None
            if plain:
                yield plain
            data = engine.unused_data if engine.eof else engine.unconsumed_tail
            engine = None if engine.eof else engine
    if engine is not None or not members:
        raise DataError(
            f"{source.label}: it ends at byte {source.size}, inside the {codec.name} {codec.unit} that begins at byte "
            f"{began}: it is truncated; fetch it or make it again"
        )


def _steps(source: PlainFile, step: int) -> Iterator[tuple[int, bytes]]:
    """The compressed bytes, each piece after the offset where it ends."""
    for at in range(0, source.size, BLOCK):
        data = source.read_bytes(at, min(at + BLOCK, source.size))
        for inner in range(0, len(data), step):
            piece = data[inner : inner + step]
            yield at + inner + len(piece), piece


def _bad_data(source: PlainFile, codec: _Codec, began: int, near: int, why: str) -> DataError:
    where = f"{source.label}: the {codec.name} {codec.unit} at byte {began}"
    if codec.not_ours in why and began:
        return DataError(
            f"{source.label}: byte {began}: what follows the last {codec.name} {codec.unit} is not {codec.name} "
            f"(trailing garbage); fetch the file again, or cut it off with head -c {began}"
        )
    if codec.not_ours in why:
        what = known_format(source.read_bytes(0, min(source.size, 4096)))
        is_what = (
            f"its first bytes are those of {what}" if what else "if it is plain text, take the suffix off its name"
        )
        return DataError(f"{source.label}: byte 0: this is not {codec.name}, though its name says so; {is_what}")
    if "Dictionary" in why:
        return DataError(f"{where} needs a dictionary, which no file carries; recompress it without one")
    if "too much memory" in why:
        return DataError(
            f"{where} needs a window above {MAX_WINDOW >> 20} MiB to be decompressed; "
            f"recompress it with zstd --long=27, or without --long"
        )
    return DataError(f"{where} is corrupt before byte {near} ({why}); fetch it or make it again")
