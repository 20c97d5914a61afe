"""A layer of experts: each token goes to a few of many small feed-forward layers. Knows nothing of models.

How a back end computes one expert is its own business: this says who computes what, and adds it up. Every token's sum
is in the order of its own choices, so it does not depend on the other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from .linear import PackedLinear, linear, pack_linear


class Expert(NamedTuple):
    """One expert's matrices, packed: [2·F, D] and [D, F]."""

    gate_up: PackedLinear
    down: PackedLinear


def pack_experts(gate_up: Sequence[Tensor], down: Sequence[Tensor]) -> list[Expert]:
    return [Expert(pack_linear(first), pack_linear(last)) for first, last in zip(gate_up, down, strict=True)]


def expert(x: Tensor, weights: Expert) -> Tensor:
    """[T, D] → [T, D]."""
    gate, up = linear(x, weights.gate_up).chunk(2, -1)
    return linear(functional.silu(gate).mul_(up), weights.down)


def route(logits: Tensor, top_k: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """logits [T, E] → shares [T, k] float32, falling, and the experts that they belong to. The lower number wins ties.

    Shares are those of a softmax over all experts; with `normalize` a token's shares add up to one.
    """
    shares, experts = logits.float().softmax(-1).sort(stable=True, dim=-1, descending=True)
    shares, experts = shares[:, :top_k], experts[:, :top_k]
    return (shares / shares.sum(-1, keepdim=True) if normalize else shares), experts


def mix(x: Tensor, shares: Tensor, experts: Tensor, compute: Callable[[int, Tensor], Tensor]) -> Tensor:
    """x [T, D], shares and experts [T, k] → [T, D]; `compute` takes an expert's number and its rows [n, D]."""
    tokens, top_k = experts.shape
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    found = x.new_empty(tokens * top_k, x.shape[1])
    counts: list[int] = flat.bincount().tolist()
    for number, rows in enumerate(order.split_with_sizes(counts)):
        if len(rows):
            found[rows] = compute(number, x[rows // top_k])
    parts = found.view(tokens, top_k, x.shape[1]) * shares.unsqueeze(-1)
    total = parts[:, 0]
    for choice in range(1, top_k):
        total = total + parts[:, choice]
    return total.to(x.dtype)
