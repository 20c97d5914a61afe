"""`/v1/chat/completions`: the next message of a conversation. Knows nothing of how tokens are made."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from msgspec import UNSET
from starlette.responses import Response

from ...errors import InvalidParameter
from ...types import FinishReason, TokenLogprob
from ...types import Request as EngineRequest
from .auth import identified
from .body import origin_of, read_body
from .disconnect import answer_unless_gone
from .docs import documented
from .errors import json_response
from .generation import Delta, FieldNames, Generation
from .keys import Caller
from .logprobs import chat_logprobs
from .prompts import check_model, render, room_after, turn
from .record import record_of
from .sampling import (
    Constraint,
    Wanted,
    check_priority,
    check_queue,
    check_stream_options,
    constraint,
    sampling_params,
)
from .schemas import ChatRequest
from .services import Services, Text
from .streaming import EventStream, event
from .wire import ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatMessage


def chat_router(services: Services) -> APIRouter:
    """The routes of this file."""
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/chat/completions", **documented(ChatRequest))
    async def chat_completions(request: Request, caller: Annotated[Caller, Depends(identified)]) -> Response:
        """The next message of a conversation, whole or as server-sent events."""
        body = await read_body(request, ChatRequest, services.config.max_body_bytes)
        return await answer_unless_gone(request, _answer(services, request, caller, body))

    return router


async def _answer(services: Services, request: Request, caller: Caller, body: ChatRequest) -> Response:
    text = services.text.get()
    model = check_model(services, text, body.model)
    found = constraint(body)
    engine_request = await _engine_request(services, text, request, caller, body, found)
    record = record_of(request.scope)
    fields = FieldNames("messages", None if found is None else found.field)
    generation = Generation(services, text, [engine_request], fields, record)
    talk = _Talk(body, text, engine_request, model)
    try:
        await generation.start()
        if body.stream:
            return EventStream(talk.events(generation), generation)
        async with generation.deadline():
            answer = await talk.whole(generation)
        record.count(generation.usage)
        return json_response(answer)
    except BaseException:
        await generation.close()
        raise


async def _engine_request(
    services: Services, text: Text, request: Request, caller: Caller, body: ChatRequest, found: Constraint | None
) -> EngineRequest:
    check_stream_options(body)
    check_queue(1, body.n or 1, text.info)
    wanted = Wanted(_max_tokens(body), _logprobs(body))
    how = turn(body.messages, body.add_generation_prompt, body.continue_final_message)
    _, ids = await render(text, body.messages, how, body.chat_template_kwargs)
    room = room_after(text, len(ids), "messages")
    if not ids:
        raise InvalidParameter("messages: the template made an empty prompt of them", "messages")
    return EngineRequest(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        ids=ids,
        sampling=sampling_params(body, wanted, room, text.info),
        grammar=None if found is None else found.spec,
        origin=origin_of(request, caller),
        priority=check_priority(body, caller),
        timeout_s=body.timeout or services.config.request_timeout_s,
    )


def _max_tokens(body: ChatRequest) -> int | None:
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise InvalidParameter("max_completion_tokens: contradicts max_tokens", "max_completion_tokens")
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if limit == 0:
        raise InvalidParameter(f"{name}: must be at least 1", name)
    return limit


def _logprobs(body: ChatRequest) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidParameter("top_logprobs: only with logprobs", "top_logprobs")
    return None


class _Talk:
    """Writes one answer, in either manner."""

    def __init__(self, body: ChatRequest, text: Text, request: EngineRequest, model: str) -> None:
        self._tokenizer = text.tokenizer
        self._request = request
        self._model = model
        self._created = int(time.time())
        self._ids = bool(body.return_token_ids)
        options = body.stream_options
        self._usage_last = bool(options and options.include_usage)
        self._usage_always = bool(options and options.continuous_usage_stats)

    async def whole(self, generation: Generation) -> ChatCompletion:
        """The deltas folded into one answer."""
        choices = [_Folded() for _ in range(self._request.sampling.n)]
        async with aclosing(generation.deltas()) as flow:
            async for deltas in flow:
                for delta in deltas:
                    choices[delta.choice].add(delta)
        return ChatCompletion(
            id=self._request.id,
            created=self._created,
            model=self._model,
            choices=[self._choice(index, choice) for index, choice in enumerate(choices)],
            usage=generation.usage,
            prompt_token_ids=self._request.ids if self._ids else UNSET,
        )

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The deltas as chunks: the role of every choice first, in order; the usage, if wanted, last."""
        for index in range(self._request.sampling.n):
            chunk = self._chunk(generation, [ChatChunkChoice(index, ChatDelta(role="assistant", content=""))])
            if self._ids and index == 0:
                chunk.prompt_token_ids = self._request.ids
            yield event(chunk)
        async with aclosing(generation.deltas()) as flow:
            async for deltas in flow:
                for delta in deltas:
                    if delta.text or delta.finish or delta.logprobs or (self._ids and delta.tokens):
                        yield event(self._chunk(generation, [self._piece(delta)]))
        if self._usage_last:
            chunk = self._chunk(generation, [])
            chunk.usage = generation.usage
            yield event(chunk)

    def _chunk(self, generation: Generation, choices: list[ChatChunkChoice]) -> ChatChunk:
        chunk = ChatChunk(id=self._request.id, created=self._created, model=self._model, choices=choices)
        if self._usage_always:
            chunk.usage = generation.usage
        elif self._usage_last:
            chunk.usage = None
        return chunk

    def _piece(self, delta: Delta) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=delta.choice,
            delta=ChatDelta(content=delta.text if delta.text else UNSET),
            logprobs=None if not delta.logprobs else chat_logprobs(delta.logprobs, self._tokenizer),
            finish_reason=delta.finish,
            stop_reason=UNSET if delta.stop_reason is None else delta.stop_reason,
            token_ids=delta.tokens if self._ids else UNSET,
        )

    def _choice(self, index: int, folded: _Folded) -> ChatChoice:
        assert folded.finish is not None, "the engine ended a stream before its choices"
        return ChatChoice(
            index=index,
            message=ChatMessage(content="".join(folded.text)),
            finish_reason=folded.finish,
            logprobs=None
            if self._request.sampling.logprobs is None
            else chat_logprobs(folded.logprobs, self._tokenizer),
            stop_reason=UNSET if folded.stop_reason is None else folded.stop_reason,
            token_ids=folded.tokens if self._ids else UNSET,
        )


class _Folded:
    """What the deltas of one choice add up to."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish: FinishReason | None = None
        self.stop_reason: str | int | None = None

    def add(self, delta: Delta) -> None:
        self.text.append(delta.text)
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs or ()
        self.finish = delta.finish
        self.stop_reason = delta.stop_reason
