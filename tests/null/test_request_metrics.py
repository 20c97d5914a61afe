"""What `/metrics` says of requests that are over, by the official parser; and what the Grafana board asks for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
from fakes_engine import FakeEngine, says
from live_server import in_process
from prometheus_client.parser import text_string_to_metric_families

from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.server.metrics import Metrics
from bosquet.runtime.server.request_metrics import TENANTS
from bosquet.types import Stats

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def scrape(
    engine: FakeEngine, *bodies: dict[str, Any], config: ServerConfig | None = None, **more: Any
) -> dict[Any, float]:
    async def work(client: httpx.AsyncClient) -> str:
        for body in bodies:
            await client.post(CHAT, json=body)
        return (await client.get("/metrics")).text

    return parsed(in_process(engine, work))


def parsed(page: str) -> dict[Any, float]:
    """By the official parser: {(name, labels): value}; each name is declared once."""
    families = list(text_string_to_metric_families(page))
    assert len({family.name for family in families}) == len(families)
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for f in families for sample in f.samples}


def test_metrics_are_counters_of_queries_and_hits() -> None:
    found = scrape(FakeEngine(says("hi there")), dict(HELLO), dict(HELLO))
    queries, hits = found["bosquet_prefix_cache_queries_total", ()], found["bosquet_prefix_cache_hits_total", ()]
    assert (queries, hits) == (2 * (hits + 1), hits)
    assert found["bosquet_request_success_total", (("finished_reason", "stop"),)] == 2
    assert found["bosquet_tokens_total", (("origin", "cached"),)] == hits
    assert found["bosquet_tokens_total", (("origin", "sampled"),)] == 18
    assert found["bosquet_tenant_requests_total", (("tenant", ""),)] == 2
    for name in ("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"):
        assert found[f"bosquet_{name}_count", ()] == 2
    assert found["bosquet_records_dropped_total", ()] == 0


def test_pages_by_state_and_evictions_by_cause_and_age() -> None:
    engine = FakeEngine(says("hi"))
    engine.numbers.pages_free, engine.numbers.pages_cached, engine.numbers.pages_pinned = 10, 50, 20
    engine.numbers.evictions = {"evicted": 7, "superseded": 2}
    engine.numbers.eviction_ages, engine.numbers.eviction_age_seconds = [1, 0, 2, 0, 0, 0, 0, 0, 4], 5000.5
    found = scrape(engine)
    assert found["bosquet_pages", (("state", "cached"),)] == 30
    assert found["bosquet_pages", (("state", "pinned"),)] == 20
    assert found["bosquet_pages_left_total", (("cause", "evicted"),)] == 7
    age = "bosquet_evicted_page_age_seconds"
    assert found[f"{age}_bucket", (("le", "1.0"),)] == 1
    assert found[f"{age}_bucket", (("le", "10.0"),)] == 3
    assert found[f"{age}_bucket", (("le", "+Inf"),)] == found[f"{age}_count", ()] == 7
    assert found[f"{age}_sum", ()] == 5000.5


def test_tenants_are_told_apart_up_to_a_number(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    count = TENANTS + 5
    keys.write_text("\n".join(f"key-of-tenant-{i} tenant-{i}" for i in range(count)) + "\nkey-of-root root operator\n")

    async def work(client: httpx.AsyncClient) -> str:
        for i in range(count):
            await client.post(CHAT, json=HELLO, headers={"Authorization": f"Bearer key-of-tenant-{i}"})
        refused = await client.get("/metrics", headers={"Authorization": "Bearer key-of-tenant-1"})
        assert refused.status_code == 403
        assert (await client.get("/metrics")).status_code == 401
        return (await client.get("/metrics", headers={"Authorization": "Bearer key-of-root"})).text

    found = parsed(in_process(FakeEngine(says("hi")), work, ServerConfig(keys_file=str(keys))))
    lines = {labels[0][1]: value for (name, labels), value in found.items() if name == "bosquet_tenant_requests_total"}
    assert len(lines) == TENANTS + 1
    assert lines["other"] == 5
    assert sum(lines.values()) == count


def test_the_board_and_the_page_ask_for_metrics_that_there_are() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = Metrics().render("ready", Stats(eviction_ages=[0] * 9)).decode()
    families = list(text_string_to_metric_families(page))
    known = {sample.name for family in families for sample in family.samples} | {family.name for family in families}
    known |= {f"{family.name}_total" for family in families if family.type == "counter"}
    board = json.loads((docs / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(asked) > 30
    asked.append((docs / "traces.md").read_text())
    for expression in asked:
        assert set(re.findall(r"\bbosquet_\w+", expression)) <= known, expression
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [(at["x"] + i, at["y"] + j) for at in places for i in range(at["w"]) for j in range(at["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
