"""The pre-norm decoder that Llama, Mistral and Qwen share: what differs between them is in `Variant`.

Knows the op table and tensor names in the Hugging Face layout; nothing of requests or pages. The loop in `forward` runs
for every token that is generated, so it holds nothing but calls of ops.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...kernels.table import Ops
from .base import Batch, ModelShape
from .rope import make_rope, rope_settings
from .settings import flag, integer, model_shape, number
from .source import ModelFolder
from .weights import Weights


class Variant(NamedTuple):
    """How a family differs from plain Llama."""

    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False  # queries and keys are normalised a head before the rotation
    windows: list[int | None] | None = None  # a sliding window for each layer; None: full attention everywhere


class Layer(NamedTuple):
    """The weights of one layer. `next_norm` is the norm before the following layer, or the last norm."""

    qkv: Any
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Any
    mlp_norm: Tensor
    gate_up: Any
    down: Any
    next_norm: Tensor
    window: int | None


class Decoder:
    """A loaded model; see `base.Model`."""

    def __init__(self, folder: ModelFolder, weights: Weights, variant: Variant) -> None:
        self.shape: ModelShape = model_shape(folder)
        self.ops: Ops = weights.ops
        self.dtype: torch.dtype = weights.dtype
        shape = self.shape
        self._eps = number(folder, "rms_norm_eps", 1e-6)
        self._scale = shape.head_dim**-0.5
        self._rope = make_rope(folder, rope_settings(folder), shape.head_dim, shape.context_length)
        self._embedding = weights.take("model.embed_tokens.weight", (shape.vocab_size, shape.hidden))
        norms = [weights.take(name, (shape.hidden,)) for name in _norm_names(shape.layers)]
        self._first_norm = norms[0]
        inner = integer(folder, "intermediate_size")
        self._layers = [_load_layer(weights, shape, inner, variant, i, norms[i + 1]) for i in range(shape.layers)]
        self._head = load_head(folder, weights, shape, self._embedding, tied=False)
        weights.finish()

    def forward(self, batch: Batch, kv: Any) -> Tensor:
        ops, eps, scale, attention = self.ops, self._eps, self._scale, batch.attention
        slots = batch.slots
        cos, sin = self._rope.cos[batch.positions], self._rope.sin[batch.positions]
        heads = (self.shape.heads, self.shape.kv_heads, self.shape.kv_heads)
        shaped = (len(batch.tokens), sum(heads), self.shape.head_dim)
        residual = ops.embedding(batch.tokens, self._embedding)
        x = ops.rms_norm(residual, self._first_norm, eps)
        for index, layer in enumerate(self._layers):
            q, k, v = ops.linear(x, layer.qkv).view(shaped).split_with_sizes(heads, 1)
            if layer.q_norm is not None and layer.k_norm is not None:
                q, k = ops.rms_norm(q, layer.q_norm, eps), ops.rms_norm(k, layer.k_norm, eps)
            q, k = ops.rotary(q, k, cos, sin)
            ops.write_kv(kv, index, k, v, slots)
            x = ops.linear(ops.attention(q, kv, index, attention, scale, layer.window), layer.out)
            x, residual = ops.add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = ops.linear(ops.silu_mul(ops.linear(x, layer.gate_up)), layer.down)
            x, residual = ops.add_rms_norm(x, residual, layer.next_norm, eps)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return self.ops.head(hidden, self._head)


def _norm_names(layers: int) -> list[str]:
    """The norms before each layer's attention, then the last one."""
    return [*(f"model.layers.{i}.input_layernorm.weight" for i in range(layers)), "model.norm.weight"]


def _load_layer(
    weights: Weights, shape: ModelShape, inner: int, variant: Variant, index: int, next_norm: Tensor
) -> Layer:
    at = f"model.layers.{index}."
    head_dim, hidden = shape.head_dim, shape.hidden
    return Layer(
        qkv=load_qkv(weights, shape, at, variant.qkv_bias),
        q_norm=weights.take(f"{at}self_attn.q_norm.weight", (head_dim,)) if variant.head_norms else None,
        k_norm=weights.take(f"{at}self_attn.k_norm.weight", (head_dim,)) if variant.head_norms else None,
        out=weights.linear([f"{at}self_attn.o_proj"], [hidden], shape.heads * head_dim, variant.out_bias),
        mlp_norm=weights.take(f"{at}post_attention_layernorm.weight", (hidden,)),
        gate_up=weights.linear([f"{at}mlp.gate_proj", f"{at}mlp.up_proj"], [inner, inner], hidden, variant.mlp_bias),
        down=weights.linear([f"{at}mlp.down_proj"], [hidden], inner, variant.mlp_bias),
        next_norm=next_norm,
        window=variant.windows[index] if variant.windows else None,
    )


def load_qkv(weights: Weights, shape: ModelShape, at: str, bias: bool) -> Any:
    """One weight that yields queries, keys and values side by side: H + 2·K heads."""
    names = [f"{at}self_attn.{part}_proj" for part in "qkv"]
    outs = [count * shape.head_dim for count in (shape.heads, shape.kv_heads, shape.kv_heads)]
    return weights.linear(names, outs, shape.hidden, bias)


def load_head(folder: ModelFolder, weights: Weights, shape: ModelShape, embedding: Tensor, tied: bool) -> Any:
    """The output head: the embedding itself where config.json ties them; `tied` is the family's default."""
    if flag(folder, "tie_word_embeddings", tied):
        if "lm_head.weight" in weights:  # some checkpoints store the same weight twice
            weights.take("lm_head.weight", (shape.vocab_size, shape.hidden))
        return weights.ops.pack_linear(embedding)
    return weights.linear(["lm_head"], [shape.vocab_size], shape.hidden)
