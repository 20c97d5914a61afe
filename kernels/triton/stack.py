"""A decoder on a GPU, kernel by kernel. Knows no model family: a `StackSpec` says what there is.

What `kernels.stack` does in single operations is fused here where that saves a reading of the activations: the norms of
queries and keys, their rotation and the write to the cache are one kernel, and so are norm or gate and the quantization
that an eight-bit layer wants of its input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from ..table import LayerSpec, Ops, StackSpec
from . import activation, norm
from .plan import AttentionPlan
from .rotary import rotary_write


class _Small(NamedTuple):
    """What the inputs of a layer's matrices are quantized into: "fp8", or None for not at all."""

    qkv: Any
    gate_up: Any
    down: Any


def _small(layer: LayerSpec) -> _Small:
    weights = (layer.qkv, layer.gate_up, layer.down)
    return _Small(*("fp8" if getattr(weight, "kind", "") == "fp8" else None for weight in weights))


class TritonStack:
    """See `table.Stack`. `ops` are Triton's; `place` brings a tensor to the device."""

    def __init__(self, ops: Ops, spec: StackSpec, place: Callable[[Tensor], Tensor]) -> None:
        placed: dict[int, Tensor] = {}  # layers share their tables

        def once(part: Any) -> Any:
            if not isinstance(part, Tensor):
                return part
            if id(part) not in placed:
                placed[id(part)] = place(part)
            return placed[id(part)]

        layers = [LayerSpec(*map(once, layer)) for layer in spec.layers]
        self._ops = ops
        self._spec = spec._replace(layers=layers, first_norm=once(spec.first_norm))
        self._small = [_small(layer) for layer in layers]
        self._gate = activation.silu_mul if spec.activation == "silu" else activation.gelu_mul

    def __call__(self, tokens: Tensor, positions: Tensor, slots: Tensor, plan: AttentionPlan, kv: Any) -> Tensor:
        ops, spec = self._ops, self._spec
        heads = (spec.heads, spec.kv_heads, spec.kv_heads)
        shaped = (len(tokens), sum(heads), spec.head_dim)
        eps = spec.eps
        residual = ops.embedding(tokens, spec.embedding)
        if spec.embed_scale != 1.0:
            residual = residual * spec.embed_scale
        x: Any = norm.rms_norm(residual, spec.first_norm, eps, self._small[0].qkv)
        for index, layer in enumerate(spec.layers):
            small = self._small[index]
            q, k, v = ops.linear(x, layer.qkv).view(shaped).split_with_sizes(heads, 1)
            q = rotary_write(
                q, k, v, layer.cos, layer.sin, positions, slots, kv, index, layer.q_norm, layer.k_norm, eps
            )  # fmt: skip
            x = ops.linear(ops.attention(q, kv, index, plan, spec.scale, layer.window), layer.out)
            if layer.out_norm is not None:
                x = norm.rms_norm(x, layer.out_norm, eps)
            x, residual = norm.add_rms_norm(x, residual, layer.mlp_norm, eps, small.gate_up)
            if (experts := layer.experts) is not None:
                x = ops.experts(x, ops.linear(x, experts.router), experts.weights, experts.top_k, experts.normalize)
            else:
                gated: Any = self._gate(ops.linear(x, layer.gate_up), small.down)
                x = ops.linear(gated, layer.down)
            if layer.down_norm is not None:
                x = norm.rms_norm(x, layer.down_norm, eps)
            following = self._small[index + 1].qkv if index + 1 < len(self._small) else None
            x, residual = norm.add_rms_norm(x, residual, layer.next_norm, eps, following)
        hidden: Tensor = x
        return hidden

    def profile(self) -> dict[str, float]:
        return {}
