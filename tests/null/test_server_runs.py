"""Requests of the OpenAI protocol that belong to one run: by what they say, and by what they go on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes_engine import END, FakeEngine, says
from hypothesis import given, settings
from hypothesis import strategies as st
from live_server import Session, events, in_process, live, post
from server_tools import PARIS, TEXT, TOOLS, UTC, call

import bosquet.lang as bosquet
from bosquet.lang.loop import submit
from bosquet.runtime.server import conversations
from bosquet.runtime.server.config import ServerConfig
from bosquet.runtime.server.conversations import Ends
from bosquet.types import Ahead, Call, Origin, SamplingParams

CHAT, TEXTS = "/v1/chat/completions", "/v1/completions"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
JOINED = {"run": {"id": "r 1", "by": "header"}}


class Talk:
    """One server; what it joined each request to."""

    def __init__(self, engine: FakeEngine | None = None) -> None:
        self.engine = engine or FakeEngine(says("yes", "no"))
        self.session = Session(self.engine, TEXT)

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *error: object) -> None:
        self.session.close()

    def ask(self, path: str, body: dict[str, Any]) -> tuple[str, str | None, dict[str, Any]]:
        """The run that the engine was told, how the answer says it was found, and the answer."""
        response = self.session.post(path, body)
        assert response.status_code == 200, response.text
        answer = response.json()
        run = self.engine.requests[-1].origin.run
        told = answer.get("x_bosquet", {}).get("run")
        assert told is None or told["id"] == run
        return run, told and told["by"], answer

    def chat(self, *messages: Any, **fields: Any) -> tuple[str, str | None]:
        return self.ask(CHAT, {"messages": list(messages), **fields})[:2]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


@pytest.mark.parametrize(("path", "body"), [(CHAT, HI), (TEXTS, {"prompt": "a"}), (TEXTS, {"prompt": ["a", "b"]})])
@pytest.mark.parametrize("stream", [False, True])
def test_a_run_in_the_header_goes_before_all(path: str, body: dict[str, Any], stream: bool):
    engine = FakeEngine(says("yes"))
    fields = {"user": "u", "prompt_cache_key": "k", "session_id": "s", "stream": stream}
    response = post(engine, path, body | fields, headers={"X-Bosquet-Run": "r 1", "X-Bosquet-Program": "p"})
    assert {request.origin for request in engine.requests} == {Origin(program="p", run="r 1")}
    answers = events(response)[:-1] if stream else [response.json()]
    assert answers[0]["x_bosquet"] == JOINED
    assert not any("x_bosquet" in answer for answer in answers[1:])


@pytest.mark.parametrize(("path", "body"), [(CHAT, HI), (TEXTS, {"prompt": "a"}), (TEXTS, {"prompt": [1, 2]})])
def test_fields_of_the_body_name_a_run(path: str, body: dict[str, Any]):
    with Talk() as talk:
        runs = {}
        for name in ("prompt_cache_key", "session_id", "user"):
            run, by, _ = talk.ask(path, body | {name: "the value"})
            assert by == name
            assert "the value" not in run
            assert talk.ask(path, body | {name: "the value"})[0] == run
            assert talk.ask(path, body | {name: "another"})[0] != run
            runs[name] = run
        assert len(set(runs.values())) == 3
        every = {"prompt_cache_key": "the value", "session_id": "x", "user": "y"}
        assert talk.ask(path, body | every)[0] == runs["prompt_cache_key"]
        assert talk.ask(path, body | {"session_id": "the value", "user": "y"})[0] == runs["session_id"]
        assert talk.ask(path, body | {"user": ""})[1] is None


def test_unrelated_conversations_of_one_user_are_answered_all_the_same():
    with Talk() as talk:
        answers = [talk.ask(CHAT, {"messages": [user(str(i))], "user": "u"}) for i in range(3)]
        assert len({run for run, _, _ in answers}) == 1
        assert all(answer["choices"][0]["message"]["content"] == "yes" for _, _, answer in answers)


def test_a_conversation_goes_on_with_its_run():
    with Talk() as talk:
        first = talk.chat(user("hi"))
        assert first[1] is None
        assert first[0]
        assert talk.chat(user("hi"), assistant("yes"), user("more")) == (first[0], "prefix")
        assert talk.chat(user("hi"), assistant(" yes\n"), user("else")) == (first[0], "prefix")  # a branch of it
        third = (user("hi"), assistant("yes"), user("more"), assistant("yes"))
        assert talk.chat(*third, user("and")) == (first[0], "prefix")
        for other in (
            (user("hi"),),  # the same question is another run
            (user("hi"), assistant("other"), user("more")),
            (user("ho"), assistant("yes"), user("more")),
            (user("hi"), user("more")),
            ({"role": "system", "content": "s"}, *third),
        ):
            run, by = talk.chat(*other)
            assert by is None
            assert run != first[0]


def test_every_choice_may_be_gone_on_with():
    with Talk() as talk:
        first = talk.chat(user("hi"), n=2)
        assert talk.chat(user("hi"), assistant("no"), user("more")) == (first[0], "prefix")
        assert talk.chat(user("hi"), assistant("yes"), user("more")) == (first[0], "prefix")


def test_a_turn_that_was_continued_is_one_turn():
    with Talk() as talk:
        first = talk.chat(user("hi"), assistant("oh "), continue_final_message=True)
        assert talk.chat(user("hi"), assistant("oh yes"), user("more")) == (first[0], "prefix")


def test_tool_calls_may_be_written_otherwise():
    said = f"I look.{call('weather', PARIS)}{call('time', UTC)}"
    with Talk(FakeEngine(says(said))) as talk:
        run, _, answer = talk.ask(CHAT, {**HI, "tools": TOOLS, "max_tokens": 400})
        message = answer["choices"][0]["message"]
        calls = message["tool_calls"]
        assert len(calls) == 2
        for made in calls:
            made["function"]["arguments"] = json.dumps(json.loads(made["function"]["arguments"]), indent=3)
        echoed = assistant(message["content"], tool_calls=calls)
        results = [{"role": "tool", "tool_call_id": made["id"], "content": "ok"} for made in calls]
        assert talk.chat(user("hi"), echoed, *results, tools=TOOLS) == (run, "prefix")
        calls[0]["function"]["arguments"] = "{}"
        assert talk.chat(user("hi"), echoed, *results, tools=TOOLS)[1] is None


@pytest.mark.parametrize("stream", [False, True])
def test_streamed_answers_are_gone_on_with_likewise(stream: bool):
    with Talk() as talk:
        response = talk.session.post(CHAT, HI | {"stream": stream})
        assert response.status_code == 200
        run = talk.engine.requests[-1].origin.run
        assert talk.chat(user("hi"), assistant("yes"), user("more")) == (run, "prefix")


@pytest.mark.parametrize("kind", ["text", "ids", "ids with the end"])
def test_texts_and_ids_go_on_with_their_run(kind: str):
    def prompt(*parts: str) -> Any:
        text = "".join(parts)
        return text if kind == "text" else [END if c == "|" else ord(c) for c in text]

    answer = "yes|" if kind == "ids with the end" else "yes"
    with Talk() as talk:
        first = talk.ask(TEXTS, {"prompt": prompt("abc")})[0]
        assert talk.ask(TEXTS, {"prompt": prompt("abc", answer, "d")})[:2] == (first, "prefix")
        assert talk.ask(TEXTS, {"prompt": prompt("abc", answer)})[:2] == (first, "prefix")
        longer = prompt("abc", answer, "d", answer, "e")
        assert talk.ask(TEXTS, {"prompt": longer})[:2] == (first, "prefix")
        for other in (prompt("abc"), prompt("abcye"), prompt("abd", answer), prompt("xabc", answer)):
            assert talk.ask(TEXTS, {"prompt": other})[1] is None
        both = talk.ask(TEXTS, {"prompt": prompt("two"), "n": 2})[0]
        for said in ("yes", "no"):
            assert talk.ask(TEXTS, {"prompt": prompt("two", said, "x")})[:2] == (both, "prefix")
        longer = talk.ask(TEXTS, {"prompt": prompt("new", answer, "d")})[0]
        assert talk.ask(TEXTS, {"prompt": prompt("new")})[0] != longer
        assert talk.ask(TEXTS, {"prompt": prompt("new", answer, "d", answer)})[:2] == (longer, "prefix")
        several = {"prompt": [prompt("abc", answer), prompt("x")]}
        assert talk.ask(TEXTS, several)[:2] == ("", None)
        scored = {"prompt": prompt("abc", answer), "echo": True, "max_tokens": 0}
        assert talk.ask(TEXTS, scored)[:2] == ("", None)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abü"), st.integers(1, 2)), min_size=1, max_size=10))
def test_random_conversations_belong_to_the_run_that_they_began(moves: list[tuple[int, str, int]]):
    """Against a table of all conversations there have been, by their texts."""
    session.engine.requests.clear()
    session.app_state().conversations._ends.clear()
    known: dict[tuple[str, ...], str] = {(): ""}
    for which, text, n in moves:
        start = list(known)[which % len(known)]
        messages = [user(said) if i % 2 == 0 else assistant(said) for i, said in enumerate([*start, text])]
        assert session.post(CHAT, {"messages": messages, "n": n}).status_code == 200
        run = session.engine.requests[-1].origin.run
        if start:
            assert run == known[start]
        else:
            assert run not in known.values()
        for answer in ("yes", "no")[:n]:
            known[*start, text, answer] = run


class StateSession(Session):
    def app_state(self) -> Any:
        return self._client._transport.app.state.services  # type: ignore[attr-defined]


@pytest.fixture(autouse=True, scope="module")
def _session() -> Any:
    global session
    session = StateSession(FakeEngine(says("yes", "no")))
    yield
    session.close()


def test_tenants_do_not_share_runs(tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("alice-key-0001 alice\nbob-key-00002 bob\n")
    engine = FakeEngine(says("yes"))

    async def apart(client: httpx.AsyncClient) -> None:
        await client.post(CHAT, json=HI, headers={"x-api-key": "alice-key-0001"})
        more = {"messages": [user("hi"), assistant("yes"), user("x")]}
        answer = (await client.post(CHAT, json=more, headers={"x-api-key": "bob-key-00002"})).json()
        assert "x_bosquet" not in answer
        answer = (await client.post(CHAT, json=more, headers={"x-api-key": "alice-key-0001"})).json()
        assert answer["x_bosquet"]["run"]["by"] == "prefix"

    in_process(engine, apart, config=ServerConfig(keys_file=str(keys)), text=TEXT)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch):
    ends = Ends(3)
    for i in range(10):
        ends.add(i % 4, bytes([i]), f"r{i}")
    assert len(ends) == 3
    assert ends.find(9 % 4, bytes([9])) == "r9"
    assert ends.find(0, bytes([0])) is None
    assert sorted(ends.lengths) == sorted({7 % 4, 8 % 4, 9 % 4})
    ends.add(7 % 4, bytes([7]), "again")
    ends.add(5, b"new", "r")
    assert ends.find(7 % 4, bytes([7])) == "again"  # the oldest was another
    monkeypatch.setattr(conversations, "MOST", {"chat": 2, "text": 2, "ids": 2})
    with Talk() as talk:
        for i in range(5):
            talk.chat(user(str(i)))
        assert talk.chat(user("4"), assistant("yes"), user("x"))[1] == "prefix"
        assert talk.chat(user("0"), assistant("yes"), user("x"))[1] is None


# -- what is to come, and the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "ahead"),
    [
        ("returns=1; pause=0.5; steps=3; tokens=40", Ahead(returns=True, pause_s=0.5, steps=3, tokens=40)),
        ("returns=0", Ahead(returns=False)),
        ("tokens=7;steps=2", Ahead(steps=2, tokens=7)),
        (" pause=12 ", Ahead(pause_s=12.0)),
        ("", Ahead()),
    ],
)
@pytest.mark.parametrize(("path", "body"), [(CHAT, HI), (TEXTS, {"prompt": "a"})])
def test_what_is_ahead_of_a_run_comes_in_a_header(path: str, body: dict[str, Any], header: str, ahead: Ahead):
    engine = FakeEngine(says("yes"))
    assert post(engine, path, body, headers={"X-Bosquet-Ahead": header}).status_code == 200
    assert engine.requests[0].ahead == ahead


@pytest.mark.parametrize(
    "header",
    ["returns=2", "returns=yes", "returns", "pause=-1", "pause=1e3", "pause=nan", "steps=1.5", "steps=-1", "later=1",
     "steps=1; steps=2", "steps=1;", ";", "steps = 1", "tokens=9999999999", "steps=１"],
)  # fmt: skip
@pytest.mark.parametrize(("path", "body"), [(CHAT, HI), (TEXTS, {"prompt": "a"})])
def test_other_words_about_what_is_ahead_are_refused(path: str, body: dict[str, Any], header: str):
    engine = FakeEngine()
    response = post(engine, path, body, headers={"X-Bosquet-Ahead": header.encode()})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "X-Bosquet-Ahead"
    assert not engine.requests


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        Ahead,
        returns=st.sampled_from([None, True, False]),
        pause_s=st.floats(0, 200_000),
        steps=st.integers(0, 1000),
        tokens=st.integers(0, 10**6),
    )
)
def test_what_the_language_knows_arrives(ahead: Ahead):
    found = _parsed(_header_of(ahead))
    assert (found.returns, found.steps, found.tokens) == (ahead.returns, ahead.steps, ahead.tokens)
    assert found.pause_s == pytest.approx(min(ahead.pause_s, 86_400), abs=0.0006)


def _header_of(ahead: Ahead) -> dict[str, str]:
    """What the backend sends."""
    sent: list[httpx.Headers] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers)
        return httpx.Response(200, content=b"data: [DONE]\n\n")

    async def work() -> None:
        backend = bosquet.BosquetServer("http://test", transport=httpx.MockTransport(answer))
        call = Call(sampling=SamplingParams(), origin=Origin(run="r"), ids=(1,), ahead=ahead)
        async for _ in backend.generate(call):
            pass
        await backend._client.aclose()

    session._runner.run(work())
    return {"X-Bosquet-Ahead": sent[0].get("x-bosquet-ahead", "")}


def _parsed(headers: dict[str, str]) -> Ahead:
    """What the server reads."""
    session.engine.requests.clear()
    response = session._runner.run(session._client.post(CHAT, json=HI, headers=headers))
    assert response.status_code == 200, response.text
    found: Ahead = session.engine.requests[0].ahead
    return found


def test_a_run_is_ended_by_name():
    engine = FakeEngine()

    async def work(client: httpx.AsyncClient) -> None:
        for name in ("r1", "r1", "a%20b%2Fc", "unknown", "x" * 201):
            response = await client.delete(f"/v1/runs/{name}")
            assert (response.status_code, response.content) == (204, b"")

    in_process(engine, work)
    assert engine.ended == [("", "r1"), ("", "r1"), ("", "a b/c"), ("", "unknown")]


def test_the_language_ends_runs_by_the_name_that_their_requests_carried():
    engine = FakeEngine(says("yes"))
    with live(engine) as server, bosquet.BosquetServer(server.url) as backend:
        for run in ("r1", "a b/ü?%"):
            submit(_one(backend, run)).result()
    assert engine.ended == [("", request.origin.run) for request in engine.requests]
    assert engine.ended[0] == ("", "r1")


async def _one(backend: bosquet.BosquetServer, run: str) -> None:
    async for _ in backend.generate(Call(sampling=SamplingParams(), origin=Origin(run=run), ids=(1,))):
        pass
    await backend.end(run)
