"""Drafts change how many passes an answer takes, never the answer: random workloads with proposers that are right,
wrong, or offer what is no token (I3, I5)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from by_path import module_at
from draft_trees import tree_around
from fakes import VOCABULARY, continuation

from bosquet.runtime.drafting import Drafter
from bosquet.runtime.sequence import Sequence as EngineSequence
from bosquet.speculative.arbiter import Arbiter, Costs
from bosquet.speculative.draft import Draft, Offer, fork
from bosquet.types import Origin, Request, SamplingParams

fuzz = module_at(Path(__file__).with_name("test_engine_fuzz.py"), "engine_fuzz")


LONG = next(seed for seed in range(1000) if len(continuation([5] * 20, seed, 0, 40)) == 40)
"""Of an answer that does not end by itself."""


def eager() -> Arbiter:
    """A wider pass costs nothing more, so that everything is drafted."""
    return Arbiter(Costs({1: 1.0, 8: 1.0}))


class Told(Drafter):
    """Knows the answer, and says it with mistakes; or anything else."""

    def __init__(self, rng: random.Random, right: float) -> None:
        super().__init__(VOCABULARY, eager())
        self.rng = rng
        self.right = right

    def _suffix(self, sequence: EngineSequence, room: int) -> tuple[Offer | None, Offer | None]:
        first = self._told(sequence, room)
        return first, self._told(sequence, room) if self.rng.random() < 0.5 else None

    def _told(self, sequence: EngineSequence, room: int) -> Offer:
        sampling = sequence.request.sampling
        want = continuation(sequence.request.ids, sampling.seed or 0, sequence.choice, sequence.generated + room)
        tokens = [
            token if self.rng.random() < self.right else self.rng.randrange(-3, VOCABULARY + 3)
            for token in want[sequence.generated :]
        ]
        tokens += [self.rng.randrange(VOCABULARY) for _ in range(room - len(tokens))]  # after the end
        return Offer(self._valid(tokens), self.rng.randrange(40))


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("right", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("pages", [6, 12, 40, 200])
@pytest.mark.parametrize("seed", range(3))
def test_random_workloads_answer_as_without_drafts(
    seed: int, pages: int, right: float, lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bosquet.runtime.overlap.BLOCK", 3)  # both manners of planning, in turn
    monkeypatch.setattr("bosquet.runtime.overlap.STAYS", 2)
    rng = random.Random(f"{seed}-{pages}-{right}")
    world = fuzz.World(pages=pages, lag=lag, rng=rng, drafter=Told(rng, right))
    world.traffic(40, cancels=0.2)
    world.finish()
    world.check_answers()
    fuzz.check_prompt_scores(world)
    stats = world.engine.stats()
    assert stats.accepted_tokens["suffix"] <= stats.drafted_tokens["suffix"]
    assert stats.accepted_tokens["suffix"] > 0 or right == 0


def passes(ids: Sequence[int], drafter: Drafter | None, tokens: int = 40, seed: int = LONG) -> tuple[int, list[int]]:
    world = fuzz.World(pages=50, lag=0, rng=random.Random(0), drafter=drafter)
    ask(world, "x", ids, tokens, seed)
    world.finish()
    return world.engine.stats().steps, world.said["x", 0]


def ask(world: object, name: str, ids: Sequence[int], tokens: int, seed: int = LONG, **more: object) -> None:
    world.ask(  # type: ignore[attr-defined]
        Request(id=name, ids=list(ids), sampling=SamplingParams(seed=seed, max_tokens=tokens, ignore_eos=True), **more)  # type: ignore[arg-type]
    )


def test_right_drafts_save_passes() -> None:
    plain, said = passes([5] * 20, None)
    drafted, same = passes([5] * 20, Told(random.Random(0), 1.0))
    assert said == same
    assert (plain, drafted) == (40, 4), "17 tokens a pass but for the first"


def test_a_program_that_says_the_same_again_drafts_it() -> None:
    """From what it said before; another tenant's or program's words are not looked at."""
    world = fuzz.World(pages=50, lag=0, rng=random.Random(0), drafter=Drafter(VOCABULARY, eager()))
    for name, origin, fewer in (
        ("first", Origin("a", "agent"), False),
        ("again", Origin("a", "agent"), True),
        ("other tenant", Origin("b", "agent"), False),
        ("other program", Origin("a", "chat"), False),
    ):
        before = world.engine.stats().steps
        ask(world, name, [5] * 20, 40, origin=origin)
        world.finish()
        assert (world.engine.stats().steps - before < 40) == fewer, name


def test_off_is_off() -> None:
    world = fuzz.World(pages=50, lag=0, rng=random.Random(0), drafter=Told(random.Random(0), 1.0))
    ask(world, "x", [5] * 20, 40, speculation=())
    world.finish()
    assert world.engine.stats().steps == 40


def test_stop_strings_and_the_limit_end_inside_a_window() -> None:
    want = continuation([5] * 20, LONG, 0, 40)
    stop = bytes(32 + token for token in want[7:9])
    for sampling in (SamplingParams(seed=LONG, max_tokens=40, stop=(stop,)), SamplingParams(seed=LONG, max_tokens=6)):
        answers = []
        for drafter in (None, Told(random.Random(0), 1.0)):
            world = fuzz.World(pages=50, lag=0, rng=random.Random(0), drafter=drafter)
            world.ask(Request(id="x", ids=[5] * 20, sampling=sampling))
            world.finish()
            last = world.outputs["x", 0][-1]
            answers.append((world.said["x", 0], last.finish, last.stop))
        assert answers[0] == answers[1]


def test_a_draft_takes_no_page_from_anybody() -> None:
    """Where the pool is full, drafts go as far as the row's own page."""
    rng = random.Random(3)
    world = fuzz.World(pages=9, lag=0, rng=rng, drafter=Told(rng, 0.9))
    for number in range(3):
        ask(world, str(number), [number] * 20, 26, seed=number)
    world.finish()
    assert world.engine.stats().preemptions == 0


class Branching(Drafter):
    """Knows the answer, and hides it in a tree of wrong tokens."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(VOCABULARY, eager())
        self.rng = rng

    def draft(self, asked: Sequence[tuple[EngineSequence, int]]) -> list[Draft]:
        return [random_tree(self.rng, *one) for one in asked]


def random_tree(rng: random.Random, sequence: EngineSequence, room: int) -> Draft:
    room = min(room, sequence.limit - len(sequence.ids) - 1)
    seed = sequence.request.sampling.seed or 0
    want = continuation(sequence.request.ids, seed, sequence.choice, sequence.generated + room)[sequence.generated :]
    return tree_around(want, room, VOCABULARY, rng)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("pages", [6, 12, 40])
@pytest.mark.parametrize("seed", range(4))
def test_trees_answer_as_without_drafts(seed: int, pages: int, lag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted branches are moved to where they belong: a slot in a wrong place changes the hash of what follows."""
    monkeypatch.setattr("bosquet.runtime.overlap.BLOCK", 3)
    monkeypatch.setattr("bosquet.runtime.overlap.STAYS", 2)
    rng = random.Random(f"tree-{seed}-{pages}-{lag}")
    world = fuzz.World(pages=pages, lag=lag, rng=rng, drafter=Branching(rng))
    world.traffic(30, cancels=0.1)
    world.finish()
    world.check_answers()
    assert world.engine.stats().accepted_tokens["suffix"] > 0


def test_a_fork_says_both() -> None:
    assert fork([1, 2, 3], [1, 2, 9, 8], 5) == ([1, 2, 3, 9, 8], [-1, 0, 1, 1, 3])
    assert fork([1], [2, 3], 5) == ([1, 2, 3], [-1, -1, 1])
    assert fork([1, 2], [1, 2], 5) == ([1, 2], [-1, 0])
    assert fork([1, 2], [1], 5) == ([1, 2], [-1, 0])
    assert fork([1, 2, 3], [1, 2, 9, 8], 1) == ([1, 2, 3, 9], [-1, 0, 1, 1])
    assert fork([1, 2], [3], 0) == fork([1, 2], [3], -1) == ([1, 2], [-1, 0])
    tokens, parents = fork([1, 2, 3], [1, 2, 9, 8], 5)
    draft = Draft(tokens, ["suffix"] * 5, None, parents=parents)
    assert [draft.path(at) for at in range(-1, 5)] == [[], [1], [1, 2], [1, 2, 3], [1, 2, 9], [1, 2, 9, 8]]
    assert [draft.children(at) for at in range(-1, 5)] == [[0], [1], [2, 3], [], [4], []]
    chain = Draft([4, 5], ["suffix"] * 2, None)
    assert [chain.path(at) for at in (-1, 0, 1)] == [[], [4], [4, 5]]
    assert [chain.children(at) for at in (-1, 0, 1)] == [[0], [1], []]


def test_a_second_guess_is_drafted_where_width_is_cheap() -> None:
    cheap, dear = Arbiter(Costs({1: 1.0, 8: 1.01})), Arbiter(Costs({1: 1.0, 8: 3.0}))
    for arbiter in (cheap, dear):
        arbiter.begin(1)
    assert cheap.branch(4) > 0
    assert dear.branch(4) == 0
    for _ in range(300):
        cheap.learn("suffix", 4, accepted=False, rank=1)
    assert cheap.branch(4) == 0, "nor where second guesses are never right"
    assert Arbiter(None).branch(4) == 0


def test_each_token_of_a_draft_knows_its_match() -> None:
    draft = Draft([1, 2, 3], ["suffix"] * 3, None, parents=[-1, 0, 0], matches=[9, 9, 4])
    assert [draft.match(at) for at in range(3)] == [9, 9, 4]
    assert Draft([1], ["model"], None).match(0) == 0
