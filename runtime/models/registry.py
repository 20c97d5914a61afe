"""From a model's folder to a loaded model, by its `model_type`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from ...errors import ModelLoadError
from ...kernels.table import Ops
from . import gemma3, llama, mistral, qwen2, qwen3, qwen3_moe
from .base import Model
from .source import ModelFolder, Progress, no_progress
from .weights import Weights


class Family(NamedTuple):
    """`architectures` are the classes of config.json that this family computes; others may have another head."""

    load: Callable[[ModelFolder, Weights], Model]
    architectures: tuple[str, ...]


FAMILIES = {
    "llama": Family(llama.load, ("LlamaForCausalLM",)),
    "mistral": Family(mistral.load, ("MistralForCausalLM",)),
    "qwen2": Family(qwen2.load, ("Qwen2ForCausalLM",)),
    "qwen3": Family(qwen3.load, ("Qwen3ForCausalLM",)),
    "qwen3_moe": Family(qwen3_moe.load, ("Qwen3MoeForCausalLM",)),
    "gemma3_text": Family(gemma3.load, ("Gemma3ForCausalLM",)),
    "gemma3": Family(gemma3.load, ("Gemma3ForConditionalGeneration",)),
}


def load_model(
    folder: ModelFolder, dtype: torch.dtype, ops: Ops, progress: Progress = no_progress, stored: bool = False
) -> Model:
    """Load all weights into `ops`' packed form: in `dtype`, or with `stored` as they are.

    `folder` is what `source.resolve` returned. Raises `ModelLoadError` with one line: an unknown architecture, a
    setting that would change results and is not known, a damaged file, a tensor that is missing, of the wrong shape or
    too many.
    """
    family = _family(folder)
    if not folder.weights and folder.gguf is None:
        raise ModelLoadError(f"{folder.path}: no weights")
    with torch.inference_mode(), Weights(folder, dtype, ops, progress, stored) as weights:
        return family.load(folder, weights)


def _family(folder: ModelFolder) -> Family:
    path, kind = folder.path / "config.json", folder.config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise ModelLoadError(f"{path}: unknown model_type {kind!r}; known: {', '.join(sorted(FAMILIES))}")
    named = folder.config.get("architectures")
    if named and not set(named) & set(family.architectures):
        raise ModelLoadError(
            f"{path}: unknown architecture {named} of {kind}; known: {', '.join(family.architectures)}"
        )
    return family
