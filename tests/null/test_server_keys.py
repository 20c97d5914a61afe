"""Keys: who may do what, whose tenant a request is, and that no key is ever written down."""

import json
import logging
from pathlib import Path

import httpx
import pytest
from fakes_engine import FakeEngine, says
from live_server import get, in_process, post
from starlette.requests import Request

from bosquet.errors import ConfigError, NotAuthenticated
from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.server.keys import Caller, load_keyring

ALICE, BOB, ROOT = "alice-key-0001", "bob-key-00002", "root-key-00003"
LINES = f"# keys\n\n{ALICE} alice\n{BOB}   bob user\n{ROOT} ops operator\n"
HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    path = tmp_path / "keys"
    path.write_text(LINES)
    return ServerConfig(keys_file=str(path))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "headers", [{}, bearer("wrong-key-0000"), bearer(""), {"Authorization": ALICE}, bearer("ü" * 9)]
)
def test_no_key_or_a_wrong_one(config: ServerConfig, path: str, headers: dict):
    headers = {name: value.encode() for name, value in headers.items()}
    response = post(FakeEngine(), path, HI, config=config, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


def test_the_tenant_comes_from_the_key_alone(config: ServerConfig):
    engine = FakeEngine()
    claims = {"X-Bosquet-Tenant": "ops", "X-Bosquet-Program": "p"}
    for headers in (bearer(ALICE), {"x-api-key": BOB}, {"authorization": f"bearer {ROOT}"}):
        body = HI | {"user": "ops", "metadata": {"tenant": "ops"}}
        response = post(engine, "/v1/chat/completions", body, config=config, headers=headers | claims)
        assert response.status_code == 200
    assert [request.origin.tenant for request in engine.requests] == ["alice", "bob", "ops"]


def test_without_keys_everybody_is_the_operator_of_no_tenant():
    engine = FakeEngine()
    assert post(engine, "/v1/chat/completions", HI | {"priority": 3}, headers=bearer("anything")).status_code == 200
    assert engine.requests[0].origin.tenant == ""
    assert get(engine, "/metrics").status_code == 200


def test_roles(config: ServerConfig):
    for key, status in ((ALICE, 403), (ROOT, 200)):
        assert get(FakeEngine(), "/metrics", config=config, headers=bearer(key)).status_code == status
        body = HI | {"priority": 1}
        response = post(FakeEngine(), "/v1/chat/completions", body, config=config, headers=bearer(key))
        assert response.status_code == status
    refused = get(FakeEngine(), "/metrics", config=config, headers=bearer(ALICE))
    assert refused.json()["error"]["code"] == "permission_denied"
    later = HI | {"priority": -1}
    assert post(FakeEngine(), "/v1/chat/completions", later, config=config, headers=bearer(ALICE)).status_code == 200
    assert get(FakeEngine(), "/metrics", config=config).status_code == 401
    assert get(FakeEngine(), "/v1/models", config=config).status_code == 401
    assert get(FakeEngine(), "/health", config=config).status_code == 200


def test_json_file_is_the_same(tmp_path: Path):
    path = tmp_path / "keys.json"
    path.write_text(json.dumps([{"key": ALICE, "tenant": "alice"}, {"key": ROOT, "tenant": "o", "role": "operator"}]))
    ring = load_keyring(str(path))
    assert ring.identify(_request(ALICE)) == Caller("alice", "user")
    assert ring.identify(_request(ROOT)) == Caller("o", "operator")
    with pytest.raises(NotAuthenticated):
        ring.identify(_request(BOB))


@pytest.mark.parametrize(
    "text",
    [
        "", "# nothing\n", "secret-key-1\n", "secret-key-1 a b c\n", "secret-key-1 a admin\n", "short a\n",
        "secret-key-1 a\nsecret-key-1 b\n", "[", "{}", "[1]", '[{"key": "secret-key-1"}]',
        '[{"key": "secret-key-1", "tenant": ""}]', '[{"key": "secret-key-1", "tenant": "a", "rôle": "x"}]',
        '[{"key": "secret key 1", "tenant": "a"}]',
    ],
)  # fmt: skip
def test_a_bad_keys_file_is_one_clear_error_without_the_key(tmp_path: Path, text: str):
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_keyring(str(path))
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_or_binary_keys_file(tmp_path: Path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("none", "binary", ""):
        with pytest.raises(ConfigError):
            load_keyring(str(tmp_path / name))


def test_the_log_names_the_tenant_and_never_key_or_text(config: ServerConfig, caplog: pytest.LogCaptureFixture):
    engine = FakeEngine(says("the answer"))
    caplog.set_level(logging.DEBUG)
    body = {"messages": [{"role": "user", "content": "the question"}]}

    async def call(client: httpx.AsyncClient) -> None:
        for stream in (False, True):
            headers = bearer(ALICE) | {"X-Request-Id": f"my-{stream}"}
            await client.post("/v1/chat/completions", json=body | {"stream": stream}, headers=headers)
        await client.post("/v1/chat/completions", json=body, headers=bearer("wrong-key-0000"))

    in_process(engine, call, config)
    facts = [record.facts for record in caplog.records if record.name == "bosquet.access"]
    assert [entry["tenant"] for entry in facts] == ["alice", "alice", ""]
    assert [entry["status"] for entry in facts] == [200, 200, 401]
    assert [entry["id"] for entry in facts[:2]] == ["my-False", "my-True"]
    assert [entry["completion_tokens"] for entry in facts] == [11, 11, 0]
    assert facts[1]["cached_tokens"] == facts[1]["prompt_tokens"] - 1
    written = caplog.text + json.dumps(facts)
    for secret in (ALICE, "wrong-key", "question", "answer"):
        assert secret not in written


def _request(key: str) -> Request:
    return Request({"type": "http", "headers": [(b"authorization", f"Bearer {key}".encode())]})
