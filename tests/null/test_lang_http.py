"""Programs on a Bosquet server, played by routes on the fake backend: the same results as on the backend itself."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest
from fakes_lang import FakeBackend, chatml, echo, encode_segments, folding, until, written
from fakes_lang_http import bosquet_server, refusal

import bosquet.lang as bosquet
from bosquet.errors import (
    ConfigError,
    EngineDied,
    NotAuthenticated,
    Overloaded,
    ProgramError,
    PromptTooLong,
    RequestRejected,
    TemplateFailed,
    Unavailable,
    Unsupported,
)
from bosquet.lang.backends.client import grammar_fields
from bosquet.runtime.server.schemas import CompletionRequest
from bosquet.types import GrammarSpec, Relaxed

DIED = 'data: {"error": {"message": "died", "code": "engine_died"}}\n\n'
URL = "http://server.test:8000"


@bosquet.program(temperature=0)
def everything(s: bosquet.State, topic: str) -> None:
    s.system("Be <|im_end|> brief.")
    s.user(f"About {topic}?")
    s.assistant("Well, " + bosquet.gen("start", max_tokens=9, stop=["a", "is"]) + " and " + bosquet.gen("more"))
    branches = s.fork(3)
    for i, branch in enumerate(branches):
        branch.user(f"Point {i} ü")
        branch.assistant(bosquet.gen("point", max_tokens=6, logprobs=0), bosquet.select("kind", ["ab", "abc", "the"]))
    s.join(branches)
    s.user("Yes?")
    s.assistant(bosquet.gen("end", choices=["yes", "no", "日本"]))


@bosquet.program(temperature=0)
def plain(s: bosquet.State) -> None:
    s += bosquet.gen("a", max_tokens=5) + "ab" + bosquet.select("b", ["c", "x"], method="unconditional")


@pytest.mark.parametrize("bos", [False, True])
def test_a_program_on_a_server_does_what_it_does_on_the_backend_itself(bos: bool) -> None:
    for program, args in ((everything, ("tea",)), (everything, ("日本",)), *([(plain, ())] if bos else [])):
        direct, behind = FakeBackend(bos=bos), FakeBackend(bos=bos)
        server = bosquet_server(behind)
        here = program.run(*args, backend=direct)
        with bosquet.BosquetServer(URL, transport=server) as backend:
            there = program.run(*args, backend=backend)
        assert there.error is None
        assert {name: there[name] for name in there} == {name: here[name] for name in here}
        assert (there.text, there.ids, there.messages) == (here.text, here.ids, here.messages)
        where = {(c.origin.branch, c.origin.step): (tuple(c.ids), c.sampling, c.grammar) for c in direct.calls}
        for call in behind.calls:
            ids, params, grammar = where[call.origin.branch, call.origin.step]
            assert (tuple(call.ids), call.grammar) == (ids, grammar)
            assert (call.sampling.max_tokens, call.sampling.temperature) == (params.max_tokens, 0)
        assert len(behind.calls) == len(direct.calls)
        assert sorted(behind.scored) == sorted((tuple(ids), choices) for ids, choices in direct.scored)
        for name in here:
            for ours, theirs in zip(_metas(here, name), _metas(there, name), strict=True):
                assert (ours.finish, ours.stop, ours.ids) == (theirs.finish, theirs.stop, theirs.ids)
                assert (ours.logprobs, ours.scores) == (theirs.logprobs, theirs.scores)
                assert (ours.prompt_tokens, ours.completion_tokens) == (theirs.prompt_tokens, theirs.completion_tokens)


def _metas(result: bosquet.Result[Any], name: str) -> list[bosquet.Meta]:
    meta = result.meta(name)
    return meta if isinstance(meta, list) else [meta]


def test_requests_carry_origin_key_and_model() -> None:
    server = bosquet_server(FakeBackend())
    backend = bosquet.BosquetServer(URL + "/v1/", "secret", model="toy", transport=server)

    @bosquet.program
    def named(s: bosquet.State) -> None:
        s.user("Go.")
        s.fork(2)[1].assistant(bosquet.gen("größe 100%", seed=3, top_k=5, logit_bias={7: 1.5}))

    result = named.run(backend=backend)
    assert result.error is None
    path, body, headers = server.requests[-1]
    assert path == "/v1/completions"
    assert headers["authorization"] == "Bearer secret"
    assert {name: headers[f"x-bosquet-{name}"] for name in ("program", "run", "step", "branch")} == {
        "program": "named",
        "run": result.run_id,
        "step": "gr%C3%B6%C3%9Fe 100%25",
        "branch": "1",
    }
    assert body["prompt"] == encode_segments(chatml([{"role": "user", "content": "Go."}], True))
    assert (body["seed"], body["top_k"], body["logit_bias"]) == (3, 5, {"7": 1.5})
    assert all(body["model"] == "toy" for _, body, _ in server.requests)
    backend.close()


def test_the_output_is_held_to_what_was_asked() -> None:
    schema = {"type": "object"}

    @bosquet.program
    def held(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(
            bosquet.gen("a", schema=schema, strict=True),
            bosquet.gen("b", schema=dict),
            bosquet.gen("c", regex="a+"),
            bosquet.gen("d", grammar="root ::= .", stop=["x", "y"]),
            bosquet.gen("e", lark="start: /a/"),
        )

    server = bosquet_server(FakeBackend(script={"a": "{}", "b": "{}", "c": "aa", "d": "a", "e": "a"}))
    with bosquet.BosquetServer(URL, transport=server) as backend:
        result = held.run(backend=backend)
    assert [result[name] for name in "abcde"] == [{}, {}, "aa", "a", "a"]
    a, b, c, d, e = server.bodies("/v1/completions")
    assert e["lark"] == "start: /a/"
    assert a["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": schema, "strict": True},
    }
    assert b["response_format"] == {"type": "json_object"}
    assert (c["regex"], d["grammar"], d["stop"]) == ("a+", "root ::= .", ["x", "y"])


def test_the_template_is_rendered_on_the_server() -> None:
    server = bosquet_server(FakeBackend(template=folding))
    with bosquet.BosquetServer(URL, transport=server) as backend:
        result = everything.run("tea", backend=backend)
        assert result.text.startswith("<s><|im_start|>user\nBe <|im_end|> brief.\n\nAbout tea?<|im_end|>\n")

        @bosquet.program
        def wrong(s: bosquet.State) -> None:
            s.user("Go.")
            s.user("Go.")
            s.assistant(bosquet.gen("x"))

        with pytest.raises(ProgramError, match="roles must alternate") as caught:
            wrong.run(backend=backend)["x"]
        assert isinstance(caught.value.__cause__, TemplateFailed)


def test_alternatives_to_a_token_have_no_ids_over_http_and_are_refused() -> None:
    @bosquet.program
    def top(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("x", logprobs=3))

    with pytest.raises(Unsupported, match="BosquetServer cannot do 'top_logprobs'"):
        top.run(backend=bosquet.BosquetServer(URL, transport=bosquet_server(FakeBackend())))


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (refusal(400, "context_length_exceeded", "too long", "prompt"), PromptTooLong, "too long"),
        (refusal(401, "invalid_api_key", "no key"), NotAuthenticated, "no key"),
        (refusal(401, None, "who are you"), NotAuthenticated, "who are you"),
        (refusal(429, "overloaded", "full", **{"Retry-After": "2.5"}), Overloaded, "full"),
        (refusal(429, "rate_limit_exceeded", "slow down"), Overloaded, "slow down"),
        (refusal(503, "unavailable", "starting"), Unavailable, "starting"),
        (refusal(503, "engine_died", "gone"), EngineDied, "gone"),
        (refusal(422, "odd", "odd request", "prompt"), RequestRejected, "odd request"),
        (httpx.Response(502, text="<html>bad gateway</html>"), Unavailable, "bad gateway"),
        (httpx.Response(200, text="hello"), Unavailable, "ended the stream"),
        (httpx.Response(200, text="data: {nonsense\n\n"), Unavailable, "not JSON"),
        (httpx.Response(200, text=DIED), EngineDied, "died"),
        (httpx.Response(500, json={"error": {"message": "a fault", "code": "internal_error"}}), Unavailable, "a fault"),
    ],
)
def test_a_servers_errors_come_back_as_what_they_are(
    answer: httpx.Response, kind: type[Exception], message: str
) -> None:
    server = bosquet_server(FakeBackend())
    server.routes["/v1/completions"] = lambda body, request: answer
    with bosquet.BosquetServer(URL, transport=server) as backend:
        (result,) = echo.map(["hi"], backend=backend)
    assert isinstance(result.error, ProgramError)
    cause = result.error.__cause__
    assert type(cause) is kind
    assert message in str(cause)
    if isinstance(cause, Overloaded):
        assert cause.retry_after == (2.5 if message == "full" else 1.0)
    if isinstance(cause, RequestRejected) and message in ("too long", "odd request"):
        assert cause.field == "prompt"


@bosquet.tool
def add(a: int, b: int) -> int:
    "Add."
    return a + b


@bosquet.tool
async def shout(text: str) -> str:
    "Shout."
    return text.upper()


@bosquet.program(temperature=0, max_tokens=300)
def agent(s: bosquet.State) -> Any:
    s.user("Go.")
    s.act([add, shout], tool_choice="add", parallel=False)
    s.user("Thanks.")
    s.assistant(bosquet.gen("bye"))
    return s["act"]


def test_tools_on_a_server_do_what_they_do_on_the_backend_itself() -> None:
    def backend() -> FakeBackend:
        said = ["Hm. " + written("add", a=1, b=2) + written("shout", text="é"), "<3"]
        found = (Relaxed("#/properties/text", "pattern", "too wide"),)
        return FakeBackend(script={"act": said}, relaxed=found)

    direct, behind = backend(), backend()
    server = bosquet_server(behind)
    here = agent.run(backend=direct)
    with bosquet.BosquetServer(URL, transport=server) as client:
        there = agent.run(backend=client)
        assert (
            "".join(agent.stream(backend=bosquet.BosquetServer(URL, transport=bosquet_server(backend())), var="act"))
            == "Hm. <3"
        )
    assert there.error is None
    assert (there.text, there.ids, there.messages) == (here.text, here.ids, here.messages)
    assert [call.text for call in there.value.calls] == [call.text for call in here.value.calls] == ["3", "É"]
    assert there.meta("act").relaxed == here.meta("act").relaxed != ()
    assert [(call.tools, tuple(call.ids)) for call in behind.calls] == [(c.tools, tuple(c.ids)) for c in direct.calls]
    told = [body for body in server.bodies("/tokenize") if "messages" in body]
    assert all([tool["function"]["name"] for tool in body["tools"]] == ["add", "shout"] for body in told)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with bosquet.BosquetServer("http://127.0.0.1:1") as backend:
        (result,) = echo.map(["hi"], backend=backend)
    assert isinstance(result.error, ProgramError)
    assert isinstance(result.error.__cause__, Unavailable)
    assert "http://127.0.0.1:1" in str(result.error)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:9100", "has no scheme; write 'http://127.0.0.1:9100'"),
        ("//host", "has no scheme; write 'http://host'"),
        ("ftp://host", "must begin with http:// or https://"),
        ("http://", "must begin with http:// or https:// and a host"),
        ("http://host:port", "is no address"),
    ],
)
def test_what_is_no_address_is_refused_where_it_is_written(url: str, said: str) -> None:
    for make in (bosquet.BosquetServer, lambda url: bosquet.OpenAICompatible(url, "m")):
        with pytest.raises(ConfigError, match=re.escape(said)):
            make(url)


def test_where_drafts_may_come_from_is_told_to_the_server() -> None:
    @bosquet.program(speculation=["suffix"])
    def drafted(s: bosquet.State) -> None:
        s.user("Go.")
        s.assistant(bosquet.gen("a"), bosquet.gen("b", speculation="off"), bosquet.gen("c", speculation=None))
        s.user("On.")
        s.act([add], name="d", speculation=("forced", "suffix", "forced"), max_steps=1)

    server = bosquet_server(FakeBackend())
    with bosquet.BosquetServer(URL, transport=server) as backend:
        assert drafted.run(backend=backend).error is None
    bodies = server.bodies("/v1/completions")
    said: list[Any] = [body.get("speculation") for body in bodies]
    assert said == [["suffix"], "off", None, ["forced", "suffix"]]
    for body in bodies:
        CompletionRequest.model_validate(body)


def test_a_server_of_another_kind_is_told_apart() -> None:
    server = bosquet_server(FakeBackend())
    server.routes["/tokenize"] = lambda body, request: {"data": []}
    with bosquet.BosquetServer(URL, transport=server) as backend:
        (result,) = echo.map(["hi"], backend=backend)
    assert "is this a Bosquet server?" in str(result.error)


def test_a_closed_stream_drops_its_connection() -> None:
    behind = FakeBackend(pause=0.02)
    server = bosquet_server(behind)
    with bosquet.BosquetServer(URL, transport=server) as backend:
        stream = echo.stream("hi", backend=backend)
        next(stream)
        stream.close()
        until(lambda: behind.active == 0)
        assert behind.cancelled == 1
        (events,) = server.streams
        assert events.closed
        assert not events.whole


def test_a_backend_can_be_used_again_after_it_was_closed_and_in_async_programs() -> None:
    server = bosquet_server(FakeBackend(script={"reply": "abc"}))

    async def main() -> None:
        async with bosquet.BosquetServer(URL, transport=server) as backend:
            assert (await echo.arun("hi", backend=backend)).value == "abc"
            await backend.aclose()
            assert (await echo.arun("hi", backend=backend)).value == "abc"
            assert repr(backend) == f"BosquetServer('{URL}')"

    asyncio.run(main())


def test_a_structural_format_goes_as_a_response_format() -> None:
    form = {"type": "const_string", "value": "a"}
    spec = GrammarSpec("structural_tag", json.dumps(form), strict=True)
    assert grammar_fields(spec) == {"response_format": {"type": "structural_tag", "format": form, "strict": True}}
    CompletionRequest.model_validate({"prompt": "a", **grammar_fields(spec)})
