"""The request bodies in the OpenAPI document, and the page that shows it. Routes read their bodies themselves, so that
every fault gets our error shape; this tells the document what they read."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.responses import HTMLResponse

from .docs_page import docs_page

_REF = "#/components/schemas/{model}"
_BODIES: dict[str, type[BaseModel]] = {}


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """Keyword arguments of a route whose JSON body is `model`."""
    _BODIES[model.__name__] = model
    schema = {"$ref": _REF.format(model=model.__name__)}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"openapi_extra": {"requestBody": body}, "response_model": None}


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
            app.openapi_schema = document
        return app.openapi_schema

    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    app.openapi = build  # type: ignore[method-assign]
    app.add_api_route("/docs", docs, include_in_schema=False)
