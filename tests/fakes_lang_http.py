"""Servers for tests of the HTTP backends, answered in process from the fake token backend.

`bosquet_server` has the routes of a Bosquet server that the language uses, and checks every body against the server's
own schemas. `openai_server` has chat completions and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
from fakes_lang import END, FakeBackend, decode, encode_segments, score, told

from bosquet.errors import RequestRejected
from bosquet.runtime.server.schemas import CompletionRequest, DetokenizeRequest, TokenizeRequest
from bosquet.types import Call, Chunk, GrammarSpec, Origin, SamplingParams, Segment, ToolSpec, ToolUse

Json = dict[str, Any]
Route = Callable[[Json, httpx.Request], Any]


class Events(httpx.AsyncByteStream):
    """An answer in server-sent events; knows whether it was read to its end."""

    def __init__(self, events: AsyncIterator[Json]) -> None:
        self._events = events
        self.whole = False
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for event in self._events:
            yield b"data: " + json.dumps(event).encode() + b"\n\n"
        self.whole = True
        yield b"data: [DONE]\n\n"

    async def aclose(self) -> None:
        self.closed = True
        await self._events.aclose()  # type: ignore[attr-defined]


class FakeServer(httpx.MockTransport):
    """Routes by path; `requests` are the (path, body, headers) that came."""

    def __init__(self, backend: FakeBackend, routes: dict[str, Route]) -> None:
        super().__init__(self._answer)
        self.backend = backend
        self.routes = routes
        self.requests: list[tuple[str, Json, httpx.Headers]] = []
        self.streams: list[Events] = []

    def bodies(self, path: str) -> list[Json]:
        return [body for asked, body, _ in self.requests if asked == path]

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            self.backend.ended.append(request.url.path.rpartition("/")[2])
            return httpx.Response(204)
        body = json.loads(await request.aread())
        self.requests.append((request.url.path, body, request.headers))
        answer = self.routes[request.url.path](body, request)
        if isinstance(answer, httpx.Response):
            return answer
        if hasattr(answer, "__aiter__"):
            self.streams.append(Events(answer))
            return httpx.Response(200, stream=self.streams[-1])
        return httpx.Response(200, json=answer)


def refusal(status: int, code: str | None, message: str, param: str | None = None, **headers: str) -> httpx.Response:
    error = {"message": message, "type": "some_error", "param": param, "code": code}
    return httpx.Response(status, json={"error": error}, headers=headers)


def usage(prompt: int, completion: int, cached: int) -> Json:
    details = {"cached_tokens": cached}
    return {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}


def sampling(body: Json) -> SamplingParams:
    stop = body.get("stop") or []
    return SamplingParams(
        max_tokens=body["max_tokens"], temperature=body["temperature"], stop=tuple(text.encode() for text in stop)
    )


def grammar(body: Json) -> GrammarSpec | None:
    form = body.get("response_format")
    if form is not None:
        parts = {"json_schema": form.get("json_schema", {}).get("schema"), "structural_tag": form.get("format")}
        return GrammarSpec(form["type"], json.dumps(parts[form["type"]]) if form["type"] in parts else "")
    if "choice" in body:
        return GrammarSpec("choice", json.dumps(body["choice"]))
    if "lark" in body:
        return GrammarSpec("lark", body["lark"])
    return GrammarSpec("regex", body["regex"]) if "regex" in body else None


def tools(body: Json) -> ToolUse | None:
    """What the request says of tools."""
    if "tools" not in body:
        return None
    functions = [tool["function"] for tool in body["tools"]]
    specs = [
        ToolSpec(f["name"], f["description"], json.dumps(f["parameters"]), f.get("strict", False)) for f in functions
    ]
    choice = body.get("tool_choice", "auto")
    named = choice if isinstance(choice, str) else choice["function"]["name"]
    return ToolUse(tuple(specs), named, body.get("parallel_tool_calls", True))


def extras(chunk: Chunk) -> Json:
    """What a Bosquet server says beyond the protocol."""
    listed = [{"path": r.path, "keyword": r.keyword, "reason": r.reason} for r in chunk.relaxed]
    return {"x_bosquet": {"relaxed": listed}} if listed else {}


def bosquet_server(backend: FakeBackend) -> FakeServer:
    def tokenize(body: Json, request: httpx.Request) -> Any:
        TokenizeRequest.model_validate(body)
        segments = [Segment(*pair) for pair in body.get("segments", ())]
        if "messages" in body:
            try:
                use = tools(body)
                segments = told(use.tools if use else ()) + backend.template(
                    body["messages"], body["add_generation_prompt"]
                )
            except RequestRejected as error:
                return refusal(400, error.code, str(error), "messages")
            backend.rendered.append(body["messages"])
        ids = encode_segments(segments)
        if body.get("add_special_tokens") and backend.bos:
            ids = encode_segments([Segment("<s>", True)]) + ids
        return {"tokens": ids, "count": len(ids), "segments": segments}

    async def generate(body: Json, request: httpx.Request) -> AsyncIterator[Json]:
        names = ("program", "run", "step", "branch")
        origin = Origin(**{name: request.headers.get(f"x-bosquet-{name}", "") for name in names})
        prompt = tuple(body["prompt"])
        call = Call(sampling=sampling(body), origin=origin, grammar=grammar(body), ids=prompt, tools=tools(body))
        counts = usage(0, 0, 0)
        async for chunk in backend.generate(call):
            entry: Json = {"index": 0, "text": chunk.text, "token_ids": list(chunk.ids), "finish_reason": chunk.finish}
            if body.get("logprobs") is not None:
                listed = [logprob.logprob for logprob in chunk.logprobs or () if logprob.token != END]
                entry["logprobs"] = {"token_logprobs": listed}
            if chunk.stop is not None:
                entry["stop_reason"] = chunk.stop
            if chunk.content is not None:
                entry["content"] = chunk.content
            if chunk.calls:
                entry["tool_calls"] = [
                    {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                    for c in chunk.calls
                ]
            if chunk.finish:
                counts = usage(len(call.ids), chunk.completion_tokens or 0, chunk.cached_tokens or 0)
            yield {"choices": [entry], **extras(chunk)}
        yield {"choices": [], "usage": counts}

    def completions(body: Json, request: httpx.Request) -> Any:
        CompletionRequest.model_validate(body)
        if body.get("stream", False):
            return generate(body, request)
        first = body["prompt_logprobs_from"]
        scored = [score(ids[:first], ids[first:]) for ids in body["prompt"]]
        backend.scored.append((tuple(body["prompt"][0][:first]), [ids[first:] for ids in body["prompt"]]))
        entries = [{"index": i, "text": "", "logprobs": {"token_logprobs": row}} for i, row in enumerate(scored)]
        return {"choices": entries[::-1], "usage": usage(1, 0, 0)}

    def detokenize(body: Json, request: httpx.Request) -> Any:
        DetokenizeRequest.model_validate(body)
        return {"prompt": decode(body["tokens"])}

    routes: dict[str, Route] = {"/tokenize": tokenize, "/detokenize": detokenize, "/v1/completions": completions}
    return FakeServer(backend, routes)


def call_deltas(chunk: Chunk) -> list[Json]:
    """A chunk's calls as a stream has them: id and name once, arguments in pieces."""
    deltas: list[Json] = []
    for index, call in enumerate(chunk.calls):
        named = {"name": call.name, "arguments": ""}
        deltas.append({"index": index, "id": call.id, "type": "function", "function": named})
        size = 3
        cuts = range(0, len(call.arguments), size)
        deltas += [{"index": index, "function": {"arguments": call.arguments[at : at + size]}} for at in cuts]
    return deltas


def openai_server(backend: FakeBackend, prefix: str = "/v1") -> FakeServer:
    async def generate(body: Json) -> AsyncIterator[Json]:
        shown = [{**message, "content": message["content"] or ""} for message in body["messages"]]
        ids = encode_segments(backend.template(shown, body.get("add_generation_prompt", True)))
        origin = Origin(step="chat")
        use = tools(body)
        call = Call(sampling=sampling(body), origin=origin, grammar=grammar(body), ids=tuple(ids), tools=use)
        yield {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
        counts = usage(0, 0, 0)
        async for chunk in backend.generate(call):
            content = chunk.text if chunk.content is None else chunk.content
            for delta in call_deltas(chunk):
                yield {"choices": [{"index": 0, "delta": {"tool_calls": [delta]}, "finish_reason": None}]}
            finish = "tool_calls" if chunk.calls and chunk.finish == "stop" else chunk.finish
            yield {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}], **extras(chunk)}
            if chunk.finish:
                counts = usage(len(ids), chunk.completion_tokens or 0, chunk.cached_tokens or 0)
        yield {"choices": [], "usage": counts}

    return FakeServer(backend, {f"{prefix}/chat/completions": lambda body, request: generate(body)})
