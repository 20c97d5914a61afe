"""A draft that was trained for the target and reads its hidden states (see `speculative.speculator`).

Keeps for each sequence the hidden state from which its newest token was drawn. Knows sequences and the target's runner;
nothing of what is drawn from its logits, or whether that is right.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Items
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..speculative.arbiter import Costs
from ..speculative.speculator import Speculator, State
from .runner import TorchRunner
from .sequence import Sequence

_TIMES = 3


class DraftHead:
    """Drafts for the sequences of `runner`."""

    def __init__(self, speculator: Speculator, runner: TorchRunner) -> None:
        shape = runner.model.shape
        self.reach = shape.context_length
        self._speculator = speculator
        self._runner = runner
        self._width = shape.vocab_size
        self._hidden: WeakKeyDictionary[Sequence, Tensor] = WeakKeyDictionary()
        self._state = State(torch.empty(0))
        self._live: list[Sequence] = []
        self.costs = Costs({rows: self._measure(rows, shape.hidden) for rows in (1, 8)})

    def _measure(self, rows: int, width: int) -> float:
        """Seconds of a token for so many sequences, the least of a few tries."""
        least = 1e9
        hidden, tokens = torch.zeros(rows, width), [0] * rows
        for _ in range(_TIMES):
            began = time.perf_counter()
            self._spread(self._speculator.begin(hidden, tokens)[1])
            least = min(least, time.perf_counter() - began)
        return least

    def drew(self, sequence: Sequence, row: int) -> None:
        """Its newest token was drawn from logits number `row` of the pass that is being committed."""
        self._hidden[sequence] = self._runner.hidden[row].clone()

    def unread(self, sequence: Sequence) -> int:
        return 0

    def catch_up(self, sequences: Items[Sequence]) -> None:
        """There is nothing to read."""

    def begin(self, sequences: Items[Sequence]) -> Tensor:
        hidden = torch.stack([self._hidden[sequence] for sequence in sequences])
        began = time.perf_counter()
        self._live = list(sequences)
        self._state, logits = self._speculator.begin(hidden, [sequence.ids[-1] for sequence in sequences])
        return self._timed(began, logits)

    def go_on(self, sequences: Items[Sequence], tokens: Items[int]) -> Tensor:
        began = time.perf_counter()
        place = {sequence: at for at, sequence in enumerate(self._live)}
        self._live = list(sequences)
        self._state, logits = self._speculator.step(self._state, [place[one] for one in sequences], tokens)
        return self._timed(began, logits)

    def _timed(self, began: float, logits: Tensor) -> Tensor:
        spread = self._spread(logits)
        self.costs.learn(len(logits), time.perf_counter() - began)
        return spread

    def _spread(self, logits: Tensor) -> Tensor:
        """[n, F] of frequent tokens → [n, V]; the others are never drafted."""
        spread = torch.full((len(logits), self._width), -torch.inf)
        spread[:, self._speculator.ids] = logits
        return spread
