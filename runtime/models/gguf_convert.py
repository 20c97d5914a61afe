"""Turns a GGUF file into a folder in the Hugging Face layout: small files first, then the weights.

Knows nothing of the cache that the folder lies in. One chunk of one tensor is in memory at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
    tensors = [
        TensorOut(name, place.tensor.shape, partial(values_of, file, place))
        for name, place in placed(file, hf_config(file)).items()
    ]
    write_safetensors(path, tensors, _KINDS[dtype], progress)


class Placed(NamedTuple):
    """How a tensor of the file becomes one of the Hugging Face layout: its rows in `order` (None: as they are), and
    `less` taken from each value."""

    tensor: GgufTensor
    order: npt.NDArray[np.int64] | None
    less: float


def placed(file: GgufFile, config: dict[str, Any]) -> dict[str, Placed]:
    """Every tensor by its name in the Hugging Face layout; `config` is `hf_config(file)`."""
    architecture = ARCHITECTURES[file.metadata["general.architecture"]]
    found = {}
    for name, tensor in hf_names(file, config["num_hidden_layers"]).items():
        heads = 0
        if architecture.permuted and ".q_proj." in name:
            heads = config["num_attention_heads"]
        elif architecture.permuted and ".k_proj." in name:
            heads = config["num_key_value_heads"]
        order = _rotary_order(file, tensor, heads, config["head_dim"]) if heads else None
        less = 1.0 if architecture.norm_plus_one and "norm." in name else 0.0
        found[name] = Placed(tensor, order, less)
    return found


def _rotary_order(file: GgufFile, tensor: GgufTensor, heads: int, head_dim: int) -> npt.NDArray[np.int64]:
    """Where each row of q or k lies in the file.

    llama.cpp rotates neighbours, (0, 1), (2, 3), …; the Hugging Face layout rotates halves, (0, d/2), (1, d/2 + 1), ….
    """
    if tensor.shape[0] != heads * head_dim:
        raise ModelLoadError(
            f"{file.path}: tensor '{tensor.name}' has {tensor.shape[0]} rows; expected {heads} heads of {head_dim}"
        )
    return np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).ravel()


def values_of(file: GgufFile, place: Placed) -> Iterator[npt.NDArray[np.float32]]:
    """The tensor's values in order, dequantized, some rows at a time."""
    rows, shape = file.rows(place.tensor), place.tensor.shape
    width = shape[-1] if len(shape) > 1 else 1
    step = max(1, _CHUNK_VALUES // width)
    for start in range(0, len(rows), step):
        part = rows[start : start + step] if place.order is None else rows[place.order[start : start + step]]
        values = dequantize(part, place.tensor.kind)
        yield values - np.float32(place.less) if place.less else values


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
