"""Media of one batch lie one beside the other, with zeros after those that are shorter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace import collate_fn

LENGTHS = [5, 2, 7]


def sample(**media: Any) -> dict[str, Any]:
    return {"input_ids": torch.zeros(4, dtype=torch.long), "attention_mask": torch.ones(4), **media}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize(("name", "axis"), [("audio", -1), ("videos", 0)])
def test_each_stands_at_the_start_and_zeros_follow(name: str, axis: int, dtype: torch.dtype) -> None:
    items = [torch.full((n, 3) if axis == 0 else (3, n), 1 + i, dtype=dtype) for i, n in enumerate(LENGTHS)]
    batch = collate_fn([sample(**{name: item}) for item in items])
    found, mask = batch[name], batch[f"{'audio' if name == 'audio' else 'video'}_mask"]
    assert found.dtype == dtype
    assert mask.tolist() == [[at < n for at in range(7)] for n in LENGTHS]
    for whole, item, n in zip(found, items, LENGTHS, strict=True):
        assert torch.equal(whole.narrow(axis, 0, n), item)
        assert not whole.narrow(axis, n, 7 - n).any()


@pytest.mark.parametrize("kinds", [(torch.float32, torch.float16), (torch.bfloat16, torch.float32)])
def test_kinds_that_differ_become_the_wider_one(kinds: tuple[torch.dtype, torch.dtype]) -> None:
    batch = collate_fn([sample(images=torch.full((3, 2, 2), 0.5, dtype=kind)) for kind in kinds])
    assert batch["images"].dtype == torch.float32
    assert (batch["images"] == 0.5).all()


def test_what_is_part_of_a_graph_stays_so() -> None:
    batch = collate_fn([sample(images=torch.ones(3, 2, 2, requires_grad=True)) for _ in range(2)])
    assert batch["images"].requires_grad
