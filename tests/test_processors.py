"""Processors of Hugging Face, and of one's own: they get what they can take, and nothing of their answer is lost."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from media_files import clip, encoded, sound, tone
from PIL import Image
from streaming import World, write_table

from headrace.fetch.media.clip import Clip
from headrace.fetch.media.policy import MediaPolicy
from headrace.sequence.cost import Cost, media_tokens_of
from headrace.sequence.finish import Finish
from headrace.sequence.media import collate_fn

POLICY = MediaPolicy()
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def heard(processor: Any, seconds: float, **options: Any) -> torch.Tensor:
    finish = Finish(voice_processor=processor, use_raw_waveform=False, **options)
    return finish.audio(tone(seconds=seconds), POLICY)


class TestSounds:
    def test_samples_are_not_cut(self) -> None:
        extractor = transformers.Wav2Vec2FeatureExtractor()
        found = heard(extractor, 3)
        wanted = extractor(tone(seconds=3), sampling_rate=16_000, return_tensors="pt").input_values[0]
        assert found.shape == (48_000,)
        assert torch.equal(found, wanted)

    @pytest.mark.parametrize(("seconds", "frames"), [(3, 300), (0.5, 50), (0.305, 31), (12, 1000), (40, 1000)])
    def test_padding_is_no_sound(self, seconds: float, frames: int) -> None:
        extractor = transformers.WhisperFeatureExtractor()
        found = heard(extractor, seconds)
        wanted = extractor(tone(seconds=seconds), sampling_rate=16_000, return_tensors="pt").input_features[0]
        assert found.shape == (80, frames)
        assert torch.equal(found, wanted[:, :frames])

    def test_more_frames_come_if_asked(self) -> None:
        assert heard(transformers.WhisperFeatureExtractor(), 12, audio_max_length=3000).shape == (80, 1200)

    def test_padding_before_the_sound_is_none_either(self) -> None:
        extractor = transformers.WhisperFeatureExtractor(padding_side="left")
        wanted = extractor(tone(seconds=3), sampling_rate=16_000, return_tensors="pt").input_features[0]
        assert torch.equal(heard(extractor, 3), wanted[:, 2700:])

    def test_frames_may_be_along_the_first_axis(self) -> None:
        extractor = transformers.SeamlessM4TFeatureExtractor()
        made = extractor(tone(seconds=3), sampling_rate=16_000, return_tensors="pt")
        assert torch.equal(heard(extractor, 3), made.input_features[0][: int(made.attention_mask.sum())])
        assert heard(extractor, 3, audio_max_length=20).shape == (20, 160)

    def test_an_extractor_without_a_mask_is_taken_at_its_word(self) -> None:
        def plain(wave: Any, sampling_rate: int, return_tensors: str) -> dict[str, Any]:
            assert (sampling_rate, return_tensors) == (16_000, "pt")
            return {"input_features": np.ones((1, 5, len(wave) // 10))}

        assert heard(plain, 1).shape == (5, 1000)
        assert heard(plain, 0.5).shape == (5, 800)
        assert heard(lambda wave, **_: {"input_values": [wave]}, 1).shape == (16_000,)

    @pytest.mark.parametrize(
        ("name", "lengths"), [("WhisperFeatureExtractor", [100, 30]), ("Wav2Vec2FeatureExtractor", [32_000, 4800])]
    )
    def test_a_batch_says_where_sound_is(self, world: World, name: str, lengths: list[int]) -> None:
        rows = [
            {"audio": {"bytes": sound(tone(seconds=seconds), 16_000), "path": "a.wav"}, "text": f"[voice {i}]"}
            for i, seconds in enumerate((2, 0.3))
        ]
        entry = {"name": "a", "path": str(write_table(world.folder / f"{name}.parquet", rows))}
        options = {"audio_sample_rate": 16_000, "audio_max_length": 100, "use_raw_waveform": False, "sample_repeat": 1}
        processor = getattr(transformers, name)()
        dataset = world.make({"voice_asr": [entry]}, voice_processor=processor, max_per_epoch=2, **options)
        batch = collate_fn(list(dataset))
        assert batch["audio_lengths"].tolist() == lengths
        assert batch["audio_mask"].sum(1).tolist() == lengths
        assert batch["audio"].shape[-1] == lengths[0]
        assert not batch["audio"][1, ..., lengths[1] :].any()

    @pytest.mark.parametrize(
        ("name", "seconds"), [("WhisperFeatureExtractor", 10), ("Wav2Vec2FeatureExtractor", 12), (None, 10)]
    )
    def test_a_sound_costs_what_is_given_of_it(self, name: str | None, seconds: int) -> None:
        processor = None if name is None else getattr(transformers, name)()
        finish = Finish(voice_processor=processor, use_raw_waveform=False)
        cost = Cost(tokens=media_tokens_of({"audio_second": 25}), finish=finish)
        extras = {"audio": tone(seconds=12)}
        assert cost.expected(extras) == cost.actual(extras, {"audio": finish.audio(extras["audio"], POLICY)})
        assert cost.expected(extras) == 25 * seconds


def seen(processor: Any, width: int, height: int) -> torch.Tensor:
    red = Image.new("RGB", (width, height), (255, 0, 0))
    return Finish(image_processor=processor, image_size=16, video_size=16).image(encoded(red, "PNG"), POLICY)


NARROW = [(40, 1), (40, 3), (3, 40), (1, 40), (1, 1), (3, 3), (40, 4), (40, 40)]


class TestPictures:
    @pytest.mark.parametrize("size", NARROW, ids=str)
    @pytest.mark.parametrize("name", ["ViTImageProcessor", "CLIPImageProcessor"])
    def test_a_picture_of_any_height_keeps_its_colours(self, name: str, size: tuple[int, int]) -> None:
        processor = getattr(transformers, name)()
        found, wanted = seen(processor, *size), seen(processor, 40, 40)
        assert found.shape[0] == 3
        assert torch.allclose(found.mean((1, 2)), wanted.mean((1, 2)), atol=1e-4)

    @pytest.mark.parametrize("size", [(40, 3), (40, 1)], ids=str)
    def test_frames_keep_theirs_too(self, size: tuple[int, int]) -> None:
        frames = [Image.new("RGB", size, (255, 0, 0))] * 2
        finish = Finish(image_processor=transformers.ViTImageProcessor(), video_size=16)
        assert finish.video(frames, POLICY).mean((0, 2, 3)).tolist() == pytest.approx([1, -1, -1])

    def test_it_gets_pictures_of_pil(self) -> None:
        given: list[Any] = []

        def processor(image: Any, return_tensors: str, size: dict[str, int]) -> dict[str, Any]:
            given.append(image)
            return {"pixel_values": torch.zeros(1, 3, size["height"], size["width"])}

        finish = Finish(image_processor=processor, video_size=16)
        finish.image(np.zeros((3, 5), np.uint16), POLICY)
        finish.video([np.zeros((3, 5), np.uint8)], POLICY)
        finish.video(clip([1], size=(16, 18)), POLICY)
        assert all(isinstance(image, Image.Image) and image.mode == "RGB" for image in given)
        assert [image.size for image in given] == [(5, 3), (5, 3), (16, 18)]


class TestFrames:
    def test_they_are_never_all_in_memory(self) -> None:
        data = clip(list(range(24)), size=(640, 480), options={"preset": "ultrafast"})
        numbers: list[int] = []

        def processor(image: Any, return_tensors: str, size: dict[str, int]) -> dict[str, Any]:
            numbers.append(round(image.getpixel((0, 0))[0] / 4))
            return {"pixel_values": torch.zeros(1, 3, 8, 8)}

        finish = Finish(image_processor=processor, video_size=8)
        finish.video(data, POLICY)  # what is made once
        tracemalloc.start()
        try:
            assert finish.video(data, POLICY).shape == (24, 3, 8, 8)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert numbers == [*range(24)] * 2
        assert peak < 4 * 640 * 480 * 3

    def test_a_frame_that_is_shown_for_long_is_given_again(self) -> None:
        data = clip([1, 2, 3, 4, 5], times=[0, 10, 20, 30, 5000], form="matroska")
        found = Finish(image_processor=mean_of, max_video_frames=4).video(data, POLICY, Clip(0.0, None))
        assert [round(float(frame.mean()) / 4) for frame in found] == [1, 4, 4, 5]

    def test_what_a_processor_raises_is_left_as_it_is(self) -> None:
        def broken(image: Any, return_tensors: str, size: Any) -> Any:
            raise LookupError("no such layer")

        with pytest.raises(LookupError, match="no such layer"):
            Finish(image_processor=broken).video(clip([1, 2]), POLICY)

    def test_its_time_is_not_of_the_video(self) -> None:
        def slow(image: Any, return_tensors: str, size: Any) -> Any:
            begin = time.thread_time()
            while time.thread_time() < begin + 0.3:
                pass
            return mean_of(image)

        found = Finish(image_processor=slow, max_video_frames=4).video(clip([1, 2, 3, 4]), MediaPolicy(timeout=1))
        assert len(found) == 4


def mean_of(image: Any, **_: Any) -> dict[str, Any]:
    return {"pixel_values": torch.full((1, 3, 2, 2), float(np.asarray(image).mean()))}
