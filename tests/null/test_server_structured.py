"""Structured output over the fake engine: what is told of relaxed keywords, and what is checked of finished outputs."""

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from fakes_engine import FakeEngine, says, text_services
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from live_server import events, in_process

from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.server.output_check import SECONDS, as_enforced, check_text
from bosquet.runtime.server.places import Place, Places
from bosquet.types import Relaxed

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 3}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}}
LOOSE = Relaxed("#/properties/a", "multipleOf", "no engine counts so far")
TOLD = {"relaxed": [{"path": LOOSE.path, "keyword": LOOSE.keyword, "reason": LOOSE.reason}]}


def call(arguments: str, name: str = "f") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def asked(engine: FakeEngine, path: str, fields: dict[str, Any], share: float = 1.0) -> tuple[httpx.Response, str]:
    """The answer, and the metrics once what is checked has been checked."""
    start = {"prompt": "x", "max_tokens": 400} if path == TEXT else {"messages": [{"role": "user", "content": "hi"}]}

    async def work(client: httpx.AsyncClient) -> tuple[httpx.Response, str]:
        response = await client.post(path, json=start | fields)
        waiting = {task for task in asyncio.all_tasks() if "_check" in repr(task.get_coro())}
        await asyncio.gather(*waiting)
        return response, (await client.get("/metrics")).text

    config = ServerConfig(check_share=share)
    return in_process(engine, work, config, text_services(context_length=4096))  # type: ignore[no-any-return]


def engine(*texts: str, **options: Any) -> FakeEngine:
    return FakeEngine(says(*texts), context_length=4096, **options)


def checked(metrics: str) -> dict[tuple[str, str], float]:
    """(kind, verdict) → count."""
    found = {}
    for line in metrics.splitlines():
        if line.startswith("bosquet_outputs_checked_total{"):
            labels, value = line.split("{")[1].split("} ")
            kind, verdict = (part.split('"')[1] for part in labels.split(","))
            found[kind, verdict] = float(value)
    return found


# ---- what is relaxed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_what_is_relaxed_is_told(path: str):
    response, metrics = asked(engine('{"a":3}', relaxed=[LOOSE, LOOSE]), path, {"response_format": FORM})
    assert response.json()["x_bosquet"] == TOLD
    assert 'bosquet_relaxed_keywords_total{keyword="multipleOf"} 1.0' in metrics


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_in_a_stream_it_is_told_in_the_first_chunk_alone(path: str):
    made = engine('{"a":3}', relaxed=[LOOSE])
    response, _ = asked(made, path, {"response_format": FORM, "stream": True, "n": 2})
    first, *rest = events(response)[:-1]
    assert first["x_bosquet"] == TOLD
    assert all("x_bosquet" not in chunk for chunk in rest)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
def test_nothing_relaxed_says_nothing(path: str, stream: bool):
    response, _ = asked(engine('{"a":3}'), path, {"response_format": FORM, "stream": stream})
    assert "x_bosquet" not in response.text


def test_made_up_keywords_do_not_grow_the_metrics():
    made = engine("{}", relaxed=[Relaxed("#", f"keyword{i}", "") for i in range(5)])
    _, metrics = asked(made, CHAT, {"response_format": FORM})
    assert 'bosquet_relaxed_keywords_total{keyword="other"} 5.0' in metrics
    assert "keyword3" not in metrics


def test_places_translate_pointers_and_messages():
    places = Places(
        "tools", [Place("#/tags/1/content", "tools[1]", "#/tools/1"), Place("#/tags/10/content", "tools[10]")]
    )
    assert places.reported([Relaxed("#/tags/1/content/a~1b", "not", "r")]) == (Relaxed("#/tools/1/a~1b", "not", "r"),)
    assert places.blame("format: #/tags/10/content/x: odd") == ("tools[10]", "#/x: odd")
    assert places.blame("format: #/tags/10/content: schema: #/a b: odd") == ("tools[10]", "#/a b: odd")
    assert places.blame("format: #/tags/1/content: schema: #: odd") == ("tools[1]", "odd")
    assert places.blame("format: #/tags/1: odd") == ("tools", "odd")
    assert places.blame("no pointer") == ("tools", "no pointer")


# ---- what is checked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "fields", "text", "expected"),
    [
        (CHAT, {"response_format": FORM}, '{"a": 3}', {("json", "valid"): 1}),
        (TEXT, {"response_format": FORM}, '{"a": 3}', {("json", "valid"): 1}),
        (CHAT, {"response_format": FORM}, '{"a": 4}', {("json", "invalid"): 1}),
        (TEXT, {"response_format": FORM}, "{}", {("json", "invalid"): 1}),
        (CHAT, {"response_format": FORM}, '{"a": 3', {("json", "invalid"): 1}),
        (CHAT, {"response_format": {"type": "json_object"}}, "{}", {("json", "valid"): 1}),
        (CHAT, {"response_format": {"type": "json_object"}}, "[]", {("json", "invalid"): 1}),
        (CHAT, {"response_format": FORM, "n": 3}, '{"a": 3}', {("json", "valid"): 3}),
        (CHAT, {"tools": [TOOL]}, call('{"a": 3}'), {("arguments", "valid"): 1}),
        (
            CHAT,
            {"tools": [TOOL]},
            call('{"a": 3}') + call('{"a": 1}'),
            {("arguments", v): 1 for v in ("valid", "invalid")},
        ),
        (CHAT, {"tools": [TOOL, OTHER]}, call("{}", "g"), {("arguments", "valid"): 1}),
        (CHAT, {"tools": [TOOL], "response_format": FORM}, call('{"a": 3}'), {("arguments", "valid"): 1}),
        (CHAT, {"tools": [TOOL], "response_format": FORM}, '{"a": 4}', {("json", "invalid"): 1}),
        (CHAT, {"tools": [TOOL]}, "free text", {}),
        (CHAT, {}, "free text", {}),
        (CHAT, {"response_format": FORM, "max_tokens": 3}, '{"a": 3}', {}),  # cut
        (CHAT, {"response_format": FORM, "stop": ["3"]}, '{"a": 3}', {}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_finished_outputs_are_held_against_their_schemas(
    path: str, fields: dict[str, Any], text: str, expected: dict[tuple[str, str], float], stream: bool
):
    response, metrics = asked(engine(text), path, fields | {"stream": stream})
    assert response.status_code == 200, response.text
    assert checked(metrics) == expected


def test_what_was_relaxed_is_no_violation():
    _, metrics = asked(engine('{"a": 4}', relaxed=[LOOSE]), CHAT, {"response_format": FORM})
    assert checked(metrics) == {("json", "valid"): 1}
    tools = {"tools": [TOOL, OTHER]}
    made = engine()
    asked(made, CHAT, tools)
    assert made.requests[0].grammar is not None
    at = "#/tags/0/content/json_schema"
    _, metrics = asked(engine(call('{"a": 4}'), relaxed=[Relaxed(f"{at}/properties/a", "multipleOf", "")]), CHAT, tools)
    assert checked(metrics) == {("arguments", "valid"): 1}


def test_a_violation_is_logged_without_the_text(caplog: pytest.LogCaptureFixture):
    response, _ = asked(engine('{"a": "secret"}'), CHAT, {"response_format": FORM})
    (line,) = [record.getMessage() for record in caplog.records if "breaks" in record.getMessage()]
    assert response.json()["id"] in line
    assert "properties/a/type" in line
    assert "secret" not in line


def test_the_share_is_a_share():
    assert checked(asked(engine("{}"), CHAT, {"response_format": FORM}, share=0.0)[1]) == {}
    assert ServerConfig().check_share == 0.01


# ---- the validator itself -------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab1", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)
PATTERNS = st.sampled_from(["^a", "b$", "a|b", "[0-9]", "^(ab?)+$"])
SCHEMAS = st.recursive(
    st.sampled_from(
        [{"type": "string"}, {"type": "integer"}, {"type": "object"}, {"minLength": 2}, {"const": 1}, True]
    ),
    lambda inner: st.one_of(
        st.builds(lambda p: {"pattern": p}, PATTERNS),
        st.builds(lambda p, s: {"patternProperties": {p: s}, "additionalProperties": False}, PATTERNS, inner),
        st.builds(lambda s, more: {"properties": {"a": s}, "additionalProperties": more}, inner, inner),
        st.builds(lambda s: {"items": s}, inner),
        st.builds(lambda s, t: {"anyOf": [s, t]}, inner, inner),
        st.builds(lambda s: {"not": s}, inner),
    ),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("iri", "http://a.b/c?d#e", "no scheme"),
        ("iri-reference", "../a", "a b"),
        ("uri", "urn:a:b", "//a"),
        ("date-time", "2026-01-02T03:04:05Z", "2026-01-02"),
        ("hostname", "a.example", "-a"),
        ("uuid", "00000000-0000-0000-0000-000000000000", "0"),
        ("json-pointer", "/a/0", "a"),
    ],
)
def test_formats_are_looked_at(name: str, good: str, bad: str):
    for text, verdict in ((good, "valid"), (bad, "invalid")):
        assert check_text(json.dumps(text), {"format": name}).verdict == verdict


@settings(max_examples=200, deadline=None)
@given(value=VALUES, schema=SCHEMAS)
def test_it_says_what_the_library_says(value: Any, schema: Any):
    expected = "valid" if Draft202012Validator(schema).is_valid(value) else "invalid"
    assert check_text(json.dumps(value), schema).verdict == expected


def chain(levels: int) -> dict[str, Any]:
    """A schema that is short, and takes 2 to the power of `levels` steps."""
    defs: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(levels)}
    return {"$defs": defs | {f"d{levels}": {}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("text", "schema", "verdict"),
    [
        (f'"{"a" * 40}b"', {"pattern": "^(a+)+$"}, "invalid"),  # the standard engine would not end
        (f'{{"{"a" * 40}b": 1}}', {"patternProperties": {"^(a+)+$": False}}, "valid"),
        ('"x"', {"pattern": "(?=x)"}, "undecided"),
        ("1", {"$ref": "#"}, "undecided"),
        ("1", {"$ref": "http://127.0.0.1:9/schema"}, "undecided"),  # nothing is fetched
        ("1", {"$ref": "#/nowhere"}, "undecided"),
        ("{}", {"unevaluatedProperties": False}, "undecided"),
        ("1", chain(40), "undecided"),
        ("[" * 100_000, {}, "undecided"),
        ("NaN", {}, "invalid"),
        ('"2020-13-01"', {"format": "date"}, "invalid"),
        (
            "3",
            {"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 3, "exclusiveMaximum": True},
            "invalid",
        ),
    ],
)
def test_it_is_not_led_astray(text: str, schema: Any, verdict: str):
    began = time.thread_time()
    assert check_text(text, schema).verdict == verdict
    assert time.thread_time() - began < SECONDS + 1


def test_as_enforced_takes_out_what_was_relaxed():
    schema = {"properties": {"a/b": {"not": {}, "type": "string"}}, "anyOf": [{"not": 1}, {}]}
    relaxed = [
        Relaxed("#/x/properties/a~1b", "not", ""),
        Relaxed("#/x/anyOf/0", "not", ""),
        Relaxed("#/y", "anyOf", ""),
        Relaxed("#/x/gone/5", "not", ""),
    ]
    expected = {"properties": {"a/b": {"type": "string"}}, "anyOf": [{}, {}]}
    assert as_enforced(schema, relaxed, "#/x") == expected
    assert "not" in schema["anyOf"][0]  # the caller's own is left alone
