"""`TrueStreamingDataset`: text, code, chat, tools, images, video and speech from many sources in one stream.

It only describes: sources, formatters and limits become a recipe and lanes of samples, and the house does the work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.errors import SpecError, shown
from headrace.fetch.media.policy import MediaPolicy
from headrace.files import publish_json
from headrace.make.describe import Faults, Tokenize
from headrace.make.open_template import open_template
from headrace.make.tokenize import name_of, open_tokenizer
from headrace.make.tokens import full_tokens, warn_of_split_marks
from headrace.mix.describe import Mix, whole, whole_or_none
from headrace.mix.turns import Limits
from headrace.recipe import Order, Recipe
from headrace.run import Run
from headrace.sequence.cost import MediaTokens
from headrace.sequence.describe import Method, Pack
from headrace.sequence.finish import Finish
from headrace.sequence.sample_pack import packing_of
from headrace.sequence.total import MAX_SAMPLE_BYTES
from headrace.serve.ending import closed_at_exit
from headrace.serve.entries import Entry, are_ours, entries_of, limits_of
from headrace.serve.epoch import first_place, next_epoch
from headrace.serve.going import job_of
from headrace.serve.loader import Loader, Serving
from headrace.serve.logbook import Logbook
from headrace.serve.pipeline import Opener, Pipeline, open_indexed
from headrace.serve.positions import no_view, positions, skipped_to, streaming_view
from headrace.serve.resume import Place, placed, saved_of
from headrace.serve.samples import Samples
from headrace.serve.state import Saved
from headrace.serve.state_file import is_missing, read_state
from headrace.serve.worker import Maker
from headrace.serve.wrappers import ReadAhead, refuse_second_split
from headrace.stage import State
from headrace.torch_data import IterableDataset, get_worker_info

log = logging.getLogger("headrace")


class TrueStreamingDataset(IterableDataset[dict[str, Any]]):
    """Samples of many sources in turn, with limits per epoch; exact resume by seeking.

    `dataset_configs`: category to entries `{name, path, config?, split?, local?, format?, modality?, field_map?,
    group_by?, allow_eval?, ...}`. `path` is a repo on the Hub, a file or pattern (.jsonl, .parquet; `local`: JSON
    lines), or `known:<name>`; `format` names another of the format functions, or the kind of the files.

    Each `iter()` is one epoch, or what is left of one; the next goes on with the sources. Nothing is opened before.
    An epoch has `max_per_epoch` different samples, at most `max_per_dataset` of each source; a limit of None is as far
    as the other allows, and both of None make an epoch the whole set, once. Each sample is given `sample_repeat` times,
    one after the other: by default twice; `sample_repeat=1` gives each once.

    `loader()` is the way to batches with workers and an exact state. Under a plain DataLoader the next workers go on
    from what the last ones gave; the state is near that, a little ahead of what has arrived, or behind.
    """

    def __init__(
        self,
        dataset_configs: dict[str, list[dict[str, Any]]],
        format_functions: dict[str, Callable[..., Any]],
        tokenizer: Any,
        tokens: dict[str, str],
        image_processor: Any,
        max_length: int = 1024,
        max_per_epoch: int | None = 2000,
        max_per_dataset: int | None = 100,
        sample_repeat: int = 2,
        voice_processor: Any = None,
        max_video_frames: int = 32,
        video_size: int = 256,
        image_size: int = 256,
        audio_n_mels: int = 80,
        audio_max_length: int = 1000,
        audio_sample_rate: int = 16000,
        resume_state_path: str | None = None,
        use_raw_waveform: bool = True,
        modality_max_values: dict[str, int] | None = None,
    ) -> None:
        entries = entries_of(dataset_configs, format_functions)
        modalities = [entry.shape.modality for entry in entries]
        limits = limits_of(max_per_epoch, max_per_dataset, modality_max_values, modalities)
        self.is_dual_training = modality_max_values is not None
        self.max_per_epoch = limits.per_epoch
        self.sample_repeat = whole("sample_repeat", sample_repeat, 1)
        _tell(limits, self.sample_repeat)
        self._tokenizer = open_tokenizer(tokenizer, Tokenize(tokenizer=name_of(tokenizer), bos=False, eos=False))
        self._template_of = tokenizer
        pad = self._tokenizer.pad_id if self._tokenizer.pad_id is not None else self._tokenizer.eos_id
        finish = Finish(
            max_length=whole("max_length", max_length, 1),
            pad_id=pad or 0,
            image_processor=image_processor,
            voice_processor=voice_processor,
            image_size=whole("image_size", image_size, 1),
            video_size=whole("video_size", video_size, 1),
            max_video_frames=whole("max_video_frames", max_video_frames, 1),
            audio_sample_rate=whole("audio_sample_rate", audio_sample_rate, 1),
            audio_n_mels=whole("audio_n_mels", audio_n_mels, 1),
            audio_max_length=whole("audio_max_length", audio_max_length, 1),
            use_raw_waveform=use_raw_waveform,
        )
        names = full_tokens(tokens, ours_only=are_ours(format_functions))
        warn_of_split_marks(names, self._tokenizer.pieces)
        self._describe(entries, names, finish, limits)
        if resume_state_path is not None and not is_missing(Path(resume_state_path)):
            self._load_streaming_state(resume_state_path)

    def _describe(self, entries: Sequence[Entry], tokens: Mapping[str, str], finish: Finish, limits: Limits) -> None:
        """All that is asked for, as a recipe and what goes along with it."""
        parts = tuple(entry.part for entry in entries)
        self._recipe = Recipe(parts=parts, mix=Mix(order="round_robin"), order=Order(shuffle=False), batch_size=1)
        self._samples = Samples(
            shapes=tuple(entry.shape for entry in entries),
            tokens=tokens,
            finish=finish,
            limits=limits,
            repeat=self.sample_repeat,
            together=False,
        )
        self._cache_dir: str | Path | None = None
        self._opener: Opener = open_indexed
        self._cut = 0
        """Samples given by this process whose end did not fit into `max_length`."""
        self._rounds = 0
        """In a worker: how often it was asked to begin."""
        self._saved: State | None = None
        """Where to go at the next `iter()`."""
        self._turn = threading.RLock()
        """Held by the thread that takes the next sample, or asks where we are."""
        self._forget()

    def configure(
        self,
        *,
        shuffle: bool = False,
        seed: int = 0,
        learn: str = "all",
        render: str = "tokens",
        faults: Faults | None = None,
        media: MediaPolicy | None = None,
        max_sample_bytes: int = MAX_SAMPLE_BYTES,
        decode_threads: int | None = None,
        cache_dir: str | Path | None = None,
        opener: Opener = open_indexed,
    ) -> TrueStreamingDataset:
        """What the constructor has no room for. Each call sets all of it.

        `learn`: `all` tokens, or those of `assistant` turns only. `render`: conversations are written in our `tokens`,
        or by the tokenizer's own chat `template`; what is the assistant's is then told by its generation marks, or by
        what each turn adds to the text, which is checked. `faults`: whether rows that cannot be made samples may be
        skipped. `media`: what rows may name, and how large it may be. `max_sample_bytes`: what several pictures and
        frames of one sample may take together as tensors; its sounds may have `max_samples` of `media` together, as one
        of them may. A sample with more is refused before the next is decoded. `decode_threads`: samples of a batch that
        are decoded side by side, and while format functions run; None: up to four in this process, unless a processor
        of yours does it, and one in workers.

            dataset.configure(shuffle=True, learn="assistant", render="template", faults=Faults(policy="skip"))
            for batch in dataset.loader(batch_size=8, num_workers=2): ...
        """
        if learn not in ("all", "assistant"):
            raise SpecError(f"learn={shown(learn)!r}: 'all' tokens are learned, or those of 'assistant' turns")
        if render not in ("tokens", "template"):
            raise SpecError(
                f"render={shown(render)!r}: our 'tokens' mark turns, or the tokenizer's chat 'template' does"
            )
        self._recipe = replace(self._recipe, order=Order(shuffle=shuffle, seed=seed))
        shapes = self._samples.shapes
        if media is not None:
            policies = [replace(media, root=media.root or shape.policy.root) for shape in shapes]
            shapes = tuple(replace(shape, policy=one) for shape, one in zip(shapes, policies, strict=True))
        template = None
        if render == "template":
            template = open_template(self._template_of, self._samples.tokens, learn=learn == "assistant")
        threads = whole_or_none("decode_threads", decode_threads)
        finish = replace(self._samples.finish, max_sample_bytes=whole("max_sample_bytes", max_sample_bytes, 1))
        how = replace(self._samples, faults=faults or Faults(), threads=threads, finish=finish)
        self._samples = replace(how, shapes=shapes, learn_all=learn == "all", template=template)
        self._cache_dir, self._opener = cache_dir, opener
        self._forget()
        return self

    def _forget(self) -> None:
        """Nothing is open, and nothing was given."""
        self._pipeline: Pipeline | None = None
        self._place: Place | None = None
        self._going: tuple[Maker, Place, int] | None = None
        """Who gives samples, where it began, and how many micro-batches of the run there were by now."""
        self._own: frozenset[int] | None = None
        """The lanes that this process knows the places of; None: all."""
        self._loader: Loader | None = None
        """Gives the samples instead of us."""
        self._ahead = ReadAhead()
        self._log = Logbook()
        """What workers of a DataLoader's give instead of us."""

    # --- samples

    @property
    def truncated(self) -> int:
        """Samples of which the end did not fit, as far as this process knows."""
        return self._cut + (0 if self._loader is None else int(self._loader.stats().get("samples_truncated", 0)))

    def __len__(self) -> int:
        """Yields of an epoch, over all ranks and workers."""
        if self.max_per_epoch is None:
            raise TypeError("len() of this dataset: an epoch is the whole set, whose samples are counted as they come")
        return self.max_per_epoch * self.sample_repeat

    def __getstate__(self) -> dict[str, Any]:
        """On its way to a worker."""
        self._check_wrappers()
        self._refuse_read_ahead("a copy of the dataset")
        return {name: value for name, value in self.__dict__.items() if name not in ("_turn", "_ahead")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._turn, self._ahead = threading.RLock(), ReadAhead()

    def _check_wrappers(self) -> None:
        refuse_second_split(Run.here(cache_dir=self._cache_dir).world_size, "dataset")

    def set_epoch(self, epoch: int) -> None:
        """Changes nothing: each `iter()` is the next epoch. Trainers call this on datasets that have it."""
        self._check_wrappers()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._check_wrappers()
        worker = get_worker_info()
        self._refuse_read_ahead("iter() after a loop that was left")
        if worker is None:
            self._ahead.begin()
            return Shared(closed_at_exit(self._given()), self._turn)
        self._rounds += 1
        asked = worker.seed - worker.id, self._rounds
        return Shared(closed_at_exit(self._given_by(worker.id, worker.num_workers, asked)), self._turn)

    def _refuse_read_ahead(self, what: str) -> None:
        way_out = (
            "load a state that was saved before, or make the dataset again, and from then on iterate over its "
            "loader(batch_size) as it is: its state is exact"
        )
        self._ahead.refuse(what, way_out)

    def _given(self) -> Generator[dict[str, Any]]:
        """In the trainer's process."""
        found = self._log.latest(self._new_pipeline, patient=True)
        if found is not None:
            self._forget()
            self._saved = saved_of(*found).to_state()
        place = self._begin(1)
        yield from self._epoch(place)
        assert self._place is not None
        self._place = next_epoch(self._opened(), self._place, place.epoch + 1)
        self._ahead.end()

    def _given_by(self, number: int, workers: int, asked: tuple[int, int]) -> Generator[dict[str, Any]]:
        """In a worker of a DataLoader's, which goes on where those before it were."""
        turn = self._log.begin(asked, number, workers, self._new_pipeline)
        if turn.start is not None:
            self._saved, self._loader = turn.start, None
        place = self._begin(workers)
        own = job_of(place, self._opened().run, number, workers).states
        yield from turn.noted(self._epoch(place, number, workers), own, self._whole_state)

    def _epoch(self, place: Place, number: int = 0, workers: int = 1) -> Generator[dict[str, Any]]:
        """The samples of this worker's lanes."""
        pipeline = self._opened()
        lanes, ranks, rank = len(place.lanes), pipeline.run.world_size, pipeline.run.rank
        job = job_of(place, pipeline.run, number, workers)
        maker, own = Maker(pipeline, job), frozenset(job.states)
        self._own = None if len(own) == lanes else own
        cut: dict[int, int] = {}
        """Truncated samples of each lane."""
        try:
            while (made := maker.make(until_over=True, receipt=False)) is not None:
                if made.filling:
                    continue
                lane, m = made.batch.m % lanes, made.batch.m - rank + ranks
                if workers > 1:  # they do not keep step: each has its turn in the round that is not over
                    m = place.m - (place.m - m) // lanes * lanes
                self._cut += made.truncated - cut.get(lane, 0)
                cut[lane] = made.truncated
                self._going = (maker, place, m)
                yield dict(made.batch)
        finally:
            self._settle(maker)
            maker.close()

    def _settle(self, maker: Maker | None = None) -> Place | None:
        """Where we are, written down: what a lane knows of itself costs time, so not at each sample. `maker`: only if
        it is the one that gave the last."""
        with self._turn:
            return self._settled(maker)

    def _settled(self, maker: Maker | None) -> Place | None:
        if self._going is not None and maker in (None, self._going[0]):
            (going, begun, m), self._going = self._going, None
            receipts = going.receipts()
            self._place = replace(begun, lanes=[receipts.get(i, state) for i, state in enumerate(begun.lanes)], m=m)
        return self._place

    def _opened(self) -> Pipeline:
        if self._pipeline is None:
            self._pipeline = self._new_pipeline()
        return self._pipeline

    def _new_pipeline(self, recipe: Recipe | None = None, samples: Samples | None = None) -> Pipeline:
        """Not before it is needed: by then a process group is up, if there is one. Default: our own."""
        run = Run.here(cache_dir=self._cache_dir)
        recipe, samples = recipe or self._recipe, samples or self._samples
        return Pipeline(recipe, run, self._tokenizer, samples=samples, opener=self._opener)

    def _begin(self, workers: int) -> Place:
        """Where the epoch begins, dealt so that these workers can serve it."""
        wanted = self._opened().run.world_size * workers
        state = self._saved if self._loader is None else self._loader.state_dict()
        place = self._settle()
        if state is None and place is not None and len(place.lanes) % wanted:
            state = self._state()
        if state is not None:
            self._place, self._own, self._cut = self._resumed(state, wanted), None, self.truncated
            self._saved = self._loader = None
        if self._place is None:
            pipeline = self._opened()
            pipeline.fix(wanted)
            self._place = first_place(pipeline, wanted)
        return self._place

    def _resumed(self, state: State, lanes: int) -> Place:
        """From a whole state, or from bare positions."""
        saved = Saved.from_state(self._whole(state))
        pipeline = self._opened().resumed(saved.kept, saved.size)
        place = placed(saved, pipeline, lanes, lanes)
        self._pipeline = pipeline
        return place

    def _whole(self, state: State) -> State:
        if "lanes" in state:
            return state
        pipeline = self._opened().resumed()
        pipeline.fix(1)
        place = skipped_to(pipeline, state)
        return saved_of(pipeline, place).to_state()

    def loader(
        self,
        batch_size: int = 8,
        *,
        pack: Pack | Method | None = None,
        seq_len: int | None = None,
        media_tokens: MediaTokens | None = None,
        **serving: Any,
    ) -> Loader:
        """Batches through `collate_fn`, with workers and an exact state. `serving`: fields of `Serving`.

        It goes on from where we are, and is from now on what our state tells of.

        `pack`: several samples share a sequence of `seq_len` tokens (default: `max_length`), as documents do for
        `headrace.load`: `best_fit`, `concat`, or `none`. Positions restart with each sample, and there is no attention
        mask; `batch.document_ids` and `batch.cu_seqlens` say where samples begin. A sample with media stays in one
        sequence; `image_index[k]` is then the sequence that image k belongs to, and the token at which its sample
        begins there. Room is counted with what media become in the model: `media_tokens` of an `image`, a
        `video_frame`, an `audio_second`, of an `audio` whose length is not in its row; or a function of what the
        formatter gave. `expanded_lengths` has the sums.

            dataset.loader(4, pack="best_fit", seq_len=4096, media_tokens={"image": 576})
        """
        self._refuse_read_ahead("loader()")
        found = self._log.latest(self._new_pipeline, patient=True)
        state = self._saved if self._loader is None else self._loader.state_dict()
        state = state if found is None else self._log.state(*found)
        if state is None and self._settle() is not None:
            state = self._state()
        recipe, samples = replace(self._recipe, batch_size=batch_size), replace(self._samples, together=True)
        if pack is not None:
            packing = packing_of(pack, seq_len, media_tokens, samples.finish, batch_size)
            recipe = replace(recipe, pack=packing.pack, tokenize=self._tokenizer.how)
            samples = replace(samples, packing=packing)
        elif seq_len is not None or media_tokens is not None:
            raise SpecError("seq_len and media_tokens are of packed sequences; give pack='best_fit', too")
        if samples.limits.is_pass and serving.get("steps_per_epoch") is not None:
            raise SpecError(
                f"steps_per_epoch={shown(serving['steps_per_epoch'])} with max_per_epoch=None and max_per_dataset=None"
                f": an epoch is either so many steps or the whole set; set limits, or leave steps_per_epoch out"
            )
        loader = Loader(self._new_pipeline(recipe, samples), Serving(**serving))
        if state is not None:
            loader.load_state_dict(self._whole(state))
        self._cut = self.truncated
        self._forget()
        self._saved, self._loader = None, loader
        return loader

    # --- state

    def _state(self) -> State:
        """As a loader would give it; of several ranks or workers, the part that is known here."""
        place = self._settle()
        assert place is not None
        known = [lane if self._own is None or i in self._own else None for i, lane in enumerate(place.lanes)]
        self._opened().needs.saved(known)
        return saved_of(self._opened(), place, known).to_state()

    def _whole_state(self) -> State:
        place = self._settle()
        assert place is not None
        return saved_of(self._opened(), place).to_state()

    @property
    def _streaming_state(self) -> dict[str, Any]:
        """Counts for people; `headrace` is what a resume needs. Of several ranks or workers, what this one gave."""
        self._refuse_read_ahead("the state")
        found = self._log.latest(self._new_pipeline)
        if found is not None:
            return {**streaming_view(*found), "headrace": self._log.state(*found)}
        if self._loader is not None:
            view = streaming_view(self._loader._pipeline, self._loader._here)
            return {**view, "headrace": self._loader.state_dict(gather=False)}
        if self._saved is not None:
            self._begin(1)
        place = self._settle()
        if place is None:
            return no_view([part.name for part in self._recipe.parts])
        return {**streaming_view(self._opened(), place), "headrace": self._state()}

    def _save_streaming_state(self, path: str | Path) -> None:
        """Written whole or not at all. With several ranks and a loader, all of them call this."""
        state = self._streaming_state
        if self._loader is not None and self._log.latest(self._new_pipeline) is None:
            state["headrace"] = self._loader.state_dict()
        publish_json(Path(path), state)

    def _load_streaming_state(self, path: str | Path) -> None:
        """Goes there at the next `iter()`. Also states that only have `dataset_positions: {name: rows}`."""
        state = read_state(Path(path))
        inner = state.get("headrace", state)
        if isinstance(inner, dict) and "lanes" not in inner:
            positions(inner, [part.name for part in self._recipe.parts])
        else:
            Saved.from_state(inner)
        self._forget()
        self._saved = inner


class Shared(Iterator[dict[str, Any]]):
    """Samples for threads that share the iterator: they have one turn after the other, and each gets its own."""

    def __init__(self, samples: Generator[dict[str, Any]], turn: threading.RLock) -> None:
        self._samples, self._turn = samples, turn

    def __next__(self) -> dict[str, Any]:
        with self._turn:
            return next(self._samples)

    def close(self) -> None:
        with self._turn:
            self._samples.close()


def _tell(limits: Limits, repeat: int) -> None:
    """How long an epoch is: that samples come more than once must not be found out by surprise."""
    log.info(
        "TrueStreamingDataset: an epoch has %s; each sample is given %s (sample_repeat=%d)",
        "all samples of the data sets"
        if limits.is_pass
        else f"{limits.per_epoch:,} different samples, at most {limits.per_source:,} of each data set",
        "once" if repeat == 1 else f"{repeat} times",
        repeat,
    )
