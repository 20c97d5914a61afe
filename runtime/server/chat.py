"""`/v1/chat/completions`: the next message of a conversation. Knows nothing of how tokens are made."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from ...errors import InvalidParameter
from ...types import Request as EngineRequest
from .account import Rendered
from .answer import respond
from .auth import identified
from .body import ahead_of, origin_of, read_body
from .chat_writer import ChatWriter
from .constraints import Constraint, constraint
from .disconnect import answer_unless_gone
from .docs import documented
from .generation import FieldNames, Generation
from .inspection import inspection
from .keys import Caller
from .prompts import Turn, check_model, plain_messages, render, room_after, turn
from .reading import Reader
from .recall import Asked, Recall
from .record import record_of
from .sampling import Wanted, check_priority, check_queue, check_stream_options, draft_sources, sampling_params
from .schemas import ChatRequest
from .scribe import Scribe
from .services import Services
from .tool_use import ToolUse, thinking_of, tool_use


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
    answer = constraint(body)
    tools = tool_use(body, answer)
    check_stream_options(body)
    check_queue(1, body.n or 1, text.info)
    wanted = Wanted(_max_tokens(body), _logprobs(body))
    how = turn(body.messages, body.add_generation_prompt, body.continue_final_message)
    origin = origin_of(request, caller)
    recall = Recall(services.transcripts, text, _asked(body, origin.tenant, how, tools, answer))
    segments, ids = await render(text, body.messages, how, body.chat_template_kwargs, tools, recall)
    room = room_after(text, len(ids), "messages")
    if not ids:
        raise InvalidParameter("messages: the template made an empty prompt of them", "messages")
    thinking = thinking_of(text, segments, continued=how.continue_final_message)
    held = tools.held(text.tool_format, answer, thinking, text.tokenizer.id_of_special)
    sampling = sampling_params(body, wanted, room, text.info)
    messages = plain_messages(body.messages)
    joined = services.conversations.join_chat(origin, body, messages, go_on=how.continue_final_message)
    engine_request = EngineRequest(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        ids=ids,
        sampling=held.for_engine(sampling),
        grammar=held.spec,
        origin=joined.origin,
        priority=check_priority(body, caller),
        speculation=draft_sources(body),
        timeout_s=body.timeout or services.config.request_timeout_s,
        ahead=ahead_of(request),
    )
    record = record_of(request.scope)
    check = inspection(services.config.check_share, held.expected, engine_request.id, services.metrics)
    fields = FieldNames("messages", held.places)

    def reader() -> Reader:
        stream = text.stream(engine_request.sampling.stop, held.shown)
        return tools.reader(stream, text.tool_format, answer, thinking, sampling)

    scribe = Scribe(recall, held.shown, thinking.state if thinking else None)
    told = Rendered(messages, segments, tools.tools if tools.usable else ())
    generation = Generation(services, [engine_request], fields, record, reader, check, scribe, joined, told)
    writer = ChatWriter(body, text, engine_request, model, tools)
    return await respond(generation, writer, record, stream=body.stream)


def _asked(body: ChatRequest, tenant: str, how: Turn, tools: ToolUse, answer: Constraint) -> Asked:
    append_only = body.history == "append_only"
    return Asked(tenant, tools, answer.spec is not None, body.chat_template_kwargs, *how, append_only)


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
