"""Records of real requests are what the client has counted."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from live_engine import Served

SYSTEM = "You answer briefly, and only what was asked. " * 6
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 10}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
    "required": ["city", "zip"],
    "additionalProperties": False,
}


def ask(served: Served, number: int) -> tuple[str, dict[str, Any]]:
    """The id and the usage of an answer: streamed or not, one choice or two, free or in a form."""
    body: dict[str, Any] = {
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Question {number}?"}],
        "max_tokens": 12,
        "seed": number,
        "n": 1 + number % 2,
    }
    if number % 3 == 0:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    if number % 4 >= 2:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    response = httpx.post(
        f"{served.url}/v1/chat/completions", json=body, timeout=120, headers={"X-Bosquet-Run": "live-traces"}
    )
    answer = json.loads(response.text.split("data: ")[-2]) if "stream" in body else response.json()
    return answer["id"], answer["usage"]


def test_records_are_what_the_client_has_counted(served: Served) -> None:
    with ThreadPoolExecutor(8) as pool:
        said = dict(pool.map(lambda number: ask(served, number), range(12)))
    page = httpx.get(f"{served.url}/v1/requests?run=live-traces&limit=100").json()["data"]
    assert {one["id"] for one in page} == said.keys()
    for one in page:
        usage, tokens = said[one["id"]], one["tokens"]
        assert one["prompt_tokens"] == usage["prompt_tokens"]
        assert one["completion_tokens"] == usage["completion_tokens"]
        assert one["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert tokens["forced"] + tokens["drafted"] + tokens["sampled"] == usage["completion_tokens"]
        whole = httpx.get(f"{served.url}/v1/requests/{one['id']}").json()
        choices = whole["engine"]["choices"]
        assert tokens["cached"] + tokens["computed"] == len(choices) * usage["prompt_tokens"]
        assert sum(choice["generated"] for choice in choices) == usage["completion_tokens"]
        assert [part[1] for part in whole["parts"]] == ["system", "user", "template"]
        assert whole["parts"][-1][3] == usage["prompt_tokens"]
        spent = sum(seconds for seconds in one["times"].values() if seconds is not None)
        assert spent <= one["seconds"] + 0.1
    (line,) = httpx.get(f"{served.url}/v1/ledger?by=run&run=live-traces").json()["data"]
    assert line["calls"] == 12
    assert line["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in said.values())
    assert line["completion_tokens"] == sum(usage["completion_tokens"] for usage in said.values())


def test_a_client_that_leaves_is_in_the_records_with_what_was_computed(served: Served) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    headers = {"X-Bosquet-Run": "live-leaver"}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, headers=headers, timeout=60) as stream:
        next(stream.iter_bytes())
    end = time.monotonic() + 20
    while not (page := httpx.get(f"{served.url}/v1/requests?run=live-leaver").json()["data"]):
        assert time.monotonic() < end
        time.sleep(0.05)
    (one,) = page
    assert (one["status"], one["finish"]) == (499, "abort")
    tokens = one["tokens"]
    assert tokens["cached"] + tokens["computed"] == one["prompt_tokens"]
    assert one["completion_tokens"] <= tokens["sampled"] + tokens["drafted"] < 2000
