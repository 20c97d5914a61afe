"""Rotary position tables from a model's configuration.

Knows the plain, linear and Llama 3 forms; any other is refused, since ignoring one would change every answer.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import ModelLoadError
from .source import ModelFolder


class Rope(NamedTuple):
    """Cosines and sines for every position: each [positions, d/2] float32."""

    cos: Tensor
    sin: Tensor


def rope_settings(folder: ModelFolder, kind: str | None = None) -> dict[str, Any]:
    """`rope_type`, `rope_theta` and what the type needs, from the old form of config.json or the new one.

    The old form has `rope_theta` and `rope_scaling`; the new one `rope_parameters`, which models with several kinds of
    attention layers have once for each `kind`.
    """
    config = folder.config
    settings = config.get("rope_parameters")
    if settings is None:
        settings = dict(config.get("rope_scaling") or {})
        settings.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    elif kind is not None:
        settings = settings.get(kind)
    if not isinstance(settings, dict):
        raise ModelLoadError(f"{folder.path / 'config.json'}: rope settings are {settings!r}; expected an object")
    found = dict(settings)
    found.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    found["rope_type"] = found.get("rope_type") or found.pop("type", None) or "default"
    return found


def make_rope(folder: ModelFolder, settings: dict[str, Any], head_dim: int, positions: int) -> Rope:
    """Tables for positions 0 … positions - 1. Raises `ModelLoadError` for a form that is not known."""
    try:
        frequencies = _frequencies(settings, head_dim)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{folder.path / 'config.json'}: rope settings {settings}: {error!r}") from None
    if frequencies is None:
        raise ModelLoadError(
            f"{folder.path / 'config.json'}: rope type {settings['rope_type']!r} is not supported; "
            "expected default, linear or llama3, with full rotation"
        )
    # float32 throughout, as in the models' reference implementation: these roundings are part of the model.
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return Rope(angles.cos(), angles.sin())


def _frequencies(settings: dict[str, Any], head_dim: int) -> Tensor | None:
    """Radians a position, [d/2]; None for an unknown form."""
    if settings.get("partial_rotary_factor", 1.0) != 1.0:
        return None
    plain = 1.0 / (float(settings["rope_theta"]) ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    match settings["rope_type"]:
        case "default":
            return plain
        case "linear":
            return plain / float(settings["factor"])
        case "llama3":
            return _llama3(plain, settings)
    return None


def _llama3(plain: Tensor, settings: dict[str, Any]) -> Tensor:
    """Slow frequencies are divided by `factor`, fast ones kept, those between blended.

    From Llama 3.1's reference code (`apply_scaling`).
    """
    low, high = float(settings["low_freq_factor"]), float(settings["high_freq_factor"])
    factor, trained = float(settings["factor"]), float(settings["original_max_position_embeddings"])
    wavelengths = 2 * math.pi / plain
    kept = (trained / wavelengths - low) / (high - low)
    blended = (1 - kept) * plain / factor + kept * plain
    scaled = torch.where(wavelengths > trained / low, plain / factor, plain)
    between = (wavelengths <= trained / low) & (wavelengths >= trained / high)
    return torch.where(between, blended, scaled)
