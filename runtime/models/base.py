"""What the runner asks of a model.

A model turns the rows of one pass into hidden states and chosen hidden states into logits, by the op table alone. It
knows nothing of requests, scheduling or sampling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ...kernels.table import Masks, Ops


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that engine and cache need to know."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int  # width of the output head
    context_length: int
    end_ids: tuple[int, ...]


@dataclass(slots=True)
class Batch:
    """One pass as tensors. T tokens, in the order of the plan's rows."""

    tokens: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64, where each token's key and value go
    attention: Any  # from ops.plan_attention


class Model(Protocol):
    """A loaded model."""

    shape: ModelShape
    ops: Ops
    dtype: torch.dtype

    def forward(self, batch: Batch, kv: Any) -> Tensor:
        """Hidden states after the last norm, [T, D]. Writes this pass's keys and values to `kv`."""

    def logits(self, hidden: Tensor, masks: Masks | None = None) -> Tensor:
        """[R, D] → [R, V] float32, valid until the next call; -inf where `masks` forbid a token."""

    def profile(self) -> dict[str, float]:
        """Seconds spent on each stage of `forward` so far; empty where that is not counted."""
