"""A decoder run operation by operation, on any back end. Knows no model family: a `StackSpec` says what there is.

This loop runs for every token that is generated, so it holds nothing but calls of ops.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .table import Ops, StackSpec


class OpStack:
    """See `table.Stack`."""

    def __init__(self, ops: Ops, spec: StackSpec) -> None:
        self._ops = ops
        self._spec = spec
        self._activate = ops.silu_mul if spec.activation == "silu" else ops.gelu_mul

    def __call__(self, tokens: Tensor, positions: Tensor, slots: Tensor, plan: Any, kv: Any) -> Tensor:
        ops, spec, activate = self._ops, self._spec, self._activate
        eps, scale = spec.eps, spec.scale
        heads = (spec.heads, spec.kv_heads, spec.kv_heads)
        shaped = (len(tokens), sum(heads), spec.head_dim)
        residual = ops.embedding(tokens, spec.embedding)
        if spec.embed_scale != 1.0:
            residual = residual * spec.embed_scale
        x = ops.rms_norm(residual, spec.first_norm, eps)
        turns: dict[int, tuple[Tensor, Tensor]] = {}  # layers share their tables
        for index, layer in enumerate(spec.layers):
            turn = turns.get(id(layer.cos))
            if turn is None:
                turn = turns[id(layer.cos)] = layer.cos[positions], layer.sin[positions]
            q, k, v = ops.linear(x, layer.qkv).view(shaped).split_with_sizes(heads, 1)
            if layer.q_norm is not None and layer.k_norm is not None:
                q, k = ops.rms_norm(q, layer.q_norm, eps), ops.rms_norm(k, layer.k_norm, eps)
            q, k = ops.rotary(q, k, *turn)
            ops.write_kv(kv, index, k, v, slots)
            x = ops.linear(ops.attention(q, kv, index, plan, scale, layer.window), layer.out)
            if layer.out_norm is not None:
                x = ops.rms_norm(x, layer.out_norm, eps)
            x, residual = ops.add_rms_norm(x, residual, layer.mlp_norm, eps)
            if (experts := layer.experts) is not None:
                x = ops.experts(x, ops.linear(x, experts.router), experts.weights, experts.top_k, experts.normalize)
            else:
                x = ops.linear(activate(ops.linear(x, layer.gate_up)), layer.down)
            if layer.down_norm is not None:
                x = ops.rms_norm(x, layer.down_norm, eps)
            x, residual = ops.add_rms_norm(x, residual, layer.next_norm, eps)
        return x

    def profile(self) -> dict[str, float]:
        return {}
