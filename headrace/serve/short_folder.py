"""A folder for the sockets of `multiprocessing`: their paths have at most 107 bytes, and TMPDIR may have more."""

from __future__ import annotations

import os
import tempfile
from multiprocessing import util

from headrace.errors import SpecError, shown

LONGEST = 107
NAME = len("/listener-12345678")
FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - a folder of ours is made in there, as in TMPDIR


def use_short_folder() -> None:
    """Have `multiprocessing` make its folder where a path of a socket fits, unless it has such a one already."""
    before = tempfile.tempdir
    if not _fits(tempfile.gettempdir() + "/pymp-12345678"):
        tempfile.tempdir = next((folder for folder in FOLDERS if os.access(folder, os.W_OK | os.X_OK)), before)
    try:
        folder = util.get_temp_dir()  # made once in each process
    finally:
        tempfile.tempdir = before
    if not _fits(folder):
        raise SpecError(
            f"start_method='forkserver': its socket lies in {shown(folder)}, and the path of a socket has at most "
            f"{LONGEST} bytes; set TMPDIR to a shorter path, or use another start_method"
        )


def _fits(folder: str) -> bool:
    return len(os.fsencode(folder)) + NAME <= LONGEST
