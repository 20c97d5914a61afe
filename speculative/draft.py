"""What a proposer offers for one row, and what of it a grammar lets pass.

Knows matchers; nothing of requests, scheduling or how tokens are verified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..grammar.base import MaskRow, Matcher
from ..grammar.matcher import only_bit

Source = Literal["forced", "text", "suffix", "model"]
"""The only token that a grammar allows; a token of text that it allows only; what was said before; the word of a draft
model."""


class Offer(NamedTuple):
    """Tokens that may come next. `match` says how much they are backed by: for a suffix, the tokens that matched."""

    tokens: Sequence[int]
    match: int = 0


class Guess(NamedTuple):
    """A token that a draft model drew, and `odds` [V] float32, summing to 1: the distribution that it drew from."""

    token: int
    odds: npt.NDArray[np.float32]


class Draft(NamedTuple):
    """Tokens to verify in one pass, the source of each, and the mask of each draw: that of the next token and of the
    one after every draft token. No masks without a grammar. `odds` are the distributions [V] that tokens were drawn
    from; None for one that is verified by drawing the target's own and comparing. `parents` makes a tree of it: the
    number of the draft token that each follows, -1 for what comes first; None: each follows the one before it.
    `matches` says of each how much it is backed by, where anything is."""

    tokens: list[int]
    sources: list[Source]
    masks: list[MaskRow] | None
    odds: list[npt.NDArray[np.float32] | None] | None = None
    parents: list[int] | None = None
    matches: Sequence[int] = ()

    def match(self, at: int) -> int:
        """See `Offer`."""
        return self.matches[at] if at < len(self.matches) else 0

    def parent(self, at: int) -> int:
        """The draft token that number `at` follows, or -1."""
        return at - 1 if self.parents is None else self.parents[at]

    def children(self, at: int) -> list[int]:
        """The draft tokens that follow number `at`, or for -1 what comes first; the likeliest first."""
        if self.parents is None:
            return [at + 1] if at + 1 < len(self.tokens) else []
        return [child for child, parent in enumerate(self.parents) if parent == at]

    def path(self, at: int) -> list[int]:
        """The tokens up to number `at`."""
        if self.parents is None:
            return self.tokens[: at + 1]
        found = []
        while at >= 0:
            found.append(self.tokens[at])
            at = self.parents[at]
        return found[::-1]

    def guess(self, at: int) -> Guess | None:
        """Draft token number `at`, where rejection sampling verifies it."""
        odds = self.odds[at] if self.odds is not None and at < len(self.tokens) else None
        return None if odds is None else Guess(self.tokens[at], odds)


NOTHING = Draft([], [], None)


def fork(first: Sequence[int], second: Sequence[int], most: int) -> tuple[list[int], list[int]]:
    """(tokens, parents) of a tree that says both, `second` as far as at most `most` tokens more go; what it begins like
    `first` stands in the tree once."""
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    rest = second[same : same + max(0, most)]
    joint = [same - 1, *range(len(first), len(first) + len(rest) - 1)] if rest else []
    return [*first, *rest], [*range(-1, len(first) - 1), *joint]


Encode = Callable[[str], Sequence[int]]
"""Text to token ids, on its own."""


def hold_to(
    matcher: Matcher,
    offer: Sequence[int],
    limit: int,
    words: int,
    *,
    forced: bool,
    encode: Encode | None = None,
    most_text: int = 0,
) -> Draft:
    """What of `offer` the grammar allows, at most `limit` tokens. With `forced`, the grammar's own word comes before
    the offer: where it leaves one token, that token; and where nothing is offered, at most `most_text` of the tokens
    that `encode` gives for the text that must come. The matcher is left as it was. `words` is the length of a mask."""
    tokens: list[int] = []
    sources: list[Source] = []
    masks: list[MaskRow] = []
    rest = list(reversed(offer))
    source: Source = "suffix"
    while True:
        mask: MaskRow = np.empty(words, np.int32)
        matcher.fill_mask(mask)
        masks.append(mask)
        if len(tokens) == limit:
            break
        only = only_bit(mask) if forced else None
        if only is not None and not (rest and rest[-1] == only):
            rest = [only]
            source = "forced"
        elif not rest and forced and encode is not None:
            rest = _text(matcher, encode, most_text - sources.count("text"))
            source = "text"
        if not rest or matcher.try_accept([token := rest.pop()]) != 1:
            break
        if matcher.terminated:  # an end token is drawn, not drafted: nothing follows it
            matcher.rollback(1)
            break
        tokens.append(token)
        sources.append("forced" if only is not None else source)
    if tokens:
        matcher.rollback(len(tokens))
    return Draft(tokens, sources, masks)


def _text(matcher: Matcher, encode: Encode, limit: int) -> list[int]:
    """Tokens of the text that must come, the last first; without its end, which may go on into what is not forced."""
    if limit <= 0 or not (text := matcher.forced_text()):
        return []
    return list(reversed(encode(text)[:-1][:limit]))
