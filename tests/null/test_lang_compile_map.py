"""What all items of a `map` begin with is computed once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fakes_lang import FakeBackend, decode, echo, until

import bosquet.lang as bosquet
from bosquet.errors import Unavailable
from bosquet.lang import State, gen, select
from bosquet.types import Call

RULES = "the rules: " + "abc " * 60


@bosquet.program(temperature=0, max_tokens=5)
def ruled(s: State, item: str, style: str = "plain") -> Any:
    s.system(RULES + style)
    s.user(f"Do this, the {style} way: {item}")
    s.assistant(gen("done"))
    return s["done"]


class Together(FakeBackend):
    """Five items arrive before the first one is begun, as they do when an engine is busy."""

    arrived = 0
    all_there: asyncio.Event | None = None

    async def generate(self, call: Call) -> Any:
        if call.origin.step != "prefix":
            self.all_there = self.all_there or asyncio.Event()
            self.arrived += 1
            if self.arrived == 5:
                self.all_there.set()
            await self.all_there.wait()
        async for chunk in super().generate(call):
            yield chunk


@pytest.fixture(params=["sync", "async"])
def mapped(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "sync":
        yield ruled.map
    else:
        yield lambda *args, **kwargs: asyncio.run(ruled.amap(*args, **kwargs))


def test_what_all_items_begin_with_is_computed_once(mapped: Any) -> None:
    items = ["abc", "the", " the", "x", "日本"]
    plain, backend = Together(), Together()
    alone = mapped(items, backend=plain, prefix=False)
    results = mapped(items, backend=backend)
    first, *calls = backend.calls
    assert [result.value for result in results] == [result.value for result in alone]
    assert (first.origin.step, first.sampling.max_tokens, first.ahead.returns) == ("prefix", 1, True)
    assert decode(first.ids) == f"system\n{RULES}plain\nuser\nDo this, the plain way: "[: len(decode(first.ids))]
    assert decode(first.ids).endswith("way:")  # the space may become part of a token
    assert all(tuple(call.ids[: len(first.ids)]) == tuple(first.ids) for call in calls)
    assert min(result.usage.cached_tokens for result in results) >= len(first.ids)
    assert [result.usage.cached_tokens for result in alone] == [0] * 5  # without it, all compute it all
    until(lambda: len(backend.ended) == 6)
    assert backend.ended.count(first.origin.run) == 1


def test_only_what_items_share_counts() -> None:
    backend = FakeBackend()
    ruled.map([{"item": "a", "style": "ab"}, {"item": "b", "style": "ab"}], backend=backend)
    assert decode(backend.calls[0].ids).endswith("Do this, the ab way:")
    backend = FakeBackend()
    ruled.map([{"item": "a", "style": "ab"}, {"item": "a", "style": "x"}], backend=backend)
    assert decode(backend.calls[0].ids) == f"system\n{RULES.rstrip()}"


def test_short_prefixes_single_items_and_other_backends_are_left_alone() -> None:
    backend = FakeBackend()
    echo.map(["ab", "c"], backend=backend)
    ruled.map(["ab"], backend=backend)
    ruled.map(["ab", "c"], backend=backend, concurrency=1)
    assert "prefix" not in {call.origin.step for call in backend.calls}
    with pytest.raises(TypeError, match="prefix"):
        ruled.map(["ab"], backend=backend, prefix="yes")  # type: ignore[arg-type]


def test_a_prefix_says_what_the_prompts_say_of_tools() -> None:
    @bosquet.tool
    def look(word: str) -> str:
        """Look a word up."""
        return word

    @bosquet.program(max_tokens=6)
    def looks(s: State, item: str) -> Any:
        s.system(RULES)
        s.user(item)
        s.act([look], max_steps=1)
        return s["act"]

    backend = FakeBackend(script={"act": "done"})
    looks.map(["abc", "x"], backend=backend)
    first, *calls = backend.calls
    assert decode(first.ids).startswith("tools: look\nsystem\n")
    assert decode(first.ids).endswith("user\n")
    assert all(tuple(call.ids[: len(first.ids)]) == tuple(first.ids) for call in calls)


def test_a_prefix_that_fails_is_the_items_to_tell() -> None:
    backend = FakeBackend(script={"prefix": Unavailable("down"), "done": "ab"})
    assert [result.value for result in ruled.map(["ab", "c"], backend=backend)] == ["ab", "ab"]
    seen: list[Any] = []

    @bosquet.program(max_tokens=3)
    def checks(s: State, item: Any) -> Any:
        seen.append(item)
        s.system(RULES)
        if item < 2:
            raise ValueError("too small")
        s.user(str(item))
        s.assistant(gen("x") + select("y", ["a", "b"]))
        return s["x"]

    results = checks.map([1, 2], backend=backend)
    assert str(results[0].error) == "too small"
    assert results[1].error is None
    assert len(seen) == 3  # once more, with a placeholder, up to the condition
