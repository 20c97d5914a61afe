"""Keeps a process small: the C library is told to give freed memory back to the system.

Without this it keeps what was once in use, one heap for each thread that ever worked, and with blocks of many sizes
that come and go its heap grows for hours. Where the C library is not glibc, nothing is done.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_ARENA_MAX, _ARENAS = -8, 2
_MMAP_THRESHOLD, _BLOCK = -3, 1 << 20


def limit_heaps(*, large_apart: bool) -> None:
    """To be called once, before threads are started. With `large_apart`, blocks of a megabyte and more go back as soon
    as they are freed; whoever makes such blocks all the time would pay for fresh memory each time."""
    library = _glibc()
    if library is not None:
        library.mallopt(_ARENA_MAX, _ARENAS)
        if large_apart:
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
