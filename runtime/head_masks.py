"""What grammar masks spare the output head: draws that leave no choice need no logits, and others only those of allowed
tokens.

The head reads a quarter of a small model's weights, and inside JSON a grammar often leaves few tokens. Nothing here
changes what is drawn. Knows nothing of models or of how logits are computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..grammar.base import MaskRow
from ..grammar.matcher import only_bit
from ..kernels.table import Masks
from .plan import Sampled, SampleRow, ScoreRow


class Spared(NamedTuple):
    """`settled` are tokens known without logits, by index of the draw; `draws` all others, in order, and `masks` those
    of them that the head may apply."""

    settled: dict[int, int]
    draws: list[SampleRow]
    masks: Masks | None

    def merge(self, sampled: Sequence[Sampled]) -> list[Sampled]:
        """`sampled` are the results of `draws`; returns those of all."""
        rest = iter(sampled)
        count = len(self.settled) + len(sampled)
        return [Sampled(self.settled[i]) if i in self.settled else next(rest) for i in range(count)]


def spare(draws: Sequence[SampleRow], scores: Sequence[ScoreRow]) -> Spared:
    """Take out what the masks alone decide, and give the head the masks of rows that nobody else reads; of a row that
    nobody reads any more, nothing is computed.

    Log-probabilities are those of the distribution before the mask, so a draw that wants them keeps its row whole. A
    mask that the head applies need not be applied again, but for one beside a bias: infinity plus -inf is no number.
    """
    users = Counter(draw.row for draw in draws)
    for row, tokens, _ in scores:
        users.update(range(row, row + len(tokens)))
    settled: dict[int, int] = {}
    rest: list[SampleRow] = []
    bits: dict[int, MaskRow] = {}
    for i, draw in enumerate(draws):
        if draw.mask is None or draw.params.logprobs is not None:
            rest.append(draw)
            continue
        token = None if draw.params.logit_bias or draw.banned else only_bit(draw.mask)
        if token is not None:
            settled[i] = token
            users[draw.row] -= 1
            if not users[draw.row]:
                bits[draw.row] = np.zeros_like(draw.mask)
            continue
        if users[draw.row] == 1:
            bits[draw.row] = draw.mask
            if not draw.params.logit_bias:
                draw = draw._replace(mask=None)
        rest.append(draw)
    masks = Masks(torch.from_numpy(np.stack(list(bits.values()))), torch.tensor(list(bits))) if bits else None
    return Spared(settled, rest, masks)
