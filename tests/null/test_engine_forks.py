"""What branches of a fork take from the cache: all that their parent computed, whenever they come; and of the text that
only they share, what a sibling has published."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from fakes import END, VOCABULARY, HashRunner, continuation

from bosquet.radix_cache.pool import PagePool
from bosquet.radix_cache.tree import RadixCache
from bosquet.runtime.engine import Bounds, Engine
from bosquet.runtime.limits import Limits, Vocabulary
from bosquet.types import PAGE, Request, SamplingParams

PIECES = [bytes([32 + i]) for i in range(VOCABULARY)]
PAGES = 400


class Family:
    """An engine, and what each request said and had from the cache."""

    def __init__(self, budget: int = 512, rows: int = 8, lag: int = 0) -> None:
        self.engine = Engine(
            HashRunner(PAGES),
            RadixCache(PagePool(PAGES)),
            Limits(budget, rows, ageing_s=5.0),
            Bounds(VOCABULARY, PAGES * PAGE, max_waiting=100),
            Vocabulary(PIECES, frozenset({END}), (END,)),
            lag=lag,
        )
        self.said: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}

    def ask(self, name: str, ids: Sequence[int], tokens: int) -> None:
        self.engine.add(Request(id=name, ids=list(ids), sampling=SamplingParams(max_tokens=tokens, seed=1)))

    def step(self) -> None:
        for output in self.engine.step():
            self.said.setdefault(output.request, []).extend(output.tokens)
            self.cached.setdefault(output.request, output.cached_tokens)
        self.engine.check_integrity()

    def finish(self) -> None:
        while not self.engine.idle:
            self.step()


def parent_of(family: Family, rng: random.Random, length: int, tokens: int) -> list[int]:
    """Run a parent to its end; returns all its tokens. What it said last is not computed."""
    ids = [rng.randrange(90) for _ in range(length)]
    family.ask("parent", ids, tokens)
    family.finish()
    return ids + family.said["parent"]


@pytest.mark.parametrize("lag", [0, 1])
def test_a_branch_takes_all_that_its_parent_computed(lag: int):
    for seed in range(150):
        rng = random.Random(seed)
        family = Family(rng.choice([16, 48, 512]), rng.choice([2, 4, 8]), lag)
        parent = parent_of(family, rng, rng.randrange(20, 90), rng.randrange(1, 12))
        waiting = {
            f"branch {k}": parent + [rng.randrange(90) for _ in range(rng.choice([0, 0, 1, 2, 5, 12, 30]))]
            for k in range(rng.randrange(2, 6))
        }
        prompts = dict(waiting)
        while waiting:
            for _ in range(rng.randrange(3)):
                if waiting:
                    family.ask(*waiting.popitem(), tokens=rng.randrange(1, 40))
            family.step()
        family.finish()
        for name, prompt in prompts.items():
            assert family.cached[name] >= min(len(parent) - 1, len(prompt) - 1), (seed, name)


BEFORE, SHARED = 3 * PAGE, 10
"""Tokens that the parent computed, and tokens of a text that all branches begin with."""


@pytest.mark.parametrize(
    ("pause", "cached"),
    [
        (0, [BEFORE, BEFORE, BEFORE]),  # nobody waits for less than a page
        (1, [BEFORE, BEFORE + SHARED, BEFORE + SHARED]),  # the first has published the page meanwhile
    ],
    ids=["together", "the first a step ahead"],
)
def test_text_that_only_the_branches_share(pause: int, cached: list[int]):
    """Not an error of the cache: who comes first computes what nobody has computed."""
    rng = random.Random(7)
    family = Family()
    parent = parent_of(family, rng, BEFORE, 1)
    shared = [rng.randrange(90) for _ in range(SHARED - 1)]  # with the parent's last token, which is not computed
    prompts = {f"branch {k}": [*parent, *shared, *range(k, k + 20)] for k in range(3)}
    for k, (name, prompt) in enumerate(prompts.items()):
        family.ask(name, prompt, 8)
        if k == 0:
            for _ in range(pause):
                family.step()
    family.finish()
    assert [family.cached[name] for name in prompts] == cached
    for name, prompt in prompts.items():
        assert family.said[name] == continuation(prompt, 1, 0, 8)


def test_text_that_fills_a_page_is_computed_once():
    rng = random.Random(7)
    family = Family()
    parent = parent_of(family, rng, BEFORE, 1)
    shared = [rng.randrange(90) for _ in range(PAGE + SHARED - 1)]
    for k in range(3):
        family.ask(f"branch {k}", [*parent, *shared, *range(k, k + 20)], 8)
    family.finish()
    assert sorted(family.cached[f"branch {k}"] for k in range(3)) == [BEFORE, *[BEFORE + PAGE + SHARED] * 2]
