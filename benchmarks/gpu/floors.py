"""What a pass cannot do without: bytes to read and operations to compute. Pure numbers, no torch.

A byte is counted once however many rows need it. What a pass writes (activations, one key and value a row) is left out:
it is under a hundredth of what is read.
"""

from __future__ import annotations

import math
from typing import NamedTuple

GROUP = 64  # values that share a scale in int4


class Sizes(NamedTuple):
    """A decoder of the Llama family. Its head is a matrix of its own, or counts as one where it is tied."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """(outs, in) of a layer's."""
        own = self.heads * self.head_dim
        return {
            "qkv": (own + 2 * self.kv_heads * self.head_dim, self.width),
            "out": (self.width, own),
            "gate_up": (2 * self.inner, self.width),
            "down": (self.width, self.inner),
        }


BIG = Sizes(32, 4096, 32, 8, 128, 14336, 128_256)
"""Llama 3.1 8B."""
SMALL = Sizes(16, 2048, 32, 8, 64, 8192, 128_256)
"""Llama 3.2 1B."""
TINY = Sizes(1, 64, 2, 1, 32, 128, 160)
"""For the interpreter."""

MODELS = {"8B": BIG, "1B": SMALL}


def matrix_bytes(outs: int, width: int, storage: str) -> int:
    """Of a weight as `kernels/triton/quantize.py` packs it, its scales among them."""
    if storage == "bfloat16":
        return 2 * outs * width
    padded = -(-width // 128) * 128
    if storage == "int4":
        return outs * padded // 2 + 2 * outs * padded // GROUP
    if storage == "fp8_block":
        return outs * padded + 4 * -(-outs // 128) * (padded // 128)
    assert storage in ("fp8", "int8"), storage
    return outs * padded + 4 * outs


def weight_bytes(sizes: Sizes, storage: str) -> int:
    """What a decode pass reads of the weights: all layers and the head; of the embedding next to nothing. Under int4
    the head has eight bits."""
    layer = sum(matrix_bytes(outs, width, storage) for outs, width in sizes.matrices.values())
    head = matrix_bytes(sizes.vocabulary, sizes.width, "int8" if storage == "int4" else storage)
    return sizes.layers * layer + head


def token_bytes(sizes: Sizes, itemsize: int = 2) -> int:
    """Keys and values of one token in all layers."""
    return 2 * sizes.layers * sizes.kv_heads * sizes.head_dim * itemsize


def decode_bytes(sizes: Sizes, storage: str, rows: int, context: int, itemsize: int = 2) -> int:
    """Of a pass of `rows` sequences, each with `context` keys."""
    return weight_bytes(sizes, storage) + rows * context * token_bytes(sizes, itemsize)


def pairs(start: int, length: int) -> int:
    """Queries times the keys that they see, of a row that begins at `start`."""
    return length * start + length * (length + 1) // 2


def attention_flops(sizes: Sizes, start: int, length: int) -> int:
    """Of one layer: two products of `head_dim` for each query head and pair."""
    return 4 * sizes.heads * sizes.head_dim * pairs(start, length)


def matrix_flops(sizes: Sizes, tokens: int) -> int:
    """Of all layers, without the head."""
    return 2 * tokens * sizes.layers * sum(outs * width for outs, width in sizes.matrices.values())


def prefill_flops(sizes: Sizes, length: int, start: int = 0) -> int:
    """Of a prompt's pass, with the logits of its last token."""
    head = 2 * sizes.vocabulary * sizes.width
    return matrix_flops(sizes, length) + sizes.layers * attention_flops(sizes, start, length) + head


def floor_seconds(read: float, flops: float, bandwidth: float, rate: float) -> float:
    """The larger of the two times that nothing gets below."""
    return max(read / bandwidth, flops / rate)


def tokens_a_pass(right: float, guesses: int) -> float:
    """Of a pass that verifies so many guesses, each right with chance `right` if those before are."""
    return guesses + 1.0 if right == 1 else (1 - right ** (guesses + 1)) / (1 - right)


def rows_that_fit(free: int, kept: int, rows: int, context: int, per_token: int) -> bool:
    """Whether the keys and values of such a pass fit beside what must be kept free."""
    return rows * context * per_token + kept <= free


def deviation(statistic: float, freedom: int) -> float:
    """By how many standard deviations of a normal distribution a chi-square statistic is too large (Wilson and
    Hilferty, 1931)."""
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def chi_square(counts: list[int], chances: list[float]) -> tuple[float, int]:
    """(statistic, degrees of freedom) of counts against chances; rare tokens count as one. Infinite where something
    came that cannot."""
    total, statistic, freedom, rare, rare_count = sum(counts), 0.0, -1, 0.0, 0
    for count, chance in zip(counts, chances, strict=True):
        expected = total * chance
        if chance == 0 and count:
            return math.inf, 1
        if expected < 5:
            rare, rare_count = rare + expected, rare_count + count
        else:
            statistic += (count - expected) ** 2 / expected
            freedom += 1
    if rare >= 5:
        statistic += (rare_count - rare) ** 2 / rare
        freedom += 1
    return statistic, max(1, freedom)
