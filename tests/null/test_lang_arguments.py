"""Whatever is handed to the language wrongly is refused on its own line, in one sentence that names the argument."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import pytest
from fakes_lang import FakeBackend, aecho, echo
from hypothesis import given
from hypothesis import strategies as st

import bosquet.lang as bosquet
from bosquet.errors import ConfigError, InvalidParameter, Overloaded, ProgramError, Unsupported
from bosquet.lang.arguments import SAMPLING
from bosquet.lang.expressions import sampling_params
from bosquet.runtime.validation import check_sampling
from bosquet.types import SAMPLING_RANGES, SamplingParams

HALF = "a\ud800"
NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
COUNTS = ("max_tokens", "min_tokens", "top_k", "seed", "logprobs")


def gen_line(where: str, name: str, value: Any) -> Any:
    """The two places where a sampling field is written."""
    return bosquet.gen("x", **{name: value}) if where == "gen" else bosquet.program(**{name: value})


def refused(make: Callable[[], Any], kind: type[Exception], where: str) -> str:
    """The sentence of the error, which begins with the function and the argument."""
    with pytest.raises(kind) as caught:
        make()
    sentence = str(caught.value)
    assert sentence.startswith(where), sentence
    assert "\n" not in sentence
    return sentence


def test_every_sampling_field_has_a_check() -> None:
    assert SAMPLING.keys() == bosquet.Sampling.__annotations__.keys()


WRONG: list[tuple[str, Any, type[Exception]]] = [
    *((name, value, TypeError) for name in SAMPLING for value in (object(), 1j)),
    *((name, value, TypeError) for name in NUMBERS for value in ("1", None, True, [1])),
    *((name, value, ValueError) for name in NUMBERS for value in (float("nan"), float("inf"), -float("inf"), 10**400)),
    *((name, value, TypeError) for name in COUNTS for value in ("1", 1.0, True, [1])),
    *((name, value, ValueError) for name in COUNTS for value in (2**64, -(2**63) - 1)),
    *((name, None, TypeError) for name in SAMPLING if name not in ("seed", "logprobs", "speculation")),
    ("stop", 5, TypeError),
    ("stop", b"x", TypeError),
    ("stop", ["", None], ValueError),
    ("stop", ["a", None], TypeError),
    ("stop", "", ValueError),
    ("stop", ["a", HALF], ValueError),
    ("stop_token_ids", 5, TypeError),
    ("stop_token_ids", "12", TypeError),
    ("stop_token_ids", [1, "2"], TypeError),
    ("logit_bias", [1], TypeError),
    ("logit_bias", {"1": 1.0}, TypeError),
    ("logit_bias", {1: "x"}, TypeError),
    ("logit_bias", {1: float("nan")}, ValueError),
    ("ignore_eos", 1, TypeError),
]


@pytest.mark.parametrize("where", ["gen", "program"])
@pytest.mark.parametrize(("name", "value", "kind"), WRONG)
def test_a_sampling_field_of_a_wrong_type(where: str, name: str, value: Any, kind: type[Exception]) -> None:
    refused(lambda: gen_line(where, name, value), kind, f"{where}: {name}")


OUTSIDE: list[tuple[str, Any]] = [
    ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 2**31 + 1), ("min_tokens", -1), ("temperature", -0.1),
    ("temperature", 101), ("top_p", 0), ("top_p", 1.01), ("top_p", -1), ("top_k", -1), ("min_p", -0.1), ("min_p", 1.1),
    ("presence_penalty", 101), ("frequency_penalty", -101), ("repetition_penalty", 0), ("logprobs", -1),
    ("logprobs", 1001), ("speculation", "on"), ("speculation", ["forced", 1]),
    ("stop", ["x"] * 65), ("stop", "x" * 4097), ("stop_token_ids", [-1]), ("logit_bias", {-1: 0.5}),
]  # fmt: skip


@pytest.mark.parametrize("where", ["gen", "program"])
@pytest.mark.parametrize(("name", "value"), OUTSIDE)
def test_a_number_that_no_sampler_could_honour(where: str, name: str, value: Any) -> None:
    refused(lambda: gen_line(where, name, value), ValueError, f"{where}: {name}")


@given(st.sampled_from(sorted(SAMPLING_RANGES.keys() & SAMPLING.keys() - {"max_tokens"})), st.data())
def test_the_language_refuses_what_the_engine_would(name: str, data: st.DataObject) -> None:
    """Both have the same ranges: at their ends, and around them."""
    span, whole = SAMPLING_RANGES[name], name in COUNTS
    step = 1 if whole else 1e-6
    edges = [end + off for end in (span.low, span.high) for off in (-step, 0, step)]
    value = data.draw(st.sampled_from([int(edge) if whole else edge for edge in edges]))
    try:
        piece = bosquet.gen("x", **{name: value})  # type: ignore[arg-type]
    except ValueError:
        with pytest.raises(InvalidParameter, match=name):
            check_sampling(SamplingParams(**{name: value}), 10)
    else:
        check_sampling(sampling_params({}, piece.sampling), 10)


@given(
    st.floats(0, 100, exclude_min=True),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**63), 2**64 - 1),
    st.text(min_size=1),
)
def test_what_is_right_arrives_as_it_is(heat: float, bias: float, count: int, stop: str) -> None:
    piece = bosquet.gen("x", temperature=heat, seed=count, stop=stop, logit_bias={7: bias}, logprobs=None)
    params = sampling_params({}, piece.sampling)
    assert (params.temperature, params.seed, params.logprobs) == (heat, count, None)
    assert (params.stop, params.logit_bias) == ((stop.encode(),), {7: bias})


def test_numbers_of_other_libraries_become_plain_ones() -> None:
    piece = bosquet.gen("x", temperature=np.float32(0.5), max_tokens=np.int64(3), stop_token_ids=np.array([1, 2]))  # type: ignore[arg-type]
    params = sampling_params({}, piece.sampling)
    assert (type(params.temperature), type(params.max_tokens)) == (float, int)
    assert (params.temperature, params.max_tokens, params.stop_token_ids) == (0.5, 3, (1, 2))


ANY: Any = bosquet


@pytest.mark.parametrize(
    ("make", "kind", "where"),
    [
        (lambda: ANY.gen(5), TypeError, "gen: name must be a string, not 5"),
        (lambda: ANY.gen(HALF), ValueError, "gen: name is not valid Unicode"),
        (lambda: ANY.gen("x", stop=["a", HALF]), ValueError, "gen: stop is not valid Unicode"),
        (lambda: ANY.gen("x", stop=5), TypeError, "gen: stop must be a string or a list of strings, not 5"),
        (lambda: ANY.gen("x", stop=["", None]), ValueError, "gen: stop must be a string or a list of strings that are"),
        (lambda: ANY.gen("x", logit_bias={1: "x"}), TypeError, "gen: logit_bias: a bias must be a number, not 'x'"),
        (lambda: ANY.gen("x", timeout="x"), TypeError, "gen: timeout must be a number, not 'x'"),
        (lambda: ANY.gen("x", timeout=float("inf")), ValueError, "gen: timeout must be a finite number, not inf"),
        (lambda: ANY.gen("x", timeout=-1), ValueError, "gen: timeout must be above zero, not -1"),
        (lambda: ANY.gen("x", choices=[]), ValueError, "gen: choices must be a list that is not empty"),
        (lambda: ANY.gen("x", schema=5), TypeError, "gen: schema must be a type that pydantic can describe"),
        (lambda: ANY.gen("x", schema=[int]), TypeError, "gen: schema must be a type"),
        (lambda: ANY.gen("x", schema='{"type": "object"}'), TypeError, "gen: schema must be a type"),
        (lambda: ANY.gen("x", schema=Callable[[], int]), TypeError, "gen: schema must be a type"),
        (lambda: ANY.gen("x", schema={"type": str}), TypeError, "gen: schema is a dict, so it must be a JSON schema"),
        (lambda: ANY.gen("x", schema={"const": float("nan")}), ValueError, "gen: schema is a dict"),
        (lambda: ANY.gen("x", schema={"const": HALF}), ValueError, "gen: schema is not valid Unicode"),
        (lambda: ANY.gen("x", regex=5), TypeError, "gen: regex must be a string, not 5"),
        (lambda: ANY.gen("x", regex=re.compile("a")), TypeError, "gen: regex must be a string"),
        (lambda: ANY.gen("x", regex="a("), ValueError, "gen: regex 'a(' cannot be parsed: the '(' at position 1"),
        (lambda: ANY.gen("x", schema={"type": "strin"}), ValueError, "gen: schema is no JSON schema: #/type is"),
        (lambda: ANY.gen("x", grammar=b"root ::= ."), TypeError, "gen: grammar must be a string"),
        (lambda: ANY.gen("x", choices=5), TypeError, "gen: choices must be a list of strings, not 5"),
        (lambda: ANY.gen("x", choices=["a", 1]), TypeError, "gen: choices must be a list of strings, and 1 is no"),
        (lambda: ANY.gen("x", schema=int, strict="no"), TypeError, "gen: strict must be True or False"),
        (lambda: ANY.select(5, ["a"]), TypeError, "select: name must be a string, not 5"),
        (lambda: ANY.select("x", {"a": 1}), TypeError, "select: choices must be a list of strings"),
        (lambda: ANY.select("x", [HALF]), ValueError, "select: choices is not valid Unicode"),
        (lambda: ANY.select("x", ["a"], timeout=0), ValueError, "select: timeout must be above zero"),
        (lambda: ANY.select("x", ["a"], method=5), ValueError, "select: method must be one of"),
        (lambda: ANY.program(5), TypeError, "program: what it decorates must be a function, not 5"),
        (lambda: ANY.program(int), TypeError, "program: what it decorates must be a function"),
        (lambda: ANY.program(functools.partial(print)), TypeError, "program: what it decorates must be a function"),
        (lambda: ANY.set_backend(5), TypeError, "set_backend: 5 is no backend"),
        (lambda: ANY.set_backend(FakeBackend), TypeError, "set_backend: FakeBackend is a class, not a backend"),
        (lambda: ANY.use(None).__enter__(), TypeError, "use: None is no backend"),
        (lambda: echo.run("a", backend=ANY.Result), TypeError, "echo: Result is a class, not a backend"),
        (lambda: echo.run("a", backend=0), TypeError, "echo: 0 is no backend"),  # type: ignore[arg-type]
        (lambda: echo.stream("a", var=5, backend=FakeBackend()), TypeError, "echo.stream: var must be a string"),  # type: ignore[arg-type]
        (lambda: aecho.astream("a", var=5, backend=FakeBackend()), TypeError, "aecho.astream: var must be a string"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(make: Callable[[], Any], kind: type[Exception], where: str) -> None:
    refused(make, kind, where)


def test_a_backend_that_was_refused_is_not_kept() -> None:
    with pytest.raises(TypeError):
        bosquet.set_backend(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no backend to run on"):
        echo.run("hi")


def test_types_that_cannot_be_hashed_or_are_only_described_by_pydantic_stay_allowed() -> None:
    small = Annotated[int, pydantic.Field(gt=0)]
    noted = Annotated[int, {"a": 1}]
    for schema in (small, noted, list[small], Any, Literal[1, "a"], dict[str, int]):  # type: ignore[valid-type]
        assert bosquet.gen("x", schema=schema).shape.grammar is not None


# -- states -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("do", "kind", "where"),
    [
        (lambda s: s.fork("2"), TypeError, "s.fork: count must be a whole number, not '2'"),
        (lambda s: s.fork(2.0), TypeError, "s.fork: count must be a whole number, not 2.0"),
        (lambda s: s.fork(True), TypeError, "s.fork: count must be a whole number, not True"),
        (lambda s: s.fork(0), ValueError, "s.fork: count must be at least one branch, not 0"),
        (lambda s: s.join([1, 2]), TypeError, "s.join: branches must be a list of states from s.fork, not [1, 2]"),
        (lambda s: s.join(5), TypeError, "s.join: branches must be a list of states from s.fork, not 5"),
        (lambda s: s.join(s), TypeError, "s.join: branches must be a list of states"),
        (lambda s: s.turn(5, "a"), TypeError, "s.turn: role must be a string, not 5"),
        (lambda s: s.turn(HALF), ValueError, "s.turn: role is not valid Unicode"),
        (
            lambda s: s.user(bosquet.image("a.png")),
            Unsupported,
            "odd: FakeBackend cannot do 'images': pictures in the prompt",
        ),
        (
            lambda s: s.user([{"type": "image_url"}]),
            Unsupported,
            "odd: a state takes text, gen(...) or select(...): no back",
        ),
        (
            lambda s: s.user({"type": "input_audio"}),
            Unsupported,
            "odd: a state takes text, gen(...) or select(...): no back",
        ),
        (lambda s: s.user([{"type": "text"}]), TypeError, "odd: a state takes text, gen(...) or select(...), not list"),
        (lambda s: s.user(5), TypeError, "odd: a state takes text, gen(...) or select(...), not int"),
        (lambda s: s.__setitem__(5, 1), TypeError, "s[...]: name must be a string, not 5"),
    ],
)
def test_a_state_names_a_wrong_argument(do: Callable[[Any], Any], kind: type[Exception], where: str) -> None:
    @bosquet.program
    def odd(s: bosquet.State) -> None:
        refused(lambda: do(s), kind, where)
        s.user("Go.")  # and is as it was
        s.assistant(bosquet.gen("x"))

    assert odd.run(backend=FakeBackend(script={"x": "a"})).messages == [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "a"},
    ]


@pytest.mark.parametrize("carried", ["tokens", "messages"])
@pytest.mark.parametrize("forked", [False, True])
def test_text_that_is_no_text_fails_the_step_that_would_send_it(carried: str, forked: bool) -> None:
    @bosquet.program
    def typed(s: bosquet.State) -> Any:
        s.user(HALF)
        state = s.fork(2)[1] if forked else s
        state.assistant(bosquet.gen("x"))
        return state["x"]

    capabilities = bosquet.TOKEN_CAPABILITIES if carried == "tokens" else frozenset({"messages"})
    backend = FakeBackend(capabilities=capabilities)
    with pytest.raises(
        ProgramError, match=r"not valid Unicode: it has half of a surrogate pair at character 1"
    ) as found:
        typed.run(backend=backend)
    cause = found.value.__cause__
    assert isinstance(cause.__cause__ if forked else cause, InvalidParameter)  # type: ignore[union-attr]
    assert not backend.calls


# -- what stands between a failure and a step -------------------------------------------------------------------------


def test_a_step_that_was_not_reached_names_the_step_that_failed_once() -> None:
    reason = Overloaded("the queue is full")

    @bosquet.program
    def chain(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("q"), bosquet.gen("r"))
        s.user("On.")
        branch = s.fork(1)[0]
        branch.user("On.")
        branch.assistant(bosquet.gen("t"))
        deeper = branch.fork(1)[0]
        deeper.assistant(bosquet.gen("u"))
        for state, name, place in ((s, "r", ""), (branch, "t", " in branch 0"), (deeper, "u", " in branch 0.0")):
            with pytest.raises(ProgramError) as caught:
                state[name]
            assert str(caught.value) == (
                f"chain: step {name!r}{place} was not reached, because an earlier one failed: "
                "step 'q': the queue is full"
            )
            first = caught.value.__cause__
            assert isinstance(first, ProgramError)
            assert (first.step, first.__cause__) == ("q", reason)

    chain.run(backend=FakeBackend(script={"q": reason}))


# -- map --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "sentence"),
    [
        (["a", {"nope": 1}], "echo.map: item 1: echo(topic): missing a required argument: 'topic'"),
        (
            ["a", "b", {"topic": 1, "more": 2}],
            "echo.map: item 2: echo(topic): got an unexpected keyword argument 'more'",
        ),
        ([{1: 2}], "echo.map: item 0: "),
        ([{"self": 2}], "echo.map: item 0: echo(topic): missing a required argument: 'topic'"),
        (5, "echo.map: items must be a list, not 5"),
        ("abc", "echo.map: items must be a list, not 'abc'"),
        ({"topic": "a"}, "echo.map: items must be a list, not {'topic': 'a'}"),
    ],
)
def test_map_names_the_item_that_does_not_fit_and_runs_nothing(items: Any, sentence: str) -> None:
    backend = FakeBackend()
    refused(lambda: echo.map(items, backend=backend), TypeError, sentence)
    assert not backend.calls


def test_maps_other_arguments_are_checked_too() -> None:
    many: Any = echo.map
    refused(
        lambda: many(["a"], concurrency="x", backend=FakeBackend()), TypeError, "echo.map: concurrency must be a whole"
    )
    refused(
        lambda: many(["a"], concurrency=0, backend=FakeBackend()), ValueError, "echo.map: concurrency must be at least"
    )
    refused(lambda: many(["a"], backend=5), TypeError, "echo.map: 5 is no backend")
