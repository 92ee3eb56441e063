"""A maker of small real tokenizers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from headrace import rng

BOS, EOS, PAD = "<|begin|>", "<|end|>", "<|pad|>"
_SOUNDS = ("ba", "ko", "ri", "stu", "en", "a", "mo", "ти", "же", "λο", "ση", "中", "文", "أن", "は", "🙂")


def write_tokenizer(folder: str | Path, vocab: int = 2000, seed: int = 0, texts: Iterable[str] | None = None) -> Path:
    """A folder that `AutoTokenizer.from_pretrained` loads: a byte-level BPE, trained on `texts`, or on made-up words.

    Its bos, eos and pad tokens are named; documents get none of them by themselves.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(seed, max(vocab, 300)) if texts is None else texts, trainer)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), "utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": 1_000_000,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), "utf-8")
    return folder


def _lines(seed: int, words: int) -> list[str]:
    stream = rng.key("tokenizer", seed)
    known = []
    for w in range(words):
        size = 2 + rng.draw(stream, 8 * w, 4)
        known.append("".join(_SOUNDS[rng.draw(stream, 8 * w + 1 + i, len(_SOUNDS))] for i in range(size)))
    text = rng.key("tokenizer text", seed)
    picks = [known[rng.draw(text, i, words)] for i in range(6 * words)]
    return [f"{' '.join(picks[i : i + 12])}, {i}.\n" for i in range(0, len(picks), 12)]
