"""`/v1/requests` and `/v1/ledger`: the records of requests that are over, one by one, as a file, and summed up.

A tenant sees its own; an operator sees all. What is another tenant's is not found, as if it had never been.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Depends, Request
from msgspec import Struct
from starlette.responses import Response, StreamingResponse

from ...errors import InvalidParameter, NotPermitted, UnknownHandle, Unsupported
from .auth import identified
from .docs import answered, parameter
from .errors import json_response
from .explain_report import without_others
from .exports import EXPORTS, Form
from .keys import Caller
from .ledger import By, LedgerLine, ledger
from .services import Services
from .trace_records import RequestRecord, Summary, summary
from .trace_ring import Wanted
from .trace_store import TraceStore

MOST = 1_000
"""Lines of one answer."""

LIMIT = parameter("limit", "integer", f"Lines of the answer, at most {MOST}; 100 if left out.")
FILTERS = (
    parameter("program", "string", "Only those of this program."),
    parameter("run", "string", "Only those of this run."),
    parameter("tenant", "string", "Only those of this tenant; another than one's own needs the role 'operator'."),
)


class RequestList(Struct, kw_only=True):
    """The newest first. `next` goes on where this page ends, as `before`; null: there is no more."""

    object: Literal["list"] = "list"
    data: list[Summary]
    next: str | None


class Ledger(Struct, kw_only=True):
    """The latest first. `next` goes on where this page ends, as `offset`; null: there is no more."""

    object: Literal["list"] = "list"
    by: By
    data: list[LedgerLine]
    total: int
    next: int | None


def request_router(services: Services) -> APIRouter:
    """The routes of this file."""
    router = APIRouter(tags=["traces"])
    before = parameter("before", "string", "Only those older than the request of this id: `next` of the page before.")

    @router.get("/v1/requests", **answered(RequestList, LIMIT, before, *FILTERS))
    async def requests(request: Request, caller: Annotated[Caller, Depends(identified)]) -> Response:
        """The requests that are over, the newest first."""
        query = _query(request, "limit", "before", "program", "run", "tenant")
        limit = _number(query, "limit", 100, MOST)
        wanted = _wanted(query, caller)
        if (before := query.get("before")) is not None:
            wanted = wanted._replace(before=await _place(store_of(services), before, wanted))
        found = await store_of(services).last(wanted, limit + 1)
        page = [summary(seen_by(record, caller)) for _, record in found[:limit]]
        return json_response(RequestList(data=page, next=page[-1].id if len(found) > limit else None))

    form = parameter("format", "string", "`jsonl` (if left out): a record a line; `perfetto`: for ui.perfetto.dev.")

    @router.get("/v1/requests/export", **answered(None, form, LIMIT, *FILTERS))
    async def export(request: Request, caller: Annotated[Caller, Depends(identified)]) -> Response:
        """The records as a file, the newest first; without `limit`, all of them."""
        query = _query(request, "format", "limit", "program", "run", "tenant")
        name = query.get("format", "jsonl")
        if name not in EXPORTS:
            raise InvalidParameter(f"format: must be one of {', '.join(EXPORTS)}", "format")
        most = _number(query, "limit", None, 10**9)
        records = _all(store_of(services), _wanted(query, caller), most, caller)
        made: Form = EXPORTS[name]
        attached = {"Content-Disposition": f'attachment; filename="requests.{made.suffix}"'}
        return StreamingResponse(made.write(records), media_type=made.media_type, headers=attached)

    @router.get("/v1/requests/{id}", **answered(RequestRecord))
    async def one(id: str, caller: Annotated[Caller, Depends(identified)]) -> Response:
        """All that is known of one request. `id` is that of the answer, or its `X-Request-Id`."""
        return json_response(await record_for(services, id, caller))

    by = parameter("by", "string", "`program` (if left out) or `run`.")
    offset = parameter("offset", "integer", "Lines to pass over: `next` of the page before.")

    @router.get("/v1/ledger", **answered(Ledger, by, LIMIT, offset, *FILTERS))
    async def sums(request: Request, caller: Annotated[Caller, Depends(identified)]) -> Response:
        """What programs or runs have cost and saved: calls, forks, waits for tools, tokens, the critical path."""
        query = _query(request, "by", "limit", "offset", "program", "run", "tenant")
        kind: Any = query.get("by", "program")
        if kind not in get_args(By):
            raise InvalidParameter("by: must be program or run", "by")
        limit, start = _number(query, "limit", 100, MOST), _number(query, "offset", 0, 10**9)
        lines = ledger(await store_of(services).calls(_wanted(query, caller)), kind)
        page = lines[start : start + limit]
        more = start + limit if start + limit < len(lines) else None
        return json_response(Ledger(by=kind, data=page, total=len(lines), next=more))

    return router


async def _place(store: TraceStore, before: str, wanted: Wanted) -> int:
    """Where in the list a request is."""
    place = await store.place(before, wanted.tenant)
    if place is None:
        raise InvalidParameter(
            "before: must be the id of a request in the list, such as `next` of the page before; there is none of id "
            f"{before[:128]!r}, or its record has been dropped",
            "before",
        )
    return place


def store_of(services: Services) -> TraceStore:
    """Raises Unsupported where no records are kept."""
    if services.store is None:
        raise Unsupported("this server keeps no records of requests: it was started with --trace-mb 0", "traces")
    return services.store


async def record_for(services: Services, name: str, caller: Caller) -> RequestRecord:
    """The record of this id, if the caller may see it. Raises UnknownHandle."""
    found = await store_of(services).get(name, tenant_of(caller))
    if found is None:
        raise UnknownHandle(f"there is no request {name[:128]!r}, or its record has been dropped", "id")
    return seen_by(found, caller)


def seen_by(record: RequestRecord, caller: Caller) -> RequestRecord:
    """What other namespaces have is for operators."""
    if caller.role != "operator":
        for choice in record.engine.choices if record.engine is not None else ():
            choice.miss = without_others(choice.miss)
        if record.cache is not None:
            record.cache.elsewhere = 0
    return record


def tenant_of(caller: Caller) -> str | None:
    """Whose records a caller sees; None: everybody's."""
    return None if caller.role == "operator" else caller.tenant


async def _all(store: TraceStore, wanted: Wanted, most: int | None, caller: Caller) -> AsyncIterator[RequestRecord]:
    """Page by page, so that memory stays small."""
    left = most if most is not None else 10**9
    while left > 0:
        found = await store.last(wanted, min(left, MOST))
        for _, record in found:
            yield seen_by(record, caller)
        left -= len(found)
        if len(found) < min(left + len(found), MOST):
            return
        wanted = wanted._replace(before=found[-1][0])


def _query(request: Request, *known: str) -> Mapping[str, str]:
    for name in request.query_params:
        if name not in known:
            raise InvalidParameter(f"{name[:64]}: unknown; there are {', '.join(known)}", name[:64])
        if len(request.query_params.getlist(name)) > 1:
            raise InvalidParameter(f"{name}: must be given once", name)
    return request.query_params


def _number(query: Mapping[str, str], name: str, default: Any, most: int) -> Any:
    given = query.get(name)
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or len(given) > 18 or int(given) > most:
        raise InvalidParameter(f"{name}: must be a whole number, at most {most}", name)
    if name == "limit" and not int(given):
        raise InvalidParameter("limit: must be at least 1", "limit")
    return int(given)


def _wanted(query: Mapping[str, str], caller: Caller) -> Wanted:
    """Raises NotPermitted for another tenant's."""
    asked, own = query.get("tenant"), tenant_of(caller)
    if own is not None and asked not in (None, own):
        raise NotPermitted("tenant: another tenant's requests need a key with the role 'operator'")
    return Wanted(own if own is not None else asked, query.get("program"), query.get("run"))
