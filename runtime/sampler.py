"""From logits to tokens: penalties, bias, mask, filters, the draw, and log-probabilities.

Order: repetition, presence and frequency penalties → logit bias → banned tokens and grammar mask → temperature →
top-k → top-p → min-p → draw. Log-probabilities are those of the raw distribution, before all of that. A draw is a pure
function of the row's own logits, its parameters and one number keyed on (seed, choice, position): see `random_numbers`.

Knows nothing of requests, stop conditions or the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace
from torch import Tensor

from ..kernels.table import Best
from ..speculative.draft import Guess
from ..types import SamplingParams, TokenLogprob
from .distributions import Filters, argmax, best, draw_dense, draw_ranked, log_norm, probabilities, scale
from .plan import Sampled, SampleRow, ScoreRow
from .random_numbers import Purpose, uniforms
from .rejection import settle
from .uploads import upload

ApplyMask = Callable[[Tensor, Tensor, Tensor], None]

NOTHING_ALLOWED = -1
"""Token of a draw for which bans, bias and mask left no token."""

LOWEST_LOGPROB = -9999.0  # what JSON and clients get for minus infinity
_SCORE_CHUNK = 64  # rows whose softmax is held at once when prompts are scored
_SHORT, _MEDIUM, _LONG = 64, 256, 1024  # candidate lists; which one is a row's own affair


class Sampler:
    """Draws tokens from rows of logits and scores known ones. Holds no state beyond the width of the head."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def sample(
        self, logits: Tensor, draws: Sequence[SampleRow], apply_mask: ApplyMask, known: Best | None = None
    ) -> list[Sampled]:
        """One token a draw. logits [R, V] float32 is not modified; several draws may share a row.

        `apply_mask` is `Ops.apply_mask`, and `known` the best token of each row where that is known. A draw that
        nothing is left for gives the token `NOTHING_ALLOWED` (-1) and no log-probability. Raises `ValueError` where a
        bias, ban or penalty names an id outside the head.
        """
        self._check(logits)
        if not draws:
            return []
        plain = [i for i, draw in enumerate(draws) if is_greedy(draw.params) and not is_shaped(draw)]
        tokens: list[int] = [NOTHING_ALLOWED] * len(draws)
        if plain:
            rows = [draws[i].row for i in plain]
            ids, values = argmax(logits, rows) if known is None else (known.ids[rows], known.values[rows])
            for i, token, value in zip(plain, ids.tolist(), values.tolist(), strict=True):
                tokens[i] = NOTHING_ALLOWED if value == -inf else token
        if len(plain) < len(draws):
            taken = set(plain)
            rest = [i for i in range(len(draws)) if i not in taken]
            self._sample_shaped(logits, draws, rest, apply_mask, tokens)
        wanted = [i for i, draw in enumerate(draws) if draw.params.logprobs is not None and tokens[i] >= 0]
        scores = self._score_draws(logits, draws, wanted, tokens) if wanted else {}
        return [Sampled(token, scores.get(i)) for i, token in enumerate(tokens)]

    def score(self, logits: Tensor, scores: Sequence[ScoreRow]) -> list[list[TokenLogprob]]:
        """Raw log-probabilities of known tokens, one list a ScoreRow, with the `top` best tokens each."""
        self._check(logits)
        results: list[list[TokenLogprob]] = []
        for row, tokens, top in scores:
            found: list[TokenLogprob] = []
            for start in range(0, len(tokens), _SCORE_CHUNK):
                chunk = tokens[start : start + _SCORE_CHUNK]
                found += _logprobs(logits[row + start : row + start + len(chunk)], chunk, [top] * len(chunk))
            results.append(found)
        return results

    def _check(self, logits: Tensor) -> None:
        if logits.shape[1] != self.vocab_size or logits.dtype != torch.float32:
            raise ValueError(f"logits are [R, {self.vocab_size}] float32, not {list(logits.shape)} {logits.dtype}")

    def _score_draws(
        self, logits: Tensor, draws: Sequence[SampleRow], wanted: list[int], tokens: list[int]
    ) -> dict[int, TokenLogprob]:
        rows = _tensor([draws[i].row for i in wanted], logits)
        tops = [draws[i].params.logprobs or 0 for i in wanted]
        scored = _logprobs(logits.index_select(0, rows), [tokens[i] for i in wanted], tops)
        return dict(zip(wanted, scored, strict=True))

    def propose(self, logits: Tensor, draws: Sequence[SampleRow], apply_mask: ApplyMask) -> list[Guess | int]:
        """One token a draw from a draft model's logits [n, V], row i for draw i; `sample` takes it as a guess.

        A draw whose outcome is settled by the seed (greedy, or a seed was asked for) is made as `sample` would: the
        target's own draw with the same number will often be the same. Others come with the distribution that they are
        from. -1 where nothing is allowed.
        """
        proposed: list[Guess | int] = [NOTHING_ALLOWED] * len(draws)
        exact = [i for i, draw in enumerate(draws) if not _is_random(draw.params)]
        unscored = [draws[i]._replace(params=replace(draws[i].params, logprobs=None)) for i in exact]
        for i, sampled in zip(exact, self.sample(logits, unscored, apply_mask), strict=True):
            proposed[i] = sampled.token
        free = [i for i, draw in enumerate(draws) if _is_random(draw.params)]
        if free:
            rows = [draws[i] for i in free]
            work = self.shaped(logits, rows, apply_mask)
            empty = _fill_empty(work).tolist()
            odds = self._odds(work, rows)
            ids = draw_dense(odds, _uniforms(rows, Purpose.DRAFT, odds.device)).tolist()
            for i, token, distribution, nothing in zip(free, ids, odds.cpu().numpy(), empty, strict=True):
                if not nothing:
                    proposed[i] = Guess(token, distribution)
        return proposed

    def _sample_shaped(
        self, logits: Tensor, draws: Sequence[SampleRow], which: list[int], apply_mask: ApplyMask, tokens: list[int]
    ) -> None:
        """Draw for the rows that are not plain argmax, on a copy of their logits."""
        chosen = [draws[i] for i in which]
        work = self.shaped(logits, chosen, apply_mask)
        for kind, members in _group(chosen, self.vocab_size).items():
            whole = len(members) == len(chosen)
            part = work if whole else work.index_select(0, _tensor(members, work))
            _store(tokens, [which[at] for at in members], self._draw(part, [chosen[at] for at in members], kind))

    def shaped(self, logits: Tensor, rows: Sequence[SampleRow], apply_mask: ApplyMask) -> Tensor:
        """A copy of the rows' logits after penalties, bias, bans and masks."""
        work = logits.index_select(0, _tensor([row.row for row in rows], logits))
        _penalize(work, rows)
        _bias_and_ban(work, rows)
        masked = [(at, row.mask) for at, row in enumerate(rows) if row.mask is not None]
        if masked:
            bits = upload(np.stack([mask for _, mask in masked]), work.device)
            apply_mask(work, bits, _tensor([at for at, _ in masked], work))
        return work

    def _draw(self, work: Tensor, rows: list[SampleRow], candidates: int) -> Tensor:
        """Tokens [n] for rows of one kind (see `_group`); overwrites `work` [n, V]."""
        if candidates == _GREEDY:
            ids, values = argmax(work, range(len(work)))
            return ids.masked_fill_(values == -torch.inf, NOTHING_ALLOWED)
        empty = _fill_empty(work)
        if candidates == _GUESSED:
            ids = self._settle(work, rows)
            return ids.masked_fill_(empty, NOTHING_ALLOWED)
        _scale(work, rows)
        u = _uniforms(rows, Purpose.SAMPLE, work.device)
        filters = _filters(rows, self.vocab_size, work.device)
        if candidates == _DENSE:
            ids = draw_dense(_weights(work, rows, filters), u)
        else:
            ids = draw_ranked(work, filters, u, candidates)
        return ids.masked_fill_(empty, NOTHING_ALLOWED)

    def _settle(self, work: Tensor, rows: list[SampleRow]) -> Tensor:
        """Rejection sampling from the rows' guesses; overwrites `work`."""
        guesses = [row.guess for row in rows if row.guess is not None]
        draft = upload(np.stack([guess.odds for guess in guesses]), work.device)
        return settle(
            self._odds(work, rows),
            draft,
            _tensor([guess.token for guess in guesses], work),
            _uniforms(rows, Purpose.ACCEPT, work.device),
            _uniforms(rows, Purpose.RESIDUAL, work.device),
        )

    def _odds(self, work: Tensor, rows: Sequence[SampleRow]) -> Tensor:
        """The distributions [n, V] that draws from shaped logits are from; overwrites `work`."""
        _scale(work, rows)
        odds = torch.empty_like(work)
        for kind, members in _group([row._replace(guess=None) for row in rows], self.vocab_size).items():
            at = _tensor(members, work)
            part, chosen = work[at], [rows[i] for i in members]
            filters = _filters(chosen, self.vocab_size, work.device)
            if kind == _DENSE:
                weights = _weights(part, chosen, filters)
                odds[at] = weights / weights.sum(dim=-1, keepdim=True, dtype=torch.float64).float()
            else:
                odds[at] = probabilities(part, filters, kind)
        return odds


def _fill_empty(work: Tensor) -> Tensor:
    """Which rows [n] of [n, V] allow nothing. They would turn into NaN: they get values whose draw is thrown away."""
    empty = work.amax(dim=-1) == -torch.inf
    if bool(empty.any()):
        work.masked_fill_(empty[:, None], 0.0)
    return empty


def _scale(work: Tensor, rows: Sequence[SampleRow]) -> None:
    scale(work, upload(np.array([row.params.temperature for row in rows], np.float32), work.device))


def _weights(scaled: Tensor, rows: Sequence[SampleRow], filters: Filters) -> Tensor:
    """Of rows without a filter that needs ranks."""
    weights = torch.softmax(scaled, dim=-1)
    if any(row.params.min_p > 0 for row in rows):
        lowest = filters.min_p * weights.amax(dim=-1)
        weights.masked_fill_(weights < lowest[:, None], 0.0)
    return weights


def _uniforms(rows: Sequence[SampleRow], purpose: Purpose, device: torch.device) -> Tensor:
    numbers = uniforms(
        [row.seed for row in rows], [row.choice for row in rows], [row.position for row in rows], purpose
    )
    return upload(numbers, device)


_GUESSED, _GREEDY, _DENSE = -2, -1, 0  # kinds of rows besides the sizes of candidate lists


def _group(rows: Sequence[SampleRow], width: int) -> dict[int, list[int]]:
    """Indices by kind: greedy, dense (no filter that needs ranks), or the length of the candidate list."""
    groups: dict[int, list[int]] = {}
    for at, row in enumerate(rows):
        params = row.params
        limited = 0 < params.top_k < width
        if is_greedy(params):
            kind = _GREEDY
        elif row.guess is not None:
            kind = _GUESSED
        elif not limited and params.top_p >= 1:
            kind = _DENSE
        elif not limited:
            kind = _MEDIUM
        else:
            kind = _SHORT if params.top_k <= _SHORT else _LONG
        groups.setdefault(kind, []).append(at)
    return groups


def is_greedy(params: SamplingParams) -> bool:
    return params.temperature <= 0 or params.top_k == 1


def _is_random(params: SamplingParams) -> bool:
    """Whether only the distribution of what is drawn is promised: nobody asked for a seed."""
    return params.seed is None and not is_greedy(params)


def _is_penalized(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


def is_shaped(row: SampleRow) -> bool:
    """Whether anything changes the logits before temperature."""
    return row.mask is not None or is_edited(row)


def is_edited(row: SampleRow) -> bool:
    """Whether anything but a mask does."""
    return bool(row.banned) or bool(row.params.logit_bias) or _is_penalized(row.params)


def _filters(rows: Sequence[SampleRow], width: int, device: torch.device) -> Filters:
    top_k = [row.params.top_k if 0 < row.params.top_k < width else width for row in rows]
    top_p = [row.params.top_p for row in rows]
    min_p = [row.params.min_p for row in rows]
    return Filters(
        upload(np.array(top_k, np.int64), device),
        upload(np.array(top_p, np.float64), device),
        upload(np.array(min_p, np.float64), device),
    )


def _penalize(work: Tensor, rows: Sequence[SampleRow]) -> None:
    """Repetition over prompt and output tokens, then presence and frequency over output tokens, in place.

    A repetition penalty r divides a positive logit and multiplies a negative one (Keskar et al., CTRL, 2019, as the
    field uses it); presence and frequency are subtracted as OpenAI defines them.
    """
    repeated: list[tuple[int, Iterable[int], float]] = []
    counted: list[tuple[int, Iterable[int], npt.NDArray[np.float32]]] = []
    for at, row in enumerate(rows):
        params, outputs = row.params, row.output_counts or {}
        if params.repetition_penalty != 1:
            repeated.append((at, outputs, params.repetition_penalty))
            if row.prompt_set is not None:
                repeated.append((at, row.prompt_set, params.repetition_penalty))
        if outputs and (params.presence_penalty or params.frequency_penalty):
            counts = np.fromiter(outputs.values(), np.float32, len(outputs))
            counted.append((at, outputs, params.presence_penalty + params.frequency_penalty * counts))
    flat = work.view(-1)
    if repeated:
        index, factor = _places(work, repeated)
        old = flat[index]  # an id of both prompt and output stands here twice, with one new value
        flat[index] = torch.where(old > 0, old / factor, old * factor)
    if counted:
        index, amount = _places(work, counted)
        flat[index] = flat[index] - amount


def _bias_and_ban(work: Tensor, rows: Sequence[SampleRow]) -> None:
    biased: list[tuple[int, Iterable[int], npt.NDArray[np.float32]]] = []
    banned: list[tuple[int, Iterable[int], float]] = []
    for at, row in enumerate(rows):
        bias = row.params.logit_bias
        if bias:
            biased.append((at, bias, np.fromiter(bias.values(), np.float32, len(bias))))
        if row.banned:
            banned.append((at, row.banned, -np.inf))
    flat = work.view(-1)
    if biased:
        index, amount = _places(work, biased)
        flat[index] = flat[index] + amount
    if banned:
        index, _ = _places(work, banned)
        flat[index] = -torch.inf


def _places(
    work: Tensor, entries: Sequence[tuple[int, Iterable[int], npt.NDArray[np.float32] | float]]
) -> tuple[Tensor, Tensor]:
    """Entries (row, ids, value or values) as flat indices into `work` and float32 values of the same length."""
    width = work.shape[1]
    indices: list[npt.NDArray[np.int64]] = []
    values: list[npt.NDArray[np.float32]] = []
    for at, tokens, value in entries:
        ids = tokens if isinstance(tokens, np.ndarray) else np.fromiter(tokens, np.int64)
        if len(ids) and (ids.min() < 0 or ids.max() >= width):
            raise ValueError(f"a token id is outside 0 … {width - 1}")
        indices.append(ids + at * width)
        values.append(np.broadcast_to(np.asarray(value, np.float32), ids.shape))
    index, value = np.concatenate(indices), np.concatenate(values)
    return upload(index, work.device), upload(value, work.device)


def _logprobs(logits: Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob]:
    """Raw log-probability of tokens[i] under logits[i], with the tops[i] best tokens; logits [n, V], n at least 1."""
    norm = log_norm(logits)
    own = (logits.gather(1, _tensor(tokens, logits)[:, None])[:, 0] - norm).clamp_(min=LOWEST_LOGPROB).tolist()
    longest = max(tops)
    if longest == 0:
        return [TokenLogprob(token, value) for token, value in zip(tokens, own, strict=True)]
    values, ids = best(logits, longest)
    listed = (values - norm[:, None]).clamp_(min=LOWEST_LOGPROB).tolist()
    return [
        TokenLogprob(token, value, list(zip(row_ids[:top], row_values[:top], strict=True)))
        for token, value, row_ids, row_values, top in zip(tokens, own, ids.tolist(), listed, tops, strict=True)
    ]


def _tensor(values: Sequence[int], like: Tensor) -> Tensor:
    return upload(np.array(values, np.int64), like.device)


def _store(tokens: list[int], at: Sequence[int], ids: Tensor) -> None:
    for index, token in zip(at, ids.tolist(), strict=True):
        tokens[index] = token
