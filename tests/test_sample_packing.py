"""Samples that share sequences: media travel with them, room is counted with what media take, and nothing is lost."""

from __future__ import annotations

import json
import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from media_files import clip, encoded, photo, sound, tone
from states import restamped
from streaming import RATE, World, code_row, named, names_in, picture, speech_row, vision_row, whole, write_table

from headrace import Faults, format_vision, merge_states
from headrace.batch import Batch
from headrace.errors import DataError, SpecError, StateError
from headrace.fetch.media.audio import sound_seconds
from headrace.make.tokens import TOKENS
from headrace.recipe import Pack
from headrace.sequence import finish
from headrace.sequence.cost import MEDIA_TOKENS, Cost, media_tokens_of
from headrace.sequence.finish import Finish
from headrace.sequence.sample_pack import packing_of
from headrace.serve.loader import Loader
from headrace.serve.streaming import TrueStreamingDataset
from headrace.serve.verify import verify

COSTS = {"image": 20, "video_frame": 10, "audio_second": 100, "audio": 7}
MIXED: dict[str, Any] = {"max_per_epoch": 22, "max_per_dataset": 6, "sample_repeat": 2, "max_video_frames": 3}
LESS = {**MIXED, "max_per_epoch": 6}
SIZE = 200


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def packed(dataset: TrueStreamingDataset, batch_size: int = 2, **more: Any) -> Loader:
    return dataset.loader(batch_size, **{"pack": "best_fit", "seq_len": SIZE, "media_tokens": COSTS, **more})


def documents(world: World, batch: Batch) -> dict[tuple[int, int], str]:
    """The text of each piece, by its sequence and the token at which it begins."""
    found = {}
    for number, (ids, docs) in enumerate(zip(batch["input_ids"].tolist(), batch.document_ids.tolist(), strict=True)):
        for document in range(1, max(docs) + 1):
            start = docs.index(document)
            own = [i for i, d in zip(ids, docs, strict=True) if d == document]
            found[number, start] = str(world.decoder.decode(own, skip_special_tokens=False))
    return found


def name_of(span: Any) -> str:
    """Which row of which source it is: 'vision 3'."""
    name, _, shard, row = span.address
    return f"{name} {row + (9 if shard == 'shard-1' else 0)}"  # of sources in memory, the first shard has nine


def names_of(batches: Iterable[Any]) -> list[str]:
    """Of all samples that begin in these batches."""
    spans = [span for batch in batches for sequence in batch.spans for span in sequence]
    return [name_of(span) for span in spans if not span.start and span.address.row >= 0]


def covered(batches: Iterable[Any], repeat: int) -> dict[tuple[str, int, str, int, int], int]:
    """Of each sample of each row, its tokens; all of them are there `repeat` times."""
    spans: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for batch in batches:
        for sequence in batch.spans:
            for span in sequence:
                if span.address.row >= 0:
                    spans[(*span.address, span.sample)].append((span.start, span.stop))
    for key, found in spans.items():
        times: Counter[int] = Counter(token for start, stop in found for token in range(start, stop))
        assert set(times) == set(range(max(stop for _, stop in found))), key
        assert set(times.values()) == {repeat}, key
    return {key: max(stop for _, stop in found) for key, found in spans.items()}


# --- what a batch has


@pytest.mark.parametrize("method", ["best_fit", "concat", "none"])
def test_media_are_with_the_sample_they_belong_to(world: World, method: str) -> None:
    batches = list(packed(world.make(**MIXED), pack=method))
    seen: Counter[str] = Counter()
    for batch in batches:
        texts = documents(world, batch)
        for place, image in zip(
            batch.get("image_index", torch.zeros(0)).tolist(), batch.get("images", []), strict=True
        ):
            number = round(float((image.mean() + 1) / 2 * 255))
            assert names_in(texts[tuple(place)]) == [f"vision {number}"]
            seen["image"] += 1
        for place, frames in zip(
            batch.get("video_index", torch.zeros(0)).tolist(), batch.get("video_frames", []), strict=True
        ):
            (name,) = names_in(texts[tuple(place)])
            assert int(frames) == 1 + int(name.split()[1]) % 3
            seen["video"] += 1
        for place, length in zip(
            batch.get("audio_index", torch.zeros(0)).tolist(), batch.get("audio_lengths", []), strict=True
        ):
            (name,) = names_in(texts[tuple(place)])
            assert int(length) == round(RATE * 0.01) * (1 + int(name.split()[1]) % 5)
            seen["audio"] += 1
        assert batch["has_asr"] == ("audio" in batch)
        kinds = [[name_of(span).split()[0] for span in sequence] for sequence in batch.spans]
        assert batch["dtype"] == kinds
    names = Counter(name.split()[0] for name in names_of(batches))
    assert sum(names.values()) == 44
    assert seen == {"image": names["vision"], "video": names["video"], "audio": names["voice_asr"]}


@pytest.mark.parametrize("method", ["best_fit", "concat", "none"])
def test_tokens_are_as_the_packer_of_texts_gives_them(world: World, method: str) -> None:
    """No attention across samples, no label where nothing comes before or is not to be learned."""
    batches = list(packed(world.make(**MIXED, learn="assistant"), pack=method))
    plain = {
        world.name(s): world.text(s, "labels") for s in world.make(**{**MIXED, "max_length": 200}, learn="assistant")
    }
    for batch in batches:
        assert batch["input_ids"].shape == batch["labels"].shape == batch["position_ids"].shape == (2, SIZE)
        docs, positions = batch.document_ids, batch["position_ids"]
        assert "attention_mask" not in batch
        assert batch["use_cache"] is False
        bounds = batch.cu_seqlens.tolist()
        assert bounds[0] == 0
        assert bounds[-1] == 2 * SIZE
        flat_docs, flat_labels = docs.flatten().tolist(), batch["labels"].flatten().tolist()
        for start, stop in pairwise(bounds):
            assert len(set(flat_docs[start:stop])) == 1
            assert positions.flatten()[start:stop].tolist() == list(range(stop - start))
            if flat_docs[start]:
                assert flat_labels[start] == -100
            else:
                assert set(flat_labels[start:stop]) == {-100}
        for text, labels in learned(world, batch) if method != "concat" else ():
            assert labels == plain[names_in(text)[-1]]
        assert batch.max_seqlen == max(b - a for a, b in pairwise(bounds))


def learned(world: World, batch: Batch) -> Iterable[tuple[str, str]]:
    found = (batch["input_ids"], batch.document_ids, batch["labels"])
    for ids, docs, labels in zip(*(one.tolist() for one in found), strict=True):
        for document in range(1, max(docs) + 1):
            own = [(i, label) for i, d, label in zip(ids, docs, labels, strict=True) if d == document]
            assert all(label in (-100, i) for i, label in own)
            yield (
                str(world.decoder.decode([i for i, _ in own], skip_special_tokens=False)),
                str(world.decoder.decode([label for _, label in own if label >= 0], skip_special_tokens=False)),
            )


@pytest.mark.parametrize("method", ["best_fit", "concat", "none"])
def test_room_is_counted_with_what_media_take(world: World, method: str) -> None:
    batches = list(packed(world.make(**MIXED), pack=method))
    for batch in batches:
        wanted = (batch.document_ids > 0).sum(1)
        for name, cost in (("image_index", 20), ("video_index", 10), ("audio_index", 1)):
            counts = batch.get("video_frames") if name == "video_index" else None
            if name == "audio_index" and name in batch:
                counts = -(-batch["audio_lengths"] * 100 // RATE)  # of a second each
            for k, (number, _) in enumerate(batch.get(name, torch.zeros(0)).tolist()):
                wanted[number] += cost * (1 if counts is None else int(counts[k]))
        assert torch.equal(batch["expanded_lengths"], wanted)
        assert int(wanted.max()) <= SIZE
    assert any(len(kinds) > 1 for batch in batches for kinds in batch["dtype"]) == (method != "none")


def test_a_sequence_is_fuller_than_a_sample(world: World) -> None:
    rows = {"a": lambda i: {"instruction": "w" * (i % 40), "output": f"[a {i}]"}}
    loader = packed(world.memory(rows).make(max_per_epoch=100, sample_repeat=1), batch_size=4)
    batches = list(loader)
    stats = loader.stats()
    assert stats["samples"] == 100
    assert stats["fill"] > 0.9
    assert stats["expanded_tokens"] == stats["tokens"] == sum(int((b.document_ids > 0).sum()) for b in batches)
    assert stats["sequences"] <= 50
    with pytest.raises(TypeError, match="not known before it is read"):
        len(loader)


def test_a_row_that_is_not_for_training_has_no_labels(world: World) -> None:
    rows = {"a": lambda i: {**code_row(i, "a"), "is_training": bool(i % 2)}}
    (batch,) = packed(world.memory(rows).make(max_per_epoch=2, sample_repeat=1))
    for text, labels in learned(world, batch):
        assert bool(labels) == (names_in(text) == ["a 1"])


# --- how often, and how many


@pytest.mark.parametrize("method", ["best_fit", "concat", "none"])
@pytest.mark.parametrize("lanes", [1, 3])
def test_limits_and_repeats_are_counted_by_sample(world: World, method: str, lanes: int) -> None:
    loader = packed(world.make(**MIXED), pack=method, lanes=lanes)
    for epoch in range(2):
        batches = list(loader)
        names = Counter(names_of(batches))
        assert sum(names.values()) == 44
        assert max(Counter(name.split()[0] for name in names.elements()).values()) <= 12
        assert all(count % 2 == 0 for count in names.values())
        assert len(covered(batches, 2)) == 22
        assert loader._here.epoch == epoch + 1
        assert loader._here.lanes


def test_limits_of_modalities_hold(world: World) -> None:
    dataset = world.make(**{**MIXED, "max_per_epoch": 9}, modality_max_values={"image": 1, "video": 1, "audio": 1})
    found = Counter(name.split()[0] for name in names_of(packed(dataset)))
    assert found == {"conversation": 6, "code": 6, "vision": 2, "voice_asr": 2, "video": 2}


# --- long ones


def long_rows(size: int) -> dict[str, Callable[[int], dict[str, Any]]]:
    """Every third text is longer than a sequence."""
    return {"a": lambda i: {"instruction": "long " * (size if i % 3 == 0 else 1), "output": f"[a {i}]"}}


@pytest.mark.parametrize("method", ["best_fit", "concat"])
@pytest.mark.parametrize("repeat", [1, 2])
def test_long_texts_go_on_in_other_sequences_to_the_token(world: World, method: str, repeat: int) -> None:
    dataset = world.memory(long_rows(300)).make(max_per_epoch=9, sample_repeat=repeat)
    loader = packed(dataset, pack=method)
    lengths = covered(loader, repeat)
    assert len(lengths) == 9
    assert sorted(lengths.values())[-1] > 2 * SIZE
    assert loader.stats()["samples_truncated"] == 0


def test_overlap_and_slack_are_those_of_a_pack(world: World) -> None:
    dataset = world.memory(long_rows(300)).make(max_per_epoch=3, sample_repeat=1)
    batches = list(packed(dataset, pack=Pack(method="concat", seq_len=SIZE, overlap=16), seq_len=None))
    assert len(covered(batches, 1)) == 3
    assert any(span.start for batch in batches for sequence in batch.spans for span in sequence)
    with pytest.raises(SpecError, match="give one of them"):
        dataset.loader(2, pack=Pack(seq_len=64), seq_len=32)


def test_one_sample_to_a_sequence_is_cut_and_counted(world: World) -> None:
    loader = packed(world.memory(long_rows(300)).make(max_per_epoch=9, sample_repeat=2), pack="none")
    batches = list(loader)
    assert [len(sequence) for batch in batches for sequence in batch.spans] == [1] * 18
    assert loader.stats()["samples_truncated"] == 3


def shown(answer: int, before: int = 0) -> Callable[..., Any]:
    """A picture after so many words, and so many words after it."""

    def made(sample: Any, tokens: Any) -> Any:
        name = sample["output"]
        mark = tokens["image_start"] + tokens["image_end"]
        return {"text": f"{name}{'w ' * before}{mark}{'z ' * answer}", "image": picture(7), "dtype": "vision"}

    return made


@pytest.mark.parametrize("learn", ["all", "assistant"])
def test_what_has_media_is_never_split_and_cut_only_after_them(world: World, learn: str) -> None:
    memory = world.memory({"a": named("a")})
    options = {"functions": {"code": shown(200)}, "max_per_epoch": 5, "sample_repeat": 2, "learn": learn}
    loader = packed(memory.make(**options))
    batches = list(loader)
    assert loader.stats()["samples_truncated"] == 5
    for batch in batches:
        texts = documents(world, batch)
        assert batch["images"].shape[0] == len(texts)
        assert batch["expanded_lengths"].tolist() == [SIZE if kinds else 0 for kinds in batch["dtype"]]
        assert [tuple(place) for place in batch["image_index"].tolist()] == list(texts)
        assert all(TOKENS["image_end"] in text and text.rstrip().endswith("z") for text in texts.values())


@pytest.mark.parametrize("make", [shown(0, before=200), shown(5, before=174)])
def test_what_does_not_fit_up_to_its_media_is_an_error_or_skipped(world: World, make: Callable[..., Any]) -> None:
    def some(sample: Any, tokens: Any) -> Any:
        bad = sample["output"] == "[a 3]"
        return make(sample, tokens) if bad else shown(1)(sample, tokens)

    memory = world.memory({"a": named("a")})
    options = {"functions": {"code": some}, "max_per_epoch": 8, "sample_repeat": 2}
    with pytest.raises(DataError, match="its media take 20 tokens, and the text up to the last of them") as caught:
        list(packed(memory.make(**options)))
    assert any("a epoch 0 " in note and note.endswith(":3") for note in caught.value.__notes__)
    dataset = memory.make(**options, faults=Faults(policy="skip", budget=1))
    names = Counter(names_of(packed(dataset)))
    assert set(names) == {f"a {i}" for i in range(9) if i != 3}
    assert set(names.values()) == {2}
    assert dataset._streaming_state["skipped_rows"] == 1


def test_media_without_a_place_in_the_text_are_never_cut_from_it(world: World) -> None:
    functions = {"code": lambda sample, tokens: {"text": "w " * 300, "image": picture(1)}}
    with pytest.raises(DataError, match="only text after media may be cut off"):
        list(packed(world.memory({"a": named("a")}).make(functions=functions)))


# --- decoding


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was decoded, in order."""
    found: list[Any] = []
    for name in ("load_picture", "load_image_tensor", "load_audio", "load_frames"):
        real = getattr(finish, name)

        def counted(value: Any, *more: Any, real: Any = real) -> Any:
            found.append(value)
            return real(value, *more)

        monkeypatch.setattr(finish, name, counted)
    return found


@pytest.mark.parametrize("method", ["best_fit", "concat", "none"])
def test_media_are_decoded_when_their_sequence_is_given(world: World, decoded: list[Any], method: str) -> None:
    for batch in packed(world.make(**MIXED), pack=method):
        media = [name for name in names_of([batch]) if name.split()[0] in ("vision", "voice_asr", "video")]
        assert len(decoded) == len(set(media))  # copies in one batch share what was decoded
        decoded.clear()


def test_nothing_is_decoded_to_get_there(world: World, decoded: list[Any]) -> None:
    loader = packed(world.make(["vision"], **LESS))
    list(islice(loader, 1))
    state = loader.state_dict()
    held = json.loads(state["lanes"])[0]["rest"]
    assert held
    assert all(len(part) == 6 and all(type(x) is int for x in part) for part in held)
    decoded.clear()
    again = packed(world.make(["vision"], **LESS))
    again.load_state_dict(state)
    assert decoded == []
    again.load_state_dict({"batches_consumed": 1, "batch_size": 2})
    assert decoded == []
    assert len(set(names_of([next(iter(again))]))) == len(decoded) > 0


def test_bad_media_leave_their_sequence_and_do_not_count(world: World, tmp_path: Path) -> None:
    rows = [vision_row(i) for i in range(12)]
    for i in (2, 3, 7):
        rows[i]["image"] = {"bytes": rows[i]["image"]["bytes"][:40], "path": ""}
    path = write_table(tmp_path / "vision.parquet", rows)
    configs = {"vision": [{"name": "v", "path": str(path)}]}
    with pytest.raises(DataError) as caught:
        list(packed(world.make(configs, **{**MIXED, "max_per_epoch": 6})))
    assert any("vision.parquet" in note for note in caught.value.__notes__)
    for method in ("best_fit", "concat", "none"):
        dataset = world.make(
            configs, faults=Faults(policy="skip", budget=5), **{**MIXED, "max_per_dataset": 9, "max_per_epoch": 9}
        )
        batches = list(packed(dataset, pack=method))
        assert Counter(names_of(batches)) == {f"v {i}": 2 for i in range(12) if i not in (2, 3, 7)}
        assert sum(len(batch["images"]) for batch in batches) == 18
        assert dataset._streaming_state["skipped_rows"] == 3
    with pytest.raises(DataError):
        list(packed(world.make(configs, faults=Faults(policy="skip", budget=2), **{**MIXED, "max_per_epoch": 6})))


def test_a_try_after_an_error_goes_on_with_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    full = [whole(batch) for batch in packed(world.make(["vision", "code"], **LESS))]
    real: Any = vars(finish)["load_image_tensor"]
    fails = iter([False, True, False, False, True, True] + [False] * 100)

    def flaky(*given: Any) -> Any:
        if next(fails):
            raise DataError("the disk hiccups")
        return real(*given)

    monkeypatch.setattr(finish, "load_image_tensor", flaky)
    loader = packed(world.make(["vision", "code"], **LESS))
    found: list[Any] = []
    steps, errors = iter(loader), 0
    while len(found) < len(full):
        try:
            found.append(whole(next(steps)))
        except DataError:
            errors += 1
    assert found == full
    assert errors == 3
    assert next(steps, None) is None


# --- what media take


def test_costs_are_declared_by_kind_or_by_a_function(world: World) -> None:
    assert media_tokens_of(None) == MEDIA_TOKENS == {"image": 256, "video_frame": 64, "audio_second": 25, "audio": 750}
    assert media_tokens_of({"image": 1.5}) == {**MEDIA_TOKENS, "image": 1.5}
    bad: Any
    for bad in ({"picture": 3}, {"image": -1}, {"image": "3"}, {"image": True}, {"image": float("nan")}, 7):
        with pytest.raises(SpecError, match="media_tokens"):
            world.make(["vision"]).loader(2, pack="best_fit", media_tokens=bad)
    with pytest.raises(SpecError, match="give pack='best_fit'"):
        world.make(["vision"]).loader(2, seq_len=64)
    with pytest.raises(SpecError, match="method='tight'"):
        packed(world.make(["vision"]), pack="tight")

    def each(sample: Mapping[str, Any]) -> int:
        return 50 if sample.get("image") is not None else 0

    (batch,) = packed(world.make(["vision"], max_per_epoch=2, sample_repeat=1), media_tokens=each)
    assert batch["expanded_lengths"].sum() == (batch.document_ids > 0).sum() + 100
    for wrong in (lambda sample: "3", lambda sample: -1, lambda sample: sample["nothing"]):
        with pytest.raises(DataError, match="media_tokens") as caught:
            list(packed(world.make(["vision"]), media_tokens=wrong))
        assert any("vision.parquet" in note for note in caught.value.__notes__)


def test_what_a_worker_needs_of_it_can_be_sent(world: World) -> None:
    packing = packing_of("best_fit", None, None, Finish(max_length=64), 2)
    assert packing.pack.seq_len == 64
    assert pickle.loads(pickle.dumps(packing)) == packing  # noqa: S301 - our own
    with packed(world.make(["vision", "code"], **LESS), num_workers=1, start_method="spawn") as loader:
        assert len(names_of(loader)) == 12


def test_a_sequence_is_as_long_as_a_sample_may_be_unless_said(world: World) -> None:
    batch = next(iter(world.make(["code"], max_length=120).loader(2, pack="best_fit")))
    assert batch["input_ids"].shape == (2, 120)


@pytest.mark.parametrize(
    ("extras", "wanted"),
    [
        ({}, 0),
        ({"image": b"x"}, 20),
        ({"images": [b"x", b"y"]}, 40),
        ({"image": b"x", "gen_images": [b"x", b"y"]}, 60),
        ({"video": b"x"}, 30),
        ({"video": [b"x"] * 2}, 20),
        ({"video": [b"x"] * 9}, 30),
        ({"gen_videos": np.zeros((2, 4, 4, 3), np.uint8)}, 20),
        ({"audio": {"array": np.zeros(RATE // 2), "sampling_rate": RATE}}, 50),
        ({"audio": {"array": [[0.0] * 4000] * 2, "sampling_rate": RATE}}, 50),
        ({"audio": np.zeros(RATE)}, 100),
        ({"audio": [0.0] * (RATE // 4)}, 25),
        ({"audio": sound(tone(RATE, 0.5), RATE)}, 50),
        ({"audio": {"bytes": sound(tone(RATE, 0.5), RATE, "FLAC"), "path": "x.flac"}}, 50),
        ({"target_audio": sound(tone(RATE, 0.5), RATE, "OGG"), "speaker_ref": np.zeros(RATE)}, 150),
        ({"audio": "a.wav"}, 7),
        ({"audio": b"not a sound"}, 7),
        ({"audio": "a.wav", "clip": [1.0, 1.25]}, 25),
        ({"speaker_ref": "a.wav", "clip": [1.0, 1.25]}, 7),
    ],
)
def test_what_media_take_is_known_before_they_are_decoded(extras: dict[str, Any], wanted: int) -> None:
    cost = Cost(tokens=media_tokens_of(COSTS), finish=Finish(max_video_frames=3, audio_sample_rate=RATE))
    assert cost.expected(extras) == wanted


def test_spectrograms_take_no_more_than_they_are_long() -> None:
    mel = Finish(audio_sample_rate=RATE, use_raw_waveform=False, audio_max_length=20)
    cost = Cost(tokens=media_tokens_of(COSTS), finish=mel)
    assert cost.expected({"audio": np.zeros(RATE)}) == cost.expected({"audio": "a.wav"}) == 20
    assert cost.expected({"audio": np.zeros(RATE // 10)}) == 10
    assert cost.actual({}, {"audio": torch.zeros(80, 20)}) == 20


def test_the_length_of_a_sound_is_read_off_its_header() -> None:
    for form in ("WAV", "FLAC", "OGG", "MP3"):
        seconds = sound_seconds(sound(tone(16_000, 2.0), 16_000, form))
        assert seconds == pytest.approx(2.0, abs=0.1)
    for data in (b"", b"RIFF", b"fLaC" + bytes(40), clip([1], audio=True), encoded(photo(), "PNG")):
        assert sound_seconds(data) is None


def test_media_that_turn_out_longer_than_they_said_are_an_error_or_skipped(world: World, tmp_path: Path) -> None:
    """A file whose length is not in its row: what is declared for it is too low."""
    (tmp_path / "long.wav").write_bytes(sound(tone(RATE, 3.0), RATE))
    (tmp_path / "short.wav").write_bytes(sound(tone(RATE, 0.05), RATE))
    rows = [{"audio": "long.wav" if i == 2 else "short.wav", "text": f"[voice_asr {i}]"} for i in range(5)]
    path = write_table(tmp_path / "named.parquet", rows)
    configs = {"voice_asr": [{"name": "named", "path": str(path)}]}
    options: dict[str, Any] = {"max_per_epoch": 4, "sample_repeat": 1}
    with pytest.raises(
        DataError, match="take 300 tokens now that they are decoded, and 7 were counted before"
    ) as caught:
        list(packed(world.make(configs, **options)))
    assert any(note.endswith("named.parquet:2") for note in caught.value.__notes__)
    dataset = world.make(configs, faults=Faults(policy="skip"), **options)
    assert sorted(names_of(packed(dataset))) == [f"named {i}" for i in (0, 1, 3, 4)]


def test_media_marks_of_a_template_are_found(world: World, tmp_path: Path) -> None:
    """Text before the picture may not be cut, whoever writes its mark."""
    from transformers import AutoTokenizer

    owner = AutoTokenizer.from_pretrained(world.tokenizer)
    owner.chat_template = (
        "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ '<pic>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}"
        "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    owner.save_pretrained(tmp_path / "t")
    row = {"image": picture(1), "question": "w " * 60 + "<image>", "answer": "z " * 200}
    path = write_table(tmp_path / "t.parquet", [row])
    configs = {"vision": [{"name": "t", "path": str(path)}]}
    functions = {"vision": format_vision}
    for learn in ("all", "assistant"):
        made = TrueStreamingDataset(
            configs, functions, str(tmp_path / "t"), dict(TOKENS), None, image_size=8, sample_repeat=1, max_per_epoch=1
        )
        made.configure(render="template", learn=learn, cache_dir=tmp_path / "data")
        (batch,) = packed(made, batch_size=1)
        (text,) = documents(world, batch).values()
        assert "<pic>" in text
        assert text.rstrip().endswith("z")
        assert batch["expanded_lengths"].tolist() == [SIZE]
        with pytest.raises(DataError, match="the text up to the last of them"):
            list(packed(made, seq_len=60, batch_size=1))


# --- exact


def some(sample: Any, tokens: Any) -> Any:
    """None, one or several samples of a row, some of them long, some with pictures."""
    number = int(sample["instruction"].split()[1])
    found = [{"text": sample["output"].replace("]", f".{i}]") + "w " * (97 * number % 300)} for i in range(number % 4)]
    for one in found[1:2]:
        one["text"] = one["text"][:60]
        one["image"] = picture(number)
        one["text"] = f"{tokens['image_start']}{tokens['image_end']}" + one["text"]
    return found


@pytest.mark.parametrize("method", ["best_fit", "concat", "none"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_chain_of_resumes_at_every_batch_is_exact(world: World, method: str, shuffle: bool) -> None:
    memory = world.memory({"a": named("a"), "b": named("b")})

    def make() -> Loader:
        options = {"functions": {"code": some}, "max_per_epoch": 31, "sample_repeat": 3, "shuffle": shuffle, "seed": 3}
        return packed(memory.make(**options), pack=method, lanes=2)

    loader = make()
    batches = [batch for _ in range(2) for batch in loader]
    full = [whole(batch) for batch in batches]
    if method != "none":
        assert len(covered(batches, 3)) == 62
    found: list[Any] = []
    state = None
    while len(found) < len(full):
        with make() as again:
            if state is not None:
                again.load_state_dict(state)
            steps = iter(again)
            batch = next(steps, None)
            if batch is None:
                batch = next(iter(again))
            found.append(whole(batch))
            state = json.loads(json.dumps(again.state_dict()))
    assert found == full


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("method", ["best_fit", "concat"])
def test_loaders_resume_exactly_with_any_workers(world: World, workers: int, method: str) -> None:
    def make() -> Loader:
        return packed(world.make(**MIXED), pack=method, num_workers=workers, lanes=2)

    with make() as loader:
        full = [whole(batch) for _ in range(2) for batch in loader]
    for cut in (1, len(full) // 2, len(full) - 1) if workers else range(len(full)):
        loader = make()
        given = [whole(batch) for batch in islice((b for _ in range(2) for b in loader), cut)]
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
        with make() as again:
            again.load_state_dict(state)
            assert json.loads(json.dumps(again.state_dict()))["lanes"] == state["lanes"]
            rest = [whole(batch) for _ in range(2 - state["epoch"]) for batch in again]
        assert given + rest == full, cut


def test_workers_make_no_difference(world: World) -> None:
    found = []
    for workers in (0, 1, 2):
        with packed(world.make(**MIXED), num_workers=workers, lanes=2) as loader:
            found.append([whole(batch) for batch in loader])
    assert found[0] == found[1] == found[2]


class Ranks:
    """Several ranks, one after the other in this process."""

    def __init__(
        self, make: Callable[[], TrueStreamingDataset], as_rank: Callable[[int, int], None], method: str
    ) -> None:
        self._make, self._as_rank, self._method = make, as_rank, method
        self.state: Any = None
        self.batches: list[Any] = []

    def step(self, ranks: int, steps: int) -> None:
        parts = []
        for rank in range(ranks):
            self._as_rank(rank, ranks)
            loader = packed(self._make(), pack=self._method, steps_per_epoch=1000)
            if self.state is not None:
                loader.load_state_dict(self.state)
            self.batches += [batch for batch in islice(iter(loader), steps) if not batch.pad]
            parts.append(json.loads(json.dumps(loader.state_dict())))
            loader.close()
        self.state = merge_states(parts)


@pytest.mark.parametrize("method", ["best_fit", "concat", "none"])
@pytest.mark.parametrize("ranks", [(1, 2, 3), (3, 2, 1), (2, 3, 2)])
def test_on_other_ranks_nothing_is_lost_and_nothing_comes_twice(
    world: World, as_rank: Callable[[int, int], None], method: str, ranks: Sequence[int]
) -> None:
    """Also what waits: copies of samples, and the ends of long texts."""
    memory = world.memory({"a": named("a"), "b": named("b")}, [[9] * 9])
    options = {"functions": {"code": some}, "max_per_epoch": 60, "max_per_dataset": 30, "sample_repeat": 2}
    run = Ranks(lambda: memory.make(**options), as_rank, method)
    run.step(ranks[0], 3)
    run.step(ranks[1], 2)
    run.step(ranks[2], 400)
    if method == "none":
        assert len(names_of(run.batches)) == 120
        return
    lengths = covered(run.batches, 2)
    assert len(lengths) == 60
    assert Counter(source for source, *_ in lengths) == {"a": 30, "b": 30}
    lanes = json.loads(run.state["lanes"])
    assert all(not lane["rest"] for lane in lanes)


def test_an_epoch_that_is_cut_short_loses_nothing_that_waits(world: World) -> None:
    memory = world.memory({"a": named("a")}, [[200]])
    dataset = memory.make(max_per_epoch=60, max_per_dataset=60, sample_repeat=1)
    loader = packed(dataset, steps_per_epoch=4)
    names = [names_of(loader) for _ in range(3)]
    rows = sorted(int(name.split()[1]) for epoch in names for name in epoch)
    assert len(rows) == len(set(rows))
    state = json.loads(loader.state_dict()["lanes"])[0]
    waiting = [part[2] for part in state["rest"]]
    assert sorted(rows + waiting) == list(range(len(rows) + len(waiting)))
    view = dataset._streaming_state
    assert view["dataset_positions"] == {"a": len(rows)}
    assert view["epoch"] == 3


def test_a_dataset_and_its_loaders_hand_over_to_each_other(world: World, tmp_path: Path) -> None:
    """Samples one by one, packed, packed in another way, and one by one again."""
    dataset = world.make(**{**MIXED, "max_per_epoch": 24})
    found = world.names(islice(iter(dataset), 5))
    loader = packed(dataset)
    found += names_of(islice(loader, 2))
    view = dataset._streaming_state
    assert view["total_yields"] == len(found)
    assert view["unique_samples"] == len(set(found))
    assert sum(view["modality_counts"].values()) == len(set(found))
    loader.close()
    loader = packed(dataset, pack="concat", seq_len=300, batch_size=1)
    found += names_of(islice(loader, 2))
    dataset._save_streaming_state(tmp_path / "state.json")
    loader.close()
    again = world.make(**{**MIXED, "max_per_epoch": 24}, resume_state_path=str(tmp_path / "state.json"))
    assert again._streaming_state["total_yields"] == len(found)
    rest = world.names(again)
    assert len(found + rest) == 48
    assert set(Counter(found + rest).values()) == {2}
    assert Counter(world.names(dataset)) == Counter(rest)


def test_a_text_that_is_half_given_comes_whole_again_one_by_one(world: World) -> None:
    memory = world.memory(long_rows(200))
    dataset = memory.make(max_per_epoch=6, sample_repeat=1, max_length=2000)
    loader = packed(dataset, batch_size=1)
    first = next(iter(loader))
    assert first.spans[0][0].start == 0
    assert any(part[5] > 0 for part in json.loads(loader.state_dict()["lanes"])[0]["rest"])
    loader.close()
    assert sorted(world.names(dataset)) == [f"a {i}" for i in range(6)]


def test_with_another_tokenizer_what_waits_is_made_anew_and_counted_once(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = world.memory({"a": named("a")}, [[50]])
    options = {"max_per_epoch": 30, "max_per_dataset": 30, "sample_repeat": 1}
    loader = packed(memory.make(**options))
    given = names_of(islice(loader, 2))
    state = loader.state_dict()
    other = packed(memory.make(**options, learn="assistant"))
    other.load_state_dict(state)
    assert "what makes rows ready changed" in caplog.text
    rest = names_of(other)
    assert sorted(given + rest) == sorted(f"a {i}" for i in range(30))


def test_states_are_checked(world: World) -> None:
    def resumed(state: Any) -> Loader:
        again = packed(world.make(["vision", "code"], **LESS))
        again.load_state_dict(state)
        return again

    loader = packed(world.make(["vision", "code"], **LESS))
    list(islice(loader, 2))
    state = loader.state_dict()
    loader.close()
    lanes = json.loads(state["lanes"])
    assert lanes[0]["rest"]
    for place, value in ((3, 5), (4, 1 << 20), (5, 1 << 20)):
        broken = json.loads(json.dumps(lanes))
        broken[0]["rest"][0][place] = value
        if place == 4:
            broken[0]["rest"][0][5] = (1 << 20) + 5
        with pytest.raises(StateError, match="the state holds sample|pieces of six"):
            list(resumed(restamped({**state, "lanes": json.dumps(broken)})))


def test_a_state_of_packed_samples_can_be_verified(world: World) -> None:
    memory = world.memory({"a": named("a"), "b": named("b")})
    loader = packed(memory.make(functions={"code": some}, max_per_epoch=31, sample_repeat=3), lanes=2)
    steps = iter(loader)
    for _ in range(4):
        next(steps)
        report = verify(loader.state_dict(), opener=memory.open)
        assert report.problems == ()
        assert all(not check.problems for check in report.checks)


def test_counts_of_batches_place_one_rank_and_ask_for_a_state_on_several(
    world: World, as_rank: Callable[[int, int], None]
) -> None:
    full = [whole(batch) for batch in packed(world.make(**MIXED))]
    loader = packed(world.make(**MIXED))
    loader.load_state_dict({"batches_consumed": 3, "batch_size": 2})
    assert [whole(batch) for batch in loader] == full[3:]
    as_rank(0, 2)
    loader = packed(world.make(**MIXED))
    with pytest.raises(SpecError, match="resume from a whole state_dict"):
        loader.load_state_dict({"batches_consumed": 3, "batch_size": 2})
    with pytest.raises(SpecError, match="must agree on the last step"):
        iter(loader)


def test_fillers_of_other_ranks_teach_nothing(world: World, as_rank: Callable[[int, int], None]) -> None:
    as_rank(0, 2)
    loader = packed(world.make(["code"], max_per_epoch=2, sample_repeat=1), steps_per_epoch=3)
    batches = list(loader)
    assert [batch.pad for batch in batches] == [False, True, True]
    for batch in batches[1:]:
        assert batch["input_ids"].shape == (2, SIZE)
        assert (batch["labels"] == -100).all()
        assert "images" not in batch


def test_speech_rows_are_packed_by_their_seconds(world: World) -> None:
    memory = world.memory({"s": lambda i: speech_row(i, "s")})
    configs = {"voice_asr": memory.configs()["code"]}
    (batch,) = packed(
        memory.make(configs=configs, max_per_epoch=2, sample_repeat=1), media_tokens={"audio_second": 1000}
    )
    lengths = batch["audio_lengths"].tolist()
    tokens = int((batch.document_ids > 0).sum())
    assert batch["expanded_lengths"].sum() == tokens + sum(-(-length * 1000 // RATE) for length in lengths)
