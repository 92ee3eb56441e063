"""What a piece of media is, by its first bytes. Never by its name, which is only what a row says."""

from __future__ import annotations

from typing import Literal

from headrace.errors import DataError, Refused

Kind = Literal["image", "audio", "video"]

BYTES = (bytes, bytearray, memoryview)
"""What may hold a file's content. A tuple: a union inside of a function is put together again at each call."""

IMAGES = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
CONTAINERS = {
    "mov": "MP4 or MOV",
    "matroska": "Matroska or WebM",
    "avi": "AVI",
    "ogg": "Ogg",
    "wav": "WAV",
    "flac": "FLAC",
    "mp3": "MP3",
    "aac": "AAC",
    "aiff": "AIFF",
}
"""FFmpeg's demuxers that may be used, and what they read."""

_VIDEO = ("mov", "matroska", "avi", "ogg")

# Known, and never decoded: they name other files, run programs, or have parsers with a long record of holes.
_REFUSED = {
    b"#EXTM3U": "an HLS playlist, which names other files",
    b"<MPD": "a DASH manifest, which names other files",
    b"<?xml": "an XML text",
    b"<smil": "a SMIL playlist, which names other files",
    b"<svg": "an SVG drawing",
    b"ffconcat": "an ffconcat script, which names other files",
    b"v=0": "an SDP session, which names other hosts",
    b"[playlist]": "a playlist, which names other files",
    b"[Reference]": "a playlist, which names other files",
    b"[InternetShortcut]": "a link",
    b"RTSPtext": "a link",
    b"concat:": "an FFmpeg address",
    b"SIMPLE  =": "a FITS image",
    b"8BPS": "a PSD image",
    b"%!PS": "a PostScript program",
    b"\xc5\xd0\xd3\xc6": "a PostScript program",
    b"\xd0\xcf\x11\xe0": "an OLE file, such as FlashPix",
    b"\x93NUMPY": "a NumPy file, which may hold a pickle",
    b"PK\x03\x04": "a ZIP file",
    b"%PDF": "a PDF document",
}


def image_format(data: bytes) -> str:
    """One of `IMAGES`."""
    head = data[:16]
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "GIF"
    if head[:4] in (b"II*\0", b"MM\0*"):
        return "TIFF"
    if head[:2] == b"BM":
        return "BMP"
    raise _unknown(data, "image", IMAGES)


def container_format(data: bytes, kind: Kind) -> str:
    """The demuxer that reads a sound or a video, one of `CONTAINERS`."""
    name = _container(data[:16])
    allowed = _VIDEO if kind == "video" else tuple(CONTAINERS)
    if name not in allowed:
        raise _unknown(data, kind, tuple(CONTAINERS[one] for one in allowed))
    return name


def _container(head: bytes) -> str | None:
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"):
        return "mov"
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if head[:4] in (b"RIFF", b"RF64", b"RIFX"):
        return {b"WAVE": "wav", b"AVI ": "avi"}.get(head[8:12])
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return "aiff"
    if head[:4] in (b"OggS", b"fLaC"):
        return "ogg" if head[:4] == b"OggS" else "flac"
    if head[:3] == b"ID3":
        return "mp3"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xF6 == 0xF0:
        return "aac"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE6 in (0xE2, 0xE4):
        return "mp3"
    return None


def _unknown(data: bytes, kind: Kind, allowed: tuple[str, ...]) -> DataError:
    if not data:
        return DataError(f"the {kind} is empty: 0 bytes")
    text = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    found = next((what for start, what in _REFUSED.items() if text.startswith(start)), None)
    what = found or f"nothing known (it begins with {data[:8].hex(' ')})"
    return Refused(f"bytes given as {kind} are {what}, which is not decoded; {kind}s are {', '.join(allowed)}")
