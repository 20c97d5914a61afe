"""Small GGUF files, written with the public `gguf` package. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

BLOCKS = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22),
    "Q5_1": (32, 24), "Q8_0": (32, 34), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
}  # fmt: skip
_HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}  # where a block has its half-precision scales

_NAMES = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm", "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name: str, arch: str) -> str:
    """model.layers.3.self_attn.q_proj.weight → blk.3.attn_q.weight."""
    parts = name.split(".")
    names = {**_NAMES, **_GEMMA_NAMES} if arch == "gemma3" else _NAMES
    stem = f"{names[parts[-2]]}.{parts[-1]}"
    return f"blk.{parts[2]}.{stem}" if "layers" in parts else stem


def interleave(weight: Array, heads: int) -> Array:
    """Reorder the rows of q or k as llama.cpp stores them: row 2·i + s of a head is row i + s·d/2 of the original."""
    half = len(weight) // heads // 2
    rows = [head * 2 * half + i + s * half for head in range(heads) for i in range(half) for s in range(2)]
    return weight[rows]


def file_tensors(state: Mapping[str, Array], arch: str, heads: int, kv_heads: int) -> dict[str, Array]:
    """Tensors in the Hugging Face layout → those of the file, in float32."""
    found = {}
    for name, value in state.items():
        if arch == "llama" and ".q_proj." in name:
            value = interleave(value, heads)
        elif arch == "llama" and ".k_proj." in name:
            value = interleave(value, kv_heads)
        elif arch == "gemma3" and "norm." in name:
            value = value + 1
        found[gguf_name(name, arch)] = np.asarray(value, np.float32)
    return found


def quantized(value: Array, kind: str, seed: int) -> npt.NDArray[np.uint8]:
    """Raw rows of the type. K-quants, which the package cannot make, are random blocks of sane scale."""
    if kind in _HALVES:
        block, size = BLOCKS[kind]
        raw = np.random.default_rng(seed).integers(0, 256, (value.size // block, size), np.uint8)
        for k, at in enumerate(_HALVES[kind]):
            scale = np.random.default_rng([seed, k]).uniform(1e-4, 2e-3, len(raw)).astype(np.float16)
            raw[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
        return raw.reshape(*value.shape[:-1], -1)
    made = gguf.quants.quantize(value, gguf.GGMLQuantizationType[kind])
    return made.view(np.uint8).reshape(*value.shape[:-1], -1)


_TOKENS = ["<0>", "<1>", "<2>", "<3>", "t", "1", "t1"]  # the last is what the one merge makes


def base_metadata(arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": config["num_attention_heads"],
        f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
        f"{arch}.attention.key_length": config["head_dim"],
        f"{arch}.attention.value_length": config["head_dim"],
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{arch}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [
            "<0>",
            "<1>",
            "<2>",
            "<3>",
            "t",
            "1",
            "t1",
            *(f"w{i}" for i in range(7, config["vocab_size"])),
        ],
        "tokenizer.ggml.token_type": [3] * 4 + [1] * (config["vocab_size"] - 4),
        "tokenizer.ggml.merges": ["t 1"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def write_gguf(
    path: Path,
    arch: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Array],
    kind: str = "F32",
    others: Mapping[str, str] | None = None,
) -> Path:
    """Matrices are stored as `kind`, or as what `others` says for their name; vectors as F32. `metadata` overrides
    nothing: it is all there is."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for seed, (name, value) in enumerate(tensors.items()):
        own = "F32" if value.ndim == 1 else (others or {}).get(name, kind)
        if own == "F32":
            writer.add_tensor(name, value)
        else:
            writer.add_tensor(name, quantized(value, own, seed), raw_dtype=gguf.GGMLQuantizationType[own])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def plain_llama(seed: int = 0, **changes: int) -> tuple[dict[str, Any], dict[str, Array]]:
    """A config and random tensors of a small Llama in the Hugging Face layout, without torch."""
    config = {
        "vocab_size": 32, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 64, **changes,
    }  # fmt: skip
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q, k = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes |= {
            at + "input_layernorm.weight": (hidden,), at + "post_attention_layernorm.weight": (hidden,),
            at + "self_attn.q_proj.weight": (q, hidden), at + "self_attn.k_proj.weight": (k, hidden),
            at + "self_attn.v_proj.weight": (k, hidden), at + "self_attn.o_proj.weight": (hidden, q),
            at + "mlp.gate_proj.weight": (inner, hidden), at + "mlp.up_proj.weight": (inner, hidden),
            at + "mlp.down_proj.weight": (hidden, inner),
        }  # fmt: skip
    random = np.random.default_rng(seed)
    return config, {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_plain_llama(path: Path, kind: str = "F32", extra: Mapping[str, Any] | None = None, **changes: int) -> Path:
    config, state = plain_llama(**changes)
    tensors = file_tensors(state, "llama", config["num_attention_heads"], config["num_key_value_heads"])
    return write_gguf(path, "llama", {**base_metadata("llama", config), **(extra or {})}, tensors, kind)
