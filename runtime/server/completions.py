"""`/v1/completions`: continue texts or token ids, and score them. Knows nothing of how tokens are made."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from ...errors import InvalidParameter
from ...types import Origin, SamplingParams
from ...types import Request as EngineRequest
from .answer import respond
from .auth import identified
from .body import ahead_of, origin_of, read_body
from .completion_tools import reading
from .completion_writer import CompletionWriter
from .constraints import constraint
from .conversations import Joined
from .disconnect import answer_unless_gone
from .docs import documented
from .generation import FieldNames, Generation
from .inspection import inspection
from .keys import Caller
from .prompts import Prompt, check_model, completion_prompts, several
from .record import record_of
from .sampling import Wanted, check_priority, check_queue, check_stream_options, draft_sources, sampling_params
from .schemas import CompletionRequest
from .services import Services
from .tool_use import Held

DEFAULT_MAX_TOKENS = 16
"""The protocol's own."""


def completion_router(services: Services) -> APIRouter:
    """The routes of this file."""
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/completions", **documented(CompletionRequest))
    async def completions(request: Request, caller: Annotated[Caller, Depends(identified)]) -> Response:
        """The continuation of one or several prompts, whole or as server-sent events."""
        body = await read_body(request, CompletionRequest, services.config.max_body_bytes)
        return await answer_unless_gone(request, _answer(services, request, caller, body))

    return router


async def _answer(services: Services, request: Request, caller: Caller, body: CompletionRequest) -> Response:
    text = services.text.get()
    model = check_model(services, text, body.model)
    wanted = _wanted(body)
    found = constraint(body)
    check_queue(len(several(body.prompt)), body.n or 1, text.info)
    prompts = await completion_prompts(text, body)
    read = reading(text, body, found, prompts)
    sampling = [sampling_params(body, wanted, text.info.context_length - len(p.ids), text.info) for p in prompts]
    joined = _joined(services, origin_of(request, caller), body, prompts)
    requests = _engine_requests(services, request, caller, body, prompts, sampling, read.held, joined.origin)
    record = record_of(request.scope)
    check = inspection(services.config.check_share, read.held.expected, requests[0].id, services.metrics)
    fields = FieldNames("prompt", read.held.places)
    generation = Generation(services, requests, fields, record, lambda: read.reader(sampling[0]), check, joined=joined)
    writer = CompletionWriter(body, text, prompts, requests, model, read.written)
    return await respond(generation, writer, record, stream=body.stream)


def _wanted(body: CompletionRequest) -> Wanted:
    check_stream_options(body)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidParameter("best_of: only the value of n is supported", "best_of")
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if max_tokens == 0 and not body.echo:
        raise InvalidParameter("max_tokens: 0 only makes sense with echo", "max_tokens")
    scored = bool(body.echo) and body.logprobs is not None
    if body.prompt_logprobs_from is not None and not scored:
        field = "prompt_logprobs_from"
        raise InvalidParameter(f"{field}: only with echo and logprobs", field)
    if not scored:
        return Wanted(max_tokens, body.logprobs)
    return Wanted(max_tokens, body.logprobs, body.logprobs, body.prompt_logprobs_from or 1)


def _joined(services: Services, origin: Origin, body: CompletionRequest, prompts: Sequence[Prompt]) -> Joined:
    """Several prompts, or one that is only scored, are no run unless they say so."""
    if origin.run or (len(prompts) == 1 and body.max_tokens != 0):
        prompt = prompts[0]
        return services.conversations.join_text(origin, body, prompt.ids if prompt.text is None else prompt.text)
    return Joined(origin)


def _engine_requests(
    services: Services,
    request: Request,
    caller: Caller,
    body: CompletionRequest,
    prompts: Sequence[Prompt],
    sampling: Sequence[SamplingParams],
    held: Held,
    origin: Origin,
) -> list[EngineRequest]:
    ahead = ahead_of(request)
    priority = check_priority(body, caller)
    name = f"cmpl-{uuid.uuid4().hex}"
    requests = []
    for index, (prompt, wanted) in enumerate(zip(prompts, sampling, strict=True)):
        if body.prompt_logprobs_from is not None and body.prompt_logprobs_from >= len(prompt.ids):
            field = "prompt_logprobs_from"
            raise InvalidParameter(f"{field}: the prompt has only {len(prompt.ids)} tokens", field)
        requests.append(
            EngineRequest(
                id=name if len(prompts) == 1 else f"{name}-{index}",
                ids=prompt.ids,
                sampling=held.for_engine(wanted),
                grammar=held.spec,
                origin=origin,
                priority=priority,
                speculation=draft_sources(body),
                timeout_s=body.timeout or services.config.request_timeout_s,
                ahead=ahead,
            )
        )
    return requests
