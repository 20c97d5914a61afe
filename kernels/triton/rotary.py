"""Queries and keys turned by their position, and keys and values put into the cache. Knows nothing of sequences.

One kernel for all of it: a program takes the query heads of one key head, that key and that value. Between the norm,
the turn and the store nothing is rounded.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .kv import KvStore, as_stored, cell
from .tiles import tile


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate halves: q [T, H, d], k [T, K, d], any strides but the last; cos and sin [T, d/2] → new (q, k).

    Source: RoFormer, arXiv 2104.09864, halves as in Hugging Face. Error: 2^-22 of the pair's length in float32, plus
    one rounding to the type.
    """
    q_out, k_out = torch.empty_like(q, memory_format=torch.contiguous_format), k.new_empty(k.shape)
    _launch(q, k, None, cos, sin, None, None, None, q_out, k_out, None)
    return q_out, k_out


def rotary_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    store: KvStore,
    layer: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Rotates q [T, H, d] and returns it; rotates k [T, K, d] and writes it and v [T, K, d] to the cache.

    q, k and v may have any strides but the last. cos and sin are the whole tables [positions, d/2]; `positions` and
    `slots` [T] are int64 or int32, a negative slot is not written, a position must be one of the table's even so. With
    `q_norm` and `k_norm` [d] each head is normed first (RMS, as Qwen3 does). Error: that of `rotary`; with a norm 2^-20
    of the vector's length; plus one rounding to the type.
    """
    q_out = torch.empty_like(q, memory_format=torch.contiguous_format)
    norms = None if q_norm is None or k_norm is None else (q_norm, k_norm, eps)
    assert (q_norm is None) == (k_norm is None), "both norms or none"
    _launch(q, k, v, cos, sin, positions, slots, norms, q_out, None, store.layers[layer])
    return q_out


def _launch(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    slots: Tensor | None,
    norms: tuple[Tensor, Tensor, float] | None,
    q_out: Tensor,
    k_out: Tensor | None,
    cells: Tensor | None,
) -> None:
    """Absent tensors are passed as another one, which the kernel then does not touch."""
    (tokens, heads, dim), kv_heads = q.shape, k.shape[1]
    assert q.stride(2) == k.stride(2) == 1, (q.stride(), k.stride())
    assert cos.is_contiguous() and sin.is_contiguous()  # noqa: PT018
    assert cos.shape[1] * 2 == dim, (cos.shape, dim)
    if not tokens:
        return
    value = k if v is None else v
    assert value.stride(2) == 1, value.stride()
    q_norm, k_norm, eps = (q, k, 0.0) if norms is None else norms
    share = heads // kv_heads
    _rotate[(tokens, kv_heads)](
        q, k, value, q_out,
        k if k_out is None else k_out,
        k if cells is None else cells[0],
        k if cells is None else cells[1],
        cos, sin,
        cos if positions is None else positions,
        cos if slots is None else slots,
        q_norm, k_norm, eps,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), value.stride(0), value.stride(1),
        K=kv_heads, G=share, GP=triton.next_power_of_2(share), D=dim, HALF=triton.next_power_of_2(dim // 2),
        NORM=norms is not None, WRITE=cells is not None, num_warps=tile("rotary", q.device).warps,
    )  # fmt: skip


@triton.jit
def _rotate(
    q, k, v, q_out, k_out, keys, values, cos, sin,
    positions, slots, q_norm, k_norm, eps,
    q_token, q_head, k_token, k_head, v_token, v_head,
    K: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    NORM: tl.constexpr, WRITE: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half: tl.constexpr = D // 2
    pair = tl.arange(0, HALF)
    real = pair < half
    if WRITE:
        position = tl.load(positions + token).to(tl.int64)
    else:
        position = token
    c = tl.load(cos + position * half + pair, mask=real, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + position * half + pair, mask=real, other=0.0).to(tl.float32)[None, :]

    lane = tl.arange(0, GP)
    wanted = (lane < G)[:, None] & real[None, :]
    rows = q + token * q_token + (head * G + lane)[:, None] * q_head + pair[None, :]
    first, second = _turned(rows, wanted, q_norm, pair, real, c, s, eps, D, NORM)
    rows_out = q_out + (token * (K * G) + head * G + lane)[:, None] * D + pair[None, :]
    tl.store(rows_out, first.to(q_out.dtype.element_ty), mask=wanted)
    tl.store(rows_out + half, second.to(q_out.dtype.element_ty), mask=wanted)

    one = real[None, :]
    row = k + token * k_token + head * k_head + pair[None, :]
    first, second = _turned(row, one, k_norm, pair, real, c, s, eps, D, NORM)
    if WRITE:
        slot = tl.load(slots + token).to(tl.int64)
        if slot >= 0:
            at = cell(slot, head, K, D) + pair[None, :]
            value = v + token * v_token + head * v_head + pair[None, :]
            kind: tl.constexpr = keys.dtype.element_ty
            tl.store(keys + at, as_stored(first, kind), mask=one)
            tl.store(keys + at + half, as_stored(second, kind), mask=one)
            tl.store(values + at, as_stored(tl.load(value, mask=one, other=0.0), kind), mask=one)
            tl.store(values + at + half, as_stored(tl.load(value + half, mask=one, other=0.0), kind), mask=one)
    else:
        row_out = k_out + (token * K + head) * D + pair[None, :]
        tl.store(row_out, first.to(k_out.dtype.element_ty), mask=one)
        tl.store(row_out + half, second.to(k_out.dtype.element_ty), mask=one)


@triton.jit
def _turned(
    rows, wanted, norm, pair, real, c, s, eps,
    D: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Both halves of each row, normed where NORM, and turned, in float32."""
    half: tl.constexpr = D // 2
    first = tl.load(rows, mask=wanted, other=0.0).to(tl.float32)
    second = tl.load(rows + half, mask=wanted, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        scale = 1.0 / tl.sqrt_rn(squares / D + eps)
        first = first * scale[:, None] * tl.load(norm + pair, mask=real, other=0.0).to(tl.float32)[None, :]
        second = second * scale[:, None] * tl.load(norm + half + pair, mask=real, other=0.0).to(tl.float32)[None, :]
    return first * c - second * s, second * c + first * s
