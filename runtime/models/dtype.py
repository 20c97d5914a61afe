"""The element type that a model computes in."""

from __future__ import annotations

import torch

from .cpu import dtype_name

_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def resolve_dtype(name: str, device: str = "cpu") -> torch.dtype:
    """ "auto", "float32" or "bfloat16" → the type. "auto" is bfloat16 on a GPU and where the CPU computes it natively.

    Raises `ConfigError` for another name.
    """
    return _TYPES[dtype_name(name, device)]
