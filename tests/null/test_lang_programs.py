"""Programs from their caller's side: running, awaiting, typed values, errors, timeouts, cancelling."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pydantic
import pytest
from fakes_lang import FakeBackend, aecho, echo

import bosquet.lang as bosquet
from bosquet.errors import ConfigError, ProgramError
from bosquet.types import GrammarSpec


class Person(pydantic.BaseModel):
    name: str
    age: int


@bosquet.program
def skeleton(s: bosquet.State, topic: str) -> None:
    s.system("You are terse.")
    s.user(f"List facts about {topic}.")
    s.assistant(bosquet.gen("facts", max_tokens=16, stop="\n\n"))
    branches = s.fork(3)
    for i, branch in enumerate(branches):
        branch.user(f"Expand fact {i + 1}.")
        branch.assistant(bosquet.gen("text", max_tokens=8))
    s.join(branches)


def test_a_program_runs_and_its_variables_can_be_read() -> None:
    backend = FakeBackend(script={"facts": "the abc", "text": ["one", "two", "three"]})
    result = skeleton.run("tea", backend=backend)
    assert result["facts"] == "the abc"
    assert sorted(result["text"]) == ["one", "three", "two"]
    assert list(result) == ["facts", "text"]
    assert "facts" in result
    assert "fact" not in result
    assert result.error is None
    assert result.text == (
        "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nList facts about tea.<|im_end|>\n"
        "<|im_start|>assistant\nthe abc<|im_end|>\n"
    )
    assert result.messages[2] == {"role": "assistant", "content": "the abc"}
    assert result.usage.calls == 4
    assert (
        result.usage.completion_tokens == sum(meta.completion_tokens for meta in result.meta("text")) + 4
    )  # the, space, abc, end
    with pytest.raises(KeyError, match="no variable 'fact' here"):
        result["fact"]


def test_branches_run_at_the_same_time_without_threads_of_their_own() -> None:
    @bosquet.program
    def wide(s: bosquet.State) -> None:
        s.user("Go.")
        branches = s.fork(200)
        for branch in branches:
            branch.assistant(bosquet.gen("x", max_tokens=3))
        s.join(branches)

    backend = FakeBackend(pause=0.005)
    wide.run(backend=backend)
    threads = threading.active_count()
    assert len(wide.run(backend=backend)["x"]) == 200
    assert backend.most_active == 200
    assert threading.active_count() == threads


def test_every_call_says_where_it_comes_from() -> None:
    @bosquet.program
    def nested(s: bosquet.State) -> None:
        s.user("Go.")
        s.fork(2)
        inner = s.fork(2)[1].fork(3)[2]
        inner.assistant(bosquet.gen(), bosquet.gen("named"))

    backend = FakeBackend()
    result = nested.run(backend=backend)
    origins = [call.origin for call in backend.calls]
    assert [(o.program, o.run, o.step, o.branch) for o in origins] == [
        ("nested", result.run_id, "#1", "3.2"),
        ("nested", result.run_id, "named", "3.2"),
    ]
    assert len(result.run_id) == 12
    assert nested.run(backend=backend).run_id != result.run_id


def test_writing_does_not_wait_and_reading_does() -> None:
    @bosquet.program
    def slow(s: bosquet.State) -> tuple[bool, str, bool]:
        s.user("Go.")
        s.assistant(bosquet.gen("x"))
        before = s.ready("x")
        return before, s["x"], s.ready("x")

    assert slow.run(backend=FakeBackend(pause=0.01, script={"x": "abc"})).value == (False, "abc", True)


def test_async_programs_run_on_their_callers_loop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @bosquet.program
    async def where(s: bosquet.State) -> str:
        loops.append(asyncio.get_running_loop())
        s.user("Go.")
        s.assistant(bosquet.gen("x"))
        assert not s.ready("x")
        return str(await s.get("x"))

    async def main() -> None:
        result = await where.arun(backend=FakeBackend(pause=0.02, script={"x": "abc"}))
        assert result.value == "abc"
        assert loops == [asyncio.get_running_loop()]

    asyncio.run(main())
    assert where.run(backend=FakeBackend(pause=0.02, script={"x": "abc"})).value == "abc"


def test_blocking_calls_inside_an_event_loop_say_what_to_do_instead() -> None:
    @bosquet.program
    async def blocks(s: bosquet.State, what: str) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("x"))
        if what == "text":
            assert s.text
        else:
            s[what]

    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"await echo\.arun"):
            echo.run("hi", backend=FakeBackend())
        with pytest.raises(RuntimeError, match=r"await echo\.amap"):
            echo.map(["hi"], backend=FakeBackend())
        with pytest.raises(RuntimeError, match=r"echo\.astream"):
            echo.stream("hi", backend=FakeBackend())
        with pytest.raises(RuntimeError, match=r"await s\.get\('x'\)"):
            await blocks.arun("x", backend=FakeBackend(pause=0.02))
        with pytest.raises(RuntimeError, match=r"read the result's"):
            await blocks.arun("text", backend=FakeBackend(pause=0.02))
        assert (await echo.arun("hi", backend=FakeBackend(script={"reply": "abc"}))).value == "abc"

    asyncio.run(main())


# -- typed values -----------------------------------------------------------------------------------------------------


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize(
    ("schema", "said", "value"),
    [
        (Person, '{"name": "Ada", "age": 36}', Person(name="Ada", age=36)),
        (list[Person], '[{"name": "Ada", "age": 36}]', [Person(name="Ada", age=36)]),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (int, "42", 42),
        (Literal["yes", "no"], '"no"', "no"),
        ({"type": "object", "properties": {"a": {}}}, '{"a": [1]}', {"a": [1]}),
        (dict, '{"b": 2}', {"b": 2}),
    ],
)
def test_a_schema_types_the_value(schema: Any, said: str, value: Any) -> None:
    @bosquet.program
    def typed(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("x", schema=schema))

    backend = FakeBackend(script={"x": said})
    result = typed.run(backend=backend)
    assert result["x"] == value
    assert type(result["x"]) is type(value)
    assert result.meta("x").text == said
    grammar = backend.calls[0].grammar
    assert grammar is not None
    if schema is dict:
        assert grammar == GrammarSpec("json_object")
    else:
        wanted = schema if isinstance(schema, dict) else pydantic.TypeAdapter(schema).json_schema()
        for model in [wanted, *wanted.get("$defs", {}).values()]:
            if schema in (Person, Point) or model is not wanted:
                model["additionalProperties"] = False
        assert grammar.kind == "json_schema"
        assert pydantic.TypeAdapter(Any).validate_json(grammar.value) == wanted


def test_json_that_was_cut_is_an_error_that_says_so_where_the_value_is_read() -> None:
    @bosquet.program
    def typed(s: bosquet.State) -> str:
        s.user("Go.")
        s.assistant(bosquet.gen("person", schema=Person, max_tokens=10), " and on ", bosquet.gen("more"))
        return str(s["more"])

    result = typed.run(backend=FakeBackend(script={"person": '{"name": "Ada", "age": 36}', "more": "abc"}))
    assert result.value == "abc"  # the text is there, so what follows it can be generated
    assert result.meta("person").finish == "length"
    with pytest.raises(ProgramError, match=r"typed: step 'person': the output was cut at max_tokens=10") as caught:
        result["person"]
    assert (caught.value.program, caught.value.step) == ("typed", "person")
    assert isinstance(caught.value.__cause__.__cause__, pydantic.ValidationError)  # type: ignore[union-attr]
    assert result.error is caught.value


def test_a_value_of_the_wrong_type_is_an_error_with_its_cause() -> None:
    @bosquet.program
    def typed(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("person", schema=Person))

    result = typed.run(backend=FakeBackend(script={"person": '{"name": "Ada"}'}))
    with pytest.raises(ProgramError, match="age") as caught:
        result["person"]
    assert isinstance(caught.value.__cause__, pydantic.ValidationError)


def test_an_output_is_held_to_regex_choices_or_grammar() -> None:
    @bosquet.program
    def held(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(
            bosquet.gen("a", regex="[0-9]+"),
            bosquet.gen("b", choices=["x", "ü"]),
            bosquet.gen("c", grammar="root ::= ."),
        )

    backend = FakeBackend(script={"a": "12", "c": "x"})
    result = held.run(backend=backend)
    assert [call.grammar for call in backend.calls] == [
        GrammarSpec("regex", "[0-9]+"),
        GrammarSpec("choice", '["x", "\\u00fc"]'),
        GrammarSpec("ebnf", "root ::= ."),
    ]
    assert result["b"] in ("x", "ü")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bosquet.gen("x", regex="a", choices=["a"]), "not to regex and choices"),
        (lambda: bosquet.gen("x", choices=[]), "not empty"),
        (lambda: bosquet.gen("x", choices=["a", "a"]), "differ"),
        (lambda: bosquet.select("x", ["a"], method="best"), "method must be one of mean, greedy, unconditional"),  # type: ignore[arg-type]
        (lambda: bosquet.gen("x", timeout=0), "above zero"),
    ],
)
def test_contradictions_are_refused_where_they_are_written(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bosquet.gen("x", max_token=3), r"no parameter 'max_token'; did you mean 'max_tokens'\?"),  # type: ignore[call-arg]
        (lambda: bosquet.select("x", "abc"), "list of strings"),
        (lambda: "a" + bosquet.gen("x") + 3, "not int"),  # type: ignore[operator]
        (lambda: echo("hi"), r"echo\.run"),  # type: ignore[arg-type]
        (lambda: echo.run(backend=FakeBackend()), r"echo\(topic\): missing a required argument: 'topic'"),
        (lambda: echo.map([{"subject": "a"}], backend=FakeBackend()), r"missing a required argument: 'topic'"),
        (lambda: bosquet.program(lambda: None), "first parameter is its state"),
        (lambda: bosquet.program(lambda s, backend: None), "'backend' is taken"),
        (lambda: bosquet.program(temprature=0)(lambda s: None), "did you mean 'temperature'"),  # type: ignore[call-overload]
        (lambda: echo.run("hi", backend=object()), "is no backend"),  # type: ignore[arg-type]
    ],
)
def test_mistakes_of_type_are_refused_where_they_are_made(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


# -- sampling ---------------------------------------------------------------------------------------------------------


def test_a_programs_own_defaults_give_way_to_a_gens() -> None:
    @bosquet.program(temperature=0, max_tokens=5, stop=["\n", "x"])
    def tuned(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("a"), bosquet.gen("b", temperature=0.5, stop="ü", logit_bias={3: -1.0}, seed=7))

    backend = FakeBackend(script={"a": "a", "b": "a"})
    tuned.run(backend=backend)
    first, second = (call.sampling for call in backend.calls)
    assert (first.temperature, first.max_tokens, first.stop) == (0, 5, (b"\n", b"x"))
    assert (second.temperature, second.max_tokens, second.stop) == (0.5, 5, ("ü".encode(),))
    assert (second.seed, second.logit_bias) == (7, {3: -1.0})


def test_meta_tells_of_tokens_cache_and_logprobs() -> None:
    @bosquet.program
    def chat(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("a", logprobs=0))
        s.user("On.")
        s.assistant(bosquet.gen("b", max_tokens=2))

    backend = FakeBackend(script={"a": "the abc", "b": "abcabc"})
    result = chat.run(backend=backend)
    a, b = result.meta("a"), result.meta("b")
    assert a.prompt_tokens == len(backend.calls[0].ids)
    assert (a.completion_tokens, a.finish, a.stop) == (4, "stop", 1002)
    assert [entry.token for entry in a.logprobs] == list(a.ids[:-1])
    assert (b.completion_tokens, b.finish, b.stop, b.logprobs) == (2, "length", None, None)
    # The end token that the model gave is the template's too, so the next prompt hits all of the turn.
    assert b.cached_tokens == a.prompt_tokens + a.completion_tokens
    assert a.seconds > 0


# -- which backend ----------------------------------------------------------------------------------------------------


def test_the_backend_comes_from_the_call_else_from_use_else_from_the_default() -> None:
    @bosquet.program
    def outer(s: bosquet.State) -> Any:
        return echo.run("hi").value  # has the backend of the program around it

    first, second, third = (FakeBackend(script={"reply": [name] * 9}) for name in ("a", "b", "c"))
    with pytest.raises(ConfigError, match=r"pass backend=\.\.\., or call bosquet\.set_backend"):
        echo.run("hi")
    bosquet.set_backend(first)
    try:
        assert echo.run("hi").value == "a"
        with bosquet.use(second):
            assert echo.run("hi").value == "b"
            assert echo.map(["hi"])[0].value == "b"
            assert aecho.run("hi").value == "b"
            assert asyncio.run(aecho.arun("hi")).value == "b"
            assert echo.run("hi", backend=third).value == "c"
            assert outer.run(backend=third).value == "c"
            assert outer.map([{}], backend=third)[0].value == "c"
        assert echo.run("hi").value == "a"
    finally:
        bosquet.set_backend(None)


# -- variables and other programs -------------------------------------------------------------------------------------


def test_variables_can_be_set_inherited_and_gathered() -> None:
    @bosquet.program
    def vote(s: bosquet.State) -> None:
        s["topic"] = "tea"
        branches = s.fork(3)
        for i, branch in enumerate(branches):
            assert branch["topic"] == "tea"
            branch["square"] = i * i
        branches[1]["odd"] = True
        s.join(branches)
        assert set(s) == {"topic", "square", "odd"}
        assert "square" in s
        assert s.meta("topic") is None

    result = vote.run(backend=FakeBackend())
    assert result["square"] == [0, 1, 4]
    assert result["odd"] == [None, True, None]
    assert result["topic"] == "tea"


def test_a_program_goes_on_with_the_state_of_another() -> None:
    @bosquet.program
    def greet(s: bosquet.State, name: str) -> str:
        s.user(f"I am {name}.")
        s.assistant(bosquet.gen("greeting"))
        return "greeted"

    @bosquet.program
    def both(s: bosquet.State) -> Any:
        s.system("Be kind.")
        value = greet(s, "Ada")
        s.user("Bye.")
        s.assistant(bosquet.gen("farewell"))
        return value

    backend = FakeBackend()
    result = both.run(backend=backend)
    assert result.value == "greeted"
    assert list(result) == ["greeting", "farewell"]
    assert [turn["role"] for turn in result.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert {call.origin.program for call in backend.calls} == {"both"}
    assert echo.__doc__ == "Say it back."
    assert repr(greet) == "<program greet(name)>"
