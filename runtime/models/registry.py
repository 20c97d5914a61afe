"""From a model's folder to a loaded model, by its `model_type`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...errors import ModelLoadError
from ...kernels.table import Ops
from . import gemma3, llama, mistral, qwen2, qwen3
from .base import Model
from .source import ModelFolder, Progress, no_progress
from .weights import Weights

FAMILIES: dict[str, Callable[[ModelFolder, Weights], Model]] = {
    "llama": llama.load,
    "mistral": mistral.load,
    "qwen2": qwen2.load,
    "qwen3": qwen3.load,
    "gemma3_text": gemma3.load,
    "gemma3": gemma3.load,
}


def load_model(folder: ModelFolder, dtype: torch.dtype, ops: Ops, progress: Progress = no_progress) -> Model:
    """Load all weights into `ops`' packed form.

    `folder` is what `source.resolve` returned. Raises `ModelLoadError` with one line: an unknown architecture, a
    setting that would change results and is not known, a damaged file, a tensor that is missing, of the wrong shape or
    too many.
    """
    kind = folder.config.get("model_type")
    load = FAMILIES.get(kind) if isinstance(kind, str) else None
    if load is None:
        raise ModelLoadError(
            f"{folder.path / 'config.json'}: unknown model_type {kind!r}; known: {', '.join(sorted(FAMILIES))}"
        )
    if not folder.weights:
        raise ModelLoadError(f"{folder.path}: no weights")
    with torch.inference_mode(), Weights(folder, dtype, ops, progress) as weights:
        return load(folder, weights)
