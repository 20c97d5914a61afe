"""Health, metrics, documents, ids, browsers, logs: what an operator sees of the server."""

import asyncio
import json
import logging
from types import SimpleNamespace

import httpx
import pytest
from fakes_engine import FakeEngine, says, text_services
from live_server import get, in_process, post
from prometheus_client.parser import text_string_to_metric_families

from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.server.logs import JsonFormatter
from bosquet.runtime.server.serve import is_loopback
from bosquet.runtime.server.services import TextServices
from bosquet.types import Stats

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}


def test_health_tells_the_truth_throughout():
    engine = FakeEngine()
    text = TextServices()

    async def call(client: httpx.AsyncClient) -> list[tuple[int, str, int | None]]:
        seen = []

        async def look() -> None:
            response = await client.get("/health")
            body = response.json()
            seen.append((response.status_code, body["status"], body["incarnation"]))

        engine.state = "starting"
        await look()
        engine.state = "ready"
        await look()  # the engine is, the tokenizer not yet
        text.install(text_services().get())
        await look()
        engine.die()
        await look()
        engine.restart()
        await look()
        engine.state = "failed"
        await look()
        return seen

    assert in_process(engine, call, text=text) == [
        (503, "starting", None),
        (503, "starting", 1),
        (200, "ready", 1),
        (503, "restarting", None),
        (200, "ready", 2),
        (503, "failed", None),
    ]


def test_an_engine_that_says_nothing_is_not_healthy(monkeypatch: pytest.MonkeyPatch):
    class Mute(FakeEngine):
        async def stats(self):
            raise TimeoutError

    response = get(Mute(), "/health")
    assert (response.status_code, response.json()["status"]) == (503, "unresponsive")
    assert "bosquet_pages" not in get(Mute(), "/metrics").text


def metrics_of(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_what_happened():
    engine = FakeEngine(says("abc"))
    engine.numbers.pages_total, engine.numbers.pages_free, engine.numbers.preemptions = 64, 60, 7

    async def call(client: httpx.AsyncClient) -> str:
        await client.post(CHAT, json=HI)
        await client.post(CHAT, json=HI | {"stream": True})
        await client.post(CHAT, json=HI | {"n": 0})
        await client.get("/no/such/path")
        return (await client.get("/metrics")).text

    found = metrics_of(in_process(engine, call))
    prompt = len("<user\nhi<\n<assistant\n")

    def http(route: str, status: str, method: str = "POST") -> float:
        return found["bosquet_http_requests_total", (("method", method), ("route", route), ("status", status))]

    assert (http(CHAT, "200"), http(CHAT, "400"), http("unmatched", "404", "GET")) == (2, 1, 1)
    assert found["bosquet_prompt_tokens_total", ()] == 2 * prompt
    assert found["bosquet_cached_tokens_total", ()] == prompt - 1
    assert found["bosquet_generation_tokens_total", ()] == 8
    assert found["bosquet_preemptions_total", ()] == 7
    assert found["bosquet_pages", (("state", "free"),)] == 60
    assert found["bosquet_pages_capacity", ()] == 64
    assert found["bosquet_requests_running", ()] == 0
    assert found["bosquet_requests_waiting", ()] == 0
    for name in ("time_to_first_token_seconds", "time_per_output_token_seconds", "e2e_request_latency_seconds"):
        assert found[f"bosquet_{name}_count", ()] == 2
    assert found["bosquet_engine_state", (("state", "ready"),)] == 1
    assert found["bosquet_engine_state", (("state", "failed"),)] == 0


def test_metrics_keep_the_last_figures_while_the_engine_does_not_answer(monkeypatch: pytest.MonkeyPatch):
    texts: list[str] = []
    scrapes = SimpleNamespace(monotonic=lambda: float(len(texts)))  # a clock that stands at the scrape's number
    monkeypatch.setattr("bosquet.runtime.server.metrics.time", scrapes)

    class Slow(FakeEngine):
        busy = False

        async def stats(self):
            if self.busy:
                await asyncio.sleep(3600)
            return await super().stats()

    engine = Slow()
    engine.numbers.pages_total, engine.numbers.steps = 64, 5

    async def call(client: httpx.AsyncClient) -> list[str]:
        texts.append((await client.get("/metrics")).text)
        monkeypatch.setattr("bosquet.runtime.server.health.PATIENCE_S", 0.05)
        engine.busy = True
        texts.append((await client.get("/metrics")).text)
        engine.busy = False
        engine.state = "restarting"  # raises Unavailable
        texts.append((await client.get("/metrics")).text)
        monkeypatch.setattr("bosquet.runtime.server.health.PATIENCE_S", 60)
        engine.restart()
        engine.numbers = Stats(steps=1)
        texts.append((await client.get("/metrics")).text)
        return texts

    known, late, gone, back = map(metrics_of, in_process(engine, call))
    names = [{name for name, _ in found if "http" not in name} for found in (known, late, gone, back)]
    assert names[0] == names[1] == names[2] == names[3]
    age = ("bosquet_engine_stats_age_seconds", ())
    assert [found[age] for found in (known, late, gone, back)] == [0, 1, 2, 0]
    steps = ("bosquet_steps_total", ())
    assert [found[steps] for found in (known, late, gone, back)] == [5, 5, 5, 1]
    assert gone["bosquet_engine_state", (("state", "restarting"),)] == 1


def test_version_and_models():
    assert get(FakeEngine(), "/version").json() == {"version": __import__("bosquet").__version__}
    config = ServerConfig(served_model_name="org/mine")
    card = get(FakeEngine(), "/v1/models", config=config).json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("org/mine", 512)
    assert get(FakeEngine(), "/v1/models/org/mine", config=config).json()["id"] == "org/mine"
    for name, status in (("org/mine", 200), ("toy", 200), ("other", 404)):
        response = post(FakeEngine(), CHAT, HI | {"model": name}, config=config)
        assert response.status_code == status
        assert status == 404 or response.json()["model"] == "org/mine"


def test_tokenize_and_back():
    body = post(FakeEngine(), "/tokenize", {"prompt": "hé<s>"}, text=text_services(add_bos=True)).json()
    assert body == {"tokens": [258, *"hé".encode(), 258], "count": 5, "max_model_len": 512}
    assert post(FakeEngine(), "/detokenize", {"tokens": body["tokens"]}).json() == {"prompt": "<s>hé<s>"}
    plain = post(FakeEngine(), "/tokenize", {"prompt": "<s>", "parse_special": False, "add_special_tokens": False})
    assert plain.json()["tokens"] == list(b"<s>")


def test_tokenize_shows_segments_and_reads_them():
    body = {"messages": [{"role": "user", "content": "<s>"}], "return_segments": True}
    first = post(FakeEngine(), "/tokenize", body).json()
    assert first["segments"] == [
        ["<|im_start|>user\n", True],
        ["<s>", False],
        ["<|im_end|>\n", True],
        ["<|im_start|>assistant\n", True],
    ]
    second = post(FakeEngine(), "/tokenize", {"segments": first["segments"]}).json()
    assert second["tokens"] == first["tokens"]
    assert second["count"] == len(second["tokens"])


def test_documents_show_the_request_bodies():
    document = get(FakeEngine(), "/openapi.json").json()
    schemas = document["components"]["schemas"]
    for path, name, field in (
        (CHAT, "ChatRequest", "messages"),
        ("/v1/completions", "CompletionRequest", "prompt"),
        ("/tokenize", "TokenizeRequest", "segments"),
        ("/detokenize", "DetokenizeRequest", "tokens"),
    ):
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert content == {"$ref": f"#/components/schemas/{name}"}
        assert field in schemas[name]["properties"]
    text = json.dumps(document)
    for reference in set(text.split('"#/components/schemas/')[1:]):
        assert reference.split('"')[0] in schemas


def test_request_ids_are_echoed_or_made():
    assert get(FakeEngine(), "/version", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = {get(FakeEngine(), "/version").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    for odd in ("", "x" * 129, "two words"):
        assert get(FakeEngine(), "/version", headers={"X-Request-Id": odd}).headers["x-request-id"].startswith("req-")
    assert get(FakeEngine(), "/nowhere").headers["x-request-id"]


def test_cors_only_for_the_origins_that_are_set():
    headers = {"Origin": "http://a.test"}
    assert "access-control-allow-origin" not in get(FakeEngine(), "/version", headers=headers).headers
    config = ServerConfig(cors_origins=("http://a.test",))
    response = get(FakeEngine(), "/version", headers=headers, config=config)
    assert response.headers["access-control-allow-origin"] == "http://a.test"
    other = get(FakeEngine(), "/version", headers={"Origin": "http://b.test"}, config=config)
    assert "access-control-allow-origin" not in other.headers


def test_json_logs_are_one_object_a_line():
    formatter = JsonFormatter()
    record = logging.LogRecord("bosquet.access", logging.INFO, "", 0, "a %s", ("b",), None)
    plain = json.loads(formatter.format(record))
    assert (plain["message"], plain["level"], plain["logger"]) == ("a b", "info", "bosquet.access")
    record.facts = {"id": "x\ny", "status": 200}
    text = formatter.format(record)
    assert "\n" not in text
    assert json.loads(text)["id"] == "x\ny"


def test_a_fault_of_ours_is_a_500_that_says_nothing_and_a_log_that_says_all(caplog: pytest.LogCaptureFixture):
    class Faulty(FakeEngine):
        async def submit(self, request):
            raise ZeroDivisionError("inner matters")

    response = post(Faulty(), CHAT, HI)
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "internal error", "type": "server_error", "param": None, "code": "internal_error",
    }  # fmt: skip
    assert "inner matters" in caplog.text


@pytest.mark.parametrize(
    ("host", "only_here"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("192.168.0.1", False), ("example.org", False)],
)  # fmt: skip
def test_what_counts_as_loopback(host: str, only_here: bool):
    assert is_loopback(host) is only_here


def test_an_engine_that_misses_the_deadline_does_not_hold_the_client(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bosquet.runtime.server.generation.GRACE_S", 0.05)
    for stream in (False, True):
        engine = FakeEngine(delay=5, honest_deadline=False)
        response = post(engine, CHAT, HI | {"timeout": 0.05, "stream": stream})
        assert "deadline_exceeded" in response.text
        assert response.status_code == (200 if stream else 504)
        assert len(engine.cancelled) == 1


def test_the_deadline_of_the_server_is_the_default():
    engine = FakeEngine(delay=0.01)
    response = post(engine, CHAT, HI, config=ServerConfig(request_timeout_s=0.03))
    assert response.status_code == 504
    assert response.json()["error"]["type"] == "timeout_error"
