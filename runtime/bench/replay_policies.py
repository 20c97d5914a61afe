"""The policies that are replayed side by side: the engine as it is, and what it is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from ...radix_cache.policy import EvictionPolicy, Lfu, Lru
from ...radix_cache.pool import PagePool
from ...radix_cache.tree import RadixCache
from ...types import PAGE
from ..engine import Bounds, Engine
from ..limits import Limits, Vocabulary
from ..sequence import Sequence
from ..settings import EngineConfig
from ..waiting import WaitingQueue
from .replay_simulation import Scripted


@dataclass(frozen=True, slots=True)
class Policy:
    """`told`: requests bear the id of their run. `ends`: the engine is told when a run is over."""

    name: str
    about: str
    told: bool = True
    ends: bool = False


BASELINE = Policy(
    "FCFS + LRU", "first come, first served; the least recently used is evicted; knows no runs", told=False
)
POLICIES = (
    BASELINE,
    Policy("Bosquet", "as it comes; requests bear the ids of their runs"),
    Policy("+ ends told", "the same, and it is told when a run is over", ends=True),
)


class InOrderOfArrival(WaitingQueue):
    """First come, first served. What the scheduler does for all stays: chunks, and waiting for a prefix that a running
    request computes."""

    def in_order(self) -> list[Sequence]:
        return sorted(self, key=lambda sequence: sequence.order)


def engine(policy: Policy, pages: int, model: Scripted) -> Engine:
    """An engine with the settings that a server has (`runtime.assembly`), around a model that says what is written."""
    config = EngineConfig()
    eviction: EvictionPolicy = Lru() if config.eviction == "lru" or policy is BASELINE else Lfu()
    made = Engine(
        model,
        RadixCache(PagePool(pages), eviction, clock=model.clock),
        Limits(max(config.step_tokens, config.max_running), config.max_running, config.ageing_s),
        Bounds(1, pages * PAGE, config.max_waiting),
        Vocabulary([], frozenset(), ()),
        clock=model.clock,
    )
    if policy is BASELINE:
        scheduler = made.scheduler
        scheduler.waiting = InOrderOfArrival(scheduler.cache, config.ageing_s, model.clock, lambda sequence: (0, False))
    return made
