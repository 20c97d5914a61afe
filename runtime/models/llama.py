"""Llama 1 to 3 and what shares their layout, such as SmolLM2."""

from __future__ import annotations

from .decoder import Decoder, Variant, load_decoder
from .settings import flag, refuse_unknown
from .source import ModelFolder
from .weights import Weights


def load(folder: ModelFolder, weights: Weights) -> Decoder:
    refuse_unknown(folder, activation="silu")
    bias = flag(folder, "attention_bias", False)
    return load_decoder(
        folder, weights, Variant(qkv_bias=bias, out_bias=bias, mlp_bias=flag(folder, "mlp_bias", False))
    )
