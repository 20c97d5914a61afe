"""Random workloads on the engine with the hash model: I2 (a request's output is its own), I5 (pages are conserved)."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from fakes import END, VOCABULARY, HashRunner, continuation

from bosquet.radix_cache.ghosts import Ghosts
from bosquet.radix_cache.policy import Lfu, Lru
from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.drafting import Drafter
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.limits import Limits, Vocabulary
from bosquet.types import Ahead, Origin, Output, Request, SamplingParams

RUNS = ["", "", "one", "two", "three"]
PIECES = [bytes([32 + i]) for i in range(VOCABULARY)]


class World:
    """An engine on the hash model, the requests it was given, and what it said."""

    def __init__(
        self,
        *,
        pages: int,
        lag: int,
        rng: random.Random,
        budget: int = 48,
        rows: int = 8,
        drafter: Drafter | None = None,
    ) -> None:
        self.now = 0.0
        self.rng = rng
        pool = PagePool(pages)
        self.cache = RadixCache(pool, rng.choice([Lru, Lfu])(), clock=lambda: self.now, ghosts=Ghosts(20))
        self.runner = HashRunner(pages)
        self.engine = Engine(
            self.runner,
            self.cache,
            Limits(budget, rows, ageing_s=5.0),
            Bounds(VOCABULARY, pages * 16, max_waiting=1000),
            Vocabulary(PIECES, frozenset({END}), (END,)),
            lag=lag,
            drafter=drafter,
            clock=lambda: self.now,
        )
        self.requests: dict[str, Request] = {}
        self.said: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.outputs: dict[tuple[str, int], list[Output]] = defaultdict(list)
        self.cancelled: set[str] = set()

    def ask(self, request: Request) -> None:
        self.engine.check(request)
        self.requests[request.id] = request
        self.engine.add(request)

    def step(self) -> None:
        self.now += 0.05
        for output in self.engine.step():
            key = (output.request, output.choice)
            assert output.request not in self.cancelled, "nothing is said of a request after its cancel"
            assert not (self.outputs[key] and self.outputs[key][-1].finish), "nothing follows the end"
            self.said[key] += output.tokens
            self.outputs[key].append(output)
        self.engine.check_integrity()

    def cancel(self, request_id: str) -> None:
        self.engine.cancel(request_id)
        self.cancelled.add(request_id)
        self.engine.check_integrity()

    def traffic(self, requests: int, cancels: float) -> None:
        """Random requests, a few steps after each, and now and then a cancel."""
        prompts: list[list[int]] = []
        for number in range(requests):
            self.ask(random_request(self.rng, number, prompts, self.cache.pool.total * 16))
            for _ in range(self.rng.choice([0, 0, 1, 5])):
                self.step()
            live = [name for name in self.requests if self.engine.has(name)]
            if live and self.rng.random() < cancels:
                self.cancel(self.rng.choice(live))

    def finish(self) -> None:
        for _ in range(20_000):
            if self.engine.idle:
                break
            self.step()
        assert self.engine.idle, "everything ends"
        stats = self.engine.stats()
        assert stats.running == stats.waiting == stats.pages_running == 0
        assert self.cache.evictable == self.cache.cached, "no pin is left"

    def check_runs(self) -> None:
        """Once all runs are over, nothing is kept for any of them."""
        for tenant in "ab":
            for run in RUNS:
                self.engine.end_run(tenant, run)
        runs = self.engine.scheduler.runs
        assert not runs.live
        assert not runs.leased_pages()
        assert all(node.worth == 0 for node in self.cache._candidates.valid())

    def check_misses(self) -> None:
        """Of everybody who got room, the first token that was not reused is named, and why it was not."""
        for trace in self.engine.take_traces():
            ids = self.requests[trace.request].ids
            for choice in trace.choices:
                miss = choice.miss
                assert (miss is None) == (choice.admitted is None)
                if miss is not None:
                    assert miss.cause
                    assert miss.matched == choice.cached
                    assert 0 <= miss.at <= miss.matched < len(ids)
                    assert miss.ours == tuple(ids[miss.at : miss.at + 24])
                    assert 0 <= miss.lost <= len(ids) - miss.at
                    assert miss.theirs[:1] != miss.ours[:1]

    def check_answers(self) -> None:
        self.check_misses()
        for request in self.requests.values():
            if request.id in self.cancelled:
                continue
            sampling = request.sampling
            room = self.engine._bounds.context_length - len(request.ids)
            for choice in range(sampling.n):
                said = self.said[request.id, choice]
                finish = self.outputs[request.id, choice][-1].finish
                if finish == "abort":
                    continue
                want = continuation(request.ids, sampling.seed or 0, choice, min(sampling.max_tokens, room))
                assert said == want
                assert finish == ("stop" if want and want[-1] == END else "length")


def random_request(rng: random.Random, number: int, prompts: list[list[int]], largest: int) -> Request:
    """Prompts that share prefixes: a cut of an earlier prompt or answer, and something of its own."""
    base = rng.choice(prompts) if prompts and rng.random() < 0.8 else []
    own = [rng.randrange(END) for _ in range(rng.choice([0, 1, 3, 15, 16, 17, 40]))]
    ids = (base[: rng.randint(0, len(base))] + own)[: largest - 1] or [rng.randrange(END)]
    sampling = SamplingParams(
        seed=rng.randrange(1000),
        n=rng.choice([1, 1, 1, 2, 3]),
        max_tokens=rng.choice([0, 1, 2, 8, 30]),
        prompt_logprobs=rng.choice([None, None, None, 0]),
        prompt_logprobs_from=rng.randint(1, len(ids)),
    )
    prompts.append(ids)
    return Request(
        id=str(number),
        ids=ids,
        sampling=sampling,
        origin=Origin(tenant=rng.choice(["a", "a", "b"]), program="agent", run=rng.choice(RUNS)),
        ahead=Ahead(
            returns=rng.choice([None, True, True, False]), pause_s=rng.choice([0.0, 0.1]), steps=rng.randrange(3)
        ),
        priority=rng.choice([0, 0, 0, 1, 5]),
        timeout_s=rng.choice([None, None, None, 2.0]),
        reuse=rng.random() < 0.9,
    )


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("pages", [6, 12, 40, 200])
@pytest.mark.parametrize("seed", range(12))
def test_random_workload_with_cancels(seed: int, pages: int, lag: int) -> None:
    rng = random.Random(f"{seed}-{pages}-{lag}")
    world = World(pages=pages, lag=lag, rng=rng)
    prompts: list[list[int]] = []
    for number in range(40):
        world.ask(random_request(rng, number, prompts, pages * 16))
        for _ in range(rng.choice([0, 0, 1, 5])):
            world.step()
        live = [r for r in world.requests if world.engine.has(r)]
        if live and rng.random() < 0.2:
            world.cancel(rng.choice(live))
        if rng.random() < 0.1:
            world.engine.end_run(rng.choice(["a", "b"]), rng.choice(RUNS))
    world.finish()
    world.check_answers()
    world.check_runs()
    check_prompt_scores(world)


def check_prompt_scores(world: World) -> None:
    """Each wanted prompt token is scored once, in order, from logits that saw exactly what stood before it."""
    for request in world.requests.values():
        sampling = request.sampling
        if sampling.prompt_logprobs is None or request.id in world.cancelled:
            continue
        outputs = [o for o in world.outputs[request.id, 0] if o.tokens or o.finish != "abort"]
        if not outputs:
            continue
        scores = outputs[0].prompt_logprobs
        wanted = range(sampling.prompt_logprobs_from, len(request.ids))
        assert scores is not None
        assert [(s.token, s.logprob) for s in scores] == [(request.ids[p], -float(p)) for p in wanted]
        assert all(o.prompt_logprobs is None for o in outputs[1:])


@pytest.mark.parametrize("lag", [0, 1])
def test_pressure_preempts_and_still_answers(lag: int) -> None:
    world = World(pages=10, lag=lag, rng=random.Random(5))
    for number in range(6):
        ids = [number + 1] * 20
        world.ask(Request(id=str(number), ids=ids, sampling=SamplingParams(seed=number, max_tokens=60)))
    world.finish()
    world.check_answers()
    assert world.engine.stats().preemptions > 0


@pytest.mark.parametrize("lag", [0, 1])
def test_requests_with_a_common_prefix_compute_it_once(lag: int) -> None:
    world = World(pages=100, lag=lag, rng=random.Random(1), budget=64)
    prefix = [7] * 160
    for number in range(5):
        sampling = SamplingParams(seed=1, max_tokens=1)
        world.ask(Request(id=str(number), ids=[*prefix, number], sampling=sampling))
    world.finish()
    world.check_answers()
    assert world.runner.computed == 161 + 4  # the first computes all, each sibling its last token


def test_a_fork_copies_at_most_one_page_a_branch() -> None:
    world = World(pages=100, lag=0, rng=random.Random(1))
    stem = [5] * 100
    world.ask(Request(id="stem", ids=stem, sampling=SamplingParams(seed=3, max_tokens=0)))
    world.finish()
    before = world.runner.computed
    for branch in range(4):
        ids = [*stem, 10 + branch]
        world.ask(Request(id=f"b{branch}", ids=ids, sampling=SamplingParams(seed=3, max_tokens=1)))
    world.step()
    assert world.runner.computed - before == 4  # one token a branch: 96 shared tokens, 4 copied ones
    assert world.engine.stats().pages_running <= 4
    world.finish()
    world.check_answers()


def test_a_request_of_several_choices_is_counted_once() -> None:
    world = World(pages=50, lag=0, rng=random.Random(2))
    world.ask(Request(id="x", ids=[1] * 20, sampling=SamplingParams(seed=1, n=3, max_tokens=5)))
    world.finish()
    assert (world.engine.stats().requests, world.engine.stats().finished) == (1, 1)


def test_cancel_frees_pages_before_the_next_step() -> None:
    world = World(pages=50, lag=0, rng=random.Random(2))
    world.ask(Request(id="x", ids=[1] * 200, sampling=SamplingParams(seed=1, max_tokens=100), reuse=False))
    world.step()
    assert world.engine.stats().pages_running > 0
    world.cancel("x")
    assert world.engine.stats().pages_running == 0
    assert world.engine.stats().pages_free == 50


def test_priority_goes_first_and_waiting_raises_it() -> None:
    world = World(pages=100, lag=0, rng=random.Random(2), rows=1)
    for name, priority in (("low", 0), ("high", 3), ("also low", 0)):
        sampling = SamplingParams(seed=1, max_tokens=0)
        world.ask(Request(id=name, ids=[1, 2, len(name)], sampling=sampling, priority=priority))
    world.finish()
    assert [key[0] for key in world.outputs] == ["high", "low", "also low"]

    world = World(pages=100, lag=0, rng=random.Random(2), rows=1)
    world.ask(Request(id="old", ids=[1, 2], sampling=SamplingParams(seed=1, max_tokens=0)))
    world.now += 30  # six times ageing_s
    world.ask(Request(id="new", ids=[3, 4], sampling=SamplingParams(seed=1, max_tokens=0), priority=5))
    world.finish()
    assert [key[0] for key in world.outputs] == ["old", "new"]
