"""What the server keeps of a request that is over, and what it shows of it. Structs only.

The engine's half is `runtime.trace`; here is what only the API process knows. Times are Unix time and seconds.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from ..trace import Trace
from .explain_report import CacheReport, shown


class Part(Struct, array_like=True, frozen=True):
    """Tokens `start` … `end` - 1 of a prompt are of this part: message number `index` of a chat, with its role as the
    name, or (-1) what the template says after the last."""

    index: int
    name: str
    start: int
    end: int


class Captured(Struct, omit_defaults=True):
    """What was said. Only kept with `--capture-text`. `prompt` is the rendered prompt, `outputs` the choices' texts."""

    prompt: str = ""
    outputs: list[str] = field(default_factory=list)


class RequestRecord(Struct, kw_only=True, omit_defaults=True):
    """One request of the engine. A completion of several prompts is several of these, with one `request_id`, which is
    the answer's `X-Request-Id`. `engine` is missing where the engine died.

    Tokens are those that the answer's `usage` counts; `status` is the HTTP answer's, 499 where the client left.
    """

    id: str
    request_id: str = ""
    tenant: str = ""
    program: str = ""
    run: str = ""
    step: str = ""
    branch: str = ""
    route: str = ""
    model: str = ""
    stream: bool = False
    status: int = 200
    error: str | None = None
    arrival: float = 0.0
    seconds: float = 0.0
    first_token: float | None = None  # seconds after arrival, as the server saw it
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    params: dict[str, Any] = field(default_factory=dict)  # temperature, top_p, max_tokens, … where given
    parts: list[Part] = field(default_factory=list)
    traceparent: str = ""  # this request's own span
    parent_span: str = ""  # the client's
    text: Captured | None = None
    engine: Trace | None = None
    cache: CacheReport | None = None  # why the cache had no more of the prompt


class Origins(Struct, kw_only=True):
    """Where a request's tokens came from. `cached` + `computed` is the prompt, without what a preemption made the
    engine compute again; the other three are the output."""

    cached: int = 0
    computed: int = 0
    forced: int = 0
    drafted: int = 0
    sampled: int = 0


class Times(Struct, kw_only=True):
    """Seconds of the first choice. `prepare` is what came before the engine's queue: template, tokens, grammar; the
    others add up to the time in the engine."""

    prepare: float | None = None
    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None


class Summary(Struct, kw_only=True):
    """A line of the list. `cause`: why the cache had no more of the prompt, and `kind`, what was different in it.
    `lost_tokens` were computed and need not have been, which takes about `lost_ms`."""

    id: str
    request_id: str
    tenant: str
    program: str
    run: str
    step: str
    branch: str
    route: str
    model: str
    status: int
    finish: str | None
    arrival: float
    seconds: float
    first_token: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tokens: Origins
    times: Times
    preemptions: int
    cause: str | None
    kind: str | None
    lost_tokens: int
    lost_ms: float | None


FORCED = ("forced", "text")
"""Draft sources that are the grammar's own words."""


def origins(record: RequestRecord) -> Origins:
    """Over all choices, as far as the engine told."""
    engine = record.engine
    if engine is None:
        return Origins(cached=record.cached_tokens)
    found = Origins(cached=sum(choice.cached for choice in engine.choices))
    for choice in engine.choices:
        if choice.admitted is not None and (choice.generated or choice.computed):
            found.computed += min(choice.computed, engine.prompt_tokens - choice.cached)
        accepted = 0
        for source, (_, right) in choice.drafts.items():
            accepted += right
            if source in FORCED:
                found.forced += right
            else:
                found.drafted += right
        found.sampled += choice.generated - accepted
    return found


def times(record: RequestRecord) -> Times:
    """How the first choice spent its time."""
    choice = record.engine.choices[0] if record.engine is not None and record.engine.choices else None
    if choice is None:
        return Times()
    assert record.engine is not None
    prepare = max(0.0, record.engine.arrival - record.arrival)
    if choice.admitted is None:
        return Times(prepare=prepare, queue=choice.ended)
    if choice.first_token is None:
        return Times(prepare=prepare, queue=choice.admitted, prefill=choice.ended - choice.admitted)
    return Times(
        prepare=prepare,
        queue=choice.admitted,
        prefill=choice.first_token - choice.admitted,
        decode=choice.ended - choice.first_token,
    )


def cause(record: RequestRecord) -> str | None:
    """Why the cache had no more of its prompt; None: nobody knows."""
    choices = record.engine.choices if record.engine is not None else []
    return next((choice.miss.cause for choice in choices if choice.miss is not None), None)


def summary(record: RequestRecord) -> Summary:
    """What the list shows to whoever may see all of the record."""
    choices = record.engine.choices if record.engine is not None else []
    miss = None if record.cache is None else shown(record.cache)
    return Summary(
        id=record.id,
        request_id=record.request_id,
        tenant=record.tenant,
        program=record.program,
        run=record.run,
        step=record.step,
        branch=record.branch,
        route=record.route,
        model=record.model,
        status=record.status,
        finish=choices[0].finish if choices else None,
        arrival=record.arrival,
        seconds=record.seconds,
        first_token=record.first_token,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        completion_tokens=record.completion_tokens,
        tokens=origins(record),
        times=times(record),
        preemptions=sum(choice.preemptions for choice in choices),
        cause=cause(record) if miss is None else miss.cause,
        kind=None if miss is None else miss.kind,
        lost_tokens=0 if miss is None else miss.lost_tokens,
        lost_ms=None if miss is None else miss.lost_ms,
    )
