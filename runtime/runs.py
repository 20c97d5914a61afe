"""The runs of agent programs: which prefixes they will need again, and whose turn it is when not all runs fit.

Each request of a run goes on from what the run has computed before. When more runs are let in than the pool holds, each
request finds its prefix evicted by the others, and most of the work is computing it again. So:

- A run that is expected back *leases* the prefixes that it stands on: they are evicted after everything else, the
  youngest run's first. Newer prefixes supersede older ones. A lease ends with the run, or with a silence longer than
  usual for its program.
- A run with requests under way or with whole leases is *resident*. Its requests take the room they need, from the
  leases of younger runs if need be; whoever loses a lease so is resident no more. Requests of other runs take no leased
  room. They do when nothing else can run, and when they have waited as long as a resident run has had its place.

A request without a run is a run of one request. Knows sequences, nodes and a clock; no plans. `docs/scheduling.md`
explains it with figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import islice

from ..radix_cache.tree import Node, RadixCache
from ..types import PAGE
from .run import Lease, Run, RunKey
from .run_records import Program, RunRecords
from .sequence import Sequence

REMEMBERED = 1000
"""Runs without requests and leases whose return would still be noticed."""

FEW = 16
"""Silent runs that are looked at in one round."""

TURN_S, TURN_PER_COST = 60.0, 64
"""A resident run keeps its place for at least so many seconds, and for so many times what its return would cost."""

SOONEST_S = 0.01
"""No run is expected back sooner."""

HEADROOM = 10
"""Of the pool, the part that a run that is let in must leave for those that are resident: they grow."""

PACE_S = 0.0005
"""Seconds a token of a prompt, before it has been measured."""

MANY = 64
"""Tokens of a pass that shows how fast prompts are computed."""


class Runs:
    """Told of every sequence that comes, gets room and goes."""

    def __init__(self, cache: RadixCache, clock: Callable[[], float]) -> None:
        self.records = RunRecords()
        self._cache = cache
        self._clock = clock
        self._runs: dict[RunKey, Run] = {}
        self._idle: dict[RunKey, Run] = {}  # those that have leases, and no request under way
        self._silent: dict[RunKey, tuple[float, Program]] = {}  # without leases: since when, the newest last
        self._given_up: dict[RunKey, tuple[float, Program]] = {}  # silent for longer than usual, the newest last
        self._holders: dict[Node, list[Run]] = {}  # who leases what ends with this node
        self._residents: dict[str, int] = {}  # tenant → its resident runs
        self._denied = False
        self._quiet_since: float | None = None  # when somebody was first denied although nothing else runs
        self.pace = PACE_S  # seconds that computing a token of a prompt takes

    # ---- what happens ----------------------------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> Run:
        """It waits for room; the run that it belongs to."""
        origin = sequence.request.origin
        key = RunKey(origin.tenant, origin.run or f"request {sequence.request.id}")
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = Run(key, Program(origin.tenant, origin.program), sequence.order)
            if (known := self._silent.pop(key, None)) is not None:
                self._came_back(run, self._clock() - known[0])
            elif (known := self._given_up.pop(key, None)) is not None:
                self._came_back(run, self._clock() - known[0], given_up=True)
        elif not run.open:
            self._came_back(run, self._clock() - run.idle_since)
        self._idle.pop(key, None)
        run.open.add(sequence.order)
        run.width = max(run.width, len(run.open))
        return run

    def computed(self, tokens: int, seconds: float) -> None:
        """A pass of so many tokens took so long."""
        self._quiet_since = None
        if tokens >= MANY:
            self.pace += 0.1 * (seconds / tokens - self.pace)

    def admit(self, run: Run) -> None:
        """One of its sequences has got room."""
        if not run.resident:
            run.resident = True
            run.since = self._clock()
            self._residents[run.key.tenant] = self._residents.get(run.key.tenant, 0) + 1

    def stand_on(self, run: Run, node: Node) -> None:
        """The run, if it is resident, will go on from here; what stands above is leased no more by itself."""
        if not run.resident:
            return
        above = {id(node)}
        up = node.parent
        while up is not None:
            above.add(id(up))
            up = up.parent
        for lease in [lease for lease in run.leases if id(lease.node) in above]:
            self._release(run, lease)
        run.leases.append(Lease(node))
        self._holders.setdefault(node, []).append(run)
        self._value(node)
        if len(run.leases) > run.width:
            self._release(run, run.leases[0])

    def leave(self, run: Run, sequence: Sequence, node: Node | None) -> None:
        """A sequence is over. `node` ends with what was computed of it, where that was kept."""
        run.open.discard(sequence.order)
        ahead = sequence.request.ahead
        expected = ahead.returns if ahead.returns is not None else run.came_back or self.records.returns(run.program)
        if node is not None and expected and sequence.request.origin.run:
            self.stand_on(run, node)
        if not run.open:
            named = bool(sequence.request.origin.run)  # else this request was all of it
            run.idle_since = self._clock()
            run.pause_s = ahead.pause_s
            if named and run.leases and not run.over:
                self._idle[run.key] = run
            else:
                self._drop(run, remember=named)

    def end(self, tenant: str, run: str) -> None:
        """No request will come any more. Unknown runs are ignored."""
        key = RunKey(tenant, run)
        self._silent.pop(key, None)
        if (known := self._given_up.pop(key, None)) is not None:
            self.records.was_told(known[1])
        if (found := self._runs.get(key)) is not None:
            found.over = True
            if not found.open:
                self._drop(found, remember=False)

    # ---- whose turn it is ------------------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """Before sequences are asked to be admitted."""
        self._denied = False
        now = self._clock()
        for run in list(self._idle.values()):
            patience = max(self.records.patience(run.program), 4 * run.pause_s)
            if now - run.idle_since > patience or not any(lease.whole for lease in run.leases):
                self._drop(run, remember=True)
        for key, (since, program) in list(islice(self._silent.items(), FEW)):
            if now - since > self.records.patience(program):
                self._give_up(key)

    def order(self, sequence: Sequence) -> tuple[int, bool]:
        """Among equally urgent sequences: the tenant with the fewest resident runs first; resident runs first."""
        run = sequence.run
        return (self._residents.get(sequence.namespace.tenant, 0), not (run is not None and run.resident))

    def has_no_turn(self, sequence: Sequence) -> bool:
        """Another one is before it and waits for room, of which there is too little for anybody else."""
        run, pool = sequence.run, self._cache.pool
        return self._denied and run is not None and not run.resident and pool.free <= pool.total // HEADROOM

    def may_take(self, sequence: Sequence, pages: int) -> bool:
        """Whether it may be admitted, needing so many pages that are not cached."""
        run = sequence.run
        assert run is not None
        pool = self._cache.pool
        if run.resident or pages + pool.total // HEADROOM <= pool.free:
            return True
        if self._denied:
            return False  # in turn: a later one that is smaller would only make the first wait longer
        lost = pages + pool.total // HEADROOM - (pool.free + self._cache.evictable - self.leased_pages())
        if lost <= 0 or (self._all_silent and self._idles_for_nothing(lost * PAGE * self.pace)):
            return True
        self._denied = not self._make_room(lost, self._clock() - sequence.arrival)
        return not self._denied

    def _make_room(self, pages: int, waited: float) -> bool:
        """Take the place of resident runs that have had theirs for long, when somebody has waited for as long."""
        if waited < TURN_S:
            return False
        now = self._clock()
        for run in sorted((run for run in self._runs.values() if run.resident), key=lambda run: run.since):
            cost = _unpinned(lease.node for lease in run.leases)
            if min(waited, now - run.since) < max(TURN_S, TURN_PER_COST * cost * PAGE * self.pace):
                continue
            before = self.leased_pages()
            self._drop(run, remember=True)
            pages -= before - self.leased_pages()
            if pages <= 0:
                return True
        return False

    @property
    def _all_silent(self) -> bool:
        """No resident run has a request under way: nothing else can run."""
        return sum(self._residents.values()) == len(self._idle)

    def _idles_for_nothing(self, cost: float) -> bool:
        """Nothing runs: whether to go on waiting would take longer than the `cost` of computing lost leases again, or
        has already. So no more than as much is ever lost by waiting."""
        now = self._clock()
        if self._quiet_since is None:
            self._quiet_since = now
        return cost < max(self._next_return(), now - self._quiet_since)

    def _next_return(self) -> float:
        """Seconds until the first of the silent runs is likely to be back. Each comes back at a rate of one in its
        usual silence, or in the silence that it has kept, if that is longer; their rates add up."""
        now = self._clock()
        rate = 0.0
        for run in self._idle.values():
            usual = run.pause_s or self.records.usual_silence(run.program)
            rate += self.records.chance(run.program) / max(usual, now - run.idle_since, SOONEST_S)
        return 1 / rate if rate else math.inf

    def holders(self, node: Node) -> Iterable[Run]:
        """The runs that lease what ends with this node."""
        return self._holders.get(node, ())

    def leased_pages(self) -> int:
        """What leases keep and no pin does, those that several keep counted once."""
        return _unpinned(self._holders)

    @property
    def live(self) -> int:
        """Runs that have requests under way, or leases."""
        return len(self._runs)

    def _drop(self, run: Run, *, remember: bool) -> None:
        self._move_out(run)
        if not run.open:
            del self._runs[run.key]
            self._idle.pop(run.key, None)
            if remember and not run.over:
                self._silent[run.key] = (run.idle_since, run.program)
                if len(self._silent) > REMEMBERED:
                    self._give_up(next(iter(self._silent)))

    def _move_out(self, run: Run) -> None:
        for lease in list(run.leases):
            self._release(run, lease)
        if run.resident:
            run.resident = False
            left = self._residents[run.key.tenant] - 1
            if left:
                self._residents[run.key.tenant] = left
            else:
                del self._residents[run.key.tenant]

    def _give_up(self, key: RunKey) -> None:
        """Take a silent run for over, but notice if it was not."""
        self._given_up[key] = known = self._silent.pop(key)
        self.records.was_over(known[1])
        if len(self._given_up) > REMEMBERED:
            del self._given_up[next(iter(self._given_up))]

    def _came_back(self, run: Run, silence: float, *, given_up: bool = False) -> None:
        run.came_back = True
        self.records.came_back(run.program, silence, given_up=given_up)

    # ---- leases ----------------------------------------------------------------------------------------------------

    def _release(self, run: Run, lease: Lease) -> None:
        run.leases.remove(lease)
        holders = self._holders[lease.node]
        holders.remove(run)
        if not holders:
            del self._holders[lease.node]
        self._value(lease.node)

    def _value(self, node: Node) -> None:
        holders: Iterable[Run] = self._holders.get(node, ())
        if node.alive:
            self._cache.value(node, max((run.worth for run in holders), default=0.0))


def _unpinned(ends: Iterable[Node]) -> int:
    """Pages of the prefixes that end with these nodes and that no pin keeps, each counted once."""
    seen: set[int] = set()
    pages = 0
    for end in ends:
        node: Node | None = end if end.alive else None
        while node is not None and node.parent is not None and id(node) not in seen:
            seen.add(id(node))
            if not node.locks:
                pages += len(node.pages)
            node = node.parent
    return pages
