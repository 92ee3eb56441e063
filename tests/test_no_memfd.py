"""Workers where no file in memory can be made: batches come as they do elsewhere, and nothing is left behind."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import no_memfd
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from serving import loader_of, seen

from headrace import files
from headrace.serve.wire import INLINE_BYTES, Wire, parcel


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows that are too long for the packets that messages go in."""
    folder = tmp_path_factory.mktemp("corpus") / "in"
    folder.mkdir()
    rows = {"uid": [str(i) for i in range(60)], "text": [f"{i} " * 3000 for i in range(60)]}
    for i in range(3):
        part = {name: values[20 * i : 20 * i + 20] for name, values in rows.items()}
        pq.write_table(pa.table(part), folder / f"{i}.parquet")
    return f"{folder}/*.parquet"


def played(how: str, pattern: str) -> list[Any]:
    here = Path(__file__).parent
    env = {**os.environ, "NO_MEMFD": how, "PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    command = [sys.executable, no_memfd.__file__, pattern]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.parametrize("how", ["EPERM", "absent"])
def test_workers_send_their_batches_all_the_same(how: str, pattern: str) -> None:
    """The kernel refuses in the workers, too: they inherit the filter."""
    with loader_of("rows", pattern, batch_size=4) as loader:
        expected = [seen(batch) for batch in loader]
    assert sum(len(str(batch)) > INLINE_BYTES for batch in expected) > 5
    assert played(how, pattern) == [how, str(expected), sorted(map(str, range(60)))]


def refusing(code: int) -> Any:
    def refuse(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    return refuse


def unnamed() -> list[str]:
    return [path for path in os.listdir("/dev/shm") if path.startswith("tmp")]  # noqa: PTH208


def test_a_message_lies_in_a_file_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before, message = unnamed(), np.arange(100_000)
    monkeypatch.setattr(os, "memfd_create", refusing(errno.EPERM))
    one, other = Wire.pair()
    sent = parcel(message)
    assert sent.memory is not None
    assert os.fstat(sent.memory).st_nlink == 0
    assert unnamed() == before
    one.post(sent)
    assert np.array_equal(other.receive(), message)
    one.close()
    other.close()


def test_where_shared_memory_may_not_be_written_it_is_the_folder_for_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "memfd_create", refusing(errno.ENOSYS))
    monkeypatch.setattr(files, "SHARED_MEMORY", str(tmp_path / "missing"))
    number = files.memory_file("x")
    assert os.write(number, b"abc") == 3
    assert os.pread(number, 9, 0) == b"abc"
    os.close(number)


def test_a_process_that_may_open_no_more_files_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", refusing(errno.EMFILE))
    with pytest.raises(OSError, match="may open no more files; raise `ulimit -n`"):
        parcel(np.arange(100_000))
