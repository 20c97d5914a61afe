"""Tokenizers out of GGUF metadata: what each name means, defaults, and what is refused."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
from tokenizer_samples import CHATML, CHATML_SPECIALS, byte_level, gpt2_metadata, sentencepiece_metadata, write_folder
from tokenizers import Tokenizer as Library

from bosquet.errors import ModelLoadError
from bosquet.runtime.models.gguf_tokenizer import convert
from bosquet.runtime.tokenizer import Tokenizer

TEXTS = [
    "The quick brown fox's 12345 foxes, they'LL jump!\n\n\n  def f(x):\t\treturn x**2 + 3.14 # ünïcödé",
    "你好，世界 Привет １２３ ⅷ ½ 🙂🙃 e\u0301 \u00a0\u3000 x\r\n\r\ny  ",
    "CamelCase HTTPServer's iPhone'S don'T 1st 2nd 100,000.50 --- ... ??? #$% <tag/>\n \n",
    "   leading, trailing   ",
    "",
]

# Written out again from llama.cpp's table of names: expressions applied one after the other, each to what those before
# it left in one piece; what an expression does not match stays together.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_ENDINGS = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_LLAMA3 = (
    rf"(?:{_ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HEAD = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_HEAD}{_UPPER}*{_LOWER}+|{_HEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_REST}"
_GPT4O = rf"{_HEAD}{_UPPER}*{_LOWER}+(?:{_ENDINGS})?|{_HEAD}{_UPPER}+{_LOWER}*(?:{_ENDINGS})?|\p{{N}}{{1,3}}|{_REST}"
EXPRESSIONS = {
    "gpt-2": [_GPT2],
    "smollm": [r"\p{N}", _GPT2],
    "starcoder": [r"\p{N}", _GPT2],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "llama-bpe": [_LLAMA3],
    "smaug-bpe": [_LLAMA3],
    "qwen2": [_LLAMA3.replace("{1,3}", "")],
    "deepseek-r1-qwen": [_LLAMA3.replace("{1,3}", "")],
    "tekken": [_TEKKEN],
    "gpt-4o": [_GPT4O],
}


def words(name: str, text: str) -> list[str]:
    pieces = [text] if text else []
    for expression in EXPRESSIONS[name]:
        cut: list[str] = []
        for piece in pieces:
            place = 0
            for match in regex.finditer(expression, piece):
                cut += [piece[place : match.start()], match[0]]
                place = match.end()
            cut.append(piece[place:])
        pieces = [piece for piece in cut if piece]
    return pieces


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", sorted(EXPRESSIONS))
def test_words_are_cut_where_llama_cpp_cuts_them(name: str, text: str) -> None:
    document, _ = convert(gpt2_metadata(name))
    library = Library.from_str(document)
    alphabet = byte_level().decoder
    if library.normalizer is not None:
        text = library.normalizer.normalize_str(text)
    found = [alphabet.decode([piece]) for piece, _ in library.pre_tokenizer.pre_tokenize_str(text)]
    assert found == words(name, text)


def test_the_small_tokenizer_comes_back() -> None:
    """What the metadata were taken from encodes in the same way."""
    document, config = convert(gpt2_metadata("gpt-2"))
    library, original = Library.from_str(document), byte_level()
    for text in (*TEXTS, "<|im_start|>user\nfox<|im_end|>"):
        assert library.encode(text).ids == original.encode(text).ids
    assert config["bos_token"] == "<|im_start|>"
    assert config["eos_token"] == "<|im_end|>"
    assert config["chat_template"] == CHATML
    assert "unk_token" not in config


def _model(name: str | None, **more: object) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(convert(gpt2_metadata(name, **more))[0])
    return document


def test_what_a_name_means_besides_the_words() -> None:
    assert _model("llama-bpe")["model"]["ignore_merges"]
    assert _model("tekken")["model"]["ignore_merges"]
    assert not _model("smollm")["model"]["ignore_merges"]
    assert _model("qwen2")["normalizer"] == {"type": "NFC"}
    assert _model("deepseek-r1-qwen")["normalizer"] is None
    assert _model(None)["pre_tokenizer"] == _model("default")["pre_tokenizer"]


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [("llama-bpe", None, True), ("llama-bpe", False, False), ("qwen2", None, False), ("smollm", True, True)],
)
def test_the_start_token(tmp_path: Path, name: str, said: bool | None, expected: bool) -> None:
    more = {} if said is None else {"tokenizer.ggml.add_bos_token": said}
    document, config = convert(gpt2_metadata(name, **more))
    assert config["add_bos_token"] is expected
    assert (Library.from_str(document).encode("fox").ids[0] == 1) is expected
    assert Tokenizer.from_folder(write_folder(tmp_path, document, config)).add_bos is expected


def test_user_defined_tokens_are_added_tokens_that_show(tmp_path: Path) -> None:
    metadata = gpt2_metadata()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    tokens += ["<two words>", ""]
    types += [4, 5]
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, *convert(metadata)))
    added = len(tokens) - 2
    assert tokenizer.encode("a<two words>", specials=False)[-1] == added
    assert tokenizer.decode([added]) == "<two words>"
    assert tokenizer.token_bytes[added + 1] == f"[EMPTY_{added + 1}]".encode()
    assert tokenizer.special_ids == set(range(len(CHATML_SPECIALS)))


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (gpt2_metadata("sanskrit"), "pre-tokenizer 'sanskrit'; known are "),
        (gpt2_metadata() | {"tokenizer.ggml.model": "bert"}, "kind 'bert'"),
        ({}, "no tokenizer"),
        ({"tokenizer.ggml.model": "gpt2"}, "tokenizer.ggml.tokens is missing"),
        (gpt2_metadata() | {"tokenizer.ggml.tokens": ["a", 3]}, "not a list of texts"),
        (gpt2_metadata() | {"tokenizer.ggml.tokens": ["a", "b", "a"]}, "holds 'a' twice"),
        (gpt2_metadata() | {"tokenizer.ggml.token_type": [1]}, "one number for each"),
        (gpt2_metadata() | {"tokenizer.ggml.bos_token_id": 70_000}, "70000, which is no token"),
        (gpt2_metadata() | {"tokenizer.ggml.add_bos_token": 1}, "not true or false"),
        (gpt2_metadata() | {"tokenizer.ggml.merges": ["a zz"]}, "'a zz', whose parts"),
        (gpt2_metadata() | {"tokenizer.ggml.merges": ["ab"]}, "'ab', whose parts"),
        ({k: v for k, v in gpt2_metadata().items() if k != "tokenizer.ggml.merges"}, "merges is missing"),
        ({k: v for k, v in sentencepiece_metadata().items() if not k.endswith("scores")}, "neither"),
    ],
)
def test_metadata_that_cannot_be_used(metadata: dict[str, object], said: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        convert(metadata)
    assert said in str(caught.value)


def _sentencepiece(pieces: dict[str, float], text: str) -> list[str]:
    """SentencePiece's own algorithm, the slow way: join the best-scored neighbours, leftmost first."""
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        joined = [(-pieces[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in pieces]
        if not joined:
            break
        _, place = min(joined)
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
    return [
        token
        for symbol in symbols
        for token in ([symbol] if symbol in pieces else [f"<0x{byte:02X}>" for byte in symbol.encode()])
    ]


@pytest.mark.parametrize("text", [text for text in TEXTS if text] + ["the the  the\n", "世界🙂 aaaa ▁", "\x00"])
def test_sentencepiece_vocabularies_join_by_score(tmp_path: Path, text: str) -> None:
    metadata: dict[str, Any] = sentencepiece_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    types, scores = metadata["tokenizer.ggml.token_type"], metadata["tokenizer.ggml.scores"]
    pieces = {token: score for token, kind, score in zip(tokens, types, scores, strict=True) if kind == 1}
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, *convert(metadata)))
    ids = tokenizer.encode(text, specials=False)
    assert [tokens[i] for i in ids] == _sentencepiece(pieces, text)
    assert tokenizer.decode(ids, at_start=True) == text.replace("▁", " ")
    assert tokenizer.decode(ids) == " " + text.replace("▁", " ")


def test_sentencepiece_details(tmp_path: Path) -> None:
    """Bytes, unknown and special tokens, tokens of the user, and the space before each stretch of text."""
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, *convert(sentencepiece_metadata())))
    assert tokenizer.add_bos
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.token_bytes[1] == b"<s>"
    assert tokenizer.token_bytes[3 + 0x0A] == b"\n"
    inst = tokenizer.id_of_special("[INST]")
    assert tokenizer.encode("<s>[INST]", specials=True) == [1, inst]
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode("<s></s><unk>", specials=False))
    assert tokenizer.decode(tokenizer.encode("fox<s>fox", specials=True)) == " fox fox"
    assert tokenizer.decode(tokenizer.encode("</s>", specials=False), at_start=True) == "</s>"


def test_without_the_space_prefix(tmp_path: Path) -> None:
    metadata = sentencepiece_metadata(**{"tokenizer.ggml.add_space_prefix": False})
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, *convert(metadata)))
    ids = tokenizer.encode("fox fox", specials=False)
    assert tokenizer.decode(ids) == tokenizer.decode(ids, at_start=True) == "fox fox"
