"""A server under test: what it is, how the workloads' requests look to it, and what it counts."""

from __future__ import annotations

from typing import Any

import msgspec

from ...errors import ConfigError, Unavailable
from ...types import Message
from .http_client import HttpClient, Reply
from .workloads import Workload

ENGINE_SECONDS = "bosquet_engine_seconds_total"
STAGE_SECONDS = "bosquet_forward_seconds_total"
STAGE = "stage: "
"""What the names of the counters of `STAGE_SECONDS` begin with here."""

STEPS = "bosquet_steps_total"
COMPUTED = "bosquet_computed_tokens_total"

Counters = dict[str, float]


class Target:
    """`name` is empty until `look` has asked, unless it was given."""

    def __init__(self, url: str, name: str = "") -> None:
        self.client = HttpClient(url)
        self.name = name
        self.url = self.client.url
        self.model = ""
        self.version: str | None = None

    async def look(self) -> None:
        """Learn the model's name and the server's version. Raises `ConfigError` when there is no such server."""
        try:
            reply = await self.client.get("/v1/models")
        except Unavailable as error:
            raise ConfigError(f"cannot reach {error}") from None
        try:
            if reply.status != 200:
                raise ValueError(f"status {reply.status}")
            card = msgspec.json.decode(reply.body)["data"][0]
            self.model = card["id"]
        except (msgspec.MsgspecError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{self.url}/v1/models does not say which model there is: {error}") from None
        self.name = self.name or str(card.get("owned_by") or "server")
        self.version = await self._version()

    async def _version(self) -> str | None:
        reply = await self.client.get("/version")
        try:
            return str(msgspec.json.decode(reply.body)["version"]) if reply.status == 200 else None
        except (msgspec.MsgspecError, LookupError, TypeError):
            return None

    async def ask(self, workload: Workload, said: str | list[Message], streamed: bool) -> Reply:
        """Send one request. Raises `Unavailable`."""
        path, body = request(workload, self.model, said, streamed)
        return await self.client.post(path, msgspec.json.encode(body))

    async def counters(self) -> Counters | None:
        """The engine's counters of time and steps; None where the server has none."""
        try:
            reply = await self.client.get("/metrics")
        except Unavailable:
            return None
        return step_counters(reply.body.decode(errors="replace")) if reply.status == 200 else None


def request(workload: Workload, model: str, said: str | list[Message], streamed: bool) -> tuple[str, dict[str, Any]]:
    """Path and body of a request. A string goes to /v1/completions, as it is; messages go to /v1/chat/completions."""
    body: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": workload.max_tokens, "stream": streamed}
    if streamed:
        body["stream_options"] = {"include_usage": True}
    if workload.schema is None:
        body["ignore_eos"] = True
    else:
        named = {"name": "record", "strict": True, "schema": workload.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    if isinstance(said, str):
        return "/v1/completions", {**body, "prompt": said}
    return "/v1/chat/completions", {**body, "messages": said}


def step_counters(text: str) -> Counters | None:
    """Steps, tokens and the seconds of each part, out of a page of metrics; None if it is not an engine of ours."""
    found: Counters = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name == STEPS:
            found["steps"] = float(value)
        elif name == COMPUTED:
            found["tokens"] = float(value)
        elif name.startswith(ENGINE_SECONDS + "{"):
            found[name.split('"')[1]] = float(value)
        elif name.startswith(STAGE_SECONDS + "{"):
            found[STAGE + name.split('"')[1]] = float(value)
    return found if {"steps", "step", "forward", "schedule", "sample", "mask"} <= found.keys() else None
