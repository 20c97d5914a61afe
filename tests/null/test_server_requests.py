"""The records of requests over HTTP: both halves joined, told to whom they belong, as lists, files and sums."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes_engine import FakeEngine, says
from live_server import in_process, live, raw_post, wait_for

from bosquet.runtime.server.config import ServerConfig

CHAT = "/v1/chat/completions"
STREAM = {"stream": True, "return_token_ids": True}


def chat(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": text}], **more}


async def records(client: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    response = await client.get("/v1/requests", params=query)
    assert response.status_code == 200, response.text
    data: list[dict[str, Any]] = response.json()["data"]
    return data


def keyed(tmp_path: Path) -> ServerConfig:
    keys = tmp_path / "keys"
    keys.write_text("key-of-ada ada\nkey-of-bob bob\nkey-of-root root operator\n")
    return ServerConfig(keys_file=str(keys))


def as_(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer key-of-{name}"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_record_says_what_the_answer_said(stream: bool) -> None:
    async def call(client: httpx.AsyncClient) -> None:
        headers = {"X-Bosquet-Program": "greet", "X-Bosquet-Step": "hello", "X-Request-Id": "mine"}
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        for text in ("secret", "secret you"):
            response = await client.post(CHAT, json=chat(text, **more), headers=headers)
        if stream:
            answer = json.loads(response.text.split("data: ")[-2])
        else:
            answer = response.json()
        usage = answer["usage"]
        (found, before) = await records(client)
        assert (found["id"], found["request_id"], found["route"]) == (answer["id"], "mine", CHAT)
        assert found["prompt_tokens"] == usage["prompt_tokens"]
        assert found["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] > before["cached_tokens"] == 0
        assert found["completion_tokens"] == usage["completion_tokens"]
        assert (found["program"], found["step"], found["status"], found["finish"]) == ("greet", "hello", 200, "stop")
        tokens = found["tokens"]
        assert tokens["cached"] + tokens["computed"] == usage["prompt_tokens"]
        assert tokens["forced"] + tokens["drafted"] + tokens["sampled"] == usage["completion_tokens"]
        whole = (await client.get(f"/v1/requests/{found['id']}")).json()
        assert (await client.get("/v1/requests/mine")).json() == whole
        assert whole["stream"] is stream if stream else "stream" not in whole
        assert "text" not in whole
        assert "secret" not in json.dumps(whole)

    in_process(FakeEngine(says("hi there")), call)


def test_the_parts_of_a_prompt_are_its_messages() -> None:
    async def call(client: httpx.AsyncClient) -> None:
        answer = (await client.post(CHAT, json=chat("héllo\n"), headers={})).json()
        whole = (await client.get(f"/v1/requests/{answer['id']}")).json()
        rendered = b"<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n"
        marks = rendered.count(b"<|im_start|>"), rendered.count(b"<|im_end|>")
        upto = len(rendered) - 12 * marks[0] - 10 * marks[1] + sum(marks)  # a marker is one token, a byte another
        first = upto - len(b"<|im_end|>\n<|im_start|>user\n") + 10 + 12 - 2
        assert whole["parts"][0] == [0, "system", 0, first]
        assert whole["parts"][1] == [1, "user", first, upto + len("héllo".encode())]
        assert whole["parts"][2][:2] == [-1, "template"]
        assert whole["parts"][2][3] == whole["prompt_tokens"]

    in_process(FakeEngine(says("hi")), call)


def test_text_is_kept_only_where_it_is_asked_for() -> None:
    async def call(client: httpx.AsyncClient) -> Any:
        answer = (await client.post(CHAT, json=chat("a secret", n=2))).json()
        return (await client.get(f"/v1/requests/{answer['id']}")).json().get("text")

    assert in_process(FakeEngine(says("hi", "ho")), call) is None
    text = in_process(FakeEngine(says("hi", "ho")), call, ServerConfig(capture_text=True))
    assert "a secret" in text["prompt"]
    assert text["outputs"] == ["hi<|im_end|>", "ho<|im_end|>"]


def test_prompts_of_one_request_have_a_record_each() -> None:
    async def call(client: httpx.AsyncClient) -> None:
        answer = (await client.post("/v1/completions", json={"prompt": ["one", "three"], "max_tokens": 3})).json()
        found = await records(client)
        assert [one["prompt_tokens"] for one in found] == [5, 3]
        assert len({one["request_id"] for one in found}) == 1
        assert sum(one["completion_tokens"] for one in found) == answer["usage"]["completion_tokens"]
        assert (await client.get(f"/v1/requests/{answer['id']}")).json()["prompt_tokens"] == 3

    in_process(FakeEngine(), call)


def test_a_tenant_sees_its_own_and_an_operator_all(tmp_path: Path) -> None:
    async def call(client: httpx.AsyncClient) -> None:
        ids = {}
        for name in ("ada", "bob"):
            ids[name] = (await client.post(CHAT, json=chat(name), headers=as_(name))).json()["id"]
        for path in ("/v1/requests", "/v1/ledger", f"/v1/requests/{ids['ada']}", "/v1/requests/export"):
            assert (await client.get(path)).status_code == 401
        theirs = await client.get("/v1/requests", headers=as_("bob"))
        assert [one["id"] for one in theirs.json()["data"]] == [ids["bob"]]
        hidden = await client.get(f"/v1/requests/{ids['ada']}", headers=as_("bob"))
        never = await client.get("/v1/requests/chatcmpl-none", headers=as_("bob"))
        assert hidden.status_code == never.status_code == 404
        assert (
            hidden.json()["error"]["message"].replace(ids["ada"], "chatcmpl-none") == never.json()["error"]["message"]
        )
        before = await client.get(f"/v1/requests?before={ids['ada']}", headers=as_("bob"))
        assert (before.status_code, before.json()["error"]["param"]) == (400, "before"), "no place of another's either"
        for path in ("/v1/requests", "/v1/ledger", "/v1/requests/export"):
            refused = await client.get(f"{path}?tenant=ada", headers=as_("bob"))
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
        lines = (await client.get("/v1/requests/export", headers=as_("bob"))).text.splitlines()
        assert [json.loads(line)["tenant"] for line in lines] == ["bob"]
        assert (await client.get("/v1/ledger", headers=as_("bob"))).json()["data"][0]["calls"] == 1
        every = (await client.get("/v1/requests", headers=as_("root"))).json()["data"]
        assert [one["tenant"] for one in every] == ["bob", "ada"]
        ada = (await client.get("/v1/requests?tenant=ada", headers=as_("root"))).json()["data"]
        assert [one["tenant"] for one in ada] == ["ada"]
        assert (await client.get(f"/v1/requests/{ids['ada']}", headers=as_("root"))).status_code == 200

    in_process(FakeEngine(says("hi")), call, keyed(tmp_path))


def test_the_list_is_read_page_by_page() -> None:
    async def call(client: httpx.AsyncClient) -> None:
        for number in range(7):
            headers = {"X-Bosquet-Run": f"run-{number % 2}"}
            await client.post("/v1/completions", json={"prompt": "x" * (number + 1), "max_tokens": 1}, headers=headers)
        seen: list[int] = []
        query: dict[str, Any] = {"limit": 3}
        while True:
            page = (await client.get("/v1/requests", params=query)).json()
            seen += [one["prompt_tokens"] for one in page["data"]]
            if page["next"] is None:
                break
            query["before"] = page["next"]
        assert seen == [7, 6, 5, 4, 3, 2, 1]
        assert [one["prompt_tokens"] for one in await records(client, run="run-0")] == [7, 5, 3, 1]
        assert (await client.get("/v1/requests?limit=7")).json()["next"] is None, "a page that holds the last one"
        exported = (await client.get("/v1/requests/export?limit=2")).text.splitlines()
        assert [json.loads(line)["prompt_tokens"] for line in exported] == [7, 6]

    in_process(FakeEngine(), call)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/requests?limit=0", "limit"),
        ("/v1/requests?limit=1001", "limit"),
        ("/v1/requests?limit=-1", "limit"),
        ("/v1/requests?limit=%D9%A3", "limit"),
        ("/v1/requests?before=x", "before"),
        ("/v1/requests?colour=red", "colour"),
        ("/v1/requests/export?format=csv", "format"),
        ("/v1/ledger?by=tenant", "by"),
        ("/v1/requests?limit=1&limit=2", "limit"),
        ("/v1/ledger?by=run&by=run", "by"),
        ("/v1/ledger?offset=1e3", "offset"),
    ],
)
def test_a_wrong_field_is_named(path: str, field: str) -> None:
    async def call(client: httpx.AsyncClient) -> None:
        response = await client.get(path)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == field
        assert error["message"].startswith((f"{field}: must be ", f"{field}: unknown; there are "))

    in_process(FakeEngine(), call)


def test_a_server_that_keeps_none_says_so() -> None:
    async def call(client: httpx.AsyncClient) -> None:
        assert (await client.post(CHAT, json=chat())).status_code == 200
        response = await client.get("/v1/requests")
        assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported")

    in_process(FakeEngine(says("hi")), call, ServerConfig(trace_mb=0))


def test_an_engine_that_dies_leaves_a_record_of_what_came() -> None:
    engine = FakeEngine(delay=0.01)

    async def call(client: httpx.AsyncClient) -> None:
        asking = asyncio.create_task(client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 500}))
        while engine.numbers.generated_tokens < 3:
            await asyncio.sleep(0.005)
        engine.die()
        assert (await asking).status_code == 503
        (found,) = await records(client)
        assert (found["status"], found["finish"]) == (503, None)
        assert 2 <= found["completion_tokens"] <= engine.numbers.generated_tokens
        assert (await client.get(f"/v1/requests/{found['id']}")).json()["error"] == "engine_died"

    in_process(engine, call)


def test_a_request_whose_client_leaves_is_recorded_with_the_engines_half() -> None:
    engine = FakeEngine(delay=0.02)
    with live(engine) as server:
        with server.connect() as sock:
            sock.sendall(raw_post("/v1/completions", {"prompt": "abc", "max_tokens": 500, "stream": True}))
            wait_for(lambda: engine.numbers.generated_tokens > 3)
        wait_for(lambda: engine.cancelled)
        wait_for(lambda: httpx.get(f"{server.url}/v1/requests").json()["data"])
        (found,) = httpx.get(f"{server.url}/v1/requests").json()["data"]
        assert (found["status"], found["finish"]) == (499, "abort")
        assert 3 < found["completion_tokens"] <= found["tokens"]["sampled"]


@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat(max_tokens=90)), ("/v1/completions", {"prompt": "abc", "max_tokens": 90})]
)
def test_of_a_stream_that_is_cut_the_record_counts_what_was_sent(path: str, body: dict[str, Any], pieces: int) -> None:
    """The client reads a few events and no more, and then leaves: a step's tokens wait to be sent, and are not. They
    were computed all the same, which is another figure."""
    engine = FakeEngine(pieces=[pieces])
    received: list[list[int]] = []

    async def call(client: httpx.AsyncClient) -> None:
        left = asyncio.Event()
        arriving = [{"type": "http.request", "body": json.dumps({**body, **STREAM}).encode(), "more_body": False}]

        async def receive() -> dict[str, Any]:
            if arriving:
                return arriving.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if not message.get("body"):
                return
            if len(received) == 5:
                left.set()
                await asyncio.Event().wait()  # until whoever sends is told that nobody reads
            (choice,) = json.loads(message["body"].removeprefix(b"data: "))["choices"]
            received.append(choice.get("token_ids") or [])

        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
        await client._transport.app({**scope, "raw_path": path.encode()}, receive, send)  # type: ignore[attr-defined]
        (found,) = await records(client)
        assert (found["status"], found["finish"]) == (499, "abort")
        assert found["completion_tokens"] == sum(map(len, received)) > 0
        assert found["tokens"]["sampled"] == engine.numbers.generated_tokens == found["completion_tokens"] + pieces

    in_process(engine, call)


def test_a_request_that_is_refused_leaves_none() -> None:
    engine = FakeEngine(capacity=0)

    async def call(client: httpx.AsyncClient) -> None:
        assert (await client.post(CHAT, json=chat())).status_code == 429
        assert await records(client) == []
        assert len(client._transport.app.state.services.book) == 0  # type: ignore[attr-defined]

    in_process(engine, call)
