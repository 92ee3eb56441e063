"""What a killed writer of an index or a pin leaves goes with the next writing beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.files import keep_json, unique_part


def test_what_a_killed_writer_left_goes_and_nothing_else(tmp_path: Path) -> None:
    """Another's may be alive, and what does not look like ours is somebody's."""
    code = "import sys; from pathlib import Path; from headrace.files import *; unique_part(Path(sys.argv[1])).touch()"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "one.json")], check=True)
    assert len(list(tmp_path.iterdir())) == 1
    others = [unique_part(tmp_path / "one.json"), tmp_path / ".mine.part", tmp_path / "a.b.c.d.e.part"]
    others.append(tmp_path / ".one.json.x.another-machine-here.1.1.00.part")
    for path in others:
        path.touch()
    keep_json(tmp_path / "two.json", {})
    assert {*tmp_path.iterdir()} == {tmp_path / "two.json", *others}


def test_a_folder_is_looked_through_once(tmp_path: Path) -> None:
    """Thousands of footers are kept in one: each writing would look at all of them."""
    keep_json(tmp_path / "one.json", {})
    code = "import sys; from pathlib import Path; from headrace.files import *; unique_part(Path(sys.argv[1])).touch()"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "one.json")], check=True)
    keep_json(tmp_path / "two.json", {})
    assert len(list(tmp_path.iterdir())) == 3
