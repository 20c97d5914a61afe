"""Qwen3, dense: each head's queries and keys are normalised before the rotation."""

from __future__ import annotations

from .decoder import Decoder, Variant, load_decoder
from .qwen2 import qwen_windows
from .settings import flag, refuse_unknown
from .source import ModelFolder
from .weights import Weights


def load(folder: ModelFolder, weights: Weights) -> Decoder:
    refuse_unknown(folder, activation="silu")
    bias = flag(folder, "attention_bias", False)
    return load_decoder(
        folder, weights, Variant(qkv_bias=bias, out_bias=bias, head_norms=True, windows=qwen_windows(folder))
    )
