"""The operations in float64, as plain loops over their definitions. Shares no code with any back end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from op_cases import Array, AttentionCase, SeqRow


def path(row: SeqRow, query: int) -> list[int]:
    """The row's own tokens that query `query` sees, itself first, then its ancestors from near to far."""
    if row.parents is None:
        return list(range(query, -1, -1))
    found = [query]
    while row.parents[found[-1]] >= 0:
        found.append(row.parents[found[-1]])
    return found


def attention(case: AttentionCase, q: Array, keys: Sequence[Array], values: Sequence[Array]) -> Array:
    """[T, H·d]: each query attends to its own path and to the cached keys, nearest first, as far as the window goes."""
    out = np.empty((len(q), case.heads, case.dim))
    token = 0
    for row, k, v in zip(case.rows, keys, values, strict=True):
        for query in range(row.length):
            seen = [row.start + i for i in path(row, query)] + list(range(row.start - 1, -1, -1))
            seen = seen[: case.window]
            for head in range(case.heads):
                kv_head = head // (case.heads // case.kv_heads)
                scores = k[seen, kv_head] @ q[token, head] * case.scale
                weights = np.exp(scores - scores.max())
                out[token, head] = weights @ v[seen, kv_head] / weights.sum()
            token += 1
    return out.reshape(len(q), case.heads * case.dim)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    out = np.empty_like(x)
    for i, row in enumerate(x):
        out[i] = row / math.sqrt(sum(float(value) ** 2 for value in row) / len(row) + eps) * weight
    return out


def rotary(x: Array, cos: Array, sin: Array) -> Array:
    """Each pair (x[j], x[j + d/2]) is a complex number, turned by the angle of its position."""
    half = x.shape[-1] // 2
    turned = (x[..., :half] + 1j * x[..., half:]) * (cos + 1j * sin)[:, None, :]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def silu_mul(x: Array) -> Array:
    gate, up = np.split(x, 2, axis=-1)
    return np.asarray(gate / (1 + np.exp(-gate)) * up)


def experts(
    x: Array, logits: Array, gate_up: Sequence[Array], down: Sequence[Array], top_k: int, normalize: bool
) -> Array:
    """Each token by itself: its best experts, the lower number first where logits are equal, and their weighted sum."""
    out = np.zeros_like(x)
    for token, row in enumerate(logits):
        chosen = sorted(range(len(row)), key=lambda expert: (-row[expert], expert))[:top_k]
        weights = np.exp(row - row.max())
        whole = weights[chosen].sum() if normalize else weights.sum()
        for expert in chosen:
            hidden = silu_mul(gate_up[expert] @ x[token])
            out[token] += weights[expert] / whole * (down[expert] @ hidden)
    return out


def gelu_mul(x: Array) -> Array:
    gate, up = np.split(x, 2, axis=-1)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return np.asarray(0.5 * gate * (1 + np.tanh(inner)) * up)


def masked(logits: Array, bits: Sequence[Sequence[int]], rows: Sequence[int]) -> Array:
    """bits[i] holds the words of row rows[i] as unsigned numbers."""
    out = logits.copy()
    for words, row in zip(bits, rows, strict=True):
        for token in range(logits.shape[1]):
            if not words[token // 32] >> (token % 32) & 1:
                out[row, token] = -math.inf
    return out
