"""The pre-norm decoder that Llama, Mistral and Qwen share: what differs between them is in `Variant`.

Knows the op table and tensor names in the Hugging Face layout; nothing of requests or pages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...kernels.table import ExpertsSpec, LayerSpec, Masks, Ops, StackSpec
from .base import Batch, ModelShape
from .rope import Rope, make_rope, rope_settings
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
    experts: Callable[[int], ExpertsSpec | None] | None = None  # a layer's experts; None: it has one feed-forward


class Decoder:
    """A loaded model; see `base.Model`. The families differ in the stack that they describe, and in the head."""

    def __init__(self, shape: ModelShape, weights: Weights, stack: StackSpec, head: Any) -> None:
        self.shape = shape
        self.ops: Ops = weights.ops
        self.dtype: torch.dtype = weights.dtype
        self._stack = self.ops.stack(stack)
        self._head = head

    def forward(self, batch: Batch, kv: Any) -> Tensor:
        return self._stack(batch.tokens, batch.positions, batch.slots, batch.attention, kv)

    def logits(self, hidden: Tensor, masks: Masks | None = None) -> Tensor:
        if masks is None:
            return self.ops.head(hidden, self._head)
        return self.ops.masked_head(hidden, self._head, masks)

    def profile(self) -> dict[str, float]:
        return self._stack.profile()


def load_decoder(folder: ModelFolder, weights: Weights, variant: Variant) -> Decoder:
    """Take all weights of a model."""
    shape = model_shape(folder)
    rope = make_rope(folder, rope_settings(folder), shape.head_dim, shape.context_length)
    embedding = weights.table("model.embed_tokens.weight", shape.vocab_size, shape.hidden)
    norms = [weights.take(name, (shape.hidden,)) for name in _norm_names(shape.layers)]
    inner = integer(folder, "intermediate_size")
    stack = StackSpec(
        [_load_layer(weights, shape, inner, variant, i, norms[i + 1], rope) for i in range(shape.layers)],
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        "silu",
        embedding,
        1.0,
        norms[0],
        number(folder, "rms_norm_eps", 1e-6),
        shape.head_dim**-0.5,
    )
    head = load_head(folder, weights, shape, embedding, tied=False)
    weights.finish()
    return Decoder(shape, weights, stack, head)


def _norm_names(layers: int) -> list[str]:
    """The norms before each layer's attention, then the last one."""
    return [*(f"model.layers.{i}.input_layernorm.weight" for i in range(layers)), "model.norm.weight"]


def _load_layer(
    weights: Weights, shape: ModelShape, inner: int, variant: Variant, index: int, next_norm: Tensor, rope: Rope
) -> LayerSpec:
    at = f"model.layers.{index}."
    head_dim, hidden = shape.head_dim, shape.hidden
    experts = None if variant.experts is None else variant.experts(index)
    gate_up = down = None
    if experts is None:
        gate_up = weights.linear([f"{at}mlp.gate_proj", f"{at}mlp.up_proj"], [inner, inner], hidden, variant.mlp_bias)
        down = weights.linear([f"{at}mlp.down_proj"], [hidden], inner, variant.mlp_bias)
    return LayerSpec(
        qkv=load_qkv(weights, shape, at, variant.qkv_bias),
        q_norm=weights.take(f"{at}self_attn.q_norm.weight", (head_dim,)) if variant.head_norms else None,
        k_norm=weights.take(f"{at}self_attn.k_norm.weight", (head_dim,)) if variant.head_norms else None,
        out=weights.linear([f"{at}self_attn.o_proj"], [hidden], shape.heads * head_dim, variant.out_bias),
        out_norm=None,
        mlp_norm=weights.take(f"{at}post_attention_layernorm.weight", (hidden,)),
        gate_up=gate_up,
        down=down,
        down_norm=None,
        next_norm=next_norm,
        cos=rope.cos,
        sin=rope.sin,
        window=variant.windows[index] if variant.windows else None,
        experts=experts,
    )


def load_qkv(weights: Weights, shape: ModelShape, at: str, bias: bool) -> Any:
    """One weight that yields queries, keys and values side by side: H + 2·K heads."""
    names = [f"{at}self_attn.{part}_proj" for part in "qkv"]
    outs = [count * shape.head_dim for count in (shape.heads, shape.kv_heads, shape.kv_heads)]
    return weights.linear(names, outs, shape.hidden, bias)


def load_head(folder: ModelFolder, weights: Weights, shape: ModelShape, embedding: Any, tied: bool) -> Any:
    """The output head: the embedding itself where config.json ties them; `tied` is the family's default."""
    if flag(folder, "tie_word_embeddings", tied):
        if "lm_head.weight" in weights:  # some checkpoints store the same weight twice
            weights.skip("lm_head.weight")
        return weights.ops.as_head(embedding)
    return weights.ops.as_head(weights.table("lm_head.weight", shape.vocab_size, shape.hidden))
