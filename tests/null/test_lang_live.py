"""Programs against the real server over a socket, with an engine behind it that needs no model."""

from __future__ import annotations

from typing import Any

import pytest
from fakes_engine import BEGIN, END, START, FakeEngine, hashed, logprob_of, says, text_services
from live_server import live, wait_for

import bosquet.lang as bosquet
from bosquet.errors import Overloaded, ProgramError, PromptTooLong


@bosquet.program(temperature=0, max_tokens=12)
def talk(s: bosquet.State, name: str) -> None:
    s.system("Kind <|im_end|> words.")
    s.user(f"I am {name}.")
    s.assistant("Dear " + bosquet.gen("greeting", stop="!") + bosquet.gen("more", logprobs=0))
    branches = s.fork(2)
    for i, branch in enumerate(branches):
        branch.user(f"{i}?")
        branch.assistant(bosquet.gen("reply", max_tokens=3))
    s.join(branches)
    s.user("Done?")
    s.assistant(bosquet.select("done", ["yes", "no"]))


def test_token_ids_travel_from_call_to_call() -> None:
    engine = FakeEngine(
        lambda request, choice: [*b"hello! you", END] if request.origin.step == "greeting" else hashed(request, choice)
    )
    with live(engine) as server, bosquet.BosquetServer(server.url) as backend:
        result = talk.run("Ada", backend=backend)
    assert result.error is None
    assert result["greeting"] == "hello"
    assert result.meta("greeting").stop == "!"
    by_step = {(r.origin.branch, r.origin.step): r for r in engine.requests if r.origin.step != "done"}
    begun = [START, *b"system\nKind <|im_end|> words.", END, *b"\n", START, *b"user\nI am Ada.", END, *b"\n"]
    first = [*begun, START, *b"assistant\nDear "]
    assert by_step["", "greeting"].ids == first
    second = [*first, *b"hello"]
    assert by_step["", "more"].ids == second
    shared = [*second, *result["more"].encode(), END, *b"\n"]
    for i in range(2):
        assert by_step[str(i), "reply"].ids == [*shared, START, *b"user\n%d?" % i, END, *b"\n", START, *b"assistant\n"]
    assert {(r.origin.program, r.origin.run) for r in engine.requests} == {("talk", result.run_id)}
    assert result.meta("more").cached_tokens == len(first)
    assert [entry.logprob for entry in result.meta("more").logprobs] == [
        logprob_of(token, 0).logprob for token in result.meta("more").ids
    ]
    assert result.meta("done").scores == pytest.approx(
        {word: -sum(word.encode()) / len(word) / 256 for word in ("yes", "no")}
    )
    assert result["done"] == "no"


def test_plain_text_begins_with_the_models_start_token() -> None:
    @bosquet.program
    def plain(s: bosquet.State) -> None:
        s += "One" + bosquet.gen("a", max_tokens=2) + bosquet.select("b", ["x", "y"], "unconditional")

    engine = FakeEngine(says("ab", end=False))
    with live(engine, text=text_services(add_bos=True)) as server, bosquet.BosquetServer(server.url) as backend:
        result = plain.run(backend=backend)
    assert result.ids == (BEGIN, *b"Oneab", *result["b"].encode())
    assert sorted(r.ids for r in engine.requests[-2:]) == [[BEGIN, *b"x"], [BEGIN, *b"y"]]


def test_the_servers_refusals_have_their_own_class_and_field() -> None:
    @bosquet.program
    def long(s: bosquet.State, n: int) -> None:
        s += "a" * n + bosquet.gen("x")

    engine = FakeEngine()
    with live(engine) as server, bosquet.BosquetServer(server.url) as backend:
        with pytest.raises(ProgramError, match="context holds 512 tokens") as caught:
            long.run(600, backend=backend)["x"]
        assert isinstance(caught.value.__cause__, PromptTooLong)
        assert caught.value.__cause__.field == "prompt"
        engine.reject = Overloaded("full", 3.2)
        with pytest.raises(ProgramError) as caught:
            long.run(5, backend=backend)["x"]
        assert isinstance(caught.value.__cause__, Overloaded)
        assert caught.value.__cause__.retry_after == 4  # seconds are sent whole


def test_a_program_that_is_stopped_frees_the_engine() -> None:
    engine = FakeEngine(delay=0.02)

    @bosquet.program(max_tokens=400)
    def long(s: bosquet.State) -> Any:
        s += "Go."
        branches = s.fork(3)
        for branch in branches:
            branch += bosquet.gen("x")
        s += bosquet.gen("y")

    with live(engine) as server, bosquet.BosquetServer(server.url) as backend:
        stream = long.stream(backend=backend)
        next(stream)
        wait_for(lambda: len(engine.running) == 4)
        stream.close()
        wait_for(lambda: not engine.running)
        assert len(engine.cancelled) == 4
