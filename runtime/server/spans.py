"""Records as OpenTelemetry spans, by the conventions for generative AI: one of kind SERVER for the HTTP request, below
it one for each engine request, and below that what the time went into: prepare, queue, prefill, decode.

https://opentelemetry.io/docs/specs/semconv/gen-ai/ (in development). Spans are made when all is over, with the times
that were noted, so nothing is traced on the way. Where the client has cleared the sampled flag there are none. Never
any text.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from .record import Record
from .trace_book import Complete
from .trace_context import TraceContext, context_of
from .trace_records import RequestRecord, cause, origins, times

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span, SpanKind

PROVIDER = "bosquet"
_PARAMS = ("temperature", "top_p", "top_k", "max_tokens", "seed", "presence_penalty", "frequency_penalty")
_JSON = ("json_schema", "json_object")


class Spans:
    """Gives spans to `processor`, such as one that sends them to a collector. Lives on the event loop."""

    def __init__(self, processor: SpanProcessor, version: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        self._ids = _Ids()
        ids: Any = self._ids
        resource = Resource.create({"service.name": "bosquet", "service.version": version})
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, id_generator=ids, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("bosquet", version)

    def close(self) -> None:
        """Send what waits."""
        self._provider.shutdown()

    def http(self, record: Record, method: str, status: int, arrival: float, seconds: float) -> None:
        """An HTTP request that is over. `arrival` is Unix time."""
        from opentelemetry.trace import SpanKind

        context = record.context
        if not context.sampled:
            return
        self._ids.trace, self._ids.span = int(context.trace, 16), int(context.span, 16)
        facts = {
            "http.request.method": method,
            "http.route": record.route,
            "http.response.status_code": status,
            "url.path": record.route,
            "url.scheme": "http",
        }
        self._end(
            self._begin(f"{method} {record.route}", arrival, SpanKind.SERVER, _below(context)),
            facts,
            arrival + seconds,
            str(status) if status >= 500 else None,
        )

    def see(self, record: RequestRecord, complete: Complete) -> None:
        """An engine request that is over."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        context = context_of(record.traceparent)
        if not context.sampled or not record.traceparent:
            return
        operation = "chat" if "chat" in record.route else "text_completion"
        self._ids.trace = int(context.trace, 16)
        span = self._begin(f"{operation} {record.model}", record.arrival, SpanKind.INTERNAL, _below(context))
        inside = set_span_in_context(span)
        for name, start, end, facts in _phases(record):
            self._end(self._begin(name, start, SpanKind.INTERNAL, inside), facts, end, None)
        self._end(span, _attributes(record, operation), record.arrival + record.seconds, record.error)

    def _begin(self, name: str, start: float, kind: SpanKind, above: Context) -> Span:
        return self._tracer.start_span(name, above, kind, start_time=round(start * 1e9))

    @staticmethod
    def _end(span: Span, facts: dict[str, Any], end: float, error: str | None) -> None:
        from opentelemetry.trace import Status, StatusCode

        span.set_attributes(facts)
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(round(end * 1e9))


def spans_to(collector: str, version: str) -> Spans:
    """Spans that are sent to a collector in the background. Raises ConfigError where the packages are missing."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError("otlp: the packages for it are missing; pip install 'bosquet[otel]'") from None
    return Spans(BatchSpanProcessor(OTLPSpanExporter(f"{collector.rstrip('/')}/v1/traces")), version)


class _Ids:
    """Has the shape of the SDK's generator: the next trace and span have the ids that the answer has told."""

    def __init__(self) -> None:
        self.trace = 0
        self.span = 0

    def generate_span_id(self) -> int:
        given, self.span = self.span, 0
        return given or secrets.randbits(64) or 1

    def generate_trace_id(self) -> int:
        return self.trace

    def is_trace_id_random(self) -> bool:
        return False


def _below(context: TraceContext) -> Context:
    """A place in the client's trace; at its top where it named no span."""
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    remote = SpanContext(
        int(context.trace, 16), int(context.parent or "0", 16), is_remote=True, trace_flags=TraceFlags(1)
    )
    return set_span_in_context(NonRecordingSpan(remote))


def _attributes(record: RequestRecord, operation: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.response.id": record.id,
        "gen_ai.request.stream": record.stream,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
    }
    facts |= {f"gen_ai.request.{name}": record.params[name] for name in _PARAMS if name in record.params}
    if record.params.get("n", 1) != 1:
        facts["gen_ai.request.choice.count"] = record.params["n"]
    if record.run:
        facts["gen_ai.conversation.id"] = record.run
    if record.program:
        facts["gen_ai.workflow.name"] = record.program
    if record.first_token is not None:
        facts["gen_ai.response.time_to_first_chunk"] = record.first_token
    if record.engine is not None:
        facts["gen_ai.output.type"] = "json" if record.engine.grammar in _JSON else "text"
        finishes = [choice.finish for choice in record.engine.choices if choice.finish]
        if finishes:
            facts["gen_ai.response.finish_reasons"] = finishes
    tokens = origins(record)
    own = {"tenant": record.tenant, "step": record.step, "branch": record.branch, "miss": cause(record)}
    facts |= {f"bosquet.{name}": value for name, value in own.items() if value}
    facts |= {f"bosquet.tokens.{name}": getattr(tokens, name) for name in tokens.__struct_fields__}
    return facts


def _phases(record: RequestRecord) -> list[tuple[str, float, float, dict[str, Any]]]:
    """Name, begin, end and facts of what the first choice went through."""
    if record.engine is None or not record.engine.choices:
        return []
    choice, spent = record.engine.choices[0], times(record)
    at = record.engine.arrival - (spent.prepare or 0.0)
    facts: dict[str, dict[str, Any]] = {
        "prepare": {},
        "queue": {"bosquet.match_ms": choice.match_seconds * 1e3},
        "prefill": {"bosquet.cached_tokens": choice.cached, "bosquet.computed_tokens": choice.computed},
        "decode": {
            "bosquet.passes": choice.decodes,
            "bosquet.mask_ms": choice.mask_seconds * 1e3,
            "bosquet.preemptions": choice.preemptions,
        },
    }
    found = []
    for name in ("prepare", "queue", "prefill", "decode"):
        seconds = getattr(spent, name)
        if seconds is not None:
            found.append((name, at, at + seconds, facts[name]))
            at += seconds
    return found
