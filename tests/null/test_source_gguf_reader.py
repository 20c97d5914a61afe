"""The reader of GGUF headers agrees with the public one, and meets damage with one clear line."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import write_plain_llama

from bosquet.errors import ModelLoadError
from bosquet.runtime.models.gguf import GgufFile, GgufTensor, read_gguf
from bosquet.runtime.models.gguf_config import hf_config, hf_names
from bosquet.runtime.models.source import resolve

SMALL = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 8}


def load_error(path: Path) -> str | None:
    """What is said of the file, None if it is read without complaint. Other exceptions pass through."""
    try:
        file = read_gguf(path)
        hf_names(file, hf_config(file)["num_hidden_layers"])
    except ModelLoadError as error:
        return str(error)
    return None


def test_metadata_and_tensors_are_those_of_the_public_reader(tmp_path: Path) -> None:
    extra = {"a.flag": True, "a.real": 0.25, "a.text": "naïve", "a.ints": [1, -2, 3], "a.reals": [0.5, 1.5]}
    path = write_plain_llama(tmp_path / "tiny.gguf", "Q8_0", extra)
    mine, theirs = read_gguf(path), gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert mine.metadata == fields
    assert {t.name for t in theirs.tensors} == mine.tensors.keys()
    for tensor in theirs.tensors:
        entry = mine.tensors[tensor.name]
        assert entry.shape == tuple(tensor.shape.tolist()[::-1])
        assert entry.kind == tensor.tensor_type.name
        np.testing.assert_array_equal(mine.rows(entry).ravel(), np.asarray(tensor.data).view(np.uint8).ravel())


def test_config_has_the_numbers_that_were_meant(tmp_path: Path) -> None:
    """Metadata has float32 numbers: 1e-5 comes back as 0.00000999999974."""
    path = write_plain_llama(tmp_path / "t.gguf", extra={"llama.attention.layer_norm_rms_epsilon": 1e-5})
    config = hf_config(read_gguf(path))
    assert config["rms_norm_eps"] == 1e-5
    assert (config["hidden_size"], config["head_dim"], config["vocab_size"]) == (256, 64, 32)
    assert config["tie_word_embeddings"] is True


def gemma3_config(layers: int, extra: dict[str, Any]) -> dict[str, Any]:
    """From metadata alone: a model of real size has too many tensors to be written here."""
    metadata = {
        "general.architecture": "gemma3", "gemma3.block_count": layers, "gemma3.embedding_length": 5376,
        "gemma3.feed_forward_length": 64, "gemma3.context_length": 128, "gemma3.attention.head_count": 32,
        "gemma3.attention.head_count_kv": 16, "gemma3.attention.key_length": 128,
        "gemma3.attention.value_length": 128, "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
        "gemma3.attention.sliding_window": 1024, **extra,
    }  # fmt: skip
    tensors = {f"t{i}": GgufTensor(f"t{i}", (1,), "F32", 0, 4) for i in range(layers)}
    tensors["token_embd.weight"] = GgufTensor("token_embd.weight", (8, 5376), "F32", 0, 0)
    return hf_config(GgufFile(Path("gemma.gguf"), metadata, tensors))


def test_gemma3_query_scale_is_the_heads_but_in_the_largest() -> None:
    """The published 27B has 62 layers and scales queries by width over heads; the metadata does not say so."""
    assert gemma3_config(48, {})["query_pre_attn_scalar"] == 128
    assert gemma3_config(62, {})["query_pre_attn_scalar"] == 5376 / 32


def test_gemma3_layers_with_a_window() -> None:
    key = "gemma3.attention.sliding_window_pattern"
    full = "full_attention"
    assert [i for i, kind in enumerate(gemma3_config(14, {})["layer_types"]) if kind == full] == [5, 11]
    assert [i for i, kind in enumerate(gemma3_config(4, {key: 2})["layer_types"]) if kind == full] == [1, 3]
    flags = [False, True, True, False]
    assert [i for i, kind in enumerate(gemma3_config(4, {key: flags})["layer_types"]) if kind == full] == [0, 3]


@cache
def small_file() -> bytes:
    with TemporaryDirectory() as folder:
        return write_plain_llama(Path(folder) / "t.gguf", **SMALL).read_bytes()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_gives_a_load_error_and_nothing_else(data: st.DataObject) -> None:
    """Any few bytes of the header overwritten, or the file cut anywhere."""
    whole = small_file()
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, 3000))
        junk = data.draw(st.binary(min_size=1, max_size=8))
        changed[at : at + len(junk)] = junk
    cut = data.draw(st.integers(0, len(whole)))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.gguf"
        path.write_bytes(changed[:cut])
        error = load_error(path)
        if error is None:
            assert cut == len(whole)  # a shorter file lacks a part of a tensor
        else:
            assert str(path) in error
            assert "\n" not in error


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "not a GGUF file"),
        (b"PK\x03\x04 an archive", "not a GGUF file"),
        (b"GGUF", "truncated or damaged"),
        (b"GGUF" + struct.pack("<I", 9) + bytes(16), "GGUF version 9 is not supported"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "little-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60), "truncated or damaged"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62), "truncated or damaged"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 9, 1) + struct.pack("<IQ", 9, 1) * 900, "nested"),
    ],
)
def test_headers_that_are_none(content: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=expected):
        resolve(str(path), cache_dir=tmp_path / "cache")


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"general.architecture": "mamba"}, "unknown architecture 'mamba'; known in GGUF: llama, qwen2, qwen3, gemma3"),
        ({"llama.expert_count": 8}, "'llama.expert_count' is 8"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn' is not supported"),
        ({"llama.rope.dimension_count": 32}, "64 with 32 rotary dimensions"),
        ({"llama.embedding_length": "wide"}, "'llama.embedding_length' is 'wide'"),
        ({"llama.block_count": 2}, "tensor 'blk.1.attn_norm.weight' is missing"),
        ({"split.count": 3}, "split GGUF"),
        ({"llama.attention.head_count": 3}, "expected 3 heads of 64"),
        ({"tokenizer.ggml.model": "unheard"}, "unheard"),
    ],
)
def test_files_that_cannot_be_understood(extra: dict[str, object], expected: str, tmp_path: Path) -> None:
    path = write_plain_llama(tmp_path / "t.gguf", extra={k: v for k, v in extra.items() if "general" not in k})
    if "general.architecture" in extra:
        # Same length, so that nothing else moves.
        path.write_bytes(path.read_bytes().replace(b"llama", b"mamba", 1))
    with pytest.raises(ModelLoadError) as error:
        resolve(str(path), cache_dir=tmp_path / "cache")
    assert expected in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache" / "converted").glob("t-*/model.safetensors"))


def test_a_type_of_block_that_is_not_supported_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    raw = np.zeros((4, 84), np.uint8)
    writer.add_tensor("token_embd.weight", raw, raw_dtype=gguf.GGMLQuantizationType.Q2_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"'token_embd.weight' has the type Q2_K.*expected F32, F16, Q4_0"):
        resolve(str(tmp_path / "t.gguf"), cache_dir=tmp_path / "cache")


def test_a_file_that_is_cut_short_says_where(tmp_path: Path) -> None:
    path = write_plain_llama(tmp_path / "t.gguf")
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelLoadError, match=r"truncated GGUF file: tensor 'blk.0.\w+.weight' ends at byte [\d,]+"):
        resolve(str(path), cache_dir=tmp_path / "cache")
