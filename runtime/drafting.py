"""Which tokens are drafted for a sequence, and what is learnt from what became of them.

Between the scheduler, which knows sequences, and `speculative`, which knows tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from ..speculative.arbiter import MOST, Arbiter
from ..speculative.draft import NOTHING, Draft, Encode, Offer, hold_to
from ..speculative.suffix import LONG, Memory, SuffixIndex
from .sequence import Sequence

OWN_TOKENS = 1 << 13
"""Of a sequence's own text, what is looked up in it."""


class Drafter:
    """`width` is that of the head; `encode` gives the tokens of a text. Drafts are for engines that commit each pass
    before they plan the next."""

    def __init__(self, width: int, arbiter: Arbiter, encode: Encode | None = None) -> None:
        self.arbiter = arbiter
        self._encode = encode
        self._width = width
        self._words = -(-width // 32)
        self._memory = Memory()

    def draft(self, sequence: Sequence, room: int) -> Draft:
        """At most `room` tokens that may follow what the sequence has, all of which is known and computed but for the
        last."""
        allowed = sequence.request.speculation
        room = min(room, MOST, sequence.limit - len(sequence.ids) - 1)  # a token more than these is drawn
        offer = self._suffix(sequence, room) if room > 0 and "suffix" in allowed else None
        tokens = () if offer is None else offer.tokens
        sequence.backed = 0 if offer is None else offer.match
        if sequence.matcher is not None:
            forced = "forced" in allowed and sequence.request.sampling.logprobs is None
            encode = self._encode if self.arbiter.trusts_text else None
            return hold_to(sequence.matcher, tokens, max(0, room), self._words, forced=forced, encode=encode)
        return Draft(list(tokens), ["suffix"] * len(tokens), None) if tokens else NOTHING

    def _suffix(self, sequence: Sequence, room: int) -> Offer | None:
        index = sequence.index
        if index is None:
            index = sequence.index = SuffixIndex(OWN_TOKENS)
        index.extend(sequence.ids[sequence.indexed :])
        sequence.indexed = len(sequence.ids)
        origin = sequence.request.origin
        offers = [
            index.offer(sequence.ids, room),
            self._memory.offer(origin.tenant, origin.program, sequence.ids, room),
        ]
        best = max((offer for offer in offers if offer is not None), key=lambda offer: offer.match, default=None)
        if best is None:
            return None
        return Offer(self._valid(best.tokens[: self.arbiter.length(best.match)]), best.match)

    def _valid(self, tokens: Items[int]) -> Items[int]:
        """Up to the first that is no token."""
        for i, token in enumerate(tokens):
            if not 0 <= token < self._width:
                return tokens[:i]
        return tokens

    def judged(self, sequence: Sequence, draft: Draft, at: int, accepted: bool) -> None:
        """The draft's token number `at` was reached, and was right or wrong."""
        self.arbiter.learn(draft.sources[at], sequence.backed, accepted)

    def over(self, sequence: Sequence) -> None:
        """Remember what was said, with what it answered to."""
        sequence.index = None
        if sequence.generated and sequence.request.reuse and "suffix" in sequence.request.speculation:
            origin = sequence.request.origin
            start = max(0, sequence.prompt_length - LONG)
            self._memory.remember(origin.tenant, origin.program, sequence.ids[start:])
