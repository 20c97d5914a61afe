"""Draws on a device: queued with the pass, and taken when they are there.

The order of things is `runtime.sampler`'s. What a request does to its logits beside filters (penalties, bias, bans) is
put together on the host and applied on the device; masks, filters and the draw are one kernel each. Random numbers are
the host's: a function of seed, choice and position alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...kernels.triton.ops import TritonOps
from ...kernels.triton.sampling import DrawRows
from ...types import TokenLogprob
from ..plan import Sampled, SampleRow, ScoreRow
from ..random_numbers import Purpose, uniforms
from ..sampler import LOWEST_LOGPROB, Sampler, is_edited, is_greedy
from .port import Download, Port

_CHUNK = 64  # rows whose softmax is held at once when prompts are scored


class Scores(NamedTuple):
    """Log-probabilities under way: of each row its token's, then the `top` best, then their ids, [n, 1 + 2·top]."""

    values: Download
    top: int

    def take(self, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob]:
        found = []
        for token, top, (own, *rest) in zip(tokens, tops, self.values.wait().tolist(), strict=True):
            top = min(top, self.top)
            listed = zip(map(int, rest[self.top : self.top + top]), rest[:top], strict=True)
            found.append(TokenLogprob(token, own, list(listed)) if top else TokenLogprob(token, own))
        return found


class Draws(NamedTuple):
    """What `GpuSampler.start` has queued: `tokens` [n] int64 on the device, -1 where nothing was allowed."""

    tokens: Tensor
    arriving: Download
    wanted: list[int]  # draws whose log-probabilities are asked for
    tops: list[int]
    drawn: Scores | None
    known: list[tuple[ScoreRow, list[Scores]]]

    def take(self) -> tuple[list[Sampled], list[list[TokenLogprob]]]:
        """Wait for them."""
        tokens: list[int] = self.arriving.wait().tolist()
        scores: dict[int, TokenLogprob] = {}
        if self.drawn is not None:
            found = self.drawn.take([tokens[i] for i in self.wanted], self.tops)
            scores = {i: score for i, score in zip(self.wanted, found, strict=True) if tokens[i] >= 0}
        sampled = [Sampled(token, scores.get(i)) for i, token in enumerate(tokens)]
        scored: list[list[TokenLogprob]] = []
        for asked, chunks in self.known:
            listed: list[TokenLogprob] = []
            for at, chunk in enumerate(chunks):
                known = asked.tokens[at * _CHUNK : (at + 1) * _CHUNK]
                listed += chunk.take(known, [asked.top] * len(known))
            scored.append(listed)
        return sampled, scored


class GpuSampler:
    """`host` edits logits as it does on a processor."""

    def __init__(self, host: Sampler, ops: TritonOps, port: Port) -> None:
        self._host = host
        self._ops = ops
        self._port = port

    def start(self, logits: Tensor, draws: Sequence[SampleRow], scores: Sequence[ScoreRow]) -> Draws:
        """Queue draws from logits [R, V], which are not modified, and log-probabilities of known tokens."""
        tokens = self._draw(logits, draws)
        wanted = [i for i, draw in enumerate(draws) if draw.params.logprobs is not None]
        tops = [draws[i].params.logprobs or 0 for i in wanted]
        drawn = None
        if wanted:
            at = self._port.upload(np.array([[draws[i].row for i in wanted], wanted], np.int64))
            drawn = self._score(logits[at[0]], tokens[at[1]].clamp(min=0), max(tops))
        known = [(asked, self._score_known(logits, asked)) for asked in scores]
        return Draws(tokens, self._port.download(tokens), wanted, tops, drawn, known)

    def _draw(self, logits: Tensor, draws: Sequence[SampleRow]) -> Tensor:
        if not draws:
            return torch.empty(0, dtype=torch.int64, device=logits.device)
        if any(is_edited(draw) for draw in draws):
            logits = self._host.shaped(logits, draws, self._ops.apply_mask)
            draws = [draw._replace(row=at, mask=None) for at, draw in enumerate(draws)]
        tokens = self._ops.draw(logits, self._rows(draws))
        guessed = [at for at, draw in enumerate(draws) if draw.guess is not None and not is_greedy(draw.params)]
        if guessed:
            settled = self._settle(logits, [draws[at] for at in guessed])
            tokens.index_copy_(0, self._port.upload(np.array(guessed, np.int64)), settled)
        return tokens

    def _rows(self, draws: Sequence[SampleRow]) -> DrawRows:
        """In one upload, and one more for masks."""
        params = [draw.params for draw in draws]
        count = len(draws)
        packed = np.empty((5, count), np.float64)
        packed[0] = [param.top_p for param in params]
        packed[1] = [param.min_p for param in params]
        packed[2] = _numbers(draws, Purpose.SAMPLE)
        narrow = packed[3:].view(np.int32).reshape(4, count)
        narrow[0] = [draw.row for draw in draws]
        narrow[1] = [param.top_k for param in params]
        masks = [draw.mask for draw in draws if draw.mask is not None]
        narrow[2] = -1
        narrow[2, [at for at, draw in enumerate(draws) if draw.mask is not None]] = range(len(masks))
        narrow[3] = np.array([param.temperature for param in params], np.float32).view(np.int32)
        there = self._port.upload(packed)
        row, top_k, mask, temperature = there[3:].view(torch.int32).view(4, count).unbind(0)
        bits = self._port.upload(np.stack(masks)) if masks else None
        return DrawRows(row, temperature.view(torch.float32), top_k, there[0], there[1], there[2], mask, bits)

    def _settle(self, logits: Tensor, draws: Sequence[SampleRow]) -> Tensor:
        """Rejection sampling from the draws' guesses."""
        guesses = [draw.guess for draw in draws if draw.guess is not None]
        stands, instead = self._port.upload(
            np.stack([_numbers(draws, Purpose.ACCEPT), _numbers(draws, Purpose.RESIDUAL)])
        ).unbind(0)
        return self._ops.settle(
            self._ops.odds(logits, self._rows(draws)),
            self._port.upload(np.stack([guess.odds for guess in guesses])),
            self._port.upload(np.array([guess.token for guess in guesses], np.int64)),
            stands,
            instead,
        )

    def _score_known(self, logits: Tensor, asked: ScoreRow) -> list[Scores]:
        chunks = []
        for start in range(0, len(asked.tokens), _CHUNK):
            tokens = self._port.upload(np.array(asked.tokens[start : start + _CHUNK], np.int64))
            row = asked.row + start
            chunks.append(self._score(logits[row : row + len(tokens)], tokens, asked.top))
        return chunks

    def _score(self, logits: Tensor, tokens: Tensor, top: int) -> Scores:
        """Of one token a row, and the best ones."""
        norm = logits.double().logsumexp(-1, keepdim=True)
        parts = [logits.gather(1, tokens[:, None]).double() - norm]
        top = min(top, logits.shape[1])
        if top:
            best = logits.sort(dim=-1, descending=True, stable=True)  # of equal ones the lowest id comes first
            parts += [best.values[:, :top].double() - norm, best.indices[:, :top].double()]
        parts[:-1] = [part.clamp(min=LOWEST_LOGPROB) for part in parts[:-1]]
        parts[0] = parts[0].clamp(min=LOWEST_LOGPROB)
        return Scores(self._port.download(torch.cat(parts, 1)), top)


def _numbers(draws: Sequence[SampleRow], purpose: Purpose) -> npt.NDArray[np.float64]:
    """The random numbers of draws, [n] in [0, 1)."""
    return uniforms(
        [draw.seed for draw in draws], [draw.choice for draw in draws], [draw.position for draw in draws], purpose
    )
