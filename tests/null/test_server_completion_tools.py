"""Tools of a completion, over the fake engine: the text stays as it was generated, the calls stand beside it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fakes_engine import FakeEngine, says, text_services
from hypothesis import given, settings
from hypothesis import strategies as st
from live_server import Session, events, post

from bosquet.grammar.formats import check_format

PATH = "/v1/completions"
TEXT = text_services(context_length=4096)
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("one", "two")]


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


SAID = "Let me see é." + call("one", '{"x": 1}') + "\n" + call("two", '{"x": -2}')


def ask(engine: FakeEngine, **fields: Any) -> httpx.Response:
    body = {"prompt": [97, 98], "tools": TOOLS, "max_tokens": 400, "return_token_ids": True} | fields
    return post(engine, PATH, body, text=TEXT)


def folded(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The choice that a stream's chunks add up to."""
    whole: dict[str, Any] = {"text": "", "content": "", "tool_calls": [], "token_ids": [], "finish_reason": None}
    for chunk in chunks:
        for choice in chunk["choices"]:
            for name in ("text", "content", "tool_calls", "token_ids"):
                whole[name] += choice.get(name, [] if isinstance(whole[name], list) else "")
            whole["finish_reason"] = choice["finish_reason"] or whole["finish_reason"]
    return whole


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    calls = [{key: value for key, value in call.items() if key != "id"} for call in choice.get("tool_calls", ())]
    return {name: choice[name] for name in ("text", "content", "token_ids", "finish_reason")} | {"tool_calls": calls}


def test_calls_stand_beside_the_text_that_has_them() -> None:
    engine = FakeEngine(says(SAID))
    choice = ask(engine).json()["choices"][0]
    assert choice["text"] == SAID
    assert choice["content"] == "Let me see é."
    assert [(c["type"], c["function"]) for c in choice["tool_calls"]] == [
        ("function", {"name": "one", "arguments": '{"x": 1}'}),
        ("function", {"name": "two", "arguments": '{"x": -2}'}),
    ]
    assert len({c["id"] for c in choice["tool_calls"]}) == 2
    assert choice["finish_reason"] == "stop"
    assert bytes(choice["token_ids"][:-1]).decode() == SAID
    (request,) = engine.requests
    assert request.ids == [97, 98]  # the prompt is left as it is
    assert request.grammar is not None
    assert request.grammar.kind == "structural_tag"
    assert json.loads(request.grammar.value)["type"] == "triggered_tags"
    check_format(request.grammar.value)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.booleans())
def test_a_stream_adds_up_to_the_same(sizes: list[int], cut: bool) -> None:
    said = SAID[:-20] if cut else SAID
    session.engine.script = says(said)
    session.engine.pieces = tuple(sizes)
    body = {"prompt": [97], "tools": TOOLS, "max_tokens": 400, "return_token_ids": True}
    whole = session.post(PATH, body).json()["choices"][0]
    *chunks, done = events(session.post(PATH, body | {"stream": True}))
    assert done == "[DONE]"
    streamed = folded(chunks)
    assert without_ids(streamed) == without_ids(whole)
    assert streamed["text"] == said
    assert len(streamed["tool_calls"]) == (1 if cut else 2)  # a call that is not whole is none


session = Session(FakeEngine(says(SAID)), TEXT)


@settings(max_examples=60, deadline=None)
@given(
    stop=st.lists(
        st.sampled_from(["see", "é", "me s", " ", "<tool", '"x"', "</", "of", "-2", "it <"]), min_size=1, max_size=3
    ),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_a_stop_string_ends_the_text_as_it_was_generated(stop: list[str], sizes: list[int]) -> None:
    """Where the text without the calls has it: so it goes with the ids."""
    said = f"{SAID}\nof it <"
    before, after = SAID.partition("<")[0], "\nof it <"
    found = [(part.index(s) + len(s), part.index(s)) for part in (before,) for s in stop if s in part]
    start = min(found)[1] if found else None
    if start is None:
        later = [(after.index(s) + len(s), after.index(s)) for s in stop if s in after]
        start = len(SAID) + min(later)[1] if later else None
    session.engine.script, session.engine.pieces = says(said), tuple(sizes)
    body = {"prompt": [97], "tools": TOOLS, "max_tokens": 400, "return_token_ids": True, "stop": stop}
    whole = session.post(PATH, body).json()["choices"][0]
    assert without_ids(folded(events(session.post(PATH, body | {"stream": True}))[:-1])) == without_ids(whole)
    assert whole["text"] == (said if start is None else said[:start])
    assert whole["finish_reason"] == "stop"
    assert (whole["stop_reason"] in stop) == (start is not None)
    ids = bytes(token for token in whole["token_ids"] if token < 256)
    assert ids.startswith(whole["text"].encode())
    assert len(ids) == len(said.encode()) or len(ids) <= len(whole["text"].encode()) + 14


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({"tool_choice": "required"}, ("tags_with_separator", 2)),
        ({"tool_choice": {"type": "function", "function": {"name": "two"}}}, ("tags_with_separator", 1)),
        ({"parallel_tool_calls": False}, ("triggered_tags", 2)),
    ],
)
def test_choices_hold_as_in_a_chat(fields: dict[str, Any], kinds: tuple[str, int]) -> None:
    engine = FakeEngine(says(call("two", '{"x": 1}')))
    assert ask(engine, **fields).status_code == 200
    assert engine.requests[0].grammar is not None
    found = json.loads(engine.requests[0].grammar.value)
    assert (found["type"], len(found["tags"])) == kinds
    assert found["stop_after_first"] is (fields != {"tool_choice": "required"})


def test_without_tools_nothing_is_read_and_nothing_added() -> None:
    for fields in ({"tools": None}, {"tools": []}):
        engine = FakeEngine(says(SAID))
        choice = ask(engine, **fields).json()["choices"][0]
        assert choice["text"] == SAID
        assert not {"content", "tool_calls"} & choice.keys()
        assert engine.requests[0].grammar is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": [[97], [98]]}, "tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "three"}}}, "tool_choice.function.name"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name"),
        ({"regex": "a"}, None),
    ],
)
def test_what_contradicts_is_refused(fields: dict[str, Any], field: str | None) -> None:
    answer = ask(FakeEngine(says("a")), **fields)
    assert answer.status_code == 400
    if field is not None:
        assert answer.json()["error"]["param"] == field
