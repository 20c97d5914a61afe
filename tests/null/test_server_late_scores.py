"""Choices that end before their prompt's scores are known: those come with choice 0, which has to compute the prompt
that its siblings find in the cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fakes_engine import FakeEngine, FakeStream, says
from live_server import events, post

from bosquet.types import Output, Request


class LateStream(FakeStream):
    """Choice 0 says all that it has to say after the others."""

    async def __aiter__(self) -> AsyncIterator[list[Output]]:
        steps = [outputs async for outputs in super().__aiter__()]
        for late in (False, True):
            for outputs in steps:
                if mine := [output for output in outputs if (output.choice == 0) is late]:
                    yield mine


class LateEngine(FakeEngine):
    async def submit(self, request: Request) -> LateStream:
        stream = await super().submit(request)
        return LateStream(self, request, stream._cached)


BODY: dict[str, Any] = {"prompt": "ab", "n": 3, "logprobs": 1, "echo": True}


@pytest.mark.parametrize("changes", [{}, {"return_token_ids": True}, {"prompt": ["ab", "xyz"]}, {"max_tokens": 1}])
def test_nothing_is_lost(changes: dict[str, Any]) -> None:
    body = BODY | changes
    early, late = (
        post(kind(says("hello", "you", "all")), "/v1/completions", body).json()["choices"]
        for kind in (FakeEngine, LateEngine)
    )
    assert late == early
    streamed = events(post(LateEngine(says("hello", "you", "all")), "/v1/completions", body | {"stream": True}))
    texts = ["" for _ in early]
    for chunk in streamed[:-1]:
        for piece in chunk["choices"]:
            texts[piece["index"]] += piece["text"]
    assert texts == [choice["text"] for choice in early]
