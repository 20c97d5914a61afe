"""What a refusal says: it begins with the field, and tells everything that the field may be."""

import json
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fakes_engine import FakeEngine, text_services
from live_server import post
from pydantic import ValidationError
from server_tools import tool
from tool_grammars import from_spec

from bosquet.errors import GrammarInvalid, InvalidParameter, RequestRejected
from bosquet.grammar.tools import KNOWN
from bosquet.runtime.server.body import parse
from bosquet.runtime.server.program_schemas import AppendRequest, ForkRequest
from bosquet.runtime.server.schema_base import Body, body_names
from bosquet.runtime.server.schemas import ALLOWED, CompletionRequest
from bosquet.types import Output

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}


def refusal(path: str, body: Any, engine: FakeEngine | None = None) -> tuple[str | None, str]:
    """`param` and message."""
    response = post(engine or FakeEngine(), path, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] is None or error["message"].startswith(f"{error['param']}: ")
    return error["param"], error["message"]


@pytest.mark.parametrize(
    ("value", "param", "words"),
    [
        (None, "prompt", ["required"]),
        ([], "prompt", ["string", "token ids", "empty"]),
        (5, "prompt", ["string", "token ids"]),
        ({}, "prompt", ["string", "token ids"]),
        ([True], "prompt[0]", ["string", "token ids"]),
        (["a", 1], "prompt[1]", ["string", "token ids"]),
        ([1, "a"], "prompt[1]", ["string", "token ids"]),
        (["a", "b", None], "prompt[2]", ["string"]),
        ([1] * 3000 + [None], "prompt[3000]", ["token ids"]),
        ([[1], "a"], "prompt[1]", ["lists of token ids"]),
        ([[1], [2, 1.5]], "prompt[1][1]", ["token ids"]),
        ([[1], []], "prompt[1]", ["empty"]),
        (["a"] * 5000, "prompt", ["1024", "5000"]),
        ([[1]] * 5000, "prompt", ["1024", "5000"]),
    ],
)
def test_a_prompt_of_a_wrong_kind_is_told_every_kind(value: Any, param: str, words: list[str]):
    found, message = refusal(TEXT, {"prompt": value})
    assert found == param
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("value", "param", "words"),
    [
        (5, "stop", ["string", "list", "16"]),
        ({}, "stop", ["string", "list", "16"]),
        (["a"] * 5000, "stop", ["16", "5000"]),
        (["a", 5], "stop[1]", ["string"]),
        (["a", ""], "stop[1]", ["at least 1 character"]),
        ("", "stop", ["at least 1 character"]),
        ("x" * 513, "stop", ["at most 512 characters"]),
    ],
)
def test_stop_strings_of_a_wrong_kind_are_told_every_kind(value: Any, param: str, words: list[str]):
    found, message = refusal(CHAT, HI | {"stop": value})
    assert found == param
    assert all(word in message for word in words), message


JUNK = ["on", 7, -1.5, True, {}, {"x": 1}, [], ["on"], [1.5], [{}], [["a", 1]], {"type": "on"}, [{"type": "on"}]]
JUNK += [{"promt": "x"}, {"prompt": 1}, {"messages": ["x"]}, {"messages": [{"role": "user", "content": [{"text": 1}]}]}]
OURS = re.compile(
    "|".join([*(rf"\b{name}\b" for name in body_names()), "literal", "constrained", "instance of", "dict"])
)


def bodies(kind: type[Body] = Body) -> Iterator[type[Body]]:
    yield kind
    for below in kind.__subclasses__():
        yield from bodies(below)


def said_of(raw: bytes, kind: type[Body]) -> str:
    """Field and text of a refusal; empty for what is taken."""
    try:
        parse(raw, kind)
    except RequestRejected as error:
        return f"{error.field} {error}"
    return ""


@pytest.mark.parametrize("kind", sorted(set(bodies()), key=lambda kind: kind.__name__))
def test_a_refusal_says_nothing_of_how_bodies_are_read(kind: type[Body]):
    """No names of classes, neither in the path nor in what is said; whatever stands in whatever field."""
    for name, field in kind.model_fields.items():
        for junk in JUNK:
            assert not OURS.search(said_of(json.dumps({field.alias or name: junk}).encode(), kind))


def test_a_field_that_takes_several_kinds_says_which():
    told = set()
    for kind in bodies():
        for name, field in kind.model_fields.items():
            is_union = typing.get_origin(field.annotation) in (typing.Union, types.UnionType)
            if not is_union or len(set(typing.get_args(field.annotation)) - {type(None)}) < 2:
                continue
            name = field.alias or name
            assert name in ALLOWED
            with pytest.raises(InvalidParameter) as refused:
                parse(json.dumps({name: 7.5}).encode(), kind)
            if refused.value.field == name:  # else another field, which is missing, is told first
                assert str(refused.value) == f"{name}: {ALLOWED[name]}"
                told.add(name)
    assert told >= {"prompt", "stop", "schema", "speculation", "a"}
    with pytest.raises(InvalidParameter, match=r"^speculation: must be 'off', or a list of"):
        parse(b'{"speculation": "on"}', CompletionRequest)
    with pytest.raises(InvalidParameter, match=r"^speculation\[1\]: speculation must be 'off', or a list of"):
        parse(b'{"speculation": ["forced", "off"]}', CompletionRequest)


def test_null_is_the_same_as_leaving_a_field_out():
    for kind in _bodies():
        for name, field in kind.model_fields.items():
            assert _faults(kind, {field.alias or name: None}) == _faults(kind, {}), (kind, name)
    with pytest.raises(InvalidParameter, match=r"^count: this field is required$"):
        parse(b'{"count": null}', ForkRequest)
    with pytest.raises(InvalidParameter, match=r"^messages\[0\].content: this field is required$"):
        parse(b'{"messages": [{"role": "user", "content": null}]}', AppendRequest)


def _bodies(kind: type[Body] = Body) -> list[type[Body]]:
    return [kind, *(below for each in kind.__subclasses__() for below in _bodies(each))]


def _faults(kind: type[Body], data: dict[str, None]) -> set[tuple[Any, str]]:
    try:
        kind.model_validate(data)
    except ValidationError as error:
        return {(fault["loc"], fault["type"]) for fault in error.errors()}
    return set()


@pytest.mark.parametrize("content", [[], 5, {}])
def test_content_that_is_none_is_refused_for_every_role(content: Any):
    for role in ("system", "developer", "user", "assistant", "tool"):
        messages = [*HI["messages"], {"role": role, "content": content}]
        for path in (CHAT, "/tokenize"):
            param, message = refusal(path, {"messages": messages})
            assert param == "messages[1].content"
            assert "string" in message
            assert "part" in message


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "value", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"9" * 5000, b"-" + b"9" * 5000]
)
@pytest.mark.parametrize(
    ("frame", "param"), [(b'{"x":1,"temperature":%s}', "temperature"), (b'{"a":[{"b":[0,%s]}]}', "a[0].b[1]")]
)
def test_a_number_that_json_cannot_hold_names_its_field(path: str, value: bytes, frame: bytes, param: str):
    found, message = refusal(path, frame % value)
    assert found == param or (value.lstrip(b"-").isdigit() and found in ("x", "a"))  # JSON holds it; pydantic's turn
    assert "truncated" not in message


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (rb'{"stop":"\ud83d"}', "stop"),
        (rb'{"stop":["a","b\udc00c"]}', "stop[1]"),
        (rb'{"messages":[{"role":"user","content":"hi \ud83d\ud83d"}]}', "messages[0].content"),
        (rb'{"metadata":{"a\ud83d":1}}', "metadata"),
    ],
)
def test_half_a_surrogate_pair_names_its_field(raw: bytes, param: str):
    found, message = refusal(CHAT, raw)
    assert found == param
    assert "surrogate pair" in message


def test_whole_surrogate_pairs_are_characters():
    raw = rb'{"prompt":"\ud83d\ude00","max_tokens":1}'
    engine = FakeEngine()
    assert post(engine, TEXT, raw).status_code == 200
    assert engine.requests[0].ids == list("😀".encode())


@pytest.mark.parametrize("depth", [501, 1000, 5000, 100_000])
def test_deep_nesting_names_the_field_that_is_deep(depth: int):
    deep = '{"a":' * depth + "1" + "}" * depth
    for before in ("", '"model":"toy",', '"messages":[{"role":"user","content":"[{"}],'):
        body = f'{{{before}"response_format":{deep}}}'
        param, message = refusal(CHAT, body.encode())
        assert param == "response_format"
        assert "nested deeper than 500 levels" in message
    param, message = refusal(CHAT, ("[" * depth + "]" * depth).encode())
    assert param is None
    assert "nested deeper than 500 levels" in message


def test_nesting_up_to_the_limit_is_no_fault():
    """The body itself is a level. Brackets in strings are none."""
    for depth, told in ((499, False), (500, True)):
        deep = '{"a":' * depth + '"' + "[" * 1000 + '"' + "}" * depth
        _, message = refusal(CHAT, f'{{"response_format":{deep}}}'.encode())
        assert ("nested" in message) == told
    assert "must be a JSON object" in refusal(CHAT, b'"' + b"[" * 1000 + b'"')[1]


@pytest.mark.parametrize("reason", ["unbalanced ( at position 3", "regex: unbalanced (", "not like this"])
@pytest.mark.parametrize("late", [False, True])
def test_a_refused_grammar_begins_with_its_field_once(reason: str, late: bool):
    class Late(FakeEngine):
        async def submit(self, request):
            stream = await super().submit(request)

            class Refused(type(stream)):
                async def __aiter__(self):
                    yield [Output(request.id, 0, [], finish="error", error=("invalid_grammar", reason))]

            stream.__class__ = Refused
            return stream

    engine = Late() if late else FakeEngine(reject=GrammarInvalid(reason))
    param, message = refusal(CHAT, HI | {"regex": "("}, engine)
    assert param == "regex"
    assert message.count("regex") == 1


def test_a_body_of_a_million_faults_costs_little():
    """One fault a list is found, not one an entry."""
    from bosquet.runtime.server.body import parse
    from bosquet.runtime.server.schemas import CompletionRequest

    raw = json.dumps({"prompt": [1.5] * 900_000}).encode()
    import tracemalloc

    tracemalloc.start()
    with pytest.raises(Exception, match=r"prompt\[0\]"):
        parse(raw, CompletionRequest)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 50e6


class Compiling(FakeEngine):
    """Has the grammar compiled, as the engine does: refuses, or tells what is relaxed."""

    async def submit(self, request):
        self.relaxed = from_spec(request.grammar).relaxed
        return await super().submit(request)


UNIQUE = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
NOT_UNIQUE = "`uniqueItems` cannot be enforced: that any items differ"
NO_TYPE = '`type` is one of null, boolean, integer, number, string, array, object, not "wat"'


@pytest.mark.parametrize("form", KNOWN)
@pytest.mark.parametrize("others_strict", [True, False])
def test_a_tool_that_is_refused_has_one_path_and_one_keyword(form: str, others_strict: bool):
    text = text_services(context_length=4096)
    text.install(replace(text.get(), tool_format=KNOWN[form]))
    for bad, fault in ((UNIQUE, NOT_UNIQUE), ({"type": "wat"}, NO_TYPE)):
        tools = [tool("fine", strict=others_strict, b={"type": "string"}), tool("odd", strict=True, tags=bad)]
        response = post(Compiling(), CHAT, HI | {"tools": tools}, text=text)
        error = response.json()["error"]
        field = "tools[1].function.parameters"
        assert (error["param"], error["code"]) == (field, "invalid_grammar")
        assert error["message"] == f"{field}: #/properties/tags: {fault}"


def test_a_schema_that_is_refused_has_one_path_and_one_keyword():
    def refused(schema: Any, **fields: Any) -> tuple[str | None, str]:
        form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
        return refusal(CHAT, HI | {"response_format": form} | fields, Compiling(context_length=4096))

    field = "response_format.json_schema.schema"
    for fields in ({}, {"tools": [tool("fine", strict=True)]}):
        inside = {"type": "object", "properties": {"a b/c": UNIQUE}, "required": ["a b/c"]}
        assert refused(inside, **fields) == (field, f"{field}: #/properties/a b~1c: {NOT_UNIQUE}")
        assert refused(UNIQUE, **fields) == (field, f"{field}: {NOT_UNIQUE}")
    two_reasons = {"type": "number", "multipleOf": 1e-12}
    assert refused(two_reasons)[1].count("`multipleOf`") == 1


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"regex": "(a"}, "regex", "regex: a group that is not closed at position 2"),
        ({"lark": "x: 1"}, "lark", "lark: line 1, column 4"),
        ({"grammar": "root ::= a"}, "grammar", "grammar: EBNF parser error at line 1"),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "regex", "pattern": "(a"}}},
            "response_format.format",
            "response_format.format: #/pattern: a group that is not closed at position 2",
        ),
    ],
)
def test_a_grammar_that_is_refused_names_its_field_once(fields: dict[str, Any], param: str, message: str):
    found, said = refusal(CHAT, HI | fields, Compiling())
    assert found == param
    assert said.startswith(message)
