"""Mistral: Llama's layout, with one sliding window for all layers in its first version."""

from __future__ import annotations

from .decoder import Decoder, Variant, load_decoder
from .settings import integer, layer_windows, refuse_unknown
from .source import ModelFolder
from .weights import Weights


def load(folder: ModelFolder, weights: Weights) -> Decoder:
    refuse_unknown(folder, activation="silu")
    layers = integer(folder, "num_hidden_layers")
    slides = folder.config.get("sliding_window") is not None
    return load_decoder(folder, weights, Variant(windows=layer_windows(folder, layers, [slides] * layers)))
