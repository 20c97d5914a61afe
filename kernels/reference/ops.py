"""The table of operations in plain torch, on the CPU. Knows nothing of requests or models.

Each method is as thin as it can be: a decode step of 30 layers calls about 300 of them, and at small batches the Python
around a tensor operation costs as much as the operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..stack import OpStack
from ..table import AttentionRow, Best, Blocks, Bytes, Masks, Stack, StackSpec
from .attention import Workspace, attend
from .experts import Expert, expert, mix, pack_experts, route
from .kv import KvStore
from .linear import PackedLinear, linear, pack_linear
from .plan import AttentionPlan, sparse_products_work

_MINUS_INF_BITS = -0x0080_0000  # float32 -inf as int32


class ReferenceOps:
    """Implements `kernels.table.Ops`. Holds workspace, so it serves one thread at a time."""

    name = "reference"
    identity = f"reference torch {torch.__version__}"
    keeps_blocks = False

    def __init__(self) -> None:
        self._workspace = Workspace()
        self._sparse = sparse_products_work()
        bit = torch.arange(256).unsqueeze(1) >> torch.arange(8) & 1
        self._kept_by_byte = bit.neg().to(torch.int32)  # [256, 8]: -1 (all ones) where the bit is set, else 0

    def pack_linear(self, weight: Tensor | Sequence[Blocks], bias: Tensor | None = None) -> PackedLinear:
        assert isinstance(weight, Tensor), "this back end keeps no blocks"
        return pack_linear(weight, bias)

    def pack_embedding(self, weight: Tensor | Blocks) -> Tensor:
        assert isinstance(weight, Tensor), "this back end keeps no blocks"
        return weight

    def pack_router(self, weight: Tensor) -> PackedLinear:
        return pack_linear(weight)

    def pack_experts(self, gate_up: Sequence[Tensor], down: Sequence[Tensor]) -> list[Expert]:
        return pack_experts(gate_up, down)

    def as_head(self, embedding: Tensor) -> PackedLinear:
        return pack_linear(embedding)

    def stack(self, spec: StackSpec) -> Stack:
        return OpStack(self, spec)

    def linear(self, x: Tensor, weight: PackedLinear) -> Tensor:
        return linear(x, weight)

    def embedding(self, ids: Tensor, weight: Tensor) -> Tensor:
        return functional.embedding(ids, weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        # As fast as `functional.rms_norm` on few rows and faster on many; and the statistics are surely float32.
        wide = x.float()
        scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        return torch.mul(wide, scale).mul_(weight).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = residual.add_(x)
        return self.rms_norm(total, weight, eps), total

    def make_kv(self, layers: int, kv_heads: int, pages: int, head_dim: int, dtype: torch.dtype) -> KvStore:
        return KvStore(layers, kv_heads, pages, head_dim, dtype)

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = cos.float()[:, None, None], sin.float()[:, None]
        heads, kv_heads = q.shape[1], k.shape[1]
        both = _side_by_side(q, k)
        if both is None:
            return _rotate(q, cos, sin), _rotate(k, cos, sin)
        turned = _rotate(both, cos, sin)
        return turned.narrow(1, 0, heads), turned.narrow(1, heads, kv_heads)

    def write_kv(self, kv: KvStore, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        kv.write(layer, k, v, slots)

    def plan_attention(self, rows: Sequence[AttentionRow], device: torch.device) -> AttentionPlan:
        assert device.type == "cpu", device
        return AttentionPlan(rows, sparse=self._sparse)

    def attention(
        self, q: Tensor, kv: KvStore, layer: int, plan: AttentionPlan, scale: float, window: int | None = None
    ) -> Tensor:
        return attend(q, kv, layer, plan, scale, window, self._workspace)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate).mul_(up)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return functional.gelu(gate, approximate="tanh").mul_(up)

    def experts(
        self, x: Tensor, router_logits: Tensor, weights: Sequence[Expert], top_k: int, normalize: bool
    ) -> Tensor:
        shares, chosen = route(router_logits, top_k, normalize)
        return mix(x, shares, chosen, lambda number, rows: expert(rows, weights[number]))

    def head(self, x: Tensor, weight: PackedLinear) -> Tensor:
        return linear(x, weight).float()

    def masked_head(self, x: Tensor, weight: PackedLinear, masks: Masks) -> Tensor:
        # All of it: oneDNN's layout has no rows to choose, and another product would round in another order.
        logits = self.head(x, weight)
        self.apply_mask(logits, *masks)
        return logits

    def head_best(self) -> Best | None:
        return None

    def apply_mask(self, logits: Tensor, bits: Tensor, rows: Tensor) -> None:
        # With -1 or 0 for each token, `and` and `or` on the bit patterns set -inf without a branch: a masked fill of
        # a row of 49,152 takes three times as long when the bits are mixed.
        width = logits.shape[1]
        for words, row in zip(bits, rows.tolist(), strict=True):
            octets = words.contiguous().view(torch.uint8).to(torch.int32)
            kept = self._kept_by_byte.index_select(0, octets).view(-1)[:width]
            values = logits[row].view(torch.int32)
            values.bitwise_and_(kept)
            values.bitwise_or_(kept.bitwise_not_().bitwise_and_(_MINUS_INF_BITS))

    def copy_pages(self, kv: KvStore, copies: Sequence[tuple[int, int, int]]) -> None:
        kv.copy_pages(copies)

    def page_bytes(self, kv: KvStore) -> int:
        return kv.page_bytes

    def read_pages(self, kv: KvStore, pages: Sequence[int]) -> Bytes:
        return kv.read_pages(pages)

    def write_pages(self, kv: KvStore, pages: Sequence[int], data: Bytes) -> None:
        kv.write_pages(pages, data)

    def move_slots(self, kv: KvStore, src: Tensor, dst: Tensor) -> None:
        kv.move_slots(src, dst)


def _side_by_side(q: Tensor, k: Tensor) -> Tensor | None:
    """q [T, H, d] and k [T, K, d] as one view [T, H + K, d], when they are neighbours in one projection's output."""
    heads, dim = q.shape[1:]
    if (
        q.stride() != k.stride()
        or q.stride()[1:] != (dim, 1)
        or k.data_ptr() - q.data_ptr() != heads * dim * q.element_size()
        or k.untyped_storage().data_ptr() != q.untyped_storage().data_ptr()
    ):
        return None
    return q.as_strided((q.shape[0], heads + k.shape[1], dim), q.stride())


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, heads, d], cos [T, 1, 1, d/2] and sin [T, 1, d/2] in float32."""
    tokens, heads, dim = x.shape
    halves = x.float().view(tokens, heads, 2, dim // 2)
    first, second = halves.unbind(2)
    turned = halves * cos
    turned_first, turned_second = turned.unbind(2)
    turned_first.addcmul_(second, sin, value=-1)
    turned_second.addcmul_(first, sin)
    return turned.view(tokens, heads, dim).to(x.dtype)
