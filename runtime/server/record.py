"""What is noted of one HTTP request while it is served, for the access log and the metrics. Never any text."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.types import Scope

from .trace_context import TraceContext, context_of
from .wire import Usage

_KEY = "bosquet.record"


@dataclass(slots=True)
class Record:
    """Lives in the ASGI scope of its request."""

    id: str
    arrival: float  # on time.perf_counter's clock
    context: TraceContext = field(default_factory=lambda: context_of(""))
    tenant: str = ""
    route: str = ""
    stream: bool = False
    body_bytes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    gone: bool = False  # the client left before its answer was complete

    def count(self, usage: Usage) -> None:
        self.prompt_tokens = usage.prompt_tokens
        self.cached_tokens = usage.prompt_tokens_details.cached_tokens
        self.completion_tokens = usage.completion_tokens


def attach(scope: Scope, record: Record) -> None:
    scope[_KEY] = record


def record_of(scope: Scope) -> Record:
    record = scope[_KEY]
    assert isinstance(record, Record)
    return record
