"""The official client against a running server: what it parses is what the engine said."""

import asyncio
from collections.abc import Iterator

import openai
import pytest
from fakes_engine import FakeEngine, says
from live_server import Live, live

from bosquet.errors import Overloaded

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(FakeEngine(says("héllo", "other"), pieces=[1, 2])) as running:
        yield running


@pytest.fixture
def client(server: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI):
    answer = client.chat.completions.create(model="toy", messages=HI, n=2, logprobs=True, top_logprobs=2)
    assert [choice.message.content for choice in answer.choices] == ["héllo", "other"]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs.content[0].token == "h"
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
    assert answer.usage.completion_tokens == 7 + 6
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


def test_chat_stream(client: openai.OpenAI):
    texts, usage, ids = ["", ""], None, set()
    flow = client.chat.completions.create(
        model="toy", messages=HI, n=2, stream=True, stream_options={"include_usage": True}
    )
    for chunk in flow:
        ids.add(chunk.id)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["héllo", "other"]
    assert usage.completion_tokens == 13
    assert len(ids) == 1


def test_the_clients_own_accumulator(client: openai.OpenAI):
    with client.chat.completions.stream(model="toy", messages=HI, n=2, logprobs=True) as flow:
        final = flow.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["héllo", "other"]
    assert [choice.message.role for choice in final.choices] == ["assistant", "assistant"]
    assert [len(choice.logprobs.content) for choice in final.choices] == [6, 5]


def test_completions(client: openai.OpenAI):
    answer = client.completions.create(model="toy", prompt=["a", "b"], logprobs=1, echo=True)
    assert [choice.text for choice in answer.choices] == ["ahéllo", "bhéllo"]
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    flow = client.completions.create(model="toy", prompt="a", stream=True, extra_body={"return_token_ids": True})
    assert "".join(choice.text for chunk in flow for choice in chunk.choices) == "héllo"


def test_models(client: openai.OpenAI):
    assert [model.id for model in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").id == "toy"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.param == "model"


def test_errors_are_the_clients_own(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="toy", messages=HI, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="toy", prompt="x" * 600)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=HI)


def test_overload_and_death_as_the_client_sees_them():
    engine = FakeEngine(delay=0.01)
    with live(engine) as server, openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client:
        engine.reject = Overloaded("full")
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="toy", messages=HI)
        engine.reject = None
        flow = client.chat.completions.create(model="toy", messages=HI, stream=True)
        next(iter(flow))
        engine.die()
        with pytest.raises(openai.APIError, match="engine process ended"):
            list(flow)
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="toy", messages=HI)
        assert caught.value.status_code == 503
        engine.restart()
        assert client.chat.completions.create(model="toy", messages=HI, max_tokens=2).choices


def test_64_streams_at_once():
    engine = FakeEngine(delay=0.002)
    with live(engine) as server:
        texts = asyncio.run(_many(server.url, 64))
    assert len(engine.finished) == 64
    expected = {bytes(engine.script(request, 0)).decode() for request in engine.requests}
    assert set(texts) == expected
    assert len(expected) == 64


async def _many(url: str, count: int) -> list[str]:
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:

        async def one(number: int) -> str:
            messages = [{"role": "user", "content": f"hello {number}"}]
            flow = await client.chat.completions.create(model="toy", messages=messages, stream=True, max_tokens=40)
            return "".join([c.delta.content or "" async for chunk in flow for c in chunk.choices])

        return await asyncio.gather(*(one(number) for number in range(count)))
