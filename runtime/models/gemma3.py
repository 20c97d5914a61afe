"""Gemma 3, the text model; of a checkpoint with vision, the language part.

Layers alternate: most see a sliding window and rotate with a base frequency of their own, every sixth sees everything.
Each block is normalised before and after, and norm weights are stored less 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...kernels.table import LayerSpec, Masks, StackSpec
from .base import ModelShape
from .decoder import Decoder, load_head, load_qkv
from .rope import Rope, make_rope, rope_settings
from .settings import integer, layer_windows, model_shape, number, refuse_unknown, with_config
from .source import ModelFolder
from .weights import Weights

# What config.json may leave out, as in the checkpoints with vision.
_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
# Where checkpoints with vision keep the language part, older and newer layout → its own names.
_TEXT_PREFIXES = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
_ACTIVATION = "gelu_pytorch_tanh"
_VISION = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


class Gemma3(Decoder):
    """A decoder whose logits are bent towards zero, where the configuration says so."""

    def __init__(self, shape: ModelShape, weights: Weights, stack: StackSpec, head: Any, softcap: float | None) -> None:
        super().__init__(shape, weights, stack, head)
        self._softcap = softcap

    def logits(self, hidden: Tensor, masks: Masks | None = None) -> Tensor:
        logits = super().logits(hidden, masks)
        if self._softcap is None:
            return logits
        bent = torch.tanh(logits / self._softcap) * self._softcap
        return bent if masks is None else bent.masked_fill_(logits.isneginf(), -torch.inf)


def load(folder: ModelFolder, weights: Weights) -> Gemma3:
    config = folder.config
    if isinstance(config.get("text_config"), dict):
        # The outer object has what holds for the whole checkpoint, such as the end tokens.
        config = {**config, **config["text_config"]}
        for start, plain in _TEXT_PREFIXES.items():
            weights.rename_start(start, plain)
    folder = with_config(folder, {**_DEFAULTS, **config})
    refuse_unknown(folder, activation=_ACTIVATION, honoured=("final_logit_softcapping",))
    return _load(folder, weights)


def _load(folder: ModelFolder, weights: Weights) -> Gemma3:
    shape = model_shape(folder)
    # The factor is rounded to the model's type, as it was in training.
    embed_scale = torch.tensor(shape.hidden**0.5).to(weights.dtype).item()
    ropes = _ropes(folder, shape)
    softcap = folder.config.get("final_logit_softcapping")
    embedding = weights.table("model.embed_tokens.weight", shape.vocab_size, shape.hidden)
    norms = [_norm(weights, f"model.layers.{i}.input_layernorm", shape.hidden) for i in range(shape.layers)]
    norms.append(_norm(weights, "model.norm", shape.hidden))
    inner = integer(folder, "intermediate_size")
    pattern = integer(folder, "sliding_window_pattern")
    windows = layer_windows(folder, shape.layers, [(i + 1) % pattern != 0 for i in range(shape.layers)])
    stack = StackSpec(
        [_load_layer(weights, shape, inner, i, norms[i + 1], windows[i], ropes) for i in range(shape.layers)],
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        "gelu_tanh",
        embedding,
        embed_scale,
        norms[0],
        number(folder, "rms_norm_eps", 1e-6),
        number(folder, "query_pre_attn_scalar") ** -0.5,
    )
    head = load_head(folder, weights, shape, embedding, tied=True)
    weights.finish(_VISION)
    return Gemma3(shape, weights, stack, head, None if softcap is None else float(softcap))


def _ropes(folder: ModelFolder, shape: ModelShape) -> tuple[Rope, Rope]:
    """Tables of the layers that see everything, and of those with a window."""
    far = rope_settings(folder, "full_attention")
    if "rope_parameters" in folder.config:
        near = rope_settings(folder, "sliding_attention")
    else:
        near = {"rope_type": "default", "rope_theta": number(folder, "rope_local_base_freq")}
    head_dim, positions = shape.head_dim, shape.context_length
    return make_rope(folder, far, head_dim, positions), make_rope(folder, near, head_dim, positions)


def _norm(weights: Weights, name: str, width: int) -> Tensor:
    """1 + weight, in float32: in bfloat16 the sum would lose most of the weight's digits."""
    return weights.take(f"{name}.weight", (width,), torch.float32) + 1.0


def _load_layer(
    weights: Weights,
    shape: ModelShape,
    inner: int,
    index: int,
    next_norm: Tensor,
    window: int | None,
    ropes: tuple[Rope, Rope],
) -> LayerSpec:
    at = f"model.layers.{index}."
    head_dim, hidden = shape.head_dim, shape.hidden
    rope = ropes[0] if window is None else ropes[1]
    return LayerSpec(
        qkv=load_qkv(weights, shape, at, bias=False),
        q_norm=_norm(weights, f"{at}self_attn.q_norm", head_dim),
        k_norm=_norm(weights, f"{at}self_attn.k_norm", head_dim),
        out=weights.linear([f"{at}self_attn.o_proj"], [hidden], shape.heads * head_dim),
        out_norm=_norm(weights, f"{at}post_attention_layernorm", hidden),
        mlp_norm=_norm(weights, f"{at}pre_feedforward_layernorm", hidden),
        gate_up=weights.linear([f"{at}mlp.gate_proj", f"{at}mlp.up_proj"], [inner, inner], hidden),
        down=weights.linear([f"{at}mlp.down_proj"], [hidden], inner),
        down_norm=_norm(weights, f"{at}post_feedforward_layernorm", hidden),
        next_norm=next_norm,
        cos=rope.cos,
        sin=rope.sin,
        window=window,
    )
