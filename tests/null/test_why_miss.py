"""Planted causes of misses: each request but the last fills the cache, the last misses, and the cause is named.

The real scheduler, cache and routes; tokens are bytes, so that places are counted in characters.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from why_bed import LocalEngine, Server
from why_plants import PLANTS, in_case


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(LocalEngine(pages=4000)) as served:
        yield served


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_cause_is_named(server: Server, name: str):
    before, missing, kind, field = PLANTS[name]
    for asked in before:
        server.chat(in_case(name, asked).messages, **asked.more)
    found = server.why_chat(in_case(name, missing).messages, **missing.more)
    assert (found["cause"], found["kind"], found["place"]["name"]) == ("diverged", kind, field), found
    assert found["hint"]
