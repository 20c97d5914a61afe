"""The block formats of GGUF, turned into float32 with numpy.

Knows nothing of files. Each function takes blocks [n, bytes of a block] and returns values [n, values of a block],
following the layouts in ggml's `ggml-common.h`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]


def dequantize(rows: Blocks, kind: str) -> Values:
    """Rows of raw bytes [rows, bytes] of the named type → [rows, values] float32."""
    decode, block_bytes = _DECODERS[kind]
    blocks = np.ascontiguousarray(rows).reshape(-1, block_bytes)
    return decode(blocks).reshape(len(rows), -1)


def _half(blocks: Blocks, start: int) -> Values:
    """The half-precision number at byte `start` of each block: [n, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _nibbles(quants: Blocks) -> Blocks:
    """Low halves of all bytes, then high halves: [n, b] → [n, 2·b]."""
    return np.concatenate([quants & 15, quants >> 4], axis=1)


def _fifth_bits(packed: Blocks) -> Blocks:
    """32 bits in 4 bytes, lowest first, as 0 or 16: [n, 4] → [n, 32]."""
    bits: Blocks = np.unpackbits(packed, axis=1, bitorder="little") * np.uint8(16)
    return bits


def _f32(blocks: Blocks) -> Values:
    return blocks.view(np.float32)


def _f16(blocks: Blocks) -> Values:
    return blocks.view(np.float16).astype(np.float32)


def _bf16(blocks: Blocks) -> Values:
    return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Blocks) -> Values:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.int8) - 8)


def _q4_1(blocks: Blocks) -> Values:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)


def _q5_0(blocks: Blocks) -> Values:
    return _half(blocks, 0) * ((_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])).astype(np.int8) - 16)


def _q5_1(blocks: Blocks) -> Values:
    return _half(blocks, 0) * (_nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])) + _half(blocks, 2)


def _q8_0(blocks: Blocks) -> Values:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8)


def _scales_and_mins(packed: Blocks) -> tuple[Blocks, Blocks]:
    """Eight 6-bit scales and eight 6-bit minimums in 12 bytes: [n, 12] → two of [n, 8].

    The first four of each lie in the low 6 bits of bytes 0–3 and 4–7. The last four take their low 4 bits from bytes
    8–11 and their high 2 bits from what bytes 0–7 have left over.
    """
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)
    mins = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=1)
    return scales, mins


def _q4_k(blocks: Blocks) -> Values:
    quants = _nibbles(blocks[:, 16:144].reshape(-1, 32)).reshape(-1, 8, 32)
    return _scaled_k(blocks, quants)


def _q5_k(blocks: Blocks) -> Values:
    quants = _nibbles(blocks[:, 48:176].reshape(-1, 32)).reshape(-1, 8, 32)
    # Bit s of high byte i is the fifth bit of value i of sub-block s.
    bits: Blocks = np.unpackbits(blocks[:, 16:48], axis=1, bitorder="little").reshape(-1, 32, 8).transpose(0, 2, 1)
    return _scaled_k(blocks, np.bitwise_or(quants, bits << 4, dtype=np.uint8))


def _scaled_k(blocks: Blocks, quants: Blocks) -> Values:
    """Eight sub-blocks of 32, each with a scale and a minimum of its own: quants [n, 8, 32] → [n, 256]."""
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    scale = (_half(blocks, 0) * scales)[:, :, None]
    least = (_half(blocks, 2) * mins)[:, :, None]
    return (scale * quants - least).reshape(-1, 256)


def _q6_k(blocks: Blocks) -> Values:
    # Two halves of 128 values; in each, 64 bytes of nibbles and 32 bytes that hold four times two high bits.
    low = _nibbles(blocks[:, :128].reshape(-1, 64)).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    quants = (low | (((high >> shifts) & 3) << 4)).astype(np.int8) - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return (scales[:, :, None] * quants.reshape(-1, 16, 16)).reshape(-1, 256)


_DECODERS: dict[str, tuple[Callable[[Blocks], Values], int]] = {
    "F32": (_f32, 4),
    "F16": (_f16, 2),
    "BF16": (_bf16, 2),
    "Q4_0": (_q4_0, 18),
    "Q4_1": (_q4_1, 20),
    "Q5_0": (_q5_0, 22),
    "Q5_1": (_q5_1, 24),
    "Q8_0": (_q8_0, 34),
    "Q4_K": (_q4_k, 144),
    "Q5_K": (_q5_k, 176),
    "Q6_K": (_q6_k, 210),
}
