"""A token that nobody else has goes through a whole job; afterwards it is in no file, log, message or command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import LocalHub, write_parquet
from headrace.testing.hub import CloseAfter, Status

CANARY = "hf_CANARYcanaryCANARYcanary0123456789"

SCRIPT = """
import json, logging, os, pickle, signal, sys, traceback
from multiprocessing import reduction
from pathlib import Path
import headrace
from headrace.serve.wire import Wire

out, method = Path(sys.argv[1]), sys.argv[2]
told = []

def watch_messages():
    '''All that goes to workers and comes back, as it goes.'''
    sent, dump, post = (out / f"sent-{os.getpid()}").open("ab", buffering=0), reduction.dump, Wire.post

    def dumped(value, file, protocol=None):
        dump(value, file, protocol)
        sent.write(file.getvalue())

    def posted(self, parcel):
        sent.write(parcel.packet)
        if parcel.memory is not None:
            sent.write(os.pread(parcel.memory, 1 << 30, 0))
        post(self, parcel)

    reduction.dump, Wire.post = dumped, posted

def tell(attempt):
    try:
        attempt()
    except Exception:
        told.append(traceback.format_exc())
        return
    raise SystemExit("it should have failed")

def main():
    options = {"num_workers": 2, "start_method": method, "lanes": 2, "batch_size": 5, "cache_dir": out / "cache"}
    tell(lambda: next(headrace.rows("hf:org/nothing", cache_dir=out / "cache")))
    tell(lambda: next(headrace.rows("hf:org/broken", cache_dir=out / "cache")))
    with headrace.load("hf:org/rows", shuffle=True, **options) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        (out / "state.json").write_text(json.dumps(loader.state_dict()))
        told.extend([repr(loader), repr(vars(loader)), repr(vars(loader._pipeline))])
        told.extend([loader.describe(), str(loader.stats()), repr(pickle.dumps(loader._pipeline))])
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                try:
                    told.append((folder / "cmdline").read_text())
                except OSError:
                    pass
        os.kill(batches._slots._crew._workers[0].pid, signal.SIGKILL)
        tell(lambda: [next(batches) for _ in range(50)])
    (out / "told").write_text("\\n".join(told))
    print("token", os.environ["HF_TOKEN"] in Path("/proc/self/environ").read_text(), len(told))

watch_messages()
logging.basicConfig(level=logging.DEBUG, filename=out / f"log-{os.getpid()}")
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_token_is_nowhere_after_a_job_with_workers_failures_and_a_state(tmp_path: Path, method: str) -> None:
    write_parquet(tmp_path / "repo" / "data", [[30, 30]] * 3)
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "job.py").write_text(SCRIPT)
    with LocalHub(cdn=True, tokens=(CANARY,)) as hub:
        for repo in ("org/rows", "org/broken"):
            hub.push(repo, tmp_path / "repo")
            hub.restrict(repo, "private")
        hub.fault("*org/broken*", Status(403), origin="hub", nth=range(3, 99))
        hub.fault("*", CloseAfter(3000), origin="cdn", nth=(2, 3))
        hub.fault("*", Status(403), origin="cdn", nth=5)
        done = subprocess.run(
            [sys.executable, str(tmp_path / "job.py"), str(out), method],
            env={**os.environ, **hub.env(), "HF_TOKEN": CANARY, "HF_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        requests = hub.requests
    assert done.stdout.startswith("token True")
    assert any(request.token_ok for request in requests), "the token was used"
    assert {request.authorized for request in requests if request.origin == "cdn"} == {False}
    queries = {request.query for request in requests if request.origin == "cdn"}
    files = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    names = [path.name for path in files]
    assert {"told", "state.json"} <= set(names)
    assert any(name.startswith("log-") and files[path] for path, name in zip(files, names, strict=True))
    assert sum(len(files[path]) for path in files if path.name.startswith("sent-")) > 1000
    assert any(name.endswith(".parquet") for name in names)
    for secret in (CANARY, CANARY[3:], *queries):
        assert secret not in done.stdout + done.stderr
        for path, content in files.items():
            assert secret.encode() not in content, path
            assert secret not in str(path)
