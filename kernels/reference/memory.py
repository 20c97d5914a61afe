"""Large pages for memory that is about to be filled. Knows nothing of what is stored in it.

With 4 KB pages, attention over a large cache spends much of its time on address translation. Linux gives 2 MB pages on
request. A refusal costs speed only, so it is not an error.
"""

from __future__ import annotations

import ctypes
import sys

HUGE = 2 << 20
_MADV_HUGEPAGE = 14


def advise_huge(address: int, size: int) -> bool:
    """Ask for 2 MB pages over `size` bytes at `address`, for pages that are not in use yet.

    The request is widened to whole 2 MB blocks: what lies beside them is not changed, only kept in larger pages.
    Returns whether the system took the advice.
    """
    if sys.platform != "linux" or size < HUGE // 4:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    first, end = address // HUGE * HUGE, -(-(address + size) // HUGE) * HUGE
    taken = libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), ctypes.c_int(_MADV_HUGEPAGE))
    return bool(taken == 0)
