"""What weights, the cache and the computation are kept in, and where: the one place where these settings meet what
kernels can do.

Knows nothing of models.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..errors import ConfigError
from ..kernels.registry import Kernels, Storage, interpreted, known_ops
from .models.cpu import dtype_name
from .settings import EngineConfig

_TYPES = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8, "fp8": torch.float8_e4m3fn,
}  # fmt: skip
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Precision:
    """`weights` "stored" is whatever the file has; `compute` is the type of activations."""

    kernels: Kernels
    weights: Storage
    compute: torch.dtype
    kv: torch.dtype
    device: torch.device = _CPU

    @property
    def files(self) -> str:
        """What a model's weights are wanted in from a file; kernels make the rest of it themselves."""
        if self.kernels == "native":
            return "stored"
        return "float32" if self.compute == torch.float32 else "bfloat16"


def resolve_precision(config: EngineConfig, device: torch.device = _CPU) -> Precision:
    """Raises `ConfigError` for what the kernels cannot do."""
    if device.type == "cuda" or config.kernels == "triton":
        return _on_gpu(config, device)
    for name, value in (("dtype", config.dtype), ("kv_dtype", config.kv_dtype)):
        if value == "fp8":
            raise ConfigError(f"{name} is fp8, which only a GPU computes with")
    if config.batch_invariant:
        raise ConfigError("batch_invariant is for GPUs; on a processor the native kernels are so always")
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


def _interpreted(config: EngineConfig) -> Precision:
    """On a processor, far too slowly for use; the interpreter rounds what is narrower than float32 in its own way."""
    if not interpreted():
        raise ConfigError("kernels triton need a GPU, and the device is a processor; bosquet doctor says of both")
    for name, value in (("dtype", config.dtype), ("kv_dtype", config.kv_dtype)):
        if value not in ("auto", "float32"):
            raise ConfigError(f"{name} is {value}; Triton's interpreter is right in float32 only")
    return Precision("triton", "float32", torch.float32, torch.float32)


def _on_gpu(config: EngineConfig, device: torch.device) -> Precision:
    if config.kernels not in ("auto", "triton"):
        raise ConfigError(f"kernels {config.kernels} are a processor's, and the device is a GPU; give --device cpu")
    if device.type != "cuda":
        return _interpreted(config)
    if config.cpus:
        raise ConfigError(f"cpus is {config.cpus}; a GPU has no threads to pin, and it must be empty")
    if config.kv_dtype == "int8":
        raise ConfigError("kv_dtype is int8, which a GPU's kernels do not keep; they keep bfloat16, float32 and fp8")
    weights = "bfloat16" if config.dtype == "auto" else config.dtype
    compute = torch.float32 if weights == "float32" else torch.bfloat16
    kv = compute if config.kv_dtype == "auto" else _TYPES[config.kv_dtype]
    fp8 = (8, 9)
    if "fp8" in (config.dtype, config.kv_dtype) and device.type == "cuda":
        found = torch.cuda.get_device_capability(device)
        if found < fp8:
            raise ConfigError(f"fp8 needs compute capability 8.9; this GPU has {found[0]}.{found[1]}")
    return Precision("triton", weights, compute, kv, device)
