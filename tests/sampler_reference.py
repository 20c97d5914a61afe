"""A slow sampler in float64 and plain Python, written from the definition: the oracle of the sampler's tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bosquet.runtime.plan import SampleRow


class Reference(NamedTuple):
    """Probabilities [V] after every filter; `margin` is how near a cut came to falling elsewhere."""

    probabilities: np.ndarray
    margin: float


def allowed_by(mask: np.ndarray | None, token: int) -> bool:
    return mask is None or bool((int(mask[token // 32]) >> (token % 32)) & 1)


def shaped_logits(logits: Sequence[float], row: SampleRow) -> list[float]:
    """After penalties, bias, bans and mask."""
    params, outputs = row.params, row.output_counts or {}
    prompt = set() if row.prompt_set is None else {int(token) for token in row.prompt_set}
    result = []
    for token, value in enumerate(float(x) for x in logits):
        if token in prompt or token in outputs:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        if token in outputs:
            value -= params.presence_penalty + params.frequency_penalty * outputs[token]
        value += params.logit_bias.get(token, 0.0)
        if token in row.banned or not allowed_by(row.mask, token):
            value = -math.inf
        result.append(value)
    return result


def reference(logits: Sequence[float], row: SampleRow) -> Reference:
    params = row.params
    shaped = shaped_logits(logits, row)
    order = sorted(range(len(shaped)), key=lambda token: (-shaped[token], token))
    peak = shaped[order[0]]
    result = np.zeros(len(shaped))
    if peak == -math.inf:
        return Reference(result, math.inf)
    if params.temperature <= 0 or params.top_k == 1:
        result[order[0]] = 1.0
        second = shaped[order[1]] if len(order) > 1 else -math.inf
        return Reference(result, math.inf if second == peak else peak - second)
    weights = {token: math.exp((shaped[token] - peak) / params.temperature) for token in order}
    ranks = order[: params.top_k] if params.top_k > 0 else order
    margin = math.inf
    if params.top_p < 1:
        total = math.fsum(weights[token] for token in ranks)
        before, kept = 0.0, []
        for token in ranks:
            if kept:
                margin = min(margin, abs(before / total - params.top_p))
                if before >= params.top_p * total:
                    break
            kept.append(token)
            before += weights[token]
        ranks = kept
    if params.min_p > 0:
        margin = min(margin, *(abs(weights[token] - params.min_p) for token in ranks[1:]), math.inf)
        ranks = [token for at, token in enumerate(ranks) if at == 0 or weights[token] >= params.min_p]
    total = math.fsum(weights[token] for token in ranks)
    for token in ranks:
        result[token] = weights[token] / total
    return Reference(result, margin)


def token_at(probabilities: np.ndarray, u: float) -> tuple[int, float]:
    """(token that u falls on in the order of ids, distance of u to the nearest edge of its interval)."""
    edges = np.cumsum(probabilities)
    token = min(int(np.searchsorted(edges, u, side="right")), int(np.nonzero(probabilities)[0][-1]))
    low = 0.0 if token == 0 else float(edges[token - 1])
    inside = min(u - low if low > 0 else math.inf, edges[token] - u if edges[token] < 1 - 1e-12 else math.inf)
    return token, inside


def bit_rows(allowed: Sequence[int], width: int) -> np.ndarray:
    """A grammar mask with the given ids set."""
    bits = np.zeros((width + 31) // 32 * 32, dtype=np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
