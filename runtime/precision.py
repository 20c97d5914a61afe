"""What weights, the cache and the computation are kept in: the one place where these settings meet what kernels can do.

Knows nothing of models.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..errors import ConfigError
from ..kernels.cpu.linear import Storage
from ..kernels.registry import Kernels, known_ops
from .models.cpu import dtype_name
from .settings import EngineConfig

_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


@dataclass(frozen=True, slots=True)
class Precision:
    """`weights` "stored" is whatever the file has; `compute` is the type of activations."""

    kernels: Kernels
    weights: Storage
    compute: torch.dtype
    kv: torch.dtype


def resolve_precision(config: EngineConfig) -> Precision:
    """Raises `ConfigError` for what the kernels cannot do."""
    kernels = known_ops()[0] if config.kernels == "auto" else config.kernels
    if kernels == "native":
        weights: Storage = "stored" if config.dtype == "auto" else config.dtype
        kv = "bfloat16" if config.kv_dtype == "auto" else config.kv_dtype
        return Precision(kernels, weights, torch.float32, _TYPES[kv])
    if config.cpus:
        raise ConfigError(f"cpus is {config.cpus}; the reference kernels pin no threads, and it must be empty")
    compute = dtype_name(config.dtype)
    if config.kv_dtype not in ("auto", compute):
        raise ConfigError(f"kv_dtype {config.kv_dtype}: the reference kernels keep it in the weights' type, {compute}")
    return Precision(kernels, compute, _TYPES[compute], _TYPES[compute])
