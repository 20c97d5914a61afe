"""One model, one cache, one loop: `plan = next(); handle = submit(plan); outputs = commit(handle)`.

Takes requests that have been checked and whose grammar is compiled; gives outputs. Knows nothing of sockets, text or
HTTP.
"""

from __future__ import annotations

import heapq
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import InvalidParameter, OutOfDeviceMemory, Overloaded, PromptTooLong
from ..grammar.base import Compiled
from ..radix_cache.tree import RadixCache
from ..types import FinishReason, Output, Request, Stats
from .cache_events import EvictionCounts, Listeners
from .cache_look import view_reuse, view_tree
from .cache_view import Reuse, Tree
from .disk_store import PageStore, Worker
from .disk_tier import DiskTier, PageStorage
from .drafting import Drafter
from .limits import Limits, Vocabulary
from .overlap import Overlap
from .plan import Handle, Runner
from .scheduler import Scheduler
from .sequence import Sequence
from .step import Step
from .trace import Trace
from .tracing import trace
from .validation import check_sampling

SAVES_S = 3.0
"""What saving the cache to disk may take when an engine ends; it is ended by force after five."""

UNTAKEN = 4096
"""Records of requests that are kept where nobody takes them."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an engine accepts."""

    vocab_size: int
    context_length: int
    max_waiting: int


class Engine:
    """`lag` 0 commits each pass before it returns; 1 may plan the next one first, for devices that run on their own."""

    def __init__(
        self,
        runner: Runner,
        cache: RadixCache,
        limits: Limits,
        bounds: Bounds,
        vocabulary: Vocabulary,
        *,
        lag: int = 0,
        reuse: bool = True,
        drafter: Drafter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert lag in (0, 1)
        self.runner = runner
        self._cache = cache
        self._evictions = EvictionCounts(clock)
        cache.listener = self.listeners = Listeners(self._evictions)
        self._bounds = bounds
        self._lag = lag
        self._reuse = reuse
        self._clock = clock
        self.scheduler = Scheduler(cache, limits, vocabulary, clock)
        self.scheduler.drafter = drafter
        self._overlap = Overlap(clock)
        self._uncommitted: tuple[Step, Handle] | None = None
        self._live: dict[str, list[Sequence]] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._arrivals = 0
        self._masks = list(np.zeros((limits.rows, -(-bounds.vocab_size // 32)), np.int32))
        self._stats = Stats()
        self._waits = False
        self._traces: deque[Trace] = deque(maxlen=UNTAKEN)

    def use_disk(self, storage: PageStorage, store: PageStore, reader: Worker) -> None:
        """Keep evicted prefixes of `storage`, where the runner's keys and values are, in `store`."""
        assert not self._lag, "pages are read while no pass is under way"
        scheduler = self.scheduler
        tier = DiskTier(self._cache, storage, store, reader, scheduler.runs, self._clock, scheduler.evict)
        scheduler.tier = tier
        self.listeners.add(tier)

    def close(self) -> None:
        """Save what is worth it. No step may follow."""
        if self.scheduler.tier is not None:
            self.scheduler.tier.save(SAVES_S)

    # ---- requests --------------------------------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Raise what is wrong with a request for this engine, before any work is done for it."""
        if request.id in self._live:
            raise InvalidParameter("a request with this id is running", "id")
        if not request.ids:
            raise InvalidParameter("the prompt is empty", "prompt")
        if not all(0 <= token < self._bounds.vocab_size for token in request.ids):
            raise InvalidParameter(f"a token id is outside 0 … {self._bounds.vocab_size - 1}", "prompt")
        room = self._bounds.context_length - (request.sampling.max_tokens > 0)
        if len(request.ids) > room:
            raise PromptTooLong(
                f"the prompt has {len(request.ids)} tokens; this model takes {self._bounds.context_length} "
                "with its answer",
                "prompt",
            )
        check_sampling(request.sampling, self._bounds.vocab_size)
        if request.sampling.n > self._bounds.max_waiting:
            raise InvalidParameter(f"n is {request.sampling.n}; the queue holds {self._bounds.max_waiting}", "n")
        if len(self.scheduler.waiting) + request.sampling.n > self._bounds.max_waiting:
            raise Overloaded("the queue is full", retry_after=1.0)

    def add(self, request: Request, grammar: Compiled | None = None) -> None:
        """Queue a request that `check` has passed."""
        sampling = request.sampling
        seed = sampling.seed if sampling.seed is not None else secrets.randbits(63)
        limit = min(len(request.ids) + sampling.max_tokens, self._bounds.context_length)
        if not self._reuse:
            request.reuse = False
        sequences = []
        for choice in range(sampling.n):
            sequence = Sequence(request, choice, seed, limit, grammar.matcher() if grammar is not None else None)
            sequence.arrival = self._clock()
            sequence.order = self._arrivals
            self._arrivals += 1
            self.scheduler.add(sequence)
            sequences.append(sequence)
        self._live[request.id] = sequences
        if request.timeout_s is not None:
            heapq.heappush(self._deadlines, (self._clock() + request.timeout_s, request.id))
        self._stats.requests += 1
        self._stats.prompt_tokens += len(request.ids)

    def cancel(self, request_id: str) -> None:
        """Stop a request wherever it is; its pages are free before the next pass. Unknown ids are ignored."""
        if self._stop(request_id, "abort"):
            self._stats.cancelled += 1

    def end_run(self, tenant: str, run: str) -> None:
        """No request of this run will come any more. Unknown runs are ignored."""
        self.scheduler.runs.end(tenant, run)

    def has(self, request_id: str) -> bool:
        """The request is queued or running."""
        return request_id in self._live

    def _stop(self, request_id: str, reason: FinishReason) -> list[Sequence]:
        sequences = self._live.pop(request_id, [])
        stopped = [s for s in sequences if s.finish is None]
        for sequence in stopped:
            self.scheduler.stop(sequence, reason)
        if sequences:
            self._note(sequences)
        return stopped

    def _expire(self) -> list[Output]:
        outputs: list[Output] = []
        if not self._live:  # what is left are deadlines of requests that met them
            self._deadlines.clear()
        while self._deadlines and self._deadlines[0][0] <= self._clock():
            _, request_id = heapq.heappop(self._deadlines)
            error = ("deadline_exceeded", "the request's time is over")
            outputs += [
                Output(request_id, sequence.choice, [], finish="abort", error=error)
                for sequence in self._stop(request_id, "abort")
            ]
        return outputs

    # ---- the loop --------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not self._live and self._uncommitted is None

    @property
    def waits(self) -> bool:
        """There are requests, and the last step found nothing to compute: they wait for runs to come back or to be
        taken for over."""
        return self._waits

    def step(self) -> list[Output]:
        """Plan and start one pass; finish it, or with lag 1 the one before it. Returns what became known."""
        began = time.perf_counter()
        outputs = self._expire() if self._deadlines else []
        if self._uncommitted is None:
            self._overlap.restart()
        elif self.scheduler.drafter is not None and not (self._overlap.ahead and self._uncommitted[0].certain):
            outputs += self._commit_last()
        step = self.scheduler.next()
        planned = time.perf_counter()
        handle = self._submit(step, outputs) if step is not None else None
        submitted = time.perf_counter()
        outputs += self._commit_last()
        if step is not None and handle is not None and self._draw(step, handle, outputs):
            if self._lag:
                self._uncommitted = (step, handle)
            else:
                outputs += self._commit(step, handle)
        self._waits = step is None and self._uncommitted is None
        done = time.perf_counter()
        stats = self._stats
        stats.steps += step is not None
        stats.computed_tokens += step.plan.tokens if step is not None else 0
        stats.schedule_seconds += planned - began
        stats.forward_seconds += submitted - planned
        stats.step_seconds += done - began
        return outputs

    def _submit(self, step: Step, outputs: list[Output]) -> Handle | None:
        """None: the device had no room for it, and it will be planned anew."""
        try:
            return self.runner.submit(step.plan)
        except OutOfDeviceMemory:
            self._undo(step, outputs)
            return None

    def _undo(self, step: Step, outputs: list[Output]) -> None:
        ended = self.scheduler.undo(step)
        outputs += ended
        for output in ended:
            self._finished(output)

    def _draw(self, step: Step, handle: Handle, outputs: list[Output]) -> bool:
        """False: the device had no room for it."""
        began = time.perf_counter()
        draws, scores = self.scheduler.draws(step, self._masks)
        masked = time.perf_counter()
        try:
            handle.sample(draws, scores)
        except OutOfDeviceMemory:
            self._undo(step, outputs)
            return False
        self._stats.mask_seconds += masked - began
        self._stats.sample_seconds += time.perf_counter() - masked
        return True

    def _commit_last(self) -> list[Output]:
        """Finish the pass that is under way, if there is one."""
        if self._uncommitted is None:
            return []
        outputs = self._commit(*self._uncommitted)
        self._uncommitted = None
        self._overlap.passed(sum(len(output.tokens) for output in outputs))
        return outputs

    def _commit(self, step: Step, handle: Handle) -> list[Output]:
        outputs = self.scheduler.commit(step, *handle.result())
        if moves := self.scheduler.acceptance.take_moves():
            self.runner.move(moves)
        for output in outputs:
            self._stats.generated_tokens += len(output.tokens)
            if output.finish is not None:
                self._finished(output)
        return outputs

    def _finished(self, output: Output) -> None:
        sequences = self._live.get(output.request)  # None: all its choices ended in this step, and one was first
        if sequences is not None and all(s.finish is not None for s in sequences):
            self._stats.finished += 1
            self._stats.cached_tokens += sequences[0].cached_tokens or 0
            del self._live[output.request]
            self._note(sequences)

    def _note(self, sequences: list[Sequence]) -> None:
        """Make the record of a request that is over."""
        for sequence in sequences:
            self.scheduler.why_miss.over(sequence)
        self._traces.append(trace(sequences, self._clock(), self.scheduler.runs.pace))

    def take_traces(self) -> list[Trace]:
        """The records of requests that have ended since they were last taken."""
        taken = list(self._traces)
        self._traces.clear()
        return taken

    # ---- looking in ------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        stats = self._stats
        pool = self._cache.pool
        stats.stage_seconds = self.runner.profile()
        if (drafter := self.scheduler.drafter) is not None:
            stats.drafted_tokens = {source: tally.drafted for source, tally in drafter.arbiter.tallies.items()}
            stats.accepted_tokens = {source: tally.accepted for source, tally in drafter.arbiter.tallies.items()}
        stats.running = len(self.scheduler.running)
        stats.waiting = len(self.scheduler.waiting)
        stats.preemptions = self.scheduler.preemptions
        stats.evicted_pages = self.scheduler.evicted_pages
        stats.pages_total = pool.total
        stats.pages_free = pool.free
        stats.pages_cached = self._cache.cached
        stats.pages_pinned = self._cache.cached - self._cache.evictable
        self._evictions.count(stats)
        stats.pages_running = pool.total - pool.free - self._cache.cached
        if self.scheduler.tier is not None:
            self.scheduler.tier.count(stats)
        return stats

    def tree(self, tenant: str | None = None) -> Tree:
        """The prefix tree as it is now; with `tenant`, what is this one's."""
        return view_tree(self._cache, self.scheduler.runs, self._clock(), tenant)

    def reuse(self) -> Reuse:
        """What the hit rate would be with other sizes of the cache."""
        return view_reuse(self.scheduler.why_miss.reuse, self._cache.pool.total)

    def check_integrity(self) -> None:
        """Raise `CacheCorrupt` unless each page belongs to one of pool, tree and running sequences, and to one only."""
        tables = [s.table for s in self.scheduler.running if s.table is not None]
        self._cache.check_integrity([page for table in tables for page in table.owned])
