"""Runs passes of a model with torch: rows of a plan in, drawn tokens out.

Knows page numbers and tensors; nothing of requests, text or scheduling. On a CPU a pass is over when `submit` returns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..kernels.table import AttentionRow, Bytes, Masks
from ..types import PAGE, Row, TokenLogprob
from .head_masks import spare
from .models.base import Batch, Model
from .plan import Move, Plan, Sampled, SampleRow, ScoreRow
from .sampler import Sampler
from .uploads import upload


class TorchHandle:
    """A pass whose hidden states are known, `hidden` [R, D] where logits are wanted. The head waits for the masks:
    where a grammar allows few tokens, it computes few."""

    def __init__(self, runner: TorchRunner, hidden: Tensor) -> None:
        self._runner = runner
        self.hidden = hidden
        self._sampled: list[Sampled] = []
        self._scored: list[list[TokenLogprob]] = []

    def sample(self, draws: Sequence[SampleRow], scores: Sequence[ScoreRow]) -> None:
        """Draw tokens; the next plan's placeholders stand for them."""
        runner, spared = self._runner, spare(draws, scores)
        ops = runner.model.ops
        sampled: list[Sampled] = []
        if spared.draws or scores:
            with torch.inference_mode():
                logits = runner.logits(self.hidden, spared.masks)
                self._scored = runner.sampler.score(logits, scores)
                sampled = runner.sampler.sample(logits, spared.draws, ops.apply_mask, ops.head_best())
        self._sampled = spared.merge(sampled)
        # A draw that found nothing allowed ends its sequence; the row planned after it needs some token all the same.
        runner.last_tokens = [max(sampled.token, 0) for sampled in self._sampled]

    def result(self) -> tuple[list[Sampled], list[list[TokenLogprob]]]:
        return self._sampled, self._scored


class TorchRunner:
    """Owns the model and the key-value storage of `pages` pages, in `kv_dtype` or else the model's type."""

    def __init__(self, model: Model, pages: int, kv_dtype: torch.dtype | None = None) -> None:
        shape = model.shape
        self.model = model
        self.sampler = Sampler(shape.vocab_size)
        self.last_tokens: list[int] = []
        self.hidden = torch.empty(0)  # of the newest pass, [R, D] where logits are wanted
        self.device = torch.device("cpu")
        self._layout_seconds = self._head_seconds = 0.0
        self.kv_dtype = kv_dtype or model.dtype
        self.pages = pages
        self._kv: Any = model.ops.make_kv(shape.layers, shape.kv_heads, pages, shape.head_dim, self.kv_dtype)

    def beside(self, model: Model) -> TorchRunner:
        """A runner of another model, with as many pages."""
        return TorchRunner(model, self.pages, self.kv_dtype)

    def submit(self, plan: Plan) -> TorchHandle:
        """Compute one pass. Page copies come first."""
        ops = self.model.ops
        began = time.perf_counter()
        with torch.inference_mode():
            if plan.copies:
                ops.copy_pages(self._kv, plan.copies)
            layout = lay_out(plan.rows, self.last_tokens)
            rows = [AttentionRow(row.start, len(row.tokens), row.pages, row.parents) for row in plan.rows]
            batch = Batch(
                torch.from_numpy(layout.tokens),
                torch.from_numpy(layout.positions),
                torch.from_numpy(layout.slots),
                ops.plan_attention(rows, self.device),
            )
            self._layout_seconds += time.perf_counter() - began
            hidden = self.model.forward(batch, self._kv)
            if len(layout.logits) < len(layout.tokens):
                hidden = hidden[torch.from_numpy(layout.logits)]
            self.hidden = hidden
            return TorchHandle(self, hidden)

    def move(self, moves: Sequence[Move]) -> None:
        """See `plan.Runner`."""
        src, dst = upload(np.array(moves, np.int64).T.copy(), self.device).unbind(0)
        self.model.ops.move_slots(self._kv, src, dst)

    def settle(self) -> None:
        """Wait until all passes are over."""

    @property
    def page_bytes(self) -> int:
        return self.model.ops.page_bytes(self._kv)

    def read_pages(self, pages: Sequence[int]) -> Bytes:
        """See `Ops.read_pages`."""
        return self.model.ops.read_pages(self._kv, pages)

    def write_pages(self, pages: Sequence[int], data: Bytes) -> None:
        """See `Ops.write_pages`."""
        self.model.ops.write_pages(self._kv, pages, data)

    def logits(self, hidden: Tensor, masks: Masks | None) -> Tensor:
        """See `Model.logits`."""
        began = time.perf_counter()
        logits = self.model.logits(hidden, masks)
        self._head_seconds += time.perf_counter() - began
        return logits

    def profile(self) -> dict[str, float]:
        stages = self.model.profile()
        return {"layout": self._layout_seconds, **stages, "head": self._head_seconds} if stages else {}


class Layout:
    """The rows of a plan, one after another: `tokens`, `positions` and `slots` are [T], `logits` the indices into them
    whose logits are wanted, [R]; all int64."""

    __slots__ = ("logits", "positions", "slots", "tokens")

    def __init__(self, size: int, logits: int) -> None:
        self.tokens: npt.NDArray[np.int64] = np.empty(size, np.int64)
        self.positions: npt.NDArray[np.int64] = np.empty(size, np.int64)
        self.slots: npt.NDArray[np.int64] = np.empty(size, np.int64)
        self.logits: npt.NDArray[np.int64] = np.empty(logits, np.int64)


def lay_out(rows: Sequence[Row], last_tokens: Sequence[int] | None) -> Layout:
    """Flatten rows; a placeholder -1 - k becomes `last_tokens[k]`, where these are known."""
    layout = Layout(sum(len(row.tokens) for row in rows), sum(len(row.logits_at) for row in rows))
    at = wanted = 0
    for row in rows:
        length, start = len(row.tokens), row.start
        if length == 1:
            token = row.tokens[0]
            # A draw that nothing was allowed for is -1; its sequence is over and this row is thrown away.
            if token < 0 and last_tokens is not None:
                token = max(0, last_tokens[-1 - token])
            layout.tokens[at] = token
            layout.positions[at] = start
            layout.slots[at] = row.pages[start // PAGE] * PAGE + start % PAGE
        else:
            places = np.arange(start, start + length)
            positions = places if row.parents is None else start + _depths(row.parents)
            layout.tokens[at : at + length] = row.tokens
            layout.positions[at : at + length] = positions
            layout.slots[at : at + length] = np.asarray(row.pages)[places // PAGE] * PAGE + places % PAGE
        for index in row.logits_at:
            layout.logits[wanted] = at + index
            wanted += 1
        at += length
    return layout


def _depths(parents: Sequence[int]) -> npt.NDArray[np.int64]:
    """How far each token of a tree is from its root."""
    depths = np.zeros(len(parents), np.int64)
    for at, parent in enumerate(parents):
        if parent >= 0:
            depths[at] = depths[parent] + 1
    return depths
