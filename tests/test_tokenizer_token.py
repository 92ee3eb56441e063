"""The user's token stays here while tokenizers and templates are opened by name on a Hub over plain http."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.testing.tokenizers import write_tokenizer

pytestmark = pytest.mark.timeout(120)

ELSEWHERE = "hub.example"
"""A name that leads to this machine, and does not say so."""
COMMIT = "c" * 40
BYTES = {
    "vocab.json": json.dumps({"x": 0, "a": 1, "<unk>": 2}),
    "merges.txt": "#version: 0.2\n",
    "tokenizer_config.json": json.dumps(
        {"tokenizer_class": "GPT2Tokenizer", **dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<unk>")}
    ),
    "config.json": json.dumps({"model_type": "gpt2"}),
}
"""A tokenizer that only transformers can open."""
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
LARGE = "model.safetensors"


class Hub(BaseHTTPRequestHandler):
    """Serves the models `org/fast` and `org/bare` as the Hub does, and keeps what was asked and with which token."""

    files: dict[str, dict[str, bytes]]
    asked: list[tuple[str, str | None]]
    over: threading.Event
    is_away = threading.Event()
    is_silent = threading.Event()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        if self.is_away.is_set():
            self._answer(503, b"")
            return
        if self.is_silent.is_set():
            self.over.wait(60)
            return
        path = urlsplit(self.path).path  # of a proxy it is an address
        api = path.startswith("/api/models/")
        model = next((name for name in self.files if f"/org/{name}" in path), "fast")
        files = self.files[model]
        name = path.partition("/resolve/")[2].partition("/")[2]
        if api and "/tree/" in path:
            listed = [
                {"type": "file", "path": name, "size": len(body), "oid": "0" * 40} for name, body in files.items()
            ]
            self._answer(200, json.dumps(listed).encode())
        elif api:
            siblings = [{"rfilename": name} for name in files]
            self._answer(200, json.dumps({"id": f"org/{model}", "sha": COMMIT, "siblings": siblings}).encode())
        elif name in files:
            self._answer(200, files[name], {"ETag": f'"{model}-{name}"'})
        else:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "X-Repo-Commit": COMMIT, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[int, list[tuple[str, str | None]]]]:
    folder = write_tokenizer(tmp_path / "tokenizer", vocab=600)
    fast = {path.name: path.read_bytes() for path in folder.iterdir()}
    extra = {"chat_template.jinja": TEMPLATE.encode(), LARGE: b"x"}
    files = {
        "fast": fast | extra,
        "bare": {name: text.encode() for name, text in BYTES.items()} | extra,
        "none": {LARGE: b"x"},
        "old": {**fast, "tokenizer_config.json": _with_template(fast["tokenizer_config.json"]), **extra},
    }
    Hub.is_away.clear()
    Hub.is_silent.clear()
    asked: list[tuple[str, str | None]] = []
    over = threading.Event()
    handler = type("Handler", (Hub,), {"files": files, "asked": asked, "over": over})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port, asked
        over.set()
        server.shutdown()
        thread.join()


def _with_template(config: bytes) -> bytes:
    """One that the file of a template takes the place of."""
    return json.dumps({**json.loads(config), "chat_template": f"OLD {TEMPLATE}"}).encode()


OPEN = f"""
import socket, sys
found = socket.getaddrinfo
names = ("{ELSEWHERE}", b"{ELSEWHERE}")
socket.getaddrinfo = lambda host, *a, **k: found("127.0.0.1" if host in names else host, *a, **k)
way, name = sys.argv[1:]
if way == "tokenizer":
    from headrace.make.tokenize import open_tokenizer
    print(open_tokenizer(name).fingerprint)
else:
    from headrace.make.open_template import open_template
    print(open_template(name, {{}}, learn=False).plain)
"""


def opened(host: str, port: int, tmp_path: Path, *args: str, **env: str) -> str:
    env = {"no_proxy": host, "NO_PROXY": host, **env}
    env |= {"HF_ENDPOINT": f"http://{host}:{port}", "HF_TOKEN": "hf_local"}
    env |= {"HF_HOME": str(tmp_path / "hf"), "PATH": "/usr/bin:/bin", "HEADRACE_RETRY_SECONDS": "2"}
    done = subprocess.run([sys.executable, "-c", OPEN, *args], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["org/fast", "org/bare"])
@pytest.mark.parametrize("way", ["tokenizer", "template"])
def test_no_request_for_a_tokenizer_carries_it_over_plain_http(
    tmp_path: Path, hub: tuple[int, list[tuple[str, str | None]]], way: str, name: str
) -> None:
    port, asked = hub
    there = opened(ELSEWHERE, port, tmp_path / "there", way, name)
    assert asked
    assert [path for path, token in asked if token is not None] == []
    assert not [path for path, _ in asked if path.endswith(LARGE)]
    asked.clear()
    assert opened("127.0.0.1", port, tmp_path / "here", way, name) == there
    assert asked
    assert "Bearer hf_local" in {token for _, token in asked}
    if way == "template":  # a missing tokenizer.json is not known to be missing where nobody can be asked
        asked.clear()
        assert opened(ELSEWHERE, port, tmp_path / "there", way, name, HF_HUB_OFFLINE="1") == there
        assert asked == []


@pytest.mark.parametrize("name", ["org/fast", "org/bare"])
def test_no_request_for_a_tokenizer_carries_it_to_a_proxy(
    tmp_path: Path, hub: tuple[int, list[tuple[str, str | None]]], name: str
) -> None:
    """Clients of others ask a proxy also for an endpoint on this machine. The server here is the proxy."""
    port, asked = hub
    proxy = {"http_proxy": f"http://127.0.0.1:{port}", "no_proxy": "", "NO_PROXY": ""}
    opened("127.0.0.1", 9, tmp_path, "template", name, **proxy)
    assert [path for path, _ in asked if path.startswith("http://127.0.0.1:9/")]
    assert [path for path, token in asked if token is not None] == []


def test_what_the_cache_happens_to_have_is_not_taken_where_the_hub_is_away(
    tmp_path: Path, hub: tuple[int, list[tuple[str, str | None]]]
) -> None:
    """A template of before, say: rows would be written in another way, and nobody would know."""
    port, _ = hub
    opened(ELSEWHERE, port, tmp_path, "tokenizer", "org/old")  # which needs no template
    Hub.is_away.set()
    with pytest.raises(AssertionError, match=r"Unreachable: tokenizer 'org/old'.*gave up"):
        print(opened(ELSEWHERE, port, tmp_path, "template", "org/old"))
    Hub.is_away.clear()
    assert "OLD" not in opened(ELSEWHERE, port, tmp_path, "template", "org/old")


def test_a_hub_that_takes_connections_and_says_nothing_is_given_up(
    tmp_path: Path, hub: tuple[int, list[tuple[str, str | None]]]
) -> None:
    Hub.is_silent.set()
    begun = time.monotonic()
    with pytest.raises(AssertionError, match=r"Unreachable: tokenizer 'org/bare'.*gave up"):
        opened(ELSEWHERE, hub[0], tmp_path, "template", "org/bare", HF_HUB_ETAG_TIMEOUT="1")
    assert time.monotonic() - begun < 40


def test_a_model_without_files_of_a_tokenizer_is_said(
    tmp_path: Path, hub: tuple[int, list[tuple[str, str | None]]]
) -> None:
    with pytest.raises(AssertionError, match="NotFound: the Hub lists no files of a tokenizer for 'org/none'"):
        opened(ELSEWHERE, hub[0], tmp_path, "template", "org/none")
