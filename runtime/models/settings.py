"""Checked reads from config.json. Knows no family: each says what it expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ModelLoadError
from .base import ModelShape
from .source import ModelFolder, end_ids

# Settings that change what a decoder computes, with the value that changes nothing. A family that honours one checks it
# itself; any other value than these is refused.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention_multiplier": (None, 1.0),
    "attn_logit_softcapping": (None,),
    "attn_temperature_tuning": (None, False),
    "clip_qkv": (None,),
    "embedding_multiplier": (None, 1.0),
    "final_logit_softcapping": (None,),
    "llama_4_scaling": (None,),
    "logit_scale": (None, 1.0),
    "logits_scaling": (None, 1.0),
    "no_rope_layers": (None, []),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0, 1),
    "partial_rotary_factor": (None, 1.0),
    "quantization_config": (None,),
    "residual_multiplier": (None, 1.0),
    "rope_interleaved": (None, False),
    "use_bidirectional_attention": (None, False),
}


def integer(folder: ModelFolder, key: str, default: int | None = None, least: int = 1, most: int = 1 << 24) -> int:
    """An integer of config.json within limits, which keep a damaged file from asking for all memory."""
    value = folder.config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _wrong(folder, key, value, f"an integer from {least} to {most}")
    return value


def number(folder: ModelFolder, key: str, default: float | None = None) -> float:
    """A number of config.json."""
    value = folder.config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(folder, key, value, "a number")
    return float(value)


def flag(folder: ModelFolder, key: str, default: bool) -> bool:
    value = folder.config.get(key)
    if value is None:
        value = default
    if not isinstance(value, bool):
        raise _wrong(folder, key, value, "true or false")
    return value


def refuse_unknown(folder: ModelFolder, activation: str, honoured: tuple[str, ...] = ()) -> None:
    """Raise `ModelLoadError` for a setting that would change results and that the family does not honour."""
    for key, neutral in _NEUTRAL.items():
        value = folder.config.get(key)
        if key not in honoured and value not in neutral:
            raise ModelLoadError(f"{folder.path / 'config.json'}: '{key}' is {_short(value)}, which is not supported")
    keys = ("hidden_activation", "hidden_act")
    found = next((folder.config[key] for key in keys if folder.config.get(key)), activation)
    if found != activation:
        raise _wrong(folder, "hidden_act", found, repr(activation))


def model_shape(folder: ModelFolder, head_dim: int | None = None) -> ModelShape:
    """The sizes, under the names that all families share. `head_dim` is the default; None: width by heads."""
    hidden, heads = integer(folder, "hidden_size"), integer(folder, "num_attention_heads")
    kv_heads = integer(folder, "num_key_value_heads", heads)
    head_dim = integer(folder, "head_dim", head_dim or hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise ModelLoadError(
            f"{folder.path / 'config.json'}: {heads} heads over {kv_heads} key-value heads of {head_dim} do not fit"
        )
    return ModelShape(
        layers=integer(folder, "num_hidden_layers", most=4096),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=integer(folder, "vocab_size"),
        context_length=integer(folder, "max_position_embeddings", most=1 << 22),
        end_ids=end_ids(folder),
    )


def layer_windows(folder: ModelFolder, layers: int, default: list[bool]) -> list[int | None]:
    """Each layer's sliding window, None for full attention; `default` says which slide if `layer_types` does not."""
    kinds = folder.config.get("layer_types")
    if kinds is None:
        sliding = default
    else:
        known = {"full_attention": False, "sliding_attention": True}
        if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
            raise _wrong(folder, "layer_types", kinds, f"{layers} of {', '.join(known)}")
        sliding = [known[kind] for kind in kinds]
    return [integer(folder, "sliding_window") if slides else None for slides in sliding]


def with_config(folder: ModelFolder, config: Mapping[str, Any]) -> ModelFolder:
    """The same folder with another view of its configuration."""
    return ModelFolder(folder.path, folder.name, dict(config), folder.generation_config, folder.weights)


def _wrong(folder: ModelFolder, key: str, value: Any, expected: str) -> ModelLoadError:
    return ModelLoadError(f"{folder.path / 'config.json'}: '{key}' is {_short(value)}; expected {expected}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
