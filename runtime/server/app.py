"""Puts the HTTP application together from its routes. Starts nothing: `serve` runs it, `lifespan` is the caller's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib import metadata

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from ..dashboard.files import dashboard_router
from ..engine_api import EngineApi
from .chat import chat_router
from .completions import completion_router
from .config import ServerConfig
from .conversations import Conversations
from .docs import install_docs
from .envelope import Envelope
from .errors import install_error_handlers
from .explain import explain_router
from .explainer import Explainer
from .health import health_router
from .keys import load_keyring
from .metrics import Metrics
from .models import model_router
from .program_runs import Programs
from .programs import program_router, run_router
from .requests import request_router
from .services import Lifecycle, Services, TextServices
from .spans import spans_to
from .tokenize import tokenize_router
from .trace_book import TraceBook
from .trace_store import TraceStore
from .transcripts import Transcripts

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]
ROUTERS = (
    *(chat_router, completion_router, run_router, program_router, model_router, tokenize_router, health_router),
    request_router,
    explain_router,
)


def create_app(
    engine: EngineApi, text: TextServices, config: ServerConfig, lifespan: Lifespan | None = None
) -> FastAPI:
    """The application. `lifespan` starts and stops what `engine` needs, and installs `text` once it is known; until
    then requests get 503. Raises ConfigError for a bad keys file. `app.state.services` holds what the routes share."""
    keys = load_keyring(config.keys_file)
    book = TraceBook()
    store = TraceStore(config.trace_file, config.trace_mb << 20) if config.trace_mb else None
    metrics = Metrics()
    book.sinks.append(metrics.requests.see)
    if store is not None:
        book.sinks.append(store.put)
        metrics.requests.dropped = lambda: store.dropped
    spans = spans_to(config.otlp, metadata.version("bosquet")) if config.otlp else None
    if spans is not None:
        book.sinks.append(spans.see)
    engine.on_trace = book.noted
    services = Services(
        engine=engine,
        text=text,
        config=config,
        keys=keys,
        metrics=metrics,
        lifecycle=Lifecycle(),
        programs=Programs(engine),
        conversations=Conversations(),
        transcripts=Transcripts(config.transcripts_mb << 20),
        book=book,
        explainer=Explainer(),
        store=store,
        spans=spans,
    )
    app = FastAPI(
        title="Bosquet",
        summary="A runtime for agent programs on language models; speaks the OpenAI protocol.",
        version=metadata.version("bosquet"),
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # `install_docs` has one that needs no network
        redoc_url=None,
    )
    app.state.services = services
    app.state.keys = keys
    for router in ROUTERS:
        app.include_router(router(services))
    app.include_router(dashboard_router())
    install_error_handlers(app)
    install_docs(app)
    app.add_middleware(Envelope, metrics=services.metrics, lifecycle=services.lifecycle, spans=spans)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    return app
