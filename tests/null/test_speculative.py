"""Where drafts come from: the suffix index against a search through the whole text, and the arbiter's sums."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bosquet.speculative.arbiter import MOST, Arbiter, Costs, Verdicts
from bosquet.speculative.suffix import LONG, MEASURED, SHORT, Memory, SuffixIndex

texts = st.lists(st.integers(0, 2), max_size=60)  # three tokens: everything repeats


def searched(text: list[int], tail: list[int], limit: int) -> list[tuple[list[int], int]]:
    """Every place of `text` after the longest run that ends `tail`: what follows, and the length of the match."""
    for size in (LONG, SHORT):
        places = [at for at in range(size, len(text)) if text[at - size : at] == tail[-size:] and len(tail) >= size]
        if places:
            at = places[-1]
            match = size
            while match < min(len(tail), at, MEASURED) and text[at - match - 1] == tail[-match - 1]:
                match += 1
            return [(text[at : at + limit], match)]
    return []


@given(texts, texts, st.integers(1, 8))
def test_the_last_place_after_the_longest_run_is_found(text: list[int], tail: list[int], limit: int) -> None:
    index = SuffixIndex(1000)
    for at in range(0, len(text), 7):
        index.extend(text[at : at + 7])
    offer = index.offer(tail, limit)
    assert ([] if offer is None else [(list(offer.tokens), offer.match)]) == searched(text, tail, limit)


@given(texts, st.integers(1, 8))
def test_a_text_is_looked_up_in_itself(text: list[int], limit: int) -> None:
    """What stands at the end is not what follows it."""
    index = SuffixIndex(1000)
    index.extend(text)
    offer = index.offer(text, limit)
    assert ([] if offer is None else [(list(offer.tokens), offer.match)]) == searched(text, text, limit)


def test_old_text_is_forgotten_and_the_rest_still_found() -> None:
    rng = random.Random(0)
    text = [rng.randrange(1000) for _ in range(5000)]
    index = SuffixIndex(400)
    for token in text:
        index.extend((token,))
    assert 200 <= len(index) <= 400
    assert index.offer(text[:-100], 5) is not None
    assert index.offer(text[:1000], 5) is None
    assert len(index._after) <= 2 * 400


def test_nothing_is_drafted_across_two_texts() -> None:
    index = SuffixIndex(100)
    index.extend([1, 2, 3, 4])
    index.close()
    index.extend([5, 6, 7, 8])
    offer = index.offer([1, 2, 3], 10)
    assert offer is not None
    assert list(offer.tokens) == [4]
    assert index.offer([2, 3, 4], 10) is None


def test_programs_and_tenants_have_memories_of_their_own_and_few_are_kept() -> None:
    memory = Memory(100, programs=2)
    for program in "abc":
        memory.remember("x", program, [1, 2, 3, 4])
    assert memory.offer("x", "c", [1, 2, 3], 5) is not None
    assert memory.offer("y", "c", [1, 2, 3], 5) is None
    assert memory.offer("x", "a", [1, 2, 3], 5) is None, "the oldest is forgotten"


# ---- the arbiter ---------------------------------------------------------------------------------------------------


@given(st.floats(1e-4, 1.0), st.floats(1e-5, 0.1))
def test_a_line_is_found_from_two_widths_and_follows_what_is_seen(a: float, b: float) -> None:
    costs = Costs({1: a + b, 8: a + 8 * b})
    assert costs.line == pytest.approx((a, b), rel=1e-4)
    for _ in range(400):
        for width in (1, 3, 12):
            costs.learn(width, 2 * a + 3 * b * width)
    assert costs.line == pytest.approx((2 * a, 3 * b), rel=0.05)


def test_a_cost_is_never_negative() -> None:
    for measured in ({1: 2.0, 8: 1.0}, {1: 1.0, 8: 100.0}, {1: 1.0}):
        a, b = Costs(measured).line
        assert a >= 0
        assert b >= 0


@pytest.mark.parametrize("rows", [1, 4, 8, 32])
@pytest.mark.parametrize("chance", [0.2, 0.6, 0.9, 0.99])
def test_the_length_is_the_best_for_the_costs(rows: int, chance: float) -> None:
    """Against trying every length: tokens a second with all rows drafting that many."""
    a, b = 5.0, 0.8
    arbiter = Arbiter(Costs({1: a + b, 8: a + 8 * b}))
    arbiter._chances["suffix"] = [chance] * 4
    arbiter.begin(rows)

    def rate(length: int) -> float:
        return rows * sum(chance**i for i in range(length + 1)) / (a + b * rows * (1 + length))

    best = max(rate(length) for length in range(MOST + 1))
    chosen = rate(arbiter.suffix(match=20).tokens)
    assert chosen >= 0.9 * best
    assert chosen >= 0.999 * rate(0), "never slower than without"


def test_estimates_follow_what_happens_and_try_again_later() -> None:
    arbiter = Arbiter(Costs({1: 5.8, 8: 11.4}))
    arbiter.begin(1)
    assert arbiter.suffix(match=4).tokens > 0
    for _ in range(300):
        arbiter.learn("suffix", 4, accepted=False)
    arbiter.begin(1)
    assert arbiter.suffix(match=4).tokens == 0
    assert arbiter.suffix(match=20).tokens > 0, "long matches are another matter"
    for _ in range(2000):
        arbiter.begin(1)
    assert arbiter.suffix(match=4).tokens > 0
    assert arbiter.tallies["suffix"].drafted == 300
    assert arbiter.tallies["suffix"].accepted == 0


def test_a_text_that_misleads_is_given_up_soon_and_alone() -> None:
    arbiter = Arbiter(Costs({1: 5.8, 8: 11.4}))
    misled, faithful = Verdicts(), Verdicts()
    wrong = 0
    for _ in range(60):
        arbiter.begin(1)
        misled.fade()
        faithful.fade()
        if arbiter.suffix(4, misled).tokens:
            arbiter.learn("suffix", 4, accepted=False, own=misled)
            wrong += 1
        if arbiter.suffix(4, faithful).tokens:
            arbiter.learn("suffix", 4, accepted=True, own=faithful)
    assert 0 < wrong < 30
    assert arbiter.suffix(4, faithful).tokens > arbiter.suffix(4).tokens > arbiter.suffix(4, misled).tokens == 0
    for _ in range(500):
        misled.fade()
    assert arbiter.suffix(4, misled).tokens == arbiter.suffix(4).tokens, "as if nothing were known of it"


def test_verdicts_of_a_text_weigh_by_their_number() -> None:
    own = Verdicts()
    assert own.beside(2, 0.75) == 0.75
    for accepted in (True, False, False, False, False, False, False, False):
        own.learn(2, accepted)
    assert own.beside(2, 0.75) == (4 * 0.75 + 1) / 12
    assert own.beside(1, 0.6) == 0.6, "of matches of another length nothing is known"


def test_without_costs_only_what_is_certain_is_drafted() -> None:
    arbiter = Arbiter()
    arbiter.begin(1)
    assert arbiter.suffix(match=32).tokens == 0
    assert arbiter.text == 0


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("right", [0.3, 0.8, 0.95])
@pytest.mark.parametrize("step", [(0.1, 0.02), (1.0, 0.3), (6.0, 2.0)])
def test_a_draft_model_drafts_what_is_best_for_its_own_costs_too(
    rows: int, right: float, step: tuple[float, float]
) -> None:
    """Against trying every length."""
    a, b = 5.0, 0.8
    d, e = step
    arbiter = Arbiter(Costs({1: a + b, 8: a + 8 * b}))
    arbiter._chances["model"] = [right] * 4
    arbiter.begin(rows)

    def rate(length: int) -> float:
        seconds = a + b * rows * (1 + length) + length * (d + e * rows)
        return rows * sum(right**i for i in range(length + 1)) / seconds

    worth = arbiter.model(Costs({1: d + e, 8: d + 8 * e}))
    best = max(rate(length) for length in range(MOST + 1))
    assert rate(worth.tokens) >= 0.9 * best
    assert worth.rate == pytest.approx(rate(worth.tokens), rel=0.02)
    saved = 100 * rows * ((a + b * rows) / rows - 1 / rate(worth.tokens))
    assert arbiter.saves(worth, 100) == (pytest.approx(saved, rel=0.02, abs=1e-6) if worth.tokens else 0)


def test_a_draft_model_is_judged_by_the_place_in_its_draft() -> None:
    arbiter = Arbiter(Costs({1: 5.8, 8: 11.4}))
    drafting = Costs({1: 0.1, 8: 0.2})
    arbiter.begin(1)
    before = arbiter.model(drafting).tokens
    for _ in range(400):
        arbiter.learn("model", 0, accepted=True)
        arbiter.learn("model", 1, accepted=False)
    assert before > 1
    assert arbiter.model(drafting).tokens == 1, "the second token is never right"


@pytest.mark.parametrize("width", [1, 32])
@pytest.mark.parametrize("slower", [1.0, 1.3, 4.0])
def test_passes_of_one_width_say_how_fast_the_machine_is_and_nothing_of_the_shape(width: int, slower: float) -> None:
    costs, rng = Costs({1: 4.8, 8: 13.9}), random.Random(width)
    for _ in range(5000):
        costs.learn(width, slower * (3.5 + 1.3 * width) * (1 + rng.gauss(0, 0.05)))
    assert costs.line == (pytest.approx(3.5 * slower, rel=0.1), pytest.approx(1.3 * slower, rel=0.1))


def test_passes_of_several_widths_teach_another_shape() -> None:
    costs, rng = Costs({1: 4.8, 8: 13.9}), random.Random(0)
    for _ in range(2000):
        width = rng.choice([1, 1, 1, 5, 9])
        costs.learn(width, (2 + 2 * width) * (1 + rng.gauss(0, 0.05)))
    assert costs.line == (pytest.approx(2, rel=0.15), pytest.approx(2, rel=0.05))


def test_text_that_must_come_is_drafted_as_far_as_it_pays() -> None:
    cheap, dear = Arbiter(Costs({1: 5.0, 8: 5.7})), Arbiter(Costs({1: 5.0, 8: 20.0}))
    for arbiter in (cheap, dear):
        arbiter.begin(1)
    assert cheap.text > dear.text > 0
    dear.begin(32)
    assert dear.text == 0
