"""Rows that try to have something opened, read or run. Played in a process of its own, which is watched from outside.

Each case is a value, what it is given as, and the rule that its refusal names.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from media_files import clip, encoded, photo

from headrace.errors import HeadraceError
from headrace.fetch.media import ffmpeg, images
from headrace.fetch.media.audio import decode_audio
from headrace.fetch.media.policy import MediaPolicy, open_media
from headrace.fetch.media.sniff import Kind
from headrace.fetch.media.video import decode_video

BEGIN, END = "/headrace-mark-begin", "/headrace-mark-end"

OUTSIDE, ADDRESS, CLIMBS, ENCODED = "absolute path outside", "only http and https", "climbs out", "encoded"
UNLISTED, LINKS = "is not among those", "leads it out"

NAMES = {
    "/etc/passwd": OUTSIDE,
    "//etc/passwd": OUTSIDE,
    "/": OUTSIDE,
    "ROOT2/x": OUTSIDE,
    "ROOT/../secret": CLIMBS,
    "file:///etc/passwd": ADDRESS,
    "FILE:/etc/passwd": ADDRESS,
    "file:etc/passwd": ADDRESS,
    " file:///etc/passwd": ADDRESS,
    "local://../../etc/passwd": ADDRESS,
    "../secret": CLIMBS,
    "deep/../../secret": CLIMBS,
    "deep/..": CLIMBS,
    "..": CLIMBS,
    "..%2fsecret": ENCODED,
    "%2e%2e/secret": ENCODED,
    "%252e%252e%252fsecret": ENCODED,
    "%c0%ae%c0%ae/secret": ENCODED,
    "\udcc0\udcae\udcc0\udcae/secret": "no text",
    "a.png\0.jpg": "NUL",
    "\0": "NUL",
    "a\n.png": "control character",
    "..\\secret": "backslash",
    "C:\\x": "drive letter|only http",
    "C:/x": "drive letter|only http",
    "\\\\host\\share": "backslash",
    "~/x": "home folder",
    "out": LINKS,
    "out-folder/passwd": LINKS,
    "out-chain": LINKS,
    "up": LINKS,
    "beside": LINKS,
    "/proc/self/environ": OUTSIDE,
    "proc/self/environ": LINKS,
    "/dev/stdin": OUTSIDE,
    "fifo": "a fifo, a socket or a device",
    "socket": "a fifo, a socket or a device",
    "deep": "a folder",
    "http://169.254.169.254/latest/meta-data": UNLISTED,
    "http://[::ffff:169.254.169.254]/": UNLISTED,
    "http://0x7f000001/": UNLISTED,
    "http://2130706433/": UNLISTED,
    "http://localhost./": UNLISTED,
    "http://[::1]/": UNLISTED,
    "http://127.1/": UNLISTED,
    "http://127.0.0.1:8000/": UNLISTED,
    "http://loopback.test/": "not an address of the public internet",
    "http://images.test@127.0.0.1/": "user name",
    "ftp://images.test/x": ADDRESS,
    "gopher://images.test/x": ADDRESS,
    "data:image/png;base64,AAAA": ADDRESS,
    "zip://x::http://images.test/a.zip": ADDRESS,
    "http://images.test/a.zip::zip://x": ADDRESS,
    "pipe:cat /etc/passwd": ADDRESS,
    "pipe:0": ADDRESS,
    "hf://other/repo": ADDRESS,
    "s3://bucket/key": ADDRESS,
    "concat:/etc/passwd|x": ADDRESS,
    "subfile,,start,0,end,0,,:/etc/passwd": "address or has a drive letter|no such file",
    "crypto+file:///etc/passwd": ADDRESS,
    "rtsp://images.test/x": ADDRESS,
}


def prepare(root: Path) -> None:
    """A media folder with ways out of it."""
    (root / "deep").mkdir(parents=True)
    (root.parent / "secret").write_text("secret")
    (root.parent / f"{root.name}2").mkdir()
    (root.parent / f"{root.name}2/x").write_text("secret")
    (root / "a.png").write_bytes(encoded(photo(), "PNG"))
    (root / "out").symlink_to("/etc/passwd")
    (root / "out-folder").symlink_to("/etc")
    (root / "out-chain").symlink_to("out")
    (root / "up").symlink_to("../secret")
    (root / "beside").symlink_to(f"../{root.name}2/x")
    (root / "proc").symlink_to("/proc")
    os.mkfifo(root / "fifo")
    os.mknod(root / "socket", 0o140600)


HLS = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n/etc/passwd\n#EXT-X-ENDLIST\n"


class Runs:
    """What runs a program when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/headrace-was-here",)


def contents() -> dict[str, tuple[bytes, Kind, str]]:
    """Bytes that name other things, or are something else than they are given as."""
    mp4 = clip([1, 2, 3])
    npy = io.BytesIO()
    np.save(npy, np.array([Runs()], dtype=object), allow_pickle=True)
    picture = encoded(photo(), "PNG")
    found: dict[str, tuple[bytes, Kind, str]] = {
        "HLS": (HLS, "video", "HLS playlist"),
        "HLS after spaces": (b"\xef\xbb\xbf \n" + HLS, "video", "HLS playlist"),
        "DASH": (b"<MPD><BaseURL>file:///etc/passwd</BaseURL></MPD>", "video", "DASH"),
        "DASH as XML": (b'<?xml version="1.0"?><MPD></MPD>', "video", "XML"),
        "ffconcat": (b"ffconcat version 1.0\nfile /etc/passwd\n", "video", "ffconcat"),
        "SDP": (b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 5000 RTP/AVP 96\n", "video", "SDP"),
        "an FFmpeg address": (b"concat:/etc/passwd|x", "video", "FFmpeg address"),
        "HLS as sound": (HLS, "audio", "HLS playlist"),
        "AVI with a playlist in it": (avi_with(HLS), "video", ""),
        "AVI with a script in it": (avi_with(b"ffconcat version 1.0\nfile /etc/passwd\n"), "video", ""),
        "MP4 with samples elsewhere": (with_alias(mp4, b"/etc/passwd"), "video", "another file"),
        "FITS": (b"SIMPLE  =                    T", "image", "FITS"),
        "PSD": (b"8BPS\0\1" + bytes(40), "image", "PSD"),
        "EPS": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "image", "PostScript"),
        "FlashPix": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), "image", "FlashPix"),
        "SPIDER": (struct.pack(">256f", *([1.0] * 256)) + bytes(400), "image", "nothing known"),
        "SVG": (b"<svg xmlns:xlink='x'><image xlink:href='file:///etc/passwd'/></svg>", "image", "SVG"),
        "a pickle": (pickle.dumps(Runs()), "image", "nothing known"),
        "a pickle as sound": (pickle.dumps(Runs()), "audio", "nothing known"),
        "a pickle as video": (pickle.dumps(Runs()), "video", "nothing known"),
        "a NumPy file with objects": (npy.getvalue(), "image", "NumPy"),
        "a ZIP": (b"PK\3\4" + bytes(60), "image", "ZIP"),
        "an image as video": (picture, "video", "nothing known"),
    }
    return found


def decode(data: bytes, kind: Kind) -> None:
    if kind == "image":
        images.decode_image(data)
    elif kind == "audio":
        decode_audio(data, 16_000)
    else:
        decode_video(data, 2, 8)


def forced(data: bytes, demuxer: str) -> None:
    """As if the first bytes had been taken for something that they are not: the other walls must hold by themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ffmpeg, "container_format", lambda *_: demuxer)
        decode_video(data, 2, 8)


def cases(root: Path) -> dict[str, tuple[Callable[[], object], str]]:
    policy = MediaPolicy(root=root, hosts=("images.test", "loopback.test"))

    def opening(value: str) -> Callable[[], object]:
        return lambda: open_media({"bytes": None, "path": value}, policy, "image")

    def decoding(data: bytes, kind: Kind) -> Callable[[], object]:
        return lambda: decode(data, kind)

    found: dict[str, tuple[Callable[[], object], str]] = {}
    for name, rule in NAMES.items():
        value = name.replace("ROOT", str(root), 1) if name.startswith("ROOT") else name
        found[f"name {name!r}"] = (opening(value), rule)
    for what, (data, kind, rule) in contents().items():
        found[what] = (decoding(data, kind), rule)
    # Names that the demuxers' own checks let pass, of a file that is there.
    script = b"ffconcat version 1.0\nfile media_files.py\n"
    for demuxer, data in (("hls", HLS.replace(b"/etc/passwd", b"media_files.ts")), ("concat", script)):
        found[f"forced {demuxer}"] = (lambda data=data, demuxer=demuxer: forced(data, demuxer), "")  # type: ignore[misc]
    return found


def play(root: Path) -> dict[str, dict[str, Any]]:
    """Every case, and how it ended."""
    found: dict[str, dict[str, Any]] = {}
    for name, (run, rule) in cases(root).items():
        try:
            run()
        except HeadraceError as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            found[name] = {"kinds": kinds, "message": str(error), "rule": rule}
        else:
            found[name] = {"kinds": [], "message": "it was let through", "rule": rule}
    return found


def avi_with(text: bytes) -> bytes:
    """An AVI with one picture, and a stream of subtitles that holds `text`, in the way that FFmpeg looks into."""
    jpeg = encoded(photo(16, 16), "JPEG")
    packet = b"GAB2\0" + struct.pack("<HI", 2, 0) + struct.pack("<HI", 4, len(text)) + text

    def part(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)

    def many(kind: bytes, *parts: bytes) -> bytes:
        return part(b"LIST", kind + b"".join(parts))

    main = struct.pack("<14I", 33_333, 0, 0, 0, 1, 0, 2, 0, 16, 16, 0, 0, 0, 0)
    picture = b"vidsMJPG" + struct.pack("<IHHIIIIIIII4H", 0, 0, 0, 0, 1, 30, 0, 1, 0, 0, 0, 0, 0, 16, 16)
    form = struct.pack("<IiiHH4sIiiII", 40, 16, 16, 1, 24, b"MJPG", 768, 0, 0, 0, 0)
    words = b"txts\0\0\0\0" + struct.pack("<IHHIIIIIIII4H", 0, 0, 0, 0, 1, 30, 0, 1, 0, 0, 0, 0, 0, 0, 0)
    head = many(
        b"hdrl",
        part(b"avih", main),
        many(b"strl", part(b"strh", picture), part(b"strf", form)),
        many(b"strl", part(b"strh", words), part(b"strf", b"")),
    )
    body = b"AVI " + head + many(b"movi", part(b"00dc", jpeg), part(b"01tx", packet))
    return b"RIFF" + struct.pack("<I", len(body)) + body


def with_alias(data: bytes, path: bytes) -> bytes:
    """An MP4 whose samples are said to lie in another file."""
    at = data.index(b"dref") - 4
    (size,) = struct.unpack_from(">I", data, at)
    alias = bytes(10) + b"\4disk" + bytes(23) + bytes(12) + b"\1x" + bytes(62) + bytes(16)
    alias += struct.pack(">HH", 1, 1) + bytes(16) + struct.pack(">HH", 2, len(path)) + path + b"\xff\xff\0\0"
    entry = struct.pack(">I4sI", len(alias) + 12, b"alis", 0) + alias
    fresh = struct.pack(">I4sII", len(entry) + 16, b"dref", 0, 1) + entry
    grown = bytearray(data[:at] + fresh + data[at + size :])
    for kind in (b"moov", b"trak", b"mdia", b"minf", b"dinf"):
        place = grown.index(kind) - 4
        struct.pack_into(">I", grown, place, struct.unpack_from(">I", grown, place)[0] + len(fresh) - size)
    return bytes(grown)


def watched_by_hook(root: Path) -> dict[str, dict[str, Any]]:
    """The same, with what Python was asked to open or to connect to."""
    events: list[str] = []

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and not (args[2] or 0) & os.O_PATH:
            events.append(f"open {args[0]!r}")
        elif event.startswith(("socket.", "subprocess", "os.system", "os.exec", "os.posix_spawn", "urllib", "ctypes")):
            events.append(f"{event} {args!r}")

    play(root)
    sys.addaudithook(hook)
    found: dict[str, dict[str, Any]] = {}
    for name, (run, _) in cases(root).items():
        events.clear()
        try:
            run()
        except HeadraceError:
            pass
        found[name] = {"events": list(events)}
    return found


def main() -> None:
    how, root = sys.argv[1], Path(sys.argv[2])
    from headrace.fetch.media import addresses

    addresses.resolve = lambda host, port: ["127.0.0.1"]
    if how == "hook":
        print(json.dumps(watched_by_hook(root)))
        return
    play(root)
    for mark in (BEGIN, END):
        try:
            os.open(mark, os.O_RDONLY)
        except OSError:
            pass
        if mark == BEGIN:
            found = play(root)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
