"""The same programs over HTTP and in the language: the same token ids, call by call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from fakes_engine import FakeEngine, logprob_of
from fakes_lang import (
    FakeBackend,
    Template,
    chatml,
    folding,
    thinking,
)
from fakes_programs import Handle, Place, on, toy_engine, toy_text
from hypothesis import given, settings
from hypothesis import strategies as st
from live_server import live
from server_tools import PARIS, TEXT, call

import bosquet.lang as bosquet
from bosquet.types import Origin, Request

TEXTS = ["ab", "c", "a", "aa", " the", "is", "er\n\n", "\n", "<|im_end|>", "ü", "日本", "x", ". "]
STOPS = [None, "a", "b\n", "bc", "x", "he", "\n\n"]
CHOICES = [["ab", "abc"], ["the", "a", "ü"], ["x", "x\n", "er"]]
SIZE = {"context_length": 4096}

roles = st.sampled_from(["system", "user", "assistant"])
texts = st.sampled_from(TEXTS)
leaves = st.one_of(
    st.tuples(st.just("text"), texts | st.just("")),
    st.tuples(st.just("gen"), st.integers(1, 7), st.sampled_from(STOPS)),
    st.tuples(st.just("select"), st.sampled_from(CHOICES), st.sampled_from(["mean", "greedy", "unconditional"])),
)
turns = st.tuples(st.just("turn"), roles, st.lists(leaves, max_size=3))


def bodies(piece: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.recursive(
        st.lists(piece, max_size=4),
        lambda inner: st.lists(
            piece | st.tuples(st.just("fork"), st.lists(inner, min_size=1, max_size=3), st.booleans()), max_size=4
        ),
        max_leaves=8,
    )


class Scoring(FakeBackend):
    """With the log-probabilities of the fake engine."""

    async def score(self, ids: Sequence[int], choices: Sequence[Sequence[int]], origin: Origin) -> list[list[float]]:
        self.scored.append((ids, choices))
        return [[logprob_of(token, 0).logprob for token in choice] for choice in choices]


def in_language(s: bosquet.State, body: list[Any], count: list[int]) -> None:
    for kind, *args in body:
        if kind == "turn":
            with s.turn(args[0]):
                in_language(s, args[1], count)
        elif kind == "fork":
            branches = s.fork(len(args[0]))
            for branch, inner in zip(branches, args[0], strict=True):
                in_language(branch, inner, count)
            if args[1]:
                s.join(branches)
        elif kind == "text":
            s += args[0]
        else:
            count[0] += 1
            name = f"v{count[0]}"
            if kind == "select":
                s += bosquet.select(name, args[0], args[1])
            else:
                more: dict[str, Any] = {} if args[1] is None else {"stop": args[1]}
                s += bosquet.gen(name, max_tokens=args[0], **more)


async def over_http(run: Handle, path: str, body: list[Any], count: list[int]) -> None:
    for kind, *args in body:
        if kind == "turn":
            await run("append", branch=path, open=args[0])
            await over_http(run, path, args[1], count)
            await run("append", branch=path, close=True)
        elif kind == "fork":
            branches = (await run("fork", branch=path, count=len(args[0])))["branches"]
            for branch, inner in zip(branches, args[0], strict=True):
                await over_http(run, branch, inner, count)
            if args[1]:
                await run("join", branch=path, branches=branches)
        elif kind == "text":
            await run("append", branch=path, text=args[0])
        else:
            count[0] += 1
            name = f"v{count[0]}"
            if kind == "select":
                await run("select", branch=path, name=name, choices=args[0], method=args[1])
            else:
                await run("generate", branch=path, name=name, max_tokens=args[0], stop=args[1])


@pytest.mark.parametrize(
    ("piece", "template"),
    [(leaves, chatml), (turns, chatml), (turns, folding), (turns, thinking)],
    ids=["plain", "chatml", "folding", "thinking"],
)
def test_a_program_over_http_is_the_same_program_in_the_language(piece: st.SearchStrategy[Any], template: Template):
    @bosquet.program
    def program(s: bosquet.State, body: list[Any]) -> None:
        in_language(s, body, [0])

    @settings(max_examples=25, deadline=None)
    @given(bodies(piece))
    def check(body: list[Any]) -> None:
        backend = Scoring(template=template, bos=True)
        result = program.run(body, backend=backend)

        async def work() -> None:
            place.engine.requests.clear()
            run = await place.open()
            if result.error is not None:  # the template does not take these turns
                with pytest.raises(AssertionError, match="template_failed"):
                    await over_http(run, "", body, [0])
                return
            await over_http(run, "", body, [0])
            asked = [r for r in place.engine.requests if r.sampling.max_tokens]
            where = {(r.origin.branch, r.origin.step): r.ids for r in asked}
            assert where == {(c.origin.branch, c.origin.step): list(c.ids) for c in backend.calls}
            scored = sorted(r.ids for r in place.engine.requests if not r.sampling.max_tokens)
            assert scored == sorted([*ids, *choice] for ids, choices in backend.scored for choice in choices)
            root = place.programs.find("", run.id).branch("")
            assert root.transcript.ids == result.ids
            assert root.values == {name: result[name] for name in result}

        runner.run(work())

    with asyncio.Runner() as runner:
        place = Place(toy_engine(), toy_text(template, bos=True))
        check()


def test_an_agent_over_http_is_the_same_agent_in_the_language():
    """With tools that the model is told of, calls that it makes, and their results."""
    called: list[str] = []

    @bosquet.tool
    def weather(city: str, days: int) -> str:
        """Ask about the weather."""
        called.append(city)
        return f"sun in {city}"

    @bosquet.program(max_tokens=200)
    def agent(s: bosquet.State) -> None:
        s.user("Weather?")
        s.act([weather])
        s.user("Sure?")
        s.assistant(bosquet.gen("sure", max_tokens=3))

    def says(request: Request, choice: int) -> list[int]:
        asked = b"sun in" not in bytes(token for token in request.ids if token < 256)
        said = f"Well. {call('weather', PARIS)}{call('weather', PARIS)}" if asked else "Sun."
        return [*said.encode(), 257]

    by_language, by_http = FakeEngine(says, **SIZE), FakeEngine(says, **SIZE)
    with live(by_language, text=TEXT) as server, bosquet.BosquetServer(server.url) as backend:
        result = agent.run(backend=backend)
        assert result.error is None

    async def work(place: Place) -> None:
        run = await place.open("agent")
        await run("append", messages=[{"role": "user", "content": "Weather?"}])
        tools = [
            {"type": "function", "function": described}
            for described in [
                {"name": spec.name, "description": spec.description, "parameters": json.loads(spec.parameters)}
                for spec in [weather.spec]
            ]
        ]
        body = {"name": "act", "tools": tools, "max_tokens": 200}
        choice = (await run("generate", **body))["choices"][0]
        assert choice["content"] == "Well."
        results = [
            {"role": "tool", "content": "sun in Paris", "tool_call_id": made["id"]} for made in choice["tool_calls"]
        ]
        await run("append", messages=results)
        assert (await run("generate", **body))["choices"][0]["content"] == "Sun."
        await run("append", messages=[{"role": "user", "content": "Sure?"}])
        await run("generate", name="sure", max_tokens=3)
        assert [r.ids for r in by_http.requests] == [r.ids for r in by_language.requests]
        assert [r.grammar for r in by_http.requests] == [r.grammar for r in by_language.requests]
        assert [r.sampling.stop_token_ids for r in by_http.requests] == [
            r.sampling.stop_token_ids for r in by_language.requests
        ]
        assert place.programs.find("", run.id).branch("").transcript.turns[2].name == "weather"

    on(by_http, work, text=TEXT)
    assert called == ["Paris", "Paris"]
