"""An engine on the hash model with a disk tier whose threads run when the test says so."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from fakes import END, VOCABULARY, HashRunner, continuation

from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.disk_segments import Form
from bosquet.runtime.disk_store import PageStore, Worker
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.limits import Limits, Vocabulary
from bosquet.runtime.plan import Handle, Plan
from bosquet.types import PAGE, Origin, Output, Request, SamplingParams

PIECES = [bytes([32 + i]) for i in range(VOCABULARY)]
FORM = Form(b"f" * 32, PAGE * 8)
PLENTY = 1 << 20
STEP_S = 0.01


class Hand:
    """A worker that works when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def put(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    def close(self) -> bool:
        self.work()
        return True

    def work(self, jobs: int = 1_000_000) -> None:
        for _ in range(min(jobs, len(self.jobs))):
            self.jobs.pop(0)()


class Timed(HashRunner):
    """Its passes take time."""

    def __init__(self, pages: int, passed: Callable[[float], None]) -> None:
        super().__init__(pages)
        self._passed = passed

    def submit(self, plan: Plan) -> Handle:
        self._passed(STEP_S)
        return super().submit(plan)


class World:
    """`reads`, `writes`: the workers. With `by_itself` both work after each step."""

    def __init__(
        self,
        folder: Path,
        pages: int,
        *,
        bound: int = PLENTY,
        form: Form = FORM,
        by_itself: bool = True,
        reader: Worker | None = None,
    ) -> None:
        self.now = 0.0
        self.by_itself = by_itself
        self.cache = RadixCache(PagePool(pages), clock=lambda: self.now)
        self.runner = Timed(pages, self.passed)
        self.engine = Engine(
            self.runner,
            self.cache,
            Limits(64, 8, ageing_s=5.0),
            Bounds(VOCABULARY, pages * PAGE, max_waiting=1000),
            Vocabulary(PIECES, frozenset({END}), (END,)),
            clock=lambda: self.now,
        )
        self.reads, self.writes = Hand(), Hand()
        self.store = PageStore(folder, form, bound, self.writes, lambda: self.now)
        self.engine.use_disk(self.runner.memory, self.store, reader or self.reads)
        self.requests: dict[str, Request] = {}
        self.outputs: dict[tuple[str, int], list[Output]] = defaultdict(list)
        self.cancelled: set[str] = set()

    def passed(self, seconds: float) -> None:
        self.now += seconds

    def ask(self, name: str, ids: Sequence[int], tenant: str = "", max_tokens: int = 1) -> None:
        sampling = SamplingParams(seed=1, max_tokens=max_tokens)
        self.add(Request(id=name, ids=list(ids), sampling=sampling, origin=Origin(tenant=tenant)))

    def add(self, request: Request) -> None:
        self.engine.check(request)
        self.requests[request.id] = request
        self.engine.add(request)

    def step(self) -> None:
        self.now += STEP_S
        for output in self.engine.step():
            assert output.request not in self.cancelled
            self.outputs[output.request, output.choice].append(output)
        self.engine.check_integrity()
        if self.by_itself:
            self.writes.work()
            self.reads.work()

    def cancel(self, name: str) -> None:
        self.engine.cancel(name)
        self.cancelled.add(name)
        self.engine.check_integrity()

    def finish(self) -> None:
        for _ in range(20_000):
            if self.engine.idle:
                break
            self.step()
        assert self.engine.idle, "everything ends"
        self.check_still()

    def check_still(self) -> None:
        """Nothing is held for anybody."""
        stats = self.engine.stats()
        assert stats.running == stats.waiting == stats.pages_running == 0
        assert self.cache.evictable == self.cache.cached, "no pin is left"
        tier = self.engine.scheduler.tier
        assert tier is not None
        assert not tier._asks
        assert not tier._loads

    def check_answers(self) -> None:
        for request in self.requests.values():
            sampling = request.sampling
            for choice in range(sampling.n if request.id not in self.cancelled else 0):
                outputs = self.outputs[request.id, choice]
                if outputs[-1].finish == "abort":
                    continue
                room = self.engine._bounds.context_length - len(request.ids)
                said = [token for output in outputs for token in output.tokens]
                assert said == continuation(request.ids, sampling.seed or 0, choice, min(sampling.max_tokens, room)), (
                    request.id
                )

    def run(self, name: str, ids: Sequence[int], tenant: str = "") -> int:
        """One request alone, its answer checked; how many tokens were computed for it."""
        before = self.runner.computed
        self.ask(name, ids, tenant)
        self.finish()
        self.check_answers()
        return self.runner.computed - before

    def cached(self, name: str) -> int:
        return self.outputs[name, 0][-1].cached_tokens

    def close(self) -> None:
        self.store.close()


def tokens(seed: int, pages: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(END) for _ in range(pages * PAGE)]
