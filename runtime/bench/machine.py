"""What a measurement was made on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

FLAGS = ("avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16")
PACKAGES = ("torch", "numpy", "xgrammar", "tokenizers", "uvicorn", "fastapi", "msgspec", "httptools")


def facts() -> dict[str, Any]:
    """Processor, cores, memory, system and versions, ready for JSON."""
    cpu = _cpu(Path("/proc/cpuinfo"))
    flags = set((cpu.get("flags") or cpu.get("Features") or "").split())
    return {
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
    }


def _cpu(path: Path) -> dict[str, str]:
    """The first processor's entries; empty on a system that has no such file."""
    if not path.is_file():
        return {}
    first, _, _ = path.read_text().partition("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
