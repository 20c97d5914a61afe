"""The request bodies and answers in the OpenAPI document, and the page that shows it. Routes read and write them
themselves, so that every fault gets our error shape; this tells the document what they do."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.responses import HTMLResponse

from .docs_page import docs_page

_REF = "#/components/schemas/{model}"
_BODIES: dict[str, type[BaseModel]] = {}
_ANSWERS: dict[str, type[msgspec.Struct]] = {}


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """Keyword arguments of a route whose JSON body is `model`."""
    _BODIES[model.__name__] = model
    schema = {"$ref": _REF.format(model=model.__name__)}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"openapi_extra": {"requestBody": body}, "response_model": None}


def parameter(name: str, kind: str, description: str) -> dict[str, Any]:
    """A field of a route's query, which the route reads itself."""
    return {"name": name, "in": "query", "required": False, "description": description, "schema": {"type": kind}}


def answered(model: type[msgspec.Struct] | None, *query: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a route that answers with `model` (None: with a file), and takes these fields."""
    said: dict[str, Any] = {"response_model": None, "openapi_extra": {"parameters": list(query)} if query else {}}
    if model is not None:
        _ANSWERS[model.__name__] = model
        schema = {"$ref": _REF.format(model=model.__name__)}
        said["responses"] = {200: {"description": "", "content": {"application/json": {"schema": schema}}}}
    return said


def install_docs(app: FastAPI) -> None:
    """Add the bodies' schemas to the document, and the page. The framework's own pages load scripts from elsewhere."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for name, model in _BODIES.items():
                schema = model.model_json_schema(ref_template=_REF)
                schemas.update(schema.pop("$defs", {}))
                schemas[name] = schema
            _, answers = msgspec.json.schema_components(_ANSWERS.values(), ref_template=_REF.format(model="{name}"))
            schemas.update(answers)
            app.openapi_schema = document
        return app.openapi_schema

    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    app.openapi = build  # type: ignore[method-assign]
    app.add_api_route("/docs", docs, include_in_schema=False)
