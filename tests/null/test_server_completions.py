"""Completions over the fake engine: prompts of four kinds, echo, scoring, the legacy log-probabilities."""

import httpx
import pytest
from fakes_engine import BEGIN, END, START, FakeEngine, says, text_services
from live_server import events, post

from bosquet.errors import Overloaded

PATH = "/v1/completions"


def ask(engine: FakeEngine, prompt: object = "ab", **fields: object) -> httpx.Response:
    return post(engine, PATH, {"model": "toy", "prompt": prompt} | fields)


def test_answer_has_the_protocols_shape():
    body = ask(FakeEngine(says("hello"))).json()
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "text_completion",
        "model": "toy",
        "choices": [{"index": 0, "text": "hello", "logprobs": None, "finish_reason": "stop", "stop_reason": END}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 6,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ("a<|im_start|>", [[97, START]]),
    ],
)
def test_prompts_of_every_kind(prompt: object, ids: list[list[int]]):
    engine = FakeEngine()
    assert ask(engine, prompt).status_code == 200
    assert [request.ids for request in engine.requests] == ids
    assert all(request.sampling.max_tokens == 16 for request in engine.requests)


def test_special_strings_and_start_token_are_switches():
    engine = FakeEngine()
    text = text_services(add_bos=True)
    for fields in ({}, {"add_special_tokens": False}, {"parse_special": False}):
        assert post(engine, PATH, {"prompt": "<s>"} | fields, text=text).status_code == 200
    assert [request.ids for request in engine.requests] == [[BEGIN, BEGIN], [BEGIN], [BEGIN, *b"<s>"]]
    assert post(engine, PATH, {"prompt": [5]}, text=text).status_code == 200
    assert engine.requests[-1].ids == [5]  # ids are taken as they are


def test_choices_count_over_prompts():
    engine = FakeEngine(lambda request, choice: [*bytes([request.ids[0]]), *str(choice).encode(), END])
    body = ask(engine, ["a", "b"], n=2).json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "a0"), (1, "a1"), (2, "b0"), (3, "b1")]
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == 12


def test_one_refused_prompt_cancels_the_others():
    engine = FakeEngine(capacity=2, delay=0.01)
    response = ask(engine, ["a", "b", "c"])
    assert response.status_code == 429
    assert len(engine.cancelled) == 2
    assert not engine.running


def test_logprobs_in_the_legacy_shape():
    choice = ask(FakeEngine(says("hé!")), logprobs=1).json()["choices"][0]
    assert choice["logprobs"] == {
        "text_offset": [0, 1, 1, 2],
        "tokens": ["h", "bytes:\\xc3", "bytes:\\xa9", "!"],
        "token_logprobs": [-104 / 256, -0xC3 / 256, -0xA9 / 256, -33 / 256],
        "top_logprobs": [{"h": -1.0}, {"bytes:\\xc3": -1.0}, {"bytes:\\xa9": -1.0}, {"!": -1.0}],
    }
    only_chosen = ask(FakeEngine(says("h")), logprobs=0).json()["choices"][0]["logprobs"]
    assert only_chosen["top_logprobs"] == [{"h": -104 / 256}]


@pytest.mark.parametrize("n", [1, 2])
def test_echo_with_scores(n: int):
    body = ask(FakeEngine(says("c")), "ab", echo=True, logprobs=0, n=n).json()
    for choice in body["choices"]:
        assert choice["text"] == "abc"
        assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
        assert choice["logprobs"]["text_offset"] == [0, 1, 2]
        assert choice["logprobs"]["token_logprobs"] == [None, -98 / 256, -99 / 256]
        assert choice["logprobs"]["top_logprobs"][0] is None


def test_pure_scoring():
    engine = FakeEngine()
    body = ask(engine, [97, 98, 99], echo=True, logprobs=0, max_tokens=0).json()
    assert engine.requests[0].sampling.max_tokens == 0
    assert body["choices"][0]["text"] == "abc"
    assert body["choices"][0]["logprobs"]["token_logprobs"] == [None, -98 / 256, -99 / 256]
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0


def test_scoring_may_fill_the_whole_context():
    assert ask(FakeEngine(), [97] * 512, echo=True, max_tokens=0).status_code == 200
    assert ask(FakeEngine(), [97] * 512, echo=True, max_tokens=1).status_code == 400


def test_scoring_from_a_later_token():
    engine = FakeEngine(says("d"))
    choice = ask(engine, "abc", echo=True, logprobs=0, prompt_logprobs_from=2).json()["choices"][0]
    assert engine.requests[0].sampling.prompt_logprobs_from == 2
    assert choice["text"] == "cd"
    assert choice["logprobs"]["tokens"] == ["c", "d"]
    assert choice["logprobs"]["token_logprobs"] == [-99 / 256, -100 / 256]


def test_echoed_special_strings_take_up_room():
    choice = ask(FakeEngine(says("c")), "<s>ab", echo=True, logprobs=0).json()["choices"][0]
    assert choice["text"] == "<s>abc"
    assert choice["logprobs"]["tokens"] == ["<s>", "a", "b", "c"]
    assert choice["logprobs"]["text_offset"] == [0, 3, 4, 5]


def test_an_added_start_token_takes_up_none():
    engine = FakeEngine(says("c"))
    body = {"prompt": "ab", "echo": True, "logprobs": 0}
    choice = post(engine, PATH, body, text=text_services(add_bos=True)).json()["choices"][0]
    assert choice["text"] == "abc"
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2]


def test_echo_without_scores():
    assert ask(FakeEngine(says("c")), "ab", echo=True).json()["choices"][0]["text"] == "abc"
    assert ask(FakeEngine(says("c")), [97, 98], echo=True).json()["choices"][0]["text"] == "abc"


def test_token_ids_of_prompt_and_output():
    choices = ask(FakeEngine(says("xy")), ["ab", "c"], return_token_ids=True).json()["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == [[97, 98], [99]]
    assert [choice["token_ids"] for choice in choices] == [[*b"xy", END]] * 2


def test_stream_echoes_scores_and_ids_in_pieces():
    fields = {"echo": True, "logprobs": 0, "stream": True, "return_token_ids": True}
    *chunks, done = events(ask(FakeEngine(says("cd")), "ab", **fields, stream_options={"include_usage": True}))
    assert done == "[DONE]"
    first = chunks[0]["choices"][0]
    assert (first["text"], first["prompt_token_ids"], first["finish_reason"]) == ("ab", [97, 98], None)
    assert first["logprobs"]["token_logprobs"] == [None, -98 / 256]
    assert all("prompt_token_ids" not in chunk["choices"][0] for chunk in chunks[1:-1])
    assert [token for chunk in chunks[1:-1] for token in chunk["choices"][0]["token_ids"]] == [*b"cd", END]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 5
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_many_prompts_stream_side_by_side():
    engine = FakeEngine(lambda request, choice: [*bytes([request.ids[0]]) * 3, END], delay=0.002)
    *chunks, _ = events(ask(engine, ["a", "b", "c"], stream=True))
    texts = ["", "", ""]
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["aaa", "bbb", "ccc"]


def test_best_of_only_as_n():
    assert ask(FakeEngine(), best_of=2, n=2).status_code == 200
    assert ask(FakeEngine(), best_of=1).status_code == 200


def test_retry_after_is_in_whole_seconds():
    response = ask(FakeEngine(reject=Overloaded("full", retry_after=2.1)))
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
