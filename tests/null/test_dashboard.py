"""The page's files and the route that gives them, here and in front of a server elsewhere."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes_engine import FakeEngine, text_services
from javascript import PAGE
from live_server import get, in_process

from bosquet.runtime.dashboard.remote import remote_app
from bosquet.runtime.server.app import create_app
from bosquet.runtime.server.config import ServerConfig

FILES = sorted(PAGE.iterdir())


def test_every_file_is_given_with_its_kind_and_the_policy():
    async def call(client: httpx.AsyncClient) -> None:
        for path in FILES:
            answer = await client.get(f"/dashboard/{path.name}")
            assert (answer.status_code, answer.content) == (200, path.read_bytes())
            kind = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
            assert answer.headers["content-type"].startswith(kind[path.suffix])
            policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
            assert policy["default-src"] == "'none'"
            assert policy["script-src"] == policy["connect-src"] == "'self'"
            assert policy["frame-ancestors"] == "'none'"
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = await client.get(f"/dashboard/{path.name}", headers={"If-None-Match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        first = await client.get("/dashboard/")
        assert first.content == (PAGE / "index.html").read_bytes()
        assert (await client.get("/dashboard")).headers["location"] == "dashboard/"

    in_process(FakeEngine(), call)


@pytest.mark.parametrize(
    "name", ["nothing.js", "../files.py", "..%2ffiles.py", "%2e%2e/files.py", "/etc/passwd", "a/b"]
)
def test_nothing_but_the_page_is_given(name: str):
    answer = get(FakeEngine(), f"/dashboard/{name}")
    assert answer.status_code == 404
    assert "import" not in answer.text


def test_the_page_needs_no_key_and_its_data_does(tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("key-of-root root operator\n")
    config = ServerConfig(keys_file=str(keys))
    assert get(FakeEngine(), "/dashboard/", config=config).status_code == 200
    for path in ("/v1/requests", "/v1/ledger", "/v1/cache/tree", "/v1/cache/reuse", "/metrics"):
        assert get(FakeEngine(), path, config=config).status_code == 401, path


def test_the_page_is_no_part_of_the_api():
    assert not [path for path in get(FakeEngine(), "/openapi.json").json()["paths"] if "dashboard" in path]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_fetches_nothing_from_elsewhere_and_makes_no_code_of_text(path: Path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    assert set(re.findall(r"\w+://[^\s\"'`)]+", text)) <= {"http://www.w3.org/2000/svg"}
    turned_to_code = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc"
        r"|\beval\b|new Function|javascript:|setTimeout\(['\"`]|\son\w+=\""
    )
    assert not re.search(turned_to_code, text)
    if path.suffix == ".js":
        named = re.findall(r"(?:from |import\()\"\./([\w.]+)\"", text) + re.findall(r"\"\./(\w+\.js)\"", text)
    else:
        named = re.findall(r"(?:src|href)=\"([^\"#]+)\"", text)
    assert all((PAGE / name).is_file() for name in named)


def remote(tmp_path: Path, key: str, calls: Any) -> Any:
    """What `calls` returns, given a client of `bosquet dashboard` before a server with keys."""
    keys = tmp_path / "keys"
    keys.write_text("key-of-ada ada\nkey-of-root root operator\n")
    behind = create_app(FakeEngine(), text_services(), ServerConfig(keys_file=str(keys)))
    app = remote_app("http://behind", key, httpx.ASGITransport(behind))

    async def work() -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            return await calls(client)

    return asyncio.run(work())


def test_a_page_elsewhere_passes_on_what_it_asks_with_the_key(tmp_path: Path):
    async def calls(client: httpx.AsyncClient) -> None:
        assert (await client.get("/dashboard/")).status_code == 200
        assert (await client.get("/v1/requests?limit=7")).json()["data"] == []
        assert (await client.get("/v1/requests?limit=x")).json()["error"]["param"] == "limit"
        assert "bosquet_requests_total" in (await client.get("/metrics")).text
        compared = await client.post("/v1/explain", json={"a": "one two", "b": "one three"})
        assert compared.json()["shared_tokens"] == len("one t")
        of_ada = await client.get("/metrics", headers={"Authorization": "Bearer key-of-ada"})
        assert of_ada.status_code == 403, "the browser's own key comes first"

    remote(tmp_path, "key-of-root", calls)


def test_a_page_elsewhere_gives_no_more_than_it_asks_and_to_nobody_else(tmp_path: Path):
    async def calls(client: httpx.AsyncClient) -> None:
        for path in ("/v1/models", "/v1/chat/completions", "/v1/requests/a/b/c", "/v1/cache/../models", "/docs"):
            assert (await client.get(path)).status_code == 404, path
        assert (await client.post("/v1/requests", json={})).status_code == 405
        foreign = await client.get("/v1/requests", headers={"Host": "rebound.example"})
        assert foreign.status_code == 400

    remote(tmp_path, "key-of-root", calls)


def test_a_page_elsewhere_without_a_key_asks_for_one(tmp_path: Path):
    async def calls(client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1/requests")).status_code == 401

    remote(tmp_path, "", calls)


def test_a_server_that_is_away_is_said_so():
    async def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    app = remote_app("http://behind", "", httpx.MockTransport(gone))

    async def work() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.get("/health")

    answer = asyncio.run(work())
    assert answer.status_code == 502
    assert "does not answer" in answer.json()["error"]["message"]
