"""How `select` picks among texts by their log-probabilities.

Knows nothing of models. For C choices, `ids[c]` are the tokens of choice c and `scores[c]` their log-probabilities.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple

from ..types import Segment
from .text_side import TextSide

Method = Literal["mean", "greedy", "unconditional"]
Score = Callable[[Sequence[int], "Ids"], Awaitable["Scores"]]
"""Of a prefix (ids, not empty) and C choices the log-probabilities of each token of each choice after the prefix."""

Ids = Sequence[Sequence[int]]
Scores = Sequence[Sequence[float]]


class Chosen(NamedTuple):
    """The winner's place, and one figure a choice (higher is better)."""

    winner: int
    scores: list[float]


async def choose(
    prefix: Sequence[int], choices: Sequence[str], method: Method, backend: TextSide, score: Score
) -> tuple[list[list[int]], Chosen]:
    """The choices' ids, each encoded alone, and the best of them after `prefix`."""
    ids = await asyncio.gather(*(backend.encode([Segment(choice, False)]) for choice in choices))
    scores = await score(prefix, ids)
    if method == "greedy":
        return ids, greedily(ids, scores)
    if method == "mean":
        return ids, by_mean(scores)
    # A first token needs a predecessor; a model without a begin-of-text token gets a line break.
    alone = await backend.text_start() or await backend.encode([Segment("\n", False)])
    return ids, by_gain(scores, await score(alone, ids))


def _best(scores: list[float]) -> Chosen:
    return Chosen(max(range(len(scores)), key=scores.__getitem__), scores)


def by_mean(scores: Scores) -> Chosen:
    """The best mean log-probability of a token, so that long choices are not at a loss."""
    return _best([sum(row) / len(row) for row in scores])


def by_gain(scores: Scores, alone: Scores) -> Chosen:
    """The most pointwise mutual information with the text before: log p(choice | text) - log p(choice).

    The second term, `alone`, is measured without the text. Holtzman et al. 2021, "Surface form competition".
    """
    return _best([sum(row) - sum(base) for row, base in zip(scores, alone, strict=True)])


def greedily(ids: Ids, scores: Scores) -> Chosen:
    """Token by token, keep the choices that go on with the likeliest token.

    A choice that is over counts as going on with its own mean. Choices with the same token at the same place are kept
    or dropped together, whatever the last bits of their figures; so rounding never decides between them. The figures
    returned are the means.
    """
    means = by_mean(scores).scores
    alive = list(range(len(ids)))
    place = 0
    while len(alive) > 1:
        branches: dict[int | None, list[int]] = {}
        figures: dict[int | None, float] = {}
        for choice in alive:
            over = place >= len(ids[choice])
            token = None if over else ids[choice][place]
            figure = means[choice] if over else scores[choice][place]
            branches.setdefault(token, []).append(choice)
            figures[token] = max(figure, figures.get(token, figure))
        best = max(figures, key=figures.__getitem__)
        alive = branches[best]
        if best is None:
            break
        place += 1
    return Chosen(alive[0], means)
