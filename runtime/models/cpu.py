"""What this machine's processor can do, without importing torch. Knows nothing of kernels."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from ...errors import ConfigError

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # "bf16" is ARM's


@cache
def has_native_bf16() -> bool:
    """The processor multiplies bfloat16 itself; elsewhere bfloat16 is emulated and slower than float32."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return False
    for line in text.splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return not _BF16_FLAGS.isdisjoint(flags.split())
    return False


def dtype_name(name: str, device: str = "cpu") -> Literal["float32", "bfloat16"]:
    """ "auto", "float32" or "bfloat16" → "float32" or "bfloat16". Raises `ConfigError` for another name."""
    if name == "auto":
        return "bfloat16" if device != "cpu" or has_native_bf16() else "float32"
    if name == "float32":
        return "float32"
    if name == "bfloat16":
        return "bfloat16"
    raise ConfigError(f"dtype {name!r} is not among float32 and bfloat16, which these kernels compute in")
