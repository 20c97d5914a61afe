"""`s.act(schema=…)`: an answer is calls or what the schema says, and the last one is a typed value."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fakes_lang import FakeBackend, written
from fakes_lang_tools import MESSAGES, aagent, add, agent, scripted
from pydantic import BaseModel
from tool_grammars import accepts
from tool_manners import manner

from bosquet.errors import InvalidParameter, ProgramError, Unsupported
from bosquet.types import Call, Chunk, GrammarSpec, Origin, SamplingParams, ToolUse


class Sum(BaseModel):
    sum: int
    of: list[int]


SAID = '{"sum": 3, "of": [1, 2]}'


@pytest.mark.parametrize("carried", ["tokens", "messages"])
def test_the_answer_is_a_typed_value(carried: str) -> None:
    more = {} if carried == "tokens" else {"capabilities": MESSAGES}
    backend = scripted(written("add", a=1, b=2), SAID, **more)
    acted = agent.run(add, schema=Sum, backend=backend).value
    assert acted.value == Sum(sum=3, of=[1, 2])
    assert (acted.text, acted.stopped, len(acted.calls)) == (SAID, "answer", 1)
    for call in backend.calls:  # calls stay possible, and the schema holds, at every step
        assert call.tools is not None
        assert call.grammar is not None
        assert call.grammar.kind == "json_schema"
        assert json.loads(call.grammar.value)["properties"].keys() == {"sum", "of"}
        assert not call.grammar.strict


def test_without_a_schema_there_is_no_value() -> None:
    backend = scripted(SAID)
    assert agent.run(add, backend=backend).value.value is None
    assert backend.calls[0].grammar is None


def test_a_schema_may_be_a_dict_any_type_or_any_object() -> None:
    as_dict = {"type": "object", "properties": {"sum": {"type": "integer"}}}
    assert agent.run(add, schema=as_dict, strict=True, backend=(backend := scripted(SAID))).value.value["sum"] == 3
    assert backend.calls[0].grammar == GrammarSpec("json_schema", json.dumps(as_dict), strict=True)
    assert agent.run(add, schema=list[int], backend=scripted("[1, 2]")).value.value == [1, 2]
    assert agent.run(add, schema=dict, backend=scripted("{}")).value.value == {}


def test_in_async_programs_too() -> None:
    acted = asyncio.run(aagent.arun(add, schema=Sum, backend=scripted(SAID))).value
    assert acted.value == Sum(sum=3, of=[1, 2])


def test_where_there_is_no_answer_there_is_no_value() -> None:
    call = written("add", a=1, b=2)
    assert agent.run(add, schema=Sum, max_steps=1, backend=scripted(call)).value.value is None
    cut = agent.run(add, schema=Sum, max_tokens=5, backend=scripted(SAID)).value
    assert (cut.stopped, cut.value) == ("length", None)


def test_a_backend_that_does_not_hold_to_it_is_an_error_where_it_is_read() -> None:
    with pytest.raises(ProgramError, match="'act'") as raised:
        agent.run(add, schema=Sum, backend=scripted('{"sum": "three"}'))
    assert "sum" in str(raised.value.__cause__)


def test_what_cannot_be_is_refused_before_anything_is_sent() -> None:
    backend = FakeBackend(capabilities=MESSAGES - {"json_schema"})
    for schema, error, words in (
        (Sum, Unsupported, "json_schema"),
        ("Sum", TypeError, "s.act: schema"),
        ({"a": object()}, TypeError, "s.act: schema is a dict"),
    ):
        with pytest.raises((error, ProgramError), match=words):
            agent.run(add, schema=schema, backend=backend)
    with pytest.raises((ValueError, ProgramError), match=r"s\.act: strict"):
        agent.run(add, strict=True, backend=backend)
    assert backend.calls == []


# ---- an engine on this machine ---------------------------------------------------------------------------------------

USE = ToolUse((add.spec,))
ANSWER = GrammarSpec("json_schema", json.dumps({**Sum.model_json_schema(), "additionalProperties": False}))
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


def test_an_engine_holds_the_answer_to_calls_or_the_schema() -> None:
    found = json.loads(manner().grammar(USE, list(b"hi"), ANSWER).value)
    assert accepts(found, ADD)
    assert accepts(found, SAID)
    for text in ("It is 3.", "{}", f"{SAID}{ADD}", '{"sum": "3", "of": []}'):
        assert not accepts(found, text)
    needed = json.loads(manner().grammar(ToolUse((add.spec,), "required"), list(b"hi"), ANSWER).value)
    assert accepts(needed, ADD)
    assert not accepts(needed, SAID)


def test_strictness_is_that_of_either() -> None:
    strict = GrammarSpec("json_object", strict=True)
    assert manner().grammar(USE, [], strict).strict
    assert not manner().grammar(USE, [], ANSWER).strict
    with pytest.raises(InvalidParameter, match="regex"):
        manner().grammar(USE, [], GrammarSpec("regex", "a"))


@pytest.mark.parametrize(("said", "content", "calls"), [(SAID, SAID, 0), (ADD, "", 1)])
def test_an_engines_answer_is_read_as_one_or_the_other(said: str, content: str, calls: int) -> None:
    call = Call(sampling=SamplingParams(), origin=Origin(), grammar=ANSWER, tools=USE)
    reader = manner().reader(call, USE)
    chunks: list[Any] = [reader.read(Chunk(char, (ord(char),))) for char in said]
    chunks.append(reader.read(Chunk(finish="stop")))
    assert "".join(chunk.content for chunk in chunks) == content
    assert "".join(chunk.text for chunk in chunks) == said
    assert sum(len(chunk.calls) for chunk in chunks) == calls
