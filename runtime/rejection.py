"""Rejection sampling: a token drawn by a draft model becomes one drawn by the target.

Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding" (ICML 2023): a proposal x from
the draft's distribution q stands with probability min(1, p(x) / q(x)), p being the target's; else a token is drawn from
the residual max(0, p - q). The result has distribution p, whatever q is. A proposal that does not stand has
p(x) < q(x), so the residual never gives it back: a token equal to the proposal is one that stood.

Pure functions of tensors; knows nothing of requests or of where distributions come from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .distributions import draw_dense


def settle(target: Tensor, draft: Tensor, guesses: Tensor, stands: Tensor, instead: Tensor) -> Tensor:
    """Tokens [n]. `target` and `draft` [n, V] float32 with rows that sum to 1, `guesses` [n] int64 drawn from `draft`;
    `stands` and `instead` [n] float64 in [0, 1) are the numbers of the two draws."""
    at = guesses[:, None]
    kept = stands * draft.gather(1, at)[:, 0].double() < target.gather(1, at)[:, 0].double()
    if bool(kept.all()):
        return guesses
    residual = (target - draft).clamp_(min=0.0)
    # Where rounding leaves nothing, the two are equal.
    residual = torch.where(residual.sum(dim=-1, keepdim=True) > 0, residual, target)
    return torch.where(kept, guesses, draw_dense(residual, instead))
