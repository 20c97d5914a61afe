"""From the bytes of a request to a checked object: size limit, JSON, fields. Every fault names the field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from ...errors import BodyTooLarge, InvalidParameter, RequestRejected
from ...types import Origin
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

# Words that pydantic adds to a location to say which member of a union it tried; they are no part of the path.
_UNION_WORDS = ("str", "int", "bool", "float", "constrained-str", "ContentPart")


async def read_body(request: Request, model: type[B], limit: int) -> B:
    """The request's body as `model`. Raises BodyTooLarge, InvalidParameter or RequestRejected."""
    raw = await _read_bytes(request, limit)
    record_of(request.scope).body_bytes = len(raw)
    return parse(raw, model)


def parse(raw: bytes, model: type[B]) -> B:
    """Bytes of JSON to a checked object."""
    try:
        data = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestRejected(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise RequestRejected("the body is not valid JSON: it is nested too deeply") from None
    if not isinstance(data, dict):
        raise RequestRejected("the body must be a JSON object")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False, include_context=False)) from None
    except RecursionError:
        raise RequestRejected("the body is nested too deeply") from None


def origin_of(request: Request, caller: Caller) -> Origin:
    """The place in a program, from headers; the tenant comes from the key alone."""
    found: dict[str, str] = {}
    for part, header in ORIGIN_HEADERS.items():
        value = request.headers.get(header, "")
        if len(value) > MAX_ORIGIN or not (value == "" or value.isprintable()):
            raise InvalidParameter(f"{header} must be at most {MAX_ORIGIN} printable characters", header)
        found[part] = value
    return Origin(tenant=caller.tenant, **found)


async def _read_bytes(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise BodyTooLarge(f"the body has {declared} bytes; at most {limit} are allowed")
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise BodyTooLarge(f"the body is larger than the {limit} bytes that are allowed")
            chunks.append(chunk)
    except ClientDisconnect:
        raise RequestRejected("the client left before its request was complete") from None
    return b"".join(chunks)


def _explain(errors: Sequence[ErrorDetails]) -> InvalidParameter:
    """One fault out of all: the first field's, and among the members of a union the one that got furthest."""
    root = errors[0]["loc"][:1]
    same = [error for error in errors if error["loc"][:1] == root]
    chosen = max(same, key=lambda error: len(error["loc"]))
    path = field_path(chosen["loc"])
    kind, message = chosen["type"], chosen["msg"]
    if kind == "extra_forbidden":
        message = "this field is not known or not supported here"
    elif kind == "missing":
        message = "this field is required"
    elif path in ("tools", "tool_choice"):
        message = "tool calls are not supported yet"
    elif path == "suffix":
        message = "this field is not supported"
    return InvalidParameter(f"{path}: {message}" if path else message, path or None)


def field_path(location: Sequence[str | int]) -> str:
    """`("messages", 0, "content")` to `messages[0].content`."""
    path = ""
    for position, part in enumerate(location):
        if isinstance(part, int):
            path += f"[{part}]"
        elif position and (part in _UNION_WORDS or "[" in part):
            continue
        else:
            path += f".{part}" if path else part
    return path
