"""A smaller model with the same vocabulary, whose guesses the target verifies.

Its keys and values lie in a second tensor under the target's page numbers: whoever shares a page shares both, so forks,
hits and evictions come free. What it has read is marked page by page; it reads a sequence when it first drafts for it,
and again what a page lost (a page that is handed out is unread). Writing to a page that others share is harmless: they
have the same tokens there, which give the same keys and values.

Knows sequences, pages and a runner; nothing of what is drawn from its logits, or whether that is right.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Items

import torch
from torch import Tensor

from ..radix_cache.pool import PagePool
from ..speculative.arbiter import WIDEST, Costs
from ..types import PAGE, Row
from .plan import Plan
from .reading import Reading
from .runner import TorchRunner
from .sequence import Sequence

READS = 256
"""Tokens of a prompt that are read in one step beside the target's pass."""


class DraftModel:
    """`width` is that of the target's head; `costs` are seconds by tokens of one pass of the draft model."""

    def __init__(self, runner: TorchRunner, pool: PagePool, width: int, costs: Costs) -> None:
        self.costs = costs
        self.reach = runner.model.shape.context_length
        self._runner = runner
        self._width = width
        self._whole = bytearray(pool.total)
        assert pool.taken is None, "a pool tells one listener"
        pool.taken = self._forget

    def _forget(self, pages: Items[int]) -> None:
        for page in pages:
            self._whole[page] = 0

    def drew(self, sequence: Sequence, row: int) -> None:
        """It reads tokens, not what they were drawn from."""

    def unread(self, sequence: Sequence) -> int:
        """Tokens that have to be read before it can be drafted for; the last one always is."""
        return len(sequence.ids) - self._reading(sequence).read

    def catch_up(self, sequences: Items[Sequence]) -> None:
        """Read on in prompts, `READS` tokens in all."""
        left, rows = READS, []
        for sequence in sequences:
            reading = self._reading(sequence)
            end = min(len(sequence.ids) - 1, reading.read + left)
            if end > reading.read:
                rows.append(Row(sequence.ids[reading.read : end], reading.read, reading.table.pages, ()))
                left -= end - reading.read
                self._advance(reading, end)
        if rows:
            self._pass(rows)

    def begin(self, sequences: Items[Sequence]) -> Tensor:
        """Logits [n, V] of the token after the last one of each; their pages must cover what is drafted."""
        rows = []
        for sequence in sequences:
            reading, ids = self._reading(sequence), sequence.ids
            reading.read = min(reading.read, len(ids) - 1)  # what was drafted last was not verified
            reading.ahead.clear()
            unread = ids[reading.read :]
            rows.append(Row(unread, reading.read, reading.table.pages, (len(unread) - 1,)))
            self._advance(reading, len(ids))
        return self._pass(rows)

    def go_on(self, sequences: Items[Sequence], tokens: Items[int]) -> Tensor:
        """The same, after one token more each."""
        rows = []
        for sequence, token in zip(sequences, tokens, strict=True):
            reading = self._reading(sequence)
            rows.append(Row((token,), reading.read + len(reading.ahead), reading.table.pages, (0,)))
            reading.ahead.append(token)
        return self._pass(rows)

    def _reading(self, sequence: Sequence) -> Reading:
        """Where it stands, now that it is known which of the tokens read ahead were right."""
        table, reading = sequence.table, sequence.reading
        assert table is not None
        if reading is None or reading.table is not table:
            read = 0
            while read < len(table.pages) and self._whole[table.pages[read]]:
                read += 1
            reading = sequence.reading = Reading(table, min(read * PAGE, len(sequence.ids) - 1))
        elif reading.ahead and len(sequence.ids) > reading.read:
            known = sequence.ids[reading.read : reading.read + len(reading.ahead)]
            right = 0
            while right < len(known) and known[right] == reading.ahead[right]:
                right += 1
            reading.ahead.clear()
            self._advance(reading, min(reading.read + right, len(sequence.ids) - 1))
        return reading

    def _advance(self, reading: Reading, end: int) -> None:
        for page in reading.table.pages[reading.read // PAGE : end // PAGE]:
            self._whole[page] = 1
        reading.read = end

    def _pass(self, rows: list[Row]) -> Tensor:
        """Logits of the rows that want any, as wide as the target's: what only one of the two has is never drawn."""
        began = time.perf_counter()
        plan = Plan(rows)
        hidden = self._runner.submit(plan).hidden
        if not len(hidden):
            return hidden
        with torch.inference_mode():
            logits = self._runner.logits(hidden, None)
        self._runner.settle()
        if plan.tokens <= WIDEST:
            self.costs.learn(plan.tokens, time.perf_counter() - began)
        missing = self._width - logits.shape[1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return logits[:, : self._width] if missing else logits
