"""`/tokenize` and `/detokenize`: between text and token ids, without the engine."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from ...errors import InvalidParameter
from ...types import Segment
from .auth import identified
from .body import read_body
from .docs import documented
from .errors import json_response
from .keys import Caller
from .prompts import check_ids, check_model, encode, render, turn
from .schemas import DetokenizeRequest, TokenizeRequest
from .services import Services, Text
from .tool_use import tools_to_tell


class Tokenized(Struct):
    """`segments` are pairs of text and whether special strings in it are special tokens."""

    tokens: list[int]
    count: int
    max_model_len: int
    segments: list[Segment] | UnsetType = UNSET


class Detokenized(Struct):
    prompt: str


def tokenize_router(services: Services) -> APIRouter:
    """The routes of this file."""
    router = APIRouter(tags=["text"])

    @router.post("/tokenize", **documented(TokenizeRequest))
    async def tokenize(request: Request, caller: Annotated[Caller, Depends(identified)]) -> Response:
        """Token ids of a text, of a rendered conversation, or of segments."""
        body = await read_body(request, TokenizeRequest, services.config.max_body_bytes)
        text = services.text.get()
        check_model(services, text, body.model)
        segments, ids = await tokenized(text, body)
        return json_response(
            Tokenized(ids, len(ids), text.info.context_length, segments if body.return_segments else UNSET)
        )

    @router.post("/detokenize", **documented(DetokenizeRequest))
    async def detokenize(request: Request, caller: Annotated[Caller, Depends(identified)]) -> Response:
        """The text of token ids, special tokens included."""
        body = await read_body(request, DetokenizeRequest, services.config.max_body_bytes)
        text = services.text.get()
        check_model(services, text, body.model)
        check_ids(body.tokens, text, "tokens")
        return json_response(Detokenized(text.tokenizer.decode(body.tokens, skip_special=False, at_start=True)))

    return router


async def tokenized(text: Text, body: TokenizeRequest) -> tuple[list[Segment], list[int]]:
    """The rendered text in pieces, and its ids. Raises InvalidParameter, and what rendering raises."""
    given = [name for name in ("prompt", "messages", "segments") if getattr(body, name) is not None]
    if len(given) != 1:
        field = given[1] if given else "prompt"
        raise InvalidParameter(f"{field}: exactly one of prompt, messages and segments is needed", field)
    if body.messages is not None:
        how = turn(body.messages, body.add_generation_prompt, body.continue_final_message)
        tools = tools_to_tell(body.tools)
        return await render(text, body.messages, how, body.chat_template_kwargs, tools, to_fit=False)
    if body.tools is not None:
        raise InvalidParameter("tools: only with messages", "tools")
    if body.segments is not None:
        segments = [_segment(pair, index) for index, pair in enumerate(body.segments)]
    else:
        segments = [Segment(body.prompt or "", body.parse_special is not False)]
    return segments, await encode(text, segments, given[0], bos=body.add_special_tokens is not False)


def _segment(pair: list[str | bool], index: int) -> Segment:
    text, control = pair
    if isinstance(text, str) and isinstance(control, bool):
        return Segment(text, control)
    field = f"segments[{index}]"
    raise InvalidParameter(f"{field}: a segment is a text and true or false", field)
