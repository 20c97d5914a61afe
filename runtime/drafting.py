"""Which tokens are drafted for a sequence, and what is learnt from what became of them.

Between the scheduler, which knows sequences, and `speculative`, which knows tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from itertools import repeat
from time import perf_counter

from ..speculative.arbiter import MOST, Arbiter, Verdicts, Worth
from ..speculative.draft import NOTHING, Draft, Encode, Offer, fork, hold_to
from ..speculative.suffix import LONG, Memory, SuffixIndex
from .guessing import Guesser
from .sequence import Sequence

OWN_TOKENS = 1 << 13
"""Of a sequence's own text, what is looked up in it."""


class Drafter:
    """`width` is that of the head; `encode` gives the tokens of a text. Drafts are for engines that commit each pass
    before they plan the next."""

    def __init__(
        self, width: int, arbiter: Arbiter, encode: Encode | None = None, guesser: Guesser | None = None
    ) -> None:
        self.arbiter = arbiter
        self._encode = encode
        self._guesser = guesser
        self._width = width
        self._words = -(-width // 32)
        self._memory = Memory()

    def draft(self, asked: Items[tuple[Sequence, int]]) -> list[Draft]:
        """For each sequence at most so many tokens that may follow what it has, all of which is known and computed but
        for the last. There are pages for as many."""
        drafts: list[Draft] = []
        guessed: dict[int, tuple[Sequence, int]] = {}
        behind: list[Sequence] = []
        for sequence, room in asked:
            room = min(room, MOST, sequence.limit - len(sequence.ids) - 1)  # a token more than these is drawn
            offer, other = None, None
            if room > 0 and "suffix" in sequence.request.speculation:
                offer, other = self._suffix(sequence, room)
            draft = self._hold(sequence, offer, room, other)
            model = self._model(sequence)
            if model.tokens and room > 0 and not _is_forced(draft) and self._beats(model, sequence, draft, offer):
                assert self._guesser is not None
                unread = self._guesser.source.unread(sequence)
                if unread <= MOST + 1:
                    count = min(room, model.tokens)
                    assert sequence.table is not None
                    sequence.table.grow(len(sequence.ids) + count)
                    guessed[len(drafts)] = (sequence, count)
                elif self._pays_to_read(sequence, unread, model):
                    behind.append(sequence)
            drafts.append(draft)
        if self._guesser is not None:
            if behind:
                self._guesser.source.catch_up(behind)
            if guessed:
                for at, draft in zip(guessed, self._guesser.guess(list(guessed.values())), strict=True):
                    drafts[at] = draft
        return drafts

    def _hold(self, sequence: Sequence, offer: Offer | None, room: int, other: Offer | None = None) -> Draft:
        """What of an offer may come, and what must. Without a grammar, `other` stands beside it where that pays."""
        tokens, match = ((), 0) if offer is None else offer
        if sequence.matcher is not None:
            allowed = sequence.request.speculation
            forced = "forced" in allowed and sequence.request.sampling.logprobs is None
            began = perf_counter()
            draft = hold_to(
                sequence.matcher,
                tokens,
                max(0, room),
                self._words,
                forced=forced,
                encode=self._encode,
                most_text=self.arbiter.text,
            )
            sequence.notes.mask_seconds += perf_counter() - began
            return draft._replace(matches=[match] * len(draft.tokens))
        if not tokens:
            return NOTHING
        if other is not None:
            more = min(self.arbiter.branch(match, sequence.verdicts), room - len(tokens))
            both, parents = fork(tokens, other.tokens, more)
            if len(both) > len(tokens):
                matches = [*repeat(match, len(tokens)), *repeat(other.match, len(both) - len(tokens))]
                return Draft(both, ["suffix"] * len(both), None, parents=parents, matches=matches)
        return Draft(list(tokens), ["suffix"] * len(tokens), None, matches=[match] * len(tokens))

    def _model(self, sequence: Sequence) -> Worth:
        """What the draft model is worth to it."""
        if self._guesser is None or "model" not in sequence.request.speculation:
            return Worth(0, 0.0)
        if len(sequence.ids) + MOST > self._guesser.source.reach:
            return Worth(0, 0.0)
        return self.arbiter.model(self._guesser.source.costs)

    def _beats(self, model: Worth, sequence: Sequence, draft: Draft, offer: Offer | None) -> bool:
        """The model makes more tokens a second than the words that were said before."""
        return (
            offer is None or not draft.tokens or model.rate > self.arbiter.suffix(offer.match, sequence.verdicts).rate
        )

    def _pays_to_read(self, sequence: Sequence, unread: int, model: Worth) -> bool:
        """Before the answer is over, as far as it may go."""
        assert self._guesser is not None
        _, each = self._guesser.source.costs.line
        return self.arbiter.saves(model, sequence.limit - len(sequence.ids)) > each * unread

    def _suffix(self, sequence: Sequence, room: int) -> tuple[Offer | None, Offer | None]:
        """What came after the same words before: after most of them, and what else there is."""
        index = sequence.index
        if index is None:
            index = sequence.index = SuffixIndex(OWN_TOKENS)
            sequence.verdicts = Verdicts()
        own = sequence.verdicts
        assert own is not None
        own.fade()
        index.extend(sequence.ids[sequence.indexed :])
        sequence.indexed = len(sequence.ids)
        origin = sequence.request.origin
        offers = [
            index.offer(sequence.ids, room),
            self._memory.offer(origin.tenant, origin.program, sequence.ids, room),
        ]
        found = sorted((offer for offer in offers if offer is not None), key=lambda offer: -offer.match)
        if not found:
            return None, None
        best = found[0]
        cut = Offer(self._valid(best.tokens[: self.arbiter.suffix(best.match, own).tokens]), best.match)
        return cut, Offer(self._valid(found[1].tokens), found[1].match) if len(found) > 1 else None

    def _valid(self, tokens: Items[int]) -> Items[int]:
        """Up to the first that is no token."""
        for i, token in enumerate(tokens):
            if not 0 <= token < self._width:
                return tokens[:i]
        return tokens

    def judged(self, sequence: Sequence, draft: Draft, at: int, accepted: bool, rank: int = 0) -> None:
        """The draft's token number `at` was reached, and was right or not; so many others in its place were not."""
        source = draft.sources[at]
        match = at if source == "model" else draft.match(at)
        self.arbiter.learn(source, match, accepted, rank, sequence.verdicts)
        sequence.notes.drafted(source, right=accepted)

    def drew(self, sequence: Sequence, row: int) -> None:
        """Its newest token was drawn from logits number `row` of the pass that is being committed."""
        if self._guesser is not None:
            self._guesser.source.drew(sequence, row)

    def over(self, sequence: Sequence) -> None:
        """Remember what was said, with what it answered to."""
        sequence.index = sequence.verdicts = None
        if sequence.generated and sequence.request.reuse and "suffix" in sequence.request.speculation:
            origin = sequence.request.origin
            start = max(0, sequence.prompt_length - LONG)
            self._memory.remember(origin.tenant, origin.program, sequence.ids[start:])


def _is_forced(draft: Draft) -> bool:
    return bool(draft.sources) and draft.sources[0] in ("forced", "text")
