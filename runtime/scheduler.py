"""Decides what the next pass computes, and takes in what the last one found.

Continuous batching with chunked prefill: a plan mixes decode rows and prefill chunks up to a token budget. Admission
looks at real free space; when space runs out the least important sequence is preempted, and recomputes later what the
cache has not kept. Commits may lag one plan behind: a sequence whose newest token is not known yet is planned with a
placeholder, and what was planned for a sequence that turns out to be over is thrown away.

Knows nothing of tensors, sockets or text.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from ..grammar.base import MaskRow
from ..radix_cache.tree import Node, RadixCache
from ..types import PAGE, FinishReason, Output, Row, TokenLogprob
from .page_table import PageTable
from .plan import Copy, Plan, Sampled, SampleRow, ScoreRow
from .runs import Runs
from .sequence import Sequence
from .waiting import WaitingQueue


@dataclass(slots=True)
class Entry:
    """What one row of a plan is for."""

    sequence: Sequence
    table: PageTable
    end: int  # position after the row's last token
    draw: int  # index of its draw in the plan, or -1
    logits: int  # number of its first logits in the pass
    scores: range  # prompt positions that its first logits score
    pinned: Node | None  # source of its page copy, held until the pass has run


@dataclass(slots=True)
class Step:
    """A plan and what its rows mean."""

    plan: Plan
    entries: list[Entry]
    began: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """`tokens` and `rows` of one pass; `ageing_s` a waiting sequence gains one step of priority."""

    tokens: int
    rows: int
    ageing_s: float


class Vocabulary:
    """What the scheduler needs to know of tokens: their bytes (none for special ones), and which end a generation."""

    def __init__(self, token_bytes: Items[bytes], special_ids: frozenset[int], end_ids: tuple[int, ...]) -> None:
        self._pieces = [b"" if i in special_ids else piece for i, piece in enumerate(token_bytes)]
        self.end_ids = end_ids
        self._end_set = frozenset(end_ids)

    def piece(self, token: int) -> bytes:
        return self._pieces[token] if token < len(self._pieces) else b""

    def is_end(self, token: int) -> bool:
        return token in self._end_set


class Scheduler:
    """`next` and `commit` alternate; one plan may be uncommitted while the next is made."""

    def __init__(self, cache: RadixCache, limits: Limits, vocabulary: Vocabulary, clock: Callable[[], float]) -> None:
        self.cache = cache
        self.limits = limits
        self._clock = clock
        self.vocabulary = vocabulary
        self.runs = Runs(cache, clock)
        self.waiting = WaitingQueue(cache, limits.ageing_s, clock, self.runs.order)
        self.running: list[Sequence] = []  # most important first
        self.preemptions = 0
        self.evicted_pages = 0

    # ---- in and out ------------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        sequence.run = self.runs.add(sequence)
        self.waiting.add(sequence)

    def stop(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence wherever it is. Its pages are free at once; a row under way is thrown away at its commit."""
        sequence.finish = reason
        node = None
        if sequence.table is None:
            self.waiting.remove(sequence)
        else:
            node = self._withdraw(sequence)
        assert sequence.run is not None
        self.runs.leave(sequence.run, sequence, node)

    def _withdraw(self, sequence: Sequence) -> Node | None:
        """Take it out of the pass; the end of what the cache keeps of it."""
        assert sequence.table is not None
        node = sequence.table.release(sequence.key, sequence.computed, keep=sequence.request.reuse)
        sequence.table = None
        self.running.remove(sequence)
        return node

    def preempt(self, sequence: Sequence) -> None:
        """Back to the queue. What it has computed stays in the cache as long as there is room."""
        node = self._withdraw(sequence)
        if node is not None and sequence.run is not None:
            self.runs.stand_on(sequence.run, node)
        sequence.planned = sequence.computed = 0
        self.preemptions += 1
        self.waiting.add(sequence)

    # ---- planning --------------------------------------------------------------------------------------------------

    def next(self) -> Step | None:
        """The next pass, or None if there is nothing to compute now."""
        builder = _Builder(self.limits.tokens)
        for chunked in (False, True):  # decode rows first: a long prompt must not hold up those who stream
            for sequence in list(self.running):
                if sequence.table is None or (sequence.length - sequence.planned > 1) != chunked:
                    continue
                tokens = sequence.next_tokens(builder.left)
                if tokens and self._make_room(sequence, len(tokens), builder):
                    builder.add(sequence, tokens)
        if len(self.waiting) and not builder.preempted:
            self._admit(builder)
        return builder.step(self._clock()) if builder.entries else None

    def _make_room(self, sequence: Sequence, tokens: int, builder: _Builder) -> bool:
        """Pages for `tokens` more; evicts, then preempts. False: the sequence has to sit this pass out, since only
        those who are in the plan already could make room; or, alone and out of room, it went back to the queue."""
        table = sequence.table
        assert table is not None
        while True:
            short = table.missing(sequence.planned + tokens) - self.cache.pool.free
            if short <= 0:
                table.grow(sequence.planned + tokens)
                return True
            if self._evict(short):
                continue
            victim = next(s for s in reversed(self.running) if s is sequence or s not in builder)
            if victim is sequence and builder.entries:
                return False
            self.preempt(victim)
            builder.preempted = True
            if victim is sequence:
                return False

    def _evict(self, pages: int) -> int:
        freed = self.cache.evict(pages)
        self.evicted_pages += freed
        return freed

    def _admit(self, builder: _Builder) -> None:
        if len(self.running) >= self.limits.rows or builder.left <= 0:
            return
        self.runs.begin_round()
        for sequence in self.waiting.in_order():
            if len(self.running) >= self.limits.rows or builder.left <= 0:
                return
            if sequence.pending:  # preempted with a draw under way, which it has to know first
                continue
            if not self._try_admit(sequence, builder):
                return

    def _try_admit(self, sequence: Sequence, builder: _Builder) -> bool:
        """Admit it, or pass it over because a running one computes its prefix now. False: no room; nobody after it
        goes first."""
        limit = sequence.match_limit if sequence.request.reuse else 0
        match = self.cache.match(sequence.namespace, sequence.key, limit)
        if sequence.request.reuse and self._is_being_computed(sequence, match.length):
            return True
        self.cache.pin(match.node)
        needed = -(-len(sequence.ids) // PAGE) - len(match.pages) + len(self.running)
        assert sequence.run is not None
        if not self.runs.may_take(sequence, needed):
            self.cache.unpin(match.node)
            return True
        if needed > self.cache.pool.free + self.cache.evictable:
            self.cache.unpin(match.node)
            if self.running:
                return False
            match = self.cache.match(sequence.namespace, sequence.key, 0)  # alone, it fits if it holds on to nothing
            self.cache.pin(match.node)
        if match.tail is not None and not self.cache.pool.free:
            self._evict(1)
        table = PageTable(self.cache, sequence.namespace)
        copy = table.adopt(match)
        if copy is None:
            self.cache.unpin(match.node)  # the table has its own pin
        sequence.table = table
        sequence.planned = sequence.computed = match.length
        if sequence.cached_tokens is None:
            sequence.cached_tokens = match.length
        self.waiting.remove(sequence)
        self.runs.admit(sequence.run)
        bisect.insort(self.running, sequence, key=lambda s: (-s.request.priority, s.order))
        tokens = sequence.next_tokens(builder.left)
        missing = table.missing(sequence.planned + len(tokens)) - self.cache.pool.free
        if missing > 0:
            self._evict(missing)
        table.grow(sequence.planned + len(tokens))
        builder.add(sequence, tokens, copy, match.node if copy is not None else None)
        return True

    def _is_being_computed(self, sequence: Sequence, matched: int) -> bool:
        """A running sequence will publish at least one more whole page of this one's prefix than is cached now."""
        reach = matched // PAGE * PAGE + PAGE
        if reach > sequence.match_limit:
            return False
        ids = sequence.ids
        for other in self.running:
            if (
                other.computed < other.prompt_length
                and other.prompt_length >= reach
                and other.request.reuse
                and other.namespace == sequence.namespace
                and other.ids[reach - 1] == ids[reach - 1]
                and other.ids[:reach] == ids[:reach]
            ):
                return True
        return False

    # ---- drawing and committing ------------------------------------------------------------------------------------

    def draws(self, step: Step, masks: Items[MaskRow]) -> tuple[list[SampleRow], list[ScoreRow]]:
        """What to draw from a pass's logits. `masks` are buffers to fill, at least one a draw. Called when every
        earlier step has been committed, so that grammar and penalties are up to date."""
        draws: list[SampleRow] = []
        scores: list[ScoreRow] = []
        for entry in step.entries:
            sequence = entry.sequence
            sampling = sequence.request.sampling
            if entry.scores:
                wanted = sequence.ids[entry.scores.start : entry.scores.stop]
                scores.append(ScoreRow(entry.logits, wanted, sampling.prompt_logprobs or 0))
            if entry.draw >= 0:
                mask = None
                if sequence.matcher is not None and sequence.finish is None:
                    mask = masks[entry.draw]
                    sequence.matcher.fill_mask(mask)
                row = entry.logits + len(entry.scores)
                draws.append(sequence.sample_row(row, entry.end, self.vocabulary.end_ids, mask))
        return draws, scores

    def commit(self, step: Step, sampled: list[Sampled], scored: list[list[TokenLogprob]]) -> list[Output]:
        """Take in the results of a pass; returns what there is to tell."""
        self.runs.computed(step.plan.tokens, self._clock() - step.began)
        outputs: list[Output] = []
        next_scored = iter(scored)
        for entry in step.entries:
            sequence = entry.sequence
            if entry.pinned is not None:
                self.cache.unpin(entry.pinned)
            if sequence.table is entry.table:
                sequence.computed = entry.end
                if entry.end <= sequence.prompt_length and sequence.request.reuse:
                    entry.table.publish(sequence.key, entry.end)
            if entry.scores:
                found = next(next_scored)
                if entry.scores.stop > sequence.scored:  # rows from before and after a preemption overlap
                    assert sequence.prompt_logprobs is not None
                    sequence.prompt_logprobs += found[sequence.scored - entry.scores.start :]
                    sequence.scored = entry.scores.stop
            if entry.draw >= 0:
                sequence.pending -= 1
                if sequence.finish is None:
                    outputs.append(self._accept(sequence, sampled[entry.draw]))
            elif entry.end == sequence.limit == sequence.prompt_length and sequence.finish is None:
                self.stop(sequence, "length")
                outputs.append(_output(sequence, []))
        return outputs

    def _accept(self, sequence: Sequence, drawn: Sampled) -> Output:
        token = drawn.token
        if token < 0:
            if sequence.matcher is not None and sequence.matcher.completed:
                self.stop(sequence, "stop")  # min_tokens forbids the end, but the grammar has nothing more to say
                return _output(sequence, [])
            self.stop(sequence, "error")
            output = _output(sequence, [])
            output.error = ("nothing_allowed", "grammar, bans and biases together leave no token that may come next")
            return output
        sequence.append(token)
        if sequence.matcher is not None and sequence.matcher.try_accept([token]) != 1:
            self.stop(sequence, "error")
            output = _output(sequence, [])
            output.error = ("internal_error", f"the grammar refused token {token}, which its mask had allowed")
            return output
        finish, stop = sequence.judge(token, self.vocabulary.piece(token), self.vocabulary.is_end(token))
        if finish is not None:
            self.stop(sequence, finish)
        output = _output(sequence, [token])
        output.logprobs = [drawn.logprob] if drawn.logprob is not None else None
        output.stop = stop
        return output


def _output(sequence: Sequence, tokens: list[int]) -> Output:
    """The news of one sequence; prompt log-probabilities go out with its first."""
    output = Output(sequence.request.id, sequence.choice, tokens, finish=sequence.finish)
    output.cached_tokens = sequence.cached_tokens or 0
    if sequence.prompt_logprobs is not None and not sequence.told:
        output.prompt_logprobs = sequence.prompt_logprobs
    sequence.told = True
    return output


class _Builder:
    """A plan in the making."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.plan = Plan([])
        self.entries: list[Entry] = []
        self.preempted = False
        self._members: set[int] = set()
        self._logits = 0

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.order in self._members

    def add(self, sequence: Sequence, tokens: Items[int], copy: Copy | None = None, pinned: Node | None = None) -> None:
        table = sequence.table
        assert table is not None
        start, end = sequence.planned, sequence.planned + len(tokens)
        scores = range(0)
        if sequence.scored < sequence.prompt_length:
            scores = range(max(start + 1, sequence.scored), min(end + 1, sequence.prompt_length))
        logits_at = [position - 1 - start for position in scores]
        draw = -1
        if end == sequence.length < sequence.limit:
            draw = len(self.plan.draws)
            self.plan.draws.append(len(self.plan.rows))
            logits_at.append(len(tokens) - 1)
            sequence.pending += 1
            sequence.pending_draw = draw
        self.entries.append(Entry(sequence, table, end, draw, self._logits, scores, pinned))
        self.plan.rows.append(Row(tokens, start, table.pages, logits_at))
        if copy is not None:
            self.plan.copies.append(copy)
        sequence.planned = end
        self.left -= len(tokens)
        self._logits += len(logits_at)
        self._members.add(sequence.order)

    def step(self, began: float) -> Step:
        return Step(self.plan, self.entries, began)
