"""Which runs may be admitted when not all of them fit: those under way keep what they have computed.

Every request of a run goes on from what the run has computed before. If more runs are let in than the pool holds, each
of their requests finds its prefix evicted by the others, and most of the work is computing it again. So a run claims
the pages of its conversation from its first request until it is over, and its requests are admitted only while the run
is *resident*: runs are taken in turn from the tenants, each tenant's oldest first, as long as their claims fit.

A run that nobody ends is taken to be over when it has been silent for longer than 95 of 100 silences of its program.

Knows sequences and a clock; no tree, no plans. `docs/log.md` has what it gains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ..radix_cache.key import Key, common_tokens
from ..types import PAGE
from .sequence import Sequence

REMEMBERED = 256  # silences of a program
ENOUGH = 20  # silences from which a program's patience is learnt
PATIENCE_S, LEAST_S, MOST_S = 5.0, 0.5, 120.0  # before enough is known; bounds of what is learnt
PROGRAMS, LAPSED = 1000, 1000  # of which something is remembered


class RunKey(NamedTuple):
    tenant: str
    run: str


class Program(NamedTuple):
    tenant: str
    name: str


class Claim:
    """What one run holds on to."""

    __slots__ = ("_longest", "_owner", "_private", "idle_since", "program")

    def __init__(self, program: Program) -> None:
        self.program = program
        self.idle_since = 0.0
        self._longest = Key(b"")
        self._owner = -1  # whose tokens they are
        self._private: dict[int, int] = {}  # open sequence → tokens that it does not share with the longest

    @property
    def open(self) -> bool:
        return bool(self._private)

    @property
    def pages(self) -> int:
        branches = sum(-(-tokens // PAGE) for tokens in self._private.values())
        return -(-len(self._longest) // PAGE) + branches

    def enter(self, sequence: Sequence) -> None:
        shared = common_tokens(self._longest.data, sequence.key.data)
        self._private[sequence.order] = max(0, len(sequence.ids) - shared)
        self._lengthen(sequence)

    def leave(self, sequence: Sequence) -> None:
        self._lengthen(sequence)
        self._private.pop(sequence.order, None)

    def _lengthen(self, sequence: Sequence) -> None:
        """The longest is counted whole, so nothing of it is private."""
        if len(sequence.ids) < len(self._longest):
            return
        if self._owner != sequence.order and self._owner in self._private:
            shared = common_tokens(self._longest.data, sequence.key.data)
            self._private[self._owner] = len(self._longest) - shared
        self._longest, self._owner = sequence.key, sequence.order
        self._private[sequence.order] = 0


class Residency:
    """Told of every sequence that comes and goes; says whose turn it is. A request without a run is always admitted."""

    def __init__(self, pages: int, clock: Callable[[], float]) -> None:
        self._pages = pages
        self._clock = clock
        self._claims: dict[RunKey, Claim] = {}  # in the order of their first requests
        self._lapsed: dict[RunKey, float] = {}  # since when they are silent, the newest last
        self._silences: dict[Program, deque[float]] = {}
        self._patience: dict[Program, float] = {}  # learnt

    def enter(self, sequence: Sequence) -> None:
        """It waits for admission."""
        if (key := _key(sequence)) is None:
            return
        program = Program(key.tenant, sequence.request.origin.program)
        claim = self._claims.get(key)
        if claim is None:
            claim = self._claims[key] = Claim(program)
            if (since := self._lapsed.pop(key, None)) is not None:  # it was not over after all
                self._learn(program, self._clock() - since)
        elif not claim.open:
            self._learn(program, self._clock() - claim.idle_since)
        claim.enter(sequence)

    def leave(self, sequence: Sequence) -> None:
        """It is over."""
        claim = self._claims.get(key) if (key := _key(sequence)) is not None else None
        if claim is not None:
            claim.leave(sequence)
            claim.idle_since = self._clock()

    def end(self, tenant: str, run: str) -> None:
        """No request of this run will come any more."""
        claim = self._claims.get(RunKey(tenant, run))
        if claim is not None and not claim.open:
            del self._claims[RunKey(tenant, run)]

    def admits(self) -> Callable[[Sequence], bool]:
        """Whose turn it is, at this moment."""
        self._forget_silent()
        if sum(claim.pages for claim in self._claims.values()) <= self._pages:
            return lambda sequence: True
        resident: set[RunKey] = set()
        free = self._pages
        for key, claim in self._in_turn():
            free -= claim.pages
            if free < 0 and resident:  # one that is too large alone goes when it is the first
                break
            resident.add(key)
        return lambda sequence: (key := _key(sequence)) is None or key in resident

    @property
    def next_lapse(self) -> float | None:
        """When the first of the silent runs will be taken to be over, by the clock."""
        lapses = [self._lapse(claim) for claim in self._claims.values() if not claim.open]
        return min(lapses, default=None)

    def _in_turn(self) -> list[tuple[RunKey, Claim]]:
        """First every tenant's oldest run, then every tenant's second, and so on."""
        counts: dict[str, int] = {}
        ranked = []
        for key, claim in self._claims.items():
            rank = counts[key.tenant] = counts.get(key.tenant, 0) + 1
            ranked.append((rank, key, claim))
        ranked.sort(key=lambda item: item[0])  # stable: among equals the oldest
        return [(key, claim) for _, key, claim in ranked]

    def _forget_silent(self) -> None:
        now = self._clock()
        for key, claim in list(self._claims.items()):
            if not claim.open and self._lapse(claim) <= now:
                del self._claims[key]
                self._lapsed[key] = claim.idle_since
                if len(self._lapsed) > LAPSED:
                    del self._lapsed[next(iter(self._lapsed))]

    def _lapse(self, claim: Claim) -> float:
        return claim.idle_since + self._patience.get(claim.program, PATIENCE_S)

    def _learn(self, program: Program, silence: float) -> None:
        known = self._silences.pop(program, None) or deque(maxlen=REMEMBERED)
        known.append(silence)
        self._silences[program] = known  # the newest last
        if len(known) >= ENOUGH:
            self._patience[program] = min(MOST_S, max(LEAST_S, sorted(known)[len(known) * 95 // 100]))
        if len(self._silences) > PROGRAMS:
            oldest = next(iter(self._silences))
            del self._silences[oldest]
            self._patience.pop(oldest, None)


def _key(sequence: Sequence) -> RunKey | None:
    origin = sequence.request.origin
    return RunKey(origin.tenant, origin.run) if origin.run else None
