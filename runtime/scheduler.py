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

from ..grammar.base import MaskRow
from ..radix_cache.tree import Node, RadixCache
from ..speculative.draft import NOTHING, Draft
from ..types import PAGE, FinishReason, Output, TokenLogprob
from .acceptance import Acceptance
from .budget import PassBudget
from .disk_tier import DiskTier
from .drafting import Drafter
from .limits import Limits, Vocabulary
from .miss import WhyMiss
from .page_table import PageTable
from .plan import Sampled, SampleRow, ScoreRow
from .runs import Runs
from .sequence import Sequence, output_of
from .step import Step, StepBuilder
from .waiting import WaitingQueue, is_being_computed


class Scheduler:
    """`next` and `commit` alternate; one plan may be uncommitted while the next is made."""

    def __init__(self, cache: RadixCache, limits: Limits, vocabulary: Vocabulary, clock: Callable[[], float]) -> None:
        self.cache = cache
        self.limits = limits
        self._clock = clock
        self.vocabulary = vocabulary
        self.runs = Runs(cache, clock)
        self.why_miss = WhyMiss(cache, clock)
        self.waiting = WaitingQueue(cache, limits.ageing_s, clock, self.runs.order)
        self.tier: DiskTier | None = None  # what was evicted, on disk
        self.acceptance = Acceptance(vocabulary, self.stop)
        self.running: list[Sequence] = []  # most important first
        self.preemptions = 0
        self.evicted_pages = 0
        self._budget = PassBudget(limits.tokens)
        self._taken_in = 0.0  # when the last pass was

    @property
    def drafter(self) -> Drafter | None:
        return self.acceptance.drafter

    @drafter.setter
    def drafter(self, drafter: Drafter | None) -> None:
        self.acceptance.drafter = drafter

    # ---- in and out ------------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        sequence.run = self.runs.add(sequence)
        self.waiting.add(sequence)

    def stop(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence wherever it is. Its pages are free at once; a row under way is thrown away at its commit."""
        sequence.finish = reason
        sequence.notes.ended = self._clock()
        if self.tier is not None:
            self.tier.forget(sequence)
        node = None
        if sequence.table is None:
            self.waiting.remove(sequence)
        else:
            node = self._withdraw(sequence)
        assert sequence.run is not None
        self.runs.leave(sequence.run, sequence, node)
        if self.drafter is not None:
            self.drafter.over(sequence)

    def _withdraw(self, sequence: Sequence) -> Node | None:
        """Take it out of the pass; the end of what the cache keeps of it."""
        assert sequence.table is not None
        node = sequence.table.release(sequence.key, sequence.computed, keep=sequence.request.reuse)
        sequence.table = None
        self.running.remove(sequence)
        if node is not None:
            self.why_miss.kept(sequence, node)
        return node

    def preempt(self, sequence: Sequence) -> None:
        """Back to the queue. What it has computed stays in the cache as long as there is room."""
        node = self._withdraw(sequence)
        if node is not None and sequence.run is not None:
            self.runs.stand_on(sequence.run, node)
        sequence.planned = sequence.computed = 0
        self.preemptions += 1
        sequence.notes.preemptions += 1
        self.waiting.add(sequence)

    # ---- planning --------------------------------------------------------------------------------------------------

    def next(self) -> Step | None:
        """The next pass, or None if there is nothing to compute now."""
        builder = StepBuilder(self._budget.tokens)
        if self.drafter is not None:
            self.drafter.arbiter.begin(len(self.running))
        decodes = [s for s in self.running if s.length - s.planned <= 1]
        prefills = [s for s in self.running if s.length - s.planned > 1]
        self._decode(decodes, builder)  # first: a long prompt must not hold up those who stream
        if len(self.waiting) and not builder.preempted:
            kept = builder.left // 2 if prefills else 0  # nor short ones that come after it
            builder.left -= kept
            self._admit(builder, whole=bool(prefills))
            builder.left += kept
        for sequence in prefills:
            if tokens := self._grant(sequence, builder):
                builder.add(sequence, tokens)
        return builder.step(self._clock()) if builder.entries else None

    def _grant(self, sequence: Sequence, builder: StepBuilder) -> Items[int]:
        """What a running sequence may compute in this pass, with pages for it; nothing if it was preempted, or has to
        sit this one out."""
        if sequence.table is None:
            return ()
        tokens = sequence.next_tokens(builder.left)
        return tokens if tokens and self._make_room(sequence, len(tokens), builder) else ()

    def _decode(self, running: list[Sequence], builder: StepBuilder) -> None:
        """First everyone's next token, then drafts in what is left of pass and pages."""
        granted: list[tuple[Sequence, Items[int]]] = []
        for sequence in running:
            if tokens := self._grant(sequence, builder):
                builder.reserve(sequence, len(tokens))
                granted.append((sequence, tokens))
        drafts = self._draft([s for s, tokens in granted if len(tokens) == 1 and not s.pending], builder)
        for sequence, tokens in granted:
            builder.add(sequence, tokens, drafts.get(sequence.order, NOTHING))

    def _draft(self, sequences: list[Sequence], builder: StepBuilder) -> dict[int, Draft]:
        """Tokens to verify beside the next draws, by the sequences' `order`; each goes as far as its last page, or one
        more that is free."""
        if self.drafter is None or not sequences:
            return {}
        fresh = max(0, self.cache.pool.free)
        share = max(0, builder.left // len(sequences))
        asked: list[tuple[Sequence, int]] = []
        for sequence in sequences:
            table = sequence.table
            assert table is not None
            room = len(table.pages) * PAGE - len(sequence.ids)
            if room < share and (fresh or self.evict(1)):
                fresh = max(0, fresh - 1)
                room += PAGE
            asked.append((sequence, min(room, share)))
        found = {}
        for (sequence, _), draft in zip(asked, self.drafter.draft(asked), strict=True):
            assert sequence.table is not None
            sequence.table.grow(len(sequence.ids) + len(draft.tokens))
            found[sequence.order] = draft
        return found

    def _make_room(self, sequence: Sequence, tokens: int, builder: StepBuilder) -> bool:
        """Pages for `tokens` more; evicts, then preempts. False: the sequence has to sit this pass out, since only
        those who are in the plan already could make room; or, alone and out of room, it went back to the queue."""
        table = sequence.table
        assert table is not None
        while True:
            short = table.missing(sequence.planned + tokens) - self.cache.pool.free
            if short <= 0:
                table.grow(sequence.planned + tokens)
                return True
            if self.evict(short):
                continue
            victim = next(s for s in reversed(self.running) if s is sequence or s not in builder)
            if victim is sequence and builder:
                return False
            self.preempt(victim)
            builder.preempted = True
            if victim is sequence:
                return False

    def evict(self, pages: int) -> int:
        """Free so many pages, or all that may go; how many these are."""
        freed = self.cache.evict(pages)
        self.evicted_pages += freed
        return freed

    def _admit(self, builder: StepBuilder, *, whole: bool) -> None:
        """Let in who has room. `whole`: only prompts that this pass can finish, since another one is in the middle."""
        if len(self.running) >= self.limits.rows or builder.left <= 0:
            return
        self.runs.begin_round()
        for sequence in self.waiting.in_order():
            if len(self.running) >= self.limits.rows or builder.left <= 0:
                return
            if sequence.pending:  # preempted with a draw under way, which it has to know first
                continue
            if self.runs.has_no_turn(sequence):
                continue
            if not self._try_admit(sequence, builder, whole):
                return

    def _try_admit(self, sequence: Sequence, builder: StepBuilder, whole: bool) -> bool:
        """Admit it, or pass it over because a running one computes its prefix now, or the disk tier reads it. False: no
        room; nobody after it goes first."""
        limit = sequence.match_limit if sequence.request.reuse else 0
        began = self._clock()
        match = self.cache.match(sequence.namespace, sequence.key, limit)
        sequence.notes.match_seconds += self._clock() - began
        in_memory = match.length
        if whole and len(sequence.ids) - match.length > builder.left:
            return True
        if sequence.request.reuse and is_being_computed(self.running, sequence, match.length):
            return True
        self.cache.pin(match.node)
        needed = -(-len(sequence.ids) // PAGE) - len(match.pages) + self._still_needed()
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
        elif self.tier is not None and sequence.request.reuse:
            extended = self.tier.extend(sequence, match)
            if extended is None:
                return True
            match = extended
        if match.tail is not None and not self.cache.pool.free:
            self.evict(1)
        table = PageTable(self.cache, sequence.namespace)
        copy = table.adopt(match)
        if copy is None:
            self.cache.unpin(match.node)  # the table has its own pin
        sequence.table = table
        sequence.planned = sequence.computed = match.length
        if sequence.cached_tokens is None:
            sequence.cached_tokens = match.length
            sequence.notes.admitted = self._clock()
            self.why_miss.admitted(sequence, match, max(0, match.length - in_memory), self.running)
        self.waiting.remove(sequence)
        if self.tier is not None:
            self.tier.forget(sequence)
        self.runs.admit(sequence.run)
        bisect.insort(self.running, sequence, key=lambda s: (-s.request.priority, s.order))
        tokens = sequence.next_tokens(builder.left)
        missing = table.missing(sequence.planned + len(tokens)) - self.cache.pool.free
        if missing > 0:
            self.evict(missing)
        table.grow(sequence.planned + len(tokens))
        builder.add(sequence, tokens, copy=copy, pinned=match.node if copy is not None else None)
        return True

    def _still_needed(self) -> int:
        """Pages that running sequences will take soon: the rest of their prompts, and one each to generate."""
        return sum(1 + s.table.missing(s.prompt_length) for s in self.running if s.table is not None)

    # ---- drawing and committing ------------------------------------------------------------------------------------

    def draws(self, step: Step, masks: Items[MaskRow]) -> tuple[list[SampleRow], list[ScoreRow]]:
        """What to draw from a pass's logits. `masks` are buffers to fill, at least one a draw. Called when every
        earlier step has been committed, so that grammar and penalties are up to date."""
        draws: list[SampleRow] = []
        scores: list[ScoreRow] = []
        buffers = iter(masks)
        for entry in step.entries:
            sequence = entry.sequence
            sampling = sequence.request.sampling
            if entry.scores:
                wanted = sequence.ids[entry.scores.start : entry.scores.stop]
                scores.append(ScoreRow(entry.logits, wanted, sampling.prompt_logprobs or 0))
            if entry.draw >= 0:
                draft, row = entry.draft, entry.logits + len(entry.scores)
                for i in range(1 + len(draft.tokens)):
                    mask = None
                    if draft.masks is not None:
                        mask = draft.masks[i]
                    elif sequence.matcher is not None and sequence.finish is None:
                        mask = next(buffers)
                        began = self._clock()
                        sequence.matcher.fill_mask(mask)
                        sequence.notes.mask_seconds += self._clock() - began
                    drafted = draft.path(i - 1)
                    position = entry.end + len(drafted)
                    draws.append(
                        sequence.sample_row(row + i, position, self.vocabulary.end_ids, mask, drafted, draft.guess(i))
                    )
        return draws, scores

    def commit(self, step: Step, sampled: list[Sampled], scored: list[list[TokenLogprob]]) -> list[Output]:
        """Take in the results of a pass; returns what there is to tell."""
        now = self._clock()
        seconds = now - max(step.began, self._taken_in)  # a pass begins when the one before it is over
        self._taken_in = now
        self._budget.fitted()
        computed = step.plan.tokens
        self.runs.computed(computed, seconds)
        if self.drafter is not None and all(entry.draw >= 0 for entry in step.entries):
            self.drafter.arbiter.passed(step.plan.tokens, seconds)
        outputs: list[Output] = []
        next_scored = iter(scored)
        for entry, row in zip(step.entries, step.plan.rows, strict=True):
            sequence = entry.sequence
            known = entry.end - row.start
            sequence.notes.passed(known, step.began, seconds, known / computed)
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
                    outputs.append(self.acceptance.verify(entry, sampled))
                    sequence.notes.drew(now)
            elif entry.end == sequence.limit == sequence.prompt_length and sequence.finish is None:
                self.stop(sequence, "length")
                outputs.append(output_of(sequence, []))
        return outputs

    def undo(self, step: Step) -> list[Output]:
        """A pass that the device had no room for: nothing of it counts, those who were in it go back to the queue, and
        passes get smaller. Where they cannot, they end with an error, which is returned."""
        smaller = self._budget.shrink(step.plan.tokens)
        outputs: list[Output] = []
        for entry in step.entries:
            sequence = entry.sequence
            if entry.pinned is not None:
                self.cache.unpin(entry.pinned)
                sequence.computed -= sequence.computed % PAGE  # whether the copy was made is not known
            sequence.pending -= entry.draw >= 0
            if sequence.finish is None and sequence.table is entry.table:
                if smaller:
                    self.preempt(sequence)
                else:
                    self.stop(sequence, "error")
                    output = output_of(sequence, [])
                    output.error = ("out_of_memory", "the device has too little memory for a pass of a single token")
                    outputs.append(output)
        return outputs
