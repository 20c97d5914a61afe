"""A plan in the making, and what its rows mean.

Knows sequences and page tables; nothing of the queue or of what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from ..radix_cache.tree import Node
from ..speculative.draft import NOTHING, Draft
from ..types import Row
from .page_table import PageTable
from .plan import Copy, Plan
from .sequence import Sequence


@dataclass(slots=True)
class Entry:
    """What one row of a plan is for."""

    sequence: Sequence
    table: PageTable
    end: int  # position after the row's last known token
    draw: int  # index of its first draw in the plan, or -1
    logits: int  # number of its first logits in the pass
    scores: range  # prompt positions that its first logits score
    pinned: Node | None  # source of its page copy, held until the pass has run
    draft: Draft  # tokens after `end` that may turn out right; there is one draw more than these


@dataclass(slots=True)
class Step:
    """A plan and what its rows mean."""

    plan: Plan
    entries: list[Entry]
    began: float = 0.0

    @property
    def certain(self) -> bool:
        """It is known before the pass how many tokens each row takes in."""
        return not any(entry.draft.tokens for entry in self.entries)


class StepBuilder:
    """`left` is what remains of the token budget, `preempted` whether a sequence had to make room."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.plan = Plan([])
        self.entries: list[Entry] = []
        self.preempted = False
        self._members: set[int] = set()
        self._logits = 0

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.order in self._members

    def __bool__(self) -> bool:
        """Something is in the plan, or will be."""
        return bool(self._members)

    def reserve(self, sequence: Sequence, tokens: int) -> None:
        """It will be in the plan with so many known tokens, and keeps its place."""
        self._members.add(sequence.order)
        self.left -= tokens

    def add(
        self,
        sequence: Sequence,
        tokens: Items[int],
        draft: Draft = NOTHING,
        *,
        copy: Copy | None = None,
        pinned: Node | None = None,
    ) -> None:
        """A row of known `tokens`, and of draft tokens after them."""
        if sequence not in self:
            self.reserve(sequence, len(tokens))
        table = sequence.table
        assert table is not None
        start, end = sequence.planned, sequence.planned + len(tokens)
        scores = range(0)
        if sequence.scored < sequence.prompt_length:
            scores = range(max(start + 1, sequence.scored), min(end + 1, sequence.prompt_length))
        logits_at = [position - 1 - start for position in scores]
        draw = -1
        if end == sequence.length < sequence.limit:
            draw = len(self.plan.draws)
            self.plan.draws += [len(self.plan.rows)] * (1 + len(draft.tokens))
            logits_at += range(len(tokens) - 1, len(tokens) + len(draft.tokens))
            sequence.pending += 1
            sequence.pending_draw = draw
        self.entries.append(Entry(sequence, table, end, draw, self._logits, scores, pinned, draft))
        row = [*tokens, *draft.tokens] if draft.tokens else tokens
        parents = None
        if draft.parents is not None:
            known = len(tokens)
            parents = [*range(-1, known - 1), *(known + parent for parent in draft.parents)]
        self.plan.rows.append(Row(row, start, table.pages, logits_at, parents))
        if copy is not None:
            self.plan.copies.append(copy)
        sequence.planned = end
        self.left -= len(draft.tokens)
        self._logits += len(logits_at)

    def step(self, began: float) -> Step:
        return Step(self.plan, self.entries, began)
