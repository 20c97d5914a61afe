"""A GGUF file gives the model that it was made from: every architecture, every type of block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_gguf import BLOCKS, base_metadata, file_tensors, interleave, plain_llama, quantized, write_gguf
from tiny_models import VOCABULARY, PagedRun, Piece, expected_logits, make_config, make_model

from bosquet.errors import ModelLoadError
from bosquet.kernels.registry import load_ops
from bosquet.runtime.models.dequantize import dequantize
from bosquet.runtime.models.registry import load_model
from bosquet.runtime.models.source import resolve

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 200.0},
}
# name → (architecture, family, settings of the transformers model, metadata beside the usual)
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", "llama", {}, {}),
    "llama tied": ("llama", "llama", {"tie_word_embeddings": True}, {}),
    "llama linear": (
        "llama",
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    ),
    "llama biases": ("llama", "llama", {"attention_bias": True}, {}),
    "mistral": ("llama", "mistral", {"sliding_window": 9}, {"llama.attention.sliding_window": 9}),
    "qwen2": ("qwen2", "qwen2", {"tie_word_embeddings": True}, {}),
    "qwen3": ("qwen3", "qwen3", {"head_dim": 32}, {}),
    "gemma3": (
        "gemma3",
        "gemma3_text",
        {
            "sliding_window": 8,
            "query_pre_attn_scalar": 16,
            "rope_parameters": GEMMA_ROPE,
            "num_hidden_layers": 7,
            "final_logit_softcapping": 3.0,
        },
        {
            "gemma3.attention.sliding_window": 8,
            "gemma3.rope.scaling.type": "linear",
            "gemma3.rope.scaling.factor": 8.0,
            "gemma3.rope.freq_base_swa": 200.0,
            "gemma3.final_logit_softcapping": 3.0,
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    arch, family, settings, extra = CASES[name]
    reference = make_model(make_config(family, rms_norm_eps=1e-6, **settings))
    config = reference.config.to_dict()
    state = {key: value.numpy() for key, value in reference.state_dict().items()}
    if config["tie_word_embeddings"]:
        del state["lm_head.weight"]
    tensors = file_tensors(state, arch, config["num_attention_heads"], config["num_key_value_heads"])
    path = write_gguf(tmp_path / "tiny.gguf", arch, {**base_metadata(arch, config), **extra}, tensors)
    folder = resolve(str(path), cache_dir=tmp_path / "cache", dtype="float32")
    assert folder.config["model_type"] == family
    ids = torch.randint(VOCABULARY, (40,), generator=torch.Generator().manual_seed(3)).tolist()
    got = PagedRun(load_model(folder, torch.float32, load_ops("reference")), 1, 40).run([Piece(0, ids)])[0]
    torch.testing.assert_close(got, expected_logits(reference, ids), atol=1e-4, rtol=1e-4)


def llama3_divisors(head_dim: int, theta: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """As llama.cpp's converter writes them: one number a frequency."""
    found = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * theta ** (i / head_dim)
        if wavelength < 8192 / 4:
            found.append(1.0)
        elif wavelength > 8192:
            found.append(32.0)
        else:
            smooth = (8192 / wavelength - 1) / 3
            found.append(1 / ((1 - smooth) / 32 + smooth))
    return np.array(found, np.float32)


def test_llama3_rope_is_recognised_from_its_divisors(tmp_path: Path) -> None:
    reference = make_model(make_config("llama", rope_parameters=LLAMA3, head_dim=32, rms_norm_eps=1e-6))
    config = reference.config.to_dict()
    state = {key: value.numpy() for key, value in reference.state_dict().items()}
    tensors = file_tensors(state, "llama", 4, 2)
    divisors = llama3_divisors(32, 10000.0)
    assert len({*divisors.tolist()}) > 3  # some kept, some blended, some divided
    metadata = base_metadata("llama", config)
    path = write_gguf(tmp_path / "a.gguf", "llama", metadata, {"rope_freqs.weight": divisors, **tensors})
    folder = resolve(str(path), cache_dir=tmp_path / "cache", dtype="float32")
    assert folder.config["rope_scaling"] == {k: v for k, v in LLAMA3.items() if k != "rope_theta"}
    ids = torch.randint(VOCABULARY, (200,), generator=torch.Generator().manual_seed(3)).tolist()
    got = PagedRun(load_model(folder, torch.float32, load_ops("reference")), 1, 200).run([Piece(0, ids)])[0]
    torch.testing.assert_close(got, expected_logits(reference, ids), atol=1e-4, rtol=1e-4)

    divisors[5] *= 1.01
    path = write_gguf(tmp_path / "b.gguf", "llama", metadata, {"rope_freqs.weight": divisors, **tensors})
    with pytest.raises(ModelLoadError, match="is not Llama 3's table"):
        resolve(str(path), cache_dir=tmp_path / "cache", dtype="float32")


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_mean_what_the_gguf_package_says(kind: str) -> None:
    value = np.random.default_rng(5).normal(size=(6, 512)).astype(np.float32)
    raw = quantized(value, kind, seed=11)
    want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    got = dequantize(raw, kind)
    assert got.shape == value.shape
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    if not kind.endswith("_K"):  # those are made of random blocks
        assert np.abs(got - value).mean() < 0.15


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_file_of_each_type_becomes_the_same_weights(kind: str, tmp_path: Path) -> None:
    config, state = plain_llama()
    tensors = file_tensors(state, "llama", 4, 2)
    path = write_gguf(tmp_path / f"tiny.{kind}.gguf", "llama", base_metadata("llama", config), tensors, kind)
    folder = resolve(str(path), cache_dir=tmp_path / "cache", dtype="float32")
    assert folder.name == "tiny"
    made = load_file(folder.weights[0])
    assert made.keys() == state.keys()
    for seed, (name, value) in enumerate(state.items()):
        heads = 4 if "q_proj" in name else 2 if "k_proj" in name else 0
        want = value
        if value.ndim == 2:
            stored = interleave(value, heads) if heads else value
            want = gguf.quants.dequantize(quantized(stored, kind, seed), gguf.GGMLQuantizationType[kind])
        got = made[name].numpy()
        np.testing.assert_allclose(interleave(got, heads) if heads else got, want, rtol=1e-6, atol=1e-7)


def test_bfloat16_folder_is_the_rounded_float32_folder(tmp_path: Path) -> None:
    config, state = plain_llama()
    tensors = file_tensors(state, "llama", 4, 2)
    path = write_gguf(tmp_path / "tiny.gguf", "llama", base_metadata("llama", config), tensors)
    folders = [resolve(str(path), cache_dir=tmp_path / "cache", dtype=dtype) for dtype in ("float32", "bfloat16")]
    exact, rounded = (load_file(folder.weights[0]) for folder in folders)
    assert folders[1].config["torch_dtype"] == "bfloat16"
    for name, tensor in exact.items():
        assert torch.equal(tensor.to(torch.bfloat16), rounded[name])


def test_every_end_token_of_the_file_ends_a_generation(tmp_path: Path) -> None:
    config, state = plain_llama()
    tensors = file_tensors(state, "llama", 4, 2)
    metadata = {**base_metadata("llama", config), "tokenizer.ggml.eot_token_id": 3, "tokenizer.ggml.eom_token_id": 0}
    path = write_gguf(tmp_path / "tiny.gguf", "llama", metadata, tensors)
    folder = resolve(str(path), cache_dir=tmp_path / "cache", dtype="float32")
    assert load_model(folder, torch.float32, load_ops("reference")).shape.end_ids == (0, 2, 3)
    assert json.loads((folder.path / "generation_config.json").read_text())["eos_token_id"] == [0, 2, 3]
