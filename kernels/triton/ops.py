"""The table of operations on a GPU. Knows nothing of requests or models.

Nothing within a pass waits for the device or depends on the data's values, so a pass can be recorded and replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import triton
from torch import Tensor
from torch.nn import functional

from ..table import AttentionRow, Best, Blocks, Bytes, Masks, Stack, StackSpec
from . import activation, attention, experts, kv, linear, masks, norm, plan, quantize, rotary, sampling, tiles, verify
from .stack import TritonStack

INVARIANT_ROWS = 512
"""Rows that a linear layer computes at once where they must not depend on each other: partial sums stay small."""


class TritonOps:
    """Implements `kernels.table.Ops` for one device. `storage` is what matrices are kept in; with `invariant` a row's
    bits do not depend on how many others are computed with it."""

    name = "triton"
    keeps_blocks = False

    def __init__(self, device: torch.device, storage: str = "bfloat16", *, invariant: bool = False) -> None:
        self.device = device
        self.invariant = invariant
        self._storage = cast(quantize.Storage, storage)
        versions = f"triton {triton.__version__} torch {torch.__version__}"
        self.identity = f"{versions} {tiles.architecture(device)} {storage}{' invariant' if invariant else ''}"

    # ---- weights -----------------------------------------------------------------------------------------------------

    def place(self, tensor: Tensor) -> Tensor:
        """A vector or a table of a model, on the device."""
        return tensor.detach().to(self.device).contiguous()

    def pack_linear(self, weight: Tensor | Sequence[Blocks], bias: Tensor | None = None) -> quantize.Packed:
        assert isinstance(weight, Tensor), "this back end keeps no blocks"
        own = None if bias is None else bias.to(self.device)
        return quantize.pack(weight.to(self.device), own, self._storage)

    def pack_embedding(self, weight: Tensor | Blocks) -> Tensor:
        assert isinstance(weight, Tensor), "this back end keeps no blocks"
        return self.place(weight)

    def as_head(self, embedding: Tensor) -> quantize.Packed:
        # Four bits cost a head too much of its precision; eight halve what it reads.
        return quantize.pack(embedding, None, "int8" if self._storage == "int4" else self._storage)

    def pack_router(self, weight: Tensor) -> quantize.Packed:
        plain: quantize.Storage = "float32" if weight.dtype == torch.float32 else "bfloat16"
        return quantize.pack(weight.to(self.device), None, plain)

    def pack_experts(self, gate_up: Sequence[Tensor], down: Sequence[Tensor]) -> experts.PackedExperts:
        first, last = ([weight.to(self.device) for weight in weights] for weights in (gate_up, down))
        return experts.pack_experts(first, last, self._storage)

    def stack(self, spec: StackSpec) -> Stack:
        return TritonStack(self, spec, self.place)

    # ---- layers ------------------------------------------------------------------------------------------------------

    def linear(self, x: Tensor | quantize.Quantized, weight: quantize.Packed) -> Tensor:
        if self.invariant and isinstance(x, Tensor) and len(x) > INVARIANT_ROWS:
            return torch.cat([self.linear(part, weight) for part in torch.split(x, INVARIANT_ROWS)])
        return linear.linear(x, weight, invariant=self.invariant)

    def experts(
        self, x: Tensor, router_logits: Tensor, weights: experts.PackedExperts, top_k: int, normalize: bool
    ) -> Tensor:
        return experts.experts(x, router_logits, weights, top_k, normalize, self.invariant)

    def embedding(self, ids: Tensor, weight: Tensor) -> Tensor:
        return functional.embedding(ids, weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norm.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return norm.add_rms_norm(x, residual, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return activation.silu_mul(gate_up)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        return activation.gelu_mul(gate_up)

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return rotary.rotary(q, k, cos, sin)

    def head(self, x: Tensor, weight: quantize.Packed) -> Tensor:
        return linear.linear(x, weight, torch.float32, self.invariant)

    def masked_head(self, x: Tensor, weight: quantize.Packed, masks: Masks) -> Tensor:
        logits = self.head(x, weight)
        self.apply_mask(logits, *masks)
        return logits

    def head_best(self) -> Best | None:
        return None

    def apply_mask(self, logits: Tensor, bits: Tensor, rows: Tensor) -> None:
        masks.apply_mask(logits, bits, rows)

    def draw(self, logits: Tensor, rows: sampling.DrawRows) -> Tensor:
        """See `sampling.draw`."""
        return sampling.draw(logits, rows)

    def odds(self, logits: Tensor, rows: sampling.DrawRows) -> Tensor:
        """See `sampling.odds`."""
        return sampling.odds(logits, rows)

    def settle(self, target: Tensor, draft: Tensor, guesses: Tensor, stands: Tensor, instead: Tensor) -> Tensor:
        """See `verify.settle`."""
        return verify.settle(target, draft, guesses, stands, instead)

    # ---- attention and its cache -------------------------------------------------------------------------------------

    def make_kv(self, layers: int, kv_heads: int, pages: int, head_dim: int, dtype: torch.dtype) -> kv.KvStore:
        return kv.KvStore(layers, kv_heads, pages, head_dim, dtype, self.device)

    def write_kv(self, store: kv.KvStore, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        kv.write_kv(store, layer, k, v, slots)

    def plan_attention(self, rows: Sequence[AttentionRow], device: torch.device) -> plan.AttentionPlan:
        return plan.plan_attention(rows, device)

    def attention(
        self, q: Tensor, store: kv.KvStore, layer: int, plan: Any, scale: float, window: int | None = None
    ) -> Tensor:
        return attention.attend(q, store, layer, plan, scale, window)

    def copy_pages(self, store: kv.KvStore, copies: Sequence[tuple[int, int, int]]) -> None:
        store.copy_pages(copies)

    def page_bytes(self, store: kv.KvStore) -> int:
        return store.page_bytes

    def read_pages(self, store: kv.KvStore, pages: Sequence[int]) -> Bytes:
        return store.read_pages(pages)

    def write_pages(self, store: kv.KvStore, pages: Sequence[int], data: Bytes) -> None:
        store.write_pages(pages, data)

    def move_slots(self, store: kv.KvStore, src: Tensor, dst: Tensor) -> None:
        store.move_slots(src, dst)
