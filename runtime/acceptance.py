"""Takes drawn tokens in, one after the other: what was drafted stands as long as it is what was drawn.

A draft token only decides how many tokens a pass yields: each is drawn from the logits and the random number of its own
place. In a draft tree the drawn token names the branch to go on with; keys and values of a branch lie where the pass
put them, and `moves` says where they belong.

Knows sequences and what they end by; nothing of queues or pages' owners.
"""

from __future__ import annotations

from collections.abc import Callable

from ..types import PAGE, FinishReason, Output
from .drafting import Drafter
from .limits import Vocabulary
from .plan import Move, Sampled
from .sequence import Sequence, output_of
from .step import Entry


class Acceptance:
    """`stop` ends a sequence; `moves` are to be made before anything else is computed."""

    def __init__(self, vocabulary: Vocabulary, stop: Callable[[Sequence, FinishReason], None]) -> None:
        self._vocabulary = vocabulary
        self._stop = stop
        self.drafter: Drafter | None = None
        self.moves: list[Move] = []

    def take_moves(self) -> list[Move]:
        """The moves since they were last taken."""
        moves, self.moves = self.moves, []
        return moves

    def verify(self, entry: Entry, sampled: list[Sampled]) -> Output:
        """What the draws of one row tell."""
        sequence, draft = entry.sequence, entry.draft
        output = self._accept(sequence, sampled[entry.draw])
        at, depth = -1, 0
        while output.tokens and (children := draft.children(at)):
            found = self._judge(entry, children, output.tokens[-1])
            if found < 0 or sequence.finish is not None:
                break
            if found != depth:
                pages = entry.table.pages
                self.moves.append(Move(_slot(pages, entry.end + found), _slot(pages, entry.end + depth)))
            at = found
            depth += 1
            sequence.computed = sequence.planned = entry.end + depth
            more = self._accept(sequence, sampled[entry.draw + at + 1])
            more.tokens = output.tokens + more.tokens
            if output.logprobs is not None:
                more.logprobs = output.logprobs + (more.logprobs or [])
            more.prompt_logprobs = output.prompt_logprobs
            output = more
        if self.drafter is not None and sequence.finish is None:
            self.drafter.drew(sequence, entry.logits + len(entry.scores) + 1 + at)
        return output

    def _judge(self, entry: Entry, children: list[int], drawn: int) -> int:
        """The draft token that is the drawn one, -1 if none is. The drafter learns of those that were looked at."""
        assert self.drafter is not None
        for rank, child in enumerate(children):
            right = entry.draft.tokens[child] == drawn
            self.drafter.judged(entry.sequence, entry.draft, child, right, rank)
            if right:
                return child
        return -1

    def _accept(self, sequence: Sequence, drawn: Sampled) -> Output:
        token = drawn.token
        if token < 0:
            if sequence.matcher is not None and sequence.matcher.completed:
                self._stop(sequence, "stop")  # min_tokens forbids the end, but the grammar has nothing more to say
                return output_of(sequence, [])
            self._stop(sequence, "error")
            output = output_of(sequence, [])
            output.error = ("nothing_allowed", "grammar, bans and biases together leave no token that may come next")
            return output
        sequence.append(token)
        if sequence.matcher is not None and sequence.matcher.try_accept([token]) != 1:
            self._stop(sequence, "error")
            output = output_of(sequence, [])
            output.error = ("internal_error", f"the grammar refused token {token}, which its mask had allowed")
            return output
        finish, stop = sequence.judge(token, self._vocabulary.piece(token), self._vocabulary.is_end(token))
        if finish is not None:
            self._stop(sequence, finish)
        output = output_of(sequence, [token])
        output.logprobs = [drawn.logprob] if drawn.logprob is not None else None
        output.stop = stop
        return output


def _slot(pages: list[int], position: int) -> int:
    return pages[position // PAGE] * PAGE + position % PAGE
