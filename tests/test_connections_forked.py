"""The table of connections while threads use it and processes are forked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timed

CODE = """
import os, sys, threading, traceback
from headrace.catalog import connections
connections._new_manager = lambda proxy: object()  # a real one takes 20 ms, and there are thousands
sys.setswitchinterval(1e-6)
URLS = [f"http://host{n}.example/" for n in range(40)]
connections._proxy = lambda url: url

def use(barrier, errors):
    try:
        barrier.wait()
        for url in URLS:
            first = connections.manager_for(url)
            assert connections.manager_for(url) is first, "two threads have two managers"
    except BaseException:
        errors.append(traceback.format_exc())

def together():
    barrier, errors = threading.Barrier(8), []
    threads = [threading.Thread(target=use, args=(barrier, errors)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors

assert not together()
theirs = {id(connections.manager_for(url)) for url in URLS}
ended = threading.Event()
def keep_busy():
    while not ended.is_set():
        for url in URLS:
            connections.manager_for(url)
busy = [threading.Thread(target=keep_busy) for _ in range(2)]
for thread in busy:
    thread.start()
failed = 0
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if not pid:
        errors = together()
        if not theirs.isdisjoint(id(connections.manager_for(url)) for url in URLS):
            errors.append("a connection of the parent's is used")
        print("".join(errors[:1]), file=sys.stderr, flush=True)
        os._exit(bool(errors))
    failed += os.waitpid(pid, 0)[1] != 0
ended.set()
for thread in busy:
    thread.join()
print(failed)
"""


def test_threads_of_forked_processes_use_connections_of_their_own_without_an_error() -> None:
    command = [sys.executable, "-c", CODE, "40"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=dict(os.environ), check=True)
    assert done.stdout == "0\n", done.stderr[-3000:]
