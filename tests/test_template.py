"""Conversations written by the tokenizer's own chat template: the tokens and the mask are those of transformers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from media_files import encoded, photo
from streaming import FUNCTIONS, World, named
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headrace import Faults
from headrace.errors import DataError, SpecError
from headrace.make.formatters import FORMATTERS, chat_messages
from headrace.make.open_template import open_template
from headrace.make.template import Template
from headrace.make.tokens import TOKENS
from headrace.make.turns import Piece, Turn, turn
from headrace.serve.streaming import TrueStreamingDataset

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|pic|>"]

HEAD = "{{ '<|im_start|>' + message['role'] + '\\n' }}"
TAIL = "{{ '<|im_end|>' }}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
TOOLED = "{% if tools %}{{ '<|im_start|>tools\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}"
THOUGHT = "{% if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}"
CALLS = "{% for call in message.tool_calls or [] %}{{ '<call>' + (call.function | tojson) + '</call>' }}{% endfor %}"
LOOP = "{% for message in messages %}"

CONTENT = "{{ message['content'] }}"
PLAIN = f"{LOOP}{HEAD}{CONTENT}{TAIL}\n{{% endfor %}}{PROMPT}"
MARKED = (
    f"{TOOLED}{LOOP}{HEAD}{{% if message['role'] == 'assistant' %}}{{% generation %}}{THOUGHT}{CONTENT}{CALLS}{TAIL}"
    f"{{% endgeneration %}}{{% else %}}{CONTENT}{TAIL}{{% endif %}}\n{{% endfor %}}{PROMPT}"
)
UNMARKED = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
PARTS = (
    f"{LOOP}{HEAD}{{% if message.content is string %}}{CONTENT}{{% else %}}{{% for part in message.content %}}"
    "{{ '<|pic|>' if part.type == 'image' else part.text or '' }}{% endfor %}{% endif %}"
    f"{TAIL}\n{{% endfor %}}{PROMPT}"
)
LAST_ONE_THINKS = PLAIN.replace(
    "{{ message['content'] }}",
    "{% if loop.last and message.role == 'assistant' %}{{ '<think></think>' }}{% endif %}{{ message['content'] }}",
)
IGNORES_PROMPT = PLAIN.replace(PROMPT, "")
ENDS_ONCE = f"{PLAIN}{{{{ eos_token if not add_generation_prompt else '' }}}}"
INSTRUCT = (
    f"{{{{ bos_token }}}}{LOOP}{{% if message.role == 'user' %}}{{{{ '[INST] ' + message.content + ' [/INST]' }}}}"
    "{% elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }}"
    "{% else %}{{ raise_exception('only users and assistants') }}{% endif %}{% endfor %}"
)
CALL = '{"name": "look", "arguments": {"word": "x"}}'
TOOL = {"name": "look", "description": "It looks.", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def owner(world: World) -> Callable[[str | None], PreTrainedTokenizerFast]:
    """A tokenizer of transformers with a template."""

    def make(template: str | None) -> PreTrainedTokenizerFast:
        made = AutoTokenizer.from_pretrained(world.tokenizer)
        made.add_special_tokens({"additional_special_tokens": SPECIAL})
        made.chat_template = template
        assert isinstance(made, PreTrainedTokenizerFast)
        return made

    return make


Owner = Callable[[str | None], PreTrainedTokenizerFast]


def dataset_of(
    world: World,
    owner: PreTrainedTokenizerFast,
    rows: list[dict[str, Any]],
    category: str = "conversation",
    **more: Any,
) -> TrueStreamingDataset:
    """All rows once, in order."""
    first = {name: more.pop(name) for name in ("learn", "faults", "resume") if name in more}
    resume = first.pop("resume", None)
    memory = world.memory({"a": lambda i: rows[i % len(rows)]}, [[len(rows)]])
    options = {"max_per_epoch": len(rows), "sample_repeat": 1, "max_length": 400, "resume_state_path": resume, **more}
    functions = options.pop("functions", FUNCTIONS)
    made = TrueStreamingDataset(memory.configs(category), functions, owner, dict(TOKENS), None, **options)
    return made.configure(render="template", opener=memory.open, cache_dir=world.folder / "data", **first)


def said(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def learned(owner: PreTrainedTokenizerFast, sample: dict[str, Any]) -> str:
    """What has a label, with a bar where something else stands between."""
    runs = groupby(sample["labels"].tolist(), key=lambda label: label >= 0)
    return "|".join(str(owner.decode(list(labels))) for is_learned, labels in runs if is_learned)


CHATS = [
    said(("user", "what is it?"), ("assistant", "it is 7")),
    said(("system", "be kind"), ("user", "a  b"), ("assistant", " c 🙂"), ("user", "q\n"), ("assistant", "\nyes ñ")),
    {
        **said(
            ("user", "look x up"),
            ("assistant", f"<think>I must look.</think>A moment.<tool_call>{CALL}</tool_call>"),
            ("tool", "found"),
            ("assistant", "It is there."),
        ),
        "tools": [TOOL],
    },
]


# --- tokens and masks


@pytest.mark.parametrize("template", [MARKED, UNMARKED])
def test_tokens_and_mask_are_those_of_transformers(world: World, owner: Owner, template: str) -> None:
    """Without marks, what each turn adds to the text is found, and it is the same."""
    ours, theirs = owner(template), owner(MARKED)
    for row, sample in zip(CHATS, dataset_of(world, ours, CHATS, "tool_use", learn="assistant"), strict=True):
        tools = [{"type": "function", "function": TOOL}] if "tools" in row else None
        messages = chat_messages({"messages": row["messages"]})
        wanted = theirs.apply_chat_template(messages, tools=tools, return_dict=True, return_assistant_tokens_mask=True)
        count = int(sample["attention_mask"].sum())
        assert sample["input_ids"][:count].tolist() == wanted["input_ids"]
        given = [int(label != -100) for label in sample["labels"][:count].tolist()]
        if template == MARKED:
            assert given == wanted["assistant_masks"]
        said_by = [m["content"] for m in messages if m["role"] == "assistant"]
        assert all(text.strip() in learned(theirs, sample) for text in said_by)
        assert "look x up" not in learned(theirs, sample)


def test_all_of_it_is_learned_unless_asked_otherwise(world: World, owner: Owner) -> None:
    made = owner(PLAIN)
    (sample,) = dataset_of(world, made, CHATS[:1])
    text = "<|im_start|>user\nwhat is it?<|im_end|>\n<|im_start|>assistant\nit is 7<|im_end|>\n"
    assert learned(made, sample) == text
    assert made.decode(sample["input_ids"][: int(sample["attention_mask"].sum())]) == text


def test_what_a_turn_adds_is_what_the_assistant_says(world: World, owner: Owner) -> None:
    rows = [said(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))]
    (sample,) = dataset_of(world, owner(PLAIN), rows, learn="assistant")
    assert learned(owner(PLAIN), sample) == "b<|im_end|>\n|d<|im_end|>\n"
    (sample,) = dataset_of(world, owner(INSTRUCT), rows, learn="assistant")
    assert learned(owner(INSTRUCT), sample) == " b<|end|>| d<|end|>"


@pytest.mark.parametrize("template", [MARKED, PLAIN])
def test_a_turn_that_is_not_to_be_learned_is_not(world: World, owner: Owner, template: str) -> None:
    row = said(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    row["messages"][1]["weight"] = 0
    (sample,) = dataset_of(world, owner(template), [row], learn="assistant")
    assert learned(owner(template), sample).strip() == "d<|im_end|>"


def test_every_row_of_a_category_is_written_by_a_template(world: World, owner: Owner) -> None:
    """Also those whose answers are diffs, thoughts, calls and outputs of code."""
    from golden_rows import ROWS

    from headrace.catalog.known import known

    template = open_template(owner(MARKED), TOKENS, learn=True)
    for name, row in ROWS.items():
        made = FORMATTERS[known(name).formatter]
        from headrace.make.formatters import with_fields

        found = with_fields(made, known(name).field_map)(row, TOKENS)
        for sample in found if isinstance(found, list) else [found]:
            assert sample is not None
            if "turns" not in sample:
                assert TOKENS["assistant_start"] not in sample["text"]
                continue
            written = template.render(sample, learn=True)
            assert written is not None
            ours = "".join(text for text, is_learned in sample["segments"] if is_learned)
            theirs = "".join(written.text[start:stop] for start, stop in written.learned)
            assert words(theirs) == words(ours), name


def words(text: str) -> list[str]:
    """Without marks and fences, and without what is said about calls."""
    for mark in (*TOKENS.values(), "<think>", "</think>", "<call>", "</call>", "<|im_end|>", "```diff", "```"):
        text = text.replace(mark, " ")
    return sorted(text.replace('": ', '":').replace(", ", ",").split())


# --- what a template does not know


def test_tools_go_to_a_template_that_knows_them_and_else_into_the_text(world: World, owner: Owner) -> None:
    row = CHATS[2]
    for template, count in ((MARKED, 1), (PLAIN, 0)):
        made = owner(template)
        (sample,) = dataset_of(world, made, [row], "tool_use")
        text = str(made.decode(sample["input_ids"]))
        assert text.count("<|im_start|>tools") == count
        assert text.count("You have access to the following tools") == 1 - count
        assert text.count("It looks.") == 1
        assert text.count("I must look.") == text.count("A moment.") == text.count('"word"') == 1


def test_what_a_template_cannot_write_becomes_words_in_our_marks(owner: Owner) -> None:
    template = open_template(owner(INSTRUCT), TOKENS, learn=True)
    ways = template.ways
    assert not any((ways.system, ways.tools, ways.calls, ways.results, ways.thoughts, ways.media))
    turns = (
        Turn("system", (Piece("text", "rules"), Piece("tools", "\n\ntools", [TOOL]))),
        Turn("user", (Piece("image", "", b"x"), Piece("text", "q"))),
        Turn("assistant", (Piece("think", "t"), Piece("call", CALL))),
        Turn("tool", (Piece("text", "r"),)),
        turn("assistant", "a"),
    )
    written = template.render({"turns": turns}, learn=True)
    assert written is not None
    assert written.text == (
        "<|begin|>[INST] rules\n\ntools\n\n<|image|><|/image|>q [/INST] <|think|>t<|/think|><|tool_call|>"
        f"{CALL}<|/tool_call|><|end|>[INST] <|tool_result|>r<|/tool_result|> [/INST] a<|end|>"
    )
    assert written.text[: written.media_stop].endswith("<|/image|>")


def test_results_in_the_middle_of_a_turn_are_not_learned(owner: Owner) -> None:
    cells = (Piece("text", "First"), Piece("code", "1 + 1"), Piece("result", "2"), Piece("text", "Two."))
    turns = (turn("user", "q"), Turn("assistant", cells))
    written = open_template(owner(MARKED), TOKENS, learn=True).render({"turns": turns}, learn=True)
    assert written is not None
    said_by = [written.text[start:stop] for start, stop in written.learned]
    assert said_by == ["First```\n1 + 1\n```<|im_end|>", "Two.<|im_end|>"]
    assert "<|im_start|>tool\n2<|im_end|>" in written.text


def test_words_beside_a_call_are_never_lost(owner: Owner) -> None:
    only = UNMARKED.replace("{{ message['content'] }}", "{{ message['content'] if not message.tool_calls else '' }}")
    template = open_template(owner(only), TOKENS, learn=True)
    assert template.ways.calls
    assert not template.ways.words_and_calls
    turns = (turn("user", "q"), Turn("assistant", (Piece("text", "A moment."), Piece("call", CALL))))
    written = template.render({"turns": turns}, learn=False)
    assert written is not None
    assert f"A moment.<|tool_call|>{CALL}<|/tool_call|>" in written.text


def test_media_stand_where_the_template_puts_them(world: World, owner: Owner) -> None:
    picture = encoded(photo(), "PNG")
    row = {"image": picture, "question": "what?", "answer": "[vision 1]"}
    for template, mark in ((PARTS, "<|pic|>"), (PLAIN, "<|image|><|/image|>")):
        made = owner(template)
        (sample,) = dataset_of(world, made, [row], "vision", image_size=8, learn="assistant")
        assert f"<|im_start|>user\n{mark}what?<|im_end|>" in str(made.decode(sample["input_ids"]))
        assert learned(made, sample) == "[vision 1]<|im_end|>\n"
        assert sample["images"].shape == (3, 8, 8)


def test_a_template_that_takes_lists_only_gets_lists(owner: Owner) -> None:
    lists = PLAIN.replace(CONTENT, "{% for part in message.content %}{{ part.text }}{% endfor %}")
    template = open_template(owner(lists), TOKENS, learn=True)
    assert template.ways.lists
    written = template.render({"turns": (turn("user", "q"), turn("assistant", "a"))}, learn=True)
    assert written is not None
    assert written.text == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
    assert [written.text[start:stop] for start, stop in written.learned] == ["a<|im_end|>\n"]


def test_the_date_is_always_the_same(owner: Owner) -> None:
    dated = f"{{{{ strftime_now('%d %b %Y') }}}} {PLAIN}"
    written = open_template(owner(dated), TOKENS, learn=False).render({"turns": (turn("user", "q"),)}, learn=False)
    assert written is not None
    assert written.text.startswith("26 Jul 2024 ")
    with pytest.raises(SpecError, match="asks for the date"):
        open_template(owner(f"{{% set form = '%Y' %}}{{{{ strftime_now(form) }}}}{PLAIN}"), TOKENS, learn=False)


# --- other texts


def test_texts_that_are_no_conversations_stay_as_they_are(world: World, owner: Owner) -> None:
    made = owner(MARKED)
    (sample,) = dataset_of(world, made, [{"text": "a page of words"}], "text", learn="assistant")
    assert learned(made, sample) == "a page of words"


def test_a_formatter_of_ones_own_gives_messages(world: World, owner: Owner) -> None:
    def mine(sample: Any, tokens: Any) -> Any:
        ask, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": sample["output"]}
        if sample["output"] == "[a 1]":
            return {"text": "", "messages": [ask, answer, ask, {**answer, "content": "no", "weight": 0}]}
        return {"text": "", "messages": [ask, {**answer, "weight": int(sample["output"] != "[a 2]")}]}

    def text_only(sample: Any, tokens: Any) -> Any:
        return {"text": f"{tokens['assistant_start']}a"}

    rows = [named("a")(i) for i in range(3)]
    made = owner(MARKED)
    samples = list(dataset_of(world, made, rows, "code", functions={"code": mine}, learn="assistant"))
    said = ["[a 0]<|im_end|>", "[a 1]<|im_end|>", "[a 0]<|im_end|>"]  # of the third there is nothing to learn
    assert [learned(made, sample) for sample in samples] == said
    with pytest.raises(DataError, match="jsonl:a:text.*neither turns nor messages"):
        list(dataset_of(world, made, rows, "code", functions={"code": text_only}))
    for bad in ("hello", [{"content": "no role"}], ["x"]):
        with pytest.raises(DataError, match="a list of dicts with role and content") as caught:
            list(
                dataset_of(
                    world, made, rows, functions={"conversation": lambda s, t, bad=bad: {"text": "", "messages": bad}}
                )
            )
        assert "jsonl:a:text" in "".join(caught.value.__notes__)


# --- templates that cannot be used


def test_without_a_template_it_says_so(world: World, owner: Owner) -> None:
    with pytest.raises(SpecError, match="has no chat template.*render='tokens'"):
        dataset_of(world, owner(None), CHATS)
    with pytest.raises(SpecError, match="a Tokenizer has no chat template"):
        open_template(tokenizers.Tokenizer.from_file(str(world.tokenizer / "tokenizer.json")), TOKENS, learn=False)
    with pytest.raises(SpecError, match="has no chat template"):
        world.make(["code"], render="template")  # its folder has none
    with pytest.raises(SpecError, match="render='html'"):
        world.make(["code"], render="html")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ 'nothing' }}", "does not write a question and an answer"),
        ("{% for", "TemplateSyntaxError in line 1, which is not Jinja"),
        ("{{ messages |\nfromjson }}", "TemplateAssertionError in line 2, which names a filter, test or block that"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ 'a' * 10 ** 14 }}", "makes more than [0-9,]* bytes of values for one sample"),
        ("{{ raise_exception('not today') }}", "not today"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "OverflowError"),
    ],
)
def test_a_bad_template_is_refused_at_once(world: World, owner: Owner, template: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        dataset_of(world, owner(template), CHATS)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ raise_exception('no such word') }}", "no such word"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ('a' * 100000000) }}", "makes more than [0-9,]* characters"),
    ],
)
def test_a_template_that_fails_on_a_row_says_on_which(world: World, owner: Owner, bad: str, said: str) -> None:
    template = MARKED.replace(LOOP, f"{LOOP}{{% if 'evil' in message['content'] %}}{bad}{{% endif %}}")
    rows = [CHATS[0], said_("evil"), CHATS[0]]
    with pytest.raises(DataError, match=f"the chat template .*{said}") as caught:
        list(dataset_of(world, owner(template), rows, learn="assistant"))
    assert any("jsonl:a:text" in note for note in caught.value.__notes__)
    skipping = dataset_of(world, owner(template), rows, faults=Faults(policy="skip", budget=1), max_per_epoch=2)
    assert len(list(skipping)) == 2
    assert skipping._streaming_state["skipped_rows"] == 1


def said_(word: str) -> dict[str, Any]:
    return said(("user", word), ("assistant", "no"))


@pytest.mark.parametrize(
    ("template", "rows", "why"),
    [
        (
            LAST_ONE_THINKS,
            [said(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))],
            "message 1 is written",
        ),
        (
            ENDS_ONCE,
            [said(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))],
            "message 1 is written",
        ),
        (
            PLAIN.replace(LOOP, f"{{{{ messages[0].role }}}}{LOOP}"),
            [said(("assistant", "b"))],
            "message 0: without those",
        ),
    ],
)
def test_a_mask_that_cannot_be_trusted_is_refused(
    world: World, owner: Owner, template: str, rows: list[Any], why: str
) -> None:
    with pytest.raises(SpecError) as caught:
        list(dataset_of(world, owner(template), rows, learn="assistant"))
    told = str(caught.value)
    assert why in told
    assert "{% generation %}" in told
    assert "learn='all'" in told
    assert any("jsonl:a:text" in note for note in caught.value.__notes__)
    assert len(list(dataset_of(world, owner(template), rows))) == 1


def test_a_header_is_never_taken_for_what_the_assistant_says(world: World, owner: Owner) -> None:
    with pytest.raises(SpecError, match="does not begin with its content"):
        dataset_of(world, owner(IGNORES_PROMPT), CHATS, learn="assistant")


def test_marks_around_the_wrong_turns_are_refused(world: World, owner: Owner) -> None:
    wrong = MARKED.replace("message['role'] == 'assistant'", "message['role'] == 'user'")
    with pytest.raises(SpecError, match="do not stand around the assistant's turns"):
        dataset_of(world, owner(wrong), CHATS, learn="assistant")


def test_what_a_template_writes_is_not_quoted(world: World, owner: Owner) -> None:
    """Its file may be a link to any other."""
    with pytest.raises(SpecError, match="of two messages it makes text of 6 characters; take render='tokens'"):
        dataset_of(world, owner("secret"), CHATS)
    wrong = MARKED.replace("message['role'] == 'assistant'", "message['role'] == 'user'")
    with pytest.raises(SpecError, match=r"they stand around (text of \d+ characters( and )?)+; correct the template"):
        dataset_of(world, owner(wrong), CHATS, learn="assistant")


def test_a_conversation_of_which_nothing_would_be_learned_is_refused(world: World, owner: Owner) -> None:
    sometimes = MARKED.replace(
        "message['role'] == 'assistant'", "message['role'] == 'assistant' and messages | length > 1"
    )
    assert sometimes != MARKED
    rows = [said(("assistant", "alone"))]
    with pytest.raises(SpecError, match="stand outside of the chat template's generation marks") as caught:
        list(dataset_of(world, owner(sometimes), rows, learn="assistant"))
    assert any("jsonl:a:text" in note for note in caught.value.__notes__)


def test_marks_that_are_more_than_turns_cannot_tell_flagged_turns_apart(world: World, owner: Owner) -> None:
    twice = MARKED.replace("{% endgeneration %}", "{% endgeneration %}{% generation %}{% endgeneration %}")
    row = said(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    assert (
        learned(owner(twice), *dataset_of(world, owner(twice), [row], learn="assistant")) == "b<|im_end|>|d<|im_end|>"
    )
    row["messages"][1]["weight"] = 0
    with pytest.raises(SpecError, match="2 assistant's turns, not all of which are learned, has 4 generation marks"):
        list(dataset_of(world, owner(twice), [row], learn="assistant"))


# --- runs


def test_a_template_from_a_folder_is_found(world: World, owner: Owner, tmp_path: Path) -> None:
    owner(MARKED).save_pretrained(tmp_path / "t")
    found = open_template(str(tmp_path / "t"), TOKENS, learn=True)
    assert found.plain == MARKED
    assert open_template(tmp_path / "t", TOKENS, learn=True) == found == pickle.loads(pickle.dumps(found))  # noqa: S301
    assert open_template(tmp_path / "t" / "tokenizer.json", TOKENS, learn=True) == found
    named_ones = owner(None)
    named_ones.chat_template = {"default": PLAIN, "tool_use": MARKED}
    both: Template = open_template(named_ones, TOKENS, learn=False)
    assert (both.plain, both.with_tools) == (PLAIN, MARKED)


def test_another_template_makes_other_rows_and_a_resume_says_so(
    world: World, owner: Owner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [said(("user", f"q{i}"), ("assistant", f"[a {i}]")) for i in range(6)]
    path = tmp_path / "state.json"
    dataset = dataset_of(world, owner(MARKED), rows, sample_repeat=2)
    samples = iter(dataset)
    first = [s["input_ids"].tolist() for s in islice(samples, 3)]
    dataset._save_streaming_state(path)
    rest = [s["input_ids"].tolist() for s in samples]
    same = dataset_of(world, owner(MARKED), rows, sample_repeat=2, resume=str(path))
    assert [s["input_ids"].tolist() for s in same] == rest
    assert len(first + rest) == 12
    assert "what makes rows ready changed" not in caplog.text
    list(dataset_of(world, owner(PLAIN), rows, sample_repeat=2, resume=str(path)))
    assert "what makes rows ready changed" in caplog.text


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_write_the_same(world: World, owner: Owner, workers: int) -> None:
    rows = [said(("user", f"q{i}"), ("assistant", f"[a {i}]")) for i in range(8)]
    with dataset_of(world, owner(MARKED), rows, learn="assistant").loader(2, num_workers=workers, lanes=2) as loader:
        batches = list(loader)
        state = json.loads(json.dumps(loader.state_dict()))
    assert state["epoch"] == 1
    found = sorted(learned(owner(MARKED), {"labels": labels}) for batch in batches for labels in batch["labels"])
    assert found == [f"[a {i}]<|im_end|>" for i in range(8)]
