"""Texts become the ids that the tokenizers library gives, whichever library is at work."""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors
from tokenizing import BEFORE, TEXTS, bare, lists, moved, run

from headrace.errors import SpecError
from headrace.make.describe import Tokenize
from headrace.make.sample import Sample
from headrace.make.tokenize import Tokenizer, open_tokenizer
from headrace.testing.tokenizers import BOS, EOS, PAD, write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), vocab=600)


@pytest.fixture(scope="module")
def core(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


# --- ids


@pytest.mark.parametrize("backend", ["auto", "reference", "fast"])
def test_ids_are_those_of_the_tokenizers_library(folder: Path, core: tokenizers.Tokenizer, backend: Any) -> None:
    opened = open_tokenizer(Tokenize(tokenizer=str(folder), backend=backend, eos=False))
    assert opened.backend == ("reference" if backend == "reference" else "fast")
    assert lists(opened.encode(TEXTS)) == bare(core, TEXTS)
    assert (opened.bos_id, opened.eos_id, opened.pad_id, opened.vocab_size) == (0, 1, 2, 600)


@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("backend", ["reference", "fast"])
def test_the_flat_form_and_the_lists_say_the_same(folder: Path, backend: Any, eos: bool) -> None:
    opened = open_tokenizer(Tokenize(tokenizer=str(folder), backend=backend, eos=eos, bos=eos))
    ids, offsets = opened.encode_flat(TEXTS)
    found = opened.encode(TEXTS)
    assert (ids.dtype, offsets.dtype) == (np.dtype(np.int32), np.dtype(np.int64))
    assert [ids[offsets[i] : offsets[i + 1]].tolist() for i in range(len(TEXTS))] == lists(found)
    assert ids.flags.writeable
    assert all(text.dtype == np.int32 and text.base is None and text.flags.writeable for text in found)


@pytest.mark.parametrize("backend", ["reference", "fast"])
def test_no_texts_give_no_ids(folder: Path, backend: Any) -> None:
    opened = open_tokenizer(Tokenize(tokenizer=str(folder), backend=backend))
    ids, offsets = opened.encode_flat([])
    assert (ids.tolist(), offsets.tolist(), opened.encode([])) == ([], [0], [])


@pytest.mark.parametrize("backend", ["reference", "fast"])
def test_a_document_is_never_cut_nor_padded(core: tokenizers.Tokenizer, backend: Any) -> None:
    cutting = tokenizers.Tokenizer.from_str(core.to_str())
    cutting.enable_truncation(4)
    cutting.enable_padding(length=64)
    opened = open_tokenizer(cutting, Tokenize(tokenizer="x", backend=backend))
    assert lists(opened.encode(TEXTS)) == bare(core, TEXTS)
    assert cutting.truncation is not None
    assert cutting.padding is not None


@pytest.mark.parametrize("backend", ["reference", "fast"])
def test_an_object_that_splits_special_tokens_still_does(core: tokenizers.Tokenizer, backend: Any) -> None:
    splitting = tokenizers.Tokenizer.from_str(core.to_str())
    splitting.encode_special_tokens = True
    opened = open_tokenizer(splitting, Tokenize(tokenizer="x", backend=backend))
    found = moved(opened).encode([f"a{EOS}"])[0].tolist()
    assert found == bare(splitting, [f"a{EOS}"])[0]
    assert found != bare(core, [f"a{EOS}"])[0]


def like_llama() -> tokenizers.Tokenizer:
    """Merges over whole texts, and bytes for what it does not know."""
    pieces = [
        "<unk>",
        *(f"<0x{i:02X}>" for i in range(256)),
        *map(chr, range(33, 127)),
        *"▁éя中",
        "he",
        "ll",
        "▁he",
        "lo",
    ]
    merges = [("h", "e"), ("l", "l"), ("▁", "he"), ("l", "o")]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return made


anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.mark.parametrize("kind", ["bytes", "llama"])
def test_both_backends_are_equal_on_any_text(folder: Path, kind: str) -> None:
    given_ = folder if kind == "bytes" else like_llama()
    fast = open_tokenizer(given_, Tokenize(tokenizer=str(folder), backend="fast"))
    right = open_tokenizer(given_, Tokenize(tokenizer=str(folder), backend="reference"))

    @settings(max_examples=150, deadline=None)
    @given(st.lists(anything, max_size=8))
    def check(texts: list[str]) -> None:
        assert lists(fast.encode(texts)) == lists(right.encode(texts))

    check()
    assert (fast.backend, right.backend) == ("fast", "reference")


def test_a_sample_is_learned_from_whole_unless_told_otherwise() -> None:
    assert Sample(np.array([1, 2], np.int32)).loss is None


# --- bos and eos

AROUND = processors.TemplateProcessing(single="z $A y", pair="z $A y $B y", special_tokens=[("z", 92), ("y", 91)])
MORE = processors.TemplateProcessing(
    single=f"z {BOS} $A {EOS} y", pair="$A $B", special_tokens=[("z", 92), (BOS, 0), (EOS, 1), ("y", 91)]
)
ADDS: dict[str, Any] = {"add_bos_token": True}
NEVER: dict[str, Any] = {"add_bos_token": False}


@pytest.mark.parametrize(
    ("template", "config", "bos", "eos", "before", "after"),
    [
        # nothing said: bos as the tokenizer does it, eos always
        (None, {}, None, None, [], [1]),
        (BEFORE, {}, None, None, [0], [1]),
        (None, ADDS, None, None, [0], [1]),
        (BEFORE, NEVER, None, None, [], [1]),
        # said
        (None, {}, True, None, [0], [1]),
        (BEFORE, {}, True, False, [0], []),
        (BEFORE, {}, False, False, [], []),
        (None, ADDS, False, True, [], [1]),
        (None, NEVER, True, True, [0], [1]),
        # other tokens than the named ones
        (AROUND, {}, None, None, [92], [1]),
        (AROUND, {}, True, False, [0], []),
        (MORE, {}, None, None, [92, 0], [1, 91]),
        (MORE, {}, True, True, [92, 0], [1, 91]),
        # nothing named: what the tokenizer puts there by itself
        (AROUND, {"bos_token": None, "eos_token": None}, None, None, [92], [91]),
        (AROUND, {"bos_token": None, "eos_token": None}, True, True, [92], [91]),
        (AROUND, {"bos_token": None, "eos_token": None}, False, False, [], []),
        (None, {"bos_token": None, "eos_token": None}, None, None, [], []),
        # written as objects
        (None, {"eos_token": {"content": PAD, "lstrip": False}}, None, None, [], [2]),
    ],
)
def test_documents_begin_and_end_as_described(
    tmp_path: Path,
    folder: Path,
    core: tokenizers.Tokenizer,
    template: Any,
    config: dict[str, Any],
    bos: bool | None,
    eos: bool | None,
    before: list[int],
    after: list[int],
) -> None:
    made = tokenizers.Tokenizer.from_str(core.to_str())
    if template is not None:
        made.post_processor = template
    made.save(str(tmp_path / "tokenizer.json"))
    said = json.loads((folder / "tokenizer_config.json").read_text()) | config
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    opened = open_tokenizer(Tokenize(tokenizer=str(tmp_path), bos=bos, eos=eos, backend="reference"))
    assert lists(opened.encode(TEXTS)) == [[*before, *ids, *after] for ids in bare(core, TEXTS)]


def test_names_are_found_in_the_older_file_too(tmp_path: Path, folder: Path) -> None:
    shutil.copy(folder / "tokenizer.json", tmp_path)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": EOS}))
    assert open_tokenizer(tmp_path).eos_id == 1
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": PAD}))
    assert open_tokenizer(tmp_path / "tokenizer.json").eos_id == 2


@pytest.mark.parametrize("kind", ["bos", "eos"])
def test_a_token_that_is_not_there_cannot_be_asked_for(
    tmp_path: Path, folder: Path, core: tokenizers.Tokenizer, kind: str
) -> None:
    asked: dict[str, Any] = {kind: True}
    not_asked: dict[str, Any] = {kind: False}
    with pytest.raises(SpecError, match=f"{kind}=True, and the tokenizer has no {kind} token"):
        open_tokenizer(core, Tokenize(tokenizer="x", **asked))
    shutil.copy(folder / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({f"{kind}_token": "<gone>"}))
    with pytest.raises(SpecError, match=f"names '<gone>' as its {kind} token, and its vocabulary has no such token"):
        open_tokenizer(Tokenize(tokenizer=str(tmp_path), **asked))
    assert len(open_tokenizer(Tokenize(tokenizer=str(tmp_path), **not_asked)).encode(["a"])[0]) == 1


# --- processes


def encoded_elsewhere(opened: Tokenizer, texts: list[str]) -> tuple[list[list[int]], str, str]:
    return lists(opened.encode(texts)), opened.fingerprint, opened.backend


@pytest.mark.parametrize("backend", ["reference", "fast"])
def test_it_goes_to_a_spawned_process_without_its_folder(tmp_path: Path, backend: Any) -> None:
    made = write_tokenizer(tmp_path / "soon gone", vocab=400)
    opened = open_tokenizer(Tokenize(tokenizer=str(made), backend=backend, bos=True, threads=1))
    shutil.rmtree(made)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(encoded_elsewhere, (opened, TEXTS))
    assert found == (lists(opened.encode(TEXTS)), opened.fingerprint, backend)


FORKS = """
import os, sys, logging
from headrace.make.describe import Tokenize
from headrace.make.tokenize import open_tokenizer
logging.basicConfig(stream=sys.stdout, format="%(message)s")
texts = ["bakori stuen " * 200] * 64
opened = [open_tokenizer(Tokenize(tokenizer=sys.argv[1], backend=b, threads=THREADS)) for b in ("reference", "fast")]
right = [t.encode_flat(texts)[0].tobytes() for t in opened]
for _ in range(10):
    opened[1].encode_flat(texts)
    pid = os.fork()
    if not pid:
        # a process that hangs is ended, and found out by how it ended
        import signal
        signal.alarm(20)
        same = [t.encode_flat(texts)[0].tobytes() for t in opened] == right
        print([t.backend for t in opened], flush=True)
        os._exit(0 if same else 1)
    assert os.waitpid(pid, 0)[1] == 0
print(os.environ.get("TOKENIZERS_PARALLELISM"), [t.backend for t in opened])
"""

NO_ADVICE = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}
"""Newer Pythons advise against forking with threads; whether that goes well is what is tried here."""


def test_forked_children_tokenize_and_nothing_is_printed(folder: Path) -> None:
    code = f"import sys; sys.argv = ['x', {str(folder)!r}]\n" + FORKS.replace("THREADS", "None")
    assert run(code, **NO_ADVICE).splitlines() == ["['reference', 'fast']"] * 10 + ["None ['reference', 'fast']"]


def test_a_child_forked_from_fastokens_with_threads_uses_the_reference(folder: Path) -> None:
    code = f"import sys; sys.argv = ['x', {str(folder)!r}]\n" + FORKS.replace("THREADS", "2")
    lines = run(code, **NO_ADVICE).splitlines()
    assert lines[1::2] == ["['reference', 'reference']"] * 10
    assert all("forked from one where fastokens had threads of its own" in line for line in lines[:-1:2])
    assert lines[-1] == "None ['reference', 'fast']"


def test_threads_are_limited_for_both_libraries(folder: Path) -> None:
    code = f"""
import os
from headrace.make.describe import Tokenize
from headrace.make.tokenize import open_tokenizer
texts = ["bakori stuen " * 200] * 64
for backend in ("reference", "fast"):
    open_tokenizer(Tokenize(tokenizer={str(folder)!r}, backend=backend, threads=1)).encode(texts)
print(len(os.listdir("/proc/self/task")), *(os.environ[n] for n in ("RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM")))
"""
    assert run(code, OPENBLAS_NUM_THREADS="1").split() == ["1", "1", "false"]


def test_a_folder_needs_only_the_tokenizers_library(folder: Path) -> None:
    code = f"""
import sys
sys.modules["transformers"] = sys.modules["torch"] = None
from headrace.make.describe import Tokenize
from headrace.make.tokenize import open_tokenizer
open_tokenizer(Tokenize(tokenizer={str(folder)!r}, backend="reference")).encode(["a"])
print(sorted({{"fastokens", "huggingface_hub"}} & set(sys.modules)))
"""
    assert run(code) == "[]\n"


def test_describing_needs_no_library_at_all() -> None:
    code = "import sys, headrace.make.describe\nprint(sorted({'numpy', 'torch', 'tokenizers'} & set(sys.modules)))"
    assert run(code) == "[]\n"


# --- fingerprints


def test_a_fingerprint_hangs_on_what_decides_the_ids(tmp_path: Path, folder: Path, core: tokenizers.Tokenizer) -> None:
    name = str(folder)
    first = open_tokenizer(Tokenize(tokenizer=name)).fingerprint
    assert re.fullmatch("[0-9a-f]{16}", first)
    other = shutil.copytree(folder, tmp_path / "elsewhere")
    cut = tokenizers.Tokenizer.from_str(core.to_str())
    cut.enable_truncation(7)
    cut.save(str(other / "tokenizer.json"), pretty=False)
    same = [
        Tokenize(tokenizer=str(other)),
        Tokenize(tokenizer=name, backend="reference"),
        Tokenize(tokenizer=name, eos=True, threads=1),
    ]
    assert {open_tokenizer(how).fingerprint for how in same} == {first}
    pretty = tokenizers.Tokenizer.from_str(core.to_str())
    pretty.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    differing = [
        open_tokenizer(Tokenize(tokenizer=name, eos=False)),
        open_tokenizer(Tokenize(tokenizer=name, bos=True)),
        open_tokenizer(Tokenize(tokenizer=name, column="body")),
        open_tokenizer(write_tokenizer(tmp_path / "seed", vocab=600, seed=1)),
        open_tokenizer(pretty),
    ]
    assert len({first, *(opened.fingerprint for opened in differing)}) == 6


def test_a_fingerprint_is_the_same_in_every_process(folder: Path) -> None:
    code = (
        "from headrace.make.tokenize import open_tokenizer\n"
        f"print(open_tokenizer({str(folder)!r}).fingerprint, hash('x'))"
    )
    found = [run(code, PYTHONHASHSEED=seed).split() for seed in ("1", "2")]
    assert found[0][0] == found[1][0] == open_tokenizer(folder).fingerprint
    assert found[0][1] != found[1][1]
