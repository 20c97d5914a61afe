"""A draft model's guesses for several sequences, one token each at a time.

Each guess is drawn as the target's token would be: after the same penalties, bias, bans, mask and filters. A token that
may end the answer is guessed like any other, as the last one: to leave it out would favour the rest.

Knows sequences and what their draws are; nothing of the pass that verifies.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Items
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..grammar.base import MaskRow
from ..speculative.arbiter import Costs
from ..speculative.draft import Draft
from .plan import SampleRow
from .sampler import ApplyMask, Sampler
from .sequence import Sequence

Odds = npt.NDArray[np.float32]
"""A distribution [V]."""


class DraftSource(Protocol):
    """A model that guesses what comes next."""

    costs: Costs
    reach: int
    """The longest text that it takes."""

    def drew(self, sequence: Sequence, row: int) -> None:
        """Its newest token was drawn from logits number `row` of the pass that is being committed."""

    def unread(self, sequence: Sequence) -> int:
        """Tokens that have to be read before it can be drafted for."""

    def catch_up(self, sequences: Items[Sequence]) -> None:
        """Read some of them."""

    def begin(self, sequences: Items[Sequence]) -> Tensor:
        """Logits [n, V] of the token after the last one of each."""

    def go_on(self, sequences: Items[Sequence], tokens: Items[int]) -> Tensor:
        """Of the token after one more each."""


class Guesser:
    """`end_ids` end an answer unless the request says otherwise."""

    def __init__(self, source: DraftSource, sampler: Sampler, apply_mask: ApplyMask, end_ids: tuple[int, ...]) -> None:
        self.source = source
        self._sampler = sampler
        self._words = -(-sampler.vocab_size // 32)
        self._apply_mask = apply_mask
        self._end_ids = end_ids

    def guess(self, asked: Items[tuple[Sequence, int]]) -> list[Draft]:
        """At most so many tokens for each; matchers are left as they were."""
        trails = [_Trail(sequence, most, self._end_ids, self._words) for sequence, most in asked]
        live = trails
        logits = self.source.begin([trail.sequence for trail in live])
        while True:
            rows = [trail.row(at) for at, trail in enumerate(live)]
            logits = torch.nan_to_num(
                logits, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf
            )  # from a broken draft
            for trail, guess in zip(live, self._sampler.propose(logits, rows, self._apply_mask), strict=True):
                if isinstance(guess, int):
                    trail.take(guess, None)
                else:
                    trail.take(guess.token, guess.odds)
            live = [trail for trail in live if not trail.done]
            if not live:
                return [trail.draft() for trail in trails]
            logits = self.source.go_on([trail.sequence for trail in live], [trail.tokens[-1] for trail in live])


class _Trail:
    """The draft of one sequence in the making."""

    def __init__(self, sequence: Sequence, most: int, end_ids: tuple[int, ...], words: int) -> None:
        sampling = sequence.request.sampling
        self.sequence = sequence
        self.tokens: list[int] = []
        self.done = False
        self._most = most
        self._words = words
        self._end_ids = end_ids
        self._ends: Collection[int] = (*sampling.stop_token_ids, *(() if sampling.ignore_eos else end_ids))
        self._masks: list[MaskRow] = []
        self._odds: list[Odds | None] = []

    def row(self, at: int) -> SampleRow:
        """The draw of its next token from logits number `at`."""
        position = len(self.sequence.ids) + len(self.tokens)
        return self.sequence.sample_row(at, position, self._end_ids, self._mask(), self.tokens)

    def _mask(self) -> MaskRow | None:
        matcher = self.sequence.matcher
        if matcher is None:
            return None
        mask: MaskRow = np.full(self._words, -1, np.int32)
        if not matcher.terminated:
            matcher.fill_mask(mask)
        self._masks.append(mask)
        return mask

    def take(self, token: int, odds: Odds | None) -> None:
        """The token drawn, or -1 where nothing is allowed."""
        if token < 0:
            self.done = True
            return
        self.tokens.append(token)
        self._odds.append(odds)
        matcher = self.sequence.matcher
        if matcher is not None:
            taken = matcher.try_accept([token])
            assert taken == 1, "a token that the mask allowed"
        self.done = len(self.tokens) == self._most or token in self._ends
        self.done = self.done or (matcher is not None and matcher.terminated)
        if self.done:
            self._mask()  # of the draw after the last token

    def draft(self) -> Draft:
        matcher, count = self.sequence.matcher, len(self.tokens)
        if matcher is not None and count:
            matcher.rollback(count)
        masks = self._masks if matcher is not None else None
        return Draft(self.tokens, ["model"] * count, masks, self._odds)
