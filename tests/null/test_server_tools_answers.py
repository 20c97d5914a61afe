"""Tools over the fake engine: what becomes of what the model says, streamed and not, for every split of its tokens."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fakes_engine import END, FakeEngine, says
from hypothesis import given, settings
from hypothesis import strategies as st
from live_server import Session, events
from server_tools import HI, PARIS, PATH, TEXT, TOOLS, UTC, allowed, ask, call, named
from tool_samples import Made, written

from bosquet.grammar.tools import KNOWN, Tool
from bosquet.runtime.server.services import TextServices


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    made = Session(FakeEngine(), TEXT)
    yield made
    made.close()


def answer(text: str, **fields: Any) -> dict[str, Any]:
    """The choice that the server makes of what the model says."""
    response = ask(FakeEngine(says(text)), **fields)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


# ---- what becomes of what it says -----------------------------------------------------------------------------------


def test_one_call():
    choice = answer(call("weather", PARIS))
    message = choice["message"]
    assert message["content"] is None
    (made,) = message["tool_calls"]
    assert made.pop("id")
    assert made == {"type": "function", "function": {"name": "weather", "arguments": PARIS}}
    assert choice["finish_reason"] == "tool_calls"


def test_text_and_two_calls():
    choice = answer(f"Let me look.\n{call('weather', PARIS)}\n{call('time', UTC)}")
    assert choice["message"]["content"] == "Let me look."
    made = choice["message"]["tool_calls"]
    assert [entry["function"]["name"] for entry in made] == ["weather", "time"]
    assert made[0]["id"] != made[1]["id"]
    assert isinstance(made[0]["function"]["arguments"], str)


def test_text_alone():
    choice = answer("No need for that.")
    assert choice["message"] == {"role": "assistant", "content": "No need for that.", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert answer("")["message"]["content"] == ""


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "tool_calls"),
        ({"tool_choice": "required"}, "tool_calls"),
        ({"tool_choice": allowed("required", "time")}, "tool_calls"),
        ({"tool_choice": named("time")}, "stop"),
        ({"max_tokens": 50}, "length"),
        ({"max_tokens": 50, "tool_choice": named("time")}, "length"),
        ({"stop": ['"zone']}, "tool_calls"),  # not looked for in a call
        ({"stop_token_ids": [ord("z")]}, "stop"),  # a call that is cut is none to be made
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_finish_reasons(fields: dict[str, Any], reason: str, stream: bool):
    response = ask(FakeEngine(says(call("time", UTC))), stream=stream, **fields)
    if stream:
        assert [c["finish_reason"] for e in events(response)[:-1] for c in e["choices"]][-1] == reason
    else:
        assert response.json()["choices"][0]["finish_reason"] == reason


def test_length_outranks_calls_and_partial_arguments_are_raw():
    text = call("time", UTC) + "\n" + call("weather", PARIS)
    choice = answer(text, max_tokens=text.index("Par") + 2)
    assert choice["finish_reason"] == "length"
    assert [entry["function"]["arguments"] for entry in choice["message"]["tool_calls"]] == [UTC, '{"city": "Pa']


@pytest.mark.parametrize("said", ["", "I look.\n"])
def test_wherever_length_cuts_it_no_part_of_a_call_is_content(session: Session, said: str):
    text = f"{said}{call('time', UTC)}\n{call('weather', PARIS)}"
    names = [text.index(f'"{name}"') + len(name) + 2 for name in ("time", "weather")]
    for limit in range(1, len(text)):
        body = {"messages": HI, "tools": TOOLS, "max_tokens": limit}
        found = whole(session, body, text)
        assert streamed(session, body, text, [7]) == found
        assert (found["content"] or "").rstrip() == text[: min(limit, len(said))].rstrip()
        assert [made["function"]["name"] for made in found["calls"]] == ["time", "weather"][
            : sum(limit >= n for n in names)
        ]
        assert found["finish"] == "length"


def test_with_none_a_call_is_text():
    text = call("time", UTC)
    choice = answer(text, tool_choice="none")
    assert choice["message"]["content"] == text
    assert choice["finish_reason"] == "stop"


def test_only_tools_that_may_be_called_are_calls():
    assert "tool_calls" not in answer(call("weather", PARIS), tool_choice=allowed("auto", "time"))["message"]


def test_the_stream_of_a_call():
    response = ask(FakeEngine(says(f"So: {call('weather', PARIS)}"), pieces=[3]), stream=True)
    *chunks, done = events(response)
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": None}
    assert all("role" not in delta for delta in deltas[1:])
    calls = [entry for delta in deltas for entry in delta.get("tool_calls", [])]
    assert all("arguments" in entry["function"] and entry["index"] == 0 for entry in calls)
    first, *rest = calls
    assert set(first) == {"index", "id", "type", "function"}
    assert first["type"] == "function"
    assert first["function"]["name"] == "weather"
    assert all(set(entry) == {"index", "function"} and "name" not in entry["function"] for entry in rest)
    assert len(rest) > 3  # arguments come as they are made
    assert "".join(entry["function"]["arguments"] for entry in calls) == PARIS
    assert "".join(delta.get("content") or "" for delta in deltas) == "So:"
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("n", [1, 2])
def test_no_text_and_no_call_streams_an_empty_text(n: int):
    *chunks, _ = events(ask(FakeEngine(says("")), stream=True, n=n))
    for index in range(n):
        texts = [
            c["delta"]["content"]
            for chunk in chunks
            for c in chunk["choices"]
            if c["index"] == index and c["delta"].get("content") is not None
        ]
        assert texts == [""]


# ---- stop strings: in the text, never in a call ---------------------------------------------------------------------


@pytest.mark.parametrize("form", KNOWN)
def test_no_stop_string_cuts_a_call(form: str):
    """Whatever in it, of one character or of more, is asked for: the calls are those that come without."""
    text = replace(TEXT.get(), tool_format=KNOWN[form])
    tools = [Tool(entry["function"]["name"], parameters=entry["function"]["parameters"]) for entry in TOOLS]
    made = [Made("weather", {"city": "Paris", "days": 2}), Made("time", {"zone": "utc"})]
    said = written(KNOWN[form], made[: 1 if KNOWN[form].channels else 2], tools)
    parts = list(dict.fromkeys([*said, *(said[at : at + 9] for at in range(0, len(said), 5)), said]))
    session = Session(FakeEngine(), TextServices(text))
    body = {"messages": HI, "tools": TOOLS}
    expected = whole(session, body, said)
    assert len(expected["calls"]) == (1 if KNOWN[form].channels else 2)
    for at in range(0, len(parts), 16):
        stop = body | {"stop": parts[at : at + 16]}
        assert whole(session, stop, said) == expected
        assert streamed(session, stop, said, [3]) == expected
    session.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_in_the_text_ends_the_answer(session: Session, stream: bool):
    body = {"messages": HI, "tools": TOOLS, "stop": ["STOP"], "n": 2, "logprobs": True, "return_token_ids": True}
    session.engine.requests.clear()
    session.engine.cancelled.clear()
    session.engine.script, session.engine.pieces = says("I look. STOP it" * 9, f"I {call('time', UTC)}"), (5,)
    response = session.post(
        PATH, body | {"stream": stream, "stream_options": {"include_usage": True}} if stream else body
    )
    if stream:
        *chunks, last, _ = events(response)
        shapes = [
            joined([c | {"choices": [p for p in c["choices"] if p["index"] == i]} for c in chunks]) for i in (0, 1)
        ]
        usage, choices = last["usage"], [piece for chunk in chunks for piece in chunk["choices"]]
    else:
        shapes, usage = [shape(choice) for choice in response.json()["choices"]], response.json()["usage"]
        choices = response.json()["choices"]
    assert shapes[0] == {"content": "I look. ", "calls": [], "finish": "stop"}
    assert [made["function"]["name"] for made in shapes[1]["calls"]] == ["time"]
    assert [choice["stop_reason"] for choice in choices if choice.get("stop_reason")] == ["STOP", END]
    first = [token for choice in choices if choice["index"] == 0 for token in choice.get("token_ids", [])]
    assert bytes(first) == b"I look. STOP", "nothing after the token that ends the stop string"
    scored = [c["logprobs"]["content"] for c in choices if c["index"] == 0 and c.get("logprobs")]
    assert len([entry for entries in scored for entry in entries]) == len(first)
    assert usage["completion_tokens"] == len(first) + len(f"I {call('time', UTC)}") + 1


def test_the_engine_is_told_that_an_answer_has_ended(session: Session):
    session.engine.cancelled.clear()
    whole(session, {"messages": HI, "tools": TOOLS, "stop": "look"}, "I look " * 20)
    assert session.engine.cancelled == [session.engine.requests[-1].id]
    assert session.engine.running == set()


@pytest.mark.parametrize(
    ("text", "stop", "content", "calls"),
    [
        ("a <b", "<", "a ", 0),  # it may have begun a call, and has not
        (f"a {call('time', UTC)}", "<", "a", 1),
        ("a <tool_x", "<tool", "a ", 0),
        (f"{call('time', UTC)}\nb STOP c", "STOP", "\nb ", 1),
        ("a\n\nb", "\n\n", "a", 0),
        ("a <tool", "<tool", "a ", 0),
    ],
)
def test_what_may_begin_a_call_is_text_once_it_does_not(
    session: Session, text: str, stop: str, content: str, calls: int
) -> None:
    body = {"messages": HI, "tools": TOOLS, "stop": stop}
    expected = whole(session, body, text)
    assert (expected["content"], len(expected["calls"])) == (content, calls)
    for at in range(1, len(text) + 1):
        assert streamed(session, body, text, [at, len(text)]) == expected


WORDS = st.lists(st.sampled_from(["a", "b", "ab", "ba", " ", "\n", "é", "<", "<tool_"]), max_size=14).map("".join)
STOPS = st.lists(st.sampled_from(["a", "b", "ab", "bab", "a b", "é", "\nb", "<", "<tool_a"]), max_size=3, unique=True)


@settings(max_examples=150, deadline=None)
@given(text=WORDS, stop=STOPS, pieces=st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_in_plain_text_they_are_those_of_the_engine(
    session: Session, text: str, stop: list[str], pieces: list[int]
) -> None:
    """The same request without tools, where the engine looks for them in bytes."""
    body = {"messages": HI, "stop": stop, "max_tokens": 100}
    expected = whole(session, body, text)
    with_tools = body | {"tools": TOOLS}
    assert whole(session, with_tools, text) == expected | {"content": expected["content"] or ""}
    assert streamed(session, with_tools, text, pieces)["content"] == expected["content"]


def test_a_stop_string_before_the_least_tokens_does_not_count(session: Session):
    body = {"messages": HI, "tools": TOOLS, "stop": ["ab", "b"], "min_tokens": 3}
    for pieces in ([1], [2], [9]):
        assert streamed(session, body, "abcab", pieces) == {"content": "abc", "calls": [], "finish": "stop"}


# ---- I7: streamed and not, the same for every split -----------------------------------------------------------------

TEXTS = [
    call("weather", PARIS),
    f"Well.\n{call('weather', PARIS)}\n{call('time', UTC)}\n",
    f"{call('time', UTC)} and then <tool_call> nothing",
    "no call <tool_cal",
    "é<tool_call>\n{",
    call("nobody", "{}"),
    call("weather", '{"city": "Zürich ☃ \\"</tool_call>\\"", "days": 1}') + "\n",
    call("weather", '{"city": "x"')[:-14],
]


def whole(session: Session, body: dict[str, Any], text: str) -> dict[str, Any]:
    """What the answer says, whole and token by token."""
    session.engine.requests.clear()
    session.engine.script, session.engine.pieces = says(text), (1,)
    return shape(session.post(PATH, body).json()["choices"][0])


def streamed(session: Session, body: dict[str, Any], text: str, pieces: list[int]) -> dict[str, Any]:
    """The same, streamed and in other pieces."""
    session.engine.requests.clear()
    session.engine.script, session.engine.pieces = says(text), tuple(pieces)
    return joined(events(session.post(PATH, body | {"stream": True}))[:-1])


def joined(chunks: list[Any]) -> dict[str, Any]:
    """What a client makes of the chunks: strings are appended, calls are told apart by their index."""
    content, calls, finish = None, [], None
    for chunk in chunks:
        for piece in chunk["choices"]:
            assert finish is None
            finish = piece["finish_reason"]
            text = piece["delta"].get("content")
            content = (content or "") + text if text is not None else content
            for entry in piece["delta"].get("tool_calls", []):
                if entry["index"] == len(calls):
                    calls.append({"type": "", "function": {"name": "", "arguments": ""}})
                made = calls[entry["index"]]
                made["type"] += entry.get("type", "")
                made["function"]["name"] += entry["function"].get("name", "")
                made["function"]["arguments"] += entry["function"]["arguments"]
    return {"content": content, "calls": calls, "finish": finish}


def shape(choice: Any) -> dict[str, Any]:
    calls = [{"type": c["type"], "function": c["function"]} for c in choice["message"].get("tool_calls", [])]
    return {"content": choice["message"]["content"], "calls": calls, "finish": choice["finish_reason"]}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("choice", ["auto", named("weather")])
def test_every_split_in_two(session: Session, text: str, choice: Any):
    body = {"messages": HI, "tools": TOOLS, "tool_choice": choice}
    size = len(text.encode()) + 1
    expected = whole(session, body, text)
    for at in range(1, size):
        assert streamed(session, body, text, [at, size]) == expected


@settings(max_examples=60, deadline=None)
@given(
    text=st.sampled_from(TEXTS),
    pieces=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    limit=st.integers(1, 150),
    stop=st.sampled_from([[], ["Par"], ["</tool"], ["\n"]]),
)
def test_any_split(session: Session, text: str, pieces: list[int], limit: int, stop: list[str]):
    body = {"messages": HI, "tools": TOOLS, "max_tokens": limit, "stop": stop}
    assert streamed(session, body, text, pieces) == whole(session, body, text)
