"""Prompts and conversions against transformers: the same folder, read by its own classes."""

import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest
from template_samples import ADDED, CONTROLS, TEMPLATES
from tokenizer_samples import CORPUS, byte_level, gpt2_metadata, sentencepiece_metadata, write_folder
from tokenizers import AddedToken
from transformers import LlamaTokenizer, PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

from bosquet.runtime.models.gguf_tokenizer import convert
from bosquet.runtime.templates import ChatTemplate
from bosquet.runtime.tokenizer import Tokenizer

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello, fox!"}],
    [
        {"role": "system", "content": " Be brief. \n"},
        {"role": "user", "content": "  Why?\n\n  <b>äöü</b> 你好 🙂 12345 "},
    ],
    [
        {"role": "system", "content": "You are a fox."},
        {"role": "user", "content": "def f(x):\n    return x ** 2\n"},
        {"role": "assistant", "content": "It squares."},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nWhat? "},
        {"role": "user", "content": "> quoted < and | piped |> text"},
    ],
]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks up the wéather & <more> in 'a' city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]

CALL = {"name": "look_up", "arguments": {"city": "Köln", "n": [1, None]}}
CALLS = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALL}]},
    {"role": "tool", "content": "rain <b>heavy</b>"},
]


def model_folder(folder: Path, name: str) -> Path:
    library = byte_level(specials=CONTROLS[name])
    library.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED.get(name, ())])
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": CONTROLS[name][0],
        "eos_token": CONTROLS[name][1],
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATES[name],
    }
    return write_folder(folder, library.to_str(), config)


@pytest.fixture(scope="module", params=sorted(TEMPLATES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(folder)


def expected(oracle: PreTrainedTokenizerFast, messages: list[dict[str, Any]], **how: Any) -> tuple[str, list[int]]:
    text = oracle.apply_chat_template(messages, tokenize=False, **how)
    return text, oracle.apply_chat_template(messages, tokenize=True, return_dict=False, **how)


def ours(folder: Path, messages: list[dict[str, Any]], **how: Any) -> tuple[str, list[int]]:
    segments = ChatTemplate.from_folder(folder).render(messages, **how)
    text = "".join(segment.text for segment in segments)
    return text, Tokenizer.from_folder(folder).encode_segments(segments)


@pytest.mark.parametrize("prompt", [True, False])
def test_conversations_have_the_same_text_and_ids(folder: Path, oracle: PreTrainedTokenizerFast, prompt: bool) -> None:
    for messages in CONVERSATIONS:
        assert ours(folder, messages, add_generation_prompt=prompt) == expected(
            oracle, messages, add_generation_prompt=prompt
        )


@pytest.mark.parametrize("content", ["The answer is", "The answer is \n", "x", "1.\n2."])
def test_continued_messages_have_the_same_text_and_ids(
    folder: Path, oracle: PreTrainedTokenizerFast, content: str
) -> None:
    messages = [*CONVERSATIONS[0], {"role": "assistant", "content": content}]
    assert ours(folder, messages, continue_final_message=True) == expected(
        oracle, messages, continue_final_message=True, add_generation_prompt=False
    )


def test_tools_and_calls_have_the_same_text_and_ids(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "qwen3")
    oracle = PreTrainedTokenizerFast.from_pretrained(folder)
    given = expected(oracle, CALLS, tools=TOOLS, add_generation_prompt=True, enable_thinking=False)
    assert ours(folder, CALLS, tools=TOOLS, extra={"enable_thinking": False}) == given
    as_sent = json.loads(json.dumps(CALLS))
    function = as_sent[1]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(function["arguments"])  # as the protocol has it
    assert ours(folder, as_sent, tools=TOOLS, extra={"enable_thinking": False}) == given
    llama = model_folder(tmp_path, "llama3")
    oracle = PreTrainedTokenizerFast.from_pretrained(llama)
    assert ours(llama, CALLS, tools=TOOLS) == expected(oracle, CALLS, tools=TOOLS, add_generation_prompt=True)


def texts(count: int) -> list[str]:
    """Random stretches of the corpus, and random characters."""
    draw = random.Random(7)
    whole = " ".join(CORPUS)
    found = ["", " ", "   two", "\n"]
    for _ in range(count):
        start = draw.randrange(len(whole))
        found.append(whole[start : start + draw.randrange(40)])
        found.append("".join(draw.choice("ab \n▁é你🙂'<s>x9") for _ in range(draw.randrange(20))))
    return found


def _as_transformers(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata under the names that transformers' conversion uses."""
    names = {"model": "tokenizer_type", "pre": "pre_tokenizer_type", "unknown_token_id": "unk_token_id"}
    short = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    return {names.get(key, key): value for key, value in short.items()}


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o"])
def test_byte_level_files_convert_as_in_transformers(tmp_path: Path, name: str) -> None:
    metadata = gpt2_metadata(name)
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, *convert(metadata)))
    oracle, _ = convert_gguf_tokenizer("llama", _as_transformers(metadata))
    for text in [*texts(200), "<|im_start|>fox<|im_end|>"]:
        assert tokenizer.encode(text, specials=True) == oracle.encode(text, add_special_tokens=False).ids


def test_sentencepiece_files_convert_as_in_transformers(tmp_path: Path) -> None:
    """Its conversion for Phi-3 puts a space before every stretch of text, as SentencePiece and llama.cpp do; the one
    for Llama puts it only at the start, and only if there is none, so it is compared where that is no difference."""
    metadata = sentencepiece_metadata()
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, *convert(metadata)))
    phi3, _ = convert_gguf_tokenizer("phi3", _as_transformers(metadata))
    llama, _ = convert_gguf_tokenizer("llama", _as_transformers(metadata))
    for text in [*texts(300), "<s>[INST] fox [/INST]</s>fox"]:
        ids = tokenizer.encode(text, specials=True)
        assert ids == phi3.encode(text, add_special_tokens=False).ids
        if not text.startswith((" ", "▁", "<s>")) and "<s>" not in text:
            assert ids == llama.encode(text, add_special_tokens=False).ids


def test_a_converted_folder_is_read_by_transformers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As `bosquet export` writes it."""
    folder = write_folder(tmp_path, *convert(sentencepiece_metadata()))
    caplog.set_level(logging.WARNING)
    oracle = PreTrainedTokenizerFast.from_pretrained(folder)
    assert oracle.encode("the fox") == [1, *Tokenizer.from_folder(folder).encode("the fox", specials=False)]
    assert oracle.bos_token == "<s>"
    assert oracle.decode(oracle.encode("the fox"), skip_special_tokens=True) == "the fox"
    assert not isinstance(oracle, LlamaTokenizer)
