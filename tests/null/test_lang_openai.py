"""Programs on any OpenAI-compatible endpoint: what it can do works, what it cannot do is refused by name."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from fakes_lang import FakeBackend, aecho, echo, written
from fakes_lang_http import openai_server, refusal

import bosquet.lang as bosquet
from bosquet.errors import NotAuthenticated, ProgramError, Unsupported
from bosquet.lang.backends.client import CallDeltas
from bosquet.types import Relaxed, ToolCall

URL = "https://openai.test/v1"


class City(pydantic.BaseModel):
    name: str


@bosquet.program(temperature=0.5)
def forks(s: bosquet.State) -> None:
    s.system("Be brief.")
    s.user("Go.")
    s.assistant(bosquet.gen("first", max_tokens=5, stop=["x"], seed=3))
    branches = s.fork(2)
    for i, branch in enumerate(branches):
        branch.user(f"Point {i}")
        branch.assistant(bosquet.gen("point"))
    s.join(branches)


def test_turns_go_as_messages_and_come_back_as_text() -> None:
    behind = FakeBackend()
    server = openai_server(behind)
    with bosquet.OpenAICompatible(URL, "some-model", "secret", transport=server) as backend:
        result = forks.run(backend=backend)
    first, *others = server.bodies("/v1/chat/completions")
    begun = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
    assert first == {
        "model": "some-model",
        "messages": begun,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 5,
        "temperature": 0.5,
        "stop": ["x"],
        "seed": 3,
    }
    begun.append({"role": "assistant", "content": result["first"]})
    assert sorted((body["messages"] for body in others), key=str) == [
        [*begun, {"role": "user", "content": f"Point {i}"}] for i in range(2)
    ]
    assert all(headers["authorization"] == "Bearer secret" for _, _, headers in server.requests)
    assert result.messages == begun
    assert result.text == f"system: Be brief.\nuser: Go.\nassistant: {result['first']}"
    assert result.ids == ()
    metas = [result.meta("first"), *result.meta("point")]
    assert [meta.ids for meta in metas] == [(), (), ()]
    assert (
        result.usage.prompt_tokens == sum(meta.prompt_tokens for meta in metas) == sum(len(c.ids) for c in behind.calls)
    )
    assert result.usage.completion_tokens > 0


def test_streaming_typed_values_and_async() -> None:
    @bosquet.program
    def typed(s: bosquet.State) -> Any:
        s.user("Go.")
        s.assistant(bosquet.gen("city", schema=City))
        return s["city"]

    server = openai_server(FakeBackend(script={"chat": '{"name": "abc"}'}))
    with bosquet.OpenAICompatible(URL, "m", transport=server) as backend:
        assert typed.run(backend=backend).value == City(name="abc")
        assert "".join(echo.stream("hi", backend=backend)) == '{"name": "abc"}'
        assert aecho.run("hi", backend=backend).value == '{"name": "abc"}'
    form = server.bodies("/v1/chat/completions")[0]["response_format"]
    assert form["json_schema"]["schema"] == {**City.model_json_schema(), "additionalProperties": False}


def refused(capability: str, *parts: str | bosquet.Expression) -> Any:
    return pytest.param(capability, parts, id=capability)


@pytest.mark.parametrize(
    ("capability", "parts"),
    [
        refused("select", bosquet.select("x", ["a", "b"])),
        refused("regex", bosquet.gen("x", regex="a")),
        refused("choice", bosquet.gen("x", choices=["a", "b"])),
        refused("ebnf", bosquet.gen("x", grammar="root ::= .")),
        refused("lark", bosquet.gen("x", lark="start: /a/")),
        refused("top_k", bosquet.gen("x", top_k=4)),
        refused("min_p", bosquet.gen("x", min_p=0.1)),
        refused("repetition_penalty", bosquet.gen("x", repetition_penalty=1.1)),
        refused("min_tokens", bosquet.gen("x", min_tokens=3)),
        refused("ignore_eos", bosquet.gen("x", ignore_eos=True)),
        refused("stop_token_ids", bosquet.gen("x", stop_token_ids=[3])),
        refused("logprobs", bosquet.gen("x", logprobs=0)),
        refused("continue", "The answer is ", bosquet.gen("x")),
        refused("continue", bosquet.gen("x"), bosquet.gen("y")),
    ],
)
def test_what_the_protocol_cannot_do_is_refused_by_name(capability: str, parts: Any) -> None:
    @bosquet.program
    def asks(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(*parts)

    server = openai_server(FakeBackend())
    with (
        bosquet.OpenAICompatible(URL, "m", transport=server) as backend,
        pytest.raises(Unsupported, match=f"OpenAICompatible cannot do '{capability}'") as caught,
    ):
        asks.run(backend=backend)
    assert caught.value.capability == capability


def test_plain_text_and_generation_in_a_users_turn_are_refused_by_name() -> None:
    @bosquet.program
    def plain(s: bosquet.State) -> None:
        s += "Once upon a time"

    @bosquet.program
    def simulated(s: bosquet.State) -> None:
        s.user(bosquet.gen("question"))

    backend = bosquet.OpenAICompatible(URL, "m", transport=openai_server(FakeBackend()))
    with pytest.raises(Unsupported, match="cannot do 'text': plain text without roles"):
        plain.run(backend=backend)
    with pytest.raises(Unsupported, match="cannot do 'continue'"):
        simulated.run(backend=backend)


def test_what_a_server_can_do_besides_is_sent() -> None:
    @bosquet.program
    def more(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant("The answer is " + bosquet.gen("x", regex="[a-z]+", top_k=3), "!")
        s.user("On.")
        s.assistant(bosquet.gen("y", choices=["yes", "no"]))

    server = openai_server(FakeBackend(script={"chat": "abc"}))
    also = ["continue", "regex", "choice", "top_k"]
    with bosquet.OpenAICompatible(URL, "m", also=also, transport=server) as backend:
        result = more.run(backend=backend)
    assert result.messages[1] == {"role": "assistant", "content": "The answer is abc!"}
    first, second = server.bodies("/v1/chat/completions")
    assert first["messages"][-1] == {"role": "assistant", "content": "The answer is "}
    assert (first["continue_final_message"], first["add_generation_prompt"]) == (True, False)
    assert (first["regex"], first["top_k"]) == ("[a-z]+", 3)
    assert "continue_final_message" not in second
    assert second["choice"] == ["yes", "no"]


def test_nobody_can_say_that_chat_completions_carry_token_ids() -> None:
    with pytest.raises(ValueError, match="chat completions cannot do select, telepathy"):
        bosquet.OpenAICompatible(URL, "m", also=["select", "telepathy", "regex"])


def test_errors_are_raised_where_the_value_is_read() -> None:
    server = openai_server(FakeBackend())
    server.routes["/v1/chat/completions"] = lambda body, request: refusal(401, "invalid_api_key", "wrong key")
    backend = bosquet.OpenAICompatible(URL, "m", "wrong", transport=server)
    with pytest.raises(ProgramError, match="step 'reply': wrong key") as caught:
        echo.run("hi", backend=backend)
    assert isinstance(caught.value.__cause__, NotAuthenticated)


# -- tools ------------------------------------------------------------------------------------------------------------


@bosquet.tool
def add(a: int, b: int) -> int:
    "Add."
    return a + b


@bosquet.tool(strict=True)
async def shout(text: str) -> str:
    "Shout."
    return text.upper()


@bosquet.program(max_tokens=300)
def agent(s: bosquet.State, **options: Any) -> Any:
    s.user("Go.")
    s.act([add, shout], **options)
    return s["act"]


def test_tools_go_and_calls_come_as_the_protocol_has_them() -> None:
    said = ["Hm. " + written("add", a=1, b=2) + written("shout", text="é"), "done"]
    server = openai_server(FakeBackend(script={"chat": said}))
    with bosquet.OpenAICompatible(URL, "m", transport=server) as backend:
        result = agent.run(tool_choice="shout", parallel=False, backend=backend)
    acted = result.value
    assert (acted.text, [call.value for call in acted.calls], acted.finished) == ("done", [3, "É"], True)
    first, second = server.bodies("/v1/chat/completions")
    assert first["tools"] == [
        {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": add.parameters}},
        {
            "type": "function",
            "function": {"name": "shout", "description": "Shout.", "parameters": shout.parameters, "strict": True},
        },
    ]
    assert first["tool_choice"] == {"type": "function", "function": {"name": "shout"}}
    assert (second["tool_choice"], first["parallel_tool_calls"]) == ("auto", False)
    user, assistant, one, two = second["messages"]
    assert user == {"role": "user", "content": "Go."}
    assert (assistant["role"], assistant["content"]) == ("assistant", "Hm. ")
    ids = [call["id"] for call in assistant["tool_calls"]]
    assert [call["function"] for call in assistant["tool_calls"]] == [
        {"name": "add", "arguments": '{"a": 1, "b": 2}'},
        {"name": "shout", "arguments": '{"text": "\\u00e9"}'},
    ]
    assert (one, two) == (
        {"role": "tool", "content": "3", "tool_call_id": ids[0]},
        {"role": "tool", "content": "É", "tool_call_id": ids[1]},
    )


def test_a_call_may_be_required_and_calls_may_be_parallel_unless_told_otherwise() -> None:
    server = openai_server(FakeBackend(script={"chat": [written("add", a=1, b=2), "3"]}))
    with bosquet.OpenAICompatible(URL, "m", transport=server) as backend:
        agent.run(tool_choice="required", backend=backend)
    first, second = server.bodies("/v1/chat/completions")
    assert (first["tool_choice"], second["tool_choice"]) == ("required", "auto")
    assert "parallel_tool_calls" not in first


def test_a_message_that_only_calls_has_no_content() -> None:
    server = openai_server(FakeBackend(script={"chat": [written("add", a=1, b=2), "3"]}))
    with bosquet.OpenAICompatible(URL, "m", transport=server) as backend:
        assert agent.run(backend=backend).value.text == "3"
    assert server.bodies("/v1/chat/completions")[1]["messages"][1]["content"] is None


def test_calls_of_servers_that_leave_out_indices_or_ids() -> None:
    deltas = CallDeltas()
    deltas.add([{"function": {"name": "a", "arguments": "{}"}}, {"id": "x", "function": {"name": "b"}}])
    assert deltas.calls() == [ToolCall("call_0", "a", "{}"), ToolCall("x", "b", "")]
    deltas = CallDeltas()
    deltas.add([{"index": 1, "id": "y", "function": {"name": "b", "arguments": "{"}}])
    deltas.add([{"index": 0, "id": "x", "function": {"name": "a"}}, {"index": 1, "function": {"arguments": "}"}}])
    deltas.add([{"index": 0, "id": None, "function": None}])
    assert deltas.calls() == [ToolCall("x", "a", ""), ToolCall("y", "b", "{}")]


def test_what_a_bosquet_server_relaxed_is_in_the_meta() -> None:
    @bosquet.program
    def typed(s: bosquet.State) -> Any:
        s.user("Go.")
        s.assistant(bosquet.gen("city", schema=City))
        return s.meta("city").relaxed

    found = (Relaxed("#/properties/name", "pattern", "too wide"),)
    server = openai_server(FakeBackend(script={"chat": '{"name": "a"}'}, relaxed=found))
    with bosquet.OpenAICompatible(URL, "m", transport=server) as backend:
        assert typed.run(backend=backend).value == found


def test_a_stream_of_an_act_is_what_is_said() -> None:
    server = openai_server(FakeBackend(script={"chat": ["Hm. " + written("add", a=1, b=2), "It is 3."]}))
    with bosquet.OpenAICompatible(URL, "m", transport=server) as backend:
        assert "".join(agent.stream(backend=backend)) == "Hm. It is 3."
