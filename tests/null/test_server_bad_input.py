"""Bad input: each gets its status, the OpenAI error shape, and the field's name; the engine sees none of it."""

import json
from typing import Any

import httpx
import pytest
from fakes_engine import FakeEngine
from live_server import get, in_process, post

from bosquet.errors import EngineDied, GrammarInvalid, InvalidParameter, PromptTooLong, Unavailable
from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.server.services import TextServices

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


BAD: list[tuple[str, Any, int, str | None]] = [
    # path, body (fields added to HI for chat unless it brings messages), status, param
    (CHAT, {"messages": []}, 400, "messages"),
    (CHAT, {"messages": None}, 400, "messages"),
    (CHAT, {"messages": "hi"}, 400, "messages"),
    (CHAT, {"messages": [1]}, 400, "messages[0]"),
    (CHAT, {"messages": [{"content": "x"}]}, 400, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user"}]}, 400, "messages[0]"),
    (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role"),
    (CHAT, user(5), 400, "messages[0].content"),
    (CHAT, user(None), 400, "messages[0]"),
    (CHAT, user([]), 400, "messages[0].content"),
    (CHAT, user([{"type": "text"}]), 400, "messages[0].content[0].text"),
    (CHAT, user([{"type": "text", "text": 5}]), 400, "messages[0].content[0].text"),
    (CHAT, user([{"type": "image_url", "image_url": {"url": "x"}}]), 400, "messages[0].content[0]"),
    (CHAT, user([{"type": "input_audio", "input_audio": {}}]), 400, "messages[0].content[0]"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "colour": "red"}]}, 400, "messages[0].colour"),
    (CHAT, user("fail"), 400, "messages"),
    (CHAT, user("x" * 600), 400, "messages"),
    (CHAT, {"model": "gpt-4"}, 404, "model"),
    (CHAT, {"model": 5}, 400, "model"),
    (CHAT, {"temperature": -0.1}, 400, "temperature"),
    (CHAT, {"temperature": 1e9}, 400, "temperature"),
    (CHAT, {"temperature": "hot"}, 400, "temperature"),
    (CHAT, {"temperature": True}, 400, "temperature"),
    (CHAT, {"top_p": 0}, 400, "top_p"),
    (CHAT, {"top_p": 1.1}, 400, "top_p"),
    (CHAT, {"top_k": -2}, 400, "top_k"),
    (CHAT, {"top_k": 1.5}, 400, "top_k"),
    (CHAT, {"min_p": 2}, 400, "min_p"),
    (CHAT, {"presence_penalty": 3}, 400, "presence_penalty"),
    (CHAT, {"frequency_penalty": -3}, 400, "frequency_penalty"),
    (CHAT, {"repetition_penalty": 0}, 400, "repetition_penalty"),
    (CHAT, {"max_tokens": 0}, 400, "max_tokens"),
    (CHAT, {"max_tokens": -1}, 400, "max_tokens"),
    (CHAT, {"max_tokens": 10**30}, 400, "max_tokens"),
    (CHAT, {"max_tokens": 513}, 400, "max_tokens"),  # the context holds 512
    (CHAT, {"max_tokens": 10**9}, 400, "max_tokens"),
    (CHAT, {"max_completion_tokens": 513}, 400, "max_completion_tokens"),
    (CHAT, {"min_tokens": 513}, 400, "min_tokens"),
    (CHAT, {"max_completion_tokens": 0}, 400, "max_completion_tokens"),
    (CHAT, {"max_completion_tokens": 4, "max_tokens": 5}, 400, "max_completion_tokens"),
    (CHAT, {"min_tokens": 5, "max_tokens": 4}, 400, "min_tokens"),
    (CHAT, {"n": 0}, 400, "n"),
    (CHAT, {"n": 10**6}, 400, "n"),
    (CHAT, {"seed": 2**64}, 400, "seed"),
    (CHAT, {"seed": "x"}, 400, "seed"),
    (CHAT, {"stop": ["x"] * 17}, 400, "stop"),
    (CHAT, {"stop": ""}, 400, "stop"),
    (CHAT, {"stop": ["x", ""]}, 400, "stop[1]"),
    (CHAT, {"stop": ["x", 5]}, 400, "stop[1]"),
    (CHAT, {"stop": "x" * 513}, 400, "stop"),
    (CHAT, {"stop_token_ids": [260]}, 400, "stop_token_ids[0]"),
    (CHAT, {"stop_token_ids": [1, -1]}, 400, "stop_token_ids[1]"),
    (CHAT, {"logit_bias": {"260": 1}}, 400, "logit_bias"),
    (CHAT, {"logit_bias": {"-1": 1}}, 400, "logit_bias"),
    (CHAT, {"logit_bias": {"the": 1}}, 400, "logit_bias"),
    (CHAT, {"logit_bias": {"²": 1}}, 400, "logit_bias"),
    (CHAT, {"logit_bias": {"1": 101}}, 400, "logit_bias.1"),
    (CHAT, {"logit_bias": [1]}, 400, "logit_bias"),
    (CHAT, {"logprobs": 5}, 400, "logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    (CHAT, {"top_logprobs": 2}, 400, "top_logprobs"),
    (CHAT, {"stream": "yes"}, 400, "stream"),
    (CHAT, {"stream_options": {"include_usage": True}}, 400, "stream_options"),
    (CHAT, {"stream": True, "stream_options": {"include_all": True}}, 400, "stream_options.include_all"),
    (CHAT, {"response_format": {"type": "yaml"}}, 400, "response_format.type"),
    (CHAT, {"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema"),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {}}}, 400, "response_format.json_schema.schema"),
    (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}},
        400,
        "response_format.json_schema.schema",
    ),
    (CHAT, {"regex": ""}, 400, "regex"),
    (CHAT, {"regex": "a", "choice": ["b"]}, 400, "choice"),
    (CHAT, {"response_format": {"type": "json_object"}, "grammar": "g"}, 400, "grammar"),
    (CHAT, {"choice": []}, 400, "choice"),
    (CHAT, {"choice": ["a", ""]}, 400, "choice[1]"),
    (CHAT, {"response_format": {"type": "text", "format": {}}}, 400, "response_format.format"),
    (CHAT, {"response_format": {"type": "structural_tag"}}, 400, "response_format.format"),
    (CHAT, {"regex": "a", "lark": "b"}, 400, "lark"),
    (CHAT, {"tool_choice": "auto"}, 400, "tool_choice"),
    (CHAT, {"tool_choice": {"type": "function"}}, 400, "tool_choice"),
    (CHAT, {"functions": []}, 400, "functions"),
    (CHAT, {"guided_json": {}}, 400, "guided_json"),
    (CHAT, {"best_of": 2}, 400, "best_of"),
    (CHAT, {"modalities": ["audio"]}, 400, "modalities[0]"),
    (CHAT, {"timeout": 0}, 400, "timeout"),
    (CHAT, {"timeout": -1}, 400, "timeout"),
    (CHAT, {"priority": 5000}, 400, "priority"),
    (CHAT, {"chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs.messages"),
    (CHAT, {"continue_final_message": True}, 400, "messages[0].role"),
    (CHAT, {"continue_final_message": True, "add_generation_prompt": True}, 400, "continue_final_message"),
    (TEXT, {}, 400, "prompt"),
    (TEXT, {"prompt": ""}, 400, "prompt"),
    (TEXT, {"prompt": []}, 400, "prompt"),
    (TEXT, {"prompt": [[]]}, 400, "prompt[0]"),
    (TEXT, {"prompt": ["a", ""]}, 400, "prompt[1]"),
    (TEXT, {"prompt": ["a", 1]}, 400, "prompt[1]"),
    (TEXT, {"prompt": [1, 260]}, 400, "prompt[1]"),
    (TEXT, {"prompt": [[1], [2, 999]]}, 400, "prompt[1][1]"),
    (TEXT, {"prompt": [-1]}, 400, "prompt[0]"),
    (TEXT, {"prompt": [True]}, 400, "prompt[0]"),
    (TEXT, {"prompt": {"a": 1}}, 400, "prompt"),
    (TEXT, {"prompt": "x" * 512}, 400, "prompt"),
    (TEXT, {"prompt": ["a", "x" * 512]}, 400, "prompt[1]"),
    (TEXT, {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
    (TEXT, {"prompt": "a", "max_tokens": 513}, 400, "max_tokens"),
    (TEXT, {"prompt": "a", "n": 65}, 400, "n"),  # the queue holds 64
    (TEXT, {"prompt": ["a", "b", "c"], "n": 22}, 400, "n"),
    (TEXT, {"prompt": ["a"] * 65}, 400, "prompt"),
    (CHAT, {"n": 65}, 400, "n"),
    (TEXT, {"prompt": "a", "logprobs": 21}, 400, "logprobs"),
    (TEXT, {"prompt": "a", "logprobs": True}, 400, "logprobs"),
    (TEXT, {"prompt": "a", "suffix": "b"}, 400, "suffix"),
    (TEXT, {"prompt": "a", "best_of": 2}, 400, "best_of"),
    (TEXT, {"prompt": "a", "prompt_logprobs_from": 1}, 400, "prompt_logprobs_from"),
    (
        TEXT,
        {"prompt": "a", "echo": True, "logprobs": 1, "prompt_logprobs_from": 1},
        400,
        "prompt_logprobs_from",
    ),
    ("/tokenize", {}, 400, "prompt"),
    ("/tokenize", {"prompt": "a", **HI}, 400, "messages"),
    ("/tokenize", {"segments": [["a"]]}, 400, "segments[0]"),
    ("/tokenize", {"segments": [["a", "b"]]}, 400, "segments[0]"),
    ("/tokenize", {"prompt": "a", "model": "b"}, 404, "model"),
    ("/detokenize", {"tokens": [260]}, 400, "tokens[0]"),
    ("/detokenize", {"tokens": "a"}, 400, "tokens"),
    ("/detokenize", {}, 400, "tokens"),
]


def check_error(response: httpx.Response, status: int, param: str | None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert isinstance(error["code"], str)
    assert error["param"] == param, error
    assert "pydantic" not in error["message"]
    return error


@pytest.mark.parametrize(("path", "body", "status", "param"), BAD)
def test_bad_field(path: str, body: Any, status: int, param: str | None):
    engine = FakeEngine()
    full = body if path != CHAT or "messages" in body else HI | body
    error = check_error(post(engine, path, full), status, param)
    assert param is None or param.rpartition("[")[0] in error["message"] or param in error["message"]
    assert not engine.requests


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"nonsense", b"[]", b'"x"', b"5", b"null", b'{"prompt": "\xff\xfe"}',
        b"\xff\xfe", b"{}{}",
    ],
)  # fmt: skip
def test_bad_body(path: str, raw: bytes):
    error = check_error(post(FakeEngine(), path, raw), 400, None)
    assert "JSON" in error["message"]


def test_a_deeply_nested_schema_is_refused_or_passed_on_but_never_a_fault():
    schema: dict[str, Any] = {}
    for _ in range(400):
        schema = {"properties": {"a": schema}}
    body = HI | {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    assert post(FakeEngine(), CHAT, body).status_code in (200, 400)


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize"])
def test_a_large_body_is_refused(path: str):
    body = json.dumps({"prompt": "x" * 10_000_000}).encode()
    check_error(post(FakeEngine(), path, body), 413, None)


def test_a_large_body_is_refused_while_it_is_read():
    """Chunked, so that no length is declared; reading stops soon after the limit."""
    sent = 0

    async def chunks():
        nonlocal sent
        for _ in range(1000):
            sent += 10_000
            yield b"x" * 10_000

    async def call(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(CHAT, content=chunks())

    response = in_process(FakeEngine(), call, ServerConfig(max_body_bytes=50_000))
    check_error(response, 413, None)
    assert sent <= 70_000


@pytest.mark.parametrize(
    ("error", "fields", "status", "param"),
    [
        (GrammarInvalid("no"), {"regex": "("}, 400, "regex"),
        (GrammarInvalid("no"), {"response_format": {"type": "json_object"}}, 400, "response_format"),
        (GrammarInvalid("no", "$.a"), {"regex": "("}, 400, "$.a"),
        (PromptTooLong("long"), {}, 400, "messages"),
        (InvalidParameter("odd", "seed"), {}, 400, "seed"),
        (Unavailable("restarting"), {}, 503, None),
        (EngineDied("gone"), {}, 503, None),
    ],
)
def test_what_the_engine_refuses(error: Exception, fields: dict, status: int, param: str | None):
    for stream in (False, True):  # before any header is sent
        response = post(FakeEngine(reject=error), CHAT, HI | fields | {"stream": stream})
        check_error(response, status, param)
        assert ("retry-after" in response.headers) == (status == 503)


def test_before_the_model_is_known():
    for path, body in (
        (CHAT, HI),
        (TEXT, {"prompt": "a"}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": []}),
    ):
        response = post(FakeEngine(), path, body, text=TextServices())
        check_error(response, 503, None)
        assert int(response.headers["retry-after"]) >= 1
    check_error(get(FakeEngine(), "/v1/models", text=TextServices()), 503, None)


def test_unknown_paths_and_methods():
    check_error(get(FakeEngine(), "/v1/nothing"), 404, None)
    response = get(FakeEngine(), CHAT)
    check_error(response, 405, None)
    assert response.headers["allow"] == "POST"
    check_error(get(FakeEngine(), "/v1/models/none"), 404, "model")


def test_an_engines_odd_answer_is_our_fault_not_the_clients():
    from bosquet.types import Output

    class Odd(FakeEngine):
        async def submit(self, request):
            stream = await super().submit(request)

            class Broken(type(stream)):
                async def __aiter__(self):
                    yield [Output(request.id, 0, [], finish="error", error=("internal_error", "step failed"))]

            stream.__class__ = Broken
            return stream

    check_error(post(Odd(), CHAT, HI), 500, None)
