"""Encoding text of several hands, against an encoding put together by hand from a tokenizer without special tokens."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_samples import CHATML_SPECIALS, chatml_folder, chatml_tokenizer, write_folder
from tokenizers import Tokenizer as Library

from bosquet.errors import InvalidParameter, ModelLoadError
from bosquet.runtime.tokenizer import Tokenizer
from bosquet.types import Segment

_FRAGMENTS = [*CHATML_SPECIALS, "<|im_", "end|>", "<|", "|>", "<", ">", "im_end", "the fox", " ", "\n", "é", "🙂", "12"]
_TEXTS = st.lists(st.sampled_from(_FRAGMENTS), max_size=5).map("".join)
_SEGMENTS = st.lists(st.builds(Segment, _TEXTS, st.booleans()), max_size=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chatml_folder(tmp_path_factory.mktemp("chatml"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def bare(folder: Path) -> Library:
    """The same vocabulary, no special token known."""
    document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    document["added_tokens"] = []
    return Library.from_str(json.dumps(document))


@pytest.fixture(scope="module")
def library(folder: Path) -> Library:
    return Library.from_file(str(folder / "tokenizer.json"))


def _by_hand(bare: Library, segments: list[Segment]) -> list[int]:
    """Walk over the characters; a special string counts if every character of it comes from the template."""
    text = "".join(segment.text for segment in segments)
    control = [segment.control for segment in segments for _ in segment.text]
    ids: list[int] = []
    start = place = 0
    while place < len(text):
        special = next((s for s in CHATML_SPECIALS if text.startswith(s, place)), None)
        if special is None or not all(control[place : place + len(special)]):
            place += 1
            continue
        ids += bare.encode(text[start:place]).ids
        ids.append(CHATML_SPECIALS.index(special))
        start = place = place + len(special)
    return ids + bare.encode(text[start:]).ids


@settings(deadline=None)
@given(segments=_SEGMENTS)
def test_segments_are_encoded_as_by_hand(tokenizer: Tokenizer, bare: Library, segments: list[Segment]) -> None:
    assert tokenizer.encode_segments(segments) == _by_hand(bare, segments)


@settings(deadline=None)
@given(text=_TEXTS)
def test_a_text_of_the_template_alone_is_encoded_as_the_library_does(
    tokenizer: Tokenizer, library: Library, text: str
) -> None:
    expected = library.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text, specials=True) == expected
    assert tokenizer.encode_segments([Segment(text, True)]) == expected


@settings(deadline=None)
@given(text=st.text(max_size=60) | _TEXTS)
def test_plain_text_comes_back_and_holds_no_special_token(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, specials=False)
    assert tokenizer.special_ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes[i] for i in ids) == text.encode()


def test_long_texts_take_another_way_to_the_same_ids(tokenizer: Tokenizer, library: Library) -> None:
    text = "<|im_start|>user\nThe quick brown fox 🙂 " * 300
    assert tokenizer.encode(text, specials=True) == library.encode(text, add_special_tokens=False).ids


def test_the_secret_names_of_special_tokens_are_not_known_outside(tokenizer: Tokenizer) -> None:
    assert tokenizer.size == max(tokenizer.special_ids | {len(tokenizer.token_bytes) - 1}) + 1
    assert not any(b"<" in piece and b"-" in piece for piece in tokenizer.token_bytes)


def test_bos_is_put_first_once(tokenizer: Tokenizer) -> None:
    bos = tokenizer.bos_id
    assert bos == tokenizer.id_of_special("<|im_start|>") == 1
    assert tokenizer.encode_segments([Segment("fox", False)], bos=True)[0] == bos
    assert tokenizer.encode_segments([], bos=True) == [bos]
    twice = tokenizer.encode_segments([Segment("<|im_start|>fox", True)], bos=True)
    assert twice.count(1) == 1


def test_what_is_known_of_the_vocabulary(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.token_bytes[2] == b"<|im_end|>"
    assert tokenizer.id_of_special("fox") is None
    assert not tokenizer.add_bos
    assert tokenizer.bytes_of(tokenizer.size + 5) == b""
    assert tokenizer.decode([2, *tokenizer.encode("fox", specials=False), tokenizer.size + 5]) == "fox"
    assert tokenizer.decode([2], skip_special=False) == "<|im_end|>"
    half = tokenizer.token_bytes.index("é".encode()[:1])
    assert tokenizer.token_text(half) == "�"


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff"])
def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidParameter, match="valid Unicode"):
        tokenizer.encode(text, specials=False)


def test_added_tokens_are_control_strings_if_the_template_writes_them(tmp_path: Path) -> None:
    """`<think>` is in the template, `<b>` is text like any other; both stay in decoded text."""
    template = "{{ '<think>' }}{{ messages }}"
    tokenizer = Tokenizer.from_folder(chatml_folder(tmp_path, template=template, added=["<think>", "<b>", "<|tool|>"]))
    think, bold, tool = (tokenizer.id_of_special(text) for text in ("<think>", "<b>", "<|tool|>"))
    assert tokenizer.encode("<think><b><|tool|>", specials=True) == [think, bold, tool]
    plain = tokenizer.encode_segments([Segment("<think><b><|tool|>", False)])
    assert bold in plain
    assert think not in plain
    assert tool not in plain
    assert think not in tokenizer.special_ids
    assert tokenizer.decode([think, bold]) == "<think><b>"


def test_blanks_beside_a_token_that_swallows_them(tmp_path: Path) -> None:
    """Flags of special tokens (lstrip, rstrip) work as in the library."""
    folder = chatml_folder(tmp_path)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    for entry in document["added_tokens"]:
        entry["rstrip"] = True
    path.write_text(json.dumps(document), encoding="utf-8")
    text = "<|im_start|> \n fox <|im_end|> "
    expected = Library.from_file(str(path)).encode(text, add_special_tokens=False).ids
    assert Tokenizer.from_folder(folder).encode(text, specials=True) == expected
    assert len(expected) < len(chatml_tokenizer(tmp_path).encode("<|im_start|> \n fox <|im_end|> .", specials=False))


def test_tokens_that_only_the_configuration_names(tmp_path: Path) -> None:
    folder = chatml_folder(tmp_path)
    size = Tokenizer.from_folder(folder).size
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["added_tokens_decoder"] = {
        "2": {"content": "<|im_end|>", "special": True},
        str(size): {"content": "<|call|>", "special": True},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("<|call|>", specials=True) == [size]
    assert size in tokenizer.special_ids


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", "{", "cannot be read"),
        ("tokenizer.json", '{"added_tokens": [], "model": {"type": "none"}}', "cannot be read"),
        ("tokenizer.json", '{"model": {}, "added_tokens": []}', "after the model"),
        ("tokenizer_config.json", "[1]", "not hold an object"),
        ("tokenizer_config.json", "{", "not JSON"),
        ("tokenizer_config.json", '{"chat_template": [1]}', "named templates"),
        (
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"7000": {"content": "<x>"}}}',
            "the id 7000",
        ),
    ],
)
def test_folders_that_cannot_be_read(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    folder = chatml_folder(tmp_path)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(ModelLoadError, match=said):
        Tokenizer.from_folder(folder)


def test_a_tokenizer_whose_bytes_are_unknown_is_refused(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    document = {"version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"}, "model": model}
    with pytest.raises(ModelLoadError, match="known are byte-level"):
        Tokenizer.from_folder(write_folder(tmp_path, json.dumps(document), {}))


def test_the_text_side_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from bosquet.runtime import tokenizer, templates, text_stream, stop_strings; "
        "print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    assert ran.stdout.strip() == "set()"
