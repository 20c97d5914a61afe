"""Turns the tokenizer that a GGUF file describes in its metadata into `tokenizer.json` and `tokenizer_config.json`.

A GGUF holds a vocabulary, merges or scores, and the *name* of a pre-tokenizer; what the name means is defined by
llama.cpp, and is spelled out here for the families that Bosquet runs. A name that is not in the table is refused: a
wrong pre-tokenizer gives a model that answers, but badly.

Knows nothing of GGUF's binary layout, of tensors or of architectures.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...errors import ModelLoadError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

_Json = dict[str, object]

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_CASED}{_UPPER}*{_LOWER}+|{_CASED}{_UPPER}+{_LOWER}*|\p{{N}}{_TAIL}"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O = rf"{_CASED}{_UPPER}*{_LOWER}+{_ENDING}|{_CASED}{_UPPER}+{_LOWER}*{_ENDING}|\p{{N}}{{1,3}}{_TAIL}"


class _Pre(NamedTuple):
    """How text is cut before the merges run."""

    before: tuple[_Json, ...] = ()  # pre-tokenizers that come before the byte encoding
    words: bool = True  # the byte encoding also cuts words, by the GPT-2 expression
    whole_words: bool = False  # a word that is in the vocabulary is taken as it is, without merges
    add_bos: bool = False  # when the file does not say
    nfc: bool = False


def _split(expression: str) -> _Json:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


_GPT2_PRE = _Pre()
_DIGITS_PRE = _Pre(({"type": "Digits", "individual_digits": True},))
_LLAMA3_PRE = _Pre((_split(_LLAMA3),), words=False, whole_words=True, add_bos=True)
_QWEN2_PRE = _Pre((_split(_QWEN2),), words=False)
_GPT4O_PRE = _Pre((_split(_GPT4O),), words=False)
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"

_PRE_TOKENIZERS: dict[str, _Pre] = {
    "default": _Pre(
        (_split(r"[\p{P}\$\+<=>\^~\|]+"), _split(_GPT2_WORDS), _split(r"\p{N}+"), _split("[0-9][0-9][0-9]")),
        words=False,
    ),
    "tekken": _Pre((_split(_TEKKEN),), words=False, whole_words=True, add_bos=True),
    # The published tokenizer of Qwen2 normalizes first; llama.cpp leaves that out.
    "qwen2": _QWEN2_PRE._replace(nfc=True),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS_PRE),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "mellum", "exaone4", "a.x-4.0"), _GPT2_PRE),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"), _LLAMA3_PRE),
    "lfm2": _LLAMA3_PRE,
    **dict.fromkeys(("dbrx", "smaug-bpe"), _LLAMA3_PRE._replace(whole_words=False, add_bos=False)),
    **dict.fromkeys(("stablelm2", "deepseek-r1-qwen", "kormo", "megrez", "hunyuan", "f2llmv2"), _QWEN2_PRE),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _GPT4O_PRE),
}


def convert(metadata: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """The text of `tokenizer.json` and the content of `tokenizer_config.json` for a GGUF file's metadata.

    Values are plain Python (str, int, float, bool, list); other keys than `tokenizer.*` are ignored.
    Raises `ModelLoadError` for a kind of tokenizer or pre-tokenizer that is not known, and for parts that are missing
    or contradict each other.
    """
    if "tokenizer.ggml.model" not in metadata:
        raise ModelLoadError("this GGUF file has no tokenizer")
    source = _Source(metadata)
    model = source.text("tokenizer.ggml.model")
    if model == "gpt2":
        document, add_bos = _byte_level(source)
    elif model == "llama":
        document, add_bos = _sentencepiece(source)
    else:
        raise ModelLoadError(f"this GGUF file has a tokenizer of kind {model!r}; known are 'gpt2' and 'llama'")
    add_bos = source.flag("tokenizer.ggml.add_bos_token", add_bos)
    config = _config(source, add_bos)
    bos = source.token_id("tokenizer.ggml.bos_token_id")
    if add_bos and bos is not None:
        document["post_processor"] = _post_processor(source.tokens[bos], bos)
    return json.dumps(document, ensure_ascii=False), config


class _Source:
    """Typed access to the metadata; every complaint names its key."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        # An empty text could not be told from nothing; llama.cpp names such tokens in the same way.
        self.tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(self.strings("tokenizer.ggml.tokens"))]
        if len(set(self.tokens)) != len(self.tokens):
            twice, _ = Counter(self.tokens).most_common(1)[0]
            raise ModelLoadError(f"tokenizer.ggml.tokens holds {twice!r} twice")
        self.types = [int(kind) for kind in self.numbers("tokenizer.ggml.token_type", _NORMAL)]

    def text(self, key: str, default: str | None = None) -> str:
        value = self._metadata.get(key, default)
        if not isinstance(value, str):
            raise ModelLoadError(f"{key} is missing or not a text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(key, default)
        if not isinstance(value, bool):
            raise ModelLoadError(f"{key} is not true or false")
        return value

    def strings(self, key: str) -> list[str]:
        value = self._metadata.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ModelLoadError(f"{key} is missing or not a list of texts")
        return value

    def numbers(self, key: str, default: float) -> Sequence[float]:
        """One number a token."""
        value = self._metadata.get(key)
        if value is None:
            return [default] * len(self.tokens)
        if not isinstance(value, list) or len(value) != len(self.tokens):
            raise ModelLoadError(f"{key} does not hold one number for each of the {len(self.tokens)} tokens")
        return value

    def has(self, key: str) -> bool:
        return key in self._metadata

    def token_id(self, key: str) -> int | None:
        value = self._metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise ModelLoadError(f"{key} is {value!r}, which is no token of this file")
        return value

    def merges(self, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        for line in self.strings("tokenizer.ggml.merges"):
            cut = line.find(" ", 1)
            left, right = line[:cut], line[cut + 1 :]
            if cut < 0 or left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
                raise ModelLoadError(f"tokenizer.ggml.merges holds {line!r}, whose parts are not in the vocabulary")
            pairs.append((left, right))
        return pairs

    def added_tokens(self, kinds: Sequence[int]) -> list[_Json]:
        """Tokens that are found in text before anything else; those that are not user-defined are special."""
        return [
            {
                "id": i,
                "content": self.tokens[i],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind != _USER_DEFINED,
            }
            for i, kind in enumerate(self.types)
            if kind in kinds
        ]


def _byte_level(source: _Source) -> tuple[_Json, bool]:
    name = source.text("tokenizer.ggml.pre", "default")  # llama.cpp's choice for files from before the key existed
    pre = _PRE_TOKENIZERS.get(name)
    if pre is None:
        raise ModelLoadError(f"this GGUF file has the pre-tokenizer {name!r}; known are {_listing(_PRE_TOKENIZERS)}")
    vocabulary = {token: i for i, token in enumerate(source.tokens)}
    to_bytes: _Json = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": pre.words}
    document = _document(
        added=source.added_tokens((_UNKNOWN, _CONTROL, _USER_DEFINED)),
        normalizer={"type": "NFC"} if pre.nfc else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": [*pre.before, to_bytes]},
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        model=_bpe(vocabulary, source.merges(vocabulary), ignore_merges=pre.whole_words),
    )
    return document, pre.add_bos


def _sentencepiece(source: _Source) -> tuple[_Json, bool]:
    """A SentencePiece model with byte fallback, as a BPE over characters.

    As in SentencePiece, every piece of text between special tokens gets the prefix space if there is one.
    """
    vocabulary = {token: i for i, token in enumerate(source.tokens)}
    if source.has("tokenizer.ggml.merges"):
        merges = source.merges(vocabulary)
    elif source.has("tokenizer.ggml.scores"):
        merges = _merges_from_scores(source)
    else:
        raise ModelLoadError("this GGUF file has neither tokenizer.ggml.merges nor tokenizer.ggml.scores")
    prefix = source.flag("tokenizer.ggml.add_space_prefix", True)
    unknown = source.token_id("tokenizer.ggml.unknown_token_id")
    if unknown is None and _UNKNOWN in source.types:
        unknown = source.types.index(_UNKNOWN)
    blanks: list[_Json] = [{"type": "Prepend", "prepend": "▁"}] if prefix else []
    blanks.append({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
    decoders: list[_Json] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    document = _document(
        added=source.added_tokens((_UNKNOWN, _CONTROL, _USER_DEFINED)),
        normalizer={"type": "Sequence", "normalizers": blanks},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
        model=_bpe(
            vocabulary,
            merges,
            unk_token=None if unknown is None else source.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        ),
    )
    return document, True


def _merges_from_scores(source: _Source) -> list[tuple[str, str]]:
    """Every way to put a normal piece together from two others, best score first.

    SentencePiece joins the two neighbours whose union has the best score, so the scores are the order of the merges.
    Control, byte and user-defined pieces never come from a merge.
    """
    scores = source.numbers("tokenizer.ggml.scores", 0.0)
    normal = {token: score for token, score, kind in zip(source.tokens, scores, source.types, strict=True) if kind == 1}
    found = [
        (-score, -cut, token)
        for token, score in normal.items()
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]
    found.sort(key=lambda entry: entry[:2])
    return [(token[:-cut], token[-cut:]) for _, cut, token in found]


def _bpe(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], **differences: object) -> _Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **differences,
        "vocab": vocabulary,
        "merges": merges,
    }


def _document(
    *, added: list[_Json], normalizer: _Json | None, pre_tokenizer: _Json | None, decoder: _Json, model: _Json
) -> _Json:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def _post_processor(bos: str, bos_id: int) -> _Json:
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [first, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }


def _config(source: _Source, add_bos: bool) -> dict[str, object]:
    config: dict[str, object] = {
        # The class that takes tokenizer.json as it is; named classes rebuild parts of it by their own rules.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": add_bos,
        "add_eos_token": source.flag("tokenizer.ggml.add_eos_token", False),
        "clean_up_tokenization_spaces": False,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = source.token_id(f"tokenizer.ggml.{key}_token_id")
        if token is not None:
            config[f"{name}_token"] = source.tokens[token]
    if source.has("tokenizer.chat_template"):
        config["chat_template"] = source.text("tokenizer.chat_template")
    return config


def _listing(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names))
