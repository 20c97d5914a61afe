"""Small tokenizers for tests: real libraries, tiny vocabularies, trained on the spot.

The trainer of the `tokenizers` library gives the merges; what a model folder or a GGUF file would say of them is put
together here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from bosquet.runtime.tokenizer import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and then the other fox jumps back.",
    "def render(messages): return ''.join(message['content'] for message in messages)",
    "In the beginning there was the word, and the word was 12345 times too long.\n\n    Indented text.",
    "Äpfel, Öl und Übermut: größer, höher, weiter. El niño comió piñas. 你好，世界。 Привет, мир! 🙂🙃",
    '<|im_start|>user\n{"name": "lookup", "arguments": {"city": "Paris"}}<|im_end|>',
] * 3

CHATML_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level(vocab_size: int = 400, specials: Sequence[str] = CHATML_SPECIALS) -> Library:
    """A byte-level BPE, words cut as GPT-2 does; special tokens come first."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(CORPUS, trainer)
    return library


def chatml_folder(folder: Path, *, template: str | None = CHATML, added: Sequence[str] = ()) -> Path:
    """A model folder with a small byte-level tokenizer; `added` are added tokens that are not special."""
    library = byte_level()
    library.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    library.save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "add_bos_token": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def chatml_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(chatml_folder(folder))


def gpt2_metadata(pre: str | None = "gpt-2", **more: object) -> dict[str, object]:
    """What a GGUF file says of the small byte-level tokenizer."""
    document = json.loads(byte_level().to_str())
    vocabulary: dict[str, int] = document["model"]["vocab"]
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in CHATML_SPECIALS else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in document["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": CHATML,
        **more,
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    return metadata


def sentencepiece_metadata(**more: object) -> dict[str, object]:
    """What a GGUF file says of a small SentencePiece model: pieces with scores, and a token for every byte."""
    library = Library(models.BPE())
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    document = json.loads(library.to_str())
    merged = ["".join(pair) for pair in document["model"]["merges"]]
    letters = [token for token in document["model"]["vocab"] if len(token) == 1]
    specials = ["<unk>", "<s>", "</s>"]
    in_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*specials, *in_bytes, *merged, *letters, "[INST]"]
    # As SentencePiece trains: a merged piece's score is minus its rank, letters come after all of them.
    scores = [0.0] * (3 + 256) + [-float(rank) for rank in range(len(merged) + len(letters))] + [0.0]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(merged) + len(letters)) + [4]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }


def write_folder(folder: Path, tokenizer_json: str, config: dict[str, object]) -> Path:
    (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
