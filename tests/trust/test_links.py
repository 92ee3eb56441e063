"""Links in a folder of data: those to files are followed, others are not opened, and what is in them is not quoted."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odd_files import make_socket, soon

from headrace import Recipe, load, rows
from headrace.catalog.layouts import read_card
from headrace.errors import HeadraceError
from headrace.make.template import Template
from headrace.make.tokenize import open_tokenizer
from headrace.serve.state_file import read_state as state_of_data_set
from headrace.tools.states import read_state

SECRET = "Zx9-Qv7wKj4z"
"""No three characters of it in a row are in a word that a message has."""
RUN = 3
FOREIGN = {
    "nothing but it": SECRET,
    "at its end": f"password={SECRET}",
    "in a line without an end": f"a,b\n1,{SECRET}",
    "passwords": f"root:{SECRET}:0:0:root:/root:/bin/sh\n",
    "a JSON string": json.dumps(SECRET),
    "a number of JSON": f"{{{SECRET}: 1}}",
    "a bad value": f'{{"a": {SECRET}}}',
    "an open string": f'{{"a": "{SECRET}',
    "a bad escape": f'{{"a": "\\{SECRET}"}}',
    "more after an object": f'{{"a": 1}} {SECRET}',
    "no UTF-8": f"{SECRET}\udcff{SECRET}",
    "an array": json.dumps([SECRET]),
    "a model": json.dumps({"model": SECRET}),
    "a version": json.dumps({"version": SECRET, "model": {"type": SECRET}}),
    "added tokens": json.dumps({"version": "1.0", "added_tokens": SECRET, "model": {"type": "BPE"}}),
    "YAML": f"a: [{SECRET}\n{SECRET}: {{",
    "YAML that is a word": SECRET,
    "a key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n",
}
"""What files have in them that are none of the data set's."""
OBJECTS = ("a model", "a version", "added tokens")
"""Those that are a row of JSON lines."""


@pytest.fixture
def link(tmp_path: Path) -> Callable[[str, str], Path]:
    (tmp_path / "data").mkdir()

    def link(name: str, content: str) -> Path:
        (tmp_path / "outside").write_bytes(content.encode("utf-8", "surrogateescape"))
        path = tmp_path / "data" / name
        path.symlink_to(tmp_path / "outside")
        return path

    return link


def check_unquoted(said: str) -> None:
    """No three characters of the secret are in it, nor three of its bytes as hex or base64."""
    for text in (SECRET, SECRET.encode().hex(), SECRET.encode().hex(" "), base64.b64encode(SECRET.encode()).decode()):
        length = RUN if text == SECRET else 2 * RUN
        for at in range(len(text) - length + 1):
            assert text[at : at + length].lower() not in said.lower(), said


def said_by(read: Callable[[], Any]) -> str:
    """An error with its causes and notes, as a traceback would print them."""
    try:
        read()
    except HeadraceError as error:
        words: list[str] = []
        one: BaseException | None = error
        while one is not None:
            words += [str(one), *getattr(one, "__notes__", ())]
            one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        return "\n".join(words)
    pytest.fail("it was read")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in ("jsonl", "jsonl.gz", "jsonl.zst", "parquet")
        for name in FOREIGN
        if kind != "jsonl" or name not in OBJECTS
    ],
)
def test_what_a_link_leads_to_is_not_quoted(
    tmp_path: Path, link: Callable[[str, str], Path], kind: str, name: str
) -> None:
    link(f"x.{kind}", FOREIGN[name])
    spec = f"{kind.partition('.')[0]}:{tmp_path}/data/*.{kind}"
    for read in (
        lambda: list(rows(spec, cache_dir=tmp_path / "cache")),
        lambda: list(load(spec, batch_size=1, cache_dir=tmp_path / "cache")),
    ):
        said = said_by(read)
        check_unquoted(said)
        assert f"x.{kind}" in said


def test_a_line_that_is_no_utf8_is_not_quoted(tmp_path: Path, link: Callable[[str, str], Path]) -> None:
    link("x.txt", FOREIGN["no UTF-8"])
    said = said_by(lambda: list(rows(f"txt:{tmp_path}/data/*.txt", cache_dir=tmp_path / "cache")))
    check_unquoted(said)
    assert "x.txt: row 0 (line 1, byte 12) is not UTF-8: invalid start byte at byte 13 of its 25" in said


@pytest.mark.parametrize("name", [name for name in FOREIGN if name != "a model"])
def test_files_of_settings_are_not_quoted(tmp_path: Path, link: Callable[[str, str], Path], name: str) -> None:
    path = link("tokenizer.json", FOREIGN[name])
    readers: list[Callable[[], Any]] = [lambda: open_tokenizer(path), lambda: read_state(path)]
    if name not in ("a version", "added tokens"):
        readers.append(lambda: state_of_data_set(path))
    for read in readers:
        check_unquoted(said_by(read))
    if "YAML" in name:
        for front in (FOREIGN[name], f"a: !{SECRET}", f"a: *{SECRET}", f"'{SECRET}", f"? [{SECRET}]\n"):
            try:
                read_card(f"---\n{front}\n---\n")
            except HeadraceError as error:
                check_unquoted(str(error))  # some of them are YAML
                assert "line " in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "text",
    ["{{% {0} %}}", "{{{{ {0}", "{{{{ '{0} }}}}", "{{% if {0} %}}", "{{# {0}", "{{{{ a {0} }}}}", "a\n{{{{ {0}@}}}}"],
)
def test_a_chat_template_that_is_none_is_not_quoted(text: str) -> None:
    template = Template(plain=text.format(SECRET), with_tools="", special={}, tokens={})
    said = said_by(lambda: template.write([]))
    check_unquoted(said)
    assert f"in line {1 + text.count(chr(10))}" in said


def test_links_to_files_are_followed_and_hard_links_are_files(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data").mkdir()
    for i in range(2):
        pq.write_table(pa.table({"a": [i]}), tmp_path / "elsewhere" / f"{i}.parquet")
    (tmp_path / "data" / "0.parquet").symlink_to("../elsewhere/0.parquet")
    (tmp_path / "data" / "1.parquet").hardlink_to(tmp_path / "elsewhere" / "1.parquet")
    found = rows(f"parquet:{tmp_path}/data/*.parquet", shuffle=False, cache_dir=tmp_path / "cache")
    assert [row["a"] for row in (one.data for one in found)] == [0, 1]


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_pipe(path: Path) -> None:
    pipe(path.with_name("pipe"))
    path.symlink_to("pipe")


ODD: dict[str, Callable[[Path], None]] = {
    "a pipe": pipe,
    "a socket": make_socket,
    "a link to a pipe": link_to_pipe,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to a folder": lambda path: path.symlink_to("/etc"),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, what: str) -> None:
    readers: dict[str, Callable[[Path], Any]] = {
        "x.parquet": lambda path: list(rows(f"parquet:{path}", cache_dir=tmp_path / "cache")),
        "x.jsonl": lambda path: list(rows(f"jsonl:{path}", cache_dir=tmp_path / "cache")),
        "x.txt.gz": lambda path: list(rows(f"txt:{path}", cache_dir=tmp_path / "cache")),
        "tokenizer.json": lambda path: open_tokenizer(path),
        "recipe.yaml": lambda path: Recipe.from_yaml(path),
        "state.json": lambda path: read_state(path),
        "saved.json": lambda path: state_of_data_set(path),
    }
    for name, read in readers.items():
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        ODD[what](folder / name)
        said = soon(partial(said_by, partial(read, folder / name)), seconds=60)
        assert name in said, name
