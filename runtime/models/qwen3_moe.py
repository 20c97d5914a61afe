"""Qwen3 with experts: in most layers a router and many small feed-forward layers stand in place of one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import ModelLoadError
from ...kernels.table import ExpertsSpec
from .decoder import Decoder, Variant, load_decoder
from .settings import flag, integer, layer_windows, refuse_unknown
from .source import ModelFolder
from .weights import Weights

_COUNT_KEYS = ("num_experts", "num_local_experts")  # as published, and as transformers 5 writes it


class _Experts(NamedTuple):
    """What config.json says of the experts."""

    number: int
    hidden: int
    inner: int
    top_k: int
    normalize: bool


def load(folder: ModelFolder, weights: Weights) -> Decoder:
    refuse_unknown(folder, activation="silu", honoured=_COUNT_KEYS)
    bias = flag(folder, "attention_bias", False)
    layers = integer(folder, "num_hidden_layers")
    windows = layer_windows(folder, layers, [True] * layers) if flag(folder, "use_sliding_window", False) else None
    sizes, sparse = _experts(folder), _sparse_layers(folder, layers)

    def experts(index: int) -> ExpertsSpec | None:
        return _load_experts(weights, f"model.layers.{index}.mlp.", sizes) if index in sparse else None

    return load_decoder(folder, weights, Variant(bias, bias, head_norms=True, windows=windows, experts=experts))


def _experts(folder: ModelFolder) -> _Experts:
    count = integer(folder, next((key for key in _COUNT_KEYS if key in folder.config), _COUNT_KEYS[0]), most=512)
    return _Experts(
        count,
        integer(folder, "hidden_size"),
        integer(folder, "moe_intermediate_size"),
        integer(folder, "num_experts_per_tok", most=count),
        flag(folder, "norm_topk_prob", False),
    )


def _sparse_layers(folder: ModelFolder, layers: int) -> set[int]:
    """Every `decoder_sparse_step`-th layer has experts, but those that `mlp_only_layers` names."""
    step, dense = integer(folder, "decoder_sparse_step", 1), folder.config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(index) is int for index in dense):
        raise ModelLoadError(
            f"{folder.path / 'config.json'}: 'mlp_only_layers' is {dense!r}; expected numbers of layers"
        )
    return set(range(step - 1, layers, step)) - set(dense)


def _load_experts(weights: Weights, at: str, sizes: _Experts) -> ExpertsSpec:
    ops = weights.ops
    router = ops.pack_router(weights.matrix(f"{at}gate.weight", (sizes.number, sizes.hidden)))
    gate_up, down = _fused(weights, at, sizes) if f"{at}experts.gate_up_proj" in weights else _apart(weights, at, sizes)
    return ExpertsSpec(router, ops.pack_experts(gate_up, down), sizes.top_k, sizes.normalize)


def _fused(weights: Weights, at: str, sizes: _Experts) -> tuple[list[Tensor], list[Tensor]]:
    """All experts of a layer in one tensor, as transformers 5 holds them."""
    count, hidden, inner, *_ = sizes
    gate_up = weights.matrix(f"{at}experts.gate_up_proj", (count, 2 * inner, hidden))
    down = weights.matrix(f"{at}experts.down_proj", (count, hidden, inner))
    return list(gate_up.unbind()), list(down.unbind())


def _apart(weights: Weights, at: str, sizes: _Experts) -> tuple[list[Tensor], list[Tensor]]:
    """Three tensors for each expert, as checkpoints have them."""
    count, hidden, inner, *_ = sizes
    gate_up, down = [], []
    for number in range(count):
        own = f"{at}experts.{number}."
        gate = weights.matrix(f"{own}gate_proj.weight", (inner, hidden))
        gate_up.append(torch.cat([gate, weights.matrix(f"{own}up_proj.weight", (inner, hidden))]))
        down.append(weights.matrix(f"{own}down_proj.weight", (hidden, inner)))
    return gate_up, down
