"""One choice of one request, from the queue to its last token.

Holds token ids and the state that follows them (grammar, stop strings, penalties). Knows nothing of tensors, sockets or
of other sequences.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids

import numpy as np
import numpy.typing as npt

from ..grammar.base import MaskRow, Matcher
from ..radix_cache.tree import Key, Namespace
from ..speculative.arbiter import Verdicts
from ..speculative.draft import Guess
from ..speculative.suffix import SuffixIndex
from ..types import FinishReason, Output, Request, StopMatch, TokenLogprob
from .notes import Notes
from .page_table import PageTable
from .plan import SampleRow
from .reading import Reading
from .run import Run
from .stop_strings import StopMatcher


class Sequence:
    """Counts, all in tokens:

    computed ≤ planned       keys and values that passes have finished, and that passes were asked for
    pending                  draws asked for whose tokens are not known yet; they stand after `ids`
    """

    def __init__(self, request: Request, choice: int, seed: int, limit: int, matcher: Matcher | None) -> None:
        sampling = request.sampling
        self.request = request
        self.choice = choice
        self.seed = seed
        self.limit = limit  # tokens in all, prompt included, after which the choice is over
        self.ids: list[int] = list(request.ids)
        self.prompt_length = len(request.ids)
        self.namespace = Namespace(request.origin.tenant, "")
        self._key = Key.of(self.ids)
        self.table: PageTable | None = None  # while it runs
        self.planned = 0
        self.computed = 0
        self.pending = 0
        self.pending_draw = -1  # index of the newest pending draw in its plan
        self.cached_tokens: int | None = None  # of the first admission
        self.finish: FinishReason | None = None
        self.matcher = matcher
        self.stops = StopMatcher(sampling.stop)
        self.told = False  # an output has gone out
        self.scored = sampling.prompt_logprobs_from if self.scores_prompt else self.prompt_length
        self.prompt_logprobs: list[TokenLogprob] | None = [] if self.scores_prompt else None
        self.run: Run | None = None  # once it is queued
        self.index: SuffixIndex | None = None  # of its own text, once it drafts from it
        self.indexed = 0  # how much of it
        self.verdicts: Verdicts | None = None  # on what was drafted from there
        self.reading: Reading | None = None  # what a draft model has read of it
        self.notes = Notes()
        self.arrival = 0.0
        self.order = 0  # tie-breaker: order of arrival
        penalised = bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0)
        self.counts: dict[int, int] | None = {} if penalised else None
        self.prompt_set: npt.NDArray[np.int64] | None = (
            np.unique(np.asarray(request.ids, np.int64)) if sampling.repetition_penalty != 1.0 else None
        )

    @property
    def generated(self) -> int:
        return len(self.ids) - self.prompt_length

    @property
    def length(self) -> int:
        """Tokens known or on their way."""
        return len(self.ids) + self.pending

    @property
    def scores_prompt(self) -> bool:
        return self.request.sampling.prompt_logprobs is not None and self.choice == 0

    @property
    def key(self) -> Key:
        """All known tokens, in the form that the prefix cache compares."""
        if len(self._key) != len(self.ids):
            self._key = Key.of(self.ids)
        return self._key

    @property
    def match_limit(self) -> int:
        """How long a cache hit may be: the last token is always computed, and so is the one whose logits score the next
        prompt token (`scored`)."""
        limit = len(self.ids) - 1
        if self.scored < self.prompt_length:
            limit = min(limit, self.scored - 1)
        return limit

    def next_tokens(self, budget: int) -> Ids[int]:
        """What a pass can compute now, at most `budget` tokens from position `planned`; empty if nothing."""
        known = len(self.ids)
        if self.planned < known:
            return self.ids[self.planned : min(known, self.planned + budget)]
        if self.pending and self.planned < self.length < self.limit:
            return (-1 - self.pending_draw,)
        return ()

    def append(self, token: int) -> None:
        self.ids.append(token)
        if self.counts is not None:
            self.counts[token] = self.counts.get(token, 0) + 1

    def sample_row(
        self,
        row: int,
        position: int,
        end_ids: Ids[int],
        mask: MaskRow | None,
        drafted: Ids[int] = (),
        guess: Guess | None = None,
    ) -> SampleRow:
        """The draw of the token at `position` from logits number `row`, as if `drafted` had been generated."""
        counts = self.counts
        if counts is not None and drafted:
            counts = dict(counts)
            for token in drafted:
                counts[token] = counts.get(token, 0) + 1
        sampling = self.request.sampling
        banned: Ids[int] = ()
        if position - self.prompt_length < sampling.min_tokens:
            banned = (*end_ids, *sampling.stop_token_ids)
        return SampleRow(
            row, sampling, self.seed, self.choice, position, counts, self.prompt_set, banned, mask, guess
        )  # fmt: skip

    def judge(self, token: int, piece: bytes, is_end: bool) -> tuple[FinishReason | None, StopMatch | None]:
        """Whether the token just appended ends this choice, and why."""
        sampling = self.request.sampling
        terminated = self.matcher is not None and self.matcher.terminated
        if terminated or (is_end and not sampling.ignore_eos) or token in sampling.stop_token_ids:
            return "stop", StopMatch(token=token)
        if sampling.stop:
            match = self.stops.push(piece)
            if match is not None and self.generated >= sampling.min_tokens:
                return "stop", match
        if len(self.ids) >= self.limit:
            return "length", None
        return None, None


def output_of(sequence: Sequence, tokens: list[int]) -> Output:
    """The news of one sequence; prompt log-probabilities go out with its first."""
    output = Output(sequence.request.id, sequence.choice, tokens, finish=sequence.finish)
    output.cached_tokens = sequence.cached_tokens or 0
    if sequence.prompt_logprobs is not None and not sequence.told:
        output.prompt_logprobs = sequence.prompt_logprobs
    sequence.told = True
    return output
