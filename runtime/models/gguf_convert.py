"""Turns a GGUF file into a folder in the Hugging Face layout: small files first, then the weights.

Knows nothing of the cache that the folder lies in. One chunk of one tensor is in memory at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ModelLoadError
from .dequantize import dequantize
from .gguf import GgufFile, GgufTensor
from .gguf_config import ARCHITECTURES, end_ids, hf_config, hf_names
from .gguf_tokenizer import convert
from .safetensors_file import TensorOut, write_safetensors

WEIGHTS = "model.safetensors"
_KINDS = {"float32": "F32", "bfloat16": "BF16"}
_CHUNK_VALUES = 1 << 22


def write_small_files(file: GgufFile, folder: Path, dtype: str) -> None:
    """config.json, generation_config.json, tokenizer.json and tokenizer_config.json."""
    config = hf_config(file)
    hf_names(file, config["num_hidden_layers"])  # a file that lacks tensors is refused before anything is written
    ends = end_ids(file)
    tokens: dict[str, Any] = {}
    if file.metadata.get("tokenizer.ggml.bos_token_id") is not None:
        tokens["bos_token_id"] = file.metadata["tokenizer.ggml.bos_token_id"]
    if ends:
        tokens["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    try:
        tokenizer, tokenizer_config = convert(file.metadata)
    except ModelLoadError as error:  # the converter does not know the file's name
        raise ModelLoadError(f"{file.path}: {error}") from None
    _write_json(folder / "config.json", {**config, **tokens, "torch_dtype": dtype})
    _write_json(folder / "generation_config.json", tokens)
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")


def write_weights(file: GgufFile, path: Path, dtype: str, progress: Callable[[int, int], None]) -> None:
    """All tensors, dequantized, to one safetensors file. `progress` gets bytes written and in all."""
    config = hf_config(file)
    tensors = [
        _tensor_out(file, config, name, tensor) for name, tensor in hf_names(file, config["num_hidden_layers"]).items()
    ]
    write_safetensors(path, tensors, _KINDS[dtype], progress)


def _tensor_out(file: GgufFile, config: dict[str, Any], name: str, tensor: GgufTensor) -> TensorOut:
    architecture = ARCHITECTURES[file.metadata["general.architecture"]]
    heads = 0
    if architecture.permuted and ".q_proj." in name:
        heads = config["num_attention_heads"]
    elif architecture.permuted and ".k_proj." in name:
        heads = config["num_key_value_heads"]
    less = 1.0 if architecture.norm_plus_one and "norm." in name else 0.0
    order = _rotary_order(file, tensor, heads, config["head_dim"]) if heads else None
    return TensorOut(name, tensor.shape, lambda: _chunks(file, tensor, order, less))


def _rotary_order(file: GgufFile, tensor: GgufTensor, heads: int, head_dim: int) -> npt.NDArray[np.int64]:
    """Where each row of q or k lies in the file.

    llama.cpp rotates neighbours, (0, 1), (2, 3), …; the Hugging Face layout rotates halves, (0, d/2), (1, d/2 + 1), ….
    """
    if tensor.shape[0] != heads * head_dim:
        raise ModelLoadError(
            f"{file.path}: tensor '{tensor.name}' has {tensor.shape[0]} rows; expected {heads} heads of {head_dim}"
        )
    return np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).ravel()


def _chunks(
    file: GgufFile, tensor: GgufTensor, order: npt.NDArray[np.int64] | None, less: float
) -> Iterator[npt.NDArray[np.float32]]:
    rows = file.rows(tensor)
    width = tensor.shape[-1] if len(tensor.shape) > 1 else 1
    step = max(1, _CHUNK_VALUES // width)
    for start in range(0, len(rows), step):
        part = rows[start : start + step] if order is None else rows[order[start : start + step]]
        values = dequantize(part, tensor.kind)
        yield values - np.float32(less) if less else values


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
