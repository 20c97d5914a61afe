"""All that a pass reads about itself, in one array: one copy brings it to the device. Knows no model.

Four runs of 64-bit numbers (tokens, positions, slots, and which hidden states are wanted), then the words of the
attention plan. Padding tokens write no keys, and nobody reads what they compute.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..runner import Layout

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int32]

NO_SLOT = -1


class Inputs(NamedTuple):
    """Views of one array on the device. `tokens` may be placeholders."""

    tokens: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64
    wanted: Tensor  # [R] int64
    words: Tensor  # int32


def size(tokens: int, wanted: int, words: int) -> int:
    """Bytes of the array."""
    return 8 * (3 * tokens + wanted) + 4 * words


def pack(layout: Layout, tokens: int, wanted: int, words: Words) -> Bytes:
    """A pass of at most so many tokens and wanted hidden states, padded to them."""
    packed = np.zeros(size(tokens, wanted, len(words)), np.uint8)
    numbers = packed[: 8 * (3 * tokens + wanted)].view(np.int64)
    real = len(layout.tokens)
    numbers[:real] = layout.tokens
    numbers[tokens : tokens + real] = layout.positions
    slots = numbers[2 * tokens : 3 * tokens]
    slots[:real], slots[real:] = layout.slots, NO_SLOT
    numbers[3 * tokens : 3 * tokens + len(layout.logits)] = layout.logits
    packed[8 * len(numbers) :].view(np.int32)[:] = words
    return packed


def views(array: Tensor, tokens: int, wanted: int) -> Inputs:
    """The parts of an array that `pack` made, on the device."""
    numbers = array[: 8 * (3 * tokens + wanted)].view(torch.int64)
    ids, positions, slots, rows = numbers.split_with_sizes([tokens, tokens, tokens, wanted])
    return Inputs(ids, positions, slots, rows, array[8 * len(numbers) :].view(torch.int32))
