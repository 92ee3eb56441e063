"""The recipes of chaos runs: how each is opened, and what proves the content of its batches."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos_data import SIDE, proof_of_frame

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from headrace.batch import Batch
    from headrace.serve.loader import Loader


@dataclass(frozen=True, kw_only=True)
class Job:
    """One launch of a run, as all its ranks are told it."""

    kind: str
    folder: str
    """Of the run: ledgers, checkpoints, what is said."""
    cache: str
    tokenizer: str
    seed: int
    ranks: int
    workers: int
    lanes: int
    launch: int
    rows: int
    """Of the data set."""
    every: int = 5
    """Steps between two checkpoints."""
    pause: float = 0.0
    """Of the model, at each step."""
    group: bool = False
    """Whether the ranks have a process group."""
    start_method: str | None = None
    stay: bool = False
    """Whether workers stay from epoch to epoch."""
    epochs: int | None = None
    """How many more to give: the last one is that in which it then is. None: until it is killed."""
    at: float = 0.0
    """When it was started."""


class Rows:
    """Rows as they are."""

    batch_size = 8

    def __init__(self, job: Job) -> None:
        self.job = job

    def open(self) -> Loader:
        import headrace

        return headrace.load("hf:chaos/rows", batch_size=self.batch_size, **self._served())

    def entries(self, batch: Batch) -> list[Any]:
        return [[uid, zlib.crc32(data)] for uid, data in zip(batch["uid"], batch["payload"], strict=True)]

    def _served(self) -> dict[str, Any]:
        """What is asked of the loader, whatever it reads."""
        job = self.job
        lanes = job.lanes if job.lanes % job.ranks == 0 else None
        more = {"start_method": job.start_method, "cache_dir": job.cache, "seed": job.seed}
        return {"num_workers": job.workers, "persistent_workers": job.stay, "lanes": lanes, **more}


class Tokens(Rows):
    """One pass of packed tokens: every token of every row once, in pieces."""

    batch_size = 2
    seq_len = 256

    def open(self) -> Loader:
        import headrace

        return headrace.load(
            "hf:chaos/tokens:train:text",
            tokenizer=self.job.tokenizer,
            seq_len=self.seq_len,
            batch_size=self.batch_size,
            epochs=1,
            **self._served(),
        )

    def entries(self, batch: Batch) -> list[Any]:
        found = []
        for ids, documents, spans in zip(batch["input_ids"], batch.document_ids, batch.spans, strict=True):
            tokens = ids[documents > 0].tolist()
            at = 0
            for span in spans:
                piece = tokens[at : at + span.stop - span.start]
                at += span.stop - span.start
                found.append([f"{span.address.shard}:{span.address.row}", crc_of(piece), span.start, span.stop])
            if at != len(tokens):
                found.append(["tokens that no span tells of", crc_of(tokens[at:]), 0, 0])
        return found


class Pictures(Rows):
    """Samples of text with a picture; an epoch is half of the rows, the sources go on and on."""

    batch_size = 4

    def open(self) -> Loader:
        from headrace import TrueStreamingDataset, format_vision
        from headrace.make.tokens import TOKENS

        job, half = self.job, self.job.rows // 2
        dataset = TrueStreamingDataset(
            {"vision": [{"name": "pic", "path": "chaos/pictures", "split": "train"}]},
            {"vision": format_vision},
            job.tokenizer,
            dict(TOKENS),
            None,
            max_length=256,
            max_per_epoch=half,
            max_per_dataset=half,
            sample_repeat=1,
            image_size=SIDE,
        )
        served = self._served()
        dataset.configure(shuffle=True, seed=served.pop("seed"), cache_dir=served.pop("cache_dir"))
        return dataset.loader(self.batch_size, **served)

    def entries(self, batch: Batch) -> list[Any]:
        # back from (x / 255 - 1/2) / (1/2)
        pixels = ((batch["images"] + 1) * 127.5).round().clamp(0, 255).byte()
        proofs = {
            int(i): zlib.crc32(one.numpy().tobytes()) for i, one in zip(batch["image_index"], pixels, strict=True)
        }
        found = []
        for i, (ids, mask) in enumerate(zip(batch["input_ids"], batch["attention_mask"], strict=True)):
            text = self._decoder.decode(ids[mask == 1].tolist(), skip_special_tokens=False)
            names = re.findall(r"\[pic ([\d.]+)\]", text) or [f"no name in {text[:60]!r}"]
            found.append([names[-1], proofs.get(i, 0), batch.addresses[i].epoch])
        return found

    @cached_property
    def _decoder(self) -> Tokenizer:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(Path(self.job.tokenizer, "tokenizer.json")))


class Robot(Rows):
    """Frames of robot episodes."""

    batch_size = 4

    def open(self) -> Loader:
        from headrace import StreamingLeRobotDataset

        served = self._served()
        options = {name: served.pop(name) for name in ("seed", "cache_dir")}
        dataset = StreamingLeRobotDataset("chaos/robot", episode_pool_size=4, return_uint8=True, **options)
        return dataset.loader(self.batch_size, **served)

    def entries(self, batch: Batch) -> list[Any]:
        from headrace.testing import frame_identity

        found = []
        for index, pixels in zip(batch["index"], batch["observation.images.top"], strict=True):
            seen = frame_identity(pixels)
            found.append([str(int(index)), proof_of_frame(seen.episode, seen.frame)])
        return found


RECIPES: dict[str, type[Rows]] = {"rows": Rows, "tokens": Tokens, "pictures": Pictures, "robot": Robot}


def crc_of(tokens: list[int]) -> int:
    return zlib.crc32(",".join(map(str, tokens)).encode())
