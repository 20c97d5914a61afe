"""Finds the native library for this processor and gives its functions types. Knows nothing of tensors."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ...errors import ConfigError
from .build import FLAGS, compiler, library_path

_NEEDED = {
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx2", "fma", "f16c"},
    "avxvnni": {"avx_vnni", "avx2", "fma", "f16c"},
    "avx2": {"avx2", "fma", "f16c"},
}


@cache
def processor_flags() -> frozenset[str]:
    """What the processor says that it can do; empty where that cannot be read."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            return frozenset(flags.split())
    return frozenset()


def usable() -> tuple[str, ...]:
    """Instruction sets that this processor has and that a library was built for, the best first."""
    flags = processor_flags()
    return tuple(isa for isa in FLAGS if _NEEDED[isa] <= flags and library_path(isa).is_file())


def why_none() -> str:
    """Why `usable` finds nothing, in a few words that say what to do about it where something can be done."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return f"there are none for {platform.system()} on {platform.machine()}"
    if not any(needed <= processor_flags() for needed in _NEEDED.values()):
        return "the processor lacks AVX2"
    if compiler() is None:
        return "no C++ compiler is here; install g++, then run `python -m bosquet.kernels.cpu.build`"
    return "they were not built; run `python -m bosquet.kernels.cpu.build`"


class Library:
    """One loaded library with a pool of threads. `call` checks nothing: shapes and types are the callers' business."""

    def __init__(self, isa: str, threads: int, cpus: Sequence[int] = ()) -> None:
        if isa not in usable():
            raise ConfigError(f"no native kernels for {isa!r} here; usable: {', '.join(usable()) or 'none'}")
        self.isa = isa
        self.threads = threads
        self.functions = ctypes.CDLL(str(library_path(isa)))
        create = self.functions.bosquet_create
        create.restype = ctypes.c_void_p
        create.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
        self.functions.bosquet_destroy.argtypes = (ctypes.c_void_p,)
        self.functions.bosquet_destroy.restype = None
        pinned = (ctypes.c_int * len(cpus))(*cpus)
        self.handle: int | None = create(threads, pinned, len(cpus))

    def digest(self) -> str:
        """Of the code: another build may round otherwise."""
        return hashlib.sha256(library_path(self.isa).read_bytes()).hexdigest()[:16]

    def close(self) -> None:
        """End the threads. Nothing may be called afterwards."""
        if self.handle is not None:
            self.functions.bosquet_destroy(self.handle)
            self.handle = None

    def __del__(self) -> None:
        if getattr(self, "handle", None) is not None:
            self.close()


def processors(text: str) -> tuple[int, ...] | None:
    """ "7,0-2" → 7, 0, 1, 2, and "" → none. None where the text names no processors, one that this process may not run
    on, or one twice."""
    found: list[int] = []
    here = os.sched_getaffinity(0)
    for part in text.split(",") if text else ():
        bounds = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part.strip())
        if bounds is None:
            return None
        low, high = int(bounds[1]), int(bounds[2] or bounds[1])
        if low > high or any(cpu not in here or cpu in found for cpu in range(low, high + 1)):
            return None
        found += range(low, high + 1)
    return tuple(found)


def default_threads() -> int:
    """One a processor that this process may run on."""
    return len(os.sched_getaffinity(0))
