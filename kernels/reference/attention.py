"""Attention of the three kinds of group. Knows nothing of requests; the plan has said who sees whom.

Decode rows in float32 read the cache in place: scores are a sampled product over a CSR pattern whose columns are slots,
the weighted sum of values is an embedding bag over the same columns. That is three tensor operations for any number of
rows, at 0.5 to 0.6 of the time of gathering into batched products. Shorter rows gather, some rows at a time so that
the workspace stays in cache. Long rows use torch's flash kernel, without a mask over the keys before the chunk: the
part before and the chunk's own part are merged by their log-sums, in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..table import PAGE
from .kv import KvStore, LayerKv
from .memory import advise_huge
from .plan import AttentionPlan, DenseGroup, LongRow, Sizes, Span, SparseGroup


class Workspace:
    """Memory for gathered pages, one block a type, kept between layers and passes.

    It grows to the largest gather so far: `plan.GATHERED` numbers or one row's keys, whichever is more.
    """

    def __init__(self) -> None:
        self._blocks: dict[torch.dtype, Tensor] = {}

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Uninitialised, valid until the next `take` of the same type."""
        size = 1
        for n in shape:
            size *= n
        block = self._blocks.get(dtype)
        if block is None or block.numel() < size:
            block = self._blocks[dtype] = torch.empty(size, dtype=dtype)
            advise_huge(block.data_ptr(), block.nbytes)
        return block[:size].view(shape)


def attend(
    q: Tensor, kv: KvStore, layer: int, plan: AttentionPlan, scale: float, window: int | None, workspace: Workspace
) -> Tensor:
    """q [T, H, d] → [T, H·d]."""
    tokens, heads, dim = q.shape
    assert tokens == plan.tokens, (tokens, plan.tokens)
    sparse = plan.sparse and q.dtype == kv.dtype == torch.float32
    groups = plan.groups(Sizes(heads, kv.kv_heads, kv.pages, dim, sparse, window))
    store = kv.layers[layer]
    if len(groups) == 1 and isinstance(groups[0], SparseGroup) and groups[0].tokens.index is None:
        return _sparse(q, store, groups[0], scale).view(tokens, heads * dim)
    out = q.new_empty(tokens, heads * dim)
    for group in groups:
        if isinstance(group, SparseGroup):
            values = _sparse(group.tokens.read(q), store, group, scale)
            group.tokens.write(out, values.view(group.tokens.count, heads * dim))
        elif isinstance(group, DenseGroup):
            values = _dense(group.reads.read(q), store, group, scale, workspace)
            group.writes.write(out, values if group.kept is None else values.index_select(0, group.kept))
        else:
            part = out.narrow(0, group.first, group.length)
            _long(q.narrow(0, group.first, group.length), part, store, group, scale, workspace)
    return out


def _sparse(q: Tensor, store: LayerKv, group: SparseGroup, scale: float) -> Tensor:
    """q [R, H, d] → [R·H, d]."""
    rows, heads, dim = q.shape
    torch.sparse.sampled_addmm(
        group.scores, q.reshape(rows * heads, dim), store.key_columns, beta=0.0, alpha=scale, out=group.scores
    )
    scores = group.scores.values().view(rows, heads, -1)
    if group.mask is not None:
        scores.add_(group.mask)
    weights = torch.softmax(scores, -1)
    bags: tuple[Tensor, ...] = torch.ops.aten._embedding_bag_forward_only.default(
        store.value_rows, group.columns, group.offsets, False, 0, False, weights.view(-1)
    )
    return bags[0]


def _dense(q: Tensor, store: LayerKv, group: DenseGroup, scale: float, workspace: Workspace) -> Tensor:
    """q [R·queries, H, d] → [R·queries, H·d]."""
    kv_heads, _, dim = store.keys.shape
    heads = q.shape[1]
    rows, queries, length, share = group.rows, group.queries, group.pages * PAGE, heads // kv_heads
    gathered = workspace.take((2 * kv_heads, rows * group.pages, PAGE * dim), store.keys.dtype)
    torch.index_select(store.pages, 1, group.page_index, out=gathered)
    slots = gathered.view(2 * kv_heads, rows * length, dim)
    if group.stale is not None:
        slots.index_fill_(1, group.stale, 0)
    if slots.dtype != torch.float32:
        slots = workspace.take(tuple(slots.shape), torch.float32).copy_(slots)
    keys, values = slots.view(2, kv_heads * rows, length, dim)
    by_head = q.view(rows, queries, kv_heads, share, dim).permute(2, 0, 3, 1, 4)
    scaled = (by_head.float() * scale).reshape(kv_heads * rows, share * queries, dim)
    scores = torch.bmm(scaled, keys.transpose(1, 2)).view(kv_heads, rows, share, queries, length)
    weights = torch.softmax(scores.add_(group.mask), -1).view(kv_heads * rows, share * queries, length)
    out = torch.bmm(weights, values).view(kv_heads, rows, share, queries, dim)
    return out.permute(1, 3, 0, 2, 4).reshape(rows * queries, heads * dim).to(q.dtype)


def _long(q: Tensor, out: Tensor, store: LayerKv, group: LongRow, scale: float, workspace: Workspace) -> None:
    """q [n, H, d] of one row; writes out [n, H·d]."""
    kv_heads, _, dim = store.keys.shape
    length, heads = q.shape[:2]
    by_head = q.reshape(length, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3).contiguous()
    if len(group.spans) == 1:
        merged, _ = _flash(by_head, store, group.spans[0], scale, workspace)
    else:
        merged, log_sum = _flash(by_head, store, group.spans[0], scale, workspace)
        merged = merged.float()
        for span in group.spans[1:]:
            part, part_log_sum = _flash(by_head, store, span, scale, workspace)
            share = torch.sigmoid(part_log_sum - log_sum).unsqueeze(-1)
            merged = torch.lerp(merged, part.float(), share)
            log_sum = torch.logaddexp(log_sum, part_log_sum)
    out.view(length, kv_heads, heads // kv_heads, dim).copy_(merged.permute(2, 0, 1, 3))


def _flash(q: Tensor, store: LayerKv, span: Span, scale: float, workspace: Workspace) -> tuple[Tensor, Tensor]:
    """q [K, G, n, d] over one span → (output like q, log of the sum of exponentials [K, G, n] in float32)."""
    kv_heads, share, length, dim = q.shape
    gathered = workspace.take((2 * kv_heads, len(span.page_index), PAGE * dim), store.keys.dtype)
    torch.index_select(store.pages, 1, span.page_index, out=gathered)
    slots = gathered.view(2, kv_heads, 1, -1, dim).narrow(3, span.skip, span.keys)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    if span.mask is None and not span.causal:
        # All queries see all keys, so those of the heads that share a key head can be one block.
        folded = q.view(1, kv_heads, share * length, dim)
        keys, values = slots.transpose(1, 2)
        out, log_sum = flash(folded, keys, values, 0.0, False, scale=scale)
        return out.reshape(q.shape), log_sum.reshape(kv_heads, share, length)
    keys, values = slots.expand(2, kv_heads, share, span.keys, dim)
    out, log_sum = flash(q, keys, values, 0.0, span.causal, attn_mask=span.mask, scale=scale)
    return out, log_sum
