"""What the scheduler hands to the runner, and what comes back.

Knows nothing of HTTP, sockets or tensors. Plans run in the order in which they are submitted; that order is what lets a
page be given away as soon as the scheduler lets go of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..speculative.draft import Guess
from ..types import Row, SamplingParams, TokenLogprob


class Copy(NamedTuple):
    """The first `length` slots of page `src` become those of page `dst`, before the pass computes anything."""

    src: int
    dst: int
    length: int


class Move(NamedTuple):
    """What lies in slot `src` belongs into slot `dst`."""

    src: int
    dst: int


class SampleRow(NamedTuple):
    """One token to draw. `row` is the index of the logits in the pass's output, counted over all rows' `logits_at`.

    Random numbers depend on (seed, choice, position, purpose) alone: `position` is the index that the drawn token will
    have in its sequence.
    """

    row: int
    params: SamplingParams
    seed: int
    choice: int
    position: int
    output_counts: dict[int, int] | None = None  # token → times generated; None when no penalty needs it
    prompt_set: npt.NDArray[np.int64] | None = None  # distinct prompt tokens, for the repetition penalty
    banned: Sequence[int] = ()  # tokens that may not come now (end tokens before min_tokens)
    mask: npt.NDArray[np.int32] | None = None  # grammar mask, see grammar.base.MaskRow
    guess: Guess | None = None  # what rejection sampling starts from; None: the token is drawn afresh


class ScoreRow(NamedTuple):
    """Log-probabilities wanted for known tokens: `tokens[i]` under the logits number `row + i`, with `top` others."""

    row: int
    tokens: Sequence[int]
    top: int


class Sampled(NamedTuple):
    """A drawn token; `logprob` is None unless the request asked for log-probabilities.

    `token` is -1 when nothing was allowed: bans, bias and grammar mask left no token.
    """

    token: int
    logprob: TokenLogprob | None = None


@dataclass(slots=True)
class Plan:
    """One pass. `draws[i]` is the row (index into `rows`) whose last logits give the i-th sampled token; a placeholder
    -1 - k in the next plan's rows stands for draw k of this one."""

    rows: list[Row]
    copies: list[Copy] = field(default_factory=list)
    draws: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


class Handle(Protocol):
    """A pass under way."""

    def sample(self, draws: Sequence[SampleRow], scores: Sequence[ScoreRow]) -> None:
        """Start drawing tokens. Called once, after the masks for this pass are known."""

    def result(self) -> tuple[list[Sampled], list[list[TokenLogprob]]]:
        """Wait for the drawn tokens, and the log-probabilities of each ScoreRow."""


class Runner(Protocol):
    """Computes passes, in order."""

    def submit(self, plan: Plan) -> Handle:
        """Start a pass. Draws of the plan before it must have been started (`sample`) by then."""

    def move(self, moves: Sequence[Move]) -> None:
        """Copy slots, as if all were read before any is written, after the passes that have been submitted."""

    def profile(self) -> dict[str, float]:
        """Seconds spent on each stage of all passes so far; empty where that is not counted."""
