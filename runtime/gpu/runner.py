"""Runs passes of a model on a GPU: a submitted pass is under way, and its tokens are known when they are asked for.

A pass of short rows (decode, verify) is padded to a bucket and replayed from a recording; others are queued kernel by
kernel. A token that the pass before it draws is filled in on the device, so the host can submit a pass before it knows
what the last one drew.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import OutOfDeviceMemory
from ...kernels.table import AttentionRow
from ...kernels.triton.ops import TritonOps
from ...kernels.triton.plan import SHORT, AttentionPlan, Shape, describe, exact_shape
from ...types import TokenLogprob
from ..models.base import Batch, Model
from ..plan import Plan, Sampled, SampleRow, ScoreRow
from ..runner import TorchHandle, TorchRunner, lay_out
from .buckets import Bucket, bucket
from .graphs import Graphs, Recording
from .inputs import Inputs, pack, views
from .port import Port
from .sampler import Draws, GpuSampler

MOST_DRAWS = 4096
"""Of one pass: a row draws one token, and one more for each token that was drafted for it."""


class GpuHandle(TorchHandle):
    """A pass under way; `hidden` [R, D] where logits are wanted."""

    def __init__(self, runner: GpuRunner, hidden: Tensor) -> None:
        super().__init__(runner, hidden)
        self._on = runner
        self._draws: Draws | None = None

    def sample(self, draws: Sequence[SampleRow], scores: Sequence[ScoreRow]) -> None:
        """Queue the draws; the next plan's placeholders stand for them."""
        if draws or scores:
            self._draws = self._on.draw(self.hidden, draws, scores)

    def result(self) -> tuple[list[Sampled], list[list[TokenLogprob]]]:
        return self._draws.take() if self._draws is not None else ([], [])


class GpuRunner(TorchRunner):
    """See `TorchRunner`. `longest` is the longest context; recordings take at most about `graph_bytes`, 0: none are
    made."""

    def __init__(
        self,
        model: Model,
        pages: int,
        port: Port,
        longest: int,
        *,
        kv_dtype: torch.dtype | None = None,
        graph_bytes: int = 1 << 30,
    ) -> None:
        super().__init__(model, pages, kv_dtype)
        assert isinstance(model.ops, TritonOps)
        self._ops = model.ops
        self._port = port
        self.device = port.device
        self._longest = longest
        self._graph_bytes = graph_bytes
        self._drawn = torch.zeros(MOST_DRAWS, dtype=torch.int64, device=port.device)
        self._sampler = GpuSampler(self.sampler, model.ops, port)
        self.graphs = Graphs(port, graph_bytes, self._blank, self._compute)

    def submit(self, plan: Plan) -> GpuHandle:
        """Queue one pass. Page copies come first. Raises `OutOfDeviceMemory`; nothing has changed then but the targets
        of copies and the pages that the pass would have written."""
        try:
            with torch.inference_mode():
                return self._submit(plan)
        except torch.OutOfMemoryError as error:
            self._port.reclaim()
            raise OutOfDeviceMemory(str(error)) from error

    def beside(self, model: Model) -> GpuRunner:
        return GpuRunner(
            model, self.pages, self._port, self._longest, kv_dtype=self.kv_dtype, graph_bytes=self._graph_bytes
        )

    def settle(self) -> None:
        self._port.download(self._drawn[:1]).wait()

    def draw(self, hidden: Tensor, draws: Sequence[SampleRow], scores: Sequence[ScoreRow]) -> Draws:
        """Queue what `GpuHandle.sample` is asked for. Raises `OutOfDeviceMemory`."""
        try:
            with torch.inference_mode():
                queued = self._sampler.start(self.logits(hidden, None), draws, scores)
                # A draw that nothing was allowed for ends its sequence; its row in the next pass needs some token.
                self._drawn[: len(draws)] = queued.tokens.clamp(min=0)
                return queued
        except torch.OutOfMemoryError as error:
            self._port.reclaim()
            raise OutOfDeviceMemory(str(error)) from error

    def _submit(self, plan: Plan) -> GpuHandle:
        began = time.perf_counter()
        if plan.copies:
            self._ops.copy_pages(self._kv, plan.copies)
        layout = lay_out(plan.rows, None)
        rows = [AttentionRow(row.start, len(row.tokens), row.pages, row.parents) for row in plan.rows]
        found = self._recorded(rows)
        tokens, wanted = len(layout.tokens), len(layout.logits)
        if found is None:
            shape = exact_shape(rows)
            packed = pack(layout, tokens, wanted, describe(rows, shape))
            self._layout_seconds += time.perf_counter() - began
            self.hidden = self._forward(shape, views(self._port.upload(packed), tokens, wanted))
        else:
            room = found.bucket
            packed = pack(layout, room.tokens, room.tokens, describe(rows, Shape(*room)))
            self._port.fill(found.inputs, packed)
            self._layout_seconds += time.perf_counter() - began
            found.graph.replay()
            self.hidden = found.graph.output[:wanted]
        return GpuHandle(self, self.hidden)

    def _recorded(self, rows: Sequence[AttentionRow]) -> Recording | None:
        if not rows or max(row.length for row in rows) > SHORT:
            return None
        tokens = sum(row.length for row in rows)
        context = max(row.start + row.length for row in rows)
        wanted = bucket(len(rows), tokens, context, self._longest)
        return self.graphs.find(wanted) if wanted is not None else None

    def _blank(self, room: Bucket) -> Tensor:
        empty = pack(lay_out([], None), room.tokens, room.tokens, describe([], Shape(*room)))
        return self._port.upload(empty)

    def _compute(self, room: Bucket, array: Tensor) -> Tensor:
        return self._forward(Shape(*room), views(array, room.tokens, room.tokens))

    def _forward(self, shape: Shape, inputs: Inputs) -> Tensor:
        """Hidden states [R, D] of the wanted tokens; everything on the device."""
        tokens = torch.where(inputs.tokens < 0, self._drawn[(-1 - inputs.tokens).clamp_(min=0)], inputs.tokens)
        batch = Batch(tokens, inputs.positions, inputs.slots, AttentionPlan(shape, inputs.words))
        return self.model.forward(batch, self._kv).index_select(0, inputs.wanted)
