"""A sample finished for a model: tokens padded, media decoded. It happens when the sample is given out, not before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.address import Address
from headrace.errors import DataError, shown
from headrace.fetch.media.clip import Clip, clip_of
from headrace.fetch.media.likely import is_frames
from headrace.fetch.media.load import load_audio, load_frames, load_image_tensor, load_picture
from headrace.fetch.media.policy import MediaPolicy
from headrace.make.sample import ERROR, Sample
from headrace.sequence.processors import features, pixels
from headrace.sequence.total import MAX_SAMPLE_BYTES, Total

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from PIL.Image import Image

IGNORED = -100
FLAGS = ("has_image_gen", "has_video_gen", "has_asr", "has_tts")
MEDIA = {
    "images": ("image", ("image", "images")),
    "videos": ("video", ("video", "videos")),
    "audio": ("audio", ("audio", "audios")),
    "target_audio": ("audio", ("target_audio",)),
    "speaker_ref": ("audio", ("speaker_ref",)),
    "gen_images": ("image", ("gen_images",)),
    "gen_videos": ("video", ("gen_videos",)),
}
"""What a finished sample has, of which kind it is, and under which names a formatter gives it."""
CLIPPED = ("videos", "gen_videos", "audio", "target_audio")
"""What the clip of a sample is a clip of."""
_LISTS = (list, tuple)
_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Finish:
    """What a model takes."""

    max_length: int = 1024
    pad_id: int = 0
    image_processor: Any = None
    """A Hugging Face image processor, or any callable `(image, return_tensors="pt", size=...)`; None: the built-in. It
    gets RGB images of PIL, upright, one at a time, also of videos: of an array, it would have to guess which axis is
    the channels."""
    voice_processor: Any = None
    """A Hugging Face feature extractor for sounds, or any callable `(wave, sampling_rate=..., return_tensors="pt")`;
    None: the built-in log-mel. See `features` for what is taken of its answer."""
    image_size: int = 256
    video_size: int = 256
    max_video_frames: int = 32
    audio_sample_rate: int = 16000
    audio_n_mels: int = 80
    audio_max_length: int = 1000
    """Of a log-mel, or of the `input_features` of an extractor, in frames. Samples are never cut."""
    use_raw_waveform: bool = True
    max_sample_bytes: int = MAX_SAMPLE_BYTES
    """What the pictures and frames of one sample may take together as tensors, 12 bytes a pixel by default; one that is
    alone may take more. Its sounds may have `max_samples` of the policy together, as one of them may."""

    def __call__(
        self, sample: Sample, address: Address, policy: MediaPolicy, out: torch.Tensor | None = None
    ) -> dict[str, Any]:
        """Tokens of one length, and all that goes along. `out`: its picture is made there, if it has just one."""
        beside = self.beside(sample, address, policy, out)
        return self._tokens(sample, bool((sample.extras or {}).get("is_training", True))) | beside

    def beside(
        self, sample: Sample, address: Address, policy: MediaPolicy, out: torch.Tensor | None = None
    ) -> dict[str, Any]:
        """What goes along with tokens: media, prompts, flags."""
        extras = sample.extras or {}
        if isinstance(extras.get(ERROR), BaseException):
            raise extras[ERROR]  # it says where
        try:
            return self._finished(extras, policy, out)
        except Exception as error:
            error.add_note(f"in {shown(address, 1000)}")
            raise

    def _finished(self, extras: Mapping[str, Any], policy: MediaPolicy, picture: torch.Tensor | None) -> dict[str, Any]:
        out: dict[str, Any] = {}
        total = Total(policy, self.max_sample_bytes)
        clip = clip_of(extras.get("clip"))
        for name, (kind, fields) in MEDIA.items():
            if extras.keys().isdisjoint(fields):
                continue
            found = [value for field in fields for value in several(kind, field, extras.get(field))]
            own = clip if name in CLIPPED else picture if name == "images" and len(found) == 1 else None
            made = [self._counted(kind, value, policy, total, own) for value in found]
            if made:
                out[name] = made[0] if len(made) == 1 else made
        if extras.get("gen_prompts") is not None:
            out["gen_prompts"] = extras["gen_prompts"]
        out["dtype"] = extras.get("dtype", "text")
        for flag in FLAGS:
            out[flag] = bool(extras.get(flag, False))
        return out

    def _counted(self, kind: str, value: Any, policy: MediaPolicy, total: Total, own: Any) -> torch.Tensor:
        """One image, video or sound, if it is within the sample's limit. `own`: its clip, or where its picture goes."""
        if kind == "audio":
            sound = self.audio(value, total.for_sound(), own)
            total.add_sound(sound)
            return sound
        total.require_pixels(self._least(kind, value))
        made = self.image(value, policy, own) if kind == "image" else self.video(value, policy, own)
        total.add_pixels(made)
        return made

    def _least(self, kind: str, value: Any) -> int:
        """Bytes that a picture or a video will take at least. What a processor makes is known when it is made."""
        if self.image_processor is not None:
            return 1
        size = self.image_size if kind == "image" else self.video_size
        frames = min(len(value), self.max_video_frames) if kind == "video" and _are_frames(value) else 1
        return frames * 3 * size * size * _FLOAT_BYTES

    def _tokens(self, sample: Sample, training: bool) -> dict[str, Any]:
        # In numpy, whose calls cost less than torch's where so little is done in each.
        import numpy as np
        import torch

        count = min(len(sample.tokens), self.max_length)
        ids, mask = np.empty(self.max_length, np.int64), np.zeros(self.max_length, np.int64)
        ids[:count], ids[count:], mask[:count] = sample.tokens[:count], self.pad_id, 1
        out = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        if training:
            labels = ids.copy()
            labels[count:] = IGNORED
            if sample.loss is not None:
                labels[:count][~sample.loss[:count]] = IGNORED
            out["labels"] = torch.from_numpy(labels)
        return out

    def image(self, value: Any, policy: MediaPolicy, out: torch.Tensor | None = None) -> torch.Tensor:
        """[3, size, size]"""
        if self.image_processor is None:
            return load_image_tensor(value, policy, self.image_size, out)
        return pixels(self.image_processor, load_picture(value, policy), self.image_size)

    def video(self, value: Any, policy: MediaPolicy, clip: Clip | None = None) -> torch.Tensor:
        """[frames, 3, size, size]. Images in a list or an array are a video, too."""
        import torch

        if _are_frames(value):
            if clip is not None:
                raise DataError(f"the video is a list of frames, which have no times, so that {clip} cannot be found")
            from headrace.fetch.media.video import spread

            chosen = [value[i] for i in spread(len(value), self.max_video_frames)]
            return torch.stack([self._frame(load_picture(one, policy)) for one in chosen])
        size = None if self.image_processor is not None else self.video_size
        return torch.stack(load_frames(self._frame, value, policy, self.max_video_frames, size, clip))

    def _frame(self, frame: Image | NDArray[np.uint8]) -> torch.Tensor:
        if self.image_processor is None:
            from headrace.fetch.media.tensors import image_tensor

            return image_tensor(frame, self.video_size)
        from PIL import Image

        image = frame if isinstance(frame, Image.Image) else Image.fromarray(frame)
        return pixels(self.image_processor, image, self.video_size)

    def audio(self, value: Any, policy: MediaPolicy, clip: Clip | None = None) -> torch.Tensor:
        """[samples], or a log-mel of [bands, frames], or what `voice_processor` makes. Bare numbers are samples at our
        own rate."""
        import torch

        if isinstance(value, list | tuple) or hasattr(value, "__array__"):
            value = {"array": value, "sampling_rate": self.audio_sample_rate}
        wave = load_audio(value, policy, self.audio_sample_rate, clip)
        if self.use_raw_waveform:
            return torch.from_numpy(wave)
        if self.voice_processor is not None:
            return features(self.voice_processor, wave, self.audio_sample_rate, self.audio_max_length)
        from headrace.fetch.media.mel import log_mel

        rate, most = self.audio_sample_rate, self.audio_max_length
        return torch.from_numpy(log_mel(wave, self.audio_n_mels, most, sample_rate=rate, budget=policy))


def _are_frames(video: Any) -> bool:
    """Whether a video is its frames: a list, or an array with an axis for them."""
    return isinstance(video, _LISTS) or (hasattr(video, "__array__") and getattr(video, "shape", None) != ())


def several(kind: str, field: str, value: Any) -> list[Any]:
    """The media of a field: one, or a list of them. Numbers in a list are one medium, and images are one video."""
    if value is None:
        return []
    if not isinstance(value, _LISTS):
        return [value]
    items = list(value)  # with those that are None: which is an error, for others would take their places
    if field.removesuffix("s") == kind and field != kind:
        return items
    plain = all(isinstance(item, int | float | list | tuple) for item in items)
    whole = is_frames(items) if kind == "video" else plain
    return [items] if items and whole else items
