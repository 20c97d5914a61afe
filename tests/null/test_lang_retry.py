"""Further attempts at a call that failed, and samples of one prompt."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pydantic
import pytest
from fakes_lang import FakeBackend, written
from moved_clock import language_clock

import bosquet.lang as bosquet
from bosquet.errors import DeadlineExceeded, Overloaded, ProgramError, RequestRejected, Unavailable
from bosquet.lang.calls import reseeded
from bosquet.types import SamplingParams

BUSY = Overloaded("full", 0.001)


class Person(pydantic.BaseModel):
    name: str
    age: int


GOOD, WRONG = '{"name": "Ada", "age": 36}', '{"name": "Ada"}'


def one(**fields: Any) -> bosquet.Program[Any]:
    @bosquet.program
    def ask(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("x", **fields))

    return ask


def test_a_call_is_made_again_after_what_may_pass() -> None:
    backend = FakeBackend(script={"x": [BUSY, Unavailable("gone", 0.001), WRONG, GOOD]})
    result = one(schema=Person, retry=3).run(backend=backend)
    assert result["x"] == Person(name="Ada", age=36)
    meta = result.meta("x")
    assert (meta.attempts, len(meta.failures)) == (4, 3)
    assert meta.failures[0] is BUSY
    assert isinstance(meta.failures[2], pydantic.ValidationError)
    assert len({call.ids for call in backend.calls}) == 1, "every attempt has the same prompt"
    assert result.text.endswith(GOOD), "what came to nothing is not in the text"
    assert result.usage.calls == 2, "two answers came"


def test_the_last_attempt_has_the_last_word() -> None:
    backend = FakeBackend(script={"x": [BUSY, Overloaded("fuller", 0.001), "never"]})
    with pytest.raises(ProgramError, match="step 'x': fuller") as caught:
        one(retry=1).run(backend=backend)["x"]
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__notes__ == ["attempt 2; before it: full"]
    assert backend.script["x"] == ["never"]
    backend = FakeBackend(script={"x": [WRONG, WRONG, GOOD]})
    result = one(schema=Person, retry=1).run(backend=backend)
    with pytest.raises(ProgramError, match="Field required"):
        result["x"]
    assert result.meta("x").attempts == 2


@pytest.mark.parametrize(
    ("on", "failure"),
    [
        (["value"], BUSY),
        (["timeout"], Unavailable("x", 0.001)),
        (["unavailable", "timeout"], WRONG),
        (["value", "unavailable"], DeadlineExceeded("x")),
        (["value", "timeout", "unavailable"], RequestRejected("x")),
        (["value", "timeout", "unavailable"], ZeroDivisionError("x")),
    ],
)
def test_other_failures_are_the_end(on: Any, failure: Any) -> None:
    backend = FakeBackend(script={"x": [failure, GOOD]})
    result = one(schema=Person, retry=bosquet.Retry(5, on=on)).run(backend=backend)
    with pytest.raises(ProgramError):
        result["x"]
    assert backend.script["x"] == [GOOD]


def test_a_timeout_is_of_each_attempt() -> None:
    class FirstSlow(FakeBackend):
        def answer(self, call: bosquet.Call) -> Any:
            self.pause = 3600.0 if len(self.calls) == 1 else 0.0
            clock.move(101 if len(self.calls) == 1 else 60)
            return super().answer(call)

    backend = FirstSlow(script={"x": "abc"})
    with language_clock() as clock:
        result = one(retry=bosquet.Retry(on=["timeout"]), timeout=100).run(backend=backend)
    assert result["x"] == "abc"
    assert isinstance(result.meta("x").failures[0], DeadlineExceeded)
    assert (backend.cancelled, backend.active) == (1, 0)


def test_a_greedy_engine_would_say_the_same_again() -> None:
    backend = FakeBackend(script={"x": [WRONG, GOOD]})
    with pytest.raises(ProgramError):
        one(schema=Person, temperature=0, retry=3).run(backend=backend)["x"]
    assert len(backend.calls) == 1
    far = FakeBackend(script={"x": [WRONG, GOOD]}, capabilities=frozenset({"messages", "json_schema"}))
    assert one(schema=Person, temperature=0, retry=3).run(backend=far)["x"].age == 36, "others promise nothing"


def test_a_seed_is_another_one_in_each_attempt_and_sample() -> None:
    backend = FakeBackend(script={"x": [WRONG, WRONG, GOOD, GOOD, GOOD]})
    result = one(schema=Person, seed=7, n=3, retry=1).run(backend=backend)
    assert len(result["x"]) == 3
    seeds = [call.sampling.seed for call in backend.calls]
    assert len(set(seeds)) == 5
    assert set(seeds[:3]) == {7, 8, 9}
    one().run(backend=backend)
    assert backend.calls[-1].sampling.seed is None, "an engine draws one"
    assert reseeded(SamplingParams(seed=2**64 - 1), 2).seed == 1


def test_a_stream_gives_an_attempt_that_came_to_nothing_to_nobody() -> None:
    backend = FakeBackend(script={"x": [WRONG, GOOD]})
    assert "".join(one(schema=Person, retry=1).stream(backend=backend)) == GOOD


def test_select_and_act_are_tried_again_too() -> None:
    class Busy(FakeBackend):
        async def score(self, *args: Any) -> Any:
            if not self.scored:
                self.scored.append(((), ()))
                raise BUSY
            return await super().score(*args)

    @bosquet.program
    def choose(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.select("x", ["a", "b"], retry=1))

    result = choose.run(backend=Busy())
    assert result["x"] in ("a", "b")
    assert result.meta("x").failures == (BUSY,)

    calls: list[int] = []

    @bosquet.tool
    def note(number: int) -> str:
        """Write it down."""
        calls.append(number)
        return "done"

    @bosquet.program
    def work(s: bosquet.State) -> None:
        s.user("Go.")
        s.act([note], retry=1)

    said = [BUSY, written("note", number=3), BUSY, "Finished."]
    acted = work.run(backend=FakeBackend(script={"act": said}))
    assert acted["act"].text == "Finished."
    assert calls == [3], "no tool runs twice"
    assert acted.meta("act").failures == (BUSY, BUSY)

    @bosquet.program
    def typed(s: bosquet.State) -> None:
        s.user("Go.")
        s.act([note], schema=int, retry=1)

    stream = typed.stream(var="act", backend=FakeBackend(script={"act": ["two", "2"]}))
    assert "".join(stream) == "2"
    assert stream.result["act"].value == 2


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: bosquet.gen("x", retry="2"), "gen: retry must be a number of attempts after the first, or a Retry"),
        (lambda: bosquet.gen("x", retry=True), "gen: retry must be a number of attempts after the first, or a Retry"),
        (lambda: bosquet.gen("x", retry=-1), "gen: retry must be from 1 to 100, not -1"),
        (lambda: bosquet.Retry(0), "Retry: times must be from 1 to 100, not 0"),
        (lambda: bosquet.Retry(on=["everything"]), "Retry: on must be some of value, timeout, unavailable, not"),
        (lambda: bosquet.Retry(on="value"), "Retry: on must be a list of strings, not 'value'"),
        (lambda: bosquet.gen("x", n=0), "gen: n must be from 1 to 128, not 0"),
        (lambda: bosquet.gen("x", n=2.0), "gen: n must be a whole number, not 2.0"),
        (lambda: bosquet.gen("x", reasoning=1), "gen: reasoning must be True or False, not 1"),
    ],
)
def test_what_is_none_is_refused_on_its_line(make: Any, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        make()
    assert str(caught.value).startswith(sentence)


# -- samples ----------------------------------------------------------------------------------------------------------


def test_samples_are_a_list_and_the_state_goes_on_with_the_first() -> None:
    class InTurn(FakeBackend):
        """The first to ask is the last to be answered."""

        async def generate(self, call: bosquet.Call) -> Any:
            for _ in range(10 - len(self.calls)):
                await asyncio.sleep(0)
            async for chunk in super().generate(call):
                yield chunk

        def answer(self, call: bosquet.Call) -> Any:
            self.script["x"] = {5: "aa", 6: "b", 7: "c"}.get(call.sampling.seed or 0)
            return super().answer(call)

    @bosquet.program
    def vote(s: bosquet.State) -> Any:
        s.user("Go.")
        s.assistant(bosquet.gen("x", n=3, seed=5))
        s.user("On.")
        s.assistant(bosquet.gen("y"))
        return Counter(s["x"])

    backend = InTurn()
    stream = vote.stream(var="x", backend=backend)
    assert "".join(stream) == "aa", "the one that the state goes on with is the one that is heard"
    result = stream.result
    assert result.value == Counter(["aa", "b", "c"])
    assert result["x"] == ["aa", "b", "c"]
    assert [meta.text for meta in result.meta("x")] == ["aa", "b", "c"]
    assert result.messages[1] == {"role": "assistant", "content": "aa"}
    assert result.usage.calls == 4
    assert one(n=1).run(backend=FakeBackend(script={"x": "a"}))["x"] == ["a"], "however many: a list"


def test_when_a_sample_fails_the_others_end_with_it() -> None:
    class Third(FakeBackend):
        def answer(self, call: bosquet.Call) -> Any:
            self.pause = 3600.0
            if len(self.calls) == 3:
                raise BUSY
            return super().answer(call)

    backend = Third()
    with pytest.raises(ProgramError, match="full"):
        one(n=4).run(backend=backend)["x"]
    assert backend.active == 0


def test_values_of_samples_have_their_type() -> None:
    backend = FakeBackend(script={"x": ["1", "2"]})
    assert sorted(one(schema=int, n=2).run(backend=backend)["x"]) == [1, 2]
    backend = FakeBackend(script={"x": ["1", "two"]})
    with pytest.raises(ProgramError, match="Invalid JSON"):
        one(schema=int, n=2).run(backend=backend)["x"]
