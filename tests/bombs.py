"""Small bodies that unpack to large ones, and a process that meets them with little memory."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

LIMITED = """
import json, resource, sys
def kilobytes(name):
    return int(open("/proc/self/status").read().split(name + ":")[1].split()[0])
def limited(work, budget):
    # How `work` ends with no more than twice its budget to be had, and the memory that it took at most.
    most = (kilobytes("VmSize") << 10) + 2 * budget
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    before = kilobytes("VmRSS")
    try:
        ended = ["", repr(work())[:500]]
    except BaseException as error:
        ended = [type(error).__name__, str(error)]
    print(json.dumps([*ended, (max(kilobytes("VmHWM"), kilobytes("VmRSS")) - before) << 10]))
"""


def packed(head: bytes, filler: bytes, tail: bytes, megabytes: int) -> bytes:
    """By gzip: `head`, so many megabytes of `filler` (one byte), and `tail`."""
    block = filler * (1 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    one = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    last = packer.compress(tail) + packer.flush()
    check = zlib.crc32(head)
    for _ in range(megabytes):
        check = zlib.crc32(block, check)
    check = zlib.crc32(tail, check)
    size = len(head) + (megabytes << 20) + len(tail)
    header = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return header + first + one * megabytes + last + struct.pack("<II", check, size & 0xFFFFFFFF)


def met(code: str, *args: str, env: dict[str, str], seconds: float = 60) -> tuple[str, str, int]:
    """The error that `limited` in `code` ended with (or ''), its message (or the result), and the bytes it took."""
    path = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", LIMITED + code, *args],
        env={"PATH": "/usr/bin:/bin", "HF_TOKEN": "", "PYTHONPATH": f"{path.parent}:{path}"} | env,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ended: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return ended[0], ended[1], ended[2]
