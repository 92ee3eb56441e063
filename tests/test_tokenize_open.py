"""Tokenizers are opened from wherever they lie, and what is none is refused in words that help."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizing import BEFORE, TEXTS, Fake, PanicException, lists, moved, run, warned

from headrace.errors import DataError, HeadraceError, NotFound, SpecError
from headrace.make.describe import Backend, Tokenize
from headrace.make.tokenize import NotText, TextError, Tokenizer, open_tokenizer
from headrace.testing.tokenizers import BOS, EOS, PAD, write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), vocab=600)


@pytest.fixture(scope="module")
def core(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


# --- transformers, and the maker


def test_a_made_tokenizer_is_the_same_each_time_and_opens_in_transformers(tmp_path: Path, folder: Path) -> None:
    import transformers

    again = write_tokenizer(tmp_path, vocab=600)
    assert (again / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    loaded = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token, len(loaded)) == (BOS, EOS, PAD, 600)
    opened, by_path = open_tokenizer(loaded), open_tokenizer(folder)
    assert lists(opened.encode(TEXTS)) == [[*ids, 1] for ids in loaded(TEXTS)["input_ids"]]
    assert opened.fingerprint == by_path.fingerprint
    assert (opened.bos_id, opened.eos_id, opened.pad_id) == (0, 1, 2)


def test_a_transformers_object_that_adds_bos_is_believed(folder: Path) -> None:
    import transformers

    make: Any = transformers.PreTrainedTokenizerFast
    loaded = make(tokenizer_file=str(folder / "tokenizer.json"), bos_token=BOS, eos_token=EOS)
    loaded.backend_tokenizer.post_processor = BEFORE
    assert open_tokenizer(loaded).encode(["a"])[0].tolist() == [*loaded("a")["input_ids"], 1]
    assert loaded("a")["input_ids"][0] == 0


# --- the Hub


class OneModel(BaseHTTPRequestHandler):
    """Serves the files of `org/model` as the Hub does."""

    folder: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        found = re.fullmatch("/org/(model|gated)/resolve/[^/]+/(.+)", self.path)
        path = self.folder / found[2] if found and found[1] == "model" else None
        if found and found[1] == "gated":
            self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif self.path.startswith("/api/models/org/model/tree/"):
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        elif not found:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif path is None or not path.is_file():
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": "c" * 40})
        else:
            self._answer(200, path.read_bytes(), {"X-Repo-Commit": "c" * 40, "ETag": f'"{found[2] if found else ""}"'})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def both(folder: Path) -> dict[str, Tokenizer]:
    kinds: list[Backend] = ["reference", "fast"]
    return {kind: open_tokenizer(Tokenize(tokenizer=str(folder), backend=kind)) for kind in kinds}


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def model_hub(folder: Path) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    with served(type("Handler", (OneModel,), {"folder": folder, "asked": asked})) as endpoint:
        yield endpoint, asked


def test_a_name_on_the_hub_is_the_same_as_its_files(
    tmp_path: Path, folder: Path, model_hub: tuple[str, list[str]]
) -> None:
    code = """
import sys
from headrace.errors import HeadraceError
from headrace.make.tokenize import open_tokenizer
for name in NAMES:
    try:
        opened = open_tokenizer(name)
        print(opened.fingerprint, opened.eos_id, "transformers" in sys.modules)
    except HeadraceError as error:
        print(type(error).__name__, error)
"""
    env = {"HF_ENDPOINT": model_hub[0], "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    lines = run(code.replace("NAMES", "['org/model', 'org/none', 'org/gated']"), **env).splitlines()
    assert lines[0] == f"{open_tokenizer(folder).fingerprint} 1 False"
    assert lines[1].startswith("NotFound tokenizer 'org/none': neither a file or folder here nor a model on the Hub")
    assert lines[2].startswith("NotAllowed tokenizer 'org/gated': the model is gated")
    assert f"/org/model/resolve/{'c' * 40}/tokenizer_config.json" in model_hub[1]
    again = run(code.replace("NAMES", "['org/model', 'org/other']"), **env, HF_HUB_OFFLINE="1").splitlines()
    assert again[0] == lines[0]
    assert again[1].startswith("Unreachable tokenizer 'org/other'")


class AwayModel(OneModel):
    """Away for two seconds from the first request on, as a server that is started again is."""

    status: int
    back: float | None = None

    def do_GET(self) -> None:
        if type(self).back is None:
            type(self).back = time.monotonic() + 2
        if time.monotonic() < (type(self).back or 0):
            self._answer(self.status, b"", {})
        else:
            super().do_GET()


OPEN = """
import logging, time
logging.disable()  # that one waits is told on stderr
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.01))  # the pauses of the Hub's own client
from headrace.errors import HeadraceError
from headrace.make.tokenize import open_tokenizer
try:
    print(open_tokenizer("org/model").fingerprint)
except HeadraceError as error:
    print(type(error).__name__, error)
"""


def hub_env(endpoint: str, tmp_path: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


@pytest.mark.parametrize("status", [503, 520])
def test_a_hub_that_is_away_for_a_while_is_waited_for(tmp_path: Path, folder: Path, status: int) -> None:
    away = type("Handler", (AwayModel,), {"status": status, "folder": folder, "asked": []})
    with served(away) as endpoint:
        line = run(OPEN, **hub_env(endpoint, tmp_path), HEADRACE_RETRY_SECONDS="300").strip()
    assert line == open_tokenizer(folder).fingerprint


def test_the_hub_is_waited_for_where_transformers_asks_it_too(tmp_path: Path, folder: Path) -> None:
    code = OPEN.replace(
        'open_tokenizer("org/model").fingerprint',
        '__import__("headrace.make.load").make.load.transformers_tokenizer("org/model").eos_token',
    )
    with served(type("Handler", (AwayModel,), {"status": 503, "folder": folder, "asked": []})) as endpoint:
        line = run(code, **hub_env(endpoint, tmp_path), HEADRACE_RETRY_SECONDS="300").strip()
    assert line == EOS


class WithoutTokenMap(OneModel):
    """Has all files but an old one, for which it cannot be asked."""

    def do_GET(self) -> None:
        if self.path.endswith("special_tokens_map.json"):
            self._answer(503, b"", {})
        else:
            super().do_GET()


def test_a_file_of_the_old_kind_is_not_waited_for(tmp_path: Path, folder: Path) -> None:
    """Where it is not in the cache and the Hub cannot be asked, as on a node without a network."""
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    config = json.loads((model / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    with served(type("Handler", (WithoutTokenMap,), {"folder": model, "asked": []})) as endpoint:
        line = run(OPEN, **hub_env(endpoint, tmp_path), HEADRACE_RETRY_SECONDS="300").strip()
    assert re.fullmatch(r"[0-9a-f]{16}", line)


def test_a_hub_that_stays_away_is_an_error_that_says_how_long_it_was_tried(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        env = hub_env(f"http://127.0.0.1:{taken.getsockname()[1]}", tmp_path)
        line = run(OPEN, **env, HEADRACE_RETRY_SECONDS="1").strip()
    assert line.startswith("Unreachable tokenizer 'org/model'")
    assert "without progress; HEADRACE_RETRY_SECONDS" in line


# --- refusals


@pytest.mark.parametrize("backend", ["reference", "fast"])
@pytest.mark.parametrize(
    ("bad", "kind", "why"),
    [
        (None, NotText, "is NoneType and not a string"),
        (7, NotText, "is int and not a string"),
        (b"x", NotText, "is bytes and not a string"),
        (("a", "b"), NotText, "is tuple and not a string"),
        ("ab\ud800", TextError, "holds half of a surrogate pair at character 2"),
    ],
)
def test_a_bad_text_is_named_by_its_place(
    both: dict[str, Tokenizer],
    caplog: pytest.LogCaptureFixture,
    backend: str,
    bad: Any,
    kind: type[TextError],
    why: str,
) -> None:
    opened = both[backend]
    with pytest.raises(kind, match=f"text 2 of the list {why}") as caught:
        opened.encode(["fine", "fine", bad, "fine"])
    assert caught.value.index == 2
    assert isinstance(caught.value, TypeError if kind is NotText else DataError)
    there = moved(caught.value)
    assert (type(there), there.index, str(there)) == (kind, 2, str(caught.value))
    assert lists(opened.encode(["a"])) == lists(opened.encode(["a"]))
    assert opened.backend == backend
    assert warned(caplog) == []


def test_a_text_on_which_the_tokenizer_fails_is_named_by_its_place(
    folder: Path, core: tokenizers.Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_tokenizer(Tokenize(tokenizer=str(folder), backend="reference"))
    monkeypatch.setattr(opened, "_encoder", Fake(core.to_str(), lambda t: "zebra" in t, PanicException("index 3 of 2")))
    with pytest.raises(TextError, match="text 1 of the list cannot be tokenized: the tokenizer says: index 3 of 2"):
        opened.encode(["fine", "a zebra", "a zebra"])
    quoting = PanicException("byte index 1 is not a char boundary; it is inside 'a' (bytes 0..1) of `a zebra`")
    monkeypatch.setattr(opened, "_encoder", Fake(core.to_str(), lambda t: "zebra" in t, quoting))
    with pytest.raises(TextError, match="it is inside …$") as caught:  # the row is not quoted
        opened.encode(["fine", "a zebra"])
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None
    monkeypatch.setattr(opened, "_encoder", Fake(core.to_str(), lambda t: "zebra" in t, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        opened.encode(["a zebra"])


def test_one_text_is_not_a_list_of_texts(folder: Path) -> None:
    with pytest.raises(TypeError, match="a list of texts is expected, and this is one text"):
        open_tokenizer(folder).encode("a text")


@pytest.mark.parametrize(
    "name", ["/no/such/folder", "./none", "~/none", "none.json", "a/b/c", "what is this", "a/../b"]
)
def test_a_path_that_leads_nowhere_is_said_without_asking_the_hub(name: str) -> None:
    with pytest.raises(NotFound, match="there is no such file or folder"):
        open_tokenizer(name)


PANICS = '{"version": "1.0", "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "model": {}}'
"""tokenizers does not raise an exception for it, but panics."""


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"tokenizer.json": "{"}, "it is no tokenizer.json that tokenizers can read"),
        ({"tokenizer.json": '{"model": 3}'}, "it is no tokenizer.json that tokenizers can read"),
        ({"tokenizer.json": b"\xff\xfe"}, "it cannot be read as text"),
        ({"tokenizer_config.json": "nothing"}, "tokenizer_config.json: it is not JSON"),
        ({"tokenizer_config.json": "[" * 100_000}, "tokenizer_config.json: it is not JSON"),
        ({"tokenizer_config.json": '{"bos_token": 5}'}, "a bos, eos or pad token is int that is no text"),
        ({"tokenizer_config.json": '{"eos_token": {"content": [1]}}'}, "token is list that is no text"),
        ({"tokenizer_config.json": '{"eos_token": "\\ud800"}'}, "token is str that is no text"),
        ({"tokenizer.json": PANICS}, "it is no tokenizer.json that tokenizers can read"),
        ({"tokenizer_config.json": "[]"}, "tokenizer_config.json: it holds no JSON object"),
        ({"config.json": '{"model_type": "none"}'}, "has no tokenizer.json, and transformers cannot make"),
    ],
)
def test_a_folder_that_holds_no_tokenizer_is_an_error(
    tmp_path: Path, folder: Path, files: dict[str, str | bytes], why: str
) -> None:
    if "tokenizer_config.json" in files:
        shutil.copy(folder / "tokenizer.json", tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(HeadraceError, match=re.escape(why)):
        open_tokenizer(tmp_path)


def test_what_is_no_fast_tokenizer_is_refused() -> None:
    slow = type("SlowTokenizer", (), {"is_fast": False})()
    with pytest.raises(SpecError, match="SlowTokenizer is a slow tokenizer"):
        open_tokenizer(slow)
    with pytest.raises(SpecError, match="dict is no tokenizer; a path, a Hub name, a tokenizers.Tokenizer"):
        open_tokenizer({})


def test_a_tokenizer_that_draws_lots_is_refused(core: tokenizers.Tokenizer) -> None:
    drawing = tokenizers.Tokenizer.from_str(core.to_str().replace('"dropout":null', '"dropout":0.1'))
    with pytest.raises(SpecError, match="dropout=0.1.*: it gives other ids each time"):
        open_tokenizer(drawing)


@pytest.mark.parametrize(("package", "extra"), [("tokenizers", "tokenizers"), ("transformers", "tokenizers")])
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SpecError, match=re.escape(f"pip install 'headrace[{extra}]'")):
        open_tokenizer(folder if package == "tokenizers" else tmp_path)


def test_an_open_tokenizer_is_taken_as_it_is(folder: Path) -> None:
    opened = open_tokenizer(folder)
    assert open_tokenizer(opened) is opened
    assert open_tokenizer(opened, Tokenize(tokenizer="any name")) is opened
    with pytest.raises(SpecError, match="is open already"):
        open_tokenizer(opened, Tokenize(tokenizer="any name", eos=False))
    with pytest.raises(SpecError, match="two descriptions"):
        open_tokenizer(opened.how, Tokenize(tokenizer="another"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokenizer": ""},
        {"tokenizer": "a\0"},
        {"bos": 1},
        {"bos": "<s>"},
        {"eos": 1},
        {"eos": ""},
        {"backend": "rust"},
        {"column": ""},
    ]
    + [{"threads": n} for n in (0, True, 1.5, 2000)],
)
def test_a_description_that_means_nothing_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(SpecError, match=f"^{name}="):
        Tokenize(**{"tokenizer": "a", **wrong})
