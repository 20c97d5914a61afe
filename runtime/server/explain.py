"""Why-miss over HTTP: of a request that is over, of two prompts, and the cache itself as a tree and as a curve.

A tenant sees causes within its own namespace. Where keys are set, the tree and the curve need the role 'operator'.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from ...errors import UnknownHandle
from ...radix_cache.key import Key, common_tokens
from ..cache_view import Reuse, Tree
from ..miss import shared_tokens
from .auth import identified, operator
from .body import read_body
from .docs import answered, documented
from .errors import json_response
from .explain_compare import Difference, compare
from .explain_hints import hint_for
from .explain_prompt import Told, lay, told_tools
from .explain_report import CacheReport, Comparison, place, shown, side
from .keys import Caller
from .prompts import check_model, plain_messages
from .requests import record_for
from .schemas import ExplainRequest, TokenizeRequest
from .services import Services, Text
from .tokenize import tokenized
from .tool_use import read_tools

SHOWN = 24
"""Tokens of each side that a comparison shows."""


def explain_router(services: Services) -> APIRouter:
    """The routes of this file."""
    router = APIRouter(tags=["cache"])

    @router.get("/v1/requests/{id}/cache", **answered(CacheReport))
    async def why(id: str, caller: Annotated[Caller, Depends(identified)]) -> Response:
        """Why the cache had no more of a request's prompt: the cause, the place, what it cost, and what to do."""
        record = await record_for(services, id, caller)
        if record.cache is None:
            raise UnknownHandle(f"request {record.id[:128]!r} ended before it was looked up in the cache", "id")
        return json_response(shown(record.cache))

    @router.post("/v1/explain", **documented(ExplainRequest))
    async def explain(request: Request, caller: Annotated[Caller, Depends(identified)]) -> Response:
        """How much of prompt `b` would be reused if `a` were cached, and what keeps the rest. Runs neither."""
        body = await read_body(request, ExplainRequest, services.config.max_body_bytes)
        text = services.text.get()
        check_model(services, text, body.model)
        return json_response(await compared(text, body))

    @router.get("/v1/cache/tree", **answered(Tree))
    async def tree(caller: Annotated[Caller, Depends(operator)]) -> Response:
        """The prefix tree near its roots, at most 500 nodes; never a text or an id."""
        return json_response(await services.engine.tree())

    @router.get("/v1/cache/reuse", **answered(Reuse))
    async def reuse(caller: Annotated[Caller, Depends(operator)]) -> Response:
        """What the hit rate would be if the cache were larger or smaller, from what was asked for since the start."""
        return json_response(await services.engine.reuse())

    return router


async def compared(text: Text, body: ExplainRequest) -> Comparison:
    """Raises what rendering and encoding raise."""
    given = [body.a, body.b]
    sides = [TokenizeRequest.model_validate({"prompt": side}) if isinstance(side, str) else side for side in given]
    a, b = [(await tokenized(text, side))[1] for side in sides]
    return await asyncio.to_thread(comparison, text, (a, _told(sides[0])), (b, _told(sides[1])))


def comparison(text: Text, a: tuple[list[int], Told], b: tuple[list[int], Told]) -> Comparison:
    """Of two prompts, each its ids and what was told."""
    theirs, ours = (lay(ids, text.tokenizer.bytes_of, told) for ids, told in (a, b))
    first, second = Key.of(a[0]).data, Key.of(b[0]).data
    shared = common_tokens(first, second)
    if shared == len(a[0]) == len(b[0]):
        whole = ours.part_at(0)
        found = Difference("same", whole, 0)
    else:
        found = compare(ours, theirs, ours.starts[shared])
    rest = slice(4 * shared, None)

    def decode(ids: object) -> str:
        return text.tokenizer.decode(ids, skip_special=False)  # type: ignore[arg-type]

    return Comparison(
        a_tokens=len(a[0]),
        b_tokens=len(b[0]),
        shared_tokens=shared,
        kind=found.kind,
        place=None if found.kind == "same" else place(found.part, found.character),
        detail=found.detail,
        lost_tokens=shared_tokens(second[rest], first[rest]),
        a=side(a[0][shared : shared + SHOWN], decode),
        b=side(b[0][shared : shared + SHOWN], decode),
        hint=hint_for(found),
    )


def _told(given: TokenizeRequest) -> Told:
    if given.messages is None:
        return Told()
    return Told(plain_messages(given.messages), told_tools(read_tools(given.tools)))
