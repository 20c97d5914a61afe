"""The table of operations on a CPU, in C++. Knows nothing of requests or models.

Activations are float32; weights and the cache are in types of their own. What a decoder does for every token runs
inside one call (`stack`); the single operations are there for whoever needs one, and for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..reference.experts import mix, route
from ..reference.memory import advise_huge
from ..reference.ops import ReferenceOps
from ..stack import OpStack
from ..table import AttentionRow, Best, Blocks, Bytes, Masks, Stack, StackSpec
from .attention import AttentionPlan, KvStore, NativeAttention
from .forward import NativeStack
from .library import Library, default_threads, usable
from .linear import ACTIVATIONS, NativeLinear, Packed, Storage


class CpuOps:
    """Implements `kernels.table.Ops`. Holds workspace and threads, so it serves one caller at a time.

    `threads` 0 is one for each of `cpus`, the processors that threads are pinned to, or else one a processor; `isa` is
    the instruction set, or "" for the best that the processor has. Raises `ConfigError` where there is no library for
    it.
    """

    name = "native"

    def __init__(
        self,
        threads: int = 0,
        storage: Storage = "stored",
        isa: str = "",
        cascade: bool = True,
        cpus: Sequence[int] = (),
    ) -> None:
        isa = isa or next(iter(usable()), "any processor")
        self.library = Library(isa, threads or len(cpus) or default_threads(), cpus)
        self.identity = f"native {isa} {self.library.digest()} {storage}"
        self.keeps_blocks = storage == "stored"
        self._linear = NativeLinear(self.library, storage)
        self._attention = NativeAttention(self.library, cascade=cascade)
        self._pointwise = ReferenceOps()
        self._logits = torch.empty(0, 0)
        self._best: Best | None = None
        self.rms_norm = self._pointwise.rms_norm
        self.add_rms_norm = self._pointwise.add_rms_norm
        self.silu_mul = self._pointwise.silu_mul
        self.gelu_mul = self._pointwise.gelu_mul
        self.apply_mask = self._pointwise.apply_mask

    def pack_linear(self, weight: Tensor | Sequence[Blocks], bias: Tensor | None = None) -> Packed:
        return self._linear.pack(weight, bias)

    def pack_embedding(self, weight: Tensor | Blocks) -> Packed:
        return self._linear.pack_table(weight)

    def pack_router(self, weight: Tensor) -> Packed:
        return self._linear.pack_stored(weight)

    def pack_experts(self, gate_up: Sequence[Tensor], down: Sequence[Tensor]) -> list[tuple[Packed, Packed]]:
        return [(self.pack_linear(first), self.pack_linear(last)) for first, last in zip(gate_up, down, strict=True)]

    def as_head(self, embedding: Packed) -> Packed:
        return embedding

    def stack(self, spec: StackSpec) -> Stack:
        if any(layer.experts is not None for layer in spec.layers):
            return OpStack(self, spec)  # the C++ forward knows no experts
        return NativeStack(self.library, spec)

    def linear(self, x: Tensor, weight: Packed) -> Tensor:
        return self._linear.linear(x, weight).to(x.dtype)

    def gated(self, x: Tensor, weight: Packed, activation: str) -> Tensor:
        """x [T, in], weight [2·F, in], F a multiple of 16 → [T, F]: act(first half) · second half in one operation."""
        return self._linear.linear(x, weight, ACTIVATIONS[activation])

    def experts(
        self, x: Tensor, router_logits: Tensor, weights: Sequence[tuple[Packed, Packed]], top_k: int, normalize: bool
    ) -> Tensor:
        def compute(number: int, rows: Tensor) -> Tensor:
            gate_up, down = weights[number]
            return self.linear(self.silu_mul(self.linear(rows, gate_up)), down)

        return mix(x, *route(router_logits, top_k, normalize), compute)

    def head(self, x: Tensor, weight: Packed) -> Tensor:
        return self._head(x, weight, None)

    def masked_head(self, x: Tensor, weight: Packed, masks: Masks) -> Tensor:
        return self._head(x, weight, masks)

    def head_best(self) -> Best | None:
        return self._best

    def _head(self, x: Tensor, weight: Packed, masks: Masks | None) -> Tensor:
        logits = self._room(len(x), weight.outs)
        self._best = self._linear.head(x, weight, masks, logits)
        return logits

    def _room(self, rows: int, outs: int) -> Tensor:
        """Memory for logits, the same from call to call: new memory for 32 rows of 49,152 numbers costs milliseconds of
        page faults a step."""
        if self._logits.shape != (len(self._logits), outs) or len(self._logits) < rows:
            self._logits = torch.empty(max(rows, 8), outs)
            advise_huge(self._logits.data_ptr(), self._logits.nbytes)
        return self._logits[:rows]

    def embedding(self, ids: Tensor, weight: Packed) -> Tensor:
        return self._linear.lookup(ids, weight)

    def make_kv(self, layers: int, kv_heads: int, pages: int, head_dim: int, dtype: torch.dtype) -> KvStore:
        return self._attention.make_kv(layers, kv_heads, pages, head_dim, dtype)

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return self._attention.rotary(q, k, cos, sin)

    def write_kv(self, kv: KvStore, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        self._attention.write_kv(kv, layer, k, v, slots)

    def plan_attention(self, rows: Sequence[AttentionRow], device: torch.device) -> AttentionPlan:
        return self._attention.plan_attention(rows, device)

    def attention(
        self, q: Tensor, kv: KvStore, layer: int, plan: Any, scale: float, window: int | None = None
    ) -> Tensor:
        return self._attention.attention(q, kv, layer, plan, scale, window)

    def copy_pages(self, kv: KvStore, copies: Sequence[tuple[int, int, int]]) -> None:
        self._attention.copy_pages(kv, copies)

    def page_bytes(self, kv: KvStore) -> int:
        return kv.page_bytes

    def read_pages(self, kv: KvStore, pages: Sequence[int]) -> Bytes:
        return kv.read_pages(pages)

    def write_pages(self, kv: KvStore, pages: Sequence[int], data: Bytes) -> None:
        kv.write_pages(pages, data)

    def move_slots(self, kv: KvStore, src: Tensor, dst: Tensor) -> None:
        self._attention.move_slots(kv, src, dst)
