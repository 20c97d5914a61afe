"""What leaves the server of its records: sums, files, spans, headers, each held against its specification."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fakes_engine import FakeEngine, says
from live_server import in_process
from trace_event_format import faults

from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.server.exports import perfetto
from bosquet.runtime.server.ledger import critical_path, ledger, waits
from bosquet.runtime.server.trace_context import context_of
from bosquet.runtime.server.trace_records import RequestRecord, origins, times
from bosquet.runtime.server.trace_ring import Call
from bosquet.runtime.trace import ChoiceTrace, Miss, Prefill, Trace

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0.5, "max_tokens": 20}


def call(run: str, at: float, seconds: float, branch: str = "", program: str = "p", **more: Any) -> Call:
    facts: dict[str, Any] = {
        "prompt": 100,
        "cached": 60,
        "computed": 40,
        "generated": 10,
        "cost": 0.4,
        "saved": 0.5,
        "status": 200,
    }
    return Call(program, run, branch, at, seconds, **{**facts, **more})


# ---- the ledger ----------------------------------------------------------------------------------------------------


def test_a_run_waits_for_its_tools_and_has_a_critical_path() -> None:
    """Two calls side by side after the first, a pause of 3 s, and a last one."""
    run = [call("r", 0, 2), call("r", 2, 1, "a"), call("r", 2, 4, "b"), call("r", 9, 1)]
    assert waits(run) == (1, 3.0, 7.0, 10.0)
    assert [(one.arrival, one.seconds) for one in critical_path(run)] == [(0, 2), (2, 4), (9, 1)]
    (line,) = ledger(run, "run")
    assert (line.program, line.run, line.runs, line.calls, line.forks) == ("p", "r", 1, 4, 2)
    assert (line.tool_waits, line.tool_wait_seconds, line.busy_seconds, line.span_seconds) == (1, 3.0, 7.0, 10.0)
    assert (line.critical_calls, line.critical_seconds) == (3, 7.0)
    assert (line.prompt_tokens, line.cached_tokens, line.computed_tokens, line.completion_tokens) == (400, 240, 160, 40)
    assert line.compute_seconds == pytest.approx(1.6)
    assert line.saved_seconds == 2.0
    assert (line.first, line.last) == (0, 10)


def test_programs_are_sums_of_their_runs() -> None:
    calls = [
        call("r1", 0, 1),
        call("r2", 5, 1),
        call("r1", 3, 1),
        call("", 7, 1),
        call("", 8, 1),
        call("x", 1, 1, "", "q"),
    ]
    first, second = ledger(calls, "program")
    assert (first.program, first.runs, first.calls, first.tool_waits, first.tool_wait_seconds) == ("p", 4, 5, 1, 2.0)
    assert (second.program, second.runs, second.calls) == ("q", 1, 1)
    by_run = ledger(calls, "run")
    assert [(line.program, line.run, line.calls) for line in by_run] == [
        ("p", "", 2), ("p", "r2", 1), ("p", "r1", 2), ("q", "x", 1)
    ]  # fmt: skip
    assert by_run[0].runs == 2


def test_a_client_that_left_is_no_failure() -> None:
    (line,) = ledger([call("r", at, 1, status=status) for at, status in enumerate((200, 499, 500, 400, 499))], "run")
    assert (line.calls, line.failed, line.cancelled) == (5, 2, 2)


def test_the_critical_path_is_the_longest_wait_of_the_last_call() -> None:
    """Against all chains of a few random calls: it ends with the last, and no call fits between two of its links."""
    for seed in range(50):
        calls = [call("r", (seed * 7 + i * 13) % 10, 1 + (seed + i * i) % 3) for i in range(6)]
        path = critical_path(calls)
        ends = [one.arrival + one.seconds for one in path]
        assert ends[-1] == max(one.arrival + one.seconds for one in calls)
        assert all(end <= one.arrival for end, one in zip(ends, path[1:], strict=False))
        for end, following in zip([0.0, *ends], path, strict=False):
            between = [c for c in calls if end < c.arrival + c.seconds <= following.arrival and c.arrival >= 0]
            assert not [c for c in between if c.arrival + c.seconds > end]


def test_failures_are_counted() -> None:
    lines = ledger([call("a", 0, 1), call("b", 5, 1, status=503)], "run")
    assert [line.failed for line in lines] == [1, 0]


# ---- records -------------------------------------------------------------------------------------------------------


def full(**changes: Any) -> RequestRecord:
    choice = ChoiceTrace(
        admitted=1.0, first_token=3.0, ended=7.0, finish="stop", cached=60, computed=45, generated=30,
        prefills=[Prefill(40, 1.0, 2.0), Prefill(5, 5.0, 0.5)], decodes=20, decode_seconds=3.5, mask_seconds=0.25,
        drafts={"forced": (4, 4), "text": (3, 2), "suffix": (9, 5), "model": (2, 1)}, preemptions=1,
        miss=Miss(cause="diverged", at=60),
    )  # fmt: skip
    engine = Trace(request="chatcmpl-1", arrival=1000.0, prompt_tokens=100, choices=[choice], grammar="json_schema")
    facts: dict[str, Any] = {
        "id": "chatcmpl-1", "request_id": "req-1", "tenant": "ada", "program": "plan", "run": "run-1", "step": "#1",
        "route": CHAT, "model": "m", "arrival": 999.5, "seconds": 8.0, "first_token": 3.5, "prompt_tokens": 100,
        "cached_tokens": 60, "completion_tokens": 30, "engine": engine,
    }  # fmt: skip
    return RequestRecord(**{**facts, **changes})


def test_tokens_and_times_add_up() -> None:
    tokens = origins(full())
    assert (tokens.cached, tokens.computed) == (60, 40)  # without the five of the preemption
    assert (tokens.forced, tokens.drafted, tokens.sampled) == (6, 6, 18)
    spent = times(full())
    assert (spent.prepare, spent.queue, spent.prefill, spent.decode) == (0.5, 1.0, 2.0, 4.0)


# ---- files ---------------------------------------------------------------------------------------------------------


async def _one_after_the_other(*records: RequestRecord) -> AsyncIterator[RequestRecord]:
    for record in records:
        yield record


def _perfetto(*records: RequestRecord) -> dict[str, Any]:
    async def made() -> bytes:
        return b"".join([part async for part in perfetto(_one_after_the_other(*records))])

    document: dict[str, Any] = json.loads(asyncio.run(made()))
    return document


GOOD: dict[str, Any] = {"ph": "X", "name": "a", "cat": "b,c", "pid": 1, "tid": 2, "ts": 10, "dur": 5, "args": {}}
NAMED: dict[str, Any] = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "x"}}


def without(event: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != field}


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        ("phase", [without(GOOD, "ph")]), ("phase", [{**GOOD, "ph": "Z"}]), ("phase", ["X"]),
        ("name", [without(GOOD, "name")]), ("cat", [{**GOOD, "cat": "a,,b"}]), ("cat", [{**GOOD, "cat": ["a"]}]),
        ("ids", [without(GOOD, "pid")]), ("ids", [{**GOOD, "tid": "2"}]), ("ids", [{**GOOD, "tid": 2**31}]),
        ("ids", [{**GOOD, "pid": 1.0}]), ("time", [without(GOOD, "ts")]), ("time", [{**GOOD, "ts": -1}]),
        ("time", [{**GOOD, "ts": "10"}]), ("time", [{**GOOD, "ts": float("nan")}]), ("args", [{**GOOD, "args": []}]),
        ("args", [{**GOOD, "args": {"x": float("inf")}}]), ("complete", [without(GOOD, "dur")]),
        ("complete", [{**GOOD, "dur": -0.5}]), ("complete", [{**GOOD, "tts": "1"}]),
        ("metadata", [without(NAMED, "args")]), ("metadata", [{**NAMED, "name": "thread"}]),
        ("metadata", [{**NAMED, "args": {"name": 5}}]), ("nesting", [GOOD, {**GOOD, "ts": 12}]),
        ("nesting", [GOOD, {**GOOD, "dur": 6}]),
    ],
)  # fmt: skip
def test_the_reader_of_the_format_sees_each_fault(rule: str, events: list[Any]) -> None:
    (fault,) = faults({"traceEvents": [NAMED, *events]})
    assert fault.startswith(f"{rule}: ")


def test_the_reader_of_the_format_takes_what_keeps_to_it() -> None:
    beside = {**GOOD, "ts": 15}, {**GOOD, "tid": 3, "ts": 12}, {**GOOD, "ts": 11, "dur": 4}, {**GOOD, "dur": 0}
    assert faults({"traceEvents": [NAMED, GOOD, *beside], "displayTimeUnit": "ns", "otherData": {}}) == []
    assert faults([]) == faults({"traceEvents": {}}) == ["document"]
    assert faults({"traceEvents": [], "displayTimeUnit": "s"}) == ["unit"]
    assert faults({"traceEvents": [], "otherData": []}) == ["known: otherData"]


def test_clocks_that_differ_and_passes_that_overlap_leave_slices_within_each_other() -> None:
    """The server's clock and the engine's differ, and a pass may be begun before the last is over."""
    rng = random.Random(4)
    for _ in range(200):
        admitted, first, ended = sorted(rng.uniform(0, 3) for _ in range(3))
        passes = [Prefill(5, rng.uniform(admitted - 0.1, first), rng.uniform(0, 0.5)) for _ in range(4)]
        choice = ChoiceTrace(
            admitted=admitted, first_token=first, ended=ended, prefills=sorted(passes, key=lambda part: part.at)
        )
        begun = 1.79e9 + rng.random()
        engine = Trace(request="r", arrival=begun + rng.uniform(-0.01, 0.3), prompt_tokens=9, choices=[choice])
        assert faults(_perfetto(full(arrival=begun, seconds=ended + rng.uniform(-0.01, 0.4), engine=engine))) == []


def test_the_perfetto_file_keeps_to_the_format() -> None:
    dead = full(id="x", engine=None, run="run-2")
    queued = Trace(request="q", arrival=5.0, choices=[ChoiceTrace(ended=2.0, finish="abort")])
    document = _perfetto(full(), dead, full(id="q", arrival=5.0, seconds=2.0, engine=queued))
    assert faults(document) == []
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    names = [event["name"] for event in slices]
    first = ["completions", "prepare", "queue", "prefill", "pass", "decode"]
    assert names == [*first, "completions", "completions", "prepare", "queue"]
    prefill = slices[3]
    assert (prefill["ts"], prefill["dur"]) == (1001.0e6, 2e6)
    processes = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"]
    assert processes == ["ada · plan · run-1", "ada · plan · run-2"]
    assert faults(_perfetto()) == []


def test_text_that_looks_like_markup_stays_a_string() -> None:
    odd = '"}],<script>\x1b[31m\u2028'
    document = _perfetto(full(run=odd))
    assert document["traceEvents"][0]["args"]["name"] == f"ada · plan · {odd}"


def test_the_export_over_http_is_a_file() -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for _ in range(3):
            await client.post(CHAT, json=HELLO)
        response = await client.get("/v1/requests/export?format=perfetto")
        assert response.headers["content-disposition"] == 'attachment; filename="requests.json"'
        document = response.json()
        assert faults(document) == []
        assert sum(event["name"] == "completions" for event in document["traceEvents"]) == 3
        lines = (await client.get("/v1/requests/export")).text.splitlines()
        assert len(lines) == 3
        record = json.loads(lines[0])
        assert (await client.get(f"/v1/requests/{record['id']}")).json() == record

    in_process(FakeEngine(says("hi")), work)


# ---- the client's trace --------------------------------------------------------------------------------------------

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    "given",
    [
        "", "nonsense", f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01", f"00-{TRACE}-{PARENT}-01-more", f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-1",
    ],
)  # fmt: skip
def test_what_is_no_context_begins_a_new_trace(given: str) -> None:
    found = context_of(given, "vendor=1")
    assert found.trace != TRACE
    assert (found.parent, found.sampled, found.state) == ("", True, "")


def test_a_context_is_gone_on_with() -> None:
    for given in (f"00-{TRACE}-{PARENT}-01", f"cc-{TRACE}-{PARENT}-01-what-the-future-holds"):
        found = context_of(given, "vendor=1")
        assert (found.trace, found.parent, found.sampled, found.state) == (TRACE, PARENT, True, "vendor=1")
        assert context_of(found.traceparent)[2] == found.span != PARENT
    assert not context_of(f"00-{TRACE}-{PARENT}-00").sampled
    assert context_of(f"00-{TRACE}-{PARENT}-00").traceparent.endswith("-00")


def test_headers_that_come_more_than_once() -> None:
    """Of several parents none counts, also where they are equal or only one can be read; several states are one."""
    good, other = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE[::-1]}-{PARENT}-01"

    async def work(client: httpx.AsyncClient) -> None:
        async def asked(*headers: tuple[str, str]) -> httpx.Headers:
            response = await client.post(CHAT, json=HELLO, headers=list(headers))
            assert response.status_code == 200
            return response.headers

        for second in (other, good, "nonsense", ""):
            for pair in ((good, second), (second, good)):
                answer = await asked(*(("traceparent", each) for each in pair), ("tracestate", "vendor=1"))
                assert answer["traceparent"].split("-")[1] not in (TRACE, TRACE[::-1])
                assert "tracestate" not in answer
        answer = await asked(("traceparent", good), ("tracestate", "a=1"), ("tracestate", "b=2"))
        assert answer["traceparent"].split("-")[1] == TRACE
        assert answer["tracestate"].replace(" ", "") == "a=1,b=2"

    in_process(FakeEngine(says("hi")), work)


def test_the_answer_echoes_the_context_and_the_record_has_it() -> None:
    async def work(client: httpx.AsyncClient) -> None:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
        response = await client.post(CHAT, json=HELLO, headers=headers)
        echoed = response.headers["traceparent"]
        assert echoed.split("-")[1] == TRACE
        assert echoed.split("-")[2] != PARENT
        assert response.headers["tracestate"] == "vendor=1"
        record = (await client.get(f"/v1/requests/{response.json()['id']}")).json()
        assert (record["traceparent"], record["parent_span"]) == (echoed, PARENT)
        refused = await client.post(CHAT, json={})
        assert refused.status_code == 400
        assert "tracestate" not in refused.headers
        assert context_of(refused.headers["traceparent"]).parent

    in_process(FakeEngine(says("hi")), work)


# ---- spans ---------------------------------------------------------------------------------------------------------


def spans_of(*bodies: dict[str, Any], headers: dict[str, str] | None = None) -> tuple[list[Any], list[httpx.Response]]:
    """What a collector in memory gets."""
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed (bosquet[otel])")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from bosquet.runtime.server import app as module
    from bosquet.runtime.server.spans import Spans

    exporter = InMemorySpanExporter()

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.post(body.pop("path", CHAT), json=body, headers=headers) for body in bodies]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "spans_to", lambda collector, version: Spans(SimpleSpanProcessor(exporter), version))
        responses = in_process(FakeEngine(says("hi there")), work, ServerConfig(otlp="http://collector:4318"))
    return list(exporter.get_finished_spans()), responses


def test_spans_keep_to_the_conventions_and_say_what_the_answer_said() -> None:
    spans, (response,) = spans_of(
        {**HELLO, "seed": 7}, headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Bosquet-Run": "r1"}
    )
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
    from opentelemetry.semconv.attributes import error_attributes, http_attributes, url_attributes
    from opentelemetry.trace import SpanKind

    known = {
        value
        for module in (gen_ai_attributes, http_attributes, url_attributes, error_attributes)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    by_name = {span.name: span for span in spans}
    assert set(by_name) == {f"POST {CHAT}", "chat toy", "prepare", "queue", "prefill", "decode"}
    for span in spans:
        assert {name for name in span.attributes if not name.startswith("bosquet.")} <= known
        assert format(span.context.trace_id, "032x") == TRACE
        assert span.start_time <= span.end_time
    server, chat = by_name[f"POST {CHAT}"], by_name["chat toy"]
    assert server.kind is SpanKind.SERVER
    assert format(server.parent.span_id, "016x") == PARENT
    assert format(server.context.span_id, "016x") == response.headers["traceparent"].split("-")[2]
    assert chat.parent.span_id == server.context.span_id
    assert {by_name[name].parent.span_id for name in ("prepare", "queue", "prefill", "decode")} == {
        chat.context.span_id
    }
    usage = response.json()["usage"]
    wanted = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "bosquet", "gen_ai.request.model": "toy",
        "gen_ai.response.model": "toy", "gen_ai.response.id": response.json()["id"],
        "gen_ai.response.finish_reasons": ("stop",), "gen_ai.request.temperature": 0.5, "gen_ai.request.seed": 7,
        "gen_ai.request.max_tokens": 20, "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"], "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.conversation.id": "r1", "gen_ai.output.type": "text", "gen_ai.request.stream": False,
    }  # fmt: skip
    assert {name: chat.attributes[name] for name in wanted} == wanted
    assert server.attributes["http.response.status_code"] == 200
    assert chat.resource.attributes["service.name"] == "bosquet"


def test_cached_tokens_are_in_the_spans_and_each_prompt_has_one() -> None:
    spans, (_, second) = spans_of(dict(HELLO), {"path": "/v1/completions", "prompt": ["abc", "abc"], "max_tokens": 2})
    below = [span for span in spans if span.name == "text_completion toy"]
    assert [span.attributes["gen_ai.usage.cache_read.input_tokens"] for span in below] == [0, 2]
    (server,) = [span for span in spans if span.name == "POST /v1/completions"]
    assert server.parent is None
    assert {span.parent.span_id for span in below} == {server.context.span_id}
    assert len({span.context.trace_id for span in spans}) == 2
    assert format(server.context.trace_id, "032x") == second.headers["traceparent"].split("-")[1]


def test_a_client_that_does_not_sample_gets_no_spans() -> None:
    spans, _ = spans_of(dict(HELLO), headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert spans == []
