"""From an exception to an HTTP answer: the one table of statuses, and the OpenAI shape of an error."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ...errors import (
    ArrivedLate,
    BodyTooLarge,
    BosquetError,
    BranchBusy,
    DeadlineExceeded,
    EngineDied,
    GrammarInvalid,
    HeadTooLarge,
    InvalidParameter,
    NotAuthenticated,
    NotPermitted,
    Overloaded,
    PromptTooLong,
    RequestRejected,
    TemplateFailed,
    Unavailable,
    UnknownHandle,
    UnknownModel,
    Unsupported,
    rejection,
)
from ...types import Output


class Answer(NamedTuple):
    status: int
    type: str


ANSWERS: dict[type[BosquetError], Answer] = {
    RequestRejected: Answer(400, "invalid_request_error"),
    InvalidParameter: Answer(400, "invalid_request_error"),
    PromptTooLong: Answer(400, "invalid_request_error"),
    GrammarInvalid: Answer(400, "invalid_request_error"),
    TemplateFailed: Answer(400, "invalid_request_error"),
    Unsupported: Answer(400, "invalid_request_error"),
    NotAuthenticated: Answer(401, "authentication_error"),
    NotPermitted: Answer(403, "permission_error"),
    UnknownModel: Answer(404, "invalid_request_error"),
    UnknownHandle: Answer(404, "invalid_request_error"),
    BranchBusy: Answer(409, "invalid_request_error"),
    ArrivedLate: Answer(408, "timeout_error"),
    HeadTooLarge: Answer(431, "invalid_request_error"),
    BodyTooLarge: Answer(413, "invalid_request_error"),
    Overloaded: Answer(429, "rate_limit_error"),
    Unavailable: Answer(503, "server_error"),
    EngineDied: Answer(503, "server_error"),
    DeadlineExceeded: Answer(504, "timeout_error"),
    BosquetError: Answer(500, "server_error"),
}
"""Every other class takes the answer of its nearest base."""

CLIENT_GONE = 499
"""Only the log and the metrics see it: nobody is left to read the answer."""


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct):
    error: ErrorBody


def answer_for(error: BosquetError) -> Answer:
    """The status and type of the nearest class in the table."""
    return next(ANSWERS[cls] for cls in type(error).__mro__ if cls in ANSWERS)


def error_body(error: BosquetError) -> ErrorEnvelope:
    """The body that clients of the protocol expect; `param` is the path of the field at fault."""
    field = error.field if isinstance(error, RequestRejected) else None
    message = str(error) or error.code
    if field is not None and not message.startswith(field):
        message = f"{field}: {message}"
    return ErrorEnvelope(ErrorBody(message=message, type=answer_for(error).type, param=field, code=error.code))


def error_response(error: BosquetError) -> Response:
    headers = {}
    if isinstance(error, Overloaded | Unavailable):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, NotAuthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, ArrivedLate):
        headers["Connection"] = "close"
    return json_response(error_body(error), answer_for(error).status, headers)


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def named(error: RequestRejected, field: str) -> RequestRejected:
    """The same with `field` as the part at fault, unless it names one already."""
    if error.field is not None:
        return error
    message = str(error)
    return type(error)(message if message.startswith(f"{field}:") else f"{field}: {message}", field)


def failure(output: Output) -> BosquetError:
    """The exception that stands for an output whose finish is "error" or "abort"."""
    code, message = output.error if output.error is not None else ("", "")
    if code == EngineDied.code:
        return EngineDied(message)
    if not code and output.finish == "abort":
        return DeadlineExceeded("the request's time is over")
    found = rejection(code, message)
    if found.code != code:  # a code that stands for no class of ours is a fault of the engine, not of the request
        return BosquetError(message or "the engine could not finish the request")
    return found


def install_error_handlers(app: FastAPI) -> None:
    """Give our exceptions, and the framework's 404 and 405, the OpenAI shape."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, BosquetError)
        return error_response(error)

    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        message = {
            404: f"there is no {request.url.path} here; see /docs",
            405: f"{request.method} is not allowed on {request.url.path}",
        }.get(error.status_code, str(error.detail))
        body = ErrorEnvelope(ErrorBody(message=message, type="invalid_request_error", param=None, code=code))
        return json_response(body, error.status_code, dict(error.headers or {}))

    app.add_exception_handler(BosquetError, ours)
    app.add_exception_handler(HTTPException, framework)
