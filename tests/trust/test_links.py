"""Links in a folder of data: those to files are followed, others are not opened, and what is in them is not quoted."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import robot_meta
from odd_files import make_socket, soon

from headrace import Recipe, StreamingLeRobotDataset, TrueStreamingDataset, load, rows
from headrace.catalog.layouts import read_card
from headrace.errors import HeadraceError, described, unquoted
from headrace.fetch.media.audio import decode_audio
from headrace.fetch.media.boxes import children
from headrace.fetch.media.clip import clip_of
from headrace.lerobot.columns import column_of
from headrace.lerobot.info import Feature
from headrace.make.describe import Tokenize
from headrace.make.formatters import FORMATTERS, with_fields
from headrace.make.template import Template
from headrace.make.tokenize import open_tokenizer
from headrace.make.tokens import TOKENS
from headrace.serve.state_file import read_state as state_of_data_set
from headrace.testing.tokenizers import write_tokenizer
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


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), vocab=300)


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


# --- files of the right kind, with values of the wrong one

INFOS: dict[str, dict[str, Any]] = {
    "a version": {"codebase_version": SECRET},
    "no text as a version": {"codebase_version": [SECRET]},
    "a storage format": {"storage_format": SECRET},
    "frames a second": {"fps": SECRET},
    "a list of frames a second": {"fps": [SECRET]},
    "episodes": {"total_episodes": SECRET},
    "frames": {"total_frames": {"a": SECRET}},
    "features": {"features": SECRET},
    "a list of features": {"features": [SECRET]},
    "a feature": {"features": {"a": SECRET}},
    "a type": {"features": {"a": {"dtype": [SECRET], "shape": [1]}}},
    "a shape": {"features": {"a": {"dtype": "int64", "shape": SECRET}}},
    "a size": {"features": {"a": {"dtype": "int64", "shape": [1, SECRET]}}},
    "a unit": {"features": {"a": robot_meta.video(info={"is_depth_map": True, "depth_unit": SECRET})}},
    "a depth": {"features": {"a": robot_meta.video(info={"is_depth_map": True, "video.depth_max": SECRET})}},
    "a list as a template": {"data_path": [SECRET]},
    "a long template": {"data_path": SECRET * 100},
    "a template that climbs": {"data_path": f"../{SECRET}"},
    "a template without an end": {"data_path": f"{SECRET}{{"},
    "a field": {"data_path": f"{{{SECRET}}}"},
    "a width": {"data_path": f"{{chunk_index:{SECRET}}}"},
    "a conversion": {"data_path": f"{{chunk_index!{SECRET[0]}}}{SECRET}"},
    "a template of videos": {"video_path": f"{{{SECRET}}}"},
    "one video for two cameras": {"video_path": SECRET},
}
"""Fields of a robot's meta/info.json."""


def robot(tmp_path: Path, link: Callable[[str, str], Path], name: str, content: str) -> Path:
    """A data set one of whose files is a link."""
    folder = robot_meta.write(tmp_path / "robot")
    (folder / name).unlink()
    (folder / name).symlink_to(link("anything", content))
    return folder


@pytest.mark.parametrize("name", INFOS)
def test_a_robot_s_info_is_not_quoted(tmp_path: Path, link: Callable[[str, str], Path], name: str) -> None:
    folder = robot(tmp_path, link, robot_meta.INFO, json.dumps(robot_meta.info(**INFOS[name])))
    said = said_by(lambda: StreamingLeRobotDataset(str(folder), cache_dir=tmp_path / "cache"))
    check_unquoted(said)
    assert f"{folder}, meta/info.json: " in said
    assert next(iter(INFOS[name])).removesuffix("s") in said


def test_the_version_of_a_robot_s_info_is_shown_where_it_is_one(
    tmp_path: Path, link: Callable[[str, str], Path]
) -> None:
    folder = robot(tmp_path, link, robot_meta.INFO, json.dumps(robot_meta.info(codebase_version="v2.1")))
    assert "of format v2.1, and" in said_by(lambda: StreamingLeRobotDataset(str(folder), cache_dir=tmp_path / "cache"))


def test_a_type_that_a_robot_s_info_declares_is_shown_only_where_it_is_one() -> None:
    array = pa.array(["a"])
    check_unquoted(said_by(lambda: column_of(array, Feature("a", SECRET, (1,)), "here")))
    said = said_by(lambda: column_of(array, Feature("a", "float32", (1,)), "here"))
    assert "column 'a' holds string where meta/info.json declares float32" in said


@pytest.mark.parametrize("content", [{"action": {"mean": SECRET}}, {"action": SECRET}, [SECRET], SECRET])
def test_a_robot_s_statistics_are_not_quoted(tmp_path: Path, link: Callable[[str, str], Path], content: object) -> None:
    folder = robot(tmp_path, link, robot_meta.STATS, json.dumps(content))
    said = said_by(lambda: StreamingLeRobotDataset(str(folder), cache_dir=tmp_path / "cache"))
    check_unquoted(said)
    assert f"{folder}, meta/stats.json" in said


VALUES: dict[str, tuple[Any, str]] = {
    "a text": (SECRET, "is text of 12 characters"),
    "a list of texts": ([SECRET], "is a list of 1"),
    "an object": ({"a": SECRET}, "is an object of 1 key"),
    "nothing": (None, "is null"),
    "a number": (7, "is 7"),
    "a truth": (True, "is true"),
}


def rows_file(link: Callable[[str, str], Path], kind: str, value: object) -> str:
    """The source of a link to a file whose rows have the secret and a value."""
    row = {"name": SECRET, "value": value}
    path = link(f"x.{kind}", json.dumps(row))
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), path)
    return f"{kind}:{path}"


def opened(spec: str, **given: Any) -> list[Any]:
    with load(spec, **given) as loader:
        return list(loader)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_is_no_text_or_no_tokens_is_not_quoted(
    tmp_path: Path, link: Callable[[str, str], Path], tokenizer: Path, kind: str, name: str
) -> None:
    value, told = VALUES[name]
    spec = f"{rows_file(link, kind, value)}:value"
    tries: dict[str, dict[str, Any]] = {}
    if not isinstance(value, str):
        tries["a text is expected"] = {"tokenizer": str(tokenizer), "eos": False}
    if kind == "jsonl":  # a column of parquet has a type, which is asked first
        tries["a list of token numbers from 0 on is expected"] = {}
    for wanted, more in tries.items():
        given = {"batch_size": 1, "seq_len": 8, "cache_dir": tmp_path / "cache", **more}
        said = said_by(partial(opened, spec, **given))
        check_unquoted(said)
        assert f"x.{kind}:0, column 'value' {told}" in said
        assert wanted in said


def test_what_is_no_token_in_a_list_is_told_by_its_place(tmp_path: Path, link: Callable[[str, str], Path]) -> None:
    spec = f"{rows_file(link, 'jsonl', [1, SECRET])}:value"
    said = said_by(lambda: opened(spec, batch_size=1, seq_len=8, cache_dir=tmp_path / "cache"))
    check_unquoted(said)
    assert "is a list of 2 with text of 12 characters at place 1: a list of token numbers" in said


GIVEN: dict[str, tuple[Callable[[str], Any], str]] = {
    "several": (lambda text: [{"text": "a"}, text], "its formatter gave text of 12 characters;"),
    "bytes": (lambda text: [text.encode()], "its formatter gave 12 bytes;"),
    "no text in it": (lambda text: {"txt": text}, "its formatter gave a dict without 'text' (its keys: 'txt');"),
    "no text as text": (lambda text: {"text": [text]}, "its formatter gave a dict whose 'text' is a list of 1;"),
    "other segments": (lambda text: {"text": "a", "segments": [(text, True)]}, "segments that do not make its text"),
    "a flag": (lambda text: {"text": "a", "is_training": text}, "is_training is text of 12 characters; true"),
}
MESSAGES: dict[str, tuple[Callable[[str], Any], str]] = {
    "a text": (lambda text: text, "as messages text of 12 characters;"),
    "texts": (
        lambda text: [text],
        "as messages a list of 1 of which number 0 is text of 12 characters without a role;",
    ),
    "no role": (
        lambda text: [{"role": "user", "content": "a"}, {"content": text}],
        "as messages a list of 2 of which number 1 is an object of 1 key without a role;",
    ),
}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", GIVEN)
def test_what_a_formatter_makes_of_a_row_is_not_quoted(
    tmp_path: Path, link: Callable[[str, str], Path], tokenizer: Path, kind: str, name: str
) -> None:
    make, told = GIVEN[name]
    path = rows_file(link, kind, 1).partition(":")[2]
    data_set = TrueStreamingDataset(
        {"a": [{"name": "a", "path": path, "split": "train"}]},
        {"a": lambda row, tokens: make(row["name"])},
        open_tokenizer(Tokenize(tokenizer=str(tokenizer), bos=False, eos=False)),
        dict(TOKENS),
        None,
    ).configure(cache_dir=tmp_path / "cache", learn="assistant")
    said = said_by(lambda: list(data_set))
    check_unquoted(said)
    assert told in said
    assert f"x.{kind}:0" in said


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_of_a_formatter_are_not_quoted(name: str) -> None:
    make, told = MESSAGES[name]
    template = Template(plain="", with_tools="", special={}, tokens={})
    said = said_by(lambda: template.render({"text": "", "messages": make(SECRET)}, learn=False))
    check_unquoted(said)
    assert f"its formatter gave {told}" in said


NO_ROW: Any = SECRET


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (lambda: clip_of(SECRET), "the clip is text of 12 characters; a pair"),
        (lambda: clip_of([0, SECRET]), "the clip has text of 12 characters in it, which is no time"),
        (lambda: clip_of(["9", "3"]), "ends before it begins, or where it begins: from 9 s to 3 s"),
        (
            lambda: decode_audio({"array": [0.0, 1.0], "sampling_rate": SECRET}, 8000),
            "a sampling rate of text of 12 characters; a whole number",
        ),
        (lambda: FORMATTERS["format_conversation"](NO_ROW, TOKENS), "got text of 12 characters"),
        (lambda: with_fields(FORMATTERS["format_code"], {"prompt": "q"})(NO_ROW, TOKENS), "got text of 12 characters"),
    ],
)
def test_other_values_of_a_row_are_not_quoted(read: Callable[[], Any], told: str) -> None:
    said = said_by(read)
    check_unquoted(said)
    assert told in said


@pytest.mark.parametrize("line", ['{{"{0}": 1, "{0}": 2}}', '{{"a": [{{"{0}": {{}}, "b": 1, "{0}": 2}}]}}'])
def test_a_key_that_comes_again_is_told_by_its_place(
    tmp_path: Path, link: Callable[[str, str], Path], line: str
) -> None:
    text = line.format(SECRET)
    link("x.jsonl", text)
    said = said_by(lambda: list(rows(f"jsonl:{tmp_path}/data/*.jsonl", cache_dir=tmp_path / "cache")))
    check_unquoted(said)
    at = text.rindex(f'"{SECRET}"')
    assert f"x.jsonl: row 0 (line 1, byte {at}) has a key twice in one object, the second time here" in said


def test_the_first_letters_of_a_video_that_is_none_are_not_quoted() -> None:
    for head in (b"\0\0\0\2", b"\0\0\0\x20"):
        said = said_by(partial(children, memoryview(head + SECRET.encode())))
        check_unquoted(said)
        assert "the MP4 has a box of unknown kind" in said


@pytest.mark.parametrize("quotes", ["{}", "`{}`", "a`{}", "'{}", '"{}\n`'])
def test_what_a_tokenizer_says_of_a_text_is_told_without_its_quotes(quotes: str) -> None:
    panic = f"index 1 is not a char boundary; it is inside 'é' (bytes 0..2) of `{quotes.format(SECRET)}`[...]"
    assert unquoted(panic) == "index 1 is not a char boundary; it is inside …[...]"


def test_a_value_is_described_by_its_kind_and_length() -> None:
    told = {
        "null": None,
        "true": True,
        "-7": -7,
        "2.5": 2.5,
        "nan": float("nan"),
        "a whole number of 4,001 bits": 1 << 4000,
        "text of 1 character": "a",
        "text of 1,000 characters": "a" * 1000,
        "3 bytes": b"abc",
        "a list of 2": ["a", 1],
        "an object of 1 key": {SECRET: SECRET},
        "an array of int64 and shape (2,)": np.arange(2),
        "3": np.int64(3),
        "a value of type date": date(2024, 1, 2),
    }
    assert [described(value) for value in told.values()] == list(told)


# --- which links are followed


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
