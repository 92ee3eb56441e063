"""`TrueStreamingDataset`: what it takes, in which order samples come, and what is in them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from media_files import encoded, photo, tone
from streaming import RATE, World, code_row, film_row, named, names_in, picture, vision_row, write_lines, write_table

import headrace
from headrace.errors import DataError, HeadraceError, SpecError
from headrace.make.tokens import TOKENS
from headrace.sequence import finish
from headrace.serve.streaming import TrueStreamingDataset

SIGNATURE = {
    "dataset_configs": inspect.Parameter.empty,
    "format_functions": inspect.Parameter.empty,
    "tokenizer": inspect.Parameter.empty,
    "tokens": inspect.Parameter.empty,
    "image_processor": inspect.Parameter.empty,
    "max_length": 1024,
    "max_per_epoch": 2000,
    "max_per_dataset": 100,
    "sample_repeat": 2,
    "voice_processor": None,
    "max_video_frames": 32,
    "video_size": 256,
    "image_size": 256,
    "audio_n_mels": 80,
    "audio_max_length": 1000,
    "audio_sample_rate": 16000,
    "resume_state_path": None,
    "use_raw_waveform": True,
    "modality_max_values": None,
}
COUNTS = [name for name, default in SIGNATURE.items() if type(default) is int]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


# --- the constructor


def test_the_constructor_has_exactly_these_parameters() -> None:
    parameters = inspect.signature(TrueStreamingDataset).parameters
    assert {name: one.default for name, one in parameters.items()} == SIGNATURE
    assert list(parameters) == list(SIGNATURE)
    assert all(one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in parameters.values())
    assert issubclass(headrace.TrueStreamingDataset, torch.utils.data.IterableDataset)


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"poems": [{"name": "p", "path": "p.jsonl"}]}, "no format function 'poems' for p; format_functions has"),
        ({"poems": []}, "no format function 'poems'; format_functions has"),
        ({"code": [{"name": "c", "path": "c.jsonl", "format": "poems"}]}, "no format function 'poems' for c"),
        ({"code": [{"name": "c"}]}, "an entry has a name and a path, not"),
        ({"code": ["c.jsonl"]}, "an entry has a name and a path, not 'c.jsonl'"),
        ({"code": {"name": "c"}}, "a list of entries is expected"),
        ({"code": []}, "dataset_configs has no entries"),
        ({}, "a mapping of categories to lists"),
        ({"code": [{"name": "c", "path": "c.jsonl", "modality": "smell"}]}, "modality='smell' of c is not one of text"),
        ({"code": [{"name": "c", "path": "a.jsonl"}, {"name": "c", "path": "b.jsonl"}]}, "name='c' is the name of"),
        ({"code": [{"path": "c.jsonl", "group_by": 3}]}, "group_by='3' of c.jsonl: the name of a column"),
        ({"code": [{"path": "c.jsonl", "field_map": {"prompt": 7}}]}, "7"),
        ({"code": [{"path": "no repo name at all"}]}, "is not a repo name like"),
        ({"code": [{"path": "known:Nothing"}]}, "no known data set 'Nothing'"),
        ({"code": [{"path": "known:HumanEval"}]}, "is for testing"),
        ({"code": [{"path": "openai/openai_humaneval", "split": "test"}]}, "set allow_eval: True in the entry"),
    ],
)
def test_what_cannot_be_read_is_refused_at_construction(world: World, configs: Any, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        world.make(configs)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 1.5, "7", True, None])
def test_sizes_and_limits_are_whole_numbers_above_zero(world: World, name: str, value: Any) -> None:
    if value is None and name in ("max_per_epoch", "max_per_dataset"):
        world.make(["code"], **{name: value})  # there is no such limit
        return
    with pytest.raises(SpecError, match=name):
        world.make(["code"], **{name: value})


@pytest.mark.parametrize(
    ("limits", "said"),
    [({"smell": 3}, "'smell' is not one of text, image"), ({"text": -1}, "text"), ([3], "numbers by modality")],
)
def test_limits_of_modalities_are_checked(world: World, limits: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        world.make(["code"], modality_max_values=limits)


def test_what_is_configured_is_checked(world: World) -> None:
    with pytest.raises(SpecError, match="learn='nothing'"):
        world.make(["code"], learn="nothing")
    with pytest.raises(SpecError, match="tokens has 'user_strt'"):
        TrueStreamingDataset(world.configs("code"), {"code": print}, str(world.tokenizer), {"user_strt": "<u>"}, None)
    with pytest.raises(SpecError, match="format_functions"):
        world.make(["code"], functions=[print])


def test_a_test_set_is_read_when_asked_for(world: World) -> None:
    dataset = world.make({"code": [{"path": "openai/openai_humaneval", "split": "test", "allow_eval": True}]})
    assert len(dataset) == 4000


def test_nothing_is_opened_before_the_first_sample(world: World) -> None:
    memory = world.memory({"a": named("a"), "b": named("b")})
    dataset = memory.make(max_per_epoch=4)
    state = dataset._streaming_state
    loader = memory.make(max_per_epoch=4).loader(batch_size=2)
    samples = iter(dataset)
    assert memory.asked == []
    assert state["dataset_positions"] == {"a": 0, "b": 0}
    next(samples)
    assert memory.asked == ["a", "b"]
    next(iter(loader))
    assert memory.asked == ["a", "b"] * 2


# --- the order of samples


def test_sources_come_in_turn_and_each_sample_in_a_row(world: World) -> None:
    memory = world.memory({"a": named("a"), "b": named("b"), "c": named("c")})
    assert world.names(memory.make(max_per_epoch=4, sample_repeat=3)) == [
        *["a 0"] * 3,
        *["b 0"] * 3,
        *["c 0"] * 3,
        *["a 1"] * 3,
    ]


def test_a_source_that_ends_begins_again(world: World) -> None:
    memory = world.memory({"a": named("a")}, [[2, 1]])
    assert world.names(memory.make(max_per_epoch=7, sample_repeat=1)) == [f"a {i % 3}" for i in range(7)]


def test_the_next_epoch_goes_on_with_the_sources(world: World) -> None:
    dataset = world.memory({"a": named("a"), "b": named("b")}).make(max_per_epoch=3, sample_repeat=1)
    assert [world.names(dataset) for _ in range(2)] == [["a 0", "b 0", "a 1"], ["a 2", "b 1", "a 3"]]
    assert dataset._streaming_state["epoch"] == 2


def test_a_row_without_a_sample_does_not_count(world: World) -> None:
    def odd(sample: Any, tokens: Any) -> Any:
        return {"text": sample["output"]} if int(sample["instruction"].split()[1]) % 2 else None

    memory = world.memory({"a": named("a"), "b": named("b")})
    dataset = memory.make(functions={"code": odd}, max_per_epoch=4, sample_repeat=2)
    assert world.names(dataset) == ["a 1", "a 1", "b 1", "b 1", "a 3", "a 3", "b 3", "b 3"]


def test_a_row_may_give_several_samples_one_at_each_turn(world: World) -> None:
    def thrice(sample: Any, tokens: Any) -> Any:
        return [{"text": sample["output"].replace("]", f".{i}]")} for i in range(3)]

    memory = world.memory({"a": named("a"), "b": named("b")})
    found = world.names(memory.make(functions={"code": thrice}, max_per_epoch=8, sample_repeat=1))
    assert found == ["a 0.0", "b 0.0", "a 0.1", "b 0.1", "a 0.2", "b 0.2", "a 1.0", "b 1.0"]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("lanes", [1, 3])
def test_rows_of_a_group_come_together_and_each_group_once(world: World, shuffle: bool, lanes: int) -> None:
    """Groups of 1 to 5 rows, cut by row groups, chunks and lanes anywhere."""
    trees = [tree for tree in range(11) for _ in range(1 + tree % 5)]
    rows = [{"tree": f"t{tree}", "n": i} for i, tree in enumerate(trees)]
    path = write_table(world.folder / "trees.parquet", rows, group=4)
    configs = {"code": [{"name": "g", "path": str(path), "group_by": "tree"}]}

    def whole(sample: Any, tokens: Any) -> Any:
        return {"text": " ".join(f"[{row['tree']} {row['n']}]" for row in sample["rows"])}

    dataset = world.make(configs, functions={"code": whole}, max_per_epoch=11, sample_repeat=1, shuffle=shuffle)
    batches = dataset.loader(batch_size=1, lanes=lanes)
    rows_of = [world.text({k: v[0] for k, v in batch.items() if hasattr(v, "shape")}) for batch in batches]
    groups = [" ".join(f"[t{tree} {i}]" for i, other in enumerate(trees) if other == tree) for tree in range(11)]
    if lanes == 1:
        assert sorted(rows_of) == sorted(groups)
        assert shuffle == (rows_of != groups)
    assert set(rows_of) <= set(groups)
    assert len(rows_of) == 11


# --- errors where others hang


@pytest.mark.parametrize("lanes", [1, 2])
def test_limits_that_cannot_be_reached_end_with_an_error(world: World, lanes: int) -> None:
    memory = world.memory({"a": named("a"), "b": named("b")})
    given: list[Any] = []
    with pytest.raises(HeadraceError, match="every source has reached its limit.*max_per_epoch=100.*max_per_dataset=4"):
        given += memory.make(max_per_epoch=100, max_per_dataset=4).loader(batch_size=2, lanes=lanes)
    with pytest.raises(HeadraceError, match="modality_max_values={'text': 3}"):
        list(memory.make(max_per_epoch=4, modality_max_values={"text": 3}))


def test_formatters_that_give_nothing_end_with_an_error(world: World) -> None:
    memory = world.memory({"a": named("a"), "b": named("b")})
    with pytest.raises(HeadraceError, match="jsonl:a:text gave no sample in several passes.*formatter returns None"):
        list(memory.make(functions={"code": lambda sample, tokens: None}))
    for learn in ("all", "assistant"):
        with pytest.raises(HeadraceError, match="gave no sample"):
            list(memory.make(functions={"code": lambda sample, tokens: {"text": ""}}, learn=learn))


def test_an_empty_source_ends_with_an_error(world: World) -> None:
    path = write_lines(world.folder / "nothing.jsonl", [])
    with pytest.raises(HeadraceError, match="nothing.jsonl:text gave no sample in several passes: it is empty"):
        list(world.make({"code": [{"name": "nothing", "path": str(path)}]}))


def test_rows_without_a_sample_are_told_of_before_all_were_looked_at(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    late = world.memory({"a": named("a")}, sizes=[(1500, 1000)]).make(
        functions={"code": lambda row, tokens: {"text": "x"} if row["output"] == "[a 2400]" else None}, max_per_epoch=1
    )
    assert len(list(late)) == 2
    told = [record.getMessage() for record in caplog.records if "gave no sample" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("jsonl:a:text: the last 1,000 rows gave no sample: the formatter returned None")


def test_a_lane_without_a_sample_says_that_it_is_the_lane(world: World) -> None:
    def late(row: Any, tokens: Any) -> Any:
        return {"text": "x"} if row["output"] >= "[a 5]" else None

    make = partial(world.memory({"a": named("a")}, sizes=[(10,)]).make, functions={"code": late}, max_per_epoch=4)
    wrong = pytest.raises(HeadraceError, match=r"gave no sample to lane 0 of 2 .*configure\(shuffle=True\)")
    with make().loader(batch_size=2, lanes=2) as loader, wrong:
        list(loader)
    with make(shuffle=True).loader(batch_size=2, lanes=2) as loader:
        assert sum(len(batch["input_ids"]) for batch in loader) == 8


def test_rows_without_a_column_are_rows_all_the_same(world: World) -> None:
    path = write_lines(world.folder / "bare.jsonl", [{}, {}, {}, {}, {}, {}, code_row(1, "bare"), {}])
    dataset = world.make({"code": [{"name": "bare", "path": str(path)}]}, max_per_epoch=2, sample_repeat=1)
    assert world.names(dataset) == ["bare 1", "bare 1"]
    assert dataset._streaming_state["dataset_positions"] == {"bare": 15}


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda sample, tokens: 7, "its formatter gave 7; a dict"),
        (lambda sample, tokens: [{"txt": "x"}], "a dict with 'text'"),
        (lambda sample, tokens: {"text": "ab", "segments": [("a", True)]}, "segments that do not make its text"),
        (lambda sample, tokens: {"text": "ab", "segments": [7]}, "segments that do not make its text"),
        (lambda sample, tokens: sample["nothing"], "its formatter failed: KeyError: 'nothing'"),
        (lambda sample, tokens: {"text": "\ud800"}, "half of a surrogate pair"),
    ],
)
def test_a_formatter_that_fails_says_at_which_row(world: World, made: Callable[..., Any], said: str) -> None:
    with pytest.raises(DataError) as caught:
        list(world.memory({"a": named("a")}).make(functions={"code": made}, learn="assistant"))
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert said in told
    assert "jsonl:a:text" in told


# --- what a sample has


def test_text_becomes_tokens_with_labels(world: World) -> None:
    sample = next(iter(world.make(["code"], max_length=200)))
    assert set(sample) == {"input_ids", "attention_mask", "labels", "dtype", *finish.FLAGS}
    count = int(sample["attention_mask"].sum())
    assert sample["input_ids"].shape == sample["labels"].shape == (200,)
    assert world.text(sample) == world.text(sample, "labels")
    assert "write 0" in world.text(sample)
    assert (sample["labels"][count:] == -100).all()
    assert (sample["input_ids"][count:] == world.decoder.token_to_id("<|pad|>")).all()
    assert sample["dtype"] == "code"
    assert not any(sample[flag] for flag in finish.FLAGS)


def test_only_what_the_assistant_says_is_learned_if_asked(world: World) -> None:
    every = next(iter(world.make(["code"])))
    sample = next(iter(world.make(["code"], learn="assistant")))
    assert world.text(sample) == world.text(every)
    assert world.text(sample, "labels") == f"```python\n[code 0]\n```{TOKENS['assistant_end']}"


def plain(parts: Sequence[str]) -> Callable[..., Any]:
    """A formatter that gives a text and nothing else."""
    return lambda row, tokens: {"text": "".join(tokens.get(part, f"{row['output']}{part}") for part in parts)}


@pytest.mark.parametrize(
    ("parts", "learned"),
    [
        (["user_start", "?", "user_end", "assistant_start", "!", "assistant_end"], "[a 0]!<|/assistant|>"),
        (["assistant_start", "1", "assistant_end", "2", "assistant_start", "3"], "[a 0]1<|/assistant|>[a 0]3"),
        (["no marks"], "[a 0]no marks"),
        (["user_start", "never answered", "user_end"], None),
    ],
    ids=lambda value: "".join(value or [""])[:20],
)
def test_of_a_bare_text_the_assistants_part_is_found_by_its_marks(
    world: World, parts: Sequence[str], learned: str | None
) -> None:
    rows = {"a": named("a")}
    make = partial(world.memory(rows).make, functions={"code": plain(parts)}, max_per_epoch=1)
    assert world.text(next(iter(make()))) == world.text(next(iter(make())), "labels")
    if learned is None:
        with pytest.raises(HeadraceError, match="gave no sample"):
            next(iter(make(learn="assistant")))
    else:
        sample = next(iter(make(learn="assistant")))
        assert world.text(sample, "labels") == learned
        assert world.text(sample) == world.text(next(iter(make())))


def test_a_row_that_is_not_for_training_has_no_labels(world: World) -> None:
    rows = {"a": lambda i: {**code_row(i, "a"), "is_training": bool(i % 2)}}
    samples = list(world.memory(rows).make(max_per_epoch=2, sample_repeat=1))
    assert ["labels" in sample for sample in samples] == [False, True]


def test_samples_that_are_cut_are_counted(world: World) -> None:
    rows = {"a": lambda i: {"instruction": "long " * 90 if i % 3 == 0 else "short", "output": "x"}}
    dataset = world.memory(rows).make(max_per_epoch=9, sample_repeat=2, max_length=150)
    assert {int(sample["attention_mask"].sum()) == 150 for sample in dataset} == {True, False}
    assert dataset.truncated == 3
    loader = world.memory(rows).make(max_per_epoch=9, sample_repeat=2, max_length=150).loader(batch_size=4, lanes=2)
    cut = sum(int(mask.sum() == 150) for batch in loader for mask in batch["attention_mask"])
    stats = loader.stats()
    assert (stats["samples"], stats["samples_truncated"]) == (18, cut // 2)


@pytest.mark.parametrize("learn", ["all", "assistant"])
@pytest.mark.parametrize(("length", "there"), [(12, 0), (60, 1), (150, 2), (600, 3)])
def test_media_that_stand_where_a_sample_is_cut_go_with_it(world: World, learn: str, length: int, there: int) -> None:
    def films(row: Any, tokens: Any) -> Any:
        mark = tokens["image_start"] + tokens["image_end"]
        user = f"{tokens['user_start']}{'word ' * 3}{tokens['user_end']}"
        said = f"{tokens['assistant_start']}{'yes ' * 5}{mark}{'word ' * 20}{tokens['assistant_end']}"
        images = [picture(i) for i in range(3)]
        return {"text": user + said * 3, "images": images, "video": film_row(0)["video"], "dtype": "vision"}

    dataset = world.memory({"a": named("a")}).make(
        functions={"code": films}, max_per_epoch=1, max_length=length, learn=learn
    )
    if learn == "assistant" and length == 12:
        with pytest.raises(HeadraceError, match="gave no sample"):
            next(iter(dataset))
        return
    sample = next(iter(dataset))
    marks = world.text(sample).count(TOKENS["image_start"] + TOKENS["image_end"])
    assert marks == there
    found = sample.get("images", [])
    assert len([found] if there == 1 else found) == there
    assert "videos" in sample  # no mark says where it stands


def test_what_a_loader_cut_is_known_to_its_dataset(world: World) -> None:
    dataset = world.memory({"a": lambda i: {"instruction": "long " * 90, "output": "x"}}).make(
        max_per_epoch=6, sample_repeat=2, max_length=150
    )
    assert len(list(islice(dataset, 2))) == 2
    with dataset.loader(batch_size=2) as loader:
        assert [dataset.truncated for _ in loader] == [1 + i for i in range(1, 6)]
    assert dataset.truncated == 6
    list(dataset)
    assert dataset.truncated == 12


LEFT_OPEN = """
import sys
from headrace import TrueStreamingDataset, format_code
from headrace.make.tokens import TOKENS
configs = {"code": [{"name": "a", "path": sys.argv[1]}]}
samples = iter(TrueStreamingDataset(configs, {"code": format_code}, sys.argv[2], dict(TOKENS), None))
next(samples)
print("end")
"""


def test_a_script_may_end_in_the_midst_of_an_epoch(world: World, tmp_path: Path) -> None:
    rows = write_lines(tmp_path / "a.jsonl", [code_row(i) for i in range(9)])
    command = [sys.executable, "-c", LEFT_OPEN, str(rows), str(world.tokenizer)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "end\n")
    (told,) = done.stderr.splitlines()
    assert told.startswith("tokens: the tokenizer does not know")


def test_every_modality_gives_what_it_has(world: World) -> None:
    found = {sample["dtype"]: sample for sample in world.make(max_per_epoch=5, sample_repeat=1)}
    assert list(found) == ["conversation", "code", "vision", "voice_asr", "video"]
    assert found["vision"]["images"].shape == (3, 8, 8)
    assert found["voice_asr"]["audio"].shape == (80,)
    assert found["video"]["videos"].shape == (1, 3, 8, 8)
    assert found["voice_asr"]["has_asr"] is True
    assert torch.allclose(found["vision"]["images"], torch.tensor(-1.0))


def test_a_sample_given_again_is_not_changed_by_who_had_it_first(world: World) -> None:
    one, two = islice(world.make(["vision"]), 2)
    wanted = {name: value.clone() for name, value in two.items() if torch.is_tensor(value)}
    again = iter(world.make(["vision"]))
    for value in next(again).values():
        if torch.is_tensor(value):
            value.zero_()
    second = next(again)
    assert all(torch.equal(second[name], value) for name, value in wanted.items())
    assert torch.equal(one["images"], two["images"])


def media_of(world: World, **media: Any) -> dict[str, Any]:
    """A sample of a formatter that gives these media."""
    functions = {"code": lambda sample, tokens: {"text": "x", **media}}
    options = {"image_size": 8, "video_size": 8, "max_video_frames": 3}
    return next(iter(world.memory({"a": named("a")}).make(functions=functions, **options)))


def test_media_come_in_many_forms(world: World) -> None:
    picture = encoded(photo(), "PNG")
    wave = tone(RATE, 0.02)
    assert media_of(world, image=photo())["images"].shape == (3, 8, 8)
    assert [one.shape for one in media_of(world, images=[picture, picture])["images"]] == [(3, 8, 8)] * 2
    with pytest.raises(DataError, match="the image is of type NoneType"):
        media_of(world, images=[picture, None, picture])
    assert len(media_of(world, image=[picture, picture])["images"]) == 2
    assert media_of(world, image=photo(4, 4).tolist())["images"].shape == (3, 8, 8)
    assert media_of(world, video=[picture] * 5)["videos"].shape == (3, 3, 8, 8)
    assert media_of(world, gen_videos=[picture] * 2)["gen_videos"].shape == (2, 3, 8, 8)
    assert [len(one) for one in media_of(world, videos=[[picture], [picture] * 2])["videos"]] == [1, 2]
    assert torch.equal(media_of(world, audio=wave)["audio"], torch.from_numpy(wave))
    assert torch.equal(media_of(world, audio=torch.from_numpy(wave))["audio"], torch.from_numpy(wave))
    assert media_of(world, speaker_ref=wave.tolist())["speaker_ref"].shape == wave.shape
    assert "images" not in media_of(world, image=None, images=[])


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


def test_media_are_decoded_when_their_sample_is_given(world: World, decoded: list[Any]) -> None:
    samples = iter(world.make(["vision", "code"], max_per_epoch=12, sample_repeat=2))
    for count in range(1, 25):
        next(samples)
        assert len(decoded) == (count + 3) // 4  # each image twice, and a text twice
    assert [value["path"] for value in decoded] == [f"{i}.png" for i in range(6)]


def test_nothing_is_decoded_to_get_there(world: World, decoded: list[Any]) -> None:
    dataset = world.make(["vision"], max_per_epoch=9, sample_repeat=2)
    samples = iter(dataset)
    list(islice(samples, 7))
    dataset._save_streaming_state(world.folder / "state.json")
    decoded.clear()
    samples = iter(world.make(["vision"], max_per_epoch=9, resume_state_path=str(world.folder / "state.json")))
    assert decoded == []
    assert world.name(next(samples)) == "vision 3"
    assert [value["path"] for value in decoded] == ["3.png"]


def test_counted_batches_are_passed_by_without_decoding(world: World, decoded: list[Any]) -> None:
    batches = list(world.make(["vision"], max_per_epoch=9).loader(batch_size=2))
    decoded.clear()
    loader = world.make(["vision"], max_per_epoch=9).loader(batch_size=2)
    loader.load_state_dict({"batches_consumed": 5, "batch_size": 2})
    assert decoded == []
    rest = list(loader)
    assert world.names_of(rest) == world.names_of(batches[5:])
    assert len(decoded) == 4


def test_the_rows_of_a_source_are_named_in_the_batches(world: World) -> None:
    batch = next(iter(world.make(["vision"]).loader(batch_size=2)))
    assert [address.row for address in batch.addresses] == [0, 0]
    assert names_in(world.text({k: v[0] for k, v in batch.items() if hasattr(v, "shape")})) == ["vision 0"]
    assert vision_row(0)["answer"] == "[vision 0]"
