"""`/v1/programs`: programs whose branches are kept here, so that any language gets forks without sending prompts again.

Knows nothing of how steps are carried out.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request
from msgspec import Struct
from pydantic import BaseModel
from starlette.responses import Response

from ...errors import InvalidParameter
from .auth import identified
from .body import MAX_ORIGIN, read_body
from .disconnect import answer_unless_gone
from .docs import documented
from .errors import json_response
from .keys import Caller
from .program_generate import generate
from .program_runs import OpenRun
from .program_schemas import (
    AppendRequest,
    ForkRequest,
    GenerateRequest,
    JoinRequest,
    ProgramRequest,
    SelectRequest,
)
from .program_select import select
from .program_steps import BranchState, append, fork, join, state_of
from .prompts import check_extra, check_model
from .served_text import ServedText
from .services import Services

B = TypeVar("B", bound=BaseModel)
Who = Annotated[Caller, Depends(identified)]
PATH = "/v1/programs"


class RunState(Struct, kw_only=True):
    """The main branch is called "", those forked from it "0", "1", …, and those forked from "1" "1.0", "1.1", …"""

    id: str
    object: str = "program.run"
    name: str
    idle_timeout: float
    branches: list[BranchState]


def run_router(services: Services) -> APIRouter:
    """Runs as such: opened, looked at, closed."""
    router = APIRouter(tags=["programs"])

    @router.post(PATH, **documented(ProgramRequest))
    async def open_run(request: Request, caller: Who) -> Response:
        """Open a run of a program. Its handle is known to nobody else."""
        return json_response(_state(_open(services, caller, await _read(services, request, ProgramRequest))))

    @router.get(f"{PATH}/{{run}}", response_model=None)
    async def look(run: str, caller: Who) -> Response:
        """The run's branches."""
        return json_response(_state(services.programs.find(caller.tenant, run)))

    @router.delete(f"{PATH}/{{run}}", status_code=204, response_model=None)
    async def close_run(run: str, caller: Who) -> Response:
        """Close a run: what is under way in it is cancelled, and what was kept for it may go."""
        await services.programs.close(services.programs.find(caller.tenant, run))
        return Response(status_code=204)

    @router.delete("/v1/runs/{run:path}", status_code=204, response_model=None)
    async def end_run(run: str, caller: Who) -> Response:
        """Say that no request of a run will come any more, as for runs that `X-Bosquet-Run` names."""
        if len(run) <= MAX_ORIGIN:  # no request has a longer one
            await services.programs.end(caller.tenant, run)
        return Response(status_code=204)

    return router


def program_router(services: Services) -> APIRouter:
    """The steps of a run."""
    router = APIRouter(tags=["programs"])

    @router.post(f"{PATH}/{{run}}/append", **documented(AppendRequest))
    async def append_text(run: str, request: Request, caller: Who) -> Response:
        """Write turns, text or token ids to a branch."""
        found, body = await _step(services, request, caller, run, AppendRequest)
        return json_response(await append(services, found, body))

    @router.post(f"{PATH}/{{run}}/generate", **documented(GenerateRequest))
    async def generate_text(run: str, request: Request, caller: Who) -> Response:
        """Let the model go on in a branch, whole or as server-sent events. Several choices become branches."""
        found, body = await _step(services, request, caller, run, GenerateRequest)
        return await answer_unless_gone(request, generate(services, request, caller, found, body))

    @router.post(f"{PATH}/{{run}}/select", **documented(SelectRequest))
    async def select_text(run: str, request: Request, caller: Who) -> Response:
        """Add the likeliest of several texts to a branch."""
        found, body = await _step(services, request, caller, run, SelectRequest)

        async def work() -> Response:
            return json_response(await select(services, request, caller, found, body))

        return await answer_unless_gone(request, work())

    @router.post(f"{PATH}/{{run}}/fork", **documented(ForkRequest))
    async def fork_branch(run: str, request: Request, caller: Who) -> Response:
        """Branches that go on from where a branch is. Nothing is copied or computed."""
        found, body = await _step(services, request, caller, run, ForkRequest)
        return json_response(await fork(services, found, body))

    @router.post(f"{PATH}/{{run}}/join", **documented(JoinRequest))
    async def join_branches(run: str, request: Request, caller: Who) -> Response:
        """Collect the variables of branches, which are over."""
        found, body = await _step(services, request, caller, run, JoinRequest)
        return json_response(join(found, body))

    return router


async def _step(services: Services, request: Request, caller: Caller, handle: str, model: type[B]) -> tuple[OpenRun, B]:
    """The run, and what is to be done in it. That it is the caller's is found first, whatever the body says; it may be
    over once the body is there."""
    services.programs.find(caller.tenant, handle)
    body = await _read(services, request, model)
    return services.programs.find(caller.tenant, handle), body


async def _read(services: Services, request: Request, model: type[B]) -> B:
    return await read_body(request, model, services.config.max_body_bytes)


def _open(services: Services, caller: Caller, body: ProgramRequest) -> OpenRun:
    text = services.text.get()
    check_model(services, text, body.model)
    check_extra(body.chat_template_kwargs)
    if not body.name.isprintable():
        raise InvalidParameter(f"name: must be at most {MAX_ORIGIN} printable characters", "name")
    side = ServedText(text, body.chat_template_kwargs)
    return services.programs.open(caller.tenant, body.name, side, body.idle_timeout)


def _state(run: OpenRun) -> RunState:
    branches = [state_of(branch) for branch in run.branches.values()]
    return RunState(id=run.id, name=run.name, idle_timeout=run.idle_s, branches=branches)
