"""How far two texts, or two prompts, are the same. Knows nothing of what they are for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def shared_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many characters, bytes or ids both begin with; by halving, since slices are compared fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
