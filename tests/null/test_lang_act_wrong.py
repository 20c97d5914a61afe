"""What is wrong with an `s.act` is said on its own line."""

from __future__ import annotations

from typing import Any

import pytest
from fakes_lang import written
from fakes_lang_tools import add, agent, scripted

import bosquet.lang as bosquet
from bosquet.errors import Unsupported


class Counter:
    @bosquet.tool
    def count(self, x: int) -> int:
        "Count."
        return x


def plain(x: int) -> int:
    "A function without a decorator."
    return x


@pytest.mark.parametrize(
    ("tools", "options", "kind", "sentence"),
    [
        ((), {}, ValueError, "s.act: tools must be a list that is not empty"),
        ((5,), {}, TypeError, "s.act: tools must be a list of tools, each a function with @bosquet.tool, not 5"),
        ((add, add), {}, ValueError, "s.act: tools: two tools have the name 'add'"),
        ((Counter.count,), {}, TypeError, "s.act: tools: count is a method: give it with its instance"),
        ((print,), {}, TypeError, "tool print: "),
        ((add,), {"max_steps": 0}, ValueError, "s.act: max_steps must be at least 1, not 0"),
        ((add,), {"max_steps": "2"}, TypeError, "s.act: max_steps must be a whole number, not '2'"),
        ((add,), {"tool_choice": "sub"}, ValueError, "s.act: tool_choice must be one of auto, required, add, not"),
        ((add,), {"tool_choice": None}, TypeError, "s.act: tool_choice must be a string, not None"),
        ((add,), {"parallel": 1}, TypeError, "s.act: parallel must be True or False, not 1"),
        ((add,), {"timeout": 0}, ValueError, "s.act: timeout must be above zero"),
        ((add,), {"temprature": 0}, TypeError, "s.act() has no parameter 'temprature'; did you mean 'temperature'?"),
        ((add,), {"name": 5}, TypeError, "s.act: name must be a string, not 5"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(tools: Any, options: Any, kind: type[Exception], sentence: str) -> None:
    backend = scripted("ok")
    with pytest.raises(kind) as caught:
        agent.run(*tools, backend=backend, **options)
    assert str(caught.value).startswith(sentence)
    assert not backend.calls


def test_a_plain_function_is_made_a_tool_and_a_bound_method_is_one() -> None:
    calls = written("plain", x=1) + written("count", x=2)
    acted = agent.run(plain, Counter().count, backend=scripted(calls, "ok")).value
    assert [call.value for call in acted.calls] == [1, 2]


def test_a_list_is_wanted() -> None:
    @bosquet.program
    def odd(s: bosquet.State, tools: Any) -> None:
        s.user("Go.")
        s.act(tools)

    for tools in (add, plain, "add", 5, {"add": add}):
        with pytest.raises(TypeError, match=r"^s\.act: tools must be a list of tools"):
            odd.run(tools, backend=scripted("ok"))


def test_where_it_may_stand() -> None:
    @bosquet.program
    def odd(s: bosquet.State, where: str) -> None:
        if where == "plain":
            s += "Once"
        if where == "turn":
            with s.user():
                s.act([add])
        s.act([add])

    for where, sentence in (
        ("nothing", "s.act answers a turn: write s.user"),
        ("plain", "s.act answers a turn: write s.user"),
        ("turn", "the user turn is still open: s.act makes turns of its own"),
    ):
        with pytest.raises(RuntimeError, match=sentence):
            odd.run(where, backend=scripted("ok"))


def test_what_a_backend_cannot_do_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="FakeBackend cannot do 'tools': tools that the model may call"):
        agent.run(add, backend=scripted("ok", capabilities=bosquet.TOKEN_CAPABILITIES - {"tools"}))
    with pytest.raises(Unsupported, match="cannot do 'top_k'"):
        agent.run(add, top_k=3, backend=scripted("ok", capabilities=bosquet.TOKEN_CAPABILITIES - {"top_k"}))
