"""An engine on the hash model with a clock of its own, for tests of who goes next."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from fakes import END, VOCABULARY, HashRunner

from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.limits import Limits, Vocabulary
from bosquet.runtime.plan import Handle, Plan
from bosquet.types import PAGE, Ahead, Origin, Request, SamplingParams

PIECES = [bytes([32 + i]) for i in range(VOCABULARY)]
STEP_S = 0.01
UNKNOWN = Ahead()


class Timed(HashRunner):
    """Its passes take time."""

    def __init__(self, pages: int, passed: Callable[[float], None]) -> None:
        super().__init__(pages)
        self._passed = passed

    def submit(self, plan: Plan) -> Handle:
        self._passed(STEP_S)
        return super().submit(plan)


class World:
    """An engine on the hash model, and its clock: a pass takes 10 ms, and so does a step without one."""

    def __init__(self, pages: int, budget: int = 64) -> None:
        self.now = 0.0
        self.engine = Engine(
            Timed(pages, self.pass_time),
            RadixCache(PagePool(pages), clock=lambda: self.now),
            Limits(budget, 8, ageing_s=5.0),
            Bounds(VOCABULARY, pages * PAGE, max_waiting=2000),
            Vocabulary(PIECES, frozenset({END}), (END,)),
            clock=lambda: self.now,
        )
        self.runs = self.engine.scheduler.runs
        self.cached: dict[str, int] = {}
        self.said: dict[str, list[int]] = {}
        self.ended: dict[str, float] = {}

    def ask(
        self,
        name: str,
        ids: Sequence[int],
        run: str = "",
        tokens: int = 1,
        tenant: str = "",
        program: str = "agent",
        ahead: Ahead = UNKNOWN,
    ) -> None:
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=0)
        origin = Origin(tenant, program, run)
        self.engine.add(Request(id=name, ids=list(ids), sampling=sampling, origin=origin, ahead=ahead))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def step(self) -> None:
        outputs = self.engine.step()
        if self.engine.waits or self.engine.idle:
            self.pass_time(STEP_S)
        for output in outputs:
            self.said.setdefault(output.request, []).extend(output.tokens)
            self.cached.setdefault(output.request, output.cached_tokens)
            if output.finish is not None:
                self.ended[output.request] = self.now
        self.engine.check_integrity()

    def finish(self, *names: str) -> None:
        for _ in range(20_000):
            if all(name in self.ended for name in names) and (names or self.engine.idle):
                return
            self.step()
        raise AssertionError("a request did not come to its end")


def text(seed: object, pages: int) -> list[int]:
    rng = random.Random(str(seed))
    return [rng.randrange(END) for _ in range(pages * PAGE)]
