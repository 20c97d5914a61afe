"""From the bytes of a request to a checked object: size limit, JSON, fields. Every fault names the field."""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from ...errors import ArrivedLate, BodyTooLarge, InvalidParameter, RequestRejected
from ...types import Ahead, Origin
from .arrival import deadline_of
from .faults import MAX_NESTING, deeper_than, invalid, malformed, nested_too_deeply
from .keys import Caller
from .record import record_of

B = TypeVar("B", bound=BaseModel)

ORIGIN_HEADERS = {
    "program": "X-Bosquet-Program",
    "run": "X-Bosquet-Run",
    "step": "X-Bosquet-Step",
    "branch": "X-Bosquet-Branch",
}
MAX_ORIGIN = 200
AHEAD_HEADER = "X-Bosquet-Ahead"
_AHEAD_PART = re.compile(r" *(?:(returns)=([01])|(pause)=(\d{1,5}(?:\.\d{1,9})?)|(steps|tokens)=(\d{1,9})) *")


async def read_body(request: Request, model: type[B], limit: int) -> B:
    """The request's body as `model`. Raises BodyTooLarge, ArrivedLate, InvalidParameter or RequestRejected."""
    raw = await _read_bytes(request, limit)
    record_of(request.scope).body_bytes = len(raw)
    return parse(raw, model)


def parse(raw: bytes, model: type[B]) -> B:
    """Bytes of JSON to a checked object."""
    try:
        data = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise malformed(raw, error) from None
    except RecursionError:
        raise nested_too_deeply(raw) from None
    if raw.count(b"{") + raw.count(b"[") > MAX_NESTING and deeper_than(MAX_NESTING, data):
        raise nested_too_deeply(raw)
    if not isinstance(data, dict):
        raise RequestRejected("the body must be a JSON object")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_context=False, include_input=False)) from None
    except RecursionError:
        raise nested_too_deeply(raw) from None


def origin_of(request: Request, caller: Caller) -> Origin:
    """The place in a program, from headers; the tenant comes from the key alone."""
    found: dict[str, str] = {}
    for part, header in ORIGIN_HEADERS.items():
        value = request.headers.get(header, "")
        if len(value) > MAX_ORIGIN or not (value == "" or value.isprintable()):
            raise InvalidParameter(f"{header} must be at most {MAX_ORIGIN} printable characters", header)
        found[part] = value
    return Origin(tenant=caller.tenant, **found)


def ahead_of(request: Request) -> Ahead:
    """What the caller knows of its run beyond this request, from a header such as `returns=1; pause=0.5; steps=3;
    tokens=40`. Raises InvalidParameter."""
    found: dict[str, Any] = {}
    given = request.headers.get(AHEAD_HEADER, "")
    for part in given.split(";") if given else ():
        match = _AHEAD_PART.fullmatch(part)
        name, value = [group for group in match.groups() if group is not None] if match else ("", "")
        if not name or name in found:
            known = "returns=0 or 1, pause=SECONDS, steps=N and tokens=N, once each"
            raise InvalidParameter(f"{AHEAD_HEADER}: {part[:64]!r} is none of {known}", AHEAD_HEADER)
        found[name] = float(value) if name == "pause" else int(value)
    returns = found.get("returns")
    return Ahead(
        returns=None if returns is None else bool(returns),
        pause_s=found.get("pause", 0.0),
        steps=found.get("steps", 0),
        tokens=found.get("tokens", 0),
    )


async def _read_bytes(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise BodyTooLarge(f"the body has {declared} bytes; at most {limit} are allowed")
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout_at(deadline_of(request)):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise BodyTooLarge(f"the body is larger than the {limit} bytes that are allowed")
                chunks.append(chunk)
    except TimeoutError:
        raise ArrivedLate(f"the body did not arrive in time; {size} bytes of it came") from None
    except ClientDisconnect:
        raise RequestRejected("the client left before its request was complete") from None
    return b"".join(chunks)
