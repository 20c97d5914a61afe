"""Which device an engine runs on, or why it cannot be the one that was asked for. Loads torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from ...errors import ConfigError

Device = Literal["auto", "cpu", "cuda"]

LEAST_CAPABILITY = (8, 0)
"""The first with bfloat16 in its matrix units."""


def choose_device(asked: Device) -> torch.device:
    """ "auto" is a GPU where one can be used. Raises `ConfigError` where "cuda" cannot be."""
    if asked == "cpu":
        return torch.device("cpu")
    fault = fault_of_gpu()
    if fault is None:
        return torch.device("cuda", torch.cuda.current_device())
    if asked == "cuda":
        raise ConfigError(f"device is cuda; {fault}")
    return torch.device("cpu")


def fault_of_gpu() -> str | None:
    """Why no GPU can be used, in a sentence; None where one can."""
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return "this torch was built without CUDA; install a build with it (pytorch.org lists them)"
    if not torch.cuda.is_available():
        if not Path("/proc/driver/nvidia").exists():
            return "no NVIDIA driver is running on this machine"
        return "the NVIDIA driver is there and torch finds no GPU: nvidia-smi shows whether it is too old for torch"
    capability = torch.cuda.get_device_capability()
    if capability < LEAST_CAPABILITY:
        name, found, least = torch.cuda.get_device_name(), _dotted(capability), _dotted(LEAST_CAPABILITY)
        return f"{name} has compute capability {found}; the kernels need {least} or later"
    return None


def _dotted(capability: tuple[int, int]) -> str:
    return "{}.{}".format(*capability)
