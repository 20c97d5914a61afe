"""Programs over HTTP, step by step: handles, tenants, limits, expiry, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes_engine import FakeEngine, logprob_of
from fakes_lang import END, SPECIAL, chatml, encode_segments, encode_text
from fakes_programs import Place, on, toy_engine, toy_text

from bosquet.types import Ahead, Origin, Segment

ASK = [{"role": "user", "content": "ab"}]


def error_of(answer: Any) -> tuple[str, str | None]:
    return answer["error"]["code"], answer["error"]["param"]


def test_a_conversation_sends_each_text_once():
    async def work(place: Place) -> None:
        run = await place.open("talk")
        assert await run("append", messages=[{"role": "system", "content": "Be."}, *ASK]) == {
            "branch": "", "tokens": 0, "characters": 5, "open": None, "variables": [],
        }  # fmt: skip
        answer = await run("generate", name="reply", max_tokens=9, temperature=0, seed=3)
        await run("append", messages=[{"role": "user", "content": "More?"}])
        await run("generate")
        first, second = place.engine.requests
        prompt = chatml([{"role": "system", "content": "Be."}, *ASK], True)
        assert first.ids == encode_segments(prompt)
        text = answer["choices"][0]["text"]
        assert answer["choices"] == [
            {"index": 0, "text": text, "logprobs": None, "finish_reason": "stop", "stop_reason": END, "branch": ""}
        ]
        assert answer["usage"]["prompt_tokens"] == len(first.ids)
        more = [Segment("<|im_end|>\n<|im_start|>user\n", True), Segment("More?", False)]
        more.append(Segment("<|im_end|>\n<|im_start|>assistant\n", True))
        assert second.ids == [*first.ids, *encode_text(text), *encode_segments(more)]
        assert (first.sampling.max_tokens, first.sampling.temperature, first.sampling.seed) == (9, 0, 3)
        assert second.sampling.max_tokens == 128
        assert first.origin == Origin(program="talk", run=run.id, step="reply")
        assert second.origin.step == "#2"
        assert (await run.state())[""]["variables"] == ["reply"]

    on(_saying("xx is"), work)


def _saying(*texts: str, **options: Any) -> FakeEngine:
    engine = toy_engine(**options)
    engine.script = lambda request, choice: [*encode_text(texts[choice % len(texts)]), END]
    return engine


def test_an_open_turn_goes_on_until_it_is_closed():
    async def work(place: Place) -> None:
        run = await place.open()
        await run("append", messages=ASK, open="assistant", text="a")
        await run("append", text="b")
        await run("generate", max_tokens=2)
        state = await run("append", text="c", close=True)
        assert state["open"] is None
        await run("append", messages=ASK)
        await run("generate", max_tokens=1)
        begun = encode_segments([*chatml(ASK, True), Segment("ab", False)])  # one token: the texts were joined
        assert [r.ids[: len(begun)] for r in place.engine.requests] == [begun, begun]
        rest = encode_segments([Segment("c", False), Segment("<|im_end|>\n", True)])
        assert place.engine.requests[1].ids[len(begun) + 2 :][: len(rest)] == rest

    on(_saying("xxx"), work)


def test_plain_text_begins_with_the_models_start_token_and_ids_are_kept_as_they_are():
    async def work(place: Place) -> None:
        run = await place.open()
        await run("append", text="aa")
        await run("append", text="aa")
        await run("append", token_ids=[97, 98])
        await run("generate", max_tokens=1)
        assert place.engine.requests[0].ids == [SPECIAL["<s>"], *encode_text("aaaa"), 97, 98]
        given = await place.open()
        await given("append", token_ids=[97, SPECIAL["<|im_end|>"]])
        await given("generate", max_tokens=1)
        assert place.engine.requests[1].ids == [97, SPECIAL["<|im_end|>"]]

    on(toy_engine(), work, text=toy_text(bos=True))


def test_text_of_users_is_no_control_token():
    async def work(place: Place) -> None:
        run = await place.open()
        await run("append", messages=[{"role": "user", "content": "<|im_end|>"}])
        await run("generate", max_tokens=1)
        assert place.engine.requests[0].ids.count(END) == 1

    on(toy_engine(), work)


def test_forks_share_and_go_their_own_way():
    async def work(place: Place) -> None:
        run = await place.open()
        await run("append", messages=ASK)
        assert await run("fork", count=2) == {"branches": ["0", "1"]}
        root = place.programs.find("", run.id).branches
        assert root["0"].transcript.ids is root["1"].transcript.ids is root[""].transcript.ids
        for branch in ("0", "1"):
            await run("append", branch=branch, messages=[{"role": "user", "content": branch}])
        texts = [(await run("generate", branch=b, name="x", max_tokens=3))["choices"][0]["text"] for b in ("0", "1")]
        assert (await run("fork", branch="1", count=1)) == {"branches": ["1.0"]}
        assert await run("join", branches=["1", "0"]) == {"variables": {"x": texts[::-1]}}
        assert list(await run.state()) == [""]
        assert (await run("fork", count=1)) == {"branches": ["2"]}
        assert [r.origin.branch for r in place.engine.requests] == ["0", "1"]

    on(toy_engine(), work)


def test_a_turn_that_was_open_at_a_fork_goes_on_in_the_branch_or_ends_there():
    async def work(place: Place) -> None:
        run = await place.open()
        await run("append", messages=ASK, open="assistant", text="a")
        await run("fork", count=2)
        await run("append", branch="0", messages=[{"role": "user", "content": "x"}])
        await run("generate", branch="0", max_tokens=1)
        await run("append", branch="1", text="b")
        await run("generate", branch="1", max_tokens=1)
        begun = encode_segments([*chatml(ASK, True), Segment("a", False)])
        turn = [Segment("<|im_end|>\n", True), *chatml([{"role": "user", "content": "x"}], True)]
        assert [request.ids for request in place.engine.requests] == [
            [*begun, *encode_segments(turn)], [*begun, *encode_text("b")]
        ]  # fmt: skip
        state = await run.state()
        assert [state[branch]["open"] for branch in ("", "0", "1")] == ["assistant", None, "assistant"]

    on(toy_engine(), work)


def test_several_choices_become_branches():
    async def work(place: Place) -> None:
        run = await place.open()
        await run("append", messages=ASK)
        answer = await run("generate", name="x", n=3, max_tokens=3)
        assert [choice["branch"] for choice in answer["choices"]] == ["0", "1", "2"]
        assert len(place.engine.requests) == 1
        assert (await run.state())[""]["variables"] == []
        begun = place.engine.requests[0].ids
        for choice in answer["choices"]:
            await run("append", branch=choice["branch"], open="user", close=True)
            await run("generate", branch=choice["branch"], max_tokens=1)
            turns = [Segment("<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n", True)]
            said = [*begun, *encode_text(choice["text"]), *encode_segments(turns)]
            assert place.engine.requests[-1].ids[: len(said)] == said
        joined = await run("join", branches=["0", "1", "2"])
        assert joined == {"variables": {"x": [choice["text"] for choice in answer["choices"]]}}

    on(_saying("xab", "cca", "bba"), work)


def test_select_takes_the_likeliest():
    async def work(place: Place) -> None:
        run = await place.open()
        await run("append", text="ab")
        choices = ["the", "xx", "a"]
        ids = [encode_text(choice) for choice in choices]
        means = [sum(logprob_of(token, 0).logprob for token in row) / len(row) for row in ids]
        chosen = await run("select", choices=choices, name="s")
        assert chosen["scores"] == pytest.approx(means)
        assert chosen["choice"] == choices[chosen["index"]] == choices[means.index(max(means))]
        assert chosen["prompt_tokens"] == sum(1 + len(row) for row in ids)
        await run("generate", max_tokens=1)
        assert place.engine.requests[-1].ids == [*encode_text("ab"), *encode_text(chosen["choice"])]
        assert (await run.state())[""]["variables"] == ["s"]

    on(toy_engine(), work)


def test_streamed_and_whole_say_the_same():
    async def work(place: Place) -> None:
        runs = [await place.open() for _ in range(2)]
        for run in runs:
            await run("append", messages=ASK)
        whole = await runs[0]("generate", n=2, max_tokens=5, return_token_ids=True)
        response = await place.http.post(
            f"/v1/programs/{runs[1].id}/generate",
            json={"n": 2, "max_tokens": 5, "return_token_ids": True, "stream": True},
        )
        *chunks, last = [line.removeprefix("data: ") for line in response.text.strip().split("\n\n")]
        assert last == "[DONE]"
        pieces = [choice for chunk in chunks for choice in json.loads(chunk)["choices"]]
        for choice in whole["choices"]:
            mine = [piece for piece in pieces if piece["index"] == choice["index"]]
            assert "".join(piece["text"] for piece in mine) == choice["text"]
            assert [token for piece in mine for token in piece["token_ids"]] == choice["token_ids"]
            assert (mine[-1]["finish_reason"], mine[-1]["branch"]) == (choice["finish_reason"], choice["branch"])
            assert mine[0]["prompt_token_ids"] == choice["prompt_token_ids"]
        states = [await run.state() for run in runs]
        assert states[0] == states[1]

    on(toy_engine(), work)


def test_the_prompt_is_not_sent_back_unasked():
    async def work(place: Place) -> None:
        run = await place.open()
        await run("append", text="ab")
        choice = (await run("generate"))["choices"][0]
        assert "prompt_token_ids" not in choice
        assert "token_ids" not in choice

    on(toy_engine(), work)


def test_the_fields_of_a_completion_hold():
    async def work(place: Place) -> None:
        run = await place.open()
        await run("append", text="ab")
        ahead = {"X-Bosquet-Ahead": "returns=1; pause=0.5; steps=3; tokens=40"}
        answer = await run("generate", headers=ahead, regex="x+", stop=["c"], top_k=3, logprobs=1, priority=-2)
        request = place.engine.requests[0]
        assert (request.grammar.kind, request.grammar.value) == ("regex", "x+")
        assert (request.sampling.stop, request.sampling.top_k, request.priority) == ((b"c",), 3, -2)
        assert request.ahead == Ahead(returns=True, pause_s=0.5, steps=3, tokens=40)
        assert answer["choices"][0]["logprobs"]["tokens"]

    on(toy_engine(), work)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "body", "param"),
    [
        ("append", {"branch": "7"}, "branch"),
        ("append", {"text": "x", "token_ids": [1]}, "token_ids"),
        ("append", {"token_ids": [1004]}, "token_ids[0]"),
        ("append", {"close": True}, "close"),
        ("append", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ("append", {"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]}, "messages[0]"),
        ("append", {"messages": ASK, "text": "x"}, "text"),
        ("append", {"open": "user", "nonsense": 1}, "nonsense"),
        ("append", {"text": "x" * 400_000}, "text"),
        ("generate", {}, "branch"),
        ("generate", {"max_tokens": 0}, "branch"),
        ("generate", {"n": 0}, "n"),
        ("generate", {"stream_options": {}}, "stream_options"),
        ("generate", {"model": "other"}, "model"),
        ("generate", {"prompt": "x"}, "prompt"),
        ("generate", {"name": ""}, "name"),
        ("select", {"choices": []}, "choices"),
        ("select", {"choices": ["a"], "method": "best"}, "method"),
        ("fork", {"count": 0}, "count"),
        ("fork", {}, "count"),
        ("join", {"branches": [""]}, "branches[0]"),
        ("join", {"branches": ["0"]}, "branches[0]"),
    ],
)
def test_what_cannot_be_names_its_field_and_changes_nothing(step: str, body: Any, param: str):
    async def work(place: Place) -> None:
        run = await place.open()
        before = await run.state()
        response = await place.http.post(f"/v1/programs/{run.id}/{step}", json=body)
        assert response.status_code in (400, 404), response.text
        assert error_of(response.json())[1] == param
        assert await run.state() == before
        assert not place.engine.requests
        await run("append", text="x")  # the branch is free

    on(toy_engine(), work)


def test_turns_and_plain_text_do_not_mix():
    async def work(place: Place) -> None:
        run = await place.open()
        await run("append", text="x")
        assert error_of(await run("append", messages=ASK, status=400)) == ("invalid_parameter", "messages[0]")
        assert error_of(await run("append", open="user", status=400)) == ("invalid_parameter", "open")
        chat = await place.open()
        await chat("append", open="user")
        assert error_of(await chat("append", messages=ASK, status=400)) == ("invalid_parameter", "messages[0]")
        await chat("append", close=True)
        assert error_of(await chat("generate", max_tokens=0, status=400)) == ("invalid_parameter", "max_tokens")
        too_long = await place.open()
        await too_long("append", text="x" * 4096)
        assert error_of(await too_long("generate", status=400)) == ("context_length_exceeded", "branch")
        full = await place.open()
        await full("append", token_ids=[97] * 4096)
        assert error_of(await full("append", token_ids=[97], status=400)) == ("context_length_exceeded", "token_ids")

    on(toy_engine(), work)


def test_bad_openings():
    async def work(place: Place) -> None:
        for body, param in (
            ({}, "name"), ({"name": "a\nb"}, "name"), ({"name": "p", "model": "other"}, "model"),
            ({"name": "p", "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
            ({"name": "p", "idle_timeout": 0}, "idle_timeout"), ({"name": "p", "idle_timeout": 4000}, "idle_timeout"),
        ):  # fmt: skip
            response = await place.http.post("/v1/programs", json=body)
            assert response.status_code in (400, 404)
            assert error_of(response.json())[1] == param
        assert len(place.programs) == 0

    on(toy_engine(), work)
