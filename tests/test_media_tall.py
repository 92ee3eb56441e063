"""Pictures of a single column: what is made of them takes no more room than they do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from media_files import png

from headrace.errors import Refused
from headrace.fetch.media import tensors
from headrace.fetch.media.images import decode_image
from headrace.fetch.media.load import load_image_tensor
from headrace.fetch.media.policy import MediaPolicy

ROWS = 1 << 21


def column(rows: int) -> bytes:
    """A PNG of one grey pixel in each row."""
    return png(1, rows, 8, 0, b"\0\x7f" * rows)


LIMITED = """
import resource, sys
from headrace.fetch.media.load import load_image_tensor
from headrace.fetch.media.policy import MediaPolicy

data, policy = sys.stdin.buffer.read(), MediaPolicy()
load_image_tensor(open(sys.argv[1], "rb").read(), policy, 256)
taken = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (taken + 2 * 4 * policy.max_pixels,) * 2)
found = load_image_tensor(data, policy, 256)
print(tuple(found.shape), float(found.min()), float(found.max()))
"""


def test_a_column_of_pixels_is_made_a_square_within_its_memory(tmp_path: Path) -> None:
    """To be made wide first, it would have to be 1.6 GB; less than 540 MB are there."""
    (tmp_path / "small.png").write_bytes(column(300))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "small.png")]
    done = subprocess.run(command, input=column(ROWS), env=env, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().startswith("(3, 256, 256) -0.00")


def test_the_order_of_resizing_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (700, 20, 3), dtype=np.uint8)
    usual = tensors.image_tensor(picture, 64)
    monkeypatch.setattr(tensors, "_MOST_BETWEEN", 0)
    assert (tensors.image_tensor(picture, 64) - usual).abs().max() <= 2 / 127.5


def test_rows_of_one_pixel_count_for_more() -> None:
    assert decode_image(column(1 << 12)).shape == (1 << 12, 1, 3)
    with pytest.raises(Refused, match=r"pixels \(1 x 4096\) .*max_pixels"):
        load_image_tensor(column(1 << 12), MediaPolicy(max_pixels=1 << 13), 8)
