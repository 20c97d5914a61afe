"""`/v1/models` and `/version`: what is served here."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from .auth import identified
from .errors import json_response
from .keys import Caller
from .prompts import check_model
from .services import Services
from .wire import ModelCard, ModelList


def model_router(services: Services) -> APIRouter:
    """The routes of this file."""
    router = APIRouter()
    created = int(time.time())

    def card() -> ModelCard:
        text = services.text.get()
        return ModelCard(id=services.model_name(text), created=created, max_model_len=text.info.context_length)

    @router.get("/v1/models", tags=["OpenAI"], response_model=None)
    async def models(caller: Annotated[Caller, Depends(identified)]) -> Response:
        """The one model that is served."""
        return json_response(ModelList(data=[card()]))

    @router.get("/v1/models/{name:path}", tags=["OpenAI"], response_model=None)
    async def model(name: str, caller: Annotated[Caller, Depends(identified)]) -> Response:
        """The same by name."""
        check_model(services, services.text.get(), name)
        return json_response(card())

    @router.get("/version", tags=["server"], response_model=None)
    async def version(request: Request) -> Response:
        """Bosquet's version."""
        return json_response({"version": request.app.version})

    return router
