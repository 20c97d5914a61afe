"""A server under test: what it is, how the workloads' requests look to it, and what it counts."""

from __future__ import annotations

import contextlib
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
    """A server that runs. `name` is empty until `look` has asked, unless it was given.

    `constrains`: it can hold answers to a schema. `settings` maps what is known of its settings to the workloads that
    ran with them.
    """

    constrains = True

    def __init__(self, url: str, name: str = "", setting: str = "as it runs") -> None:
        self.client = HttpClient(url)
        self.name = name
        self.url = self.client.url
        self.model = ""
        self.version: str | None = None
        self.settings: dict[str, list[str]] = {}
        self._setting = setting

    def why_not(self, workload: Workload) -> str | None:
        """Why it cannot do a workload; None if it can."""
        if workload.schema is not None and workload.free_tokens is None and not self.constrains:
            return "not measured: it cannot hold answers to a schema"
        return None

    async def prepare(self, workload: Workload) -> None:
        """Be ready for a workload. Raises `ConfigError` when there is no such server."""
        self.uses(self._setting, workload)
        if not self.model:
            await self.look()

    def uses(self, setting: str, workload: Workload) -> None:
        """Keep with which setting a workload is run."""
        self.settings.setdefault(setting, []).append(workload.name)

    def awake(self) -> contextlib.AbstractContextManager[None]:
        """Requests are sent inside it only: a server that we started may rest outside."""
        return contextlib.nullcontext()

    def end(self) -> None:
        """End the server if it was started for this measurement."""

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
        for path, name in (("/version", "version"), ("/props", "build_info")):  # the second is llama.cpp's
            reply = await self.client.get(path)
            with contextlib.suppress(msgspec.MsgspecError, LookupError, TypeError):
                if reply.status == 200:
                    return str(msgspec.json.decode(reply.body)[name])
        return None

    def tokens(self, workload: Workload) -> int:
        """How many tokens an answer is asked for."""
        return workload.max_tokens if self.constrains else workload.free_tokens or workload.max_tokens

    async def ask(self, workload: Workload, said: str | list[Message], streamed: bool, tokens: int) -> Reply:
        """Send one request. Raises `Unavailable`."""
        schema = workload.schema if self.constrains else None
        path, body = request(self.model, said, tokens, schema, streamed)
        return await self.client.post(path, msgspec.json.encode(body))

    async def counters(self) -> Counters | None:
        """The engine's counters of time and steps; None where the server has none."""
        try:
            reply = await self.client.get("/metrics")
        except Unavailable:
            return None
        return step_counters(reply.body.decode(errors="replace")) if reply.status == 200 else None


def request(
    model: str, said: str | list[Message], tokens: int, schema: dict[str, Any] | None, streamed: bool
) -> tuple[str, dict[str, Any]]:
    """Path and body of a request. A string goes to /v1/completions, as it is; messages go to /v1/chat/completions.
    Without a schema the answer has exactly so many tokens, with one at most."""
    body: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": tokens, "stream": streamed}
    if streamed:
        body["stream_options"] = {"include_usage": True}
    if schema is None:
        body["ignore_eos"] = True
    else:
        named = {"name": "answer", "strict": True, "schema": schema}
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
