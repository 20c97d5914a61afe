"""Keeps the process small after large bodies: the C library is told to give freed memory back to the system.

Without this it keeps what was once in use, one heap for each thread that ever worked. Where the C library is not glibc,
nothing is done.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

LARGE_BODY = 500_000
"""Bytes of a request from which on memory is given back after it. Smaller ones leave little behind."""

_ARENA_MAX, _ARENAS = -8, 2
_MMAP_THRESHOLD, _BLOCK = -3, 1 << 20  # blocks from here on go back as soon as they are freed


def limit_heaps() -> None:
    """To be called once, before threads are started."""
    library = _glibc()
    if library is not None:
        library.mallopt(_ARENA_MAX, _ARENAS)
        library.mallopt(_MMAP_THRESHOLD, _BLOCK)


def give_back() -> None:
    """Return freed memory to the system. Takes some milliseconds, without the interpreter's lock."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None
