"""`collate_fn`: finished samples to a batch in which each media item knows its sample; and the same of sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import SpecError
from headrace.sequence.finish import FLAGS, IGNORED
from headrace.sequence.side_by_side import ALONE, Helpers

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from headrace.sequence.room import Room

LARGE = 1 << 21
"""Bytes from which on it pays to copy them side by side."""
PICTURES = ("images", "gen_images")
FILMS = ("videos", "gen_videos")
SOUNDS = ("audio", "target_audio", "speaker_ref")
INDEX = {
    "images": "image_index",
    "videos": "video_index",
    "audio": "audio_index",
    "target_audio": "target_audio_index",
    "speaker_ref": "speaker_ref_index",
    "gen_images": "gen_image_index",
    "gen_videos": "gen_video_index",
}


def collate_fn(batch: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tokens stacked; of each kind of media one tensor of all items in the batch.

    `image_index[k]` is the sample that image k belongs to, and so for the others. Videos and sounds are padded at the
    end: `video_frames`, `audio_lengths` count what is there, `video_mask`, `audio_mask` say where. What no sample has
    is not there. Flags are true where one sample has them. Without a training sample there are no labels; a sample that
    is not for training has none.
    """
    return collate_in(None, batch, ALONE)


def collate_in(room: Room | None, batch: Sequence[dict[str, Any]], helpers: Helpers) -> dict[str, Any]:
    """The same, where pictures may lie together already, and others help."""
    import torch

    if not batch:
        raise SpecError("collate_fn([]): a batch has at least one sample")
    out: dict[str, Any] = {
        "input_ids": torch.stack([sample["input_ids"] for sample in batch]),
        "attention_mask": torch.stack([sample["attention_mask"] for sample in batch]),
    }
    if any("labels" in sample for sample in batch):
        nothing = torch.full_like(batch[0]["input_ids"], IGNORED)
        out["labels"] = torch.stack([sample.get("labels", nothing) for sample in batch])
    out.update(collate_beside(list(enumerate(batch)), room, helpers))
    out["dtype"] = [sample.get("dtype", "text") for sample in batch]
    return out


def collate_beside(
    samples: Sequence[tuple[int | tuple[int, int], Mapping[str, Any]]],
    room: Room | None = None,
    helpers: Helpers = ALONE,
) -> dict[str, Any]:
    """The media, prompts and flags of samples, each given with its place in the batch."""
    import torch

    out: dict[str, Any] = {}
    for name in (*PICTURES, *FILMS, *SOUNDS):
        found = [(place, item) for place, sample in samples for item in _items(sample.get(name))]
        if found:
            out[INDEX[name]] = torch.tensor([place for place, _ in found])
            items = [item for _, item in found]
            whole = room.whole(items) if room is not None and name == "images" else None
            out.update(_together(name, items, helpers) if whole is None else {name: whole})
    prompts = [(place, prompt) for place, sample in samples for prompt in _items(sample.get("gen_prompts"))]
    if prompts:
        out["gen_prompts"] = [prompt for _, prompt in prompts]
        out["gen_prompt_index"] = torch.tensor([place for place, _ in prompts])
    for flag in FLAGS:
        out[flag] = any(sample.get(flag, False) for _, sample in samples)
    return out


def copied(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The same sample in memory of its own."""
    return {name: _copy(value) for name, value in sample.items()}


def _copy(value: Any) -> Any:
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value.clone() if hasattr(value, "clone") else value


def _items(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _together(name: str, items: list[torch.Tensor], helpers: Helpers) -> dict[str, Any]:
    import torch

    axis = None if name in PICTURES else 0 if name in FILMS else -1
    shapes = {_without(item.shape, axis) for item in items}
    if len(shapes) > 1:
        told = " and ".join(str(list(one)) for one in sorted(shapes))
        raise SpecError(
            f"{name} of one batch have different shapes, {told}: they cannot be stacked; use a processor that makes "
            f"them one size, or a collate function of your own"
        )
    if axis is None:
        return {name: _stacked(items, None, helpers)}
    sizes = [item.shape[axis] for item in items]
    mask = np.ones((len(sizes), max(sizes)), bool)
    for there, size in zip(mask, sizes, strict=True):
        there[size:] = False
    stem, kind = INDEX[name].removesuffix("_index"), "frames" if name in FILMS else "lengths"
    found = {f"{stem}_{kind}": torch.tensor(sizes), f"{stem}_mask": torch.from_numpy(mask)}
    return {name: _stacked(items, axis, helpers), **found}


def _stacked(items: Sequence[torch.Tensor], axis: int | None, helpers: Helpers) -> torch.Tensor:
    """One beside the other, each with zeros at its end along an axis along which they differ.

    By numpy where it can: torch has threads for it, which go on spinning when they are done, where others decode.
    """
    import torch

    shape = list(items[0].shape)
    if axis is not None:
        shape[axis] = max(item.shape[axis] for item in items)
    try:
        arrays = [item.numpy() for item in items]
    except (TypeError, RuntimeError):  # on a device, of a kind that numpy does not have, or part of a graph
        arrays = []
    if len({array.dtype for array in arrays}) != 1:
        return torch.stack([item if axis is None else _padded(item, axis, shape[axis]) for item in items])
    whole = np.empty((len(items), *shape), arrays[0].dtype)
    pairs = list(zip(whole, arrays, strict=True))
    share = len(pairs) if whole.nbytes < LARGE else -(-len(pairs) // helpers.threads)
    with helpers.jobs() as begin:
        parts = [begin(partial(_fill, pairs[i : i + share], axis)) for i in range(0, len(pairs), share)]
        for wait in parts:
            wait()
    return torch.from_numpy(whole)


def _fill(pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]], axis: int | None) -> None:
    for place, array in pairs:
        if axis is not None:
            place, array = place.swapaxes(axis, 0), array.swapaxes(axis, 0)
            place[len(array) :] = 0
            place = place[: len(array)]
        place[...] = array


def _without(shape: Sequence[int], axis: int | None) -> tuple[int, ...]:
    """All of a shape but what may differ."""
    found = list(shape)
    if axis is not None:
        found.pop(axis)
    return tuple(found)


def _padded(item: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    import torch

    shape = list(item.shape)
    shape[axis] = size - shape[axis]
    return torch.cat([item, item.new_zeros(shape)], dim=axis) if shape[axis] else item
