"""One HTTP connection pool, and what the answers of OpenAI-shaped servers have in common.

Knows nothing of prompts. Lives on the language's event loop; made on the first request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx
import msgspec

from ...errors import BosquetError, ConfigError, EngineDied, NotAuthenticated, Overloaded, Unavailable, rejection
from ...types import GrammarSpec, Relaxed, SamplingParams, ToolCall, ToolSpec, ToolUse
from ..arguments import wrong_type
from ..loop import close_at_exit, hop, submit

Json = dict[str, Any]
_CONNECT_S = 10.0  # there is no read timeout: a call may wait long in a queue, and `gen(timeout=...)` bounds it


class Client:
    """Posts JSON. `transport` stands in for the network in tests."""

    def __init__(self, url: str, api_key: str | None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.url = checked_url(url).rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._transport = transport
        self._http: httpx.AsyncClient | None = None

    async def post(self, path: str, body: Json, headers: Mapping[str, str] | None = None) -> Json:
        """The answer's JSON. Raises what the server's error stands for, `Unavailable` if there is no answer."""
        async with self._answer("POST", path, body, headers) as response:
            return _decoded(await response.aread())

    async def delete(self, path: str) -> None:
        """Raises as `post`."""
        async with self._answer("DELETE", path, None, None):
            pass

    async def events(
        self, path: str, body: Json, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Json, None]:
        """The server-sent events of one answer, up to `[DONE]`. Raises as `post`; closing it drops the connection."""
        async with self._answer("POST", path, body, headers) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data:"):
                    continue
                data = line[5:].strip()
                if data == "[DONE]":
                    return
                event = _decoded(data.encode())
                if "error" in event:
                    raise _error(event["error"], response)
                yield event
        raise Unavailable(f"{self.url} ended the stream before its answer was complete")

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Json | None, headers: Mapping[str, str] | None
    ) -> AsyncIterator[httpx.Response]:
        if self._http is None:
            self._http = self._connect()
        content = None if body is None else msgspec.json.encode(body)
        sent = {"Content-Type": "application/json", **self._headers, **(headers or {})}
        try:
            async with self._http.stream(method, self.url + path, content=content, headers=sent) as response:
                if response.status_code >= 400:
                    raise _error(_error_object(await response.aread()), response)
                yield response
        except httpx.HTTPError as error:
            raise Unavailable(f"{self.url}: {error or type(error).__name__}") from error

    def _connect(self) -> httpx.AsyncClient:
        close_at_exit(self)
        return httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            transport=self._transport,
        )

    async def aclose(self) -> None:
        """Close the connections. A later request opens new ones."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()


class HttpBackend:
    """A backend with a client: closing, and `with`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def close(self) -> None:
        """Close the connections."""
        submit(self._client.aclose()).result()

    async def aclose(self) -> None:
        """The same, awaited."""
        await hop(self._client.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.url!r})"


def checked_url(url: str) -> str:
    """Raises `ConfigError` for what is no address of a server, and says what it may have meant."""
    if not isinstance(url, str):
        raise wrong_type("url", "a string such as http://127.0.0.1:8000", url)
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ConfigError(f"url: {url!r} has no scheme; write {'http://' + url.lstrip('/')!r}")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"url: {url!r} is no address: {error}") from None
    if scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"url: {url!r} must begin with http:// or https:// and a host")
    return url


def sampling_fields(params: SamplingParams) -> Json:
    """The request fields that say what `params` says; what is as usual is left out."""
    fields: Json = {"max_tokens": params.max_tokens, "temperature": params.temperature}
    usual = SamplingParams()
    for name in (
        "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "min_tokens",
        "ignore_eos",
    ):  # fmt: skip
        if getattr(params, name) != getattr(usual, name):
            fields[name] = getattr(params, name)
    if params.stop:
        fields["stop"] = [stop.decode() for stop in params.stop]
    if params.stop_token_ids:
        fields["stop_token_ids"] = list(params.stop_token_ids)
    if params.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    return fields


def speculation_field(sources: Sequence[str] | None) -> Json:
    """The request field that says where drafts may come from."""
    return {} if sources is None else {"speculation": list(sources) or "off"}


def grammar_fields(grammar: GrammarSpec | None) -> Json:
    """The request field that holds the output to `grammar`."""
    if grammar is None:
        return {}
    if grammar.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if grammar.kind == "json_schema":
        described = {"name": "output", "schema": msgspec.json.decode(grammar.value), "strict": grammar.strict}
        return {"response_format": {"type": "json_schema", "json_schema": described}}
    if grammar.kind == "choice":
        return {"choice": msgspec.json.decode(grammar.value)}
    if grammar.kind == "structural_tag":
        described = {"type": "structural_tag", "format": msgspec.json.decode(grammar.value), "strict": grammar.strict}
        return {"response_format": described}
    return {"grammar" if grammar.kind == "ebnf" else grammar.kind: grammar.value}


def tool_fields(use: ToolUse | None) -> Json:
    """The request fields that say what may be called, as the OpenAI protocol has them."""
    if use is None:
        return {}
    named: Json = {"type": "function", "function": {"name": use.choice}}
    fields: Json = {
        "tools": described_tools(use.tools),
        "tool_choice": use.choice if use.choice in ("auto", "required") else named,
    }
    return fields if use.parallel else {**fields, "parallel_tool_calls": False}


def described_tools(tools: Sequence[ToolSpec]) -> list[Json]:
    """Tools as the protocol has them."""
    described = []
    for tool in tools:
        function: Json = {
            "name": tool.name, "description": tool.description, "parameters": msgspec.json.decode(tool.parameters),
        }  # fmt: skip
        described.append({"type": "function", "function": {**function, **({"strict": True} if tool.strict else {})}})
    return described


class CallDeltas:
    """Calls that come in pieces: the id and the name once, the arguments bit by bit."""

    def __init__(self) -> None:
        self._calls: dict[int, dict[str, str]] = {}

    def add(self, deltas: Sequence[Json]) -> None:
        for delta in deltas:
            # Some servers leave the index out and send each call whole.
            call = self._calls.setdefault(delta.get("index", len(self._calls)), {"id": "", "name": "", "arguments": ""})
            function = delta.get("function") or {}
            call["id"] = call["id"] or delta.get("id") or ""
            call["name"] = call["name"] or function.get("name") or ""
            call["arguments"] += function.get("arguments") or ""

    def calls(self) -> list[ToolCall]:
        """Those there are, in the order of their indices. What came without an id gets one."""
        found = []
        for index, call in sorted(self._calls.items()):
            found.append(ToolCall(call["id"] or f"call_{index}", call["name"], call["arguments"]))
        return found


def relaxed_keywords(event: Json) -> list[Relaxed]:
    """What a Bosquet server says that the output was not held to."""
    found = (event.get("x_bosquet") or {}).get("relaxed") or ()
    return [Relaxed(entry["path"], entry["keyword"], entry["reason"]) for entry in found]


class Counts(NamedTuple):
    """Tokens of one request; None where the server does not tell."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None


def usage_counts(event: Json) -> Counts:
    """What the usage object of an event says, if there is one."""
    usage = event.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return Counts(usage.get("prompt_tokens"), usage.get("completion_tokens"), details.get("cached_tokens"))


def _decoded(raw: bytes) -> Json:
    try:
        answer = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the answer is not JSON: {raw[:200]!r}") from error
    if not isinstance(answer, dict):
        raise Unavailable(f"the answer is not a JSON object: {raw[:200]!r}")
    return answer


def _error_object(raw: bytes) -> Any:
    try:
        answer = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return raw.decode(errors="replace")[:500]  # not every server, or proxy before it, speaks JSON when it fails
    return answer.get("error", answer) if isinstance(answer, dict) else answer


def _error(described: Any, response: httpx.Response) -> BosquetError:
    """The exception for an error object of the OpenAI shape, or whatever else came with a bad status."""
    fields = described if isinstance(described, dict) else {"message": str(described)}
    message = str(fields.get("message") or f"HTTP {response.status_code}")
    code, status = str(fields.get("code") or ""), response.status_code
    after = response.headers.get("Retry-After", "")
    wait = float(after) if after.replace(".", "", 1).isdigit() else None
    if code == Overloaded.code or status == 429:
        return Overloaded(message) if wait is None else Overloaded(message, wait)
    if code == EngineDied.code:
        return EngineDied(message)
    error = rejection(code, message, fields.get("param"))
    if status in (401, 403) and error.code != code:
        return NotAuthenticated(message)
    if status >= 500 and error.code != code:
        return Unavailable(message) if wait is None else Unavailable(message, wait)
    return error
