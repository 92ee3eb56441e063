"""`collate_fn`: a mixed batch is unambiguous. Each medium knows its sample, its length, and where it is padded."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from media_files import clip, encoded, photo, sound, tone
from PIL import Image
from streaming import RATE, World, named

from headrace import collate_fn
from headrace.errors import SpecError
from headrace.fetch.media.mel import log_mel

FLAGS = ("has_image_gen", "has_video_gen", "has_asr", "has_tts")
MEDIA = ("images", "videos", "audio", "target_audio", "speaker_ref", "gen_images", "gen_videos")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def sample(number: int = 0, **more: Any) -> dict[str, Any]:
    """A finished sample without media."""
    ids = torch.arange(number, number + 6)
    return {"input_ids": ids, "attention_mask": torch.ones(6, dtype=torch.int64), "labels": ids.clone(), **more}


def image(value: float, size: int = 4) -> torch.Tensor:
    return torch.full((3, size, size), value)


def video(value: float, frames: int) -> torch.Tensor:
    return torch.full((frames, 3, 4, 4), value)


def wave(value: float, count: int) -> torch.Tensor:
    return torch.full((count,), value)


# --- by hand


def test_a_batch_of_texts_has_tokens_and_flags_and_nothing_else() -> None:
    batch = collate_fn([sample(0, dtype="code"), sample(10, dtype="conversation")])
    assert set(batch) == {"input_ids", "attention_mask", "labels", "dtype", *FLAGS}
    assert batch["input_ids"].tolist() == [[0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15]]
    assert batch["dtype"] == ["code", "conversation"]
    assert [batch[flag] for flag in FLAGS] == [False] * 4


def test_flags_are_true_where_one_sample_has_them() -> None:
    for flag in FLAGS:
        batch = collate_fn([sample(), sample(**{flag: True}), sample(**{flag: False})])
        assert {name: batch[name] for name in FLAGS} == {name: name == flag for name in FLAGS}


def test_each_image_knows_its_sample() -> None:
    batch = collate_fn([sample(), sample(images=image(1)), sample(images=[image(2), image(3)]), sample()])
    assert batch["images"].shape == (3, 3, 4, 4)
    assert batch["images"][:, 0, 0, 0].tolist() == [1, 2, 3]
    assert batch["image_index"].tolist() == [1, 2, 2]
    assert set(batch) == {"images", "image_index", "input_ids", "attention_mask", "labels", "dtype", *FLAGS}


def test_videos_are_padded_and_say_where() -> None:
    batch = collate_fn([sample(videos=video(1, 2)), sample(), sample(videos=video(2, 5))])
    assert batch["videos"].shape == (2, 5, 3, 4, 4)
    assert batch["video_index"].tolist() == [0, 2]
    assert batch["video_frames"].tolist() == [2, 5]
    assert batch["video_mask"].tolist() == [[True, True, False, False, False], [True] * 5]
    assert batch["videos"][0, :, 0, 0, 0].tolist() == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("name", ["audio", "target_audio", "speaker_ref"])
def test_sounds_are_padded_and_say_where(name: str) -> None:
    given: list[dict[str, Any]] = [{name: wave(1, 3)}, {}, {name: [wave(2, 1), wave(3, 4)]}]
    batch = collate_fn([sample(**one) for one in given])
    assert batch[name].tolist() == [[1, 1, 1, 0], [2, 0, 0, 0], [3, 3, 3, 3]]
    assert batch[f"{name}_index"].tolist() == [0, 2, 2]
    assert batch[f"{name}_lengths"].tolist() == [3, 1, 4]
    assert batch[f"{name}_mask"].sum(1).tolist() == [3, 1, 4]


def test_spectrograms_are_padded_in_time() -> None:
    batch = collate_fn([sample(audio=torch.ones(80, 7)), sample(audio=torch.ones(80, 9))])
    assert batch["audio"].shape == (2, 80, 9)
    assert batch["audio_lengths"].tolist() == [7, 9]
    assert batch["audio"][0, :, 7:].abs().sum() == 0


def test_what_is_to_be_made_has_its_own_indices() -> None:
    batch = collate_fn(
        [
            sample(images=image(1), gen_images=image(9), gen_prompts="a cat", has_image_gen=True),
            sample(),
            sample(gen_videos=video(8, 2), gen_prompts="a dog runs", has_video_gen=True),
            sample(gen_prompts=["one", "two"], gen_images=[image(5), image(6)]),
        ]
    )
    assert batch["gen_images"][:, 0, 0, 0].tolist() == [9, 5, 6]
    assert batch["gen_image_index"].tolist() == [0, 3, 3]
    assert batch["image_index"].tolist() == [0]
    assert batch["gen_video_index"].tolist() == [2]
    assert batch["gen_video_frames"].tolist() == [2]
    assert batch["gen_prompts"] == ["a cat", "a dog runs", "one", "two"]
    assert batch["gen_prompt_index"].tolist() == [0, 2, 3, 3]


def test_a_sample_that_is_not_for_training_has_no_label() -> None:
    silent = sample(7)
    del silent["labels"]
    batch = collate_fn([sample(0), silent])
    assert batch["labels"].tolist() == [[0, 1, 2, 3, 4, 5], [-100] * 6]
    assert "labels" not in collate_fn([silent, silent])


def test_a_batch_says_what_cannot_be_put_together() -> None:
    with pytest.raises(SpecError, match="images of one batch have different shapes, \\[3, 4, 4\\] and \\[3, 5, 5\\]"):
        collate_fn([sample(images=image(1)), sample(images=image(1, 5))])
    with pytest.raises(SpecError, match="audio of one batch"):
        collate_fn([sample(audio=wave(1, 3)), sample(audio=torch.ones(80, 3))])
    with pytest.raises(SpecError, match="at least one sample"):
        collate_fn([])


def rebuilt(batch: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """The media of each sample, by what the batch says alone."""
    found: list[dict[str, Any]] = [{} for _ in range(number)]
    for name in MEDIA:
        stem = name.removesuffix("s")
        if name not in batch:
            continue
        items = list(batch[name])
        if f"{stem}_mask" in batch:
            axis = 0 if "video" in name else -1
            items = [
                item.index_select(axis, mask.nonzero()[:, 0])
                for item, mask in zip(items, batch[f"{stem}_mask"], strict=True)
            ]
        for i, item in zip(batch[f"{stem}_index"].tolist(), items, strict=True):
            found[i].setdefault(name, []).append(item)
    return found


def test_a_mixed_batch_can_be_taken_apart_again() -> None:
    samples: Sequence[dict[str, Any]] = [
        sample(audio=wave(1, 3), speaker_ref=wave(2, 2)),
        sample(images=[image(1), image(2)], target_audio=wave(5, 9)),
        sample(),
        sample(videos=[video(1, 1), video(2, 4)], gen_images=image(3)),
        sample(gen_videos=video(4, 2), audio=[wave(7, 1), wave(8, 6)]),
    ]
    for number, found in enumerate(rebuilt(collate_fn(samples), len(samples))):
        given = {name: samples[number][name] for name in MEDIA if name in samples[number]}
        assert set(found) == set(given)
        for name, items in found.items():
            wanted = given[name] if isinstance(given[name], list) else [given[name]]
            assert all(torch.equal(one, two) for one, two in zip(items, wanted, strict=True))


# --- from rows to a batch


def batch_of(world: World, samples: Sequence[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """A batch of what a formatter gives for the rows of one source."""
    functions = {"code": lambda row, tokens: {"text": "x", **samples[int(row["instruction"].split()[1])]}}
    options = {"max_per_epoch": len(samples), "sample_repeat": 1, "max_video_frames": 4, **options}
    (batch,) = world.memory({"a": named("a")}).make(functions=functions, **options).loader(batch_size=len(samples))
    return dict(batch)


def test_all_media_of_a_mixed_batch_are_decoded_and_found_again(world: World) -> None:
    picture, film = encoded(photo(), "PNG"), clip([1, 2, 3], size=(16, 16))
    voice = [sound(tone(RATE, seconds), RATE) for seconds in (0.01, 0.02)]
    batch = batch_of(
        world,
        [
            {"image": {"bytes": picture, "path": "a.png"}, "dtype": "vision"},
            {"audio": {"bytes": voice[0], "path": None}, "has_asr": True},
            {"target_audio": voice[1], "speaker_ref": voice[0], "has_tts": True},
            {"video": film, "images": [picture, picture]},
            {"gen_images": picture, "image": picture, "gen_prompts": "make it blue", "has_image_gen": True},
            {"gen_videos": film, "gen_prompts": "a cat", "has_video_gen": True},
            {"audios": [{"array": tone(RATE, 0.03).tolist(), "sampling_rate": RATE}, voice[1]]},
        ],
    )
    assert batch["image_index"].tolist() == [0, 3, 3, 4]
    assert batch["audio_index"].tolist() == [1, 6, 6]
    assert batch["audio_lengths"].tolist() == [80, 240, 160]
    assert (batch["target_audio_index"].tolist(), batch["speaker_ref_index"].tolist()) == ([2], [2])
    assert batch["video_frames"].tolist() == batch["gen_video_frames"].tolist() == [3]
    assert (batch["gen_image_index"].tolist(), batch["gen_video_index"].tolist()) == ([4], [5])
    assert (batch["gen_prompts"], batch["gen_prompt_index"].tolist()) == (["make it blue", "a cat"], [4, 5])
    assert all(batch[flag] for flag in FLAGS)
    assert torch.equal(batch["images"][0], batch["gen_images"][0])
    assert np.allclose(batch["audio"][0, :80].numpy(), tone(RATE, 0.01), atol=1e-4)


def test_sounds_become_spectrograms_if_asked(world: World) -> None:
    voice = sound(tone(RATE, 0.5), RATE)
    batch = batch_of(world, [{"audio": voice}], use_raw_waveform=False, audio_n_mels=20, audio_max_length=30)
    assert batch["audio"].shape == (1, 20, 30)
    wanted = log_mel(tone(RATE, 0.5), 20, 30, sample_rate=RATE)
    assert np.allclose(batch["audio"][0].numpy(), wanted, atol=0.05)


def test_processors_of_ones_own_are_used(world: World) -> None:
    sizes: list[Any] = []

    def images(value: Any, return_tensors: str, size: dict[str, int]) -> Any:
        assert isinstance(value, Image.Image)
        assert value.mode == "RGB"
        sizes.append(size)
        mean = float(np.asarray(value).mean())
        return SimpleNamespace(pixel_values=torch.full((1, 3, size["height"], size["width"]), mean))

    def voices(value: Any, sampling_rate: int, return_tensors: str) -> dict[str, Any]:
        assert sampling_rate == RATE
        return {"input_features": torch.ones(1, 5, len(value))}

    media = {"image": photo(), "video": clip([2, 2], size=(16, 16)), "audio": tone(RATE, 0.1)}
    options = {"use_raw_waveform": False, "audio_max_length": 7, "image_size": 6, "video_size": 5}
    batch = batch_of(world, [media], image_processor=images, voice_processor=voices, **options)
    assert batch["images"].shape == (1, 3, 6, 6)
    assert batch["videos"].shape == (1, 2, 3, 5, 5)
    assert batch["audio"].shape == (1, 5, 7)
    assert sizes == [{"height": 6, "width": 6}, *[{"height": 5, "width": 5}] * 2]


def test_a_processor_of_transformers_is_used(world: World) -> None:
    transformers = pytest.importorskip("transformers")
    processor = transformers.ViTImageProcessor(size={"height": 30, "width": 30})
    batch = batch_of(world, [{"image": photo()}, {"image": photo(9, 9)}], image_processor=processor, image_size=12)
    assert batch["images"].shape == (2, 3, 12, 12)
    wanted = processor(photo(), return_tensors="pt", size={"height": 12, "width": 12})["pixel_values"][0]
    assert torch.equal(batch["images"][0], wanted)
