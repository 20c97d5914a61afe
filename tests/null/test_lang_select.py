"""`select` and its three ways to pick."""

from __future__ import annotations

from typing import Any

import pytest
from fakes_lang import SPECIAL, FakeBackend, encode_text, score
from hypothesis import given
from hypothesis import strategies as st

import bosquet.lang as bosquet
from bosquet.errors import ProgramError
from bosquet.prompts.choose import by_gain, by_mean, greedily

CHOICES = ["the", "ab. ", "xx\n", "ü"]


@bosquet.program
def judge(s: bosquet.State, method: Any) -> Any:
    s += "Verdict: " + bosquet.select("verdict", CHOICES, method=method) + "!" + bosquet.gen("why", max_tokens=1)
    return s["verdict"]


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("method", ["mean", "greedy", "unconditional"])
def test_select_takes_the_likeliest_choice_and_goes_on_after_it(method: str, bos: bool) -> None:
    backend = FakeBackend(bos=bos)
    result = judge.run(method, backend=backend)
    start = [SPECIAL["<s>"]] if bos else []
    prefix = [*start, *encode_text("Verdict: ")]
    alone = start or encode_text("\n")
    ids = [encode_text(choice) for choice in CHOICES]
    conditional = [score(prefix, choice) for choice in ids]
    means = [sum(row) / len(row) for row in conditional]
    if method == "unconditional":
        figures = [sum(row) - sum(score(alone, choice)) for row, choice in zip(conditional, ids, strict=True)]
    else:
        figures = means
    assert result.meta("verdict").scores == pytest.approx(dict(zip(CHOICES, figures, strict=True)))
    if method == "greedy":  # the first tokens all differ, so they alone decide
        figures = [row[0] for row in conditional]
    best = CHOICES[figures.index(max(figures))]
    assert result.value == best
    assert list(backend.calls[0].ids) == [*prefix, *encode_text(best), *encode_text("!")]
    assert backend.scored[0] == (tuple(prefix), ids)
    assert len(backend.scored) == (2 if method == "unconditional" else 1)


def test_select_in_a_chat_stands_in_the_assistants_turn() -> None:
    @bosquet.program
    def chat(s: bosquet.State) -> None:
        s.user("Yes or no?")
        s.assistant(bosquet.select("answer", ["yes", "no"]))
        s.user("Sure?")
        s.assistant(bosquet.select("sure", ["yes", "no"]))

    backend = FakeBackend()
    result = chat.run(backend=backend)
    assert result.messages[1]["content"] == result["answer"]
    first, second = (list(prefix) for prefix, _ in backend.scored)
    assert second[: len(first)] == first
    assert result.usage.calls == 2


def test_a_select_with_nothing_before_it_is_an_error() -> None:
    @bosquet.program
    def empty(s: bosquet.State) -> None:
        s += bosquet.select("x", ["a", "b"])

    with pytest.raises(ProgramError, match="no text to go on from"):
        empty.run(backend=FakeBackend())["x"]


rows = st.lists(st.lists(st.floats(-20, -0.01), min_size=1, max_size=5), min_size=1, max_size=6)


@given(rows)
def test_mean_is_the_best_mean(scores: list[list[float]]) -> None:
    chosen = by_mean(scores)
    assert all(sum(row) / len(row) <= sum(scores[chosen.winner]) / len(scores[chosen.winner]) for row in scores)


@given(rows)
def test_gain_over_itself_is_nothing(scores: list[list[float]]) -> None:
    assert by_gain(scores, scores).scores == [0.0] * len(scores)


def test_gain_prefers_what_the_text_made_likelier() -> None:
    assert by_gain([[-1.0], [-2.0]], [[-1.0], [-6.0]]).winner == 1
    assert by_mean([[-1.0], [-2.0]]).winner == 0


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), min_size=1, max_size=6, unique=True))
def test_greedy_is_greedy_decoding_held_to_the_choices(ids: list[tuple[int, ...]]) -> None:
    def logprob(prefix: tuple[int, ...]) -> float:
        return -1 - (hash(prefix) % 1009) / 100

    scores = [[logprob(choice[: i + 1]) for i in range(len(choice))] for choice in ids]
    means = [sum(row) / len(row) for row in scores]
    said: tuple[int, ...] = ()
    while True:  # a walk down the tree of the choices
        nexts = {c[: len(said) + 1]: scores[i][len(said)] for i, c in enumerate(ids) if c[: len(said)] == said != c}
        if said in ids:
            nexts[said] = means[ids.index(said)]
        best = max(nexts, key=nexts.__getitem__)
        if best == said:
            break
        said = best
        if said in ids and not any(other[: len(said)] == said for other in ids if other != said):
            break
    assert ids[greedily(ids, scores).winner] == said


def test_greedy_does_not_let_rounding_decide_between_choices_that_begin_alike() -> None:
    ids = [(1, 2), (1, 3)]
    noisy = [[-1.0, -5.0], [-1.0000001, -0.1]]  # the same first token, computed in two rows
    assert greedily(ids, noisy).winner == 1
