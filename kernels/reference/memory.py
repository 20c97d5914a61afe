"""Large pages for memory that is read on every pass. Knows nothing of what is stored in it.

A pass walks through all weights and much of the cache; with 4 KB pages the processor spends about a third of that time
on address translation. Linux gives 2 MB pages on request. A refusal costs speed only, so it is not an error.
"""

from __future__ import annotations

import ctypes
import sys

HUGE = 2 << 20
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25  # Linux 6.1; older kernels answer EINVAL and collapse the range later, in the background


def advise_huge(address: int, size: int, *, collapse: bool = False) -> bool:
    """Ask for 2 MB pages over `size` bytes at `address`; `collapse` also converts pages that are in use already.

    The request is widened to whole 2 MB blocks: what lies beside them is not changed, only kept in larger pages. Only
    blocks that lie within the range are converted at once, at 2 to 4 ms each; the system does the rest in time.
    Returns whether the system took the advice.
    """
    if sys.platform != "linux" or size < HUGE // 4:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    end = address + size
    taken = _madvise(libc, address // HUGE, -(-end // HUGE), _MADV_HUGEPAGE)
    if collapse:
        _madvise(libc, -(-address // HUGE), end // HUGE, _MADV_COLLAPSE)
    return taken


def _madvise(libc: ctypes.CDLL, first_block: int, end_block: int, advice: int) -> bool:
    if end_block <= first_block:
        return False
    start, length = ctypes.c_void_p(first_block * HUGE), ctypes.c_size_t((end_block - first_block) * HUGE)
    return bool(libc.madvise(start, length, ctypes.c_int(advice)) == 0)
