"""A Bosquet server as a backend: token ids over `/v1/completions`.

Knows nothing of engines. Ids travel as they are, so nothing is tokenized twice and no prefix is lost to re-rendering.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import httpx

from ...errors import Unavailable
from ...types import Ahead, Call, Chunk, Message, Origin, Segment, TokenLogprob, ToolCall, ToolSpec
from ..backend import TOKEN_CAPABILITIES
from .client import (
    Client,
    Counts,
    HttpBackend,
    Json,
    checked_url,
    described_tools,
    grammar_fields,
    relaxed_keywords,
    sampling_fields,
    speculation_field,
    tool_fields,
    usage_counts,
)

_MAX_HEADER = 200
_DAY = 86_400.0  # no pause is told as longer
_PRINTABLE = "".join(chr(code) for code in range(32, 127) if chr(code) != "%")


class BosquetServer(HttpBackend):
    """`BosquetServer("http://127.0.0.1:8000")`. `model` is needed only where a server has several."""

    capabilities = TOKEN_CAPABILITIES - {"top_logprobs"}  # the protocol gives their texts, not their ids

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        model: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(Client(checked_url(url).rstrip("/").removesuffix("/v1"), api_key, transport))
        self._model: Json = {} if model is None else {"model": model}
        self._start: list[int] | None = None

    async def encode(self, segments: Sequence[Segment]) -> list[int]:
        body = {"segments": [[text, control] for text, control in segments], "add_special_tokens": False}
        return list(_field(await self._post("/tokenize", body), "tokens"))

    async def decode(self, ids: Sequence[int]) -> str:
        return str(_field(await self._post("/detokenize", {"tokens": list(ids)}), "prompt"))

    async def text_start(self) -> list[int]:
        if self._start is None:
            body = {"prompt": "", "add_special_tokens": True}
            self._start = _field(await self._post("/tokenize", body), "tokens")
        return self._start

    async def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool, tools: Sequence[ToolSpec] = ()
    ) -> list[Segment]:
        body: Json = {
            "messages": list(messages), "add_generation_prompt": add_generation_prompt, "return_segments": True,
        }  # fmt: skip
        if tools:
            body["tools"] = described_tools(tools)
        return [Segment(*pair) for pair in _field(await self._post("/tokenize", body), "segments")]

    async def generate(self, call: Call) -> AsyncGenerator[Chunk, None]:
        body: Json = {
            "prompt": list(call.ids),
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **self._model,
            **sampling_fields(call.sampling),
            **grammar_fields(call.grammar),
            **tool_fields(call.tools),
            **speculation_field(call.speculation),
        }
        if call.reasoning:
            body["reasoning"] = True
        if call.sampling.logprobs is not None:
            body["logprobs"] = call.sampling.logprobs
        async with aclosing(self._client.events("/v1/completions", body, _headers(call.origin, call.ahead))) as events:
            async for event in events:
                choices = event.get("choices") or [{}]
                yield _chunk(choices[0], usage_counts(event))._replace(relaxed=relaxed_keywords(event))

    async def end(self, run: str) -> None:
        await self._client.delete(f"/v1/runs/{quote(_escaped(run), '')}")

    async def score(self, ids: Sequence[int], choices: Sequence[Sequence[int]], origin: Origin) -> list[list[float]]:
        body: Json = {
            "prompt": [[*ids, *choice] for choice in choices],
            "echo": True,
            "max_tokens": 0,
            "logprobs": 0,
            "prompt_logprobs_from": len(ids),
            **self._model,
        }
        answer = await self._client.post("/v1/completions", body, _headers(origin))
        scored = {entry["index"]: entry["logprobs"]["token_logprobs"] for entry in _field(answer, "choices")}
        for i, choice in enumerate(choices):
            if len(scored.get(i, ())) != len(choice):
                raise Unavailable(f"{self!r} scored {len(scored.get(i, ()))} tokens of a choice that has {len(choice)}")
        return [scored[i] for i in range(len(choices))]

    async def _post(self, path: str, body: Json) -> Json:
        return await self._client.post(path, {**body, **self._model})


def _chunk(choice: Json, counts: Counts) -> Chunk:
    ids = choice.get("token_ids") or ()
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    return Chunk(
        text=choice.get("text") or "",
        ids=ids,
        finish=choice.get("finish_reason"),
        stop=choice.get("stop_reason"),
        prompt_tokens=counts.prompt,
        completion_tokens=counts.completion,
        cached_tokens=counts.cached,
        # An end token has an id but, as it is no part of the text, no log-probability.
        logprobs=None if logprobs is None else [TokenLogprob(*pair) for pair in zip(ids, logprobs, strict=False)],
        content=choice.get("content"),
        reasoning=choice.get("reasoning") or "",
        calls=[
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in choice.get("tool_calls") or ()
        ],
    )


def _headers(origin: Origin, ahead: Ahead | None = None) -> dict[str, str]:
    """Where in a program the request comes from, and what is to come after it. Names may be in any script, headers are
    ASCII: the rest is escaped."""
    parts = {"Program": origin.program, "Run": origin.run, "Step": origin.step, "Branch": origin.branch}
    headers = {f"X-Bosquet-{name}": _escaped(part) for name, part in parts.items() if part}
    known = [] if ahead is None or ahead.returns is None else [f"returns={ahead.returns:d}"]
    if ahead is not None:
        known += [f"pause={min(ahead.pause_s, _DAY):.3f}"] if ahead.pause_s > 0 else []
        known += [f"{name}={value}" for name in ("steps", "tokens") if (value := getattr(ahead, name)) > 0]
    if known:
        headers["X-Bosquet-Ahead"] = "; ".join(known)
    return headers


def _escaped(part: str) -> str:
    return quote(part, _PRINTABLE)[:_MAX_HEADER]


def _field(answer: Json, name: str) -> Any:
    if name not in answer:
        raise Unavailable(f"the answer has no {name!r}: is this a Bosquet server?")
    return answer[name]
