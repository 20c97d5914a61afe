"""What a GGUF file's metadata and tensor names mean in the Hugging Face layout.

Knows the architectures llama (also Mistral), qwen2, qwen3 and gemma3; nothing of quantization or of writing files.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from ...errors import ModelLoadError
from .dequantize import dequantize
from .gguf import GgufFile, GgufTensor

ROPE_FACTORS = "rope_freqs.weight"
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_TRAINED = 1.0, 4.0, 8192
_GEMMA3_27B_LAYERS = 62  # the one size whose query scale is not that of its head

_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_LLAMA = {**_ATTENTION, **_MLP, "ffn_norm": "post_attention_layernorm"}
_GEMMA3 = {
    **_ATTENTION,
    **_MLP,
    **_HEAD_NORMS,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class Architecture(NamedTuple):
    """How one GGUF architecture maps to the Hugging Face layout."""

    model_type: str
    class_name: str
    layer: dict[str, str]  # name in GGUF → name in a layer; each has a weight
    biases: tuple[str, ...] = ()  # those that must have a bias too
    optional_biases: tuple[str, ...] = ()
    permuted: bool = False  # rows of q and k are interleaved for llama.cpp's rotary layout
    norm_plus_one: bool = False  # the file's norm weights have 1 added


ARCHITECTURES = {
    "llama": Architecture(
        "llama",
        "LlamaForCausalLM",
        _LLAMA,
        optional_biases=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
        permuted=True,
    ),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", _LLAMA, biases=("attn_q", "attn_k", "attn_v")),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", {**_LLAMA, **_HEAD_NORMS}),
    "gemma3": Architecture("gemma3_text", "Gemma3ForCausalLM", _GEMMA3, norm_plus_one=True),
}


class Metadata:
    """Typed reads from the metadata, with the architecture's prefix."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.name = file.metadata.get("general.architecture")
        if not isinstance(self.name, str) or self.name not in ARCHITECTURES:
            raise ModelLoadError(
                f"{file.path}: unknown architecture {self.name!r}; known in GGUF: {', '.join(ARCHITECTURES)}"
            )
        self.architecture = ARCHITECTURES[self.name]

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self.name}.{key}", default)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if isinstance(value, list) and value and value.count(value[0]) == len(value):  # one entry a layer
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise ModelLoadError(
                f"{self.file.path}: metadata '{self.name}.{key}' is {value!r}; expected a positive integer"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ModelLoadError(f"{self.file.path}: metadata '{self.name}.{key}' is {value!r}; expected a number")
        # Metadata numbers are float32; the shortest decimal that reads back the same is the one that was meant.
        return float(str(np.float32(value))) if isinstance(value, float) else float(value)


def hf_config(file: GgufFile) -> dict[str, Any]:
    """config.json for this file, without the dtype. Raises `ModelLoadError` for what would change results unseen."""
    meta = Metadata(file)
    _refuse_unknown_features(meta)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError(f"{file.path}: tensor 'token_embd.weight' is missing")
    hidden, heads = meta.integer("embedding_length"), meta.integer("attention.head_count")
    head_dim = meta.integer("attention.key_length", hidden // heads)
    rotary = meta.integer("rope.dimension_count", head_dim)
    if rotary != head_dim or meta.integer("attention.value_length", head_dim) != head_dim:
        raise ModelLoadError(
            f"{file.path}: heads of {head_dim} with {rotary} rotary dimensions and values of "
            f"{meta.get('attention.value_length', head_dim)} are not supported; expected all equal"
        )
    layers = meta.integer("block_count")
    if layers > len(file.tensors):
        raise ModelLoadError(f"{file.path}: {layers} layers, but only {len(file.tensors)} tensors")
    theta = meta.number("rope.freq_base", 10000.0)
    config: dict[str, Any] = {
        "architectures": [meta.architecture.class_name],
        "model_type": meta.architecture.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": meta.integer("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": meta.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": meta.integer("context_length"),
        "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(meta, theta, head_dim),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    _family_settings(meta, config)
    return config


def _refuse_unknown_features(meta: Metadata) -> None:
    neutral = {
        "expert_count": 0, "rope.scaling.attn_factor": 1.0, "attention.scale": 0.0, "logit_scale": 1.0,
        "residual_scale": 1.0, "embedding_scale": 1.0, "attn_logit_softcapping": 0.0,
    }  # fmt: skip
    for key, value in neutral.items():
        found = meta.get(key, value)
        if found != value:
            raise ModelLoadError(f"{meta.file.path}: metadata '{meta.name}.{key}' is {found!r}, which is not supported")
    if meta.file.metadata.get("split.count", 1) not in (0, 1):
        raise ModelLoadError(f"{meta.file.path}: one part of a split GGUF; merge the parts into one file first")


def _family_settings(meta: Metadata, config: dict[str, Any]) -> None:
    tensors = meta.file.tensors
    if meta.name == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
        if meta.get("attention.sliding_window"):
            config |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
            config["sliding_window"] = meta.integer("attention.sliding_window")
    elif meta.name == "qwen2":
        config["use_sliding_window"] = False
    elif meta.name == "qwen3":
        config |= {"use_sliding_window": False, "attention_bias": False}
    elif meta.name == "gemma3":
        scale = config["head_dim"]
        if config["num_hidden_layers"] == _GEMMA3_27B_LAYERS:
            scale = config["hidden_size"] // config["num_attention_heads"]
        del config["hidden_act"]
        config |= {
            "hidden_activation": "gelu_pytorch_tanh",
            "attention_bias": False,
            "query_pre_attn_scalar": scale,
            "rope_local_base_freq": meta.number("rope.freq_base_swa", 10000.0),
            "sliding_window": meta.integer("attention.sliding_window"),
            "final_logit_softcapping": meta.number("final_logit_softcapping", 0.0) or None,
            "attn_logit_softcapping": None,
        }
        slides = _sliding_layers(meta, config["num_hidden_layers"])
        config["layer_types"] = ["sliding_attention" if sliding else "full_attention" for sliding in slides]


def _sliding_layers(meta: Metadata, layers: int) -> list[bool]:
    """Which layers have a window: the metadata has a flag for each, or the distance of those that have none."""
    flags = meta.get("attention.sliding_window_pattern")
    if isinstance(flags, list) and len(flags) == layers:
        return [bool(flag) for flag in flags]
    pattern = meta.integer("attention.sliding_window_pattern", 6)
    return [(layer + 1) % pattern != 0 for layer in range(layers)]


def _rope_scaling(meta: Metadata, theta: float, head_dim: int) -> dict[str, Any] | None:
    kind = meta.get("rope.scaling.type", "none")
    if ROPE_FACTORS in meta.file.tensors:
        return _llama3_scaling(meta, theta, head_dim)
    if kind == "none":
        # Files older than the scaling keys have only the linear factor.
        factor = meta.number("rope.scale_linear", 1.0)
        return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    if kind == "linear":
        return {"rope_type": "linear", "factor": meta.number("rope.scaling.factor")}
    raise ModelLoadError(f"{meta.file.path}: rope scaling {kind!r} is not supported; expected none, linear or llama3")


def _llama3_scaling(meta: Metadata, theta: float, head_dim: int) -> dict[str, Any]:
    """The file has only the resulting divisors of the frequencies; find the settings that give them."""
    tensor = meta.file.tensors[ROPE_FACTORS]
    found = dequantize(meta.file.rows(tensor), tensor.kind).ravel().astype(np.float64)
    factor = float(found.max())
    wavelength = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    kept = np.clip((_LLAMA3_TRAINED / wavelength - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW), 0.0, 1.0)
    expected = 1.0 / ((1.0 - kept) / factor + kept)
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-4):
        raise ModelLoadError(f"{meta.file.path}: tensor '{ROPE_FACTORS}' is not Llama 3's table; no other is supported")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_TRAINED,
    }


def hf_names(file: GgufFile, layers: int) -> dict[str, GgufTensor]:
    """Name in the Hugging Face layout → tensor of the file, in the order of the layers.

    Raises `ModelLoadError` for a tensor that is missing, and for one whose meaning is not known.
    """
    architecture = Metadata(file).architecture
    wanted = ["token_embd.weight", "output_norm.weight"]
    optional = {"output.weight", ROPE_FACTORS}
    for layer in range(layers):
        wanted += [f"blk.{layer}.{name}.weight" for name in architecture.layer]
        wanted += [f"blk.{layer}.{name}.bias" for name in architecture.biases]
        optional |= {f"blk.{layer}.{name}.bias" for name in architecture.optional_biases}
    for name in wanted:
        if name not in file.tensors:
            raise ModelLoadError(f"{file.path}: tensor '{name}' is missing")
    unknown = file.tensors.keys() - set(wanted) - optional
    if unknown:
        raise ModelLoadError(
            f"{file.path}: tensor '{min(unknown)}' is not known for the architecture {architecture.model_type}"
        )
    present = [*wanted, *sorted(optional & file.tensors.keys() - {ROPE_FACTORS})]
    return {_hf_name(name, architecture): file.tensors[name] for name in present}


def _hf_name(name: str, architecture: Architecture) -> str:
    layered = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if layered:
        return f"model.layers.{layered[1]}.{architecture.layer[layered[2]]}.{layered[3]}"
    stem, kind = name.rsplit(".", 1)
    return f"{_OUTER[stem]}.{kind}"


def end_ids(file: GgufFile) -> list[int]:
    """Every token that the file says ends a turn or a text."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = (file.metadata.get(f"tokenizer.ggml.{key}") for key in keys)
    return sorted({value for value in found if isinstance(value, int)})
