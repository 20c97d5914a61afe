"""Qwen2 and Qwen2.5: biases on queries, keys and values; optionally a sliding window in the upper layers."""

from __future__ import annotations

from .decoder import Decoder, Variant, load_decoder
from .settings import flag, integer, layer_windows, refuse_unknown
from .source import ModelFolder
from .weights import Weights


def load(folder: ModelFolder, weights: Weights) -> Decoder:
    refuse_unknown(folder, activation="silu")
    return load_decoder(folder, weights, Variant(qkv_bias=True, windows=qwen_windows(folder)))


def qwen_windows(folder: ModelFolder) -> list[int | None] | None:
    """The window is off unless `use_sliding_window` says so, whatever `sliding_window` holds."""
    if not flag(folder, "use_sliding_window", False):
        return None
    layers = integer(folder, "num_hidden_layers")
    full = integer(folder, "max_window_layers", 28, least=0)
    return layer_windows(folder, layers, [layer >= full for layer in range(layers)])
