"""Packed batches through real models of Transformers: documents of one sequence do not see each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from streaming import World
from torch import Tensor

import headrace
from headrace.batch import Batch
from headrace.testing import write_parquet

pytestmark = [
    # torch's compiler uses what torch itself calls deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # Most tests here mean to call it so: compiling takes long.
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
]

VOCAB = 97
LAYERS = ["sliding_attention", "full_attention"]
SEQ_LEN = 32
PARTS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCAB}
KINDS = ("llama", "qwen2", "gpt_neox", "gpt2", "mistral", "gemma3_text")
MODELS = [*((kind, way) for kind in KINDS for way in ("eager", "sdpa")), ("llama", "flex_attention")]


@pytest.fixture(autouse=True)
def not_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """flex_attention as written, but where a test is about the compiled one: compiling takes long."""
    if request.node.get_closest_marker("compiled"):
        # Once it has seen two batch sizes, torch compiles for any size, and on some processors its C++ is wrong then.
        torch.compiler.reset()
        yield
    else:
        with torch.compiler.set_stance("force_eager"):
            yield


def model_of(kind: str, way: str = "sdpa") -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    more: dict[str, Any] = {"intermediate_size": 48}
    if kind == "opt":
        more = {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": SEQ_LEN, "dropout": 0.0}
    elif kind == "gpt2":
        more = {"n_positions": SEQ_LEN}
    elif kind == "qwen2":
        more |= {"num_key_value_heads": 2}
    elif kind == "mistral":
        more |= {"sliding_window": 6, "num_key_value_heads": 2}
    elif kind == "gemma3_text":
        more |= {"sliding_window": 6, "num_key_value_heads": 2, "head_dim": 16, "layer_types": LAYERS}
    torch.manual_seed(3)
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, **PARTS, **more, **ends)
    found = AutoModelForCausalLM.from_config(config, attn_implementation=way).float()
    for module in found.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # so that training mode can be compared
    for name in ("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop"):
        if hasattr(found.config, name):
            setattr(found.config, name, 0.0)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.mul_(4)  # attention of fresh weights is nearly even, and hides what it looks at
    return found


def tokens_row(shard: str, row: int) -> dict[str, Any]:
    length = (9, 14, 5, 11, 20, 3, 17, 8)[row % 8]
    return {"ids": [3 + (row * 31 + i * i * 7) % (VOCAB - 3) for i in range(length)]}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("packed")
    write_parquet(folder, [[24]], row=tokens_row)
    return f"parquet:{folder}/*.parquet:ids"


def batch_of(spec: str, tmp: Path, batch_size: int) -> Batch:
    """One with several documents, and padding, in each of its sequences."""
    options: dict[str, Any] = {"seq_len": SEQ_LEN, "batch_size": batch_size, "epochs": 1, "shuffle": False}
    with headrace.load(spec, cache_dir=tmp, **options) as loader:
        for batch in loader:
            documents = batch.document_ids
            if (documents.amax(1) >= 2).all() and (documents[:, -1] == 0).any():
                return batch
    raise AssertionError("no batch has what these tests need")


def logits(model: Any, batch: Batch, **more: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(**batch, **more).logits
    return found


def changed_in(batch: Batch, number: int) -> Batch:
    """The same batch with other tokens in one document of each sequence."""
    other = batch.copy()
    ids = batch["input_ids"]
    other["input_ids"] = torch.where(batch.document_ids == number, 3 + (ids + 40) % (VOCAB - 3), ids)
    return other


def apart(model: Any, batch: Batch, **more: Any) -> None:
    """Other tokens in one document move its own logits, and no others."""
    found = logits(model, batch, **more)
    assert found.isfinite().all()
    for number in range(int(batch.document_ids.max()) + 1):  # 0 is the padding
        own = batch.document_ids == number
        other = logits(model, changed_in(batch, number), **more)
        assert torch.equal(other[~own], found[~own])
        assert not own.any() or not torch.equal(other[own], found[own])


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(("kind", "way"), MODELS)
def test_a_document_does_not_see_the_others_of_its_sequence(
    spec: str, tmp_path: Path, kind: str, way: str, training: bool, batch_size: int
) -> None:
    apart(model_of(kind, way).train(training), batch_of(spec, tmp_path, batch_size))


@pytest.mark.compiled
@pytest.mark.timeout(600)
def test_a_document_does_not_see_others_in_compiled_attention(spec: str, tmp_path: Path) -> None:
    apart(model_of("llama", "flex_attention").eval(), batch_of(spec, tmp_path, 2))


@pytest.mark.parametrize(("kind", "way"), MODELS)
def test_a_document_gives_what_it_gives_alone(spec: str, tmp_path: Path, kind: str, way: str) -> None:
    batch = batch_of(spec, tmp_path, 2)
    model, plain = model_of(kind, way).eval(), model_of(kind, "eager").eval()
    found = logits(model, batch)
    for ids, documents, row in zip(batch["input_ids"], batch.document_ids, found, strict=True):
        for number in range(int(documents.max()) + 1):
            own = documents == number
            if own.any():
                with torch.no_grad():
                    alone = plain(input_ids=ids[own][None]).logits[0]
                assert torch.allclose(row[own], alone, atol=2e-4, rtol=1e-3)


def test_the_loss_is_that_of_the_documents_alone(spec: str, tmp_path: Path) -> None:
    batch = batch_of(spec, tmp_path, 2)
    model = model_of("llama").train()
    total, count = 0.0, 0
    for ids, documents in zip(batch["input_ids"], batch.document_ids, strict=True):
        for number in range(1, int(documents.max()) + 1):
            own = ids[documents == number][None]
            with torch.no_grad():
                total += model(input_ids=own, labels=own).loss.item() * (own.shape[1] - 1)
            count += own.shape[1] - 1
    assert model(**batch).loss.item() == pytest.approx(total / count, rel=1e-4)


def test_the_batch_is_what_models_take_and_nothing_else(spec: str, tmp_path: Path) -> None:
    batch = batch_of(spec, tmp_path, 2)
    assert list(batch) == ["input_ids", "labels", "position_ids", "use_cache"]
    assert batch["use_cache"] is False
    for documents, positions in zip(batch.document_ids, batch["position_ids"], strict=True):
        for number in documents.unique().tolist():
            assert positions[documents == number].tolist() == list(range(int((documents == number).sum())))


def test_models_that_ignore_positions_take_a_mask_made_of_document_ids(spec: str, tmp_path: Path) -> None:
    """OPT does not tell documents apart by their positions."""
    batch = batch_of(spec, tmp_path, 2)
    model = model_of("opt").eval()
    with pytest.raises(AssertionError):
        apart(model, batch)
    same = batch.document_ids[:, :, None] == batch.document_ids[:, None, :]
    apart(model, batch, attention_mask=same.tril()[:, None])


def test_packed_samples_are_kept_apart_as_well(tmp_path: Path) -> None:
    world = World(tmp_path)
    rows = world.memory({"a": lambda i: {"instruction": "w" * (i % 9), "output": f"[a {i}]"}})
    loader = rows.make(max_per_epoch=12, sample_repeat=1).loader(2, pack="best_fit", seq_len=300)
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {**PARTS, "intermediate_size": 48, "vocab_size": world.decoder.get_vocab_size(), "pad_token_id": 0}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **shape)).eval()
    for given in loader:
        batch = given.copy()
        for name in [name for name in given if name not in ("input_ids", "labels", "position_ids", "use_cache")]:
            del batch[name]  # media, flags and what is there for a model of one's own
        assert (batch.document_ids.amax(1) >= 2).any()
        apart(model, batch)
